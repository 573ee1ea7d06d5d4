//! Creation, removal and reset of functions; data transfers between them, and none where they are not allowed.

use super::*;
use devmodel::{
    host::Party,
    region::{Func, Patience},
    state::{CqRow, PdRow, QpRow},
};
use hwspec::{
    cmd::{adapter::*, vport::*},
    context::QpState,
    eqe::{CompEvent, Eqe, EventType, PortChange},
    layout::prefix,
    pcie::{EXPRESS_CAP, SRIOV_CAP},
};
use ironverbs_tests::bed::{Access, Cq, Mr, Path, Qp, QpSpec, S, Wr};

/// A queue pair and its data.
#[derive(Clone, Copy)]
struct End {
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(bed: &mut Bed, fid: u8) -> Self {
        Self { qp: bed.qp(fid), mr: bed.mr(fid, 4096, Access::ALL) }
    }
}

/// Two connected QPs on functions 1 and 2, with objects that belong to parties 1 and 2. Frames hold payload by reference.
fn ends() -> (Bed, End, End) {
    let mut bed = Bed::cx5();
    bed.unwatched();
    let a = End::new(&mut bed, 1);
    bed.function(2);
    bed.memory.set_party(Party(2));
    let b = End::new(&mut bed, 2);
    bed.memory.set_party(Party(1));
    bed.connect(a.qp, b.qp, Path::default());
    (bed, a, b)
}

/// Posts a WRITE of `len` bytes from the start of `from`'s data to the start of `to`'s, without ringing the doorbell. Returns the value of
/// the doorbell: the first 8 bytes of the WQE.
fn queue(bed: &mut Bed, from: End, to: End, len: u32) -> u64 {
    let write = Wr::write(from.mr.part(0, len), to.mr);
    let index = bed.queue(from.qp, &write);
    bed.publish(from.qp);
    u64::from_be_bytes(prefix(&write.wqe(from.qp.qpn, index)))
}

/// Posts a WRITE, and lets only the doorbell run the adapter.
fn write(bed: &mut Bed, from: End, to: End, len: u32) {
    queue(bed, from, to, len);
    bed.doorbell(from.qp);
}

fn flr(bed: &mut Bed, fid: u8) {
    let control = bed.config_read(fid, EXPRESS_CAP + 8, 4);
    bed.config_write(fid, EXPRESS_CAP + 8, 2, control & 0xffff | 1 << 15);
}

#[test]
fn a_write_goes_from_one_function_to_another() {
    let (mut bed, a, b) = ends();
    bed.fill(a.mr, &[0x42; 1000]);
    write(&mut bed, a, b, 1000);
    assert_eq!(bed.bytes(b.mr)[..1001], [&[0x42; 1000][..], &[0]].concat());
    assert!(bed.one(a.qp.send_cq).is_ok());
}

#[test]
fn a_doorbell_in_two_halves_counts_and_a_foreign_one_does_not() {
    let (mut bed, a, b) = ends();
    bed.fill(a.mr, &[7; 4]);
    let value = queue(&mut bed, a, b, 4);
    // Through a page that is not the QP's, and through the other function.
    let other = bed.uar_by(1, 0);
    bed.write64(1, u64::from(other) << 12 | 0x800, value);
    bed.write64(2, bed.uar_register(2, 0x800), value);
    let of_peer = value & !0xffff_ff00 | u64::from(b.qp.qpn) << 8;
    bed.write64(1, bed.uar_register(1, 0x800), of_peer);
    bed.write64(1, bed.uar_register(1, 0x808), value);
    assert_eq!(bed.bytes(b.mr)[..4], [0; 4]);
    let at = bed.uar_register(1, 0x900);
    bed.write32(1, at, (value >> 32) as u32);
    assert_eq!(bed.bytes(b.mr)[..4], [0; 4]);
    bed.write32(1, at + 4, value as u32);
    assert_eq!(bed.bytes(b.mr)[..4], [7; 4]);
}

