//! The subnet administrator: queries sent as packets to QP1 of the switch (IBTA 15.4).

use super::common::*;
use devmodel::{identity, state::Counters};
use hwspec::wire::mad::{
    ClassPortInfo,
    sa::{NodeRecord, PathRecord, PortInfoRecord, SaAttribute, Selector, path, rmpp, status},
};

fn paths(dgid: [u8; 16], sgid: [u8; 16]) -> PathRecord {
    PathRecord::with(|s| s.dgid(dgid).sgid(sgid).numb_path(1).reversible(true))
}

fn gid(fid: u8) -> [u8; 16] {
    identity::port_gid(0, fid)
}

/// 13.4.8.1, 15.2.4: the class exists and reports its capabilities.
#[test]
fn the_administrator_tells_what_it_can_do() {
    let (mut bed, a) = general();
    let answer = a.query(&mut bed, Method::Get, SaAttribute::ClassPortInfo, 0, &ClassPortInfo::zeroed());
    assert_eq!((answer.header().method(), answer.header().status()), (Method::GetResp, 0));
    let info = ClassPortInfo::read(&answer.data());
    assert_eq!((info.class_version(), info.capability_mask2() & 2), (2, 2), "send-only full members");
}

/// 15.2.5.16: a path record between two ports tells how packets get there.
#[test]
fn a_path_is_found_by_gid_and_by_lid() {
    let (mut bed, a) = general();
    bed.function(2);
    let check = |record: &PathRecord| {
        assert_eq!((record.slid(), record.dlid(), record.pkey()), (2, 3, 0xffff));
        assert_eq!((record.sgid(), record.dgid()), (gid(1), gid(2)));
        assert_eq!((record.mtu(), record.rate(), record.mtu_selector()), (5, 16, Selector::Exactly));
        assert!(record.reversible());
    };
    let mask = path::DGID | path::SGID | path::NUMB_PATH | path::REVERSIBLE;
    let answer = a.query(&mut bed, Method::Get, SaAttribute::PathRecord, mask, &paths(gid(2), gid(1)));
    assert_eq!(answer.header().status(), 0);
    check(&PathRecord::read(&answer.data()));
    let lids = PathRecord::with(|s| s.slid(2).dlid(3));
    let answer = a.query(&mut bed, Method::Get, SaAttribute::PathRecord, path::SLID | path::DLID, &lids);
    check(&PathRecord::read(&answer.data()));
    // Fields that the path does not determine are returned as requested.
    let mut wanted = paths(gid(2), gid(1));
    wanted.set().sl(3).service_id(0x0106).mtu_selector(Selector::Greater).mtu(3).traffic_class(9);
    let mask = mask | path::SL | path::SERVICE_ID | path::MTU_SELECTOR | path::MTU | path::TRAFFIC_CLASS;
    let answer = a.query(&mut bed, Method::Get, SaAttribute::PathRecord, mask, &wanted);
    let found = PathRecord::read(&answer.data());
    check(&found);
    assert_eq!((found.sl(), found.service_id(), found.traffic_class()), (3, 0x0106, 9));
}

/// 15.4.4: a query that matches nothing has its own status.
#[test]
fn a_path_that_is_not_there_is_not_found() {
    let (mut bed, a) = general();
    let ask = |bed: &mut Bed, mask: u64, record: PathRecord| {
        a.query(bed, Method::Get, SaAttribute::PathRecord, mask, &record).header().status()
    };
    let ends = path::DGID | path::SGID;
    assert_eq!(ask(&mut bed, ends, paths([0xfe; 16], gid(1))), status::NO_RECORDS);
    assert_eq!(ask(&mut bed, ends, paths(gid(2), gid(9))), status::NO_RECORDS);
    let mut too_much = paths(gid(2), gid(1));
    too_much.set().mtu_selector(Selector::Greater).mtu(5);
    assert_eq!(ask(&mut bed, ends | path::MTU_SELECTOR | path::MTU, too_much), status::NO_RECORDS);
    too_much.set().pkey(0x1234);
    assert_eq!(ask(&mut bed, ends | path::PKEY, too_much), status::NO_RECORDS);
    assert_eq!(ask(&mut bed, 0, PathRecord::zeroed()), status::INSUFFICIENT_COMPONENTS);
}

