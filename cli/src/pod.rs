//! The functions bound to VFIO that a pod was given, and their addresses. Any of these sources may state them; the first that names a
//! function determines the functions, and a function's addresses come from the first source that has any:
//!
//! 1. `IRONVERBS_FUNCTIONS`, an explicit setting: `0000:3b:00.1=10.0.0.5/24`, separated by commas for several functions;
//! 2. the metadata files of dynamic resource allocation drivers (Kubernetes' KEP-5304);
//! 3. the annotation `k8s.v1.cni.cncf.io/network-status`, through the downward API: the file `/etc/podnetinfo/annotations`, or a variable
//!    `IRONVERBS_NETWORK_STATUS`;
//! 4. `PCIDEVICE_*_INFO`, of the SR-IOV network device plugin, which has no addresses.
//!
//! Several functions are used only if the explicit setting names them in order: otherwise the choice would be a guess.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use driver::pci::{Address, Sysfs};
use serde_json::{Deserializer, Value};

/// The explicit setting.
pub const SETTING: &str = "IRONVERBS_FUNCTIONS";
/// The annotation as a variable, for pods without the volume.
const STATUS: &str = "IRONVERBS_NETWORK_STATUS";
/// Mount point of the downward API's volume, as set by network-resources-injector.
const ANNOTATIONS: &str = "etc/podnetinfo/annotations";
const ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";
/// Directory of dynamic resource allocation metadata: claims by name, and those created from templates.
const METADATA: &str = "var/run/kubernetes.io/dra-device-attributes";
const PCI_ADDRESS: &str = "resource.kubernetes.io/pciBusID";

/// A function and its known addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The function.
    pub address: Address,
    /// Its IP addresses; empty if unknown.
    pub ips: Vec<IpAddr>,
}

/// Variables and files of a pod.
pub struct Pod {
    variables: BTreeMap<String, String>,
    root: PathBuf,
}

/// The functions that a source names, in its order.
type Said = (String, Vec<Given>);

impl Pod {
    /// The pod of this process.
    pub fn here() -> Self {
        let word = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        Self { variables: std::env::vars_os().filter_map(word).collect(), root: "/".into() }
    }

    /// The functions to use if the command line names none; empty if this is not a pod with functions.
    pub fn functions(&self) -> Result<Vec<Given>, String> {
        let all = self.sources()?;
        let Some((source, first)) = all.first() else { return Ok(Vec::new()) };
        if first.len() > 1 && source != SETTING {
            let names: Vec<String> = first.iter().map(|given| given.address.to_string()).collect();
            return Err(format!(
                "{source} names {} functions, {}: say by --vfio, or in {SETTING}, which is meant",
                names.len(),
                names.join(" and ")
            ));
        }
        first
            .iter()
            .map(|given| Ok(Given { ips: addresses(&all, given.address)?, ..given.clone() }))
            .collect()
    }

    /// The addresses of a function that the command line names.
    pub fn addresses(&self, address: Address) -> Result<Vec<IpAddr>, String> {
        addresses(&self.sources()?, address)
    }

    /// The functions that each source names, without sources that name no function bound to VFIO.
    fn sources(&self) -> Result<Vec<Said>, String> {
        let mut all = self.setting()?.into_iter().collect::<Vec<_>>();
        all.extend(self.metadata()?);
        all.extend(self.network_status()?);
        all.extend(self.plugin()?);
        let sysfs = Sysfs::at(self.root.join("sys"));
        let is_vfio = |given: &Given| {
            let driver = sysfs.device(given.address).ok().and_then(|device| device.driver());
            driver.as_deref().is_some_and(driver::pci::is_vfio)
        };
        for (source, given) in &mut all {
            // A function named by the user is opened, or an error reports why not.
            given.retain(|given| source == SETTING || is_vfio(given));
        }
        all.retain(|(_, given)| !given.is_empty());
        Ok(all)
    }

