//! Initialization in the order of the interface, and refusals of other orders.

use super::*;
use hwspec::{
    cmd::{adapter::*, adapter_id::*, vport::*},
    context::{
        CapType,
        caps::{AtomicCaps, HcaCap, RoceCap},
        vport::RoceAddr,
    },
};
use ironverbs_tests::bed::S;

fn caps(bed: &mut Bed, kind: CapType, current: bool) -> Vec<u8> {
    let input = QueryHcaCapIn::with(|s| s.op_mod(u16::from(kind.raw()) << 1 | u16::from(current)));
    bed.ok(0, Opcode::QueryHcaCap, &input, QueryHcaCapOut::SIZE)[16..].to_vec()
}

fn set_caps(bed: &mut Bed, kind: CapType, page: &[u8]) -> Status {
    let mut bytes = SetHcaCapIn::zeroed().as_bytes().to_vec();
    bytes[6..8].copy_from_slice(&(u16::from(kind.raw()) << 1).to_be_bytes());
    bytes[16..].copy_from_slice(page);
    bed.reply_to(0, Opcode::SetHcaCap, 0, &bytes, 16).status()
}

#[test]
fn the_initialization_segment_says_what_a_driver_needs() {
    let mut bed = Bed::cx5();
    bed.enable_pci(0);
    assert_eq!(bed.read32(0, 0x04) >> 16, 5, "command interface revision");
    assert_eq!(bed.read32(0, 0x1fc) >> 31, 0, "not initializing");
    assert_eq!(bed.read32(0, 0x14) & 0xfff, 5 << 4 | 6, "32 slots of 64 bytes, and bits 10:8 zero");
    let before = bed.read32(0, 0x1010);
    bed.advance(2 * S);
    let after = bed.read32(0, 0x1010);
    assert!(after > before && after >> 24 == 0, "the health counter advances");
}

#[test]
fn a_stock_bring_up_succeeds_and_can_be_undone() {
    let mut bed = Bed::cx5();
    bed.enable_pci(0);
    bed.ok(0, Opcode::EnableHca, &EnableHcaIn::zeroed(), 12);
    let issi = QueryIssiOut::read(&bed.ok(0, Opcode::QueryIssi, &CmdIn::zeroed(), QueryIssiOut::SIZE));
    assert_eq!(issi.supported_issi_dw0() & 0b10, 0b10);
    bed.ok(0, Opcode::SetIssi, &SetIssiIn::with(|s| s.current_issi(1)), 16);
    bed.supply(0, 1).unwrap();
    let register = {
        let input = AccessRegisterIn::with(|s| s.op_mod(0).register_id(0x7004));
        [input.as_bytes().as_slice(), &[0; 16]].concat()
    };
    assert_eq!(bed.reply_to(0, Opcode::AccessReg, 0, &register, 32).status(), Status::Ok);
    let page = caps(&mut bed, CapType::General, true);
    assert_eq!(set_caps(&mut bed, CapType::General, &page), Status::Ok);
    bed.supply(0, 2).unwrap();
    let given = bed.state(0).pages;
    bed.ok(0, Opcode::InitHca, &InitHcaIn::zeroed(), 16);
    let adapter = QueryAdapterOut::read(&bed.ok(0, Opcode::QueryAdapter, &CmdIn::zeroed(), 0x110));
    assert_eq!(adapter.query_adapter_struct().vsd_vendor_id(), 0x15b3);

    bed.ok(0, Opcode::TeardownHca, &TeardownHcaIn::zeroed(), 16);
    let take = ManagePagesIn::with(|s| s.op_mod(2).input_num_entries(1000));
    let out = bed.ok(0, Opcode::ManagePages, &take, 16 + 8 * 1000);
    assert_eq!(ManagePagesOut::read(&out).output_num_entries(), given, "every page comes back");
    let mut pages: Vec<&[u8]> = out[16..][..8 * given as usize].chunks(8).collect();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len() as u32, given, "and each of them once");
    bed.ok(0, Opcode::DisableHca, &DisableHcaIn::zeroed(), 12);
    bed.bring_up(0);
}

