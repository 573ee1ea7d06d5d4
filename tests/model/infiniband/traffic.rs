//! Packets routed by LID: every service, with and without a global route (IBTA 7.7, 8.3, 9.6.1).

use super::common::*;
use devmodel::{identity, state::Counters};
use hwspec::wire::{BthOpcode, Headers, lrh};

fn check_frames(bed: &mut Bed, grh: bool, sl: u8) {
    let frames = bed.take_frames();
    assert!(!frames.is_empty());
    for frame in &frames {
        let h = Headers::parse_route(&frame.bytes, frame.bytes.len()).expect("an InfiniBand frame");
        let lrh = h.lrh().expect("an LRH");
        assert_eq!((lrh.slid(), lrh.dlid() - 2 + lrh.slid() - 2), (identity::lid(0, frame.from), 1));
        assert_eq!((lrh.vl(), lrh.sl(), h.ipv6().is_some()), (0, sl, grh));
        let end = frame.bytes.len() - 2;
        assert!(h.icrc_ok() && lrh::vcrc(&frame.bytes[..end]) == frame.bytes[end..]);
    }
}

/// Every operation between two functions, with data checks.
#[test]
fn rc_over_lids_and_over_gids() {
    for (grh, sl) in [(false, 0), (true, 3)] {
        let mut bed = Bed::infiniband();
        let (a, b) = bed.pair(Path { grh, sl, mtu: 2048, ..Path::default() });
        let (from, to) = (bed.mr(1, 9000, Access::ALL), bed.mr(2, 9000, Access::ALL));
        let data = bed.pattern(from, 5);
        bed.done(a, &Wr::write(from.sge(), to));
        assert_eq!(bed.bytes(to), data);
        bed.fill(from, &[0; 9000]);
        bed.done(a, &Wr::read(from.sge(), to));
        assert_eq!(bed.bytes(from), data);
        bed.post_recv(b, &[to.sge()]);
        bed.done(a, &Wr::send(from.part(3, 5001)));
        assert_eq!(bed.one(b.recv_cq).byte_len, 5001);
        assert_eq!(bed.bytes(to)[..5001], data[3..5004]);
        bed.fill(to, &41u64.to_le_bytes());
        bed.done(a, &Wr::fetch_add(from.part(0, 8), to, 1));
        assert_eq!(bed.bytes(to)[..8], 42u64.to_le_bytes());
        check_frames(&mut bed, grh, sl);
    }
}

/// The same when frames stay within the region, with payload by reference.
#[test]
fn rc_without_a_wire_that_is_watched() {
    let mut bed = Bed::infiniband();
    bed.unwatched();
    let (a, _) = bed.pair(Path { grh: false, ..Path::default() });
    let (from, to) = (bed.mr(1, 100_000, Access::ALL), bed.mr(2, 100_000, Access::ALL));
    let data = bed.pattern(from, 8);
    bed.done(a, &Wr::write(from.sge(), to));
    assert_eq!(bed.bytes(to), data);
}

/// 9.9.2: lost, duplicated and corrupted packets are recovered.
#[test]
fn rc_repairs_what_the_link_breaks() {
    let mut bed = Bed::infiniband();
    let (a, _) = bed.pair(Path { grh: false, timeout: 8, ..Path::default() });
    let (from, to) = (bed.mr(1, 60_000, Access::ALL), bed.mr(2, 60_000, Access::ALL));
    let data = bed.pattern(from, 8);
    bed.wire().chaos =
        Some(Chaos { seed: 9, drop: 300, duplicate: 300, reorder: 300, corrupt: 300, delay: 300 });
    for _ in 0..4 {
        bed.fill(to, &[0; 60_000]);
        bed.post(a, &Wr::write(from.sge(), to));
        bed.advance(S);
        assert!(bed.one(a.send_cq).is_ok());
        assert_eq!(bed.bytes(to), data);
    }
    assert!(bed.counter(2, Counters::RxIcrcErrors) > 0);
}

