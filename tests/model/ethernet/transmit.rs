//! From a send queue to the wire.

use super::packets::*;
use hwspec::{
    cqe::{CqeOpcode, CqeSyndrome},
    wqe::{EthSeg, WqeOpcode},
};
use ironverbs_tests::bed::{Bed, Send};

const A: ([u8; 4], u16) = ([10, 0, 0, 1], 4000);
const B: ([u8; 4], u16) = ([10, 0, 0, 2], 5000);

fn sent(bed: &mut Bed) -> Vec<Vec<u8>> {
    bed.take_frames().into_iter().map(|f| f.bytes).collect()
}

#[test]
fn a_frame_is_sent_as_it_was_posted_inline_or_not() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    let frame = frame(mac(2), mac(1), 0x0800, &udp4(A, B, &[7; 300]));
    for inline in [0, 1, 2, 14, 18, 42, 100] {
        bed.send_frame(&mut nic, &frame, Send { inline, ..Send::default() });
        assert_eq!(sent(&mut bed), std::slice::from_ref(&frame), "{inline} bytes inline");
        let cqe = bed.one(nic.send_cq);
        assert_eq!((cqe.opcode, cqe.qpn), (CqeOpcode::Req, nic.sqn));
    }
}

#[test]
fn a_short_frame_is_padded() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    let short = frame(mac(2), mac(1), 0x88b5, &[1, 2, 3]);
    bed.send_frame(&mut nic, &short, Send::default());
    let padded = [&short[..], &[0; 43]].concat();
    assert_eq!(sent(&mut bed), [padded]);
}

#[test]
fn checksums_are_filled_in_if_asked() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    for packet in [udp4(A, B, b"odd"), tcp4(A, B, 1, 0x18, &[9; 1000]), tcp4(A, B, 1, 0x10, b"")] {
        let right = frame(mac(2), mac(1), 0x0800, &packet);
        let mut wrong = right.clone();
        wrong[24..26].copy_from_slice(&[0xde, 0xad]);
        let place = if packet[9] == 6 { 34 + 16 } else { 34 + 6 };
        wrong[place..place + 2].copy_from_slice(&[0xbe, 0xef]);
        bed.send_frame(&mut nic, &wrong, Send::default());
        bed.send_frame(&mut nic, &wrong, Send { checksums: true, ..Send::default() });
        let frames = sent(&mut bed);
        assert_eq!(frames[0][..wrong.len()], wrong, "not touched");
        assert_eq!(frames[1][..right.len()], right);
        assert!(is_right(&frames[1]));
    }
}

#[test]
fn a_vlan_tag_is_inserted() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    let plain = frame(mac(2), mac(1), 0x0800, &udp4(A, B, &[7; 60]));
    bed.send_frame(&mut nic, &plain, Send { vlan: Some(0x2005), checksums: true, ..Send::default() });
    assert_eq!(sent(&mut bed), [tagged(&plain, 0x2005)]);
}

#[test]
fn a_large_send_becomes_frames_of_mss_bytes() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    let data: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    // CWR, PSH and FIN, which not every segment carries.
    let whole = frame(mac(2), mac(1), 0x0800, &tcp4(A, B, 0xffff_f000, 0x99, &data));
    bed.send_frame(&mut nic, &whole, Send { inline: 54, mss: 1460, ..Send::default() });
    let frames = sent(&mut bed);
    assert_eq!(frames.len(), 7);
    let mut got = Vec::new();
    for (i, f) in frames.iter().enumerate() {
        assert!(is_right(f), "frame {i}");
        let number = |at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
        assert_eq!(usize::from(number(16)), f.len() - 14, "IP length");
        assert_eq!(number(18), 0x1234 + i as u16, "identification");
        let seq = u32::from_be_bytes(f[38..42].try_into().unwrap());
        assert_eq!(seq, 0xffff_f000u32.wrapping_add(1460 * i as u32));
        let flags = 0x10 | if i == 0 { 0x80 } else { 0 } | if i == 6 { 0x09 } else { 0 };
        assert_eq!(f[47], flags, "flags of {i}");
        got.extend_from_slice(&f[54..]);
    }
    assert_eq!(got, data);
    assert!(bed.one(nic.send_cq).is_ok(), "one completion for all");
}

#[test]
fn a_large_datagram_is_cut_into_datagrams() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    let whole = frame(mac(2), mac(1), 0x0800, &udp4(A, B, &[3; 2500]));
    bed.send_frame(&mut nic, &whole, Send { inline: 42, mss: 1000, ..Send::default() });
    let frames = sent(&mut bed);
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), [1042, 1042, 542]);
    for f in &frames {
        assert!(is_right(f));
        assert_eq!(usize::from(u16::from_be_bytes([f[38], f[39]])), f.len() - 34, "UDP length");
    }
}

#[test]
fn a_nop_completes() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    bed.post_raw(&mut nic, WqeOpcode::Nop, &[]);
    bed.run();
    let cqe = bed.one(nic.send_cq);
    assert_eq!((cqe.opcode, cqe.wqe), (CqeOpcode::Req, 0));
    assert!(sent(&mut bed).is_empty());
}

#[test]
fn a_wqe_that_makes_no_sense_puts_the_queue_into_error_and_what_follows_is_flushed() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    bed.post_raw(&mut nic, WqeOpcode::RdmaWrite, EthSeg::zeroed().as_bytes());
    bed.run();
    assert_eq!(bed.one(nic.send_cq).error, Some(CqeSyndrome::LocalQpOpErr));
    bed.post_raw(&mut nic, WqeOpcode::Nop, &[]);
    bed.run();
    assert_eq!(bed.one(nic.send_cq).error, Some(CqeSyndrome::WrFlushErr));
    // From error to reset to ready, as a driver recovers.
    bed.modify_sq(&nic, 3, 0).expect("reset");
    bed.modify_sq(&nic, 1, 3).expect_err("not the state it is in");
}

#[test]
fn memory_that_is_not_there_fails_the_send() {
    let (mut bed, mut nic) = Bed::with_nic(1, 0);
    let mut body = EthSeg::zeroed().as_bytes().to_vec();
    let seg = hwspec::wqe::DataSeg::with(|s| s.byte_count(100).lkey(0x1234_5678).addr(0));
    body.extend_from_slice(seg.as_bytes());
    bed.post_raw(&mut nic, WqeOpcode::Send, &body);
    bed.run();
    assert_eq!(bed.one(nic.send_cq).error, Some(CqeSyndrome::LocalProtErr));
    assert!(sent(&mut bed).is_empty());
}