#[test]
fn commands_before_their_turn_are_refused_and_change_nothing() {
    let mut bed = Bed::cx5();
    bed.enable_pci(0);
    assert_eq!(bed.status(0, Opcode::QueryIssi, &CmdIn::zeroed(), 0x70), Status::BadSysState);
    assert_eq!(bed.status(0, Opcode::Nop, &CmdIn::zeroed(), 16), Status::Ok);
    bed.ok(0, Opcode::EnableHca, &EnableHcaIn::zeroed(), 12);
    assert_eq!(bed.status(0, Opcode::EnableHca, &EnableHcaIn::zeroed(), 12), Status::BadSysState);
    assert_eq!(bed.status(0, Opcode::AllocPd, &CmdIn::zeroed(), 16), Status::BadSysState);
    // INIT_HCA without the pages.
    let reply = bed.reply_to(0, Opcode::InitHca, 0, InitHcaIn::zeroed().as_bytes(), 16);
    assert_eq!((reply.status(), reply.syndrome()), (Status::Lim, Syndrome::PagesMissing.code()));
    bed.supply(0, 1).unwrap();
    assert_eq!(bed.status(0, Opcode::InitHca, &InitHcaIn::zeroed(), 16), Status::Lim);
    bed.supply(0, 2).unwrap();
    // As sent by older drivers: without the owner's identity.
    let reply = bed.reply_to(0, Opcode::InitHca, 0, &InitHcaIn::zeroed().as_bytes()[..16], 16);
    assert_eq!(reply.status(), Status::Ok);
    assert_eq!(bed.status(0, Opcode::InitHca, &InitHcaIn::zeroed(), 16), Status::BadSysState);
    assert_eq!(bed.status(0, Opcode::DisableHca, &DisableHcaIn::zeroed(), 12), Status::BadSysState);
}

#[test]
fn pages_must_be_aligned_and_the_running_device_keeps_what_it_needs() {
    let mut bed = up();
    let give = ManagePagesIn::with(|s| s.op_mod(1).input_num_entries(2));
    let odd = with_list(&give, &[0x20_0000, 0x20_1004]);
    assert_eq!(bed.reply_to(0, Opcode::ManagePages, 0, &odd, 16).status(), Status::BadParam);
    let short = with_list(&give, &[0x20_0000]);
    assert_eq!(bed.reply_to(0, Opcode::ManagePages, 0, &short, 16).status(), Status::BadInputLen);
    let good = with_list(&give, &[0x20_0000, 0x20_1000]);
    assert_eq!(bed.reply_to(0, Opcode::ManagePages, 0, &good, 16).status(), Status::Ok);
    let take = ManagePagesIn::with(|s| s.op_mod(2).input_num_entries(50));
    let out = bed.ok(0, Opcode::ManagePages, &take, 16 + 400);
    assert_eq!(ManagePagesOut::read(&out).output_num_entries(), 2);
    assert_eq!(out[16..32], [0x20_1000u64.to_be_bytes(), 0x20_0000u64.to_be_bytes()].concat());
}

#[test]
fn capabilities_follow_the_tables_and_what_is_not_there_reads_zero() {
    let mut bed = up();
    let max = HcaCap::read(&caps(&mut bed, CapType::General, false));
    assert_eq!((max.log_max_qp(), max.log_max_cq(), max.log_max_mkey()), (8, 8, 8));
    assert!(max.xrc() && max.rc() && max.roce() && max.atomic());
    assert!(max.ud() && max.uc() && max.cq_resize() && !max.umr_modify_entity_size_disabled());
    assert!(max.null_mkey() && max.device_memory() && max.relaxed_ordering_write());
    assert_eq!([max.pg(), max.bf()], [false; 2]);
    let roce = RoceCap::read(&caps(&mut bed, CapType::Roce, true));
    assert_eq!((roce.roce_version(), roce.l3_type(), roce.roce_address_table_size()), (4, 6, 32));
    assert!(caps(&mut bed, CapType::Odp, true).iter().all(|b| *b == 0));
    let input = QueryHcaCapIn::with(|s| s.op_mod(0x7e << 1));
    assert_eq!(bed.status(0, Opcode::QueryHcaCap, &input, 0x1010), Status::BadParam);
}

