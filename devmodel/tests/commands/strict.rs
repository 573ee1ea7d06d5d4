//! What only an adapter refuses that is as strict as a card: each refusal beside the same command on one that is not.

use crate::{
    bed::{Bed, Reply, with_list},
    objects::Base,
};
use devmodel::cmd::Syndrome;
use hwspec::{
    cmd::{
        Opcode, Status,
        adapter::{EnableHcaIn, NopIn},
        eq::*,
        rq_sq::*,
        uctx::*,
    },
    context::{eq::EqContext, rq_sq::SqContext, wq::WorkQueue},
    eqe::EventType,
    layout::Layout,
};

/// Function 0 of an adapter as strict as `switches` say, up.
fn up(switches: &str) -> Bed {
    let mut bed = Bed::strict(switches);
    bed.bring_up(0);
    bed
}

fn bits(events: &[EventType]) -> u64 {
    events.iter().fold(0, |bits, event| bits | 1 << event.raw())
}

impl Bed {
    fn eq_reply(&mut self, uid: u16, mask: [u64; 2]) -> Reply {
        let uar = self.uar(0, uid);
        let at = self.pages(0, 1);
        let mut context = EqContext::zeroed();
        context.set().log_eq_size(4).uar_page(uar).intr(1);
        let mut input = CreateEqIn::zeroed();
        let mut bits = [0; 32];
        bits[..8].copy_from_slice(&mask[0].to_be_bytes());
        bits[8..16].copy_from_slice(&mask[1].to_be_bytes());
        input.set().eq_context_entry(context).event_bitmask(bits);
        self.run(0, Opcode::CreateEq, uid, &with_list(&input, &[at]), 16)
    }

    fn uctx_reply(&mut self, cap: u32) -> Reply {
        let mut context = UserContext::zeroed();
        context.set().cap(cap);
        let mut input = CreateUctxIn::zeroed();
        input.set().uctx(context);
        self.run(0, Opcode::CreateUctx, 0, input.as_bytes(), 16)
    }
}

#[track_caller]
fn refused(reply: &Reply, by: Syndrome) {
    assert_eq!(Syndrome::from_code(reply.syndrome()), Some(by), "{reply:?}");
}

/// The events Linux asks of a device with no more than this one has.
const LINUX: [EventType; 12] = [
    EventType::PathMig,
    EventType::CommEst,
    EventType::SqDrained,
    EventType::CqError,
    EventType::WqCatasError,
    EventType::PathMigFailed,
    EventType::WqInvalReqError,
    EventType::WqAccessError,
    EventType::PortChange,
    EventType::SrqCatasError,
    EventType::SrqLastWqe,
    EventType::SrqRqLimit,
];

#[test]
fn events_that_are_not_offered_are_refused() {
    let (mut strict, mut kind) = (up("events=strict"), up("none"));
    for event in [EventType::InternalError, EventType::GeneralEvent, EventType::DctDrained, EventType::Comp] {
        refused(&strict.eq_reply(0, [bits(&[event]), 0]), Syndrome::EventMask);
        assert_eq!(kind.eq_reply(0, [bits(&[event]), 0]).status(), Status::Ok);
    }
    refused(&strict.eq_reply(0, [0, 1]), Syndrome::EventMask);
    assert_eq!(strict.eq_reply(0, [bits(&LINUX), 0]).status(), Status::Ok);
    assert_eq!(strict.eq_reply(0, [0, 0]).status(), Status::Ok, "completions need no bit");
}

#[test]
fn each_event_is_mapped_once_and_pages_on_a_queue_of_their_own() {
    let mut bed = up("events=strict");
    refused(&bed.eq_reply(0, [bits(&LINUX) | bits(&[EventType::PageRequest]), 0]), Syndrome::EventOfPages);
    let of_linux = [bits(&[EventType::Cmd]), bits(&LINUX), bits(&[EventType::PageRequest])];
    for mask in of_linux {
        assert_eq!(bed.eq_reply(0, [mask, 0]).status(), Status::Ok, "{mask:#x}");
    }
    refused(&bed.eq_reply(0, [bits(&[EventType::PortChange]), 0]), Syndrome::EventMapped);
    // rdma-core's VFIO driver.
    let mut bed = up("events=strict");
    for mask in [bits(&[EventType::Cmd, EventType::PageRequest]), bits(&[EventType::PortChange])] {
        assert_eq!(bed.eq_reply(0, [mask, 0]).status(), Status::Ok, "{mask:#x}");
    }
}

