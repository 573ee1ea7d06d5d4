//! Two adapters that a link joins to one subnet: packets by LID, and an administrator on each adapter that answers for both.

use super::{common::*, directed, ports::port_events};
use devmodel::{
    Announcement, Config, LinkLayer, identity,
    region::{Outlet, OutletRing},
};
use hwspec::{
    eqe::PortChange,
    handle::Qpn,
    wire::{
        BthOpcode, Packet, Route,
        lrh::PERMISSIVE_LID,
        mad::{
            sa::{
                McMemberRecord, NodeRecord, PathRecord, PortInfoRecord, SaAttribute, join_state, member,
                path, status,
            },
            smp::attribute,
        },
        write_routed,
    },
};

const GROUP: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const JOIN: u64 = member::MGID | member::PORT_GID | member::JOIN_STATE;
const CREATE: u64 =
    JOIN | member::PKEY | member::QKEY | member::SL | member::FLOW_LABEL | member::TRAFFIC_CLASS;

/// The adapters, by their numbers, and the link between them.
struct Joined([Bed; 2]);

impl Joined {
    fn new() -> Self {
        let adapter = |node_id| {
            let mut bed =
                Bed::new(Config { link_layer: LinkLayer::Infiniband, node_id, ..Config::default() });
            OutletRing::of(bed.adapter.region(), Outlet::Uplink).open(true);
            for fid in 1..3 {
                bed.function(fid);
            }
            bed
        };
        let mut joined = Self([adapter(0), adapter(1)]);
        // Like a link, sweeps until nothing changes: the first sweep gives the switches the ports that lead to each other.
        (0..2).for_each(|_| joined.sweep());
        joined
    }

    /// Reports the other adapter to each administrator.
    fn sweep(&mut self) {
        let [a, b] = [0, 1].map(|i| self.0[i].adapter.announce());
        self.0[0].learn(&[b]);
        self.0[1].learn(&[a]);
    }

    /// Carries frames between the adapters until none is left.
    fn carry(&mut self) {
        loop {
            let mut frames = [0, 1].map(|i| std::mem::take(&mut self.0[i].wire().left));
            if frames.iter().all(Vec::is_empty) {
                return;
            }
            frames.reverse();
            for (bed, frames) in self.0.iter_mut().zip(frames) {
                for frame in frames {
                    if bed.adapter.admits(&frame) {
                        bed.inject(&frame);
                    }
                }
            }
        }
    }

    /// Asks the administrator of adapter `i`.
    fn ask<R: Layout>(
        &mut self,
        i: usize,
        method: Method,
        attribute: SaAttribute,
        mask: u64,
        record: &R,
    ) -> sa::SaMad {
        let bed = &mut self.0[i];
        let by = General::new(bed, 1);
        let answer = by.query(bed, method, attribute, mask, record);
        bed.destroy_qp(by.qp).expect("DESTROY_QP");
        answer
    }

    /// The LID that adapter `i` has for a GID; the error is the status.
    fn lid_of(&mut self, i: usize, dgid: [u8; 16]) -> Result<u16, u16> {
        let wanted = PathRecord::with(|s| s.sgid(identity::port_gid(i as u16, 1)).dgid(dgid));
        let answer = self.ask(i, Method::Get, SaAttribute::PathRecord, path::SGID | path::DGID, &wanted);
        match answer.header().status() {
            0 => Ok(PathRecord::read(&answer.data()).dlid()),
            refused => Err(refused),
        }
    }

    fn join(&mut self, i: usize, mask: u64, record: McMemberRecord) -> Result<McMemberRecord, u16> {
        let answer = self.ask(i, Method::Set, SaAttribute::McMemberRecord, mask, &record);
        match answer.header().status() {
            0 => Ok(McMemberRecord::read(&answer.data())),
            refused => Err(refused),
        }
    }
}

fn membership(i: u16) -> McMemberRecord {
    McMemberRecord::with(|s| {
        s.mgid(GROUP).port_gid(identity::port_gid(i, 1)).pkey(0xffff).join_state(join_state::FULL)
    })
}

