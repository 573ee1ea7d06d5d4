//! The effect of `ip link set PF vf N` on frames, with the stock driver's commands.

use super::{
    legacy::{AUTO, Pf},
    manager::*,
    packets::*,
};
use devmodel::{
    Config,
    strict::{Card, Strict},
};
use hwspec::{
    cmd::{Opcode, eswitch::*, vport::*},
    context::vport::NicVportContext,
    eqe::{EventType, PortChange},
};
use ironverbs_tests::bed::{Access, Bed, MS, Nic, Qp, S, Send, Wr};

/// A group that no driver has joined.
const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

/// VFs 1 to 3 under a PF's driver, and their net devices.
fn opened() -> (Bed, Pf, [Nic; 3]) {
    opened_on(Card::Cx5)
}

fn opened_on(card: Card) -> (Bed, Pf, [Nic; 3]) {
    let mut bed = Bed::new(Config { strict: Strict { card, ..Strict::default() }, ..Config::default() });
    let nics = [1, 2, 3].map(|fid| bed.open_nic(fid));
    let pf = Pf::enable(&mut bed, 3);
    (bed, pf, nics)
}

/// Returns true if a frame between net devices arrives unchanged.
fn passes(bed: &mut Bed, from: &mut Nic, to: &mut Nic, dst: [u8; 6], src: [u8; 6]) -> bool {
    let sent = send(bed, from, dst, src);
    let came = bed.all_received(to);
    assert!(came.iter().all(|one| *one == sent));
    came.len() == 1
}

/// A VF's driver requests groups or promiscuity; it always requests broadcasts.
fn ask(bed: &mut Bed, vf: u8, groups: &[[u8; 6]], all_groups: bool, all: bool) {
    let mut c = NicVportContext::zeroed();
    let list = [&[BROADCAST], groups].concat();
    c.set().allowed_list_type(1).allowed_list_size(list.len() as u16);
    modify(bed, vf, None, LIST, c, &list).unwrap();
    let c = NicVportContext::with(|s| s.promisc_mc(all_groups).promisc_all(all).promisc_uc(all));
    modify(bed, vf, None, PROMISC, c, &[]).unwrap();
}

