//! The Helm chart of `packaging/chart`: its output, and its messages about invalid values. `tests/places/kubernetes/chart.rs` tests it with
//! Kubernetes itself.

use super::{said, text, tree, yaml::Values};
use ironverbs_tests::stock::GoPrograms;
use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

struct Chart {
    helm: PathBuf,
}

impl Chart {
    fn new() -> Option<Self> {
        let helm = GoPrograms::with(&["charts"], &["helm"])?.find("helm")?;
        Some(Self { helm })
    }

    fn helm(&self, words: &[&str]) -> Command {
        let mut helm = Command::new("timeout");
        helm.arg("20").arg(&self.helm).args(words).arg(tree().join("packaging/chart"));
        helm
    }

    fn tried(&self, values: &str) -> Output {
        self.helm(&["template", "iron", "--set", values]).output().unwrap()
    }

    fn rendered(&self, values: &str) -> Option<Values> {
        Values::of(&said(&mut self.helm(&["template", "iron", "--set", values])))
    }
}

#[test]
fn the_chart_renders_what_its_values_say() {
    let Some(chart) = Chart::new() else { return };
    said(&mut chart.helm(&["lint", "--strict"]));
    let Some(vf) = chart.rendered("vfs=12,resource=example.com/hca,nodeDirectory=/dev/shm/a/b") else {
        return;
    };
    let plugin = "DaemonSet.spec.template.spec.containers.0";
    assert_eq!(vf.get(&format!("{plugin}.args.1")), Some("sriovdp"));
    let pool = "ConfigMap.data.config.json.resourceList.0";
    let of_pool = |name: &str| vf.get(&format!("{pool}.{name}"));
    assert_eq!([of_pool("resourcePrefix"), of_pool("resourceName")], [Some("example.com"), Some("hca")]);
    assert_eq!(of_pool("selectors.isRdma"), Some("True"));
    let create = vf.all("DaemonSet.spec.template.spec.initContainers.1.args.", "");
    assert_eq!(create, ["create", "--vfs", "12", "--link-layer", "ethernet"]);
    assert!(vf.all(plugin, ".mountPath").contains(&"/dev/shm/a"));
    let mounted = vf.all(&format!("{plugin}.volumeMounts."), ".name");
    let volumes = vf.all("DaemonSet.spec.template.spec.volumes.", ".name");
    assert!(
        mounted.len() == 5 && mounted.iter().all(|name| volumes.contains(name)),
        "{mounted:?} of {volumes:?}"
    );
    let handlers = vf.all("RuntimeClass.handler", "");
    assert_eq!(handlers, ["ironverbs", "runc"]);

    let shared =
        chart.rendered("plugin=shared,sharedPods=7,linkLayer=infiniband,runtime.plainHandler=").unwrap();
    assert_eq!(shared.get(&format!("{plugin}.args.1")), Some("k8s-rdma-shared-dp"));
    assert_eq!(shared.get("ConfigMap.data.config.json.configList.0.rdmaHcaMax"), Some("7"));
    assert_eq!(shared.get("DaemonSet.spec.template.spec.initContainers.1.args.4"), Some("infiniband"));
    assert_eq!(shared.all("DaemonSet.spec.template.spec.runtimeClassName", ""), Vec::<&str>::new());
    assert_eq!(shared.all("RuntimeClass.handler", ""), ["ironverbs"]);
}

#[test]
fn values_that_cannot_be_are_named_in_a_line() {
    let Some(chart) = Chart::new() else { return };
    for (values, why) in [
        ("vfs=0", "vfs: expected 1 to 127, found 0"),
        ("vfs=many", "vfs: expected 1 to 127, found many"),
        ("linkLayer=token-ring", "linkLayer: expected ethernet or infiniband, found token-ring"),
        ("plugin=null", "plugin: expected vf or shared, found <nil>"),
        ("resource=vf", "resource: expected a domain and a name, such as rdma/vf, found vf"),
        ("sharedPods=0", "sharedPods: expected 1 or more, found 0"),
        ("hostDirectory=/opt/a b", "hostDirectory: expected a path of plain letters, found /opt/a b"),
        ("nodeDirectory=/memory", "nodeDirectory: expected a folder in memory"),
        ("image.repository=", "expected image.repository"),
        ("runtime.program=", "expected runtime.program"),
    ] {
        let out = chart.tried(values);
        let errors = text(&out.stderr);
        assert!(!out.status.success() && out.stdout.is_empty(), "{values}");
        let line = errors.lines().next().unwrap_or_default();
        assert!(line.starts_with("Error: ") && line.contains(why), "{values}: {errors}");
    }
}

#[test]
fn the_chart_asks_for_the_image_that_is_built() {
    let cargo = fs::read_to_string(tree().join("Cargo.toml")).unwrap();
    let version = cargo.lines().find_map(|line| line.strip_prefix("version = ")).unwrap().trim_matches('"');
    let chart = fs::read_to_string(tree().join("packaging/chart/Chart.yaml")).unwrap();
    for name in ["version", "appVersion"] {
        assert!(chart.lines().any(|line| line == format!("{name}: {version}")), "{name} {version}: {chart}");
    }
    let values = fs::read_to_string(tree().join("packaging/chart/values.yaml")).unwrap();
    let script = fs::read_to_string(tree().join("scripts/image.sh")).unwrap();
    assert!(
        values.contains("repository: localhost/ironverbs\n")
            && script.contains("localhost/ironverbs:$version")
    );
}
