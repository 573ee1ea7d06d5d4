//! Event queues, completion queues, keys, domains: creation, references between them, ownership, limits,
//! destruction.

use super::*;
use hwspec::{
    cmd::srq::*,
    context::{
        srq::{RmpContext, SrqContext, XrcSrqContext},
        wq::WorkQueue,
    },
    eqe::{CmdEvent, Eqe, EventType},
};
use ironverbs_tests::bed::Interrupt;

#[test]
fn command_completions_go_to_their_event_queue_but_not_the_one_that_creates_it() {
    let mut bed = up();
    let uar = bed.uar_by(0, 0);
    let (eqn, at) = bed.eq_by(0, 0, uar, 1 << EventType::Cmd.raw(), 3);
    assert_eq!(bed.memory.get(at, 64), [0; 64], "no event for the CREATE_EQ itself");
    bed.write32(0, u64::from(uar) << 12 | 0x40, eqn << 24);
    bed.ok(0, Opcode::Nop, &CmdIn::zeroed(), 16);
    let eqe = Eqe::read(bed.memory.get(at, 64));
    assert_eq!(eqe.event_type(), EventType::Cmd);
    assert_eq!(eqe.data::<CmdEvent>().command_completion_vector(), 1);
    let raised: Vec<_> = bed.memory.interrupts.drain(..).collect();
    assert_eq!(raised, [Interrupt { fid: 0, vector: 3, address: 0xfee0_0000, data: 3 }]);
    bed.ok(0, Opcode::Nop, &CmdIn::zeroed(), 16);
    assert!(bed.memory.interrupts.is_empty(), "not armed again");
    bed.write32(0, u64::from(uar) << 12 | 0x48, eqn << 24 | 1);
    assert!(bed.memory.interrupts.is_empty(), "the consumer index alone does not arm");
    bed.write32(0, u64::from(uar) << 12 | 0x40, eqn << 24 | 1);
    assert_eq!(bed.memory.interrupts.len(), 1, "armed behind its producer it fires at once");
}

#[test]
fn a_masked_vector_is_pending_until_it_is_unmasked() {
    let mut bed = up();
    let uar = bed.uar_by(0, 0);
    let (eqn, _) = bed.eq_by(0, 0, uar, 1 << EventType::Cmd.raw(), 5);
    let control = hwspec::pcie::MSIX_TABLE as u64 + 16 * 5 + 12;
    bed.write32(0, control, 1u32.swap_bytes());
    bed.write32(0, u64::from(uar) << 12 | 0x40, eqn << 24);
    bed.ok(0, Opcode::Nop, &CmdIn::zeroed(), 16);
    assert!(bed.memory.interrupts.is_empty());
    assert_eq!(bed.read32(0, hwspec::pcie::MSIX_PBA as u64).swap_bytes(), 1 << 5);
    bed.write32(0, control, 0);
    assert_eq!(bed.memory.interrupts.len(), 1);
    assert_eq!(bed.read32(0, hwspec::pcie::MSIX_PBA as u64), 0);
}

#[test]
fn an_event_queue_shows_what_it_was_created_with_and_goes_when_nothing_refers_to_it() {
    let (mut bed, base) = ready();
    let query = QueryEqIn::with(|s| s.eq_number(base.eqn as u8));
    let out = QueryEqOut::read(&bed.ok(0, Opcode::QueryEq, &query, QueryEqOut::SIZE)).eq_context_entry();
    assert_eq!((out.log_eq_size(), out.uar_page(), out.intr()), (4, base.uar, 1));
    let cqn = bed.cq_by(0, 0, &base);
    let busy = bed.name(0, Opcode::DestroyEq, 0, base.eqn);
    assert_eq!((busy.status(), busy.syndrome()), (Status::BadResState, Syndrome::InUse.code()));
    assert_eq!(bed.name(0, Opcode::DeallocUar, 0, base.uar).status(), Status::BadResState);
    assert_eq!(bed.name(0, Opcode::DestroyCq, 0, cqn).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroyEq, 0, base.eqn).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroyEq, 0, base.eqn).status(), Status::BadResource);
    assert_eq!(bed.name(0, Opcode::DeallocUar, 0, base.uar).status(), Status::Ok);
}

