//! Lengths of packets, messages and pads.

use super::common::*;

/// Sends packets with these opcodes and payload lengths, with `says` as the length in their RETH, and checks that only the last one is
/// refused as invalid. A last one that completes a message requests an acknowledgement.
#[track_caller]
fn assert_last_invalid(packets: &[(BthOpcode, usize)], says: usize) {
    let (mut bed, peer, mr) = judged(Config::default(), 8 * MTU);
    for (i, (opcode, len)) in packets.iter().enumerate() {
        let pkt = Pkt::new(*opcode, EXPECTS + i as u32).payload(&vec![1; *len]);
        let pkt = if opcode.is_last() { pkt.ack_req() } else { pkt };
        let answers = bed.from_peer(peer, &pkt.reth(mr.va, mr.key, says as u32));
        if i + 1 == packets.len() {
            assert_eq!(acknowledgement(&answers).0, NAK_INVALID, "{packets:?}, RETH of {says}");
        } else {
            assert_eq!(brief(&answers), [], "{packets:?}, RETH of {says}");
        }
    }
    assert_eq!(bed.qp_state(peer.qp), QpState::Err, "{packets:?}, RETH of {says}");
}

/// Row 31: FIRST and MIDDLE carry exactly one path MTU.
#[test]
fn row_31_first_and_middle_must_be_full() {
    for len in [0, MTU - 4, MTU - 1, MTU + 4] {
        assert_last_invalid(&[(BthOpcode::RcSendFirst, len)], 0);
        assert_last_invalid(&[(BthOpcode::RcWriteFirst, len)], 3 * MTU);
        assert_last_invalid(&[(BthOpcode::RcSendFirst, MTU), (BthOpcode::RcSendMiddle, len)], 0);
        assert_last_invalid(&[(BthOpcode::RcWriteFirst, MTU), (BthOpcode::RcWriteMiddle, len)], 3 * MTU);
    }
}

/// Row 31: LAST carries at least one byte and at most one path MTU.
#[test]
fn row_31_last_is_neither_empty_nor_longer_than_the_mtu() {
    for len in [0, MTU + 1, MTU + 4] {
        assert_last_invalid(&[(BthOpcode::RcSendFirst, MTU), (BthOpcode::RcSendLast, len)], 0);
        let says = MTU + len.max(4);
        assert_last_invalid(&[(BthOpcode::RcWriteFirst, MTU), (BthOpcode::RcWriteLast, len)], says);
    }
    assert_last_invalid(&[(BthOpcode::RcSendOnly, MTU + 4)], 0);
}

/// Row 31: the packets of a WRITE together carry the length in its RETH.
#[test]
fn row_31_write_carries_what_its_reth_says() {
    for says in [4, 7, 9, 12, 4096] {
        assert_last_invalid(&[(BthOpcode::RcWriteOnly, 8)], says);
    }
    assert_last_invalid(&[(BthOpcode::RcWriteFirst, MTU)], MTU);
    for says in [MTU + 4, MTU + 12] {
        assert_last_invalid(&[(BthOpcode::RcWriteFirst, MTU), (BthOpcode::RcWriteLast, 8)], says);
    }
}

/// Row 31: a message longer than 2^31 is invalid.
#[test]
fn row_31_message_longer_than_two_gigabytes_is_invalid() {
    assert_last_invalid(&[(BthOpcode::RcReadRequest, 0)], 0x8000_0001);
    assert_last_invalid(&[(BthOpcode::RcWriteFirst, MTU)], 0x8000_0001);
}

/// Row 32: a pad count on a full packet, or one that makes the length differ from the RETH, is invalid.
#[test]
fn row_32_wrong_pad_count_is_invalid() {
    let cases = [
        (Pkt::new(BthOpcode::RcSendFirst, EXPECTS).payload(&[1; MTU]), 0, 1),
        (Pkt::new(BthOpcode::RcWriteFirst, EXPECTS).payload(&[1; MTU]), 2 * MTU as u32, 3),
        (Pkt::new(BthOpcode::RcWriteOnly, EXPECTS).payload(&[1; 8]), 8, 1),
        (Pkt::new(BthOpcode::RcWriteOnly, EXPECTS).payload(&[1; 7]), 7, 0),
        (Pkt::new(BthOpcode::RcSendOnly, EXPECTS), 0, 2),
    ];
    for (i, (pkt, len, pad)) in cases.into_iter().enumerate() {
        let (mut bed, peer, mr) = judged(Config::default(), 8 * MTU);
        let mut frame = peer.frame(&pkt.ack_req().reth(mr.va, mr.key, len));
        rewrite(&mut frame, |bth| {
            bth.set().pad_count(pad);
        });
        bed.inject(&frame);
        let answers = bed.answers();
        assert_eq!(acknowledgement(&answers).0, NAK_INVALID, "case {i}");
    }
}

/// Row 32: the pad of sent packets is zero and has the correct length.
#[test]
fn row_32_sent_pad_is_zero() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.fill(from, &[0xff; 64]);
    for len in 1..=8 {
        bed.post(peer.qp, &write_to_peer(from.part(0, len)));
        let frame = bed.answers().remove(0);
        let h = frame.headers();
        let padded = &frame.bytes[h.padded_range()];
        assert_eq!(usize::from(h.bth().pad_count()), padded.len() - len as usize);
        assert_eq!(padded.len() % 4, 0);
        assert!(padded.len() - (len as usize) < 4);
        assert_eq!(padded[..len as usize], vec![0xff; len as usize]);
        assert!(padded[len as usize..].iter().all(|b| *b == 0));
        assert!(h.icrc_ok());
    }
}