#[test]
fn a_user_context_has_its_rights_and_its_own_objects() {
    let mut bed = up("uid=strict");
    refused(&bed.uctx_reply(1 << 5), Syndrome::UctxRights);
    let uid = CreateUctxOut::read(&bed.uctx_reply(0).output).uid();
    refused(&bed.eq_reply(uid, [bits(&[EventType::PortChange]), 0]), Syndrome::EventOwner);
    assert_eq!(bed.eq_reply(uid, [0, 0]).status(), Status::Ok);
    // A doorbell page and an event queue of the driver's own.
    let drivers = bed.base(0);
    refused(&bed.cq_reply(0, uid, &drivers, |_| ()), Syndrome::NoSuchUar);
    let own = Base { uar: bed.uar(0, uid), ..drivers };
    refused(&bed.cq_reply(0, uid, &own, |_| ()), Syndrome::NoSuchEq);
    // One that it made for all.
    let (eqn, _) = bed.eq_of(0, SHARED, drivers.uar, 0, 2);
    assert_eq!(bed.cq_reply(0, uid, &Base { eqn, ..own }, |_| ()).status(), Status::Ok);
    // All of that is granted by an adapter that is not strict.
    let mut kind = up("none");
    let uid = CreateUctxOut::read(&kind.uctx_reply(1 << 5).output).uid();
    let drivers = kind.base(0);
    assert_eq!(kind.cq_reply(0, uid, &drivers, |_| ()).status(), Status::Ok);
}

/// The uid of what is for all user contexts.
const SHARED: u16 = 0xffff;

#[test]
fn raw_packets_are_sent_by_who_has_the_right() {
    for (switches, cap, expected) in [
        ("uid=strict", 0, Err(Syndrome::RawTx)),
        ("uid=strict", INTERNAL_DEV_RES, Err(Syndrome::RawTx)),
        ("uid=strict", RAW_TX, Ok(())),
        ("none", 0, Ok(())),
    ] {
        let mut bed = up(switches);
        let uid = CreateUctxOut::read(&bed.uctx_reply(cap).output).uid();
        let uar = bed.uar(0, uid);
        let base = Base { uar, eqn: bed.eq_of(0, uid, uar, 0, 3).0, ..bed.base(0) };
        let (pd, cqn, at) = (bed.pd(0, uid), bed.cq(0, uid, &base), bed.pages(0, 2));
        let mut wq = WorkQueue::zeroed();
        wq.set().wq_type(1).pd(pd).uar_page(base.uar).dbr_addr(at + 4096).log_wq_sz(4).log_wq_stride(6);
        let mut context = SqContext::zeroed();
        context.set().cqn(cqn).wq(wq);
        let mut input = CreateSqIn::zeroed();
        input.set().ctx(context);
        let reply = bed.run(0, Opcode::CreateSq, uid, &with_list(&input, &[at]), 16);
        assert_eq!(
            Syndrome::from_code(reply.syndrome()).map_or(Ok(()), Err),
            expected,
            "{switches} {cap:#x}"
        );
    }
}

#[test]
fn bits_of_a_command_that_no_field_owns_must_be_zero() {
    let bit = |len: usize, bit: usize| {
        let mut input = vec![0; len];
        input[bit / 8] = 0x80 >> (bit % 8);
        input
    };
    // Behind the header of NOP; beside function_id of ENABLE_HCA; in a nested context.
    let uctx = bit(CreateUctxIn::SIZE, 0x20 * 8);
    let inputs = [(Opcode::Nop, bit(NopIn::SIZE, 0x20 + 3)), (Opcode::CreateUctx, uctx)];
    let (mut strict, mut kind) = (up("reserved=zero"), up("none"));
    for (opcode, input) in inputs {
        refused(&strict.run(0, opcode, 0, &input, 16), Syndrome::Reserved);
        assert_eq!(kind.run(0, opcode, 0, &input, 16).status(), Status::Ok, "{opcode:?}");
        assert_eq!(strict.run(0, opcode, 0, &vec![0; input.len()], 16).status(), Status::Ok, "{opcode:?}");
    }
    // Behind the input's end, too.
    let long = bit(NopIn::SIZE + 8, (NopIn::SIZE + 4) * 8);
    refused(&strict.run(0, Opcode::Nop, 0, &long, 16), Syndrome::Reserved);
    let mut fresh = Bed::strict("reserved=zero");
    fresh.enable_pci(0);
    refused(&fresh.run(0, Opcode::EnableHca, 0, &bit(EnableHcaIn::SIZE, 0x40 + 1), 16), Syndrome::Reserved);
}