/// 10.9.3, 15.2.5.16: a path uses a partition that both ports belong to, one of them as a full member.
#[test]
fn a_path_is_in_a_partition_that_both_ports_are_in() {
    let (mut bed, a) = general();
    let path = |bed: &mut Bed, pkey: Option<u16>| {
        let mut record = paths(gid(2), gid(1));
        record.set().pkey(pkey.unwrap_or_default());
        let mask = path::DGID | path::SGID | if pkey.is_some() { path::PKEY } else { 0 };
        let answer = a.query(bed, Method::Get, SaAttribute::PathRecord, mask, &record);
        match answer.header().status() {
            0 => Ok(PathRecord::read(&answer.data()).pkey()),
            refused => Err(refused),
        }
    };
    set(&mut bed, 1, smp::attribute::PKEY_TABLE, &[0xff, 0xff, 0x80, 0x05, 0x00, 0x06]);
    set(&mut bed, 2, smp::attribute::PKEY_TABLE, &[0xff, 0xff, 0x00, 0x05, 0x00, 0x06]);
    assert_eq!(path(&mut bed, None), Ok(0xffff));
    assert_eq!(path(&mut bed, Some(0x8005)), Ok(0x8005));
    assert_eq!(path(&mut bed, Some(0x0005)), Ok(0x8005));
    assert_eq!(path(&mut bed, Some(0x8006)), Err(status::NO_RECORDS), "two limited members");
    assert_eq!(path(&mut bed, Some(0x8007)), Err(status::NO_RECORDS), "nobody's");
    assert_eq!(path(&mut bed, Some(0x8000)), Err(status::NO_RECORDS), "no partition");
    set(&mut bed, 2, smp::attribute::PKEY_TABLE, &[0x00, 0x00, 0x00, 0x05]);
    assert_eq!(path(&mut bed, None), Ok(0x8005));
}

/// 9.6.1.4, 10.9.3: the administrator and the ports' agents answer limited members with the full P_Key that these hear, and strangers not
/// at all.
#[test]
fn a_limited_member_of_the_default_partition_is_answered() {
    let (mut bed, a) = general();
    set(&mut bed, 1, smp::attribute::PKEY_TABLE, &[0x7f, 0xff]);
    let answer = a.query(&mut bed, Method::Get, SaAttribute::ClassPortInfo, 0, &ClassPortInfo::zeroed());
    assert_eq!(answer.header().status(), 0);
    bed.function(2);
    let counters = perf(Method::Get, pma::PORT_COUNTERS, 0);
    assert!(a.ask(&mut bed, 3, &counters).is_some(), "a full member");
    set(&mut bed, 2, smp::attribute::PKEY_TABLE, &[0x7f, 0xff]);
    assert!(a.ask(&mut bed, 3, &counters).is_none(), "another limited member");
    set(&mut bed, 1, smp::attribute::PKEY_TABLE, &[0x80, 0x05]);
    let query = query(Method::Get, SaAttribute::ClassPortInfo, 0, &ClassPortInfo::zeroed());
    assert!(a.ask(&mut bed, identity::switch_lid(0), query.as_bytes()).is_none(), "a stranger");
    assert_eq!([0, 2].map(|fid| bed.counter(fid, Counters::RxDroppedPkey)), [1, 1]);
}

/// 13.6.2.1: a table that fits one segment is returned in one segment that says so.
#[test]
fn a_table_of_paths_is_one_segment() {
    let (mut bed, a) = general();
    let answer = a.query(
        &mut bed,
        Method::GetTable,
        SaAttribute::PathRecord,
        path::DGID | path::SGID,
        &paths(gid(2), gid(1)),
    );
    assert_eq!((answer.header().method(), answer.header().status()), (Method::GetTableResp, 0));
    assert_eq!((answer.rmpp_type(), answer.rmpp_segment()), (rmpp::DATA, 1));
    assert_eq!(answer.rmpp_flags(), rmpp::ACTIVE | rmpp::FIRST | rmpp::LAST);
    assert_eq!((answer.rmpp_payload_len(), answer.attribute_offset()), (20 + 64, 8));
    let none =
        a.query(&mut bed, Method::GetTable, SaAttribute::PathRecord, path::SGID, &paths(gid(2), gid(9)));
    assert_eq!((none.header().status(), none.rmpp_payload_len()), (0, 20));
}

