//! Commands refused only by a strict adapter: each refusal is compared with the same command on an adapter that is not
//! strict.

use super::*;
use devmodel::region::Func;
use hwspec::{
    cmd::{adapter::*, rq_sq::*},
    context::{caps::HcaCap, rq_sq::SqContext, wq::WorkQueue},
    eqe::{Eqe, EventType, PagesEvent},
};
use ironverbs_tests::bed::S;

/// Function 0, initialized, of an adapter with the strictness of `switches`.
fn up(switches: &str) -> Bed {
    let mut bed = powered(switches);
    bed.bring_up(0);
    bed
}

fn bits(events: &[EventType]) -> u64 {
    events.iter().fold(0, |bits, event| bits | 1 << event.raw())
}

/// Creates an event queue with its own doorbell page.
fn eq_reply(bed: &mut Bed, uid: u16, mask: [u64; 2]) -> Reply {
    let uar = bed.uar_by(0, uid);
    bed.eq_reply(0, uid, uar, mask, 1).0
}

fn uctx_reply(bed: &mut Bed, cap: u32) -> Reply {
    let context = UserContext::with(|s| s.cap(cap));
    bed.reply_to(0, Opcode::CreateUctx, 0, CreateUctxIn::with(|s| s.uctx(context)).as_bytes(), 16)
}

#[track_caller]
fn refused(reply: &Reply, by: Syndrome) {
    assert_eq!(reply.refused(), Some(by), "{reply:?}");
}

/// The events that Linux requests from a device with these capabilities.
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
        refused(&eq_reply(&mut strict, 0, [bits(&[event]), 0]), Syndrome::EventMask);
        assert_eq!(eq_reply(&mut kind, 0, [bits(&[event]), 0]).status(), Status::Ok);
    }
    refused(&eq_reply(&mut strict, 0, [0, 1]), Syndrome::EventMask);
    assert_eq!(eq_reply(&mut strict, 0, [bits(&LINUX), 0]).status(), Status::Ok);
    assert_eq!(eq_reply(&mut strict, 0, [0, 0]).status(), Status::Ok, "completions need no bit");
}

#[test]
fn each_event_is_mapped_once_and_pages_on_a_queue_of_their_own() {
    let mut bed = up("events=strict");
    refused(
        &eq_reply(&mut bed, 0, [bits(&LINUX) | bits(&[EventType::PageRequest]), 0]),
        Syndrome::EventOfPages,
    );
    let of_linux = [bits(&[EventType::Cmd]), bits(&LINUX), bits(&[EventType::PageRequest])];
    for mask in of_linux {
        assert_eq!(eq_reply(&mut bed, 0, [mask, 0]).status(), Status::Ok, "{mask:#x}");
    }
    refused(&eq_reply(&mut bed, 0, [bits(&[EventType::PortChange]), 0]), Syndrome::EventMapped);
    // rdma-core's VFIO driver.
    let mut bed = up("events=strict");
    for mask in [bits(&[EventType::Cmd, EventType::PageRequest]), bits(&[EventType::PortChange])] {
        assert_eq!(eq_reply(&mut bed, 0, [mask, 0]).status(), Status::Ok, "{mask:#x}");
    }
}

#[test]
fn a_user_context_has_its_rights_and_its_own_objects() {
    let mut bed = up("uid=strict");
    refused(&uctx_reply(&mut bed, 1 << 5), Syndrome::UctxRights);
    let uid = CreateUctxOut::read(&uctx_reply(&mut bed, 0).output).uid();
    refused(&eq_reply(&mut bed, uid, [bits(&[EventType::PortChange]), 0]), Syndrome::EventOwner);
    assert_eq!(eq_reply(&mut bed, uid, [0, 0]).status(), Status::Ok);
    // A doorbell page and an event queue of the driver.
    let drivers = bed.base(0);
    refused(&bed.cq_reply(0, uid, &drivers, &|c| c), Syndrome::NoSuchUar);
    let own = Base { uar: bed.uar_by(0, uid), ..drivers };
    refused(&bed.cq_reply(0, uid, &own, &|c| c), Syndrome::NoSuchEq);
    // An event queue that the driver created for all contexts.
    let (eqn, _) = bed.eq_by(0, SHARED, drivers.uar, 0, 2);
    assert_eq!(bed.cq_reply(0, uid, &Base { eqn, ..own }, &|c| c).status(), Status::Ok);
    // An adapter that is not strict grants all of this.
    let mut kind = up("none");
    let uid = CreateUctxOut::read(&uctx_reply(&mut kind, 1 << 5).output).uid();
    let drivers = kind.base(0);
    assert_eq!(kind.cq_reply(0, uid, &drivers, &|c| c).status(), Status::Ok);
}

