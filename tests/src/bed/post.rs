//! Work requests: WQEs in the rings, doorbell records, doorbells.

use super::{Av, Bed, Mr, Qp, Srq, Wc, objects::SrqRing};
use hwspec::{doorbell::BF_OFFSET, layout::prefix, wqe::*};

/// One scatter or gather entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address.
    pub va: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key.
    pub lkey: u32,
}

impl Mr {
    /// The whole region.
    pub fn sge(&self) -> Sge {
        self.part(0, self.len as u32)
    }
    /// `len` bytes from `offset`; may be out of bounds.
    pub fn part(&self, offset: u64, len: u32) -> Sge {
        Sge { va: self.va + offset, len, lkey: self.key }
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write {
        va: u64,
        rkey: u32,
    },
    WriteImm {
        va: u64,
        rkey: u32,
        imm: u32,
    },
    Read {
        va: u64,
        rkey: u32,
    },
    CompareSwap {
        va: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        va: u64,
        rkey: u32,
        add: u64,
    },
    /// Invalidates a local key.
    LocalInval(u32),
    Nop,
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct Wr {
    /// Its operation.
    pub op: Op,
    /// Local memory.
    pub sges: Vec<Sge>,
    /// Bytes in the WQE itself, instead of `sges`.
    pub inline: Option<Vec<u8>>,
    /// Generates a CQE on success.
    pub signaled: bool,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
    /// Sets the solicited event bit.
    pub solicited: bool,
    /// Address vector of a datagram.
    pub to: Option<Av>,
    /// XRC: the SRQ number.
    pub xrc_srqn: Option<u32>,
}

impl Wr {
    /// A signaled work request.
    pub fn new(op: Op, sges: &[Sge]) -> Self {
        Self {
            op,
            sges: sges.to_vec(),
            inline: None,
            signaled: true,
            fence: false,
            solicited: false,
            to: None,
            xrc_srqn: None,
        }
    }
    /// A SEND of `sge`.
    pub fn send(sge: Sge) -> Self {
        Self::new(Op::Send, &[sge])
    }
    /// A WRITE of `sge` to the start of `to`.
    pub fn write(sge: Sge, to: Mr) -> Self {
        Self::new(Op::Write { va: to.va, rkey: to.key }, &[sge])
    }
    /// A READ of the start of `from` into `sge`.
    pub fn read(sge: Sge, from: Mr) -> Self {
        Self::new(Op::Read { va: from.va, rkey: from.key }, &[sge])
    }
    /// A FETCH_ADD on the first word of `on`; the old value is written to `sge`.
    pub fn fetch_add(sge: Sge, on: Mr, add: u64) -> Self {
        Self::new(Op::FetchAdd { va: on.va, rkey: on.key, add }, &[sge])
    }
    /// A compare and swap on the first word of `on`; the old value is written to `sge`.
    pub fn compare_swap(sge: Sge, on: Mr, compare: u64, swap: u64) -> Self {
        Self::new(Op::CompareSwap { va: on.va, rkey: on.key, compare, swap }, &[sge])
    }
    /// Generates a CQE only on error.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }
    /// Sets the fence.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }
    /// Sets the solicited event bit.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }
    /// Puts the data into the WQE.
    #[must_use]
    pub fn inline(mut self, data: &[u8]) -> Self {
        self.inline = Some(data.to_vec());
        self
    }

    /// Makes it a datagram for `av`.
    #[must_use]
    pub fn to(mut self, av: Av) -> Self {
        self.to = Some(av);
        self
    }
    /// Makes it an XRC request for the SRQ `srqn`.
    #[must_use]
    pub fn for_srq(mut self, srqn: u32) -> Self {
        self.xrc_srqn = Some(srqn);
        self
    }

    /// Returns the WQE for block `index` of QP `qpn`, in whole segments.
    pub fn wqe(&self, qpn: u32, index: u16) -> Vec<u8> {
        let mut body = Vec::new();
        if let Some(av) = &self.to {
            body.extend_from_slice(&av.segment());
        }
        if let Some(srqn) = self.xrc_srqn {
            body.extend_from_slice(XrcSeg::with(|s| s.xrc_srqn(hwspec::handle::Srqn(srqn))).as_bytes());
        }
        let mut ctrl = CtrlSeg::zeroed();
        let raddr = |body: &mut Vec<u8>, va, rkey| {
            body.extend_from_slice(RaddrSeg::with(|s| s.raddr(va).rkey(rkey)).as_bytes());
        };
        let opcode = match self.op {
            Op::Nop => WqeOpcode::Nop,
            Op::Send => WqeOpcode::Send,
            Op::SendImm(imm) => {
                ctrl.set().imm(imm);
                WqeOpcode::SendImm
            }
            Op::SendInv(rkey) => {
                ctrl.set().imm(rkey);
                WqeOpcode::SendInval
            }
            Op::Write { va, rkey } => {
                raddr(&mut body, va, rkey);
                WqeOpcode::RdmaWrite
            }
            Op::WriteImm { va, rkey, imm } => {
                raddr(&mut body, va, rkey);
                ctrl.set().imm(imm);
                WqeOpcode::RdmaWriteImm
            }
            Op::Read { va, rkey } => {
                raddr(&mut body, va, rkey);
                WqeOpcode::RdmaRead
            }
            Op::CompareSwap { va, rkey, compare, swap } => {
                raddr(&mut body, va, rkey);
                let seg = AtomicSeg::with(|s| s.swap_add(swap).compare(compare));
                body.extend_from_slice(seg.as_bytes());
                WqeOpcode::AtomicCs
            }
            Op::FetchAdd { va, rkey, add } => {
                raddr(&mut body, va, rkey);
                body.extend_from_slice(AtomicSeg::with(|s| s.swap_add(add)).as_bytes());
                WqeOpcode::AtomicFa
            }
            Op::LocalInval(_) => WqeOpcode::Umr,
        };
        if let Some(data) = &self.inline {
            body.extend_from_slice(InlineSeg::new(data.len() as u16).as_bytes());
            body.extend_from_slice(data);
            body.resize(body.len().next_multiple_of(WQE_DS), 0);
        }
        self.sges.iter().for_each(|s| body.extend_from_slice(data_seg(s).as_bytes()));
        if let Op::LocalInval(key) = self.op {
            ctrl.set().imm(key);
            let umr = UmrCtrlSeg::with(|s| s.inline_data(true).mkey_mask(MkeyMask::FREE));
            let mkey = MkeyContextSeg::with(|s| s.free(true));
            body.extend_from_slice(umr.as_bytes());
            body.extend_from_slice(mkey.as_bytes());
        }
        let ds = ((CtrlSeg::SIZE + body.len()) / WQE_DS) as u8;
        ctrl.set()
            .wqe_idx(index)
            .opcode(opcode)
            .qpn(hwspec::handle::Qpn(qpn))
            .ds(ds)
            .fm(if self.fence { FenceMode::Fence } else { FenceMode::None })
            .ce(if self.signaled { CqeMode::Always } else { CqeMode::OnError })
            .se(self.solicited);
        let mut wqe = ctrl.as_bytes().to_vec();
        wqe.extend_from_slice(&body);
        wqe
    }
}

fn data_seg(sge: &Sge) -> DataSeg {
    DataSeg::with(|s| s.byte_count(sge.len & 0x7fff_ffff).lkey(sge.lkey).addr(sge.va))
}

/// Returns data segments, and the terminator if the list is shorter than its WQE.
fn scatter_list(sges: &[Sge], room: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = sges.iter().flat_map(|s| *data_seg(s).as_bytes()).collect();
    assert!(bytes.len() <= room, "{} scatter entries do not fit {room} bytes", sges.len());
    if bytes.len() < room {
        bytes.extend_from_slice(DataSeg::with(|s| s.lkey(INVALID_LKEY)).as_bytes());
    }
    bytes
}

impl Bed {
    /// Writes a work request to the send queue without ringing the doorbell. Returns the index of its first block.
    pub fn queue(&mut self, qp: Qp, wr: &Wr) -> u16 {
        let index = self.queues.qps[&qp].sq_pi;
        self.queue_wqe(qp, &wr.wqe(qp.qpn, index))
    }

    /// Like [`queue`](Self::queue), with the bytes of the WQE.
    pub fn queue_wqe(&mut self, qp: Qp, wqe: &[u8]) -> u16 {
        let q = self.queues.qps.get_mut(&qp).expect("a QP of this bed");
        let index = q.sq_pi;
        let blocks = wqe.len().div_ceil(WQE_BB).max(1);
        q.sq_pi = q.sq_pi.wrapping_add(blocks as u16);
        self.rewrite(qp, index, wqe);
        index
    }

    /// Returns the block in which the next send WQE begins.
    pub fn next_index(&self, qp: Qp) -> u16 {
        self.queues.qps[&qp].sq_pi
    }

    /// Overwrites block `index` of the send queue with a WQE, like a program that breaks the rules.
    pub fn rewrite(&mut self, qp: Qp, index: u16, wqe: &[u8]) {
        let q = self.queues.qps[&qp];
        let mask = (1u64 << q.log_sq) - 1;
        for (i, block) in wqe.chunks(WQE_BB).enumerate() {
            let slot = (u64::from(index) + i as u64) & mask;
            self.memory.put(q.at + q.sq_offset + slot * WQE_BB as u64, block);
        }
    }

    /// Updates the send counter of the doorbell record.
    pub fn publish(&mut self, qp: Qp) {
        let q = self.queues.qps[&qp];
        self.memory.put(q.record + 4, &u32::from(q.sq_pi).to_be_bytes());
    }

    /// Updates the doorbell record, rings the doorbell and runs the chip until it is idle.
    pub fn ring(&mut self, qp: Qp) {
        self.publish(qp);
        self.doorbell(qp);
        self.run();
    }

    /// Writes the doorbell register of a QP. The chip may act at once, but is not run to completion.
    pub fn doorbell(&mut self, qp: Qp) {
        let q = self.queues.qps[&qp];
        let last = q.sq_pi.wrapping_sub(1);
        let slot = u64::from(last) & ((1 << q.log_sq) - 1);
        let ctrl = self.memory.get(q.at + q.sq_offset + slot * WQE_BB as u64, 8);
        let value = u64::from_be_bytes(prefix(ctrl));
        // The last block may be in the middle of a WQE; the chip uses the record and only needs the QP number.
        let value = value & !0xffff_ff00 | u64::from(qp.qpn) << 8;
        self.write64(qp.fid, self.uar_register(qp.fid, BF_OFFSET), value);
    }

    /// Posts one send work request and runs the chip. Returns the index of its first block.
    pub fn post(&mut self, qp: Qp, wr: &Wr) -> u16 {
        let index = self.queue(qp, wr);
        self.ring(qp);
        index
    }

    /// Posts one send work request and returns its completion, which must be the only one.
    #[track_caller]
    pub fn execute(&mut self, qp: Qp, wr: &Wr) -> Wc {
        self.post(qp, wr);
        self.one(qp.send_cq)
    }

    /// Like [`execute`](Self::execute), for a request that must succeed.
    #[track_caller]
    pub fn done(&mut self, qp: Qp, wr: &Wr) -> Wc {
        let wc = self.execute(qp, wr);
        assert!(wc.is_ok(), "{wc:?}");
        wc
    }

    /// Posts several work requests with one doorbell.
    pub fn post_all(&mut self, qp: Qp, wrs: &[Wr]) -> Vec<u16> {
        let indices = wrs.iter().map(|wr| self.queue(qp, wr)).collect();
        self.ring(qp);
        indices
    }

    /// Posts `count` equal receives.
    pub fn post_recvs(&mut self, qp: Qp, count: usize, sges: &[Sge]) {
        (0..count).for_each(|_| _ = self.post_recv(qp, sges));
    }

    /// Posts a receive. Returns its index.
    pub fn post_recv(&mut self, qp: Qp, sges: &[Sge]) -> u16 {
        let q = self.queues.qps.get_mut(&qp).expect("a QP of this bed");
        assert!(q.srq.is_none(), "receives of this QP come from an SRQ");
        let index = q.rq_pi;
        q.rq_pi = q.rq_pi.wrapping_add(1);
        let q = *q;
        let slot = u64::from(index) & ((1 << q.log_rq) - 1);
        self.memory.put(q.at + slot * q.stride, &scatter_list(sges, q.stride as usize));
        self.memory.put(q.record, &u32::from(q.rq_pi).to_be_bytes());
        index
    }

    /// Posts a receive to an SRQ. Returns the index of its WQE.
    pub fn post_srq(&mut self, srq: Srq, sges: &[Sge]) -> u16 {
        let ring: &mut SrqRing = self.queues.srqs.get_mut(&srq).expect("an SRQ of this bed");
        let index = ring.free.pop_front().expect("room in the SRQ");
        ring.counter = ring.counter.wrapping_add(1);
        let (at, record, counter) = (ring.at + u64::from(index) * ring.stride, ring.record, ring.counter);
        self.memory.put(at + WQE_DS as u64, &scatter_list(sges, Self::SRQ_SCATTER));
        self.memory.put(record, &u32::from(counter).to_be_bytes());
        index
    }

    /// Returns a WQE of an SRQ to the free list after its completion.
    pub(super) fn recycle(&mut self, srq: Srq, index: u16) {
        if let Some(ring) = self.queues.srqs.get_mut(&srq) {
            let next = NextSeg::with(|s| s.next_wqe_index(index));
            let tail = ring.at + u64::from(ring.tail) * ring.stride;
            // The former tail is now linked and may be used; one WQE always remains as the tail.
            ring.free.push_back(ring.tail);
            ring.tail = index;
            self.memory.put(tail, next.as_bytes());
        }
    }
}