/// 15.2.5.2, 15.2.5.3.
#[test]
fn nodes_and_ports_are_on_record() {
    let (mut bed, a) = general();
    for (lid, kind, guid) in
        [(3, 1, identity::guid(0, 2)), (identity::switch_lid(0), 2, identity::switch_guid(0))]
    {
        let node = NodeRecord::with(|s| s.lid(lid));
        let answer = a.query(&mut bed, Method::Get, SaAttribute::NodeRecord, 1, &node);
        let found = NodeRecord::read(&answer.data());
        assert_eq!(
            (found.lid(), found.node_info().node_type(), found.node_info().node_guid()),
            (lid, kind, guid)
        );
        assert_eq!(found.node_description()[..9], *b"ironverbs");
    }
    let port = PortInfoRecord::with(|s| s.endport_lid(3));
    let answer = a.query(&mut bed, Method::Get, SaAttribute::PortInfoRecord, 1, &port);
    let found = PortInfoRecord::read(&answer.data());
    assert_eq!((found.port_num(), found.port_info().lid(), found.port_info().port_state()), (1, 3, 4));
    let answer = a.query(&mut bed, Method::Get, SaAttribute::NodeRecord, 0, &NodeRecord::zeroed());
    assert_eq!(answer.header().status(), status::TOO_MANY_RECORDS);
}

#[test]
fn what_the_administrator_does_not_keep_is_refused() {
    let (mut bed, a) = general();
    let none = PathRecord::zeroed();
    for (method, attribute, wrong) in [
        (Method::Get, SaAttribute::ServiceRecord, super::common::status::BAD_ATTRIBUTE),
        (Method::Set, SaAttribute::PathRecord, super::common::status::BAD_ATTRIBUTE),
        (Method::Delete, SaAttribute::NodeRecord, super::common::status::BAD_ATTRIBUTE),
    ] {
        let answer = a.query(&mut bed, method, attribute, 0, &none);
        assert_eq!((answer.header().status(), Some(answer.header().method())), (wrong, method.answer()));
    }
}

/// 9.6.1.5, 13.5.3.3: only queries from QP1 with its well-known Q_Key are answered.
#[test]
fn a_query_with_a_wrong_qkey_is_not_heard() {
    let mut bed = Bed::infiniband();
    let ud = bed.datagram(1, ServiceType::Ud, 7);
    let from = bed.mr(1, 256, Access::LOCAL);
    let mut av =
        Av { rlid: Some(identity::switch_lid(0)), grh: false, sgid_index: 0, qpn: 1, ..Av::group(0, 7) };
    bed.post(ud, &Wr::new(Op::Send, &[from.sge()]).to(av));
    assert_eq!(bed.counter(0, Counters::RxDroppedQkey), 1);
    av.qkey = mad::QP1_QKEY & 0x7fff_ffff;
    bed.post(ud, &Wr::new(Op::Send, &[from.part(0, 255)]).to(Av { qkey: 0, ..av }));
    assert_eq!(bed.take_frames().iter().filter(|f| f.from == 0).count(), 0, "no answer to either");
}

/// The switch is separate from the PF: it answers even if the PF has no driver.
#[test]
fn the_administrator_needs_no_driver_of_the_pf() {
    let (mut bed, a) = general();
    bed.config_write(0, 4, 4, 0);
    let answer = a.query(&mut bed, Method::Get, SaAttribute::ClassPortInfo, 0, &ClassPortInfo::zeroed());
    assert_eq!(answer.header().status(), 0);
    bed.unwatched();
    let answer = a.query(&mut bed, Method::Get, SaAttribute::ClassPortInfo, 0, &ClassPortInfo::zeroed());
    assert_eq!(answer.header().status(), 0);
}
