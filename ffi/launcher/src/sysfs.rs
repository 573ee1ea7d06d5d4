//! The sysfs entries of a ConnectX-5 and its verbs devices, as a list of files; nothing here accesses the system.
//!
//! As in real sysfs, a device's directory is under `/sys/devices`, below a host bridge, and `class` and `bus` link to it. hwloc extracts
//! the PCI address of a verbs device from the text of such a link: it expects `/pciDDDD:BB/` followed by addresses.

use super::counters::{HARDWARE, PORT};
use super::pci;
use super::tree::Tree;
use devmodel::LinkLayer;
use node::devices::{Colons, DeviceInfo};

/// Directory of all simulated devices in `/sys/devices`. The kernel does not use this name.
pub const HOME: &str = "ironverbs";

/// The directory of the functions. Its host bridge represents no real bus, because functions of the host are listed by their own addresses.
pub const FUNCTIONS: &str = "/sys/devices/ironverbs/pci0000:00";

/// Target of a link to a simulated device, relative to `/sys/class/<class>`.
pub const DEVICES_FROM_CLASS: &str = "../../devices/ironverbs/pci0000:00/";

/// The same, relative to `/sys/bus/pci/devices`.
pub const DEVICES_FROM_BUS: &str = "../../../devices/ironverbs/pci0000:00/";

/// Name of the file in `uverbsN` by which the provider finds the node and the function.
pub const NODE_FILE: &str = "ironverbs";

/// `MAJOR:MINOR` of `/dev/null`, which replaces the character device.
const NULL_DEVICE: &str = "1:3";

/// Version of the uverbs interface as a whole.
const UVERBS_ABI: &str = "6";

/// Lifespan of the hardware counters in milliseconds.
const LIFESPAN: u32 = 100;
/// Name of the connection manager's device, in the class `misc` and in `/dev/infiniband`.
pub const RDMA_CM: &str = "rdma_cm";

/// Version of its interface (`RDMA_USER_CM_ABI_VERSION`).
const RDMA_CM_ABI: &str = "4";

/// Version of the umad interface, which ibstat reads before it lists any device.
const UMAD_ABI: &str = "5";

/// `/sys/class` entries: the verbs classes with a link for each device, and the connection manager.
pub fn classes(devices: &[DeviceInfo]) -> Tree {
    let mut tree = Tree::default();
    tree.line("infiniband_verbs/abi_version", UVERBS_ABI);
    tree.line("infiniband_mad/abi_version", UMAD_ABI);
    tree.line(format!("misc/{RDMA_CM}/abi_version"), RDMA_CM_ABI);
    tree.line(format!("misc/{RDMA_CM}/dev"), NULL_DEVICE);
    tree.line(format!("misc/{RDMA_CM}/uevent"), format!("MAJOR=1\nMINOR=3\nDEVNAME=infiniband/{RDMA_CM}"));
    for d in devices {
        let home = format!("{DEVICES_FROM_CLASS}{}", d.bdf);
        tree.link(format!("infiniband/{}", d.name), format!("{home}/infiniband/{}", d.name));
        let uverbs = format!("uverbs{}", d.uverbs);
        tree.link(format!("infiniband_verbs/{uverbs}"), format!("{home}/infiniband_verbs/{uverbs}"));
        if d.has_umad() {
            let umad = format!("infiniband_mad/umad{}", d.uverbs);
            tree.link(umad.clone(), format!("{home}/{umad}"));
        }
    }
    tree
}

/// `/sys/bus/pci/devices` entries: a link for every function.
pub fn bus(devices: &[DeviceInfo]) -> Tree {
    let mut tree = Tree::default();
    for d in devices {
        tree.link(&d.bdf, format!("{DEVICES_FROM_BUS}{}", d.bdf));
    }
    tree
}

/// Entries of [`FUNCTIONS`]: every function's directory with its verbs device inside.
pub fn functions(devices: &[DeviceInfo]) -> Tree {
    let mut tree = Tree::default();
    for d in devices {
        let of_adapter = || devices.iter().filter(|other| other.node() == d.node());
        pci::function(&mut tree, d, of_adapter().filter(|d| d.is_vf()).count());
        if d.is_pf() {
            for vf in of_adapter().filter(|d| d.is_vf()) {
                tree.link(format!("{}/virtfn{}", d.bdf, vf.fid - 1), format!("../{}", vf.bdf));
            }
        } else if let Some(pf) = of_adapter().find(|pf| d.is_vf() && pf.is_pf()) {
            tree.link(format!("{}/physfn", d.bdf), format!("../{}", pf.bdf));
        }
        if d.link_layer == LinkLayer::Ethernet && d.ip.is_loopback() {
            // Loopback addresses have `lo` as their net device, as in `gid_attrs/ndevs`.
            tree.link(format!("{}/net/lo", d.bdf), "../../../../../class/net/lo");
        }
        verbs_device(&mut tree, d);
        uverbs(&mut tree, d);
        if d.has_umad() {
            umad(&mut tree, d);
        }
    }
    tree
}