#[test]
fn each_administrator_knows_the_ports_of_both() {
    let mut joined = Joined::new();
    for (own, other) in [(0u8, 1), (1, 0)] {
        for fid in 0..3 {
            let gid = identity::port_gid(other, fid);
            assert_eq!(joined.lid_of(own.into(), gid), Ok(identity::lid(other, fid)));
        }
        for (lid, kind, ports, guid) in [
            (identity::lid(other, 2), 1, 1, identity::guid(other, 2)),
            (identity::switch_lid(other), 2, 5 + own, identity::switch_guid(other)),
        ] {
            let wanted = NodeRecord::with(|s| s.lid(lid));
            let answer = joined.ask(own.into(), Method::Get, SaAttribute::NodeRecord, 1, &wanted);
            let info = NodeRecord::read(&answer.data()).node_info();
            let seen = (info.node_type(), info.num_ports(), info.node_guid(), info.system_image_guid());
            let system = if kind == 1 { identity::guid(other, 0) } else { guid };
            assert_eq!(seen, (kind, ports, guid, system), "LID {lid:#x}");
            let wanted = PortInfoRecord::with(|s| s.endport_lid(lid));
            let answer = joined.ask(own.into(), Method::Get, SaAttribute::PortInfoRecord, 1, &wanted);
            let info = PortInfoRecord::read(&answer.data()).port_info();
            assert_eq!((info.lid(), info.master_sm_lid()), (lid, identity::switch_lid(other)));
        }
    }
}

/// 10.9.3: the next sweep shows GUIDs that a PF assigned, and partitions.
#[test]
fn what_changes_of_a_port_is_known_on_the_other_adapter() {
    let mut joined = Joined::new();
    let born = identity::port_gid(1, 2);
    let given = HcaVportContext::with(|s| s.field_select(1).port_guid(0x0011_2233_4455_6677));
    modify(&mut joined.0[1], 0, Some(2), given).unwrap();
    joined.sweep();
    let mut gid = born;
    gid[8..].copy_from_slice(&0x0011_2233_4455_6677u64.to_be_bytes());
    assert_eq!(joined.lid_of(0, gid), Ok(identity::lid(1, 2)));
    assert_eq!(joined.lid_of(0, born), Err(status::NO_RECORDS));

    set(&mut joined.0[1], 2, attribute::PKEY_TABLE, &[0x80, 0x05]);
    joined.sweep();
    assert_eq!(joined.lid_of(0, gid), Err(status::NO_RECORDS), "they have no partition in common");
    set(&mut joined.0[0], 1, attribute::PKEY_TABLE, &[0xff, 0xff, 0x00, 0x05]);
    assert_eq!(joined.lid_of(0, gid), Ok(identity::lid(1, 2)));
}

#[test]
fn ports_of_an_adapter_that_leaves_are_gone() {
    let mut joined = Joined::new();
    let there = identity::port_gid(1, 1);
    joined.join(1, CREATE, membership(1)).unwrap();
    joined.sweep();
    assert!(joined.join(0, JOIN, membership(0)).is_ok(), "the group is there");
    joined.0[0].learn(&[]);
    assert_eq!(joined.lid_of(0, there), Err(status::NO_RECORDS));
    joined.sweep();
    assert!(joined.lid_of(0, there).is_ok());
    // A killed link sends no last report.
    OutletRing::of(joined.0[0].adapter.region(), Outlet::Uplink).open(false);
    assert_eq!(joined.lid_of(0, there), Err(status::NO_RECORDS));
}

/// The subnet's records do not belong to the PF's driver.
#[test]
fn a_reset_of_the_pf_leaves_the_others_known() {
    let mut joined = Joined::new();
    joined.0[0].reset(0);
    joined.0[0].function(1);
    assert_eq!(joined.lid_of(0, identity::port_gid(1, 1)), Ok(identity::lid(1, 1)));
}

#[test]
fn connections_and_datagrams_reach_the_other_adapter() {
    let mut joined = Joined::new();
    let [a, b] = &mut joined.0;
    let path = Path { grh: false, mtu: 4096, ..Path::default() };
    let (from, to) = (a.qp(1), b.qp(1));
    let (there, back) = (b.path_to(to, path), a.path_to(from, path.back()));
    a.ready(from, &there);
    b.ready(to, &back);
    let (data, room) = (a.mr(1, 20_000, Access::ALL), b.mr(1, 20_000, Access::ALL));
    let bytes = a.pattern(data, 3);
    a.post(from, &Wr::write(data.sge(), room));
    let (sender, receiver) = (a.datagram(2, ServiceType::Ud, 7), b.datagram(2, ServiceType::Ud, 7));
    let (small, slot) = (a.mr(2, 64, Access::LOCAL), b.mr(2, 128, Access::LOCAL));
    let text = a.pattern(small, 9);
    b.post_recv(receiver, &[slot.sge()]);
    a.post(sender, &Wr::new(Op::Send, &[small.sge()]).to(b.av(receiver, 7)));
    joined.carry();
    let [a, b] = &mut joined.0;
    assert!(a.one(from.send_cq).is_ok());
    assert_eq!(b.bytes(room), bytes);
    assert_eq!(b.one(receiver.recv_cq).byte_len, 104);
    assert_eq!(b.bytes(slot)[40..104], text);
}

