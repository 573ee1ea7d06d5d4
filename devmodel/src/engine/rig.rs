//! Connected functions without a driver: queues in flat memory, rows filled directly. Basis of the simulations and of the
//! pipeline's own tests.

use crate::{
    Adapter, Config,
    host::{FlatMachine, Iova, Party},
    identity,
    region::{Func, Geometry, Region, Sync},
    state::{CqRow, EqRow, MkeyRow, PdRow, QpFlags, QpRow, RoceAddress, WqMemory},
    translate::access,
    transport::Rights,
};
use hwspec::{
    context::{AccessMode, QpState, mkey::ANY_QP, qp::NO_USER_INDEX},
    cqe::{Cqe64, CqeOpcode},
    layout::Layout,
    wqe::{CqeMode, CtrlSeg, DataSeg, InlineSeg, RaddrSeg, WqeOpcode},
};
use std::{collections::BTreeMap, sync::atomic::Ordering::Release};

/// Sizes of a rig.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub geometry: Geometry,
    /// log2 of the 64-byte blocks of a send queue.
    pub log_sq: u8,
    /// log2 of the entries of a receive queue.
    pub log_rq: u8,
    /// log2 of the entries of a completion queue, at least 6.
    pub log_cq: u8,
    /// Bytes of data memory for the near sides, and the same again for the far sides.
    pub data: u64,
}

impl Sizes {
    /// The sizes for pairs of benchmark programs.
    pub(crate) const MEASURE: Self =
        Self { geometry: Geometry::SMALL, log_sq: 10, log_rq: 8, log_cq: 9, data: 16 << 20 };
    /// 64-byte blocks of a send queue.
    pub(crate) const fn sq_blocks(self) -> u32 {
        1 << self.log_sq
    }
}

const LOG_RQ_STRIDE: u8 = 5;
const ME: Party = Party(1);

/// One side of a connection: a QP with its queues, a CQ, an EQ and a key for all memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub fid: u8,
    pub qpn: u32,
    pub key: u32,
    pub uar: u32,
    sq: Iova,
    rq: Iova,
    cq: Iova,
    dbr: Iova,
    cq_dbr: Iova,
    /// Data memory.
    pub data: Iova,
    sq_pi: u16,
    rq_pi: u16,
    ci: u32,
}

/// Address of the first queue.
const FIRST: Iova = 0x10_0000;

/// Attributes of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub mtu: u16,
    pub psn: u32,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub ack_timeout: u8,
    pub log_rd_atomic: u8,
    /// Traffic class in the packets' IP headers.
    pub traffic_class: u8,
    /// Small messages arrive in their completions (scatter to CQE), as rdma-core requests.
    pub scatter_to_cqe: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            mtu: 4096,
            psn: 0xff_fff0,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 14,
            log_rd_atomic: 4,
            traffic_class: 0,
            scatter_to_cqe: false,
        }
    }
}

/// Connected functions: side `i` with side `i ^ 1`.
pub(crate) struct Rig {
    pub adapter: Adapter,
    pub machine: FlatMachine,
    pub sides: Vec<Side>,
    sizes: Sizes,
    /// Buffer for a request, reused.
    request: Vec<u8>,
}

impl Rig {
    #[cfg(test)]
    /// Functions 1 and 2, with a queue pair each.
    pub(crate) fn new(config: Config, link: Link) -> Self {
        Self::of_pairs(config, link, &[[1, 2]], Sizes::MEASURE)
    }

    /// A connected pair of queue pairs for each pair of functions. The near sides share one data area, the far sides another.
    pub(crate) fn of_pairs(config: Config, link: Link, pairs: &[[u8; 2]], sizes: Sizes) -> Self {
        let mut machine = FlatMachine { memory: vec![0; FIRST as usize], ..FlatMachine::default() };
        let adapter = Adapter::power_on(Region::private(sizes.geometry), config, &mut machine);
        // Completion queues are contiguous, so that an address identifies the owner of its queue.
        let mut free = FIRST + 2 * pairs.len() as u64 * cq_bytes(sizes);
        let mut own = BTreeMap::new();
        let mut sides = Vec::new();
        for fid in pairs.iter().flatten() {
            let own = *own.entry(*fid).or_insert_with(|| Own::of(&adapter, &mut machine, *fid, &mut free));
            let cq = FIRST + sides.len() as u64 * cq_bytes(sizes);
            sides.push(create(&adapter, &mut machine, *fid, own, cq, &mut free, sizes));
        }
        for i in 0..sides.len() {
            connect(&adapter, &mut machine, sides[i], sides[i ^ 1], link);
            sides[i].data = free + (i as u64 & 1) * sizes.data;
        }
        machine.memory.resize((free + 2 * sizes.data) as usize, 0);
        let cqs = FIRST as usize..(FIRST + 2 * pairs.len() as u64 * cq_bytes(sizes)) as usize;
        machine.memory[cqs].fill(0xf1);
        Self { adapter, machine, sides, sizes, request: Vec::new() }
    }

