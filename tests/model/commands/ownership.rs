//! The rights to use objects: table limits, functions, user contexts, exited parties.

use super::*;
use devmodel::{host::Party, state::GroupRow};
use hwspec::{
    cmd::{CmdOut, mcg::AttachToMcgIn, memic::*, rq_sq::*, srq::*},
    context::{AccessMode, ArmState, ServiceType, rq_sq::*, srq::XrcSrqContext, wq::*},
    layout::Bits,
    pcie::MEMIC_BAR,
};
use ironverbs_tests::bed::Av;

#[test]
fn every_table_ends_at_its_advertised_limit_and_is_reusable() {
    let mut bed = up();
    let mut pds = Vec::new();
    let full = loop {
        let reply = bed.reply_to(0, Opcode::AllocPd, 0, CmdIn::zeroed().as_bytes(), 16);
        if reply.status() != Status::Ok {
            break reply;
        }
        pds.push(AllocPdOut::read(&reply.output).pd());
    };
    assert_eq!((full.status(), full.syndrome()), (Status::Lim, Syndrome::TableFull.code()));
    assert_eq!(pds.len(), 64, "log_max_pd is 6");
    for pd in &pds {
        assert_eq!(bed.name(0, Opcode::DeallocPd, 0, *pd).status(), Status::Ok);
    }
    assert_eq!(bed.pd_by(0, 0), pds[0], "the number freed longest ago comes first");
}

#[test]
fn translation_entries_run_out_with_no_resources_and_come_back() {
    let mut bed = up();
    let pd = bed.pd_by(0, 0);
    // The table has 4,096 entries. A key in the free state occupies none until entries are loaded.
    let free = bed.mkey_reply(0, 0, &[], &|c| c.pd(pd).free(true).translations_octword_size(1 << 20));
    assert_eq!(free.status(), Status::Ok);
    let mut keys = Vec::new();
    let full = loop {
        let reply = bed.mkey_reply(0, 0, &[0x20_0000, 0x20_1000], &|c| {
            c.pd(pd).len(8192).log_page_size(12).translations_octword_size(256)
        });
        if reply.status() != Status::Ok {
            break reply;
        }
        keys.push(CreateMkeyOut::read(&reply.output).mkey_index());
    };
    assert_eq!(full.status(), Status::NoResources);
    assert_eq!(keys.len(), 7, "beside the queue of pages");
    assert_eq!(bed.name(0, Opcode::DestroyMkey, 0, keys[3]).status(), Status::Ok);
    let again = bed.mkey_reply(0, 0, &[0x20_0000, 0x20_1000], &|c| {
        c.pd(pd).len(8192).log_page_size(12).translations_octword_size(256)
    });
    assert_eq!(again.status(), Status::Ok);
}

#[test]
fn no_function_reaches_objects_of_another() {
    let mut bed = with_vfs();
    let base = [bed.base(0), bed.base(1)];
    let cqn = bed.cq_by(1, 0, &base[1]);
    assert_eq!(bed.name(0, Opcode::DestroyCq, 0, cqn).status(), Status::BadResource);
    assert_eq!(bed.name(2, Opcode::DeallocPd, 0, base[1].pd).status(), Status::BadResource);
    let reply = bed.mkey_reply(0, 0, &[0x20_0000], &|c| c.pd(base[1].pd));
    assert_eq!(reply.syndrome(), Syndrome::NoSuchPd.code());
    assert_eq!(bed.name(1, Opcode::DestroyCq, 0, cqn).status(), Status::Ok);
}