#[test]
fn a_completion_queue_is_checked_shown_and_modified() {
    let (mut bed, base) = ready();
    let b = &mut bed;
    let rows: Refusals<'_, CqContext> = &[
        (&|c| c.log_cq_size(23), Some(Syndrome::QueueSize)),
        (&|c| c.log_cq_size(7), Some(Syndrome::PageList)), // two pages for one
        (&|c| c.page_offset(1), Some(Syndrome::PageList)), // it no longer fits
        (&|c| c.c_eqn_or_apu_element(99), Some(Syndrome::NoSuchEq)),
        (&|c| c.uar_page(999), Some(Syndrome::NoSuchUar)),
        (&|c| c.dbr_addr(3), Some(Syndrome::DoorbellRecord)),
        (&|c| c.log_page_size(31), Some(Syndrome::PageSize)),
    ];
    for &(change, by) in rows {
        assert_eq!(b.cq_reply(0, 0, &base, change).refused(), by, "{:?}", CqContext::with(change));
    }
    let cqn = b.cq_by(0, 0, &base);
    let mut modify = ModifyCqIn::zeroed();
    let context = CqContext::with(|s| s.cq_period(12).cq_max_count(34));
    modify.set().cqn(cqn).modify_field_select_resize_field_select([0, 0, 0, 3]).cq_context(context);
    b.ok(0, Opcode::ModifyCq, &modify, 16);
    let queried = b.object::<QueryCqOut>(0, Opcode::QueryCq, cqn).cq_context();
    assert_eq!((queried.cq_period(), queried.cq_max_count(), queried.log_cq_size()), (12, 34, 6));
    modify.set().modify_field_select_resize_field_select([1, 0, 0, 0]);
    assert_eq!(b.status(0, Opcode::ModifyCq, &modify, 16), Status::BadParam);
    modify.set().op_mod(1);
    assert_eq!(b.status(0, Opcode::ModifyCq, &modify, 16), Status::BadParam, "resizing is not offered");
}

#[test]
fn a_key_holds_the_whole_region_or_is_refused() {
    let mut bed = up();
    let pd = bed.pd_by(0, 0);
    let two = [0x20_0000, 0x30_0000];
    let index = bed.mkey_reply(0, 0, &two, &|c| c.pd(pd).start_addr(0x7000_0123).len(0x1e00)).made();
    let query = QueryMkeyIn::with(|s| s.mkey_index(index).pg_access(true));
    let out = QueryMkeyOut::read(&bed.ok(0, Opcode::QueryMkey, &query, QueryMkeyOut::SIZE));
    let queried = out.memory_key_mkey_entry();
    assert_eq!((queried.start_addr(), queried.len(), queried.mkey_7_0()), (0x7000_0123, 0x1e00, 0x5a));
    assert_eq!(out.bsf0_klm0_pas_mtt0_1()[..8], (0x20_0000u64 | 3).to_be_bytes());
    assert_eq!(bed.name(0, Opcode::DeallocPd, 0, pd).status(), Status::BadResState);

    let rows: Refusals<'_, MkeyContext> = &[
        // Starting in the middle of a page, a length of two pages touches three.
        (&|c| c.start_addr(0x800), Some(Syndrome::PageList)),
        (&|c| c.len(1 << 48), Some(Syndrome::MkeyLength)),
        (&|c| c.start_addr(u64::MAX - 1), Some(Syndrome::MkeyLength)),
        (&|c| c.length64(true), Some(Syndrome::MkeyLength)),
        (&|c| c.log_page_size(11), Some(Syndrome::PageSize)),
        (&|c| c.access_mode_1_0(3), Some(Syndrome::AccessMode)),
        (&|c| c.pd(pd + 1), Some(Syndrome::NoSuchPd)),
        (&|c| c.translations_octword_size(1 << 30), Some(Syndrome::NoTranslation)),
        // Refused before any entry is made.
        (&|c| c.translations_octword_size(1 << 29), Some(Syndrome::NoTranslation)),
    ];
    for &(change, by) in rows {
        let reply = bed.mkey_reply(0, 0, &two, &|c| change(c.pd(pd)));
        assert_eq!(reply.refused(), by, "{:?}", MkeyContext::with(change));
    }
    let reply = bed.mkey_reply(0, 0, &[0x20_0008, 0], &|c| c.pd(pd));
    assert_eq!(reply.refused(), Some(Syndrome::PageAddress));
    assert_eq!(bed.name(0, Opcode::DestroyMkey, 0, index).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroyMkey, 0, index).status(), Status::BadResource);
    assert_eq!(bed.name(0, Opcode::DeallocPd, 0, pd).status(), Status::Ok);
}

