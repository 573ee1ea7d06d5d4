//! Multicast groups: joined at the administrator, received by all attached QPs (IBTA 15.2.5.17, 10.5).

use super::common::*;
use devmodel::identity;
use hwspec::wire::mad::sa::{McMemberRecord, SaAttribute, Selector, join_state, member, status};

/// IPoIB's broadcast group of the default partition (RFC 4391, 4).
const BROADCAST: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
const GROUP: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const JOIN: u64 = member::MGID | member::PORT_GID | member::PKEY | member::JOIN_STATE;
const CREATE: u64 = JOIN | member::QKEY | member::SL | member::FLOW_LABEL | member::TRAFFIC_CLASS;

fn record(fid: u8, mgid: [u8; 16], state: u8) -> McMemberRecord {
    McMemberRecord::with(|s| s.mgid(mgid).port_gid(identity::port_gid(0, fid)).pkey(0xffff).join_state(state))
}

fn query(
    bed: &mut Bed,
    by: &General,
    method: Method,
    mask: u64,
    record: &McMemberRecord,
) -> (u16, McMemberRecord) {
    let answer = by.query(bed, method, SaAttribute::McMemberRecord, mask, record);
    (answer.header().status(), McMemberRecord::read(&answer.data()))
}

/// RFC 4391, 5: the broadcast group already exists when a port joins it.
#[test]
fn ipoib_finds_its_broadcast_group() {
    let (mut bed, a) = general();
    let b = General::new(&mut bed, 2);
    let (bad, first) = query(&mut bed, &a, Method::Set, JOIN, &record(1, BROADCAST, join_state::FULL));
    assert_eq!((bad, first.qkey(), first.mtu(), first.pkey()), (0, 0x0b1b, 4, 0xffff));
    assert_eq!((first.mlid() >= 0xc000, first.join_state(), first.scope()), (true, 1, 2));
    let (_, second) = query(&mut bed, &b, Method::Set, JOIN, &record(2, BROADCAST, join_state::FULL));
    assert_eq!((second.mlid(), second.port_gid()), (first.mlid(), identity::port_gid(0, 2)));
}

/// 15.2.5.17.2, o15-0.2.4: other groups are created when a full member joins with all required attributes.
#[test]
fn a_group_is_created_by_a_join_with_all_its_attributes() {
    let (mut bed, a) = general();
    let b = General::new(&mut bed, 2);
    let full = record(1, GROUP, join_state::FULL);
    assert_eq!(query(&mut bed, &a, Method::Set, JOIN, &full).0, status::INSUFFICIENT_COMPONENTS);
    let non = record(1, GROUP, join_state::NON_MEMBER);
    assert_eq!(query(&mut bed, &a, Method::Set, CREATE, &non).0, status::REQ_INVALID);
    let mut wanted = full;
    wanted.set().qkey(77).sl(1).flow_label(5).traffic_class(6).mtu_selector(Selector::Exactly).mtu(5);
    let (ok, made) = query(&mut bed, &a, Method::Set, CREATE | member::MTU_SELECTOR | member::MTU, &wanted);
    assert_eq!((ok, made.qkey(), made.sl(), made.flow_label(), made.mtu()), (0, 77, 1, 5, 5));
    // A join returns the attributes of the group, and is refused if the request's attributes differ.
    let mut other = record(2, GROUP, join_state::SEND_ONLY_FULL);
    let (ok, joined) = query(&mut bed, &b, Method::Set, JOIN, &other);
    assert_eq!((ok, joined.qkey(), joined.mlid(), joined.join_state()), (0, 77, made.mlid(), 8));
    other.set().qkey(78);
    assert_eq!(query(&mut bed, &b, Method::Set, JOIN | member::QKEY, &other).0, status::REQ_INVALID);
    // The group is visible to all ports, but not its members.
    let which = McMemberRecord::with(|s| s.mlid(made.mlid()));
    let (ok, seen) = query(&mut bed, &b, Method::Get, member::MLID, &which);
    assert_eq!((ok, seen.mgid(), seen.port_gid(), seen.join_state()), (0, GROUP, [0; 16], 0));
}

/// o15-0.2.4: a group belongs to a partition and only members of that may join it; the same holds for IPoIB's broadcast group of a
/// partition.
#[test]
fn a_group_is_for_members_of_its_partition() {
    let (mut bed, a) = general();
    let b = General::new(&mut bed, 2);
    let join = |bed: &mut Bed, fid| set(bed, fid, smp::attribute::PKEY_TABLE, &[0xff, 0xff, 0x80, 0x05]);
    join(&mut bed, 1);
    let mut mgid = BROADCAST;
    mgid[4..6].copy_from_slice(&[0x80, 0x05]);
    let wanted = |fid: u8, pkey: u16| {
        let mut record = record(fid, mgid, join_state::FULL);
        record.set().pkey(pkey);
        record
    };
    let (ok, made) = query(&mut bed, &a, Method::Set, JOIN, &wanted(1, 0x8005));
    assert_eq!((ok, made.pkey(), made.qkey()), (0, 0x8005, 0x0b1b));
    assert_eq!(query(&mut bed, &b, Method::Set, JOIN, &wanted(2, 0x8005)).0, status::REQ_INVALID);
    let silent = JOIN & !member::PKEY;
    assert_eq!(query(&mut bed, &b, Method::Set, silent, &wanted(2, 0)).0, status::REQ_INVALID);
    join(&mut bed, 2);
    let (ok, joined) = query(&mut bed, &b, Method::Set, JOIN, &wanted(2, 0x0005));
    assert_eq!((ok, joined.mlid(), joined.pkey()), (0, made.mlid(), 0x8005));
    let mut foreign = record(1, GROUP, join_state::FULL);
    foreign.set().pkey(0x8006);
    assert_eq!(query(&mut bed, &a, Method::Set, CREATE, &foreign).0, status::REQ_INVALID);
}