#[test]
fn a_user_context_reaches_its_own_objects_only_and_takes_them_with_it() {
    let (mut bed, base) = ready();
    let (a, b) = (bed.uid(0), bed.uid(0));
    let pd = bed.pd_by(0, a);
    let cqn = bed.cq_by(0, a, &base);
    assert_eq!(bed.name(0, Opcode::DeallocPd, b, pd).status(), Status::BadResource);
    assert_eq!(bed.name(0, Opcode::DestroyCq, b, cqn).status(), Status::BadResource);
    let reply = bed.mkey_reply(0, b, &[0x20_0000], &|c| c.pd(pd));
    assert_eq!(reply.syndrome(), Syndrome::NoSuchPd.code());
    let reply = bed.mkey_reply(0, b, &[0x20_0000], &|c| c.pd(base.pd));
    assert_eq!(reply.syndrome(), Syndrome::NoSuchPd.code(), "nor those of the function's driver");
    let key = bed.mkey_reply(0, a, &[0x20_0000], &|c| c.pd(pd)).made();
    // A command reserved to the function's driver, and a uid that does not exist.
    assert_eq!(
        bed.reply_to(0, Opcode::CreateUctx, a, CreateUctxIn::zeroed().as_bytes(), 16).status(),
        Status::BadResource
    );
    assert_eq!(
        bed.reply_to(0, Opcode::AllocPd, 77, CmdIn::zeroed().as_bytes(), 16).status(),
        Status::BadResource
    );

    assert_eq!(bed.name(0, Opcode::DestroyUctx, 0, a.into()).status(), Status::Ok);
    for (op, number) in [(Opcode::DestroyCq, cqn), (Opcode::DeallocPd, pd), (Opcode::DestroyMkey, key)] {
        assert_eq!(bed.name(0, op, 0, number).status(), Status::BadResource, "{op:?}");
    }
    assert_eq!(bed.name(0, Opcode::DestroyUctx, 0, a.into()).status(), Status::BadResource);
    assert_eq!(bed.name(0, Opcode::DestroyEq, 0, base.eqn).status(), Status::Ok, "no reference is left");
    assert_eq!(bed.name(0, Opcode::DestroyUctx, 0, b.into()).status(), Status::Ok);
}

/// As in Linux: its driver counts the receive queues of programs in the port's set, which it allocated at uid 0.
#[test]
fn a_receive_queue_counts_in_a_set_of_its_context_or_of_the_functions_driver() {
    const COUNTER_SET: u64 = 1 << 3;
    let mut bed = powered("uid=strict");
    bed.bring_up(0);
    let (uid, other) = (bed.uid(0), bed.uid(0));
    let uar = bed.uar_by(0, uid);
    let base = Base { pd: bed.pd_by(0, uid), uar, eqn: bed.eq_by(0, uid, uar, 0, 0).0, eq_memory: 0 };
    let (cqn, at) = (bed.cq_by(0, uid, &base), bed.memory.alloc(0, 2 * PAGE));
    let wq = WorkQueue::with(|s| s.wq_type(CYCLIC).pd(base.pd).dbr_addr(at + 4096).log_wq_stride(4));
    let [shared, own, foreign] = [0, uid, other].map(|uid| {
        let made = bed.reply_to(0, Opcode::AllocQCounter, uid, CmdIn::zeroed().as_bytes(), 16);
        AllocQCounterOut::read(&made.output).counter_set_id()
    });
    for (set, refused) in [(shared, None), (own, None), (foreign, Some(Syndrome::NoSuchCounter))] {
        let context = |set| RqContext::with(|s| s.cqn(cqn).counter_set_id(set).wq(wq));
        let create = |set| with_list(&CreateRqIn::with(|s| s.ctx(context(set))), &[at]);
        assert_eq!(bed.reply_to(0, Opcode::CreateRq, uid, &create(set), 16).refused(), refused);
        let rqn = bed.reply_to(0, Opcode::CreateRq, uid, &create(0), 16).made();
        let mut ready = context(set);
        ready.set().state(READY);
        let modify = ModifyRqIn::with(|s| s.rqn(rqn).modify_bitmask(COUNTER_SET).ctx(ready));
        assert_eq!(bed.reply_to(0, Opcode::ModifyRq, uid, modify.as_bytes(), 16).refused(), refused);
    }
}

#[test]
fn memberships_of_groups_end_with_the_user_context_of_their_queue_pair() {
    let (mut bed, base) = ready();
    let uid = bed.uid(0);
    let own = Base { pd: bed.pd_by(0, uid), uar: bed.uar_by(0, uid), ..base };
    let cqn = bed.cq_by(0, uid, &own);
    let made = bed.qp_reply(0, uid, &own, cqn, &|c| c.st(ServiceType::Ud));
    assert_eq!(made.status(), Status::Ok);
    let qpn = CreateQpOut::read(&made.output).qpn();
    let attach = AttachToMcgIn::with(|s| s.qpn(qpn).multicast_gid(Av::group_gid(7)));
    assert_eq!(bed.reply_to(0, Opcode::AttachToMcg, uid, attach.as_bytes(), 16).status(), Status::Ok);
    let memberships = |bed: &Bed| bed.adapter.region().objects::<GroupRow>(0).count();
    assert_eq!(memberships(&bed), 1);
    assert_eq!(bed.name(0, Opcode::DestroyUctx, 0, uid.into()).status(), Status::Ok);
    assert_eq!(memberships(&bed), 0);
}