#[test]
fn capabilities_are_chosen_before_init_and_within_the_maximum() {
    let mut bed = Bed::cx5();
    bed.enable_pci(0);
    bed.ok(0, Opcode::EnableHca, &EnableHcaIn::zeroed(), 12);
    let mut page = caps(&mut bed, CapType::General, true);
    let mut now = HcaCap::read(&page);
    assert!(!now.uar_4k());
    now.set().uar_4k(true).log_max_qp(5);
    page[..HcaCap::SIZE].copy_from_slice(now.as_bytes());
    assert_eq!(set_caps(&mut bed, CapType::General, &page), Status::Ok);
    assert_eq!(HcaCap::read(&caps(&mut bed, CapType::General, true)), now);
    let mut more = now;
    more.set().log_max_qp(9);
    page[..HcaCap::SIZE].copy_from_slice(more.as_bytes());
    assert_eq!(set_caps(&mut bed, CapType::General, &page), Status::BadParam);
    let mut other = now;
    other.set().pg(true);
    page[..HcaCap::SIZE].copy_from_slice(other.as_bytes());
    assert_eq!(set_caps(&mut bed, CapType::General, &page), Status::BadParam);
    assert_eq!(HcaCap::read(&caps(&mut bed, CapType::General, true)), now, "unchanged");
    let mut page = caps(&mut bed, CapType::Atomic, true);
    let mut atomic = AtomicCaps::read(&page);
    atomic.set().atomic_req_8b_endianness_mode(1);
    page[..AtomicCaps::SIZE].copy_from_slice(atomic.as_bytes());
    assert_eq!(set_caps(&mut bed, CapType::Atomic, &page), Status::Ok);
    // As Linux does: only the field that it sets, and zeros.
    let alone = AtomicCaps::with(|s| s.atomic_req_8b_endianness_mode(1));
    let mut zeros = vec![0; page.len()];
    zeros[..AtomicCaps::SIZE].copy_from_slice(alone.as_bytes());
    assert_eq!(set_caps(&mut bed, CapType::Atomic, &zeros), Status::Ok);
    for stage in [1, 2] {
        bed.supply(0, stage).unwrap();
    }
    bed.ok(0, Opcode::InitHca, &InitHcaIn::zeroed(), 16);
    assert_eq!(set_caps(&mut bed, CapType::Atomic, &page), Status::BadSysState);
}

#[test]
fn the_vport_has_the_functions_addresses_and_keeps_roce_addresses() {
    let mut bed = with_vfs();
    for fid in 0..3u8 {
        let out = bed.ok(fid, Opcode::QueryNicVportContext, &QueryNicVportContextIn::zeroed(), 0x110);
        let context = QueryNicVportContextOut::read(&out).nic_vport_context();
        assert_eq!(context.permanent_address().as_bytes()[2..], devmodel::identity::mac(0, fid));
        assert_eq!(context.node_guid().to_be_bytes(), devmodel::identity::guid(0, fid));
    }
    let mut input = SetRoceAddressIn::zeroed();
    let mut address = RoceAddr::zeroed();
    let mut l3 = [0; 16];
    l3[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 2]);
    address.set().source_l3_address(l3).roce_version(2).roce_l3_type(0).source_mac_31_0(7);
    input.set().roce_address_index(1).roce_address(address);
    bed.ok(1, Opcode::SetRoceAddress, &input, 16);
    let query = QueryRoceAddressIn::with(|s| s.roce_address_index(1));
    let out = bed.ok(1, Opcode::QueryRoceAddress, &query, QueryRoceAddressOut::SIZE);
    assert_eq!(QueryRoceAddressOut::read(&out).roce_address(), address);
    input.set().roce_address_index(32);
    assert_eq!(bed.status(1, Opcode::SetRoceAddress, &input, 16), Status::BadIndex);
    address.set().roce_version(1);
    input.set().roce_address_index(1).roce_address(address);
    assert_eq!(bed.status(1, Opcode::SetRoceAddress, &input, 16), Status::BadParam);
    input.set().roce_address(RoceAddr::zeroed());
    bed.ok(1, Opcode::SetRoceAddress, &input, 16);
    let out = bed.ok(1, Opcode::QueryRoceAddress, &query, QueryRoceAddressOut::SIZE);
    assert_eq!(QueryRoceAddressOut::read(&out).roce_address(), RoceAddr::zeroed());
}

