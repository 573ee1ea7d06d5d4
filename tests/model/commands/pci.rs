//! Configuration space and BAR0 as a bus sees them.

use super::*;
use hwspec::pcie::{EXPRESS_CAP, MSIX_CAP, MSIX_TABLE, SRIOV_CAP, VENDOR_CAP};

#[test]
fn the_header_names_the_device_and_its_read_only_bits_stay() {
    let mut bed = Bed::cx5();
    assert_eq!(bed.config_read(0, 0, 4), 0x1017_15b3);
    assert_eq!(bed.config_read(0, 8, 4) >> 8, 0x02_0000);
    let before: Vec<u32> = (0..1024).map(|i| bed.config_read(0, 4 * i, 4)).collect();
    let acts = [4, 0x10, 0x14, 0x0c, 0x3c, EXPRESS_CAP + 8, EXPRESS_CAP + 16, EXPRESS_CAP + 40, MSIX_CAP];
    let live = |at: &usize| {
        acts.contains(at)
            || (SRIOV_CAP..SRIOV_CAP + 64).contains(at)
            || (VENDOR_CAP + 4..VENDOR_CAP + 16).contains(at)
    };
    for at in (0..4096).step_by(4).filter(|at| !live(at)) {
        bed.config_write(0, at, 4, u32::MAX);
    }
    let after: Vec<u32> = (0..1024).map(|i| bed.config_read(0, 4 * i, 4)).collect();
    let differ = |at: &usize| before[at / 4] != after[at / 4];
    assert_eq!((0..4096).step_by(4).filter(|at| *at != VENDOR_CAP + 8).find(differ), None);
    // Byte and word reads, and reads without a completer.
    assert_eq!(bed.config_read(0, 2, 2), 0x1017);
    assert_eq!(bed.config_read(0, 1, 1), 0x15);
    assert_eq!(bed.config_read(1, 0, 4), u32::MAX);
    assert_eq!(bed.config_read(0, 4096, 2), 0xffff);
}

#[test]
fn the_vendors_gateway_is_taken_by_one_and_leads_nowhere() {
    let mut bed = Bed::cx5();
    let mut ticket = || bed.config_read(0, VENDOR_CAP + 8, 4);
    let (first, second) = (ticket(), ticket());
    assert_ne!(first, second);
    bed.config_write(0, VENDOR_CAP + 12, 4, first);
    bed.config_write(0, VENDOR_CAP + 12, 4, second);
    assert_eq!(bed.config_read(0, VENDOR_CAP + 12, 4), first, "the second came too late");
    bed.config_write(0, VENDOR_CAP + 4, 4, u32::MAX);
    assert_eq!(bed.config_read(0, VENDOR_CAP + 4, 4), 0xffff, "status 0: no such space");
    bed.config_write(0, VENDOR_CAP + 12, 4, 0);
    bed.config_write(0, VENDOR_CAP + 12, 4, second);
    assert_eq!(bed.config_read(0, VENDOR_CAP + 12, 4), second);
}

#[test]
fn bar0_sizes_as_32_mib_64_bit_prefetchable() {
    let mut bed = Bed::cx5();
    bed.config_write(0, 0x10, 4, u32::MAX);
    bed.config_write(0, 0x14, 4, u32::MAX);
    let size = u64::from(bed.config_read(0, 0x14, 4)) << 32 | u64::from(bed.config_read(0, 0x10, 4));
    assert_eq!(size & 0xf, 0xc);
    assert_eq!(!(size & !0xf) + 1, 32 << 20);
    (2..6).for_each(|bar| {
        bed.config_write(0, 0x10 + 4 * bar, 4, u32::MAX);
        assert_eq!(bed.config_read(0, 0x10 + 4 * bar, 4), 0);
    });
    bed.config_write(0, 0x30, 4, u32::MAX);
    assert_eq!(bed.config_read(0, 0x30, 4), 0, "no ROM");
}

#[test]
fn bar0_answers_only_with_memory_space_enabled_and_acts_only_with_bus_mastering() {
    let mut bed = Bed::cx5();
    assert_eq!(bed.read32(0, 4), u32::MAX);
    bed.config_write(0, 4, 2, 0b010);
    assert_eq!(bed.read32(0, 4) >> 16, 5);
    let queue = bed.memory.alloc(0, PAGE);
    bed.write32(0, 0x10, (queue >> 32) as u32);
    bed.write32(0, 0x14, queue as u32);
    bed.memory.transfers.clear();
    bed.write32(0, 0x18, 1);
    assert!(bed.memory.transfers.is_empty(), "no DMA without bus mastering");
    bed.config_write(0, 4, 2, 0b110);
    bed.write32(0, 0x18, 1);
    assert!(!bed.memory.transfers.is_empty());
    bed.config_write(0, 4, 2, 0b100);
    assert_eq!(bed.read32(0, 4), u32::MAX);
    bed.memory.transfers.clear();
    bed.write32(0, 0x18, 1);
    assert!(bed.memory.transfers.is_empty());
}

#[test]
fn capabilities_are_linked_from_the_header() {
    let mut bed = Bed::cx5();
    let mut at = bed.config_read(0, 0x34, 1) as usize;
    let mut ids = Vec::new();
    while at != 0 {
        ids.push(bed.config_read(0, at, 1));
        at = bed.config_read(0, at + 1, 1) as usize;
    }
    assert_eq!(ids, [0x10, 0x11, 0x09]);
    let mut at = 0x100;
    let mut ids = Vec::new();
    while at != 0 {
        let head = bed.config_read(0, at, 4);
        ids.push(head & 0xffff);
        at = (head >> 20) as usize;
    }
    assert_eq!(ids, [0x0e, 0x10]);
    assert_eq!(bed.config_read(0, EXPRESS_CAP + 4, 4) >> 28 & 1, 1, "FLR");
    assert_eq!(bed.config_read(0, MSIX_CAP + 2, 2) & 0x7ff, 63);
}

#[test]
fn the_msix_table_is_little_endian_memory_that_starts_masked() {
    let mut bed = Bed::cx5();
    bed.config_write(0, 4, 2, 0b110);
    let entry = MSIX_TABLE as u64 + 16 * 7;
    assert_eq!(bed.read32(0, entry + 12).swap_bytes(), 1);
    bed.write32(0, entry, 0xfee0_1234u32.swap_bytes());
    bed.write32(0, entry + 4, 1u32.swap_bytes());
    bed.write32(0, entry + 8, 0x4321u32.swap_bytes());
    assert_eq!(bed.read32(0, entry).swap_bytes(), 0xfee0_1234);
    assert_eq!(bed.read32(0, entry + 4).swap_bytes(), 1);
    assert_eq!(bed.read32(0, entry + 8).swap_bytes(), 0x4321);
    bed.write32(0, MSIX_TABLE as u64 + 16 * 64, u32::MAX);
    assert_eq!(bed.read32(0, MSIX_TABLE as u64 + 16 * 64), 0, "there are 64");
}