#[test]
fn a_work_request_that_is_written_into_the_doorbell_page_rings_once() {
    let (mut bed, a, b) = ends();
    let mut value = queue(&mut bed, a, b, 4);
    // The buffers of two registers alternately, each filled with four basic blocks.
    for (index, buffer) in [0x800, 0x900, 0x800, 0xe00, 0xf00].into_iter().enumerate() {
        let (data, register) = ([1 + index as u8; 4], bed.uar_register(1, buffer));
        bed.fill(a.mr, &data);
        bed.write64(1, register, value);
        assert_eq!(bed.bytes(b.mr)[..4], data);
        // The next request is posted, and the later bytes of the buffer do not ring for it, whatever their
        // values.
        bed.fill(a.mr, &[99; 4]);
        value = queue(&mut bed, a, b, 4);
        for at in (8..256).step_by(8) {
            bed.write64(1, register + at, value);
        }
        assert_eq!(bed.bytes(b.mr)[..4], data, "{buffer:#x}");
        assert!(bed.one(a.qp.send_cq).is_ok());
    }
}

#[test]
fn virtual_functions_come_and_go_with_the_capability() {
    let mut bed = Bed::cx5();
    assert_eq!(bed.config_read(0, SRIOV_CAP + 0x0c, 4), 3 << 16 | 3, "TotalVFs, InitialVFs");
    assert_eq!(bed.config_read(1, 0, 4), u32::MAX);
    bed.set_vfs(2);
    assert_eq!(bed.config_read(1, 0, 4), 0x1018_15b3);
    assert_eq!(bed.config_read(2, 0, 4), 0x1018_15b3);
    assert_eq!(bed.config_read(3, 0, 4), u32::MAX, "NumVFs is 2");
    bed.config_write(0, SRIOV_CAP + 0x10, 2, 3);
    assert_eq!(bed.config_read(0, SRIOV_CAP + 0x10, 2), 2, "NumVFs is fixed while VFs are enabled");
    (0..3).for_each(|fid| bed.bring_up(fid));
    let before = bed.qp(1);
    // Toggles the VFs' memory space through the PF.
    bed.config_write(0, SRIOV_CAP + 8, 2, 1);
    assert_eq!(bed.read32(1, 4), u32::MAX);
    bed.config_write(0, SRIOV_CAP + 8, 2, 1 | 1 << 3);
    assert_eq!(bed.read32(1, 4) >> 16, 5);
    bed.config_write(0, SRIOV_CAP + 8, 2, 1 << 3);
    assert_eq!(bed.config_read(1, 0, 4), u32::MAX);
    assert_eq!(bed.read32(1, 4), u32::MAX);
    bed.write32(1, 0x18, 1);
    bed.set_vfs(2);
    assert_eq!(bed.read32(1, 4), u32::MAX, "as after power-on: memory space is off");
    bed.bring_up(1);
    assert_eq!(bed.name(1, Opcode::DestroyQp, 0, before.qpn).status(), Status::BadResource);
}

#[test]
fn virtual_functions_stay_when_a_stopped_program_holds_one_up() {
    // The last VF to be removed, one in the middle, the one to be added, the PF.
    for held in [1, 2, 3, 0] {
        let mut bed = with_vfs();
        bed.stop_holding(held, Party(2));
        let there = |bed: &Bed| (1..4).filter(|vf| bed.adapter.region().is_present(*vf)).count();
        assert!(bed.adapter.replace_vfs(&mut bed.memory, 3, Patience::UntilStopped).is_none(), "{held}");
        assert_eq!(there(&bed), 2, "{held}");
        if [1, 2].contains(&held) {
            assert!(bed.adapter.reset_with(&mut bed.memory, 0, Patience::UntilStopped).is_none(), "{held}");
            assert_eq!(there(&bed), 2, "{held}");
        }
        bed.kill(Party(2));
        assert_eq!(bed.config_read(0, SRIOV_CAP + 0x10, 2), 2, "{held}");
        // Repeating the failed change repairs it.
        assert!(bed.adapter.replace_vfs(&mut bed.memory, 3, Patience::UntilStopped).is_some());
        assert_eq!((there(&bed), bed.config_read(0, SRIOV_CAP + 0x10, 2)), (3, 3), "{held}");
        assert_eq!(bed.config_read(0, SRIOV_CAP + 8, 2) & 0b1001, 0b1001, "{held}");
        for vf in 1..=3 {
            bed.enable_pci(vf);
            assert_eq!(bed.read32(vf, 4) >> 16, 5, "memory of VF {vf}");
        }
        assert!(bed.adapter.replace_vfs(&mut bed.memory, 0, Patience::UntilStopped).is_some());
        assert_eq!((there(&bed), bed.config_read(0, SRIOV_CAP + 8, 2) & 0b1001), (0, 0), "{held}");
    }
}