    fn setting(&self) -> Result<Option<Said>, String> {
        let Some(text) = self.variables.get(SETTING) else { return Ok(None) };
        let mut all = Vec::new();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (address, ips) = word.split_once('=').unwrap_or((word, ""));
            let wrong = || format!("{SETTING}: expected 0000:3b:00.1=10.0.0.5/24 or so, found {word:?}");
            let ips: Option<Vec<IpAddr>> = ips.split('+').filter(|ip| !ip.is_empty()).map(ip).collect();
            enter(&mut all, address.parse().map_err(|_| wrong())?, ips.ok_or_else(wrong)?);
        }
        Ok(Some((SETTING.into(), all)))
    }

    fn metadata(&self) -> Result<Option<Said>, String> {
        let mut files = Vec::new();
        collect(&self.root.join(METADATA), 4, &mut files);
        files.sort();
        let mut all = Vec::new();
        for file in &files {
            let Ok(text) = fs::read_to_string(file) else { continue };
            // The same data in other versions may follow. An empty file is filled later.
            let Some(first) = Deserializer::from_str(&text).into_iter::<Value>().next() else { continue };
            let metadata = first.map_err(|e| format!("{}: {e}", file.display()))?;
            for device in list(&metadata["requests"]).flat_map(|request| list(&request["devices"])) {
                let Some(address) = device["attributes"][PCI_ADDRESS]["string"].as_str() else { continue };
                let address = address.parse().map_err(|e| format!("{}: {e}", file.display()))?;
                let ips = list(&device["networkData"]["ips"]).filter_map(|text| ip(text.as_str()?)).collect();
                enter(&mut all, address, ips);
            }
        }
        Ok(Some(("the metadata of resource claims".into(), all)))
    }

    fn network_status(&self) -> Result<Option<Said>, String> {
        let (source, text) = match self.variables.get(STATUS) {
            Some(text) => (STATUS.to_owned(), text.clone()),
            None => {
                let path = self.root.join(ANNOTATIONS);
                let Some(text) = fs::read_to_string(&path).ok().and_then(|text| annotation(&text)) else {
                    return Ok(None);
                };
                (path.display().to_string(), text)
            }
        };
        let status: Value =
            serde_json::from_str(&text).map_err(|e| format!("{source}: {ANNOTATION}: {e}"))?;
        let mut all = Vec::new();
        for network in list(&status) {
            let Some(address) = network["device-info"]["pci"]["pci-address"].as_str() else { continue };
            let address = address.parse().map_err(|e| format!("{source}: {e}"))?;
            enter(&mut all, address, list(&network["ips"]).filter_map(|text| ip(text.as_str()?)).collect());
        }
        Ok(Some((source, all)))
    }

    fn plugin(&self) -> Result<Option<Said>, String> {
        let info = |(name, _): &(&String, &String)| name.starts_with("PCIDEVICE_") && name.ends_with("_INFO");
        let (mut names, mut all) = (Vec::new(), Vec::new());
        for (name, text) in self.variables.iter().filter(info) {
            let devices: Value = serde_json::from_str(text).map_err(|e| format!("{name}: {e}"))?;
            for (address, device) in devices.as_object().into_iter().flatten() {
                if device.get("vfio").is_some() {
                    enter(&mut all, address.parse().map_err(|e| format!("{name}: {e}"))?, Vec::new());
                    names.push(name.as_str());
                }
            }
        }
        names.dedup();
        Ok(Some((names.join(" and "), all)))
    }
}

/// Adds addresses of a function, which may be given in several parts.
fn enter(all: &mut Vec<Given>, address: Address, ips: Vec<IpAddr>) {
    match all.iter_mut().find(|given| given.address == address) {
        Some(given) => {
            given.ips.extend(ips.into_iter().filter(|ip| !given.ips.contains(ip)).collect::<Vec<_>>())
        }
        None => all.push(Given { address, ips }),
    }
}

