//! Creation, removal and reset of functions; data transfers between them, and none where they are not allowed.

use super::{
    bed::Bed,
    objects::{Base, name},
    queue_pairs::Qp,
};
use devmodel::{
    host::{Party, Rid},
    region::{Func, Patience},
    state::{CqRow, PdRow, QpRow},
};
use hwspec::{
    cmd::{CmdIn, Opcode, Status, adapter::*, vport::*},
    context::QpState,
    cqe::{Cqe64, CqeOpcode},
    eqe::{CompEvent, Eqe, EventType, PortChange},
    handle::Qpn,
    layout::Layout,
    pcie::{EXPRESS_CAP, SRIOV_CAP},
    wqe::{CqeMode, CtrlSeg, DataSeg, RaddrSeg, WqeOpcode},
};

/// The doorbell value of `qp`: the first 8 bytes of its last WQE.
fn doorbell(index: u16, qpn: u32) -> u64 {
    let mut ctrl = CtrlSeg::zeroed();
    ctrl.set().wqe_idx(index).opcode(WqeOpcode::RdmaWrite).qpn(Qpn(qpn)).ds(3).ce(CqeMode::Always);
    u64::from_be_bytes(hwspec::layout::prefix(ctrl.as_bytes()))
}

impl Bed {
    /// Posts a WRITE of `len` bytes from the start of `from`'s data to the start of `to`'s, without ringing
    /// the doorbell.
    fn post_write(&mut self, from: &Qp, to: &Qp, index: u16, len: u32) {
        let mut ctrl = CtrlSeg::zeroed();
        ctrl.set().wqe_idx(index).opcode(WqeOpcode::RdmaWrite).qpn(Qpn(from.qpn)).ds(3).ce(CqeMode::Always);
        let raddr = RaddrSeg::with(|s| s.raddr(to.data).rkey(to.key));
        let data = DataSeg::with(|s| s.byte_count(len).lkey(from.key).addr(from.data));
        let at = from.sq + 64 * u64::from(index % 16);
        let wqe = [ctrl.as_bytes().as_slice(), raddr.as_bytes(), data.as_bytes()].concat();
        self.memory(from.fid, at, 48).copy_from_slice(&wqe);
        let counter = u32::from(index.wrapping_add(1)).to_be_bytes();
        self.memory(from.fid, from.dbr + 4, 4).copy_from_slice(&counter);
    }

    fn ring(&mut self, qp: &Qp, index: u16) {
        self.write64(qp.fid, u64::from(qp.base.uar) << 12 | 0x800, doorbell(index, qp.qpn));
    }

    fn write(&mut self, from: &Qp, to: &Qp, index: u16, len: u32) {
        self.post_write(from, to, index, len);
        self.ring(from, index);
    }

    fn cqe(&mut self, qp: &Qp, index: u64) -> Option<CqeOpcode> {
        let cqe = Cqe64::read(self.memory(qp.fid, qp.cq + 64 * index, 64));
        Some(cqe.opcode()).filter(|opcode| *opcode != CqeOpcode::Invalid)
    }

    /// Two connected QPs on functions 1 and 2, with objects that belong to parties 1 and 2.
    fn pair(&mut self) -> (Qp, Qp) {
        let a = self.qp(1);
        self.host.party = 2;
        let b = self.qp(2);
        self.host.party = 1;
        self.connect(&a, &b);
        self.connect(&b, &a);
        (a, b)
    }

    fn flr(&mut self, fid: u8) {
        let control = self.config_read(fid, EXPRESS_CAP + 8, 4);
        self.config_write(fid, EXPRESS_CAP + 8, 2, control & 0xffff | 1 << 15);
    }
}

#[test]
fn a_write_goes_from_one_function_to_another() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    bed.memory(1, a.data, 1000).fill(0x42);
    bed.write(&a, &b, 0, 1000);
    assert_eq!(bed.memory(2, b.data, 1001), [&[0x42; 1000][..], &[0]].concat());
    assert_eq!(bed.cqe(&a, 0), Some(CqeOpcode::Req));
}

