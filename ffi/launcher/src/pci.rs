//! A function's directory under `/sys/devices`.

use super::tree::Tree;
use devmodel::LinkLayer;
use hwspec::pcie::{ADAPTERS, CLASS_CODE, CLASS_CODE_INFINIBAND, VF_DEVICE_ID};
use node::devices::{DeviceInfo, MAX_VFS};

const VENDOR: u16 = 0x15b3;
const SUBSYSTEM: u16 = 0x0008;

/// The driver of a card's functions; its directory is next to those of the functions.
const DRIVER: &str = "mlx5_core";

/// Size of the register BAR of one function.
const BAR0_SIZE: u64 = 32 << 20;
/// Base of the BARs in the simulated address space. Each PCI bus has a window for the maximum number of functions.
const BAR0_BASE: u64 = 0x3800_0000_0000;
/// IORESOURCE_MEM, PREFETCH, MEM_64 and SIZEALIGN, as `resource` shows a 64-bit prefetchable BAR.
const BAR0_FLAGS: u64 = 0x0014_220c;

/// Class code of `d`: a network controller for its port's link layer.
fn class(d: &DeviceInfo) -> u32 {
    match d.link_layer {
        LinkLayer::Ethernet => CLASS_CODE,
        LinkLayer::Infiniband => CLASS_CODE_INFINIBAND,
    }
}

/// Adds the directory of `d`, on an adapter with `vfs` VFs.
pub fn function(tree: &mut Tree, d: &DeviceInfo, vfs: usize) {
    let device = d.device_id;
    let class = class(d);
    let mut line = |name: &str, text: String| tree.line(format!("{}/{name}", d.bdf), text);
    // The kernel writes the hex digits in upper case. In a program that is linked with the mlx5 library (such as perftest), that driver is
    // registered before any of `RDMAV_DRIVERS` is loaded, and it would claim these devices by their modalias. libibverbs compares
    // modaliases case-sensitively; programs that parse the IDs accept either case.
    let modalias = format!(
        "pci:v{VENDOR:08x}d{device:08x}sv{VENDOR:08x}sd{SUBSYSTEM:08x}bc02sc{:02x}i00",
        class >> 8 & 0xff
    );
    line("vendor", format!("{VENDOR:#06x}"));
    line("device", format!("{device:#06x}"));
    line("subsystem_vendor", format!("{VENDOR:#06x}"));
    line("subsystem_device", format!("{SUBSYSTEM:#06x}"));
    line("class", format!("{class:#08x}"));
    line("revision", "0x00".into());
    line("numa_node", d.numa.map_or("-1".into(), |numa| numa.to_string()));
    line("enable", "1".into());
    line("irq", "0".into());
    line("current_link_speed", "8.0 GT/s PCIe".into());
    line("current_link_width", "16".into());
    line("max_link_speed", "8.0 GT/s PCIe".into());
    line("max_link_width", "16".into());
    line(
        "uevent",
        format!(
            "PCI_CLASS={class:X}\nPCI_ID={VENDOR:04X}:{device:04X}\nPCI_SUBSYS_ID={VENDOR:04X}:{SUBSYSTEM:04X}\n\
             PCI_SLOT_NAME={}\nMODALIAS={modalias}",
            d.bdf
        ),
    );
    line("modalias", modalias);
    line("resource", resource(d).trim_end().into());
    if d.is_pf() {
        line("sriov_totalvfs", MAX_VFS.to_string());
        line("sriov_numvfs", vfs.to_string());
        line("sriov_offset", "1".into());
        line("sriov_stride", "1".into());
        let card = ADAPTERS.iter().find(|adapter| adapter.physical == d.device_id);
        line("sriov_vf_device", format!("{:x}", card.map_or(VF_DEVICE_ID, |card| card.virtual_function)));
        line("sriov_drivers_autoprobe", "1".into());
    }
    tree.bytes(format!("{}/config", d.bdf), config(d));
    if d.host.is_none() {
        tree.link(format!("{}/driver", d.bdf), format!("../{DRIVER}"));
        tree.link(format!("{DRIVER}/{}", d.bdf), format!("../{}", d.bdf));
    }
    // VFIO reads these attributes of the function at their usual sysfs paths, and its registers are mapped there.
    for name in ["driver", "iommu_group", "vfio-dev", "resource0", "resource0_wc"] {
        let target = d.host.as_ref().and_then(|dir| std::fs::canonicalize(dir.join(name)).ok());
        if let Some(target) = target.as_ref().and_then(|t| t.to_str()) {
            tree.link(format!("{}/{name}", d.bdf), target);
        }
    }
}