/// A function's addresses, from the first source that has any.
fn addresses(all: &[Said], address: Address) -> Result<Vec<IpAddr>, String> {
    let of_it = |(source, given): &(String, Vec<Given>)| {
        let ips = given.iter().find(|given| given.address == address)?.ips.clone();
        (!ips.is_empty()).then(|| (source.clone(), ips))
    };
    let Some((source, ips)) = all.iter().find_map(of_it) else { return Ok(Vec::new()) };
    let families =
        [ips.iter().filter(|ip| ip.is_ipv4()).count(), ips.iter().filter(|ip| ip.is_ipv6()).count()];
    if families.iter().any(|count| *count > 1) && source != SETTING {
        let names: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
        return Err(format!(
            "{source} has several addresses for {address}, {}: say by --address which",
            names.join(" and ")
        ));
    }
    Ok(ips)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Parses an IP address, with or without a prefix length.
fn ip(text: &str) -> Option<IpAddr> {
    text.split_once('/').map_or(text, |(ip, _)| ip).parse().ok()
}

/// Extracts the annotation from the downward API's file, which has a line `key="value"` each. Values are quoted like Go strings, which for
/// JSON is the same as JSON quoting.
fn annotation(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(ANNOTATION)?.strip_prefix('='))?;
    serde_json::from_str(value).ok()
}