/// 15.2.5.17, 10.5: a port joins the same group on either adapter.
#[test]
fn a_group_has_members_on_both_adapters() {
    let mut joined = Joined::new();
    let mut wanted = membership(1);
    wanted.set().qkey(77);
    let made = joined.join(1, CREATE, wanted).unwrap();
    assert_eq!(joined.join(0, JOIN, membership(0)), Err(status::INSUFFICIENT_COMPONENTS), "not told yet");
    joined.sweep();
    let mut other = membership(0);
    other.set().qkey(78);
    assert_eq!(joined.join(0, JOIN | member::QKEY, other), Err(status::REQ_INVALID));
    let known = joined.join(0, JOIN, membership(0)).unwrap();
    assert_eq!((known.qkey(), known.mlid()), (77, made.mlid()));
    joined.sweep();
    // The group outlives its members of one adapter.
    let answer = joined.ask(1, Method::Delete, SaAttribute::McMemberRecord, JOIN, &membership(1));
    assert_eq!(answer.header().status(), 0);
    assert_eq!(joined.join(1, JOIN, membership(1)).unwrap().qkey(), 77);
    // A port joins at the administrator of its own adapter.
    assert_eq!(joined.join(0, JOIN, membership(1)), Err(status::INVALID_GID));

    let [a, b] = &mut joined.0;
    let (sender, receiver) = (a.datagram(1, ServiceType::Ud, 77), b.datagram(1, ServiceType::Ud, 77));
    b.attach(receiver, GROUP).expect("ATTACH_TO_MCG");
    let (data, room) = (a.mr(1, 64, Access::LOCAL), b.mr(1, 128, Access::LOCAL));
    b.post_recv(receiver, &[room.sge()]);
    let av = Av { rlid: Some(made.mlid()), dgid: GROUP, sgid_index: 0, ..Av::group(0, 77) };
    a.post(sender, &Wr::new(Op::Send, &[data.sge()]).to(av));
    joined.carry();
    assert_eq!(joined.0[1].one(receiver.recv_cq).byte_len, 104);
}

/// 14.4.11: ports with groups that have changed are told to register again.
#[test]
fn a_group_that_both_have_made_is_that_of_the_lower_number() {
    let mut joined = Joined::new();
    for (i, qkey) in [(0, 5), (1, 6)] {
        let mut wanted = membership(i);
        wanted.set().qkey(qkey);
        joined.join(i.into(), CREATE, wanted).unwrap();
    }
    joined.0.iter_mut().for_each(|bed| _ = port_events(bed));
    joined.sweep();
    let told = joined.0.each_mut().map(port_events);
    assert_eq!(told, [vec![], vec![PortChange::ClientRereg.raw()]]);
    assert_eq!(joined.join(1, JOIN, membership(1)).unwrap().qkey(), 5);
    joined.sweep();
    assert!(joined.0.each_mut().map(port_events).iter().all(Vec::is_empty), "once");
}

