//! User memory objects: page lists of their own, and queues in them.

use super::*;
use hwspec::{
    cmd::{rq_sq::*, srq::*, umem::*},
    context::{ServiceType, rq_sq::*, srq::RmpContext, wq::*},
};

fn umem_reply(bed: &mut Bed, uid: u16, list: &[u64], change: Change<'_, UserMemory>) -> Reply {
    let umem = UserMemory::with(|umem| change(umem.num_of_mtt(list.len() as u64)));
    bed.reply_to(0, Opcode::CreateUmem, uid, &with_list(&CreateUmemIn::with(|s| s.umem(umem)), list), 16)
}

fn umem(bed: &mut Bed, uid: u16, list: &[u64], offset: u32) -> u32 {
    umem_reply(bed, uid, list, &|umem| umem.page_offset(offset)).made()
}

/// Creates a CQ of 64 entries (one page) at byte `at` of one object, with its doorbell record at byte `dbr` of
/// another.
fn cq_over(bed: &mut Bed, uid: u16, base: &Base, ring: (u32, u64), dbr: (u32, u64)) -> Reply {
    let mut context = CqContext::zeroed();
    context.set().log_cq_size(6).uar_page(base.uar).c_eqn_or_apu_element(base.eqn);
    context.set().dbr_umem_valid(true).dbr_umem_id(dbr.0).dbr_addr(dbr.1);
    let mut input = CreateCqIn::zeroed();
    input.set().cq_context(context).cq_umem_valid(true).cq_umem_id(ring.0).cq_umem_offset(ring.1);
    bed.reply_to(0, Opcode::CreateCq, uid, input.as_bytes(), 16)
}

/// Creates a QP with queues of `1 << log` entries at byte `at` of one object, with its doorbell record at byte `dbr` of another.
fn qp_over(bed: &mut Bed, base: &Base, cqn: u32, log: u8, ring: (u32, u64), dbr: (u32, u64)) -> u32 {
    let mut context = QpContext::zeroed();
    context.set().st(ServiceType::Rc).pd(base.pd).uar_page(base.uar).cqn_snd(cqn).cqn_rcv(cqn);
    context.set().log_rq_size(log).log_rq_stride(2).log_sq_size(log);
    context.set().dbr_umem_valid(true).dbr_umem_id(dbr.0).dbr_addr(dbr.1);
    let mut input = CreateQpIn::with(|s| s.qpc(context));
    input.set().wq_umem_valid(true).wq_umem_id(ring.0).wq_umem_offset(ring.1);
    bed.reply_to(0, Opcode::CreateQp, 0, input.as_bytes(), 16).made()
}

#[test]
fn a_cq_lies_where_the_object_says() {
    let (mut bed, base) = ready();
    let pages = [0x30_0000, 0x50_0000, 0x10_0000];
    let object = umem(&mut bed, 0, &pages, 0x40);
    let cqn = cq_over(&mut bed, 0, &base, (object, 0x1000 - 0x40), (object, 0x2000)).made();
    let queried = bed.object::<QueryCqOut>(0, Opcode::QueryCq, cqn).cq_context();
    assert_eq!(queried.dbr_addr(), pages[2] + 0x40, "the record is in the third page, behind the offset");
    assert_eq!((queried.page_offset(), queried.log_page_size()), (0, 0), "the ring fills the second page");
    assert_eq!(bed.name(0, Opcode::DestroyCq, 0, cqn).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroyUmem, 0, object).status(), Status::Ok);
}

#[test]
fn a_qp_lists_the_pages_of_its_object() {
    let (mut bed, base) = ready();
    let pages = [0x30_0000, 0x50_0000, 0x10_0000];
    let (object, records) = (umem(&mut bed, 0, &pages, 0), umem(&mut bed, 0, &[0x60_0000], 0x18));
    let cqn = bed.cq_by(0, 0, &base);
    // 64 receive WQEs of 64 bytes and 64 send basic blocks: two pages.
    let qpn = qp_over(&mut bed, &base, cqn, 6, (object, 0x1000), (records, 0));
    let query = QueryQpIn::with(|s| s.qpn(qpn));
    let out = bed.ok(0, Opcode::QueryQp, &query, QueryQpOut::SIZE + 16);
    let list: Vec<u64> = out[QueryQpOut::SIZE..]
        .chunks_exact(8)
        .map(|entry| u64::from_be_bytes(hwspec::layout::prefix(entry)) & !0xfff)
        .collect();
    assert_eq!(list, pages[1..]);
    assert_eq!(QueryQpOut::read(&out).qpc().dbr_addr(), 0x60_0018);
}