    /// The side with `at` in its completion queue.
    pub(crate) fn side_of_cq(&self, at: Iova) -> Option<usize> {
        let i = (at.checked_sub(FIRST)? / cq_bytes(self.sizes)) as usize;
        (i < self.sides.len()).then_some(i)
    }

    /// Reads or changes rows of side `i`.
    #[cfg(test)]
    pub(crate) fn with<T>(&mut self, i: usize, f: impl FnOnce(&mut Func<'_>) -> T) -> T {
        let mut func = Func::lock(self.adapter.region(), self.sides[i].fid, &mut self.machine);
        let out = f(&mut func);
        func.commit(&mut self.machine);
        out
    }

    /// The QP row of side `i`.
    #[cfg(test)]
    pub(crate) fn qp(&mut self, i: usize) -> QpRow {
        let qpn = self.sides[i].qpn;
        self.with(i, |func| *func.get::<QpRow>(qpn).expect("the rig's QP"))
    }

    /// Writes a send WQE and updates the doorbell record; the caller rings the doorbell. Returns the number of blocks of the WQE.
    pub(crate) fn post_send(
        &mut self,
        i: usize,
        opcode: WqeOpcode,
        len: u32,
        imm: u32,
        signaled: bool,
    ) -> usize {
        let peer = self.sides[i ^ 1];
        let list = [(self.sides[i].key, self.sides[i].data, len)];
        self.post_list(i, opcode, &list[..usize::from(len > 0)], (peer.data, peer.key), imm, signaled)
    }

    /// Like [`post_send`](Self::post_send), with the data inline in the WQE.
    pub(crate) fn post_inline(&mut self, i: usize, opcode: WqeOpcode, len: u32, signaled: bool) -> usize {
        let (at, peer) = (self.sides[i].data as usize, self.sides[i ^ 1]);
        let segment = |request: &mut Vec<u8>, memory: &[u8]| {
            let begin = request.len();
            request.extend_from_slice(InlineSeg::new(len as u16).as_bytes());
            request.extend_from_slice(&memory[at..at + len as usize]);
            request.resize(begin + InlineSeg::span(len as usize), 0);
        };
        self.post(i, opcode, segment, (peer.data, peer.key), 0, signaled)
    }

    /// Like [`post_send`](Self::post_send), with an explicit gather list and remote address.
    pub(crate) fn post_list(
        &mut self,
        i: usize,
        opcode: WqeOpcode,
        list: &[(u32, Iova, u32)],
        remote: (Iova, u32),
        imm: u32,
        signaled: bool,
    ) -> usize {
        let segments = |request: &mut Vec<u8>, _: &[u8]| {
            for (lkey, addr, len) in list {
                let seg = DataSeg::with(|s| s.byte_count(*len).lkey(*lkey).addr(*addr));
                request.extend_from_slice(seg.as_bytes());
            }
        };
        self.post(i, opcode, segments, remote, imm, signaled)
    }

    /// Posts a request. `segments` appends its data segments and is passed the machine's memory.
    fn post(
        &mut self,
        i: usize,
        opcode: WqeOpcode,
        segments: impl FnOnce(&mut Vec<u8>, &[u8]),
        remote: (Iova, u32),
        imm: u32,
        signaled: bool,
    ) -> usize {
        let side = &mut self.sides[i];
        let whole = &mut self.request;
        let (mut raddr, mut ctrl) = (RaddrSeg::zeroed(), CtrlSeg::zeroed());
        whole.clear();
        whole.extend_from_slice(ctrl.as_bytes());
        raddr.set().raddr(remote.0).rkey(remote.1);
        if opcode.has_raddr() {
            whole.extend_from_slice(raddr.as_bytes());
        }
        if opcode.is_atomic() {
            // Swap or add `imm`; compare with 0.
            whole.extend_from_slice(&u64::from(imm).to_be_bytes());
            whole.extend_from_slice(&[0; 8]);
        }
        segments(whole, &self.machine.memory);
        ctrl.set()
            .wqe_idx(side.sq_pi)
            .opcode(opcode)
            .qpn(hwspec::handle::Qpn(side.qpn))
            .ds((whole.len() / 16) as u8)
            .imm(imm);
        ctrl.set().ce(if signaled { CqeMode::Always } else { CqeMode::OnError });
        whole[..ctrl.as_bytes().len()].copy_from_slice(ctrl.as_bytes());
        for (n, block) in whole.chunks(64).enumerate() {
            let slot = u64::from(side.sq_pi.wrapping_add(n as u16)) & ((1 << self.sizes.log_sq) - 1);
            let at = (side.sq + slot * 64) as usize;
            self.machine.memory[at..at + block.len()].copy_from_slice(block);
        }
        let blocks = whole.len().div_ceil(64);
        side.sq_pi = side.sq_pi.wrapping_add(blocks as u16);
        let at = side.dbr as usize + 4;
        self.machine.memory[at..at + 4].copy_from_slice(&u32::from(side.sq_pi).to_be_bytes());
        blocks
    }

    /// The send doorbell of side `i`.
    pub(crate) fn doorbell(&self, i: usize) -> crate::mlx5::Job {
        crate::mlx5::Job::Doorbell { qpn: self.sides[i].qpn, uar: self.sides[i].uar }
    }

    /// The send counter of side `i`, which its doorbell record has.
    pub(crate) fn posted(&self, i: usize) -> u16 {
        self.sides[i].sq_pi
    }

    /// Posts a receive of `len` bytes at `at`.
    pub(crate) fn post_recv(&mut self, i: usize, at: Iova, len: u32) {
        let side = &mut self.sides[i];
        let slot = u64::from(side.rq_pi) & ((1 << self.sizes.log_rq) - 1);
        let to = (side.rq + (slot << LOG_RQ_STRIDE)) as usize;
        let seg = DataSeg::with(|s| s.byte_count(len).lkey(side.key).addr(at));
        let end = DataSeg::with(|s| s.lkey(hwspec::wqe::INVALID_LKEY));
        self.machine.memory[to..to + 16].copy_from_slice(seg.as_bytes());
        self.machine.memory[to + 16..to + 32].copy_from_slice(end.as_bytes());
        side.rq_pi = side.rq_pi.wrapping_add(1);
        let at = side.dbr as usize;
        self.machine.memory[at..at + 4].copy_from_slice(&u32::from(side.rq_pi).to_be_bytes());
    }

    /// Polls the next completion of side `i`.
    pub(crate) fn poll(&mut self, i: usize) -> Option<Cqe64> {
        let side = &mut self.sides[i];
        let at = (side.cq + u64::from(side.ci & ((1 << self.sizes.log_cq) - 1)) * 64) as usize;
        let cqe = Cqe64::read(&self.machine.memory[at..at + 64]);
        if cqe.owner() != (side.ci >> self.sizes.log_cq & 1 != 0) || cqe.opcode() == CqeOpcode::Invalid {
            return None;
        }
        side.ci = side.ci.wrapping_add(1);
        let at = side.cq_dbr as usize;
        self.machine.memory[at..at + 4].copy_from_slice(&(side.ci & 0xff_ffff).to_be_bytes());
        Some(cqe)
    }

    /// `len` bytes of side `i`'s data from `from` on.
    #[cfg(test)]
    pub(crate) fn data(&mut self, i: usize, from: u64, len: usize) -> &mut [u8] {
        let at = (self.sides[i].data + from) as usize;
        &mut self.machine.memory[at..at + len]
    }
}

fn pages(func: &mut Func<'_>, free: &mut Iova, bytes: u64) -> (WqMemory, Iova) {
    let at = *free;
    let pages = bytes.div_ceil(4096).max(1);
    *free += pages * 4096;
    let range = func.alloc_mtt(pages as u32).expect("translation entries");
    for page in 0..pages {
        func.set_mtt(range.first + page as u32, (at + page * 4096) | 3);
    }
    (WqMemory { mtt: range.first, pages: pages as u32, log_page: 12, offset: 0 }, at)
}

fn cq_bytes(sizes: Sizes) -> u64 {
    64 << sizes.log_cq
}

/// The objects that a function has once for all of its queue pairs.
#[derive(Clone, Copy)]
struct Own {
    pd: u32,
    eqn: u32,
    key: u32,
}

impl Own {
    fn of(adapter: &Adapter, machine: &mut FlatMachine, fid: u8, free: &mut Iova) -> Self {
        adapter.region().sync(fid, Sync::Present).store(1, Release);
        let mut func = Func::lock(adapter.region(), fid, machine);
        let f = &mut func;
        // Memory Space Enable and Bus Master Enable.
        *f.function_mut(|x| &mut x.pci_command) = 6;
        *f.function_mut(|x| &mut x.mac) = identity::mac(NODE, fid);
        f.function_mut(|x| &mut x.roce)[0] = RoceAddress {
            gid: gid(fid),
            mac: identity::mac(NODE, fid),
            valid: 1,
            version: 2,
            ..RoceAddress::default()
        };
        *f.function_mut(|x| &mut x.vport_state) = 1;
        f.function_mut(|x| &mut x.ib.pkeys)[0] = 0xffff;
        let pd = f.alloc::<PdRow>(0, ME).expect("a PD");
        let pd = f.number::<PdRow>(pd);
        let eqn = f.alloc::<EqRow>(0, ME).expect("an EQ");
        let memory = pages(f, free, 64 << 8).0;
        let eq = f.row_mut::<EqRow>(eqn).expect("the EQ");
        (eq.memory, eq.log_size, eq.mask) = (memory, 8, [u64::MAX; 4]);
        let key = f.alloc_from::<MkeyRow>(0, ME, 16).expect("a key");
        let number = f.number::<MkeyRow>(key) << 8 | 0x5a;
        let row = f.row_mut::<MkeyRow>(key).expect("the key");
        (row.variant, row.mode, row.pd, row.flags) = (0x5a, AccessMode::Pa.raw(), pd, 1);
        row.qpn = ANY_QP;
        row.access = access::LENGTH64
            | access::LOCAL_READ
            | access::LOCAL_WRITE
            | access::REMOTE_READ
            | access::REMOTE_WRITE
            | access::ATOMIC;
        func.commit(machine);
        Self { pd, eqn, key: number }
    }
}

fn create(
    adapter: &Adapter,
    machine: &mut FlatMachine,
    fid: u8,
    own: Own,
    cq_at: Iova,
    free: &mut Iova,
    sizes: Sizes,
) -> Side {
    let mut func = Func::lock(adapter.region(), fid, machine);
    let f = &mut func;
    let cq = f.alloc::<CqRow>(0, ME).expect("a CQ");
    let cqn = f.number::<CqRow>(cq);
    let memory = pages(f, &mut cq_at.clone(), cq_bytes(sizes)).0;
    let (_, dbr) = pages(f, free, 4096);
    let row = f.row_mut::<CqRow>(cq).expect("the CQ");
    (row.memory, row.log_size, row.eqn, row.dbr) = (memory, sizes.log_cq.into(), own.eqn, dbr + 64);
    let qp = f.alloc_from::<QpRow>(0, ME, 2).expect("a QP");
    let qpn = f.number::<QpRow>(qp);
    let rq_bytes = 1u64 << (sizes.log_rq + LOG_RQ_STRIDE);
    let (memory, rq) = pages(f, free, rq_bytes + (64 << sizes.log_sq));
    let row = f.row_mut::<QpRow>(qp).expect("the QP");
    (row.memory, row.sq_offset, row.pd, row.uar, row.dbr) = (memory, rq_bytes as u32, own.pd, 7, dbr);
    (row.log_sq, row.log_rq, row.log_rq_stride) = (sizes.log_sq, sizes.log_rq, LOG_RQ_STRIDE);
    (row.cqn_snd, row.cqn_rcv, row.user_index) = (cqn, cqn, NO_USER_INDEX);
    func.commit(machine);
    machine.memory.resize(machine.memory.len().max(*free as usize), 0);
    Side {
        fid,
        qpn,
        key: own.key,
        uar: 7,
        sq: rq + rq_bytes,
        rq,
        cq: cq_at,
        dbr,
        cq_dbr: dbr + 64,
        data: 0,
        sq_pi: 0,
        rq_pi: 0,
        ci: 0,
    }
}

/// Node number.
const NODE: u16 = 0;

fn gid(fid: u8) -> [u8; 16] {
    hwspec::wire::ip::gid_of_v4([127, 0, 0, fid + 1])
}

fn connect(adapter: &Adapter, machine: &mut FlatMachine, side: Side, peer: Side, link: Link) {
    let mut func = Func::lock(adapter.region(), side.fid, machine);
    let q = func.get_mut::<QpRow>(side.qpn).expect("the QP");
    (q.state, q.mtu, q.remote_qpn) = (QpState::Rts.raw(), link.mtu, peer.qpn);
    // On InfiniBand the destination is a LID.
    q.path.rlid = identity::lid(0, peer.fid);
    (q.path.dmac, q.path.dgid, q.path.tclass) =
        (identity::mac(NODE, peer.fid), gid(peer.fid), link.traffic_class);
    q.set(QpFlags::SCATTER_RES, link.scatter_to_cqe);
    let (requester, responder) = (&mut q.requester, &mut q.responder);
    (requester.retry_count, requester.retries_left) = (link.retry_count, link.retry_count);
    (requester.rnr_retry, requester.rnr_left) = (link.rnr_retry, link.rnr_retry);
    (requester.ack_timeout, requester.log_reads) = (link.ack_timeout, link.log_rd_atomic);
    (responder.log_resources, responder.min_rnr_nak) = (link.log_rd_atomic, 12);
    requester.begin(link.psn);
    responder.begin(link.psn);
    responder.allow(Rights::all(), true);
    func.commit(machine);
}