/// 14.2.2: directed routes go from switch to switch, and come back.
#[test]
fn directed_routes_lead_through_both_switches() {
    let mut joined = Joined::new();
    let ask = |joined: &mut Joined, path: &[u8], method| {
        let bed = &mut joined.0[0];
        let qp = bed.datagram(1, ServiceType::Qp0, 0);
        let (from, to) = (bed.mr(1, 256, Access::LOCAL), bed.mr(1, 296, Access::LOCAL));
        bed.fill(from, directed::request(path, 1, method, attribute::NODE_INFO, 0).as_bytes());
        bed.post_recv(qp, &[to.sge()]);
        let av = Av { rlid: Some(PERMISSIVE_LID), grh: false, sgid_index: 0, qpn: 0, ..Av::group(0, 0) };
        bed.post(qp, &Wr::new(Op::Send, &[from.sge()]).to(av));
        joined.carry();
        let bed = &mut joined.0[0];
        let answered =
            std::iter::from_fn(|| bed.poll_raw(qp.send_cq)).any(|c| c.opcode() == CqeOpcode::RespSend);
        let answer = answered.then(|| Smp::read(&bed.bytes(to)[40..]));
        bed.destroy_qp(qp).expect("DESTROY_QP");
        answer
    };
    // A switch of four functions has port 5 for adapter 0 and port 6 for adapter 1.
    let answer = ask(&mut joined, &[1, 6], Method::Get).expect("an answer");
    let info = smp::NodeInfo::read(&answer.data());
    assert_eq!((info.node_guid(), info.node_type(), info.local_port_num()), (identity::switch_guid(1), 2, 5));
    let answer = ask(&mut joined, &[1, 6, 3], Method::Get).expect("an answer");
    assert_eq!(smp::NodeInfo::read(&answer.data()).node_guid(), identity::guid(1, 2));
    assert_eq!(answer.return_path()[1..4], [2, 5, 1]);
    assert!(ask(&mut joined, &[1, 6, 3], Method::Set).is_none(), "ports are managed by their own PF");
    assert!(ask(&mut joined, &[1, 6, 7], Method::Get).is_none(), "there is no third adapter");
    // A route may end at its sender's adapter.
    let answer = ask(&mut joined, &[1, 6, 5, 3], Method::Get).expect("an answer");
    assert_eq!(smp::NodeInfo::read(&answer.data()).node_guid(), identity::guid(0, 2));
}

#[test]
fn frames_that_no_other_adapter_may_send_are_not_admitted() {
    let bed = &Joined::new().0[0];
    let (far, far_switch, near) = (identity::lid(1, 1), identity::switch_lid(1), identity::lid(0, 1));
    let general = directed::request(&[1], 1, Method::Get, attribute::NODE_INFO, 0);
    let by_lid = |method| smp(method, attribute::PKEY_TABLE, 0, &[]);
    let admits = |slid, dlid, qpn, mad: &Smp| {
        let mut packet = Packet::default();
        packet.bth.set().opcode(BthOpcode::UdSendOnly).pkey(0xffff).dest_qp(Qpn(qpn));
        let mut frame = vec![0; 400];
        let route = Route { slid, dlid, vl: if qpn == 0 { 15 } else { 0 }, ..Route::default() };
        let len = write_routed(&mut frame, &route, &packet, mad.as_bytes()).unwrap();
        let admits = bed.adapter.admits(&frame[..len]);
        for wrong in [len - 1, 60, 8, 0] {
            assert!(!bed.adapter.admits(&frame[..wrong]), "{wrong} of {len} bytes");
        }
        assert!(!bed.adapter.admits(&frame[..len + 4]), "too long");
        admits
    };
    let get = by_lid(Method::Get);
    for dlid in [near, bed.switch_lid(), 0xc000] {
        assert!(admits(far, dlid, 1, &get), "{dlid:#x}");
    }
    for slid in [0, near, bed.switch_lid(), 0x90, 0xc000, PERMISSIVE_LID, identity::lid(126, 1)] {
        assert!(!admits(slid, near, 1, &get), "from {slid:#x}");
    }
    for dlid in [0, 0x90, far, far_switch, identity::lid(2, 1), PERMISSIVE_LID] {
        assert!(!admits(far, dlid, 1, &get), "to {dlid:#x}");
    }
    assert!(admits(far, near, 0, &get) && admits(far, near, 0, &by_lid(Method::GetResp)));
    assert!(!admits(far, near, 0, &by_lid(Method::Set)) && !admits(far, 0xc000, 0, &get));
    assert!(admits(far_switch, bed.switch_lid(), 0, &general));
    assert!(!admits(far, bed.switch_lid(), 0, &general) && !admits(far_switch, near, 0, &general));
}

/// An announcement has the ports and groups of an adapter, but not the members of the groups.
#[test]
fn an_adapter_announces_what_others_may_know() {
    let mut joined = Joined::new();
    let before = joined.0[0].adapter.announce();
    joined.join(0, CREATE, membership(0)).unwrap();
    let with_group = joined.0[0].adapter.announce();
    assert!(before != with_group);
    let by = General::new(&mut joined.0[0], 2);
    let mut second = membership(0);
    second.set().port_gid(identity::port_gid(0, 2));
    let answer = by.query(&mut joined.0[0], Method::Set, SaAttribute::McMemberRecord, JOIN, &second);
    assert_eq!(answer.header().status(), 0);
    assert_eq!(joined.0[0].adapter.announce(), with_group);
    assert_ne!(Announcement::default(), with_group);
}