#[test]
fn queues_without_a_queue_pair_and_memory_pools_lie_where_the_object_says() {
    let (mut bed, base) = ready();
    let (ring, records) =
        (umem(&mut bed, 0, &[0x30_0000, 0x50_0000], 0), umem(&mut bed, 0, &[0x60_0000], 0x18));
    let cqn = bed.cq_by(0, 0, &base);
    // 64 entries of 64 bytes: one page.
    let wq = |kind, at| {
        let mut wq =
            WorkQueue::with(|s| s.wq_type(kind).pd(base.pd).uar_page(base.uar).log_wq_sz(6).log_wq_stride(6));
        wq.set().wq_umem_valid(true).wq_umem_id(ring).wq_umem_offset(at);
        wq.set().dbr_umem_valid(true).dbr_umem_id(records).dbr_addr(8);
        wq
    };
    let rmp =
        |kind, at| CreateRmpIn::with(|s| s.ctx(RmpContext::with(|s| s.wq(wq(kind, at))))).bytes().to_vec();
    let rq =
        |at| CreateRqIn::with(|s| s.ctx(RqContext::with(|s| s.cqn(cqn).wq(wq(CYCLIC, at))))).bytes().to_vec();
    let sq =
        |at| CreateSqIn::with(|s| s.ctx(SqContext::with(|s| s.cqn(cqn).wq(wq(CYCLIC, at))))).bytes().to_vec();
    let queues = [
        (
            [Opcode::CreateRmp, Opcode::QueryRmp, Opcode::DestroyRmp],
            rmp(LINKED_LIST, 0x1000),
            rmp(LINKED_LIST, 0x1001),
        ),
        ([Opcode::CreateRmp, Opcode::QueryRmp, Opcode::DestroyRmp], rmp(CYCLIC, 0x1000), rmp(CYCLIC, 0x1001)),
        ([Opcode::CreateRq, Opcode::QueryRq, Opcode::DestroyRq], rq(0x1000), rq(0x1001)),
        ([Opcode::CreateSq, Opcode::QuerySq, Opcode::DestroySq], sq(0x1000), sq(0x1001)),
    ];
    // The context is at the same place in all outputs.
    let shown = |bed: &mut Bed, op, number| bed.object::<QueryRmpOut>(0, op, number).rmp_context().wq();
    for ([create, query, destroy], inside, outside) in queues {
        assert_eq!(
            bed.reply_to(0, create, 0, &outside, 16).refused(),
            Some(Syndrome::PageList),
            "{create:?}"
        );
        let number = bed.reply_to(0, create, 0, &inside, 16).made();
        assert_eq!(shown(&mut bed, query, number).dbr_addr(), 0x60_0020, "{create:?}");
        for object in [ring, records] {
            assert_eq!(bed.name(0, Opcode::DestroyUmem, 0, object).syndrome(), Syndrome::InUse.code());
        }
        assert_eq!(bed.name(0, destroy, 0, number).status(), Status::Ok);
    }
    for object in [ring, records] {
        assert_eq!(bed.name(0, Opcode::DestroyUmem, 0, object).status(), Status::Ok);
    }
}

#[test]
fn an_object_that_something_lies_in_cannot_be_destroyed() {
    let (mut bed, base) = ready();
    let (ring, records) = (umem(&mut bed, 0, &[0x30_0000], 0), umem(&mut bed, 0, &[0x50_0000], 0));
    let cqs: Vec<u32> = [0, 0x80]
        .map(|dbr| cq_over(&mut bed, 0, &base, (ring, 0), (records, dbr)))
        .map(|reply| CreateCqOut::read(&reply.output).cqn())
        .into();
    let qpn = qp_over(&mut bed, &base, cqs[0], 4, (ring, 0), (records, 0));
    let users = [(Opcode::DestroyQp, qpn), (Opcode::DestroyCq, cqs[0]), (Opcode::DestroyCq, cqs[1])];
    for (op, number) in users {
        for object in [ring, records] {
            let refused = bed.name(0, Opcode::DestroyUmem, 0, object);
            assert_eq!((refused.status(), refused.syndrome()), (Status::BadResState, Syndrome::InUse.code()));
        }
        assert_eq!(bed.name(0, op, 0, number).status(), Status::Ok);
    }
    for object in [ring, records] {
        assert_eq!(bed.name(0, Opcode::DestroyUmem, 0, object).status(), Status::Ok);
    }
}