#[test]
fn more_user_contexts_than_event_queues_have_numbers_each_have_their_own() {
    const CONTEXTS: u16 = 600;
    let mut bed = up();
    let own = bed.base(0).eqn;
    let all: Vec<(u16, u32, u32)> = (0..CONTEXTS)
        .map(|vector| {
            let uid = bed.uid(0);
            let uar = bed.uar_by(0, uid);
            (uid, uar, bed.eq_by(0, uid, uar, 0, vector % 64).0)
        })
        .collect();
    assert!(all.iter().all(|(_, _, eqn)| (1..256).contains(eqn)), "numbers have eight bits");
    assert!(all[1..].iter().all(|one| one.2 != own), "the driver's own are nobody else's");
    assert_eq!(bed.name(0, Opcode::DestroyEq, 0, own).status(), Status::Ok);
    let query = |bed: &mut Bed, uid: u16, eqn: u32| {
        let input = QueryEqIn::with(|s| s.eq_number(eqn as u8));
        let reply = bed.reply_to(0, Opcode::QueryEq, uid, input.as_bytes(), QueryEqOut::SIZE);
        assert_eq!(reply.status(), Status::Ok);
        QueryEqOut::read(&reply.output).eq_context_entry()
    };
    let armed = |bed: &mut Bed| -> Vec<u16> {
        let is =
            |bed: &mut Bed, (uid, _, eqn)| query(bed, uid, eqn).st() == ArmState::Armed.into_bits() as u8;
        all.iter().filter(|one| is(bed, **one)).map(|(uid, ..)| *uid).collect()
    };
    // The last ones reuse numbers of earlier ones.
    let same = |a: &&(u16, u32, u32)| a.2 == all[599].2;
    assert!(all.iter().filter(same).count() > 1);
    assert!(armed(&mut bed).is_empty());
    let (uid, uar, eqn) = all[599];
    bed.write32(0, u64::from(uar) << 12 | 0x40, eqn << 24);
    assert_eq!(armed(&mut bed), [uid], "a doorbell page arms the queue of its own context");
    for (at, (uid, uar, eqn)) in all.iter().enumerate() {
        let context = query(&mut bed, *uid, *eqn);
        assert_eq!((context.uar_page(), context.intr()), (*uar, at as u16 % 64));
    }
    // A CQ uses the queue of its own context, too.
    let base = Base { pd: 0, uar, eqn, eq_memory: 0 };
    let cqn = bed.cq_by(0, uid, &base);
    let destroy = |bed: &mut Bed, uid: u16| bed.name(0, Opcode::DestroyEq, uid, eqn).status();
    assert_ne!(destroy(&mut bed, uid), Status::Ok, "the CQ refers to it");
    assert_eq!(bed.name(0, Opcode::DestroyCq, uid, cqn).status(), Status::Ok);
    assert_eq!(destroy(&mut bed, 0), Status::BadResState, "nobody says whose is meant");
    assert_eq!(destroy(&mut bed, uid), Status::Ok);
    assert_eq!(destroy(&mut bed, uid), Status::BadResource, "nor does it reach the one of another context");
    // The numbers within one context are unique, whatever rows are free.
    let mine: Vec<u32> = (0..40).map(|_| bed.eq_by(0, uid, uar, 0, 0).0).collect();
    let distinct: std::collections::BTreeSet<_> = mine.iter().collect();
    assert_eq!(distinct.len(), mine.len());
}

#[test]
fn what_a_dead_party_owned_is_reaped() {
    let (mut bed, base) = ready();
    let uid = bed.uid(0);
    let cqn = bed.cq_by(0, uid, &base);
    assert_eq!(bed.adapter.reap(&mut bed.memory, Party(9), 1), Some((0, 1)), "somebody else died");
    assert_eq!(bed.adapter.reap(&mut bed.memory, Party(1), 1).map(|(ended, _)| ended), Some(1));
    assert_eq!(bed.name(0, Opcode::DestroyCq, 0, cqn).status(), Status::BadResource);
    assert_eq!(bed.name(0, Opcode::DeallocPd, 0, base.pd).status(), Status::Ok, "the driver's own stay");
}

