//! The tests use a directory instead of the kernel's sysfs.

use super::*;
use std::{
    os::unix::fs::symlink,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

struct Fake {
    root: PathBuf,
}

impl Fake {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ironverbs-pci-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        fs::write(root.join("bus/pci/drivers_probe"), "").unwrap();
        Self { root }
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(&self.root)
    }

    fn driver(&self, name: &str) {
        let dir = self.root.join("bus/pci/drivers").join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("unbind"), "").unwrap();
    }

    fn device(&self, address: &str, group: Option<u32>, driver: Option<&str>) -> PciDevice {
        let dir = self.root.join("bus/pci/devices").join(address);
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in [("vendor", "0x15b3\n"), ("device", "0x1018\n"), ("class", "0x020000\n")] {
            fs::write(dir.join(name), text).unwrap();
        }
        fs::write(dir.join("driver_override"), "(null)\n").unwrap();
        if let Some(group) = group {
            let members = self.root.join(format!("kernel/iommu_groups/{group}"));
            fs::create_dir_all(members.join("devices")).unwrap();
            symlink(&dir, members.join("devices").join(address)).unwrap();
            symlink(&members, dir.join("iommu_group")).unwrap();
        }
        if let Some(driver) = driver {
            self.driver(driver);
            symlink(self.root.join("bus/pci/drivers").join(driver), dir.join("driver")).unwrap();
        }
        self.sysfs().device(address.parse().unwrap()).unwrap()
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root.join("bus/pci").join(path)).unwrap()
    }

    /// Acts as the kernel when a function is written to `drivers_probe`.
    fn probing<T>(&self, driver: &str, body: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_secs(10) {
                    let address = self.text("drivers_probe");
                    if !address.is_empty() {
                        let link = self.root.join("bus/pci/devices").join(address).join("driver");
                        let _ = fs::remove_file(&link);
                        symlink(self.root.join("bus/pci/drivers").join(driver), link).unwrap();
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            body()
        })
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn addresses_are_written_as_linux_writes_them() {
    for (text, written) in
        [("0000:c1:00.2", "0000:c1:00.2"), ("c1:1f.7", "0000:c1:1f.7"), ("10001:00:02.0", "10001:00:02.0")]
    {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), written);
    }
    for text in ["", "c1", "c1:00", "c1:20.0", "c1:00.8", "0:100:00.0", "c1:00.+1", "../x:00.0"] {
        let error = text.parse::<Address>().unwrap_err();
        assert!(error.contains("0000:c1:00.2"), "{error}");
    }
}

#[test]
fn bind_overrides_releases_and_probes() {
    let fake = Fake::new();
    fake.driver("vfio-pci");
    let device = fake.device("0000:00:04.0", Some(3), None);
    fake.probing("vfio-pci", || device.bind("vfio-pci")).unwrap();
    assert_eq!(fake.text("devices/0000:00:04.0/driver_override"), "vfio-pci");
    assert_eq!(fake.text("drivers_probe"), "0000:00:04.0");
    assert_eq!(device.driver().as_deref(), Some("vfio-pci"));
    assert_eq!(device.check_vfio().unwrap(), 3);
}

#[test]
fn a_bound_function_is_taken_from_its_driver_first() {
    let fake = Fake::new();
    fake.driver("vfio-pci");
    let device = fake.device("0000:00:04.0", Some(3), Some("mlx5_core"));
    // This directory keeps the link to the driver, so the driver is still found.
    let error = device.bind("vfio-pci").unwrap_err().to_string();
    assert_eq!(fake.text("drivers/mlx5_core/unbind"), "0000:00:04.0");
    assert_eq!(error, "driver vfio-pci did not take 0000:00:04.0: mlx5_core has it");
}

#[test]
fn unbind_leaves_no_override_behind() {
    let fake = Fake::new();
    let device = fake.device("0000:00:04.0", Some(3), Some("vfio-pci"));
    device.unbind().unwrap();
    assert_eq!(fake.text("drivers/vfio-pci/unbind"), "0000:00:04.0");
    assert_eq!(fake.text("devices/0000:00:04.0/driver_override"), "\n");
}

#[test]
fn what_is_missing_is_said() {
    let fake = Fake::new();
    let device = fake.device("0000:00:04.0", None, Some("mlx5_core"));
    let error = device.bind("vfio-pci").unwrap_err().to_string();
    assert!(error.contains("modprobe vfio-pci"), "{error}");
    fake.driver("vfio-pci");
    let error = device.bind("vfio-pci").unwrap_err().to_string();
    assert!(error.contains("no IOMMU group") && error.contains("intel_iommu=on"), "{error}");
    let error = fake.sysfs().device("00:05.0".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("0000:00:05.0"), "{error}");
    let error = device.set_vfs(1, false).unwrap_err().to_string();
    assert!(error.contains("no SR-IOV"), "{error}");
}