#[test]
fn mac_is_what_the_vf_finds_and_gets_frames_by() {
    let (mut bed, mut pf, [mut a, mut b, _]) = opened();
    assert!(passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
    pf.mac(&mut bed, 2, GIVEN);
    let (c, _) = context(&mut bed, 2, None);
    assert_eq!((mac_in(&c), c.node_guid()), (GIVEN, 0xa036_9fff_fe01_0203));
    assert!(!passes(&mut bed, &mut a, &mut b, GIVEN, mac(1)), "its driver has not listed it yet");
    listen(&mut bed, 2, &[mac_in(&c)]);
    pf.attend(&mut bed);
    assert!(passes(&mut bed, &mut a, &mut b, GIVEN, mac(1)));
    assert!(!passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
}

#[test]
fn vlan_is_pushed_and_stripped_unknown_to_the_vfs() {
    let (mut bed, mut pf, [mut a, mut b, mut c]) = opened();
    pf.vlan(&mut bed, 1, 7, 3);
    pf.vlan(&mut bed, 2, 7, 3);
    let sent = frame(mac(2), mac(1), 0x88b5, &[1; 46]);
    bed.send_frame(&mut a, &sent, Send::default());
    let came: Vec<_> = std::iter::from_fn(|| bed.received(&mut b, 0)).collect();
    let [(cqe, bytes)] = &came[..] else { panic!("{came:?}") };
    assert!(*bytes == sent && !cqe.cv(), "inserted, and stripped");
    let query = QueryEswVportContextIn::with(|s| s.other_vport(true).vport_number(1));
    let out: QueryEswVportContextOut = bed.command(0, Opcode::QueryEswVportContext, &query).unwrap();
    let kept = out.esw_vport_context();
    assert_eq!((kept.cvlan_id(), kept.cvlan_pcp(), kept.vport_cvlan_strip()), (7, 3, true));
    // Outside, the tag is there, with its priority.
    let out = frame(mac(9), mac(1), 0x88b5, &[1; 46]);
    bed.send_frame(&mut a, &out, Send::default());
    assert_eq!(bed.wire().left, [tagged(&out, 3 << 13 | 7)]);
    // Frames from outside the VLAN do not get in, nor do those with another tag.
    assert!(!passes(&mut bed, &mut c, &mut b, mac(2), mac(3)));
    for (vlan, arrives) in [(8, false), (7, true)] {
        let sent = frame(mac(2), mac(3), 0x88b5, &[1; 46]);
        bed.send_frame(&mut c, &sent, Send { vlan: Some(vlan), ..Send::default() });
        assert_eq!(bed.received(&mut b, 0).is_some(), arrives, "{vlan}");
    }
    // A frame that already has a tag is dropped.
    bed.send_frame(&mut a, &sent, Send { vlan: Some(7), ..Send::default() });
    assert!(bed.received(&mut b, 0).is_none());
    pf.vlan(&mut bed, 1, 0, 0);
    assert!(!passes(&mut bed, &mut a, &mut b, mac(2), mac(1)), "VF 1 has left it");
    pf.vlan(&mut bed, 2, 0, 0);
    assert!(passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
}

/// On later cards vport tables do what the vport's context does on others.
#[test]
fn vlan_is_pushed_and_popped_by_tables_of_vports_where_they_can() {
    let (mut bed, mut pf, [mut a, mut b, mut c]) = opened_on(Card::Cx7);
    pf.vlan(&mut bed, 1, 7, 3);
    pf.vlan(&mut bed, 2, 7, 3);
    assert!(passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
    let out = frame(mac(9), mac(1), 0x88b5, &[1; 46]);
    bed.send_frame(&mut a, &out, Send::default());
    assert_eq!(bed.wire().left, [tagged(&out, 3 << 13 | 7)]);
    assert!(!passes(&mut bed, &mut c, &mut b, mac(2), mac(3)));
    // A tag set by the VF itself becomes the inner tag.
    let sent = frame(mac(2), mac(1), 0x88b5, &[1; 46]);
    bed.send_frame(&mut a, &sent, Send { vlan: Some(9), ..Send::default() });
    let (cqe, bytes) = bed.received(&mut b, 0).expect("the frame");
    assert!(bytes == sent && cqe.cv() && cqe.vlan_info() == 9);
    pf.mac(&mut bed, 1, mac(1));
    pf.spoofchk(&mut bed, 1, true);
    assert!(passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
    assert!(!passes(&mut bed, &mut a, &mut b, mac(2), GIVEN));
    assert_eq!(pf.dropped(&mut bed, 1), 1);
    let ends = pair_by(&mut bed, mac(2));
    assert!(writes(&mut bed, ends), "RDMA too");
}

#[test]
fn rdma_between_vfs_keeps_to_their_vlans_by_reference_too() {
    for watched in [true, false] {
        let (mut bed, mut pf, _) = opened();
        if !watched {
            bed.unwatched();
        }
        let ends = pair_by(&mut bed, mac(2));
        assert!(writes(&mut bed, ends));
        pf.vlan(&mut bed, 2, 7, 0);
        let ends = pair_by(&mut bed, mac(2));
        assert!(!writes(&mut bed, ends));
        pf.vlan(&mut bed, 1, 7, 0);
        let ends = pair_by(&mut bed, mac(2));
        assert!(writes(&mut bed, ends));
    }
}

#[test]
fn spoofchk_drops_and_counts_what_is_not_from_the_vfs_address() {
    let (mut bed, mut pf, [mut a, mut b, _]) = opened();
    pf.mac(&mut bed, 1, mac(1));
    pf.spoofchk(&mut bed, 1, true);
    assert!(passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
    assert_eq!(pf.dropped(&mut bed, 1), 0);
    assert!(!passes(&mut bed, &mut a, &mut b, mac(2), GIVEN));
    assert_eq!(pf.dropped(&mut bed, 1), 1);
    assert!(passes(&mut bed, &mut b, &mut a, mac(1), GIVEN), "VF 2 is not checked");
    // The spoof check uses the address set from now on, and works with a VLAN.
    pf.mac(&mut bed, 1, GIVEN);
    pf.vlan(&mut bed, 1, 7, 0);
    pf.vlan(&mut bed, 2, 7, 0);
    assert!(passes(&mut bed, &mut a, &mut b, mac(2), GIVEN));
    assert!(!passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
    assert_eq!(pf.dropped(&mut bed, 1), 2);
    pf.spoofchk(&mut bed, 1, false);
    assert!(passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
}

#[test]
fn trust_lets_a_vf_have_what_is_not_for_it() {
    let (mut bed, mut pf, [mut a, _, mut c]) = opened();
    let stray = frame(GIVEN, mac(9), 0x88b5, &[1; 46]);
    let group = frame(GROUP, mac(9), 0x88b5, &[1; 46]);
    let mut gets = |bed: &mut Bed, frame: &[u8]| {
        bed.inject(frame);
        !bed.all_received(&mut c).is_empty()
    };
    ask(&mut bed, 3, &[], true, false);
    pf.attend(&mut bed);
    assert!(!gets(&mut bed, &group), "all groups, but nobody trusts it");
    pf.trust(&mut bed, 3, true);
    assert!(gets(&mut bed, &group) && !gets(&mut bed, &stray));
    ask(&mut bed, 3, &[], false, true);
    pf.attend(&mut bed);
    assert!(gets(&mut bed, &group) && gets(&mut bed, &stray));
    pf.trust(&mut bed, 3, false);
    assert!(!gets(&mut bed, &group) && !gets(&mut bed, &stray));
    // It receives a group that it joined without trust.
    ask(&mut bed, 3, &[GROUP], false, false);
    pf.attend(&mut bed);
    assert!(gets(&mut bed, &group));
    let sent = send(&mut bed, &mut a, GROUP, mac(1));
    assert_eq!(bed.all_received(&mut c), std::slice::from_ref(&sent));
    assert_eq!(bed.wire().left.last(), Some(&sent), "and it leaves by the uplink, too");
}

#[test]
fn state_takes_the_link_of_a_vf_down_for_good() {
    let (mut bed, _pf, [mut a, mut b, _]) = opened();
    bed.events(2);
    let state = |bed: &mut Bed, fid, other: bool| {
        let input = QueryVportStateIn::with(|s| s.other_vport(other).vport_number(if other { 2 } else { 0 }));
        let out: QueryVportStateOut = bed.command(fid, Opcode::QueryVportState, &input).unwrap();
        (out.admin_state(), out.state())
    };
    set_state(&mut bed, 2, 0);
    bed.run();
    let changes = |bed: &mut Bed| -> Vec<u8> {
        let all = bed.events(2);
        all.iter().filter(|e| e.event_type() == EventType::PortChange).map(|e| e.event_sub_type()).collect()
    };
    assert_eq!(changes(&mut bed), [PortChange::Down.raw()]);
    assert_eq!((state(&mut bed, 0, true), state(&mut bed, 2, false).1), ((0, 0), 0));
    assert!(!passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
    assert!(!passes(&mut bed, &mut b, &mut a, mac(1), mac(2)));
    let ends = pair_by(&mut bed, mac(2));
    assert!(!writes(&mut bed, ends));
    bed.reset(2);
    let mut b = bed.open_nic(2);
    listen(&mut bed, 2, &[mac(2)]);
    assert_eq!(state(&mut bed, 2, false).1, 0, "its reset does not bring it up");
    for admin in [AUTO, 1] {
        set_state(&mut bed, 2, 0);
        bed.run();
        bed.events(2);
        set_state(&mut bed, 2, admin);
        bed.run();
        assert_eq!(changes(&mut bed), [PortChange::Active.raw()]);
        assert_eq!(state(&mut bed, 0, true), (admin, 1));
        assert!(passes(&mut bed, &mut a, &mut b, mac(2), mac(1)));
    }
}

/// Converts `bytes` in 500 ms to Mb/s.
fn mbps(bytes: usize) -> f64 {
    bytes as f64 * 8.0 * 2.0 / 1e6
}

/// Measures the maximum rate from VF 1's net device to VF 2's.
fn frames_rate(bed: &mut Bed, from: &mut Nic, to: &mut Nic) -> f64 {
    let (mut under_way, mut bytes) = (0, 0);
    let end = bed.now() + S / 2;
    while bed.now() < end {
        while under_way < 40 {
            bed.send_frame(from, &frame(mac(2), mac(1), 0x88b5, &[1; 1486]), Send::default());
            under_way += 1;
        }
        bed.completions(from.send_cq);
        let came = bed.all_received(to);
        under_way -= came.len();
        bytes += came.iter().map(Vec::len).sum::<usize>();
        bed.advance(MS / 4);
    }
    // Lets outstanding frames drain, so that they do not count in the next measurement.
    bed.advance(S);
    assert_eq!(bed.all_received(to).len(), under_way);
    bed.completions(from.send_cq);
    mbps(bytes)
}

/// Measures the rate at which `qp` moves data and headers with requests of 16 KiB, one after the other.
fn requests_rate(bed: &mut Bed, qp: Qp, wr: &Wr) -> f64 {
    let (end, mut bytes) = (bed.now() + S / 2, 0);
    while bed.now() < end && bytes < 100 << 20 {
        bed.post(qp, wr);
        assert!(bed.advance_until(S, |bed| bed.has_completion(qp.send_cq)));
        assert!(bed.one(qp.send_cq).is_ok());
        // Packets of 1 KiB, with 54 bytes from the Ethernet header to the BTH.
        bytes += 16 * (1024 + 54);
    }
    mbps(bytes)
}

#[test]
fn rate_is_what_a_vf_may_send() {
    let (mut bed, mut pf, [mut a, mut b, _]) = opened();
    bed.unwatched();
    let (one, two) = pair_by(&mut bed, mac(2));
    let (near, far) = (bed.mr(1, 16 << 10, Access::ALL), bed.mr(2, 16 << 10, Access::ALL));
    let near_enough = |found: f64, limit: f64| (found / limit - 1.0).abs() < 0.03;
    for limit in [100, 40] {
        pf.rate(&mut bed, 1, limit, 10);
        let limit = f64::from(limit);
        let found = frames_rate(&mut bed, &mut a, &mut b);
        assert!(near_enough(found, limit), "frames: {found} of {limit} Mb/s");
        let found = requests_rate(&mut bed, one, &Wr::write(near.sge(), far));
        assert!(near_enough(found, limit), "writes: {found} of {limit} Mb/s");
        let found = requests_rate(&mut bed, two, &Wr::read(far.sge(), near));
        assert!(near_enough(found, limit), "what others read of it: {found} of {limit} Mb/s");
    }
    // Data from other senders is not delayed, nor are acknowledgements by the limited VF.
    assert!(requests_rate(&mut bed, two, &Wr::write(far.sge(), near)) > 1000.0);
    assert!(requests_rate(&mut bed, one, &Wr::read(near.sge(), far)) > 1000.0);
    pf.rate(&mut bed, 1, 0, 0);
    assert!(requests_rate(&mut bed, one, &Wr::write(near.sge(), far)) > 1000.0);
}

#[test]
fn a_vf_keeps_to_its_rate_behind_its_reset() {
    let (mut bed, mut pf, [_, mut b, _]) = opened();
    pf.rate(&mut bed, 1, 100, 0);
    bed.reset(1);
    let mut a = bed.open_nic(1);
    let found = frames_rate(&mut bed, &mut a, &mut b);
    assert!((97.0..103.0).contains(&found), "{found} of 100 Mb/s");
}