#[test]
fn a_doorbell_in_two_halves_counts_and_a_foreign_one_does_not() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    bed.memory(1, a.data, 4).fill(7);
    bed.post_write(&a, &b, 0, 4);
    let value = doorbell(0, a.qpn);
    // Through a page that is not the QP's, and through the other function.
    let other = bed.uar(1, 0);
    bed.write64(1, u64::from(other) << 12 | 0x800, value);
    bed.write64(2, u64::from(b.base.uar) << 12 | 0x800, value);
    bed.write64(1, u64::from(a.base.uar) << 12 | 0x800, doorbell(0, b.qpn));
    bed.write64(1, u64::from(a.base.uar) << 12 | 0x808, value);
    assert_eq!(bed.memory(2, b.data, 4), [0; 4]);
    let at = u64::from(a.base.uar) << 12 | 0x900;
    bed.write32(1, at, (value >> 32) as u32);
    assert_eq!(bed.memory(2, b.data, 4), [0; 4]);
    bed.write32(1, at + 4, value as u32);
    assert_eq!(bed.memory(2, b.data, 4), [7; 4]);
}

#[test]
fn a_work_request_that_is_written_into_the_doorbell_page_rings_once() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    let page = u64::from(a.base.uar) << 12;
    // The buffers of two registers alternately, each filled with four basic blocks.
    for (index, buffer) in [0x800, 0x900, 0x800, 0xe00, 0xf00].into_iter().enumerate() {
        let index = index as u16;
        bed.memory(1, a.data, 4).fill(1 + index as u8);
        bed.post_write(&a, &b, index, 4);
        bed.write64(1, page | buffer, doorbell(index, a.qpn));
        assert_eq!(bed.memory(2, b.data, 4), [1 + index as u8; 4]);
        // The next request is posted, and the later bytes of the buffer do not ring for it, whatever their
        // values.
        bed.memory(1, a.data, 4).fill(99);
        bed.post_write(&a, &b, index + 1, 4);
        for at in (8..256).step_by(8) {
            bed.write64(1, page + buffer + at, doorbell(index + 1, a.qpn));
        }
        assert_eq!(bed.memory(2, b.data, 4), [1 + index as u8; 4], "{buffer:#x}");
        assert_eq!(bed.cqe(&a, u64::from(index)), Some(CqeOpcode::Req));
        assert_eq!(bed.cqe(&a, u64::from(index) + 1), None);
    }
}

#[test]
fn virtual_functions_come_and_go_with_the_capability() {
    let mut bed = Bed::power_on();
    assert_eq!(bed.config_read(0, SRIOV_CAP + 0x0c, 4), 3 << 16 | 3, "TotalVFs, InitialVFs");
    assert_eq!(bed.config_read(1, 0, 4), u32::MAX);
    bed.enable_vfs(2);
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
    bed.enable_vfs(2);
    assert_eq!(bed.read32(1, 4), u32::MAX, "as after power-on: memory space is off");
    bed.bring_up(1);
    assert_eq!(name(&mut bed, 1, Opcode::DestroyQp, 0, before.qpn).status(), Status::BadResource);
}

/// Stops a program while it holds function `fid`.
fn stop_holding(bed: &mut Bed, fid: u8) {
    (bed.host.party, bed.host.stopped, bed.host.dead) = (2, Some(Party(2)), None);
    std::mem::forget(Func::lock(bed.adapter.region(), fid, &mut bed.host));
    bed.host.party = 1;
}

/// Kills that program.
fn kill(bed: &mut Bed) {
    (bed.host.stopped, bed.host.dead) = (None, Some(Party(2)));
    assert!(bed.adapter.region().free_locks_of(&mut bed.host, Party(2)).is_some());
}

