//! Packets: arbitrary headers and payload with a correct ICRC, and frames of arbitrary bytes.

use crate::{
    bytes::Bytes,
    stage::{Others, Stage},
};
use hwspec::{
    handle::Qpn,
    layout::Bits,
    wire::{BthOpcode, Syndrome, bth::Transport},
};
use tests::bed::{Op, Pkt, US, Wr, reseal};

/// Maximum number of packets per input.
const PACKETS: usize = 24;

/// Sends packets built from `data`.
pub fn packet(data: &[u8]) {
    let mut input = Bytes(data);
    let mut stage = Stage::new();
    // Outstanding requests that injected packets may answer.
    let busy = [
        Wr::new(Op::Write { va: 0, rkey: 0 }, &[stage.mr.part(0, 600)]),
        Wr::new(Op::Read { va: 0, rkey: 0 }, &[stage.mr.part(1024, 600)]),
        Wr::new(Op::FetchAdd { va: 0, rkey: 0, add: 1 }, &[stage.mr.part(2048, 8)]),
        Wr::send(stage.mr.part(0, 100)),
    ];
    stage.bed.post_all(stage.foreign.qp, &busy);
    for _ in 0..PACKETS {
        if input.is_empty() {
            break;
        }
        let (frame, wait) = frame(&stage, &mut input);
        stage.bed.inject(&frame);
        stage.bed.answers();
        stage.bed.advance(wait);
    }
    stage.judge();
}

/// Builds a frame and the time to wait after it.
fn frame(stage: &Stage, input: &mut Bytes<'_>) -> (Vec<u8>, u64) {
    let kind = input.u8();
    let peer = stage.foreign;
    let opcode = BthOpcode::from_raw(if kind & 1 == 0 { input.u8() % 0x18 } else { input.u8() });
    // A PSN near the expected one, as a request or as a response.
    let base = if kind & 2 == 0 { peer.path.rq_psn } else { peer.path.sq_psn };
    let psn = base.wrapping_add_signed(i32::from(input.u8() as i8));
    let len = match input.u8() {
        n @ 0..=127 => usize::from(n),
        128..=191 => 256,
        n => usize::from(n) * 8,
    };
    let (va, key) = match input.u8() % 4 {
        0..=2 => (stage.mr.va + u64::from(input.u16()) % 8300, stage.mr.key),
        _ => (input.u64(), input.u32()),
    };
    let dma_len = if kind & 4 == 0 { len as u32 } else { input.u32() };
    let mut pkt = Pkt::new(opcode, psn)
        .payload(&vec![kind; len])
        .reth(va, key, dma_len)
        .atomic(va & !7, key, 1, 2)
        .aeth(Syndrome::from_bits(input.u8().into()), 1)
        .imm(input.u32())
        .ieth(key);
    if kind & 8 == 0 {
        pkt = pkt.ack_req();
    }
    // For a QP of another service, with the headers of that service.
    let others = stage.others;
    let (to, transport, qkey) = match input.u8() % 16 {
        0 | 1 => (others.datagram.qpn, Some(Transport::Ud), Others::QKEY),
        2 => (1, Some(Transport::Ud), Others::GENERAL_QKEY),
        3 => (0xff_ffff, Some(Transport::Ud), Others::QKEY),
        4 | 5 => (others.unreliable.qpn, Some(Transport::Uc), 0),
        6 | 7 => (others.target.qpn, Some(Transport::Xrc), 0),
        8 => (input.u32() & 0xff_ffff, None, 0),
        _ => (peer.qp.qpn, None, 0),
    };
    let srqn = if input.u8() % 8 == 0 { input.u32() & 0xff_ffff } else { others.srq.srqn };
    let opcode = transport.map_or(opcode, |transport| opcode.on(transport));
    pkt = pkt.deth(qkey, 7).xrceth(srqn).bth(|bth| bth.dest_qp(Qpn(to)).opcode(opcode));
    let mut frame = peer.frame(&pkt);
    if kind & 16 != 0 {
        for _ in 0..input.u8() % 4 {
            let (at, flip) = (usize::from(input.u8()), input.u8());
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= flip;
            }
        }
        reseal(&mut frame);
    }
    if kind & 32 != 0 {
        hwspec::wire::ip::mark_congested(&mut frame);
    }
    if kind & 64 != 0 {
        frame.truncate(usize::from(input.u16()));
    }
    let wait = if kind & 128 != 0 { u64::from(input.u8()) * US } else { 0 };
    (frame, wait)
}