fn verbs_device(tree: &mut Tree, d: &DeviceInfo) {
    let home = format!("{}/infiniband/{}", d.bdf, d.name);
    tree.link(format!("{home}/device"), format!("../../../{}", d.bdf));
    tree.link(format!("{home}/subsystem"), "../../../../../../class/infiniband");
    for (name, text) in [
        ("node_type", "1: CA".into()),
        ("node_guid", Colons(&d.guid).to_string()),
        ("sys_image_guid", Colons(&d.system_guid).to_string()),
        ("fw_ver", d.firmware.clone()),
        ("hca_type", format!("MT{}", d.device_id)),
        ("board_id", "IRV0000000001".into()),
        ("hw_rev", "0".into()),
        ("node_desc", d.name.clone()),
        ("uevent", format!("NAME={}", d.name)),
    ] {
        tree.line(format!("{home}/{name}"), text);
    }
    let port = format!("{home}/ports/1");
    let link_layer = match d.link_layer {
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Infiniband => "InfiniBand",
    };
    let (state, physical) = port_states(d.active);
    let lid = format!("{:#x}", d.lid);
    let sm_lid = format!("{:#x}", d.sm_lid());
    let capabilities = format!("{:#010x}", d.port_capabilities());
    for (name, text) in [
        ("state", state),
        ("phys_state", physical),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("link_layer", link_layer),
        ("lid", lid.as_str()),
        ("sm_lid", sm_lid.as_str()),
        ("lid_mask_count", "0"),
        ("sm_sl", "0"),
        ("cap_mask", capabilities.as_str()),
        ("pkeys/0", "0xffff"),
    ] {
        tree.line(format!("{port}/{name}"), text);
    }
    let roce = d.link_layer == LinkLayer::Ethernet;
    for i in 0..d.gid_table {
        let gid = d.gids.get(i).copied();
        tree.line(format!("{port}/gids/{i}"), Colons(&gid.unwrap_or_default()));
        // Read for unused entries too; a missing file would end the listing.
        tree.line(format!("{port}/gid_attrs/types/{i}"), if roce { "RoCE v2" } else { "IB/RoCE v1" });
        if roce && gid.is_some() {
            // libibverbs converts this name to an interface index and fails if there is no such interface; the addresses belong to the
            // loopback.
            tree.line(format!("{port}/gid_attrs/ndevs/{i}"), "lo");
        }
    }
    // Initial values, which the supervisor replaces.
    for (name, _) in PORT {
        tree.line(format!("{port}/counters/{name}"), 0);
    }
    for (name, _) in HARDWARE {
        tree.line(format!("{port}/hw_counters/{name}"), 0);
    }
    tree.line(format!("{port}/hw_counters/lifespan"), LIFESPAN);
}

/// Contents of `state` and `phys_state` of a port.
pub fn port_states(up: bool) -> (&'static str, &'static str) {
    if up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") }
}

fn uverbs(tree: &mut Tree, d: &DeviceInfo) {
    let home = format!("{}/infiniband_verbs/uverbs{}", d.bdf, d.uverbs);
    tree.link(format!("{home}/device"), format!("../../../{}", d.bdf));
    tree.link(format!("{home}/subsystem"), "../../../../../../class/infiniband_verbs");
    tree.line(format!("{home}/ibdev"), &d.name);
    tree.line(format!("{home}/dev"), NULL_DEVICE);
    tree.line(format!("{home}/abi_version"), 1);
    tree.line(format!("{home}/uevent"), format!("MAJOR=1\nMINOR=3\nDEVNAME=infiniband/uverbs{}", d.uverbs));
    tree.bytes(format!("{home}/{NODE_FILE}"), d.place.text());
}