#[test]
fn virtual_functions_stay_when_a_stopped_program_holds_one_up() {
    // The last VF to be removed, one in the middle, the one to be added, the PF.
    for held in [1, 2, 3, 0] {
        let mut bed = Bed::ready();
        bed.enable_vfs(2);
        stop_holding(&mut bed, held);
        let there = |bed: &Bed| (1..4).filter(|vf| bed.adapter.region().is_present(*vf)).count();
        assert!(bed.adapter.replace_vfs(&mut bed.host, 3, Patience::UntilStopped).is_none(), "{held}");
        assert_eq!(there(&bed), 2, "{held}");
        if [1, 2].contains(&held) {
            assert!(bed.adapter.reset_with(&mut bed.host, 0, Patience::UntilStopped).is_none(), "{held}");
            assert_eq!(there(&bed), 2, "{held}");
        }
        kill(&mut bed);
        assert_eq!(bed.config_read(0, SRIOV_CAP + 0x10, 2), 2, "{held}");
        // Repeating the failed change repairs it.
        assert!(bed.adapter.replace_vfs(&mut bed.host, 3, Patience::UntilStopped).is_some());
        assert_eq!((there(&bed), bed.config_read(0, SRIOV_CAP + 0x10, 2)), (3, 3), "{held}");
        assert_eq!(bed.config_read(0, SRIOV_CAP + 8, 2) & 0b1001, 0b1001, "{held}");
        for vf in 1..=3 {
            bed.enable_pci(vf);
            assert_eq!(bed.read32(vf, 4) >> 16, 5, "memory of VF {vf}");
        }
        assert!(bed.adapter.replace_vfs(&mut bed.host, 0, Patience::UntilStopped).is_some());
        assert_eq!((there(&bed), bed.config_read(0, SRIOV_CAP + 8, 2) & 0b1001), (0, 0), "{held}");
    }
}

#[test]
fn a_pf_without_functions_to_enable_enables_none() {
    let mut bed = Bed::power_on();
    bed.enable_vfs(0);
    assert_eq!(bed.config_read(1, 0, 4), u32::MAX);
    bed.config_write(0, SRIOV_CAP + 8, 2, 0);
    bed.enable_vfs(0xffff);
    assert_eq!(bed.config_read(3, 0, 4), 0x1018_15b3, "no more than there are");
}

#[test]
fn a_reset_leaves_a_function_as_after_power_on_and_its_peers_alone() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    bed.flr(1);
    assert_eq!(bed.config_read(1, 4, 2), 0);
    assert_eq!(bed.read32(1, 4), u32::MAX);
    assert_eq!(bed.show(2, b.qpn).state(), QpState::Rts);
    bed.enable_pci(1);
    assert_eq!(bed.read32(1, 0x10), 0);
    assert_eq!(bed.status(1, Opcode::QueryIssi, &CmdIn::zeroed(), 0x70), Status::BadSysState);
    bed.bring_up(1);
    assert_eq!(name(&mut bed, 1, Opcode::DestroyQp, 0, a.qpn).status(), Status::BadResource);
    // Nothing leaked: the tables start over, except for numbers known to peers.
    let again = bed.qp(1);
    assert_eq!(again.cqn, a.cqn);
    assert!(again.qpn != a.qpn && again.key >> 8 != a.key >> 8);
}

#[test]
fn numbers_that_peers_know_come_back_late_also_over_resets() {
    let mut bed = Bed::ready();
    let mut last: Vec<u32> = Vec::new();
    for time in 0..200 {
        bed.flr(1);
        bed.next.remove(&1);
        bed.enable_pci(1);
        bed.bring_up(1);
        // Occasionally a program with many objects.
        let count = if time % 50 == 20 { 40 } else { 1 };
        for _ in 0..count {
            let qp = bed.qp(1);
            assert!(
                !last.iter().rev().take(48).any(|before| *before == qp.qpn),
                "{:#x}, time {time}",
                qp.qpn
            );
            last.push(qp.qpn);
        }
    }
    let most = last.iter().max().map_or(0, |qpn| qpn & 0xff);
    assert!(most < 250, "they begin anew before the table is used up: {most}");
    // The whole table is available, whatever happened before.
    bed.flr(1);
    bed.enable_pci(1);
    bed.bring_up(1);
    let mut func = Func::lock(bed.adapter.region(), 1, &mut bed.host);
    let taken = (0..1000).take_while(|_| {
        let row = func.alloc_from::<QpRow>(0, Party(1), 2);
        func.commit(&mut bed.host);
        row.is_ok()
    });
    assert_eq!(taken.count(), 254, "all but QP0 and QP1");
}