/// The uid of objects shared by all user contexts.
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
        let uid = CreateUctxOut::read(&uctx_reply(&mut bed, cap).output).uid();
        let uar = bed.uar_by(0, uid);
        let base = Base { uar, eqn: bed.eq_by(0, uid, uar, 0, 3).0, ..bed.base(0) };
        let (pd, cqn, at) = (bed.pd_by(0, uid), bed.cq_by(0, uid, &base), bed.memory.alloc(0, 2 * PAGE));
        let mut wq = WorkQueue::zeroed();
        wq.set().wq_type(1).pd(pd).uar_page(base.uar).dbr_addr(at + 4096).log_wq_sz(4).log_wq_stride(6);
        let context = SqContext::with(|s| s.cqn(cqn).wq(wq));
        let input = CreateSqIn::with(|s| s.ctx(context));
        let reply = bed.reply_to(0, Opcode::CreateSq, uid, &with_list(&input, &[at]), 16);
        assert_eq!(reply.refused().map_or(Ok(()), Err), expected, "{switches} {cap:#x}");
    }
}

#[test]
fn bits_of_a_command_that_no_field_owns_must_be_zero() {
    let bit = |len: usize, bit: usize| {
        let mut input = vec![0; len];
        input[bit / 8] = 0x80 >> (bit % 8);
        input
    };
    // After the header of NOP, next to function_id of ENABLE_HCA, and in a nested context.
    let uctx = bit(CreateUctxIn::SIZE, 0x20 * 8);
    let inputs = [(Opcode::Nop, bit(CmdIn::SIZE, 0x20 + 3)), (Opcode::CreateUctx, uctx)];
    let (mut strict, mut kind) = (up("reserved=zero"), up("none"));
    for (opcode, input) in inputs {
        refused(&strict.reply_to(0, opcode, 0, &input, 16), Syndrome::Reserved);
        assert_eq!(kind.reply_to(0, opcode, 0, &input, 16).status(), Status::Ok, "{opcode:?}");
        assert_eq!(
            strict.reply_to(0, opcode, 0, &vec![0; input.len()], 16).status(),
            Status::Ok,
            "{opcode:?}"
        );
    }
    // Also after the end of the input.
    let long = bit(CmdIn::SIZE + 8, (CmdIn::SIZE + 4) * 8);
    refused(&strict.reply_to(0, Opcode::Nop, 0, &long, 16), Syndrome::Reserved);
    let mut fresh = powered("reserved=zero");
    fresh.enable_pci(0);
    refused(
        &fresh.reply_to(0, Opcode::EnableHca, 0, &bit(EnableHcaIn::SIZE, 0x40 + 1), 16),
        Syndrome::Reserved,
    );
}

#[test]
fn numbers_of_event_queues_are_the_functions_where_the_command_that_ends_one_has_no_user_context() {
    for (switches, more) in [("reserved=zero", false), ("none", true)] {
        let mut bed = up(switches);
        let mut create = |_| {
            let uid = bed.uid(0);
            (uid, eq_reply(&mut bed, uid, [0, 0]))
        };
        let made: Vec<_> = (0..300).map(&mut create).take_while(|(_, r)| r.status() == Status::Ok).collect();
        assert_eq!(made.len() == 300, more, "{}", made.len());
        let number = |reply: &Reply| u32::from(CreateEqOut::read(&reply.output).eq_number());
        let numbers: std::collections::BTreeSet<u32> = made.iter().map(|(_, reply)| number(reply)).collect();
        assert_eq!(numbers.len() == made.len(), !more);
        assert!(numbers.len() > 120, "{}", numbers.len());
        let (uid, last) = &made[made.len() - 1];
        let last = number(last);
        match more {
            true => refused(&bed.name(0, Opcode::DestroyEq, 0, last), Syndrome::EqNumber),
            false => refused(&bed.name(0, Opcode::DestroyEq, *uid, last), Syndrome::Reserved),
        }
        let uid = if more { *uid } else { 0 };
        assert_eq!(bed.name(0, Opcode::DestroyEq, uid, last).status(), Status::Ok);
    }
}

#[test]
fn a_user_context_is_named_in_the_header_of_what_devx_sends() {
    let mut bed = up("reserved=zero");
    let uid = bed.uid(0);
    let base = Base { uar: bed.uar_by(0, uid), ..bed.base(0) };
    let base = Base { eqn: bed.eq_by(0, uid, base.uar, 0, 3).0, ..base };
    let cqn = bed.cq_by(0, uid, &base);
    let query = QueryCqIn::with(|s| s.cqn(cqn));
    assert_eq!(
        bed.reply_to(0, Opcode::QueryCq, uid, query.as_bytes(), QueryCqOut::SIZE).status(),
        Status::Ok
    );
    // Only Linux sends this one, with zeros in the field.
    refused(
        &bed.reply_to(0, Opcode::QueryEq, uid, QueryEqIn::zeroed().as_bytes(), 0x300),
        Syndrome::Reserved,
    );
}

