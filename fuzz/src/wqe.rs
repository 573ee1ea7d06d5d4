//! Work requests: any bytes in the rings, any counters in the doorbell records, any doorbell.

use crate::{bytes::Bytes, stage::Stage};
use tests::bed::{Op, Sge, US, Wr};

/// Work requests in one input at most.
const REQUESTS: usize = 24;

/// Work requests made of `data`.
pub fn wqe(data: &[u8]) {
    let mut input = Bytes(data);
    let mut stage = Stage::new();
    for _ in 0..REQUESTS {
        if input.is_empty() {
            break;
        }
        let kind = input.u8();
        let qp = if kind & 0x80 == 0 { stage.victim } else { stage.foreign.qp };
        match kind & 7 {
            // Nonsense of any length.
            0 => {
                let len = usize::from(input.u8());
                let raw = input.take(len).to_vec();
                stage.bed.queue_wqe(qp, &raw);
            }
            // A sound one, with some bytes changed.
            1..=4 => {
                let wr = request(&stage, &mut input);
                let mut bytes = wr.wqe(qp.qpn, u16::from(input.u8()));
                for _ in 0..input.u8() % 4 {
                    let (at, flip) = (usize::from(input.u8()), input.u8());
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= flip;
                    }
                }
                stage.bed.queue_wqe(qp, &bytes);
            }
            // A receive with any scatter list.
            5 => {
                let sges: Vec<Sge> = (0..input.u8() % 4).map(|_| sge(&stage, &mut input)).collect();
                stage.bed.post_recv(qp, &sges);
            }
            6 => stage.bed.advance(u64::from(input.u8()) * US),
            _ => {
                let uar = stage.bed.state(1).uar;
                let (offset, value) = (u32::from(input.u16()) & 0xff8, input.u64());
                let page = if kind & 0x40 == 0 { uar } else { u32::from(input.u8()) };
                stage.bed.write64(1, (page << 12) + offset, value);
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