#[test]
fn counter_sets_count_from_their_allocation() {
    let mut bed = up();
    let out = bed.ok(0, Opcode::AllocQCounter, &CmdIn::zeroed(), 16);
    let set = AllocQCounterOut::read(&out).counter_set_id();
    let query = QueryQCounterIn::with(|s| s.counter_set_id(set).clear(true));
    let out = bed.ok(0, Opcode::QueryQCounter, &query, QueryQCounterOut::SIZE);
    assert_eq!(QueryQCounterOut::read(&out), QueryQCounterOut::zeroed());
    assert_eq!(bed.name(0, Opcode::DeallocQCounter, 0, set.into()).status(), Status::Ok);
    assert_eq!(bed.status(0, Opcode::QueryQCounter, &query, QueryQCounterOut::SIZE), Status::BadResource);
}

#[test]
fn shared_receive_queues_keep_their_state_and_are_told_apart() {
    let (mut bed, base) = ready();
    let cqn = bed.cq_by(0, 0, &base);
    let at = bed.memory.alloc(0, 4 * PAGE);
    let srq = SrqContext::with(|s| s.log_srq_size(6).log_rq_stride(2).pd(base.pd).dbr_addr(at + 0x3000));
    let input = CreateSrqIn::with(|s| s.srq_context_entry(srq));
    let srqn = bed.reply_to(0, Opcode::CreateSrq, 0, &with_list(&input, &[at]), 16).made();

    let out = bed.ok(0, Opcode::AllocXrcd, &CmdIn::zeroed(), 16);
    let xrcd = AllocXrcdOut::read(&out).xrcd();
    let mut xrc = XrcSrqContext::zeroed();
    xrc.set().log_xrc_srq_size(6).log_rq_stride(2).pd(base.pd).cqn(cqn).xrcd(xrcd).user_index(5);
    let input = CreateXrcSrqIn::with(|s| s.xrc_srq_context_entry(xrc));
    let xrc_srqn = bed.reply_to(0, Opcode::CreateXrcSrq, 0, &with_list(&input, &[at + 4096]), 16).made();

    let wq = WorkQueue::with(|s| s.pd(base.pd).log_wq_sz(6).log_wq_stride(6));
    let rmp = RmpContext::with(|s| s.wq(wq));
    let input = CreateRmpIn::with(|s| s.ctx(rmp));
    let rmpn = bed.reply_to(0, Opcode::CreateRmp, 0, &with_list(&input, &[at + 8192]), 16).made();

    let mut arm = ArmRqIn::zeroed();
    arm.set().op_mod(1).srq_number(srqn).lwm(7);
    bed.ok(0, Opcode::ArmRq, &arm, 16);
    arm.set().lwm(64);
    assert_eq!(bed.status(0, Opcode::ArmRq, &arm, 16), Status::BadParam);
    let queried = bed.object::<QuerySrqOut>(0, Opcode::QuerySrq, srqn).srq_context_entry();
    assert_eq!((queried.lwm(), queried.log_srq_size(), queried.log_rq_stride()), (7, 6, 2));
    let queried = bed.object::<QueryRmpOut>(0, Opcode::QueryRmp, rmpn).rmp_context();
    assert_eq!((queried.wq().log_wq_sz(), queried.wq().log_wq_stride()), (6, 6));

    assert_eq!(bed.name(0, Opcode::DestroySrq, 0, xrc_srqn).status(), Status::BadResource);
    assert_eq!(bed.name(0, Opcode::DeallocXrcd, 0, xrcd).status(), Status::BadResState);
    assert_eq!(bed.name(0, Opcode::DestroyXrcSrq, 0, xrc_srqn).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroyRmp, 0, rmpn).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroySrq, 0, srqn).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DeallocXrcd, 0, xrcd).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroyCq, 0, cqn).status(), Status::Ok);
}