fn bar0(d: &DeviceInfo) -> u64 {
    let bus = d.bdf.get(5..7).and_then(|bus| u64::from_str_radix(bus, 16).ok()).unwrap_or_default();
    BAR0_BASE + (bus * 256 + u64::from(d.fid)) * BAR0_SIZE
}

/// One line per BAR, the ROM and the six SR-IOV BARs: start, end, flags.
fn resource(d: &DeviceInfo) -> String {
    let mut text = format!("{:#018x} {:#018x} {BAR0_FLAGS:#018x}\n", bar0(d), bar0(d) + BAR0_SIZE - 1);
    for _ in 1..13 {
        text.push_str("0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
    }
    text
}

/// The type 0 configuration header (PCI 3.0, 6.1), as lspci reads it. A VF's IDs read as ones there, its BARs as zeros (SR-IOV 3.4.1), and
/// the kernel fills in the IDs.
fn config(d: &DeviceInfo) -> Vec<u8> {
    let mut c = vec![0u8; 256];
    let mut put = |at: usize, bytes: &[u8]| c[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x00, &VENDOR.to_le_bytes());
    put(0x02, &d.device_id.to_le_bytes());
    // Memory space and bus mastering enabled, legacy interrupts disabled.
    put(0x04, &0x0406u16.to_le_bytes());
    put(0x09, &class(d).to_le_bytes()[..3]);
    if d.is_pf() {
        // 64-bit, prefetchable.
        put(0x10, &(bar0(d) | 0xc).to_le_bytes());
    }
    put(0x2c, &VENDOR.to_le_bytes());
    put(0x2e, &SUBSYSTEM.to_le_bytes());
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Entry;
    use std::path::Path;

    fn file(tree: &Tree, path: &str) -> Vec<u8> {
        match tree.get(path) {
            Some(Entry::File(bytes)) => bytes.clone(),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn ids_agree_between_files_modalias_and_configuration_space() {
        for (fid, id) in [(0u8, "0x1017"), (3, "0x1018")] {
            let d = DeviceInfo::new(Path::new("/n"), fid, &Default::default());
            let mut tree = Tree::default();
            function(&mut tree, &d, 8);
            assert_eq!(file(&tree, &format!("{}/device", d.bdf)), format!("{id}\n").into_bytes());
            let modalias = String::from_utf8(file(&tree, &format!("{}/modalias", d.bdf))).unwrap();
            assert!(modalias.contains(&format!("d0000{}", &id[2..])), "{modalias}");
            assert!(!modalias.contains(char::is_uppercase), "the mlx5 driver would match {modalias}");
            let config = file(&tree, &format!("{}/config", d.bdf));
            assert_eq!(config[..4], [0xb3, 0x15, if fid == 0 { 0x17 } else { 0x18 }, 0x10]);
            assert_eq!(config[9..12], [0, 0, 2]);
        }
    }

    #[test]
    fn only_the_physical_function_offers_sriov() {
        let mut tree = Tree::default();
        function(&mut tree, &DeviceInfo::new(Path::new("/n"), 0, &Default::default()), 8);
        function(&mut tree, &DeviceInfo::new(Path::new("/n"), 1, &Default::default()), 8);
        assert_eq!(file(&tree, "0000:c1:00.0/sriov_numvfs"), b"8\n");
        assert!(tree.get("0000:c1:00.1/sriov_totalvfs").is_none());
    }
}
