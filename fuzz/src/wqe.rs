//! Work requests: arbitrary bytes in the rings, arbitrary counters in the doorbell records, arbitrary doorbells.

use crate::{bytes::Bytes, stage::Stage};
use hwspec::{context::mkey::MkeyContext, wqe::MkeyMask};
use tests::bed::{Av, Op, Sge, US, Umr, Wr};

/// Maximum number of work requests per input.
const REQUESTS: usize = 24;

/// Posts work requests built from `data`.
pub fn wqe(data: &[u8]) {
    let mut input = Bytes(data);
    let mut stage = Stage::new();
    for _ in 0..REQUESTS {
        if input.is_empty() {
            break;
        }
        let kind = input.u8();
        let others = stage.others;
        let qp = match (kind & 0x80, input.u8() % 8) {
            (0, 0..=3) => stage.victim,
            (_, 0..=3) => stage.foreign.qp,
            (_, 4) => others.datagram,
            (_, 5) => others.general,
            (_, 6) => others.umr,
            _ => others.unreliable,
        };
        match kind & 7 {
            // Arbitrary bytes of arbitrary length.
            0 => {
                let len = usize::from(input.u8());
                let raw = input.take(len).to_vec();
                stage.bed.queue_wqe(qp, &raw);
            }
            // A valid work request with some bytes changed.
            1..=4 => {
                let index = stage.bed.next_index(qp);
                let mut bytes = match qp == others.umr || input.u8() % 8 == 0 {
                    true => umr(&stage, &mut input).wqe(qp, index),
                    false => {
                        let mut wr = request(&stage, &mut input);
                        if qp == others.datagram || qp == others.general {
                            wr.to = Some(address(&stage, &mut input));
                        }
                        wr.wqe(qp.qpn, index)
                    }
                };
                for _ in 0..input.u8() % 4 {
                    let (at, flip) = (usize::from(input.u8()), input.u8());
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= flip;
                    }
                }
                stage.bed.queue_wqe(qp, &bytes);
            }
            // A receive with an arbitrary scatter list.
            5 if qp != others.umr => {
                let sges: Vec<Sge> = (0..input.u8() % 4).map(|_| sge(&stage, &mut input)).collect();
                stage.bed.post_recv(qp, &sges);
            }
            6 => stage.bed.advance(u64::from(input.u8()) * US),
            _ => {
                let uar = stage.bed.state(1).uar;
                let (offset, value) = (u64::from(input.u16()) & 0xff8, input.u64());
                let page = if kind & 0x40 == 0 { uar } else { u32::from(input.u8()) };
                stage.bed.write64(1, (u64::from(page) << 12) + offset, value);
            }
        }
        if kind & 0x10 == 0 {
            stage.bed.publish(qp);
        }
        if kind & 0x20 == 0 {
            stage.bed.doorbell(qp);
        }
        stage.bed.completions(qp.send_cq);
    }
    stage.judge();
}

fn sge(stage: &Stage, input: &mut Bytes<'_>) -> Sge {
    let kind = input.u8();
    let (offset, len) = (u64::from(input.u16()) % 9000, u32::from(input.u16()) % 9000);
    match kind % 4 {
        0..=2 => stage.mr.part(offset, len),
        _ => Sge { va: input.u64(), len: input.u32(), lkey: input.u32() },
    }
}

/// Builds the address vector of a datagram.
fn address(stage: &Stage, input: &mut Bytes<'_>) -> Av {
    let to = match input.u8() % 4 {
        0 => stage.others.general,
        1 => stage.victim,
        _ => stage.others.datagram,
    };
    let qkey = if input.u8() % 2 == 0 { 0x8000_0000 } else { input.u32() };
    match input.u8() % 4 {
        0 => Av::group(input.u8() % 2, qkey),
        1 => Av { qpn: input.u32() & 0xff_ffff, sgid_index: input.u8(), ..stage.bed.av(to, qkey) },
        _ => stage.bed.av(to, qkey),
    }
}

/// Builds a UMR.
fn umr(stage: &Stage, input: &mut Bytes<'_>) -> Umr {
    let kind = input.u8();
    let key = match kind & 3 {
        0 => stage.others.keys[0],
        1 => stage.others.keys[1],
        2 => stage.mr.key,
        _ => input.u32(),
    };
    let context = MkeyContext::with(|s| {
        s.free(kind & 4 != 0)
            .lr(true)
            .lw(true)
            .rr(true)
            .rw(true)
            .pd(stage.bed.state(1).pd)
            .mkey_7_0(key as u8)
            .start_addr(stage.mr.va)
            .len(u64::from(input.u16()))
            .log_page_size(12 + input.u8() % 4 / 3)
    });
    let entry = |input: &mut Bytes<'_>| match input.u8() % 4 {
        0 => input.u64(),
        1 => u64::from(input.u16()) << 32 | u64::from(stage.mr.key),
        2 => stage.mr.va,
        _ => stage.mr.at & !0xfff | 3,
    };
    let inline: Vec<u64> = (0..input.u8() % 20).map(|_| entry(input)).collect();
    let list = (kind & 8 != 0).then(|| (sge(stage, input), u16::from(input.u8())));
    let offset = (kind & 16 != 0).then(|| u16::from(input.u8() % 16));
    let mask = if kind & 32 == 0 {
        MkeyMask::all() - MkeyMask::BSF_EN
    } else {
        MkeyMask::from_bits_retain(input.u64())
    };
    let (check, tied) = (input.u8() % 4, input.u8() % 4 == 0);
    Umr { key, check, mask, context, inline, list, offset, tied }
}

fn request(stage: &Stage, input: &mut Bytes<'_>) -> Wr {
    let (kind, flags) = (input.u8(), input.u8());
    let (va, rkey) = match flags & 3 {
        0..=2 => (stage.remote.va + u64::from(input.u16()), stage.remote.key),
        _ => (input.u64(), input.u32()),
    };
    let op = match kind % 11 {
        0 => Op::Send,
        1 => Op::SendImm(input.u32()),
        2 => Op::SendInv(stage.remote.key),
        3 => Op::Write { va, rkey },
        4 => Op::WriteImm { va, rkey, imm: input.u32() },
        5 => Op::Read { va, rkey },
        6 => Op::CompareSwap { va, rkey, compare: input.u64(), swap: input.u64() },
        7 => Op::FetchAdd { va, rkey, add: input.u64() },
        8 => Op::LocalInval(stage.mr.key),
        9 => Op::LocalInval(input.u32()),
        _ => Op::Nop,
    };
    let sges: Vec<Sge> = (0..flags >> 5).map(|_| sge(stage, input)).collect();
    let mut wr = Wr::new(op, &sges);
    wr.fence = flags & 4 != 0;
    wr.signaled = flags & 8 == 0;
    wr.solicited = flags & 16 != 0;
    if flags & 0x60 == 0x60 {
        let len = usize::from(input.u8());
        wr.inline = Some(input.take(len).to_vec());
    }
    wr
}