#[test]
fn infiniband_commands_are_refused_on_an_ethernet_link() {
    let mut bed = up();
    assert_eq!(
        bed.status(0, Opcode::QueryHcaVportContext, &QueryHcaVportContextIn::zeroed(), 0x210),
        Status::BadOp
    );
    assert_eq!(bed.status(0, Opcode::QueryHcaVportGid, &QueryHcaVportGidIn::zeroed(), 16), Status::BadOp);
}

#[test]
fn registers_read_at_load_are_there() {
    let mut bed = up();
    for (id, size) in [(0x5003u16, 0x10), (0x5004, 0x40), (0x5006, 0x10), (0x500f, 0x10), (0x6001, 0x40)] {
        let mut bytes = AccessRegisterIn::with(|s| s.op_mod(1).register_id(id)).as_bytes().to_vec();
        bytes.resize(16 + size, 0);
        if id >> 8 == 0x50 {
            bytes[17] = 1; // local_port
        }
        let reply = bed.reply_to(0, Opcode::AccessReg, 0, &bytes, 16 + size);
        assert_eq!(reply.status(), Status::Ok, "{id:#x}");
        assert!(reply.output[20..].iter().any(|b| *b != 0) || id == 0x5006, "{id:#x} says something");
    }
    let input = AccessRegisterIn::with(|s| s.op_mod(1).register_id(0x9020));
    assert_eq!(bed.status(0, Opcode::AccessReg, &input, 32), Status::BadParam);
}

/// The registers behind `devlink dev info` of a PF: MCAM, MCQS, MCQI.
#[test]
fn the_pf_tells_which_firmware_runs() {
    let mut bed = up();
    bed.set_vfs(1);
    bed.bring_up(1);
    let mut read = |fid: u8, op_mod: u16, id: u16, register: &[u8], size: usize| {
        let input = AccessRegisterIn::with(|s| s.op_mod(op_mod).register_id(id));
        let reply =
            bed.reply_to(fid, Opcode::AccessReg, 0, &[input.as_bytes(), register].concat(), 16 + size);
        (reply.status(), reply.output[16..].to_vec())
    };
    let ok = |(status, register): (Status, Vec<u8>)| {
        assert_eq!(status, Status::Ok);
        register
    };
    let mcam = ok(read(0, 1, 0x907f, &[0; 0x48], 0x48));
    assert_eq!(mcam[8..12], [0, 0, 0, 3], "MCQI and MCQS");
    let mut second = [0; 0x48];
    second[3] = 1;
    assert!(ok(read(0, 1, 0x907f, &second, 0x48))[4..].iter().all(|b| *b == 0), "no others");
    let mcqs = ok(read(0, 1, 0x9060, &[0; 0x10], 0x10));
    assert_eq!((mcqs[0], mcqs[7], mcqs[11] & 15), (0x80, 1, 0), "the last is the boot image, and idle");
    // The version: 0x7c bytes, from offset 0.
    let mut mcqi = [0; 0x18];
    (mcqi[11], mcqi[23]) = (1, 0x7c);
    let version = ok(read(0, 1, 0x9061, &mcqi, 0x18 + 0x7c));
    assert_eq!(version[0x18 + 4..0x18 + 8], [16, 99, 0x03, 0xe8]);
    assert_eq!(version[0x18 + 0x20..][..10], *b"16.99.1000");
    let wrong = [(3, 1), (11, 0), (16, 0xff), (19, 1), (23, 0x7d)];
    for (at, value) in wrong {
        let mut other = mcqi;
        other[at] = value;
        let reply = read(0, 1, 0x9061, &other, 0x18 + 0x7d);
        assert_eq!(reply.0, Status::BadParam, "byte {at}");
    }
    assert_eq!(read(0, 0, 0x907f, &[0; 0x48], 0x48).0, Status::BadParam, "not to be written");
    assert_eq!(read(1, 1, 0x907f, &[0; 0x48], 0x48).0, Status::BadParam, "nor a VF's");
}