/// Creates an XRC SRQ with a CQ and a domain, in the XRC domain `xrcd`, by the function's driver.
fn srq_of_xrc(bed: &mut Bed, (pd, cqn, xrcd): (u32, u32, u32)) -> u32 {
    let at = bed.memory.alloc(0, PAGE);
    let context = XrcSrqContext::with(|s| s.log_xrc_srq_size(6).log_rq_stride(2).pd(pd).cqn(cqn).xrcd(xrcd));
    let input = CreateXrcSrqIn::with(|s| s.xrc_srq_context_entry(context));
    bed.reply_to(0, Opcode::CreateXrcSrq, 0, &with_list(&input, &[at]), 16).made()
}

/// As in Linux: XRC SRQs, their senders, device memory and its keys are at uid 0, regardless of their owner.
#[test]
fn what_is_made_at_uid_0_out_of_a_contexts_objects_ends_with_it() {
    for reaped in [false, true] {
        let mut bed = powered("uid=strict,reserved=zero");
        bed.bring_up(0);
        let own = bed.base(0);
        let own_cq = bed.cq_by(0, 0, &own);
        let out = bed.ok(0, Opcode::AllocXrcd, &CmdIn::zeroed(), 16);
        let xrcd = AllocXrcdOut::read(&out).xrcd();
        let placeholder = srq_of_xrc(&mut bed, (own.pd, own_cq, xrcd));
        let uid = bed.uid(0);
        let uar = bed.uar_by(0, uid);
        let eqn = bed.eq_by(0, uid, uar, 0, 0).0;
        let base = Base { pd: bed.pd_by(0, uid), uar, eqn, eq_memory: 0 };
        let cqn = bed.cq_by(0, uid, &base);
        let srqn = srq_of_xrc(&mut bed, (base.pd, cqn, xrcd));
        let sender = |bed: &mut Bed, uid: u16| {
            let of: Change<'_, QpContext> =
                &|c| c.st(ServiceType::Xrc).rq_type(1).srqn_rmpn_xrqn(placeholder).cqn_rcv(own_cq).xrcd(xrcd);
            bed.qp_reply(0, uid, &base, cqn, of)
        };
        assert_eq!(sender(&mut bed, uid).status(), Status::BadResource, "the XRC domain is at uid 0");
        let qpn = sender(&mut bed, 0).made();
        let alloc = AllocMemicIn::with(|s| s.range_start_addr(MEMIC_BAR).range_size(4096).memic_size(4096));
        let with_uid = bed.reply_to(0, Opcode::AllocMemic, uid, alloc.as_bytes(), AllocMemicOut::SIZE);
        assert_eq!(with_uid.syndrome(), Syndrome::Reserved.code(), "it has no field for that");
        bed.ok(0, Opcode::AllocMemic, &alloc, AllocMemicOut::SIZE);
        let memic = |bed: &mut Bed, uid: u16| {
            let mode = AccessMode::Memic.raw();
            bed.mkey_reply(0, uid, &[], &|c| {
                c.pd(base.pd).access_mode_1_0(mode & 3).access_mode_4_2(mode >> 2);
                c.start_addr(MEMIC_BAR).len(64).log_page_size(0)
            })
        };
        assert_ne!(memic(&mut bed, uid).status(), Status::Ok, "the memory is at uid 0");
        let key = memic(&mut bed, 0).made();

        if reaped {
            assert!(bed.adapter.reap(&mut bed.memory, Party(1), 1).is_some());
        } else {
            bed.ok(0, Opcode::DestroyUctx, &DestroyUctxIn::with(|s| s.uid(uid)), CmdOut::SIZE);
        }
        for (op, number) in
            [(Opcode::DestroyXrcSrq, srqn), (Opcode::DestroyQp, qpn), (Opcode::DestroyMkey, key)]
        {
            assert_eq!(bed.name(0, op, 0, number).status(), Status::BadResource, "{op:?}");
        }
        // Device memory is attributed to the party that requested it, and a context that ends regularly
        // leaves it allocated.
        let again = bed.status(0, Opcode::AllocMemic, &alloc, AllocMemicOut::SIZE);
        assert_eq!(again == Status::Ok, reaped, "{again:?}");
        // Objects that the driver made from its own objects stay until it destroys them.
        assert_eq!(bed.name(0, Opcode::DestroyXrcSrq, 0, placeholder).status(), Status::Ok);
        assert_eq!(bed.name(0, Opcode::DeallocXrcd, 0, xrcd).status(), Status::Ok);
        assert_eq!(bed.name(0, Opcode::DestroyCq, 0, own_cq).status(), Status::Ok);
    }
}