/// Collects the metadata files below `dir`.
fn collect(dir: &Path, depth: usize, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, out);
        } else if entry.file_name().to_string_lossy().ends_with("-metadata.json") {
            out.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with functions 0000:3b:00.1 to .3 bound to vfio-pci, and .4 to a kernel driver.
    struct Fake(Pod);

    impl Fake {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("ironverbs-pod-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let bus = root.join("sys/bus/pci");
            for (n, driver) in [(1, "vfio-pci"), (2, "vfio-pci"), (3, "vfio-pci"), (4, "mlx5_core")] {
                let device = bus.join(format!("devices/0000:3b:00.{n}"));
                fs::create_dir_all(&device).unwrap();
                std::os::unix::fs::symlink(bus.join("drivers").join(driver), device.join("driver")).unwrap();
            }
            Self(Pod { variables: BTreeMap::new(), root })
        }

        fn file(self, name: &str, text: &str) -> Self {
            let path = self.0.root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn variable(mut self, name: &str, text: &str) -> Self {
            self.0.variables.insert(name.into(), text.into());
            self
        }

        fn functions(&self) -> Result<String, String> {
            let words = |given: Given| {
                let ips: Vec<String> = given.ips.iter().map(IpAddr::to_string).collect();
                format!("{}={}", given.address, ips.join("+"))
            };
            Ok(self.0.functions()?.into_iter().map(words).collect::<Vec<_>>().join(","))
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.root);
        }
    }

    /// As set by sriov-network-device-plugin 3.6.
    const PLUGIN: &str = r#"{"0000:3b:00.1":{"generic":{"deviceID":"0000:3b:00.1"},
        "vfio":{"dev-mount":"/dev/vfio/20","mount":"/dev/vfio/vfio"}}}"#;

    fn downward(json: &str) -> String {
        format!("kubernetes.io/config.seen=\"2026-01-01\"\n{ANNOTATION}={}\n", Value::from(json))
    }

    fn status(networks: &[(&str, &str)]) -> String {
        let network = |(bdf, ip): &(&str, &str)| {
            format!(
                r#"{{"name": "default/sriov", "interface": "net1", "ips": ["{ip}"], "mac": "7a:0f:75:b8:5c:b3", "dns": {{}},
                   "device-info": {{"type": "pci", "version": "1.1.0", "pci": {{"pci-address": "{bdf}"}}}}}}"#
            )
        };
        let networks: Vec<String> = networks.iter().map(network).collect();
        format!(
            r#"[{{"name": "cbr0", "interface": "eth0", "ips": ["10.244.1.9"], "default": true, "dns": {{}}}}, {}]"#,
            networks.join(",")
        )
    }

    fn claim(bdf: &str, ips: &str) -> String {
        let one = format!(
            r#"{{"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v1alpha1",
                "metadata": {{"name": "pod0-nic-2kqrd", "namespace": "rdma", "uid": "c7e7b22e", "generation": 2}}, "podClaimName": "nic",
                "requests": [{{"name": "nic", "devices": [{{"driver": "sriov.example.com", "pool": "worker-0", "name": "vf-1",
                "attributes": {{"resource.kubernetes.io/pciBusID": {{"string": "{bdf}"}}, "index": {{"int": 0}}}},
                "networkData": {{"interfaceName": "net1", "ips": [{ips}], "hardwareAddress": "7a:0f:75:b8:5c:b3"}}}}]}}]}}"#
        );
        // As a stream of versions.
        format!("{one}\n{one}\n")
    }

    const CLAIM: &str = "var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/nic/nic/sriov.example.com-metadata.json";

    #[test]
    fn nothing_said_is_no_function() {
        assert_eq!(Fake::new("nothing").functions(), Ok(String::new()));
        let netdevice =
            Fake::new("netdevice").variable("PCIDEVICE_NV_CX6_INFO", r#"{"0000:3b:00.4":{"generic":{}}}"#);
        assert_eq!(netdevice.functions(), Ok(String::new()), "the kernel has it");
    }

    #[test]
    fn the_plugin_names_the_function_and_the_annotation_its_address() {
        let pod = Fake::new("plugin").variable("PCIDEVICE_NV_CX6_INFO", PLUGIN);
        assert_eq!(pod.functions().unwrap(), "0000:3b:00.1=");
        let pod = pod.file(ANNOTATIONS, &downward(&status(&[("0000:3b:00.1", "192.168.5.240")])));
        assert_eq!(pod.functions().unwrap(), "0000:3b:00.1=192.168.5.240");
        assert_eq!(pod.0.addresses("0000:3b:00.1".parse().unwrap()).unwrap().len(), 1);
        assert_eq!(pod.0.addresses("0000:3b:00.2".parse().unwrap()).unwrap().len(), 0);
    }

    #[test]
    fn a_claim_comes_before_the_annotation_and_what_is_set_before_both() {
        let pod = Fake::new("order")
            .file(ANNOTATIONS, &downward(&status(&[("0000:3b:00.1", "192.168.5.240")])))
            .file(CLAIM, &claim("0000:3b:00.2", r#""10.0.0.5/24", "fd00::5/64""#));
        assert_eq!(pod.functions().unwrap(), "0000:3b:00.2=10.0.0.5+fd00::5");
        let pod = pod.variable(SETTING, "0000:3b:00.3=10.9.9.9/16, 0000:3b:00.1");
        assert_eq!(pod.functions().unwrap(), "0000:3b:00.3=10.9.9.9,0000:3b:00.1=192.168.5.240");
    }

    #[test]
    fn a_claim_that_is_filled_later_says_nothing_yet() {
        assert_eq!(Fake::new("late").file(CLAIM, "").functions(), Ok(String::new()));
    }

    #[test]
    fn what_may_be_meant_either_way_is_an_error_that_names_both() {
        let two = status(&[
            ("0000:3b:00.1", "10.0.0.1"),
            ("0000:3b:00.2", "10.0.0.2"),
            ("0000:3b:00.4", "10.0.0.4"),
        ]);
        let error = Fake::new("two").variable(STATUS, &two).functions().unwrap_err();
        for word in [STATUS, "2 functions", "0000:3b:00.1 and 0000:3b:00.2:", "--vfio"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        let twice = status(&[("0000:3b:00.1", "10.0.0.1"), ("0000:3b:00.1", "10.0.1.1")]);
        let error = Fake::new("twice").variable(STATUS, &twice).functions().unwrap_err();
        for word in ["10.0.0.1 and 10.0.1.1", "--address"] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn nonsense_names_its_source() {
        for (pod, source) in [
            (Fake::new("bad-setting").variable(SETTING, "10.0.0.1"), SETTING),
            (Fake::new("bad-ip").variable(SETTING, "0000:3b:00.1=10.0"), SETTING),
            (Fake::new("bad-status").variable(STATUS, "[{"), STATUS),
            (Fake::new("bad-info").variable("PCIDEVICE_A_INFO", "{"), "PCIDEVICE_A_INFO"),
            (Fake::new("bad-claim").file(CLAIM, "{\"requests\": 7"), "sriov.example.com-metadata.json"),
            (Fake::new("bad-bdf").file(CLAIM, &claim("3b:00", "")), "sriov.example.com-metadata.json"),
        ] {
            let error = pod.functions().unwrap_err();
            assert!(error.contains(source), "{source}: {error}");
        }
    }
}