/// Row 44: a message takes ceil(len / PMTU) packets, at least one, in the order FIRST, MIDDLE, LAST.
#[test]
fn row_44_messages_are_cut_by_the_path_mtu() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        for len in [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu - 1, 3 * mtu] {
            let (mut bed, peer, from) = foreign_by(Path { mtu, ..Path::default() }, 4 * 4096, Access::LOCAL);
            let data = bed.pattern(from, 5);
            let mut wr = write_to_peer(from.part(0, len));
            if len == 0 {
                // A length of 0 in a data segment means 2^31: nothing to send is an empty list.
                wr.sges.clear();
            }
            bed.post(peer.qp, &wr);
            let frames = bed.answers();
            let n = len.div_ceil(mtu).max(1) as usize;
            assert_eq!(frames.len(), n, "{len} bytes, MTU {mtu}");
            for (i, frame) in frames.iter().enumerate() {
                let want = match i {
                    _ if n == 1 => BthOpcode::RcWriteOnly,
                    0 => BthOpcode::RcWriteFirst,
                    i if i + 1 == n => BthOpcode::RcWriteLast,
                    _ => BthOpcode::RcWriteMiddle,
                };
                assert_eq!((frame.opcode(), frame.psn()), (want, SENDS + i as u32));
                assert_eq!(frame.headers().reth().is_some(), i == 0);
            }
            let payload: Vec<u8> = frames.iter().flat_map(|f| f.payload().to_vec()).collect();
            assert_eq!(payload, data[..len as usize]);
        }
    }
}

/// Row 44: a READ consumes as many PSNs as its response has packets; AETHs are on FIRST, LAST and ONLY.
#[test]
fn row_44_read_consumes_a_psn_per_response() {
    let (mut bed, [a, _], [x, y]) = ends(8 * MTU);
    bed.post(a, &Wr::read(x.part(0, 3 * MTU as u32 + 1), y));
    bed.post(a, &Wr::write(x.part(0, 8), y));
    let frames = bed.take_frames();
    assert_eq!(
        brief(&frames[..6]),
        [
            (BthOpcode::RcReadRequest, SENDS),
            (BthOpcode::RcReadRespFirst, SENDS),
            (BthOpcode::RcReadRespMiddle, SENDS + 1),
            (BthOpcode::RcReadRespMiddle, SENDS + 2),
            (BthOpcode::RcReadRespLast, SENDS + 3),
            (BthOpcode::RcWriteOnly, SENDS + 4)
        ]
    );
    for frame in frames.iter().filter(|f| f.from == 2) {
        assert_eq!(frame.headers().aeth().is_some(), frame.opcode() != BthOpcode::RcReadRespMiddle);
    }
}

/// Beyond the rows: a message longer than the advertised maximum is not started: LOC_LEN_ERR. A message of 2^31 bytes would take half of
/// all PSNs at an MTU of 256, and outstanding requests could not be distinguished from acknowledged ones.
#[test]
fn a_message_longer_than_advertised_is_not_begun() {
    let advertised: u32 = 1 << 30;
    for (more, header, error) in [
        (0, 0, CqeSyndrome::LocalProtErr),
        (1, 0, CqeSyndrome::LocalLengthErr),
        (0, 1, CqeSyndrome::LocalLengthErr),
        (advertised, 0, CqeSyndrome::LocalLengthErr),
    ] {
        let (mut bed, peer, _) = foreign(64, Access::LOCAL);
        // Far longer than the region, but the region is checked later.
        let from = bed.mr(1, 64, Access::LOCAL);
        let half = |more: u32| from.part(0, advertised / 2 + more);
        let send = Wr::new(Op::Send, &[half(0), half(more)]);
        bed.post(peer.qp, &if header == 0 { send } else { send.inline(&vec![0; header]) });
        assert_requester_failed(&mut bed, peer.qp, error);
        assert_eq!(brief(&bed.answers()), []);
    }
}

/// PRM, send WQE: inline data may come before data segments. UCX puts its headers there.
#[test]
fn inline_data_goes_before_the_segments_behind_it() {
    let (mut bed, [a, b], [from, to]) = ends(1024);
    let payload = bed.pattern(from, 7);
    // More blocks than the ring has, so that WQEs wrap.
    for round in 0..60u8 {
        let len = [1, 12, 13, 44, 60, 100][usize::from(round) % 6];
        let header = vec![round + 1; len];
        bed.post_recv(b, &[to.sge()]);
        bed.done(a, &Wr::send(from.part(0, 300)).inline(&header));
        assert_eq!(bed.one(b.recv_cq).byte_len as usize, len + 300);
        assert_eq!(bed.bytes(to)[..len + 300], [&header, &payload[..300]].concat(), "round {round}");
    }
    let physical = Sge { lkey: 0x200, ..from.part(0, 8) };
    let wc = bed.execute(a, &Wr::send(physical).inline(&[1]));
    assert_eq!(wc.error, Some(CqeSyndrome::LocalProtErr), "nor does it give a right to the reserved key");
}