#[test]
fn row_62_a_peer_of_a_reset_function_sees_its_retries_exceeded() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    bed.flr(2);
    bed.host.transfers.clear();
    bed.write(&a, &b, 0, 64);
    for _ in 0..400 {
        bed.now += 50_000_000_000;
        let now = bed.now;
        bed.runner.run(&bed.adapter, &mut bed.host, now, 1);
    }
    assert_eq!(bed.cqe(&a, 0), Some(CqeOpcode::ReqErr));
    assert_eq!(bed.show(1, a.qpn).state(), QpState::Err);
    assert!(!bed.host.transfers.contains(&Rid(2)), "no DMA of the function that was reset");
}

/// Leaves a frame that refers to memory of function 1 in the ring of function 2, with a party out of reach.
fn waiting(bed: &mut Bed) -> (Qp, Qp) {
    let (a, b) = bed.pair();
    bed.host.out_of_reach = Some(Party(2));
    bed.memory(1, a.data, 1000).fill(0x42);
    bed.write(&a, &b, 0, 1000);
    assert_eq!(bed.memory(2, b.data, 4), [0; 4], "it waits");
    (a, b)
}

/// Lets function 2 run, and asserts that the data arrived without a transfer from function 1's data.
fn arrives_without_the_sender(bed: &mut Bed, a: &Qp, b: &Qp) {
    bed.memory(1, a.data, 1000).fill(0x66);
    bed.host.transfers.clear();
    bed.host.out_of_reach = None;
    let now = bed.now;
    bed.runner.run(&bed.adapter, &mut bed.host, now, 2);
    assert_eq!(bed.memory(2, b.data, 1000), [0x42; 1000], "what was sent, not what is there now");
}

#[test]
fn row_61_no_access_after_a_key_is_destroyed_even_by_frames_under_way() {
    let mut bed = Bed::ready();
    let (a, b) = waiting(&mut bed);
    assert_eq!(name(&mut bed, 1, Opcode::DestroyMkey, 0, a.key >> 8).status(), Status::Ok);
    arrives_without_the_sender(&mut bed, &a, &b);
}

#[test]
fn row_62_no_access_after_a_reset_even_by_frames_under_way() {
    let mut bed = Bed::ready();
    let (a, b) = waiting(&mut bed);
    bed.flr(1);
    arrives_without_the_sender(&mut bed, &a, &b);
    assert!(!bed.host.transfers.contains(&Rid(1)));
}

#[test]
fn no_access_after_a_party_is_reaped_even_by_frames_under_way() {
    let mut bed = Bed::ready();
    let (a, b) = waiting(&mut bed);
    let uid = bed.uid(1);
    assert_ne!(uid, 0);
    assert_eq!(bed.adapter.reap(&mut bed.host, Party(1), 0b10).map(|(ended, _)| ended), Some(1));
    arrives_without_the_sender(&mut bed, &a, &b);
}

#[test]
fn frames_that_wait_for_a_function_are_dropped_by_its_reset() {
    let mut bed = Bed::ready();
    let (_, b) = waiting(&mut bed);
    bed.flr(2);
    bed.host.out_of_reach = None;
    bed.host.transfers.clear();
    let now = bed.now;
    bed.runner.run(&bed.adapter, &mut bed.host, now, 2);
    assert_eq!(bed.memory(2, b.data, 1000), [0; 1000]);
    assert!(!bed.host.transfers.contains(&Rid(2)));
}

#[test]
fn teardown_ends_all_objects() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    bed.ok(1, Opcode::TeardownHca, &TeardownHcaIn::zeroed(), 16);
    bed.host.transfers.clear();
    bed.write(&b, &a, 0, 64);
    assert!(!bed.host.transfers.contains(&Rid(1)), "nobody is there to take it");
    bed.ok(1, Opcode::InitHca, &InitHcaIn::zeroed(), 16);
    assert_eq!(name(&mut bed, 1, Opcode::DestroyQp, 0, a.qpn).status(), Status::BadResource);
    bed.qp(1);
}

#[test]
fn without_bus_mastering_a_function_neither_receives_nor_sends() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    bed.config_write(2, 4, 2, 0b010);
    bed.host.transfers.clear();
    bed.write(&a, &b, 0, 64);
    bed.write(&b, &a, 0, 64);
    assert!(!bed.host.transfers.contains(&Rid(2)));
}