#[test]
fn others_in_the_group_are_named() {
    let fake = Fake::new();
    fake.device("0000:00:1c.0", Some(7), Some("pcieport"));
    fake.device("0000:01:00.1", Some(7), Some("snd_hda_intel"));
    fake.device("0000:01:00.2", Some(7), None);
    fake.device("0000:02:00.0", Some(8), Some("nvme"));
    let device = fake.device("0000:01:00.0", Some(7), Some("vfio-pci"));
    assert_eq!(device.group_members().unwrap().len(), 4);
    let error = device.check_vfio().unwrap_err().to_string();
    assert!(error.contains("group 7") && error.contains("0000:01:00.1 (snd_hda_intel)"), "{error}");
    assert!(!error.contains("1c.0") && !error.contains("nvme"), "{error}");
}

#[test]
fn virtual_functions_are_made_from_none_and_removed_to_none() {
    let fake = Fake::new();
    let device = fake.device("0000:01:00.0", Some(7), Some("igb"));
    let file = |name: &str, text: &str| fs::write(device.path(name), text).unwrap();
    file("sriov_totalvfs", "7\n");
    file("sriov_numvfs", "0\n");
    file("sriov_drivers_autoprobe", "1\n");
    device.set_vfs(2, false).unwrap();
    assert_eq!(fs::read_to_string(device.path("sriov_numvfs")).unwrap(), "2");
    assert_eq!(fs::read_to_string(device.path("sriov_drivers_autoprobe")).unwrap(), "1", "as it was");
    device.set_vfs(2, false).unwrap();
    let error = device.set_vfs(3, false).unwrap_err().to_string();
    assert!(error.contains("has 2 virtual functions already"), "{error}");
    let error = device.set_vfs(8, false).unwrap_err().to_string();
    assert!(error.contains("can have 7"), "{error}");
    device.set_vfs(0, false).unwrap();
    assert_eq!(device.vf_counts().unwrap(), Some((0, 7)));
}

#[test]
fn virtual_functions_and_their_physical_one_know_each_other() {
    let fake = Fake::new();
    let pf = fake.device("0000:01:00.0", Some(7), Some("igb"));
    let vf = fake.device("0000:01:10.0", Some(8), None);
    symlink("../0000:01:10.0", pf.path("virtfn0")).unwrap();
    symlink("../0000:01:00.0", vf.path("physfn")).unwrap();
    assert_eq!(pf.virtual_functions(), [vf.address]);
    let summary = vf.summary().unwrap();
    assert_eq!((summary.physical, summary.group, summary.id), (Some(pf.address), Some(8), (0x15b3, 0x1018)));
    assert_eq!(fake.sysfs().devices().unwrap().len(), 2);
}

#[test]
fn a_value_that_is_no_number_is_shown() {
    let fake = Fake::new();
    let device = fake.device("0000:01:00.0", None, None);
    fs::write(device.path("sriov_totalvfs"), "many\n").unwrap();
    let error = device.vf_counts().unwrap_err().to_string();
    assert!(error.contains("sriov_totalvfs") && error.contains("many"), "{error}");
}

#[test]
fn autoprobe_is_put_back_even_if_no_function_can_be_made() {
    let fake = Fake::new();
    let device = fake.device("0000:01:00.0", Some(7), Some("igb"));
    fs::write(device.path("sriov_totalvfs"), "7\n").unwrap();
    fs::write(device.path("sriov_drivers_autoprobe"), "1\n").unwrap();
    // There is no file to write.
    let error = device.set_vfs(2, false).unwrap_err().to_string();
    assert!(error.contains("sriov_numvfs"), "{error}");
    assert_eq!(fs::read_to_string(device.path("sriov_drivers_autoprobe")).unwrap(), "1");
}

#[test]
fn a_function_that_the_machine_needs_is_named_with_what_needs_it() {
    let fake = Fake::new();
    let device = fake.device("0000:01:00.0", Some(7), Some("mlx5_core"));
    device.check_unused().unwrap();
    for (name, flags) in [("eth0", "0x1003\n"), ("eth1", "0x1002\n")] {
        fs::create_dir_all(device.path("net").join(name)).unwrap();
        fs::write(device.path("net").join(name).join("flags"), flags).unwrap();
    }
    fs::write(device.path("sriov_totalvfs"), "8\n").unwrap();
    fs::write(device.path("sriov_numvfs"), "4\n").unwrap();
    fs::create_dir(fake.root.join("net")).unwrap();
    let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                  eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n";
    fs::write(fake.root.join("net/route"), routes).unwrap();
    let uses = [Usage::NetUp("eth0".into()), Usage::DefaultRoute("eth0".into()), Usage::VirtualFunctions(4)];
    assert_eq!(device.uses().unwrap(), uses);
    let error = device.check_unused().unwrap_err().to_string();
    for word in ["0000:01:00.0 is in use", "eth0 is up", "default route", "4 virtual functions", "--force"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(!error.contains("eth1"), "{error}");
}