#[test]
fn a_pf_without_functions_to_enable_enables_none() {
    let mut bed = Bed::cx5();
    bed.config_write(0, SRIOV_CAP + 0x10, 2, 0);
    bed.config_write(0, SRIOV_CAP + 8, 2, 1 | 1 << 3);
    assert_eq!(bed.config_read(1, 0, 4), u32::MAX);
    bed.set_vfs(0xffff);
    assert_eq!(bed.config_read(3, 0, 4), 0x1018_15b3, "no more than there are");
}

#[test]
fn a_reset_leaves_a_function_as_after_power_on_and_its_peers_alone() {
    let (mut bed, a, b) = ends();
    flr(&mut bed, 1);
    assert_eq!(bed.config_read(1, 4, 2), 0);
    assert_eq!(bed.read32(1, 4), u32::MAX);
    assert_eq!(bed.qp_state(b.qp), QpState::Rts);
    bed.config_write(1, 4, 2, 0b110);
    assert_eq!(bed.read32(1, 0x10), 0);
    bed.enable_pci(1);
    assert_eq!(bed.status(1, Opcode::QueryIssi, &CmdIn::zeroed(), 0x70), Status::BadSysState);
    bed.bring_up(1);
    assert_eq!(bed.name(1, Opcode::DestroyQp, 0, a.qp.qpn).status(), Status::BadResource);
    // Nothing leaked: the tables start over, except for numbers known to peers.
    let again = End::new(&mut bed, 1);
    assert_eq!(again.qp.send_cq, a.qp.send_cq);
    assert!(again.qp.qpn != a.qp.qpn && again.mr.key >> 8 != a.mr.key >> 8);
}

#[test]
fn numbers_that_peers_know_come_back_late_also_over_resets() {
    let mut bed = with_vfs();
    let mut last: Vec<u32> = Vec::new();
    for time in 0..200 {
        flr(&mut bed, 1);
        bed.bring_up(1);
        // Occasionally a program with many objects.
        let count = if time % 50 == 20 { 40 } else { 1 };
        for _ in 0..count {
            let qpn = bed.qp(1).qpn;
            assert!(!last.iter().rev().take(48).any(|before| *before == qpn), "{qpn:#x}, time {time}");
            last.push(qpn);
        }
    }
    let most = last.iter().max().map_or(0, |qpn| qpn & 0xff);
    assert!(most < 250, "they begin anew before the table is used up: {most}");
    // The whole table is available, whatever happened before.
    flr(&mut bed, 1);
    bed.bring_up(1);
    let mut func = Func::lock(bed.adapter.region(), 1, &mut bed.memory);
    let taken = (0..1000).take_while(|_| {
        let row = func.alloc_from::<QpRow>(0, Party(1), 2);
        func.commit(&mut bed.memory);
        row.is_ok()
    });
    assert_eq!(taken.count(), 254, "all but QP0 and QP1");
}

#[test]
fn row_62_a_peer_of_a_reset_function_sees_its_retries_exceeded() {
    let (mut bed, a, b) = ends();
    flr(&mut bed, 2);
    bed.memory.transfers.clear();
    write(&mut bed, a, b, 64);
    bed.advance(20 * S);
    assert!(!bed.one(a.qp.send_cq).is_ok());
    assert_eq!(bed.qp_state(a.qp), QpState::Err);
    assert!(!bed.memory.transfers.contains_key(&2), "no DMA of the function that was reset");
}

