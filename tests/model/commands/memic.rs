//! Device memory: placement, ownership, and keys on it.

use super::*;
use hwspec::{
    cmd::{CmdOut, adapter::*, memic::*},
    context::{AccessMode, CapType, caps::DeviceMemCap},
    pcie::MEMIC_BAR,
};

const PAGE: u64 = 4096;

/// Allocates `len` bytes within `pages` of the device memory.
fn alloc(bed: &mut Bed, pages: std::ops::Range<u64>, len: u32) -> Reply {
    let mut input = AllocMemicIn::zeroed();
    let size = (pages.end - pages.start) * PAGE;
    input.set().range_start_addr(MEMIC_BAR + pages.start * PAGE).range_size(size as u32).memic_size(len);
    bed.reply_to(0, Opcode::AllocMemic, 0, input.as_bytes(), AllocMemicOut::SIZE)
}

fn place(reply: &Reply) -> u64 {
    assert_eq!(reply.status(), Status::Ok, "{:#x}", reply.syndrome());
    AllocMemicOut::read(&reply.output).memic_start_addr()
}

fn dealloc(bed: &mut Bed, at: u64, len: u32) -> Reply {
    let input = DeallocMemicIn::with(|s| s.memic_start_addr(at).memic_size(len));
    bed.reply_to(0, Opcode::DeallocMemic, 0, input.as_bytes(), CmdOut::SIZE)
}

fn key(bed: &mut Bed, base: &Base, at: u64, len: u64) -> Reply {
    let mut context = MkeyContext::zeroed();
    let mode = AccessMode::Memic.raw();
    context.set().access_mode_1_0(mode & 3).access_mode_4_2(mode >> 2).lr(true).lw(true).pd(base.pd);
    context.set().qpn(0xff_ffff).start_addr(at).len(len);
    let input = CreateMkeyIn::with(|s| s.memory_key_mkey_entry(context));
    bed.reply_to(0, Opcode::CreateMkey, 0, input.as_bytes(), CreateMkeyOut::SIZE)
}

#[test]
fn what_is_advertised_can_be_had_and_no_more() {
    let (mut bed, _) = ready();
    let input = QueryHcaCapIn::with(|s| s.op_mod(u16::from(CapType::DeviceMem.raw()) << 1 | 1));
    let out = QueryHcaCapOut::read(&bed.ok(0, Opcode::QueryHcaCap, &input, QueryHcaCapOut::SIZE));
    let caps = DeviceMemCap::read(&out.capability());
    assert!(caps.memic());
    let pages = u64::from(caps.memic_bar_size()) / PAGE;
    assert_eq!(caps.memic_bar_start_addr(), MEMIC_BAR);
    assert_eq!(alloc(&mut bed, 0..pages, caps.max_memic_size() + 1).syndrome(), Syndrome::Memic.code());
    assert_eq!(alloc(&mut bed, 0..pages, 0).syndrome(), Syndrome::Memic.code());
    let at = place(&alloc(&mut bed, 0..pages, caps.max_memic_size()));
    assert_eq!(at, MEMIC_BAR);
    assert_eq!(alloc(&mut bed, 0..pages, 64).syndrome(), Syndrome::NoMemic.code());
    assert_eq!(dealloc(&mut bed, at, caps.max_memic_size()).status(), Status::Ok);
}

/// Linux requests an alignment of 64 bytes as 0 (mlx5_cmd_alloc_memic), so a page is 6.
#[test]
fn alignments_count_in_units_of_64_bytes() {
    let (mut bed, _) = ready();
    let mut aligned = |log: u8| {
        let mut input = AllocMemicIn::zeroed();
        input.set().range_start_addr(MEMIC_BAR).range_size(8 * PAGE as u32).memic_size(64);
        input.set().log_memic_addr_alignment(log);
        bed.reply_to(0, Opcode::AllocMemic, 0, input.as_bytes(), AllocMemicOut::SIZE)
    };
    assert_eq!(place(&aligned(6)) % PAGE, 0);
    assert_eq!(aligned(7).syndrome(), Syndrome::Memic.code());
}

#[test]
fn allocations_keep_to_their_range_and_apart() {
    let (mut bed, _) = ready();
    let first = place(&alloc(&mut bed, 0..1, 100));
    assert_eq!(alloc(&mut bed, 0..1, 100).syndrome(), Syndrome::NoMemic.code(), "the page is taken");
    let second = place(&alloc(&mut bed, 0..8, 2 * 4096));
    assert_eq!((first, second), (MEMIC_BAR, MEMIC_BAR + PAGE));
    assert_eq!(dealloc(&mut bed, second, 4096).syndrome(), Syndrome::Memic.code(), "a part of it");
    assert_eq!(dealloc(&mut bed, second + PAGE, 4096).syndrome(), Syndrome::Memic.code(), "its middle");
    assert_eq!(dealloc(&mut bed, second, 2 * 4096).status(), Status::Ok);
    assert_eq!(dealloc(&mut bed, second, 2 * 4096).syndrome(), Syndrome::Memic.code(), "twice");
    assert_eq!(place(&alloc(&mut bed, 1..3, 4097)), MEMIC_BAR + PAGE);
}

#[test]
fn what_is_given_out_again_says_nothing_of_before() {
    let (mut bed, _) = ready();
    let at = place(&alloc(&mut bed, 0..1, 4096));
    bed.write32(0, at, 0x0102_0304);
    assert_eq!(bed.read32(0, at), 0x0102_0304);
    assert_eq!(dealloc(&mut bed, at, 4096).status(), Status::Ok);
    assert_eq!(place(&alloc(&mut bed, 0..1, 4096)), at);
    assert_eq!(bed.read32(0, at), 0);
}

#[test]
fn a_key_is_of_what_was_given_out_and_holds_it() {
    let (mut bed, base) = ready();
    let at = place(&alloc(&mut bed, 0..4, 2 * 4096));
    for (from, len) in [(at + 4096, 4097), (at - PAGE, 64), (at + 2 * PAGE, 1), (u64::MAX - 7, 8)] {
        assert_ne!(key(&mut bed, &base, from, len).status(), Status::Ok, "{from:#x}+{len}");
    }
    let index = key(&mut bed, &base, at + 4096, 4096).made();
    let queried = bed.object::<QueryMkeyOut>(0, Opcode::QueryMkey, index);
    let queried = queried.memory_key_mkey_entry();
    assert_eq!((queried.start_addr(), queried.len()), (at + 4096, 4096));
    assert_eq!(queried.access_mode_4_2() << 2 | queried.access_mode_1_0(), AccessMode::Memic.raw());
    assert_ne!(dealloc(&mut bed, at, 2 * 4096).status(), Status::Ok, "a key is on it");
    assert_eq!(bed.name(0, Opcode::DestroyMkey, 0, index).status(), Status::Ok);
    assert_eq!(dealloc(&mut bed, at, 2 * 4096).status(), Status::Ok);
}