#[test]
fn a_move_of_a_qp_to_reset_does_not_let_go_of_its_objects() {
    let (mut bed, base) = ready();
    let object = umem(&mut bed, 0, &[0x30_0000, 0x50_0000], 0);
    let cqn = bed.cq_by(0, 0, &base);
    let qpn = qp_over(&mut bed, &base, cqn, 4, (object, 0), (object, 0x1000));
    for op in [Opcode::Qp2Err, Opcode::Qp2Rst] {
        assert_eq!(bed.name(0, op, 0, qpn).status(), Status::Ok);
        let refused = bed.name(0, Opcode::DestroyUmem, 0, object);
        assert_eq!(refused.syndrome(), Syndrome::InUse.code());
    }
    assert_eq!(bed.name(0, Opcode::DestroyQp, 0, qpn).status(), Status::Ok);
    assert_eq!(bed.name(0, Opcode::DestroyUmem, 0, object).status(), Status::Ok);
}

#[test]
fn what_is_not_in_the_object_is_refused() {
    let (mut bed, base) = ready();
    let object = umem(&mut bed, 0, &[0x30_0000, 0x50_0000], 0);
    let cases = [
        ((object, 0x1001), (object, 0), Syndrome::PageList),
        ((object, u64::MAX), (object, 0), Syndrome::PageList),
        ((object, 0), (object, 0x2000), Syndrome::PageList),
        ((object, 0), (object, u64::MAX - 7), Syndrome::PageList),
        ((object, 0), (object, 4), Syndrome::DoorbellRecord),
        ((object + 1, 0), (object, 0), Syndrome::NoSuchUmem),
        ((object, 0), (u32::MAX, 0), Syndrome::NoSuchUmem),
    ];
    for (ring, dbr, syndrome) in cases {
        let reply = cq_over(&mut bed, 0, &base, ring, dbr);
        assert_eq!(reply.syndrome(), syndrome.code(), "{ring:x?} {dbr:x?}");
    }
}

#[test]
fn objects_that_cannot_be_are_refused() {
    let (mut bed, _) = ready();
    let list = [0x30_0000, 0x50_0000];
    let rows: [(&[u64], Change<'_, UserMemory>, Syndrome); 7] = [
        (&list, &|umem| umem.page_offset(0x1000), Syndrome::PageList),
        (&list, &|umem| umem.num_of_mtt(3), Syndrome::PageList),
        (&list, &|umem| umem.num_of_mtt(u64::MAX), Syndrome::PageList),
        (&list, &|umem| umem.log_page_size(31), Syndrome::PageSize),
        (&list, &|umem| umem.ats(true), Syndrome::PageSize),
        (&[], &|umem| umem, Syndrome::PageList),
        (&[0x30_0800], &|umem| umem, Syndrome::PageAddress),
    ];
    for (list, change, by) in rows {
        let reply = umem_reply(&mut bed, 0, list, change);
        assert_eq!(reply.refused(), Some(by), "{list:x?} {:?}", UserMemory::with(change));
    }
}

#[test]
fn an_object_is_its_user_contexts_own_and_ends_with_it() {
    let (mut bed, base) = ready();
    // More pages than the translation table holds if they were not freed.
    for _ in 0..20 {
        let uid = bed.uid(0);
        let object = umem(&mut bed, uid, &[0x30_0000; 256], 0);
        let other = bed.uid(0);
        for uid in [other, 0] {
            let reply = cq_over(&mut bed, uid, &base, (object, 0), (object, 0x1000));
            assert_eq!(reply.syndrome(), Syndrome::NoSuchUmem.code());
        }
        assert_eq!(bed.name(0, Opcode::DestroyUmem, other, object).status(), Status::BadResource);
        for uid in [uid, other] {
            bed.ok(0, Opcode::DestroyUctx, &DestroyUctxIn::with(|s| s.uid(uid)), 16);
        }
        assert_eq!(bed.name(0, Opcode::DestroyUmem, 0, object).status(), Status::BadResource);
    }
}