/// 9.8.3: a datagram with a global route arrives after its GRH; without one, after 40 bytes that are not written.
#[test]
fn ud_completions_name_their_sender() {
    let mut bed = Bed::infiniband();
    let (a, b) = (bed.datagram(1, ServiceType::Ud, 5), bed.datagram(2, ServiceType::Ud, 5));
    let (from, to) = (bed.mr(1, 100, Access::LOCAL), bed.mr(2, 200, Access::LOCAL));
    let data = bed.pattern(from, 1);
    for grh in [false, true] {
        bed.fill(to, &[0xee; 200]);
        bed.post_recv(b, &[to.sge()]);
        bed.done(a, &Wr::new(Op::Send, &[from.sge()]).to(Av { grh, ..bed.av(b, 5) }));
        let cqe = bed.poll_raw(b.recv_cq).expect("a completion");
        assert_eq!((cqe.slid(), cqe.grh(), cqe.rqpn().0, cqe.byte_cnt()), (2, grh.into(), a.qpn, 140));
        let got = bed.bytes(to);
        assert_eq!(got[40..140], data);
        match grh {
            true => assert_eq!(
                (&got[8..24], &got[24..40]),
                (&identity::port_gid(0, 1)[..], &identity::port_gid(0, 2)[..],)
            ),
            false => assert_eq!(got[..40], [0xee; 40]),
        }
    }
}

/// 9.6.1.1, 9.6.1.5: packets for other ports, GIDs and peers are not accepted.
#[test]
fn a_packet_for_somebody_else_is_dropped() {
    let mut bed = Bed::infiniband();
    let (a, b) = (bed.datagram(1, ServiceType::Ud, 5), bed.datagram(2, ServiceType::Ud, 5));
    let (from, to) = (bed.mr(1, 100, Access::LOCAL), bed.mr(2, 200, Access::LOCAL));
    bed.post_recv(b, &[to.sge()]);
    let stranger = Av { grh: true, dgid: identity::port_gid(0, 3), ..bed.av(b, 5) };
    bed.post(a, &Wr::new(Op::Send, &[from.sge()]).to(stranger));
    let nobody = Av { rlid: Some(99), ..bed.av(b, 5) };
    bed.post(a, &Wr::new(Op::Send, &[from.sge()]).to(nobody));
    assert_eq!(bed.completions(a.send_cq).len(), 2);
    assert_eq!(bed.completions(b.recv_cq), []);
    assert_eq!(bed.counter(2, Counters::RxDroppedQp), 1);
    // A connected QP accepts packets only from its peer's port.
    let (c, d, e) = (bed.qp(1), bed.qp(2), bed.qp(3));
    bed.connect(c, d, Path::default());
    let to_d = bed.path_to(d, Path::default());
    bed.ready(e, &to_d);
    let (from, mr) = (bed.mr(3, 8, Access::LOCAL), bed.mr(2, 8, Access::ALL));
    bed.post(e, &Wr::write(from.sge(), mr));
    assert_eq!(bed.counter(2, Counters::RxDroppedQp), 2);
}

/// 10.9.3: the P_Key is that of the QP's index; both ends must be members of the partition, one of them a full member.
#[test]
fn partitions_keep_ports_apart() {
    let mut bed = Bed::infiniband();
    for (fid, keys) in [(1u8, [0xff, 0xff, 0x80, 0x05]), (2, [0xff, 0xff, 0x00, 0x05])] {
        set(&mut bed, fid, smp::attribute::PKEY_TABLE, &keys);
    }
    let at = |pkey_index| Path { pkey_index, grh: false, timeout: 8, retry_count: 1, ..Path::default() };
    let (a, _) = bed.pair(at(1));
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    bed.post(a, &Wr::write(from.sge(), to));
    assert!(bed.one(a.send_cq).is_ok(), "full and limited member");
    let frame = bed.take_frames().remove(0);
    assert_eq!((frame.headers().bth().pkey(), frame.opcode()), (0x8005, BthOpcode::RcWriteOnly));
    // The peer leaves the partition.
    set(&mut bed, 2, smp::attribute::PKEY_TABLE, &[0xff, 0xff, 0x80, 0x06]);
    bed.post(a, &Wr::write(from.sge(), to));
    bed.advance(S);
    assert!(!bed.one(a.send_cq).is_ok());
    assert!(bed.counter(2, Counters::RxDroppedPkey) > 0);
    assert!(port_info(&mut bed, 2).p_key_violations() > 0);
}