#[test]
fn a_group_ends_with_its_last_member() {
    let (mut bed, a) = general();
    let b = General::new(&mut bed, 2);
    for (by, fid) in [(&a, 1), (&b, 2)] {
        assert_eq!(query(&mut bed, by, Method::Set, CREATE, &record(fid, GROUP, join_state::FULL)).0, 0);
    }
    let there = |bed: &mut Bed| query(bed, &a, Method::Get, member::MGID, &record(1, GROUP, 0)).0 == 0;
    assert_eq!(query(&mut bed, &a, Method::Delete, JOIN, &record(1, GROUP, join_state::FULL)).0, 0);
    assert!(there(&mut bed));
    let again = query(&mut bed, &a, Method::Delete, JOIN, &record(1, GROUP, join_state::FULL));
    assert_eq!(again.0, status::REQ_INVALID, "it has left");
    assert_eq!(
        query(&mut bed, &a, Method::Delete, JOIN, &record(2, GROUP, 1)).0,
        status::INVALID_GID,
        "not its port"
    );
    assert!(there(&mut bed));
    // A port that is reset leaves all its groups.
    bed.reset(2);
    assert!(!there(&mut bed));
}

/// A single port cannot use up all groups, and releases all it has.
#[test]
fn a_port_has_its_share_of_groups() {
    let (mut bed, a) = general();
    let b = General::new(&mut bed, 2);
    let group = |n: u16| {
        let mut gid = GROUP;
        gid[13..15].copy_from_slice(&n.to_be_bytes());
        gid
    };
    let made =
        |bed: &mut Bed, n| query(bed, &a, Method::Set, CREATE, &record(1, group(n), join_state::FULL)).0;
    let taken = (0..2000).take_while(|n| made(&mut bed, *n) == 0).count();
    assert_eq!((taken, made(&mut bed, 2000)), (256, status::NO_RESOURCES));
    assert_eq!(query(&mut bed, &b, Method::Set, CREATE, &record(2, group(2000), join_state::FULL)).0, 0);
    bed.reset(1);
    let left = |bed: &mut Bed, n| query(bed, &b, Method::Get, member::MGID, &record(2, group(n), 0)).0 == 0;
    assert_eq!((0..=2000).filter(|n| left(&mut bed, *n)).collect::<Vec<u16>>(), [2000]);
}

/// 10.5.2: a message to a group reaches all QPs attached to it, on every function, and no other.
#[test]
fn a_multicast_reaches_all_attached_queue_pairs() {
    let mut bed = Bed::infiniband();
    let qps: Vec<Qp> = [1, 2, 2, 3].map(|fid| bed.datagram(fid, ServiceType::Ud, 7)).to_vec();
    let to: Vec<Mr> = qps.iter().map(|qp| bed.mr(qp.fid, 128, Access::LOCAL)).collect();
    for (qp, mr) in qps.iter().zip(&to) {
        bed.post_recv(*qp, &[mr.sge()]);
    }
    for qp in &qps[1..3] {
        bed.attach(*qp, GROUP).expect("ATTACH_TO_MCG");
    }
    let from = bed.mr(1, 64, Access::LOCAL);
    let data = bed.pattern(from, 3);
    let av = Av { rlid: Some(0xc001), dgid: GROUP, sgid_index: 0, ..Av::group(0, 7) };
    bed.post(qps[0], &Wr::new(Op::Send, &[from.sge()]).to(av));
    assert!(bed.one(qps[0].send_cq).is_ok());
    for (i, qp) in qps.iter().enumerate().skip(1) {
        let cqe = bed.poll_raw(qp.recv_cq);
        assert_eq!(cqe.is_some(), i < 3, "QP {i}");
        if let Some(cqe) = cqe {
            assert_eq!((cqe.slid(), cqe.grh(), cqe.byte_cnt()), (2, 1, 104));
            let got = bed.bytes(to[i]);
            assert_eq!((&got[24..40], &got[40..104]), (&GROUP[..], &data[..]));
        }
    }
    // It is counted as multicast at both ends.
    for (fid, sent, received) in [(1, 1, 0), (2, 0, 1)] {
        let out: QueryVportCounterOut =
            bed.command(fid, Opcode::QueryVportCounter, &QueryVportCounterIn::zeroed()).expect("counters");
        let multicast = (out.transmitted_ib_multicast(), out.received_ib_multicast());
        assert_eq!((multicast.0.packets(), multicast.1.packets()), (sent, received), "function {fid}");
        assert_eq!((out.transmitted_ib_unicast().packets(), out.received_ib_unicast().packets()), (0, 0));
    }
    bed.detach(qps[1], GROUP).expect("DETACH_FROM_MCG");
    bed.post_recv(qps[1], &[to[1].sge()]);
    bed.post_recv(qps[2], &[to[2].sge()]);
    bed.post(qps[0], &Wr::new(Op::Send, &[from.sge()]).to(av));
    assert_eq!((bed.completions(qps[1].recv_cq).len(), bed.completions(qps[2].recv_cq).len()), (0, 1));
}