/// Leaves a frame that refers to memory of function 1 in the ring of function 2, with a party out of reach.
fn waiting() -> (Bed, End, End) {
    let (mut bed, a, b) = ends();
    bed.memory.unreachable.insert(2);
    bed.fill(a.mr, &[0x42; 1000]);
    write(&mut bed, a, b, 1000);
    assert_eq!(bed.bytes(b.mr)[..4], [0; 4], "it waits");
    (bed, a, b)
}

/// Lets function 2 run, and asserts that the data arrived without a transfer from function 1's data.
fn arrives_without_the_sender(bed: &mut Bed, a: End, b: End) {
    bed.fill(a.mr, &[0x66; 1000]);
    bed.memory.transfers.clear();
    bed.memory.unreachable.clear();
    bed.run();
    assert_eq!(bed.bytes(b.mr)[..1000], [0x42; 1000], "what was sent, not what is there now");
}

#[test]
fn row_61_no_access_after_a_key_is_destroyed_even_by_frames_under_way() {
    let (mut bed, a, b) = waiting();
    assert_eq!(bed.name(1, Opcode::DestroyMkey, 0, a.mr.key >> 8).status(), Status::Ok);
    arrives_without_the_sender(&mut bed, a, b);
}

#[test]
fn row_62_no_access_after_a_reset_even_by_frames_under_way() {
    let (mut bed, a, b) = waiting();
    flr(&mut bed, 1);
    arrives_without_the_sender(&mut bed, a, b);
    assert!(!bed.memory.transfers.contains_key(&1));
}

#[test]
fn no_access_after_a_party_is_reaped_even_by_frames_under_way() {
    let (mut bed, a, b) = waiting();
    let uid = bed.uid(1);
    assert_ne!(uid, 0);
    assert_eq!(bed.adapter.reap(&mut bed.memory, Party(1), 0b10).map(|(ended, _)| ended), Some(1));
    arrives_without_the_sender(&mut bed, a, b);
}

#[test]
fn frames_that_wait_for_a_function_are_dropped_by_its_reset() {
    let (mut bed, _, b) = waiting();
    flr(&mut bed, 2);
    bed.memory.unreachable.clear();
    bed.memory.transfers.clear();
    bed.run();
    assert_eq!(bed.bytes(b.mr)[..1000], [0; 1000]);
    assert!(!bed.memory.transfers.contains_key(&2));
}

#[test]
fn teardown_ends_all_objects() {
    let (mut bed, a, b) = ends();
    bed.ok(1, Opcode::TeardownHca, &TeardownHcaIn::zeroed(), 16);
    bed.memory.transfers.clear();
    write(&mut bed, b, a, 64);
    assert!(!bed.memory.transfers.contains_key(&1), "nobody is there to take it");
    bed.ok(1, Opcode::InitHca, &InitHcaIn::zeroed(), 16);
    assert_eq!(bed.name(1, Opcode::DestroyQp, 0, a.qp.qpn).status(), Status::BadResource);
    let base = bed.base(1);
    let cqn = bed.cq_by(1, 0, &base);
    bed.qp_reply(1, 0, &base, cqn, &|c| c).made();
}

#[test]
fn without_bus_mastering_a_function_neither_receives_nor_sends() {
    let (mut bed, a, b) = ends();
    bed.config_write(2, 4, 2, 0b010);
    bed.memory.transfers.clear();
    write(&mut bed, a, b, 64);
    write(&mut bed, b, a, 64);
    assert!(!bed.memory.transfers.contains_key(&2));
    // With it, the request arrives when it is repeated the first time.
    bed.config_write(2, 4, 2, 0b110);
    let repeated = bed.next_timer().expect("a is waiting") - bed.now();
    assert!(bed.advance_until(repeated, |bed| bed.has_completion(a.qp.send_cq)));
    assert!(bed.one(a.qp.send_cq).is_ok());
}