/// The page request in entry `index` of the event queue at `memory`: function and number of pages.
fn request(bed: &mut Bed, memory: u64, index: u64) -> Option<(u16, i32)> {
    let eqe = Eqe::read(bed.memory.get(memory + 64 * index, 64));
    let event = eqe.data::<PagesEvent>();
    let owned = index / 16 % 2 == u64::from(eqe.owner());
    let pages = event.num_pages() as i32;
    (owned && eqe.event_type() == EventType::PageRequest && pages != 0).then(|| (event.function_id(), pages))
}

/// Runs `MANAGE_PAGES` in slot 1, because Linux has a dedicated slot for it.
fn manage(bed: &mut Bed, op_mod: u16, id: u16, count: u32, pages: &[u64]) -> (Status, Vec<u8>) {
    let mut input = ManagePagesIn::zeroed();
    input.set().opcode(Opcode::ManagePages).op_mod(op_mod).function_id(id).input_num_entries(count);
    let out = ManagePagesOut::SIZE + 8 * count as usize;
    bed.write_command(0, 1, &with_list(&input, pages), out);
    bed.ring_command(0, 2);
    let reply = bed.reply(0, 1, out).expect("a reply");
    (reply.status(), reply.output)
}

/// True if the device has completed the command in slot 0.
fn is_done(bed: &Bed) -> bool {
    bed.reply(0, 0, 16).is_some()
}

/// Starts the creation of a CQ in slot 0 without waiting for it.
fn begin_cq(bed: &mut Bed, base: &Base) {
    let mut bytes = bed.cq_input(0, base, &|c| c);
    bytes[..2].copy_from_slice(&Opcode::CreateCq.raw().to_be_bytes());
    bed.write_command(0, 0, &bytes, 16);
    bed.ring_command(0, 1);
}

#[test]
fn a_command_waits_until_the_pages_it_calls_for_are_given() {
    let mut bed = up("pages=real");
    let base = bed.base(0);
    let (_, events) = bed.eq_by(0, 0, base.uar, bits(&[EventType::PageRequest]), 3);
    let mut cqs: Vec<u32> = (0..7).map(|_| bed.cq_by(0, 0, &base)).collect();
    assert_eq!(request(&mut bed, events, 0), None);
    begin_cq(&mut bed, &base);
    assert_eq!((request(&mut bed, events, 0), is_done(&bed)), (Some((0, 64)), false));
    // Other commands proceed meanwhile.
    let pages: Vec<u64> = (0..64).map(|i| 0x20_0000 + 4096 * i).collect();
    assert_eq!(manage(&mut bed, GIVE, 0, 63, &pages[..63]).0, Status::Ok);
    assert!(!is_done(&bed), "one is missing");
    assert_eq!(manage(&mut bed, GIVE, 0, 1, &pages[63..]).0, Status::Ok);
    assert!(is_done(&bed));
    let reply = bed.reply(0, 0, 16).expect("a reply");
    assert_eq!(reply.status(), Status::Ok);
    cqs.push(CreateCqOut::read(&reply.output).cqn());
    // The next is refused, because the driver has no pages.
    cqs.extend((0..7).map(|_| bed.cq_by(0, 0, &base)));
    begin_cq(&mut bed, &base);
    assert!(request(&mut bed, events, 1).is_some_and(|(_, pages)| pages > 64) && !is_done(&bed));
    assert_eq!(manage(&mut bed, CANT_GIVE, 0, 0, &[]).0, Status::Ok);
    refused(&bed.reply(0, 0, 16).expect("a reply"), Syndrome::PagesDenied);
    // Surplus pages are returned when objects are destroyed.
    for cqn in cqs.drain(..8) {
        assert_eq!(bed.name(0, Opcode::DestroyCq, 0, cqn).status(), Status::Ok);
    }
    assert_eq!(request(&mut bed, events, 2), Some((0, -64)));
    let (status, output) = manage(&mut bed, TAKE, 0, 64, &[]);
    assert_eq!((status, ManagePagesOut::read(&output).output_num_entries()), (Status::Ok, 64));
    let mut back: Vec<u64> =
        output[16..].chunks_exact(8).map(|page| u64::from_be_bytes(hwspec::layout::prefix(page))).collect();
    back.sort_unstable();
    assert_eq!(back, pages);
    // An adapter that is not strict requests none.
    let mut kind = up("none");
    let base = kind.base(0);
    let (_, events) = kind.eq_by(0, 0, base.uar, bits(&[EventType::PageRequest]), 3);
    for _ in 0..40 {
        kind.cq_by(0, 0, &base);
    }
    assert_eq!(request(&mut kind, events, 0), None);
}