#[test]
fn an_armed_completion_queue_sends_an_event_and_the_vector_of_its_event_queue() {
    let mut bed = Bed::ready();
    let (a, b) = bed.pair();
    let uar = u64::from(a.base.uar) << 12;
    bed.write32(1, uar | 0x40, a.base.eqn << 24);
    bed.write(&a, &b, 0, 16);
    assert!(bed.host.interrupts.is_empty(), "not armed");
    // Arms at consumer index 1, with a register of 8 bytes and then with two of 4 that rely on the doorbell
    // record.
    for (index, halves) in [(1u16, false), (2, true)] {
        let mut record = (u32::from(index)).to_be_bytes().to_vec();
        let word = u32::from(index - 1) << 28 | u32::from(index);
        record.extend_from_slice(&word.to_be_bytes());
        bed.memory(1, a.cq + 4096, 8).copy_from_slice(&record);
        if halves {
            bed.write32(1, uar | 0x20, word);
            bed.write32(1, uar | 0x24, a.cqn);
        } else {
            bed.write64(1, uar | 0x20, u64::from(word) << 32 | u64::from(a.cqn));
        }
        bed.write(&a, &b, index, 16);
        let raised: Vec<_> = bed.host.interrupts.drain(..).map(|i| (i.0, i.1)).collect();
        assert_eq!(raised, [(Rid(1), 1)], "halves: {halves}");
        bed.write32(1, uar | 0x40, a.base.eqn << 24 | u32::from(index));
    }
    let eqe = Eqe::read(bed.memory(1, a.base.eq_memory, 64));
    assert_eq!(eqe.event_type(), EventType::Comp);
    assert_eq!(eqe.data::<CompEvent>().cq_number().0, a.cqn);
}

#[test]
fn a_change_of_the_link_is_told_to_who_wants_to_know() {
    let mut bed = Bed::ready();
    let uar = bed.uar(1, 0);
    let (_, at) = bed.eq(1, uar, 1 << EventType::PortChange.raw(), 2);
    let mut input = ModifyVportStateIn::zeroed();
    bed.ok(1, Opcode::ModifyVportState, &input, 16);
    let eqe = Eqe::read(bed.memory(1, at, 64));
    assert_eq!((eqe.event_type(), eqe.event_sub_type()), (EventType::PortChange, PortChange::Down.raw()));
    input.set().admin_state(1);
    bed.ok(1, Opcode::ModifyVportState, &input, 16);
    let eqe = Eqe::read(bed.memory(1, at + 64, 64));
    assert_eq!(eqe.event_sub_type(), PortChange::Active.raw());
    let out = bed.ok(1, Opcode::QueryVportState, &QueryVportStateIn::zeroed(), 16);
    assert_eq!(QueryVportStateOut::read(&out).state(), 1);
}

#[test]
fn the_end_of_many_objects_fits_the_journal() {
    let mut bed = Bed::ready();
    let uid = bed.uid(1);
    let uar = bed.uar(1, uid);
    let (eqn, eq_memory) = bed.eq(1, uar, 0, 1);
    let base = Base { pd: bed.pd(1, uid), uar, eqn, eq_memory };
    for _ in 0..60 {
        let cqn = bed.cq(1, uid, &base);
        let (reply, _) = bed.qp_reply(1, uid, &base, cqn, &|c| c);
        assert_eq!(reply.status(), Status::Ok);
    }
    let used = |bed: &mut Bed| {
        let func = Func::lock(bed.adapter.region(), 1, &mut bed.host);
        assert_eq!(func.journal_stats().overflows, 0);
        (func.used::<QpRow>(), func.used::<CqRow>(), func.used::<PdRow>(), func.function().mtt_used)
    };
    assert_eq!(used(&mut bed).0, 60);
    assert_eq!(name(&mut bed, 1, Opcode::DestroyUctx, 0, uid.into()).status(), Status::Ok);
    let left = used(&mut bed);
    assert_eq!((left.0, left.1, left.2), (0, 0, 0));
    assert_eq!(left.3, 128 + 1, "the list of pages and the event queue");
    assert_eq!(name(&mut bed, 1, Opcode::DestroyEq, 0, eqn).status(), Status::Ok);
}