#[test]
fn an_armed_completion_queue_sends_an_event_and_the_vector_of_its_event_queue() {
    let (mut bed, a, b) = ends();
    let base = bed.base(1);
    let cqn = bed.cq_by(1, 0, &base);
    let spec = QpSpec { send_cq: Some(Cq { fid: 1, cqn }), ..QpSpec::default() };
    let a = End { qp: bed.qp_with(1, spec).expect("a QP"), ..a };
    let peer = bed.qp(2);
    bed.connect(a.qp, peer, Path::default());
    let dbr = bed.object::<QueryCqOut>(1, Opcode::QueryCq, cqn).cq_context().dbr_addr();
    let uar = u64::from(base.uar) << 12;
    bed.memory.interrupts.clear();
    bed.write32(1, uar | 0x40, base.eqn << 24);
    write(&mut bed, a, b, 16);
    assert!(bed.memory.interrupts.is_empty(), "not armed");
    // Arms at consumer index 1, with a register of 8 bytes and then with two of 4 that rely on the doorbell
    // record.
    for (index, halves) in [(1, false), (2, true)] {
        let word: u32 = (index - 1) << 28 | index;
        bed.memory.put(dbr, &[index, word].map(u32::to_be_bytes).concat());
        if halves {
            bed.write32(1, uar | 0x20, word);
            bed.write32(1, uar | 0x24, cqn);
        } else {
            bed.write64(1, uar | 0x20, u64::from(word) << 32 | u64::from(cqn));
        }
        write(&mut bed, a, b, 16);
        let raised: Vec<_> = bed.memory.interrupts.drain(..).map(|i| (i.fid, i.vector)).collect();
        assert_eq!(raised, [(1, 1)], "halves: {halves}");
        bed.write32(1, uar | 0x40, base.eqn << 24 | index);
    }
    let eqe = Eqe::read(bed.memory.get(base.eq_memory, 64));
    assert_eq!(eqe.event_type(), EventType::Comp);
    assert_eq!(eqe.data::<CompEvent>().cq_number().0, cqn);
}

#[test]
fn a_change_of_the_link_is_told_to_who_wants_to_know() {
    let mut bed = with_vfs();
    let uar = bed.uar_by(1, 0);
    let (_, at) = bed.eq_by(1, 0, uar, 1 << EventType::PortChange.raw(), 2);
    let mut input = ModifyVportStateIn::zeroed();
    bed.ok(1, Opcode::ModifyVportState, &input, 16);
    let eqe = Eqe::read(bed.memory.get(at, 64));
    assert_eq!((eqe.event_type(), eqe.event_sub_type()), (EventType::PortChange, PortChange::Down.raw()));
    input.set().admin_state(1);
    bed.ok(1, Opcode::ModifyVportState, &input, 16);
    let eqe = Eqe::read(bed.memory.get(at + 64, 64));
    assert_eq!(eqe.event_sub_type(), PortChange::Active.raw());
    let out = bed.ok(1, Opcode::QueryVportState, &QueryVportStateIn::zeroed(), 16);
    assert_eq!(QueryVportStateOut::read(&out).state(), 1);
}

#[test]
fn the_end_of_many_objects_fits_the_journal() {
    let mut bed = with_vfs();
    let uid = bed.uid(1);
    let uar = bed.uar_by(1, uid);
    let (eqn, eq_memory) = bed.eq_by(1, 0, uar, 0, 1);
    let base = Base { pd: bed.pd_by(1, uid), uar, eqn, eq_memory };
    for _ in 0..60 {
        let cqn = bed.cq_by(1, uid, &base);
        bed.qp_reply(1, uid, &base, cqn, &|c| c).made();
    }
    let used = |bed: &mut Bed| {
        let func = Func::lock(bed.adapter.region(), 1, &mut bed.memory);
        assert_eq!(func.journal_stats().overflows, 0);
        (func.used::<QpRow>(), func.used::<CqRow>(), func.used::<PdRow>(), func.function().mtt_used)
    };
    assert_eq!(used(&mut bed).0, 60);
    assert_eq!(bed.name(1, Opcode::DestroyUctx, 0, uid.into()).status(), Status::Ok);
    let left = used(&mut bed);
    assert_eq!((left.0, left.1, left.2), (0, 0, 0));
    assert_eq!(left.3, 128 + 1, "the list of pages and the event queue");
    assert_eq!(bed.name(1, Opcode::DestroyEq, 0, eqn).status(), Status::Ok);
}