#[test]
fn pages_are_not_given_back_at_once() {
    let mut bed = up("pages=real");
    let held = Func::lock(bed.adapter.region(), 0, &mut bed.memory).function().pages_held;
    assert!(held > 64, "{held}");
    bed.ok(0, Opcode::TeardownHca, &TeardownHcaIn::zeroed(), 16);
    let mut got = Vec::new();
    for _ in 0..3 {
        let (status, output) = manage(&mut bed, TAKE, 0, held, &[]);
        assert_eq!(status, Status::Ok);
        got.push(ManagePagesOut::read(&output).output_num_entries());
    }
    assert_eq!(got, [0, 0, held]);
}

#[test]
fn a_pf_gives_the_pages_of_its_vfs() {
    let mut bed = up("pages=real");
    let base = bed.base(0);
    let (_, events) = bed.eq_by(0, 0, base.uar, bits(&[EventType::PageRequest]), 3);
    bed.ok(0, Opcode::EnableHca, &EnableHcaIn::with(|s| s.function_id(2)), 16);
    assert_eq!(request(&mut bed, events, 0), Some((2, 64)));
    let pages: Vec<u64> = (0..64).map(|i| 0x20_0000 + 4096 * i).collect();
    assert_eq!(manage(&mut bed, GIVE, 2, 64, &pages).0, Status::Ok);
    let more = [0x28_0000, 0x28_1000];
    assert_eq!(manage(&mut bed, GIVE, 0, 2, &more).0, Status::Ok);
    bed.ok(0, Opcode::DisableHca, &DisableHcaIn::with(|s| s.function_id(2)), 16);
    assert_eq!(request(&mut bed, events, 1), Some((2, -64)));
    let (_, output) = manage(&mut bed, TAKE, 2, 100, &[]);
    assert_eq!(ManagePagesOut::read(&output).output_num_entries(), 64, "its own and no other's");
    assert!(output[16..16 + 64 * 8].chunks_exact(8).all(|page| page[5] < 0x28), "{output:?}");
    let (_, output) = manage(&mut bed, TAKE, 0, 100, &[]);
    assert_eq!(ManagePagesOut::read(&output).output_num_entries(), 2);
}

#[test]
fn a_slow_device_takes_its_time_after_a_reset_and_to_be_enabled() {
    const INITIALIZING: u64 = 0x1fc;
    let mut bed = powered("slow");
    bed.advance(4 * S);
    bed.config_write(0, 4, 2, 0b110);
    assert_eq!(bed.read32(0, INITIALIZING), u32::MAX, "silent");
    bed.advance(S / 10);
    assert_eq!(bed.read32(0, INITIALIZING), 1 << 31);
    bed.enable_pci(0);
    bed.write_command(0, 0, EnableHcaIn::with(|s| s.opcode(Opcode::EnableHca)).as_bytes(), 16);
    bed.ring_command(0, 1);
    assert!(!is_done(&bed), "nobody looks at commands yet");
    bed.advance(60 * S - S / 10);
    assert_eq!(bed.read32(0, INITIALIZING), 0);
    bed.ring_command(0, 1);
    assert!(!is_done(&bed));
    bed.advance(30 * S - 1);
    assert!(!is_done(&bed));
    bed.advance(1 << 21);
    assert!(is_done(&bed));
    assert_eq!(bed.reply(0, 0, 16).expect("a reply").status(), Status::Ok);
}

#[test]
fn a_card_has_its_own_identifiers_and_capabilities() {
    for (switches, ids, firmware, memory) in [
        ("none", [0x1017, 0x1018], 16, true),
        ("ids=cx4lx", [0x1015, 0x1016], 14, false),
        ("ids=cx6dx", [0x101d, 0x101e], 22, true),
        ("ids=bf2", [0xa2d6, 0x101e], 24, true),
    ] {
        let mut bed = powered(switches);
        bed.set_vfs(1);
        bed.bring_up(0);
        assert_eq!([0, 1].map(|fid| bed.config_read(fid, 2, 2)), ids);
        assert_eq!(bed.read32(0, 0) as u16, firmware);
        let query = QueryHcaCapIn::with(|s| s.op_mod(1));
        let out = QueryHcaCapOut::read(&bed.ok(0, Opcode::QueryHcaCap, &query, QueryHcaCapOut::SIZE));
        let caps = HcaCap::read(&out.capability());
        assert_eq!((caps.device_memory(), caps.relaxed_ordering_write()), (memory, memory), "{switches}");
    }
}