fn umad(tree: &mut Tree, d: &DeviceInfo) {
    let home = format!("{}/infiniband_mad/umad{}", d.bdf, d.uverbs);
    tree.link(format!("{home}/device"), format!("../../../{}", d.bdf));
    tree.link(format!("{home}/subsystem"), "../../../../../../class/infiniband_mad");
    tree.line(format!("{home}/ibdev"), &d.name);
    tree.line(format!("{home}/port"), 1);
    tree.line(format!("{home}/dev"), NULL_DEVICE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Entry;
    use devmodel::Config;
    use node::devices::{GID_TABLE, devices};
    use std::fs;
    use std::path::Path;

    fn text(tree: &Tree, path: &str) -> String {
        match tree.get(path) {
            Some(Entry::File(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn a_vf_is_found_from_both_classes_and_leads_to_its_pf() {
        let all = devices(Path::new("/run/x"), 8, &Config::default());
        let (class, pci) = (classes(&all), functions(&all));
        let link = Entry::Link("../../devices/ironverbs/pci0000:00/0000:c1:00.2/infiniband/iron2".into());
        assert_eq!(class.get("infiniband/iron2"), Some(&link));
        let link = "../../devices/ironverbs/pci0000:00/0000:c1:00.2/infiniband_verbs/uverbs2";
        let link = Entry::Link(link.into());
        assert_eq!(class.get("infiniband_verbs/uverbs2"), Some(&link));
        assert_eq!(pci.get("0000:c1:00.2/physfn"), Some(&Entry::Link("../0000:c1:00.0".into())));
        assert_eq!(pci.get("0000:c1:00.0/virtfn1"), Some(&Entry::Link("../0000:c1:00.2".into())));
    }

    #[test]
    fn the_provider_finds_its_node_and_function() {
        let tree = functions(&devices(Path::new("/run/x"), 2, &Config::default()));
        let said = text(&tree, "0000:c1:00.2/infiniband_verbs/uverbs2/ironverbs");
        assert_eq!(said, "node=/run/x\nfid=2\n");
    }

    #[test]
    fn the_connection_manager_is_where_librdmacm_asks_for_its_version() {
        let class = classes(&devices(Path::new("/n"), 1, &Config::default()));
        assert_eq!(text(&class, "misc/rdma_cm/abi_version"), "4\n");
    }

    #[test]
    fn gids_have_a_type_and_a_net_device_each() {
        let tree = functions(&devices(Path::new("/n"), 1, &Config::default()));
        let port = "0000:c1:00.1/infiniband/iron1/ports/1";
        assert_eq!(text(&tree, &format!("{port}/gids/1")), "0000:0000:0000:0000:0000:ffff:7f00:0002\n");
        for i in 0..2 {
            // libibverbs reads the type into eleven bytes.
            assert!(text(&tree, &format!("{port}/gid_attrs/types/{i}")).len() <= 11);
            assert_eq!(text(&tree, &format!("{port}/gid_attrs/ndevs/{i}")), "lo\n");
        }
        let unused = format!("{}\n", ["0000"; 8].join(":"));
        assert_eq!(text(&tree, &format!("{port}/gids/{}", GID_TABLE - 1)), unused);
        assert!(tree.get(&format!("{port}/gids/{GID_TABLE}")).is_none());
    }

    #[test]
    fn written_links_resolve_to_written_files() {
        let root = &testkit::Scratch::new().0;
        let all = devices(Path::new("/n"), 3, &Config::default());
        classes(&all).write(&root.join("class")).unwrap();
        let home = root.join(Path::new(FUNCTIONS).strip_prefix("/sys").unwrap());
        functions(&all).write(&home).unwrap();
        bus(&all).write(&root.join("bus/pci/devices")).unwrap();
        assert!(home.starts_with(root.join("devices").join(HOME)));
        for d in &all {
            let uverbs = root.join(format!("class/infiniband_verbs/uverbs{}", d.uverbs));
            assert_eq!(fs::read_to_string(uverbs.join("ibdev")).unwrap().trim(), d.name);
            assert!(fs::read_to_string(uverbs.join("device/modalias")).unwrap().starts_with("pci:v000015b3"));
            let ib = root.join(format!("class/infiniband/{}", d.name));
            assert!(ib.join("device/infiniband_verbs").join(format!("uverbs{}", d.uverbs)).is_dir());
            assert_eq!(fs::canonicalize(ib.join("subsystem")).unwrap(), root.join("class/infiniband"));
            let function = fs::canonicalize(root.join("bus/pci/devices").join(&d.bdf)).unwrap();
            assert_eq!(function, fs::canonicalize(ib.join("device")).unwrap());
            let real = fs::canonicalize(ib).unwrap();
            assert!(real.ends_with(format!("{}/infiniband/{}", d.bdf, d.name)));
        }
    }
}
