//! Objects other than the QP, created through commands.

use super::{Bed, Qp, command::CommandError, qp::QpQueues};
use devmodel::host::Party;
use hwspec::{
    cmd::{CmdIn, CmdOut, Opcode, cq::*, eq::*, mkey::*, resource::*, srq::*},
    context::{
        AccessMode,
        cq::CqContext,
        eq::EqContext,
        mkey::MkeyContext,
        srq::{RmpContext, SrqContext, XrcSrqContext},
        wq::{CYCLIC, WorkQueue},
    },
    cqe, eqe,
    layout::Layout,
    wqe::{NextSeg, WQE_DS},
};
use std::collections::BTreeMap;

/// Access rights of a memory region (`ibv_access_flags`), as booleans of the mkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The chip may write for local work.
    pub local_write: bool,
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may do atomics.
    pub remote_atomic: bool,
    /// Peers may invalidate the key.
    pub remote_invalidate: bool,
}

impl Access {
    /// All rights.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        remote_invalidate: false,
    };
    /// Local reading only.
    pub const LOCAL_READ: Self = Self {
        local_write: false,
        remote_write: false,
        remote_read: false,
        remote_atomic: false,
        remote_invalidate: false,
    };
    /// Local reading and writing.
    pub const LOCAL: Self = Self { local_write: true, ..Self::LOCAL_READ };
}

/// A piece of a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Bus address.
    pub at: u64,
    /// Length in bytes.
    pub len: usize,
}

/// A memory region over its own buffer. Its virtual addresses differ from the bus addresses by [`VA`](Self::VA), so that confusing them is
/// detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// Function.
    pub fid: u8,
    /// Start address in work requests.
    pub va: u64,
    /// Length in bytes.
    pub len: usize,
    /// The key, both local and remote.
    pub key: u32,
    /// Bus address of its first byte.
    pub at: u64,
}

impl Mr {
    /// Difference between virtual and bus addresses.
    pub const VA: u64 = 0x7000_0000_0000;
}

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cq {
    /// Function.
    pub fid: u8,
    /// Number.
    pub cqn: u32,
}

/// An event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Eq {
    /// Function.
    pub fid: u8,
    /// Number.
    pub eqn: u8,
}

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Srq {
    /// Function.
    pub fid: u8,
    /// Number.
    pub srqn: u32,
}

/// The owner's state of a CQE or EQE ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub at: u64,
    pub log: u8,
    pub ci: u32,
    pub record: u64,
    pub arm_sn: u8,
}

/// The owner's state of an SRQ WQE ring.
#[derive(Clone, Debug)]
pub(super) struct SrqRing {
    pub at: u64,
    pub stride: u64,
    /// Free WQEs in order: the next post uses the first; returned ones are appended.
    pub free: std::collections::VecDeque<u16>,
    pub tail: u16,
    pub counter: u16,
    pub record: u64,
}

/// All rings, as kept by the owner of the queues.
#[derive(Clone, Default)]
pub(super) struct Queues {
    pub cqs: BTreeMap<Cq, Ring>,
    pub eqs: BTreeMap<Eq, Ring>,
    pub srqs: BTreeMap<Srq, SrqRing>,
    pub qps: BTreeMap<Qp, QpQueues>,
    pub eq_of: BTreeMap<u8, Eq>,
}

/// Default log2 of the number of entries of a CQ.
const LOG_CQ: u8 = 7;
/// log2 of the number of entries of an EQ.
const LOG_EQ: u8 = 6;
/// Bytes of a CQE and of an EQE.
pub(super) const ENTRY: usize = 64;

/// Returns the page list of a ring: big-endian bus addresses of its 4 KiB pages.
pub(super) fn page_list(at: u64, len: usize) -> Vec<u8> {
    (0..len.div_ceil(4096).max(1) as u64).flat_map(|i| (at + i * 4096).to_be_bytes()).collect()
}

impl Bed {
    /// Returns the EQ that this function's CQs report to. It is created on first use, and receives all event types.
    pub fn eq(&mut self, fid: u8) -> Eq {
        if let Some(eq) = self.queues.eq_of.get(&fid) {
            return *eq;
        }
        let eq = self.eq_with(fid, !(1 << eqe::EventType::Comp.raw()), 0).expect("an EQ");
        self.queues.eq_of.insert(fid, eq);
        eq
    }

    /// Creates an EQ for the events in `mask`, with MSI-X vector `vector`.
    pub fn eq_with(&mut self, fid: u8, mask: u64, vector: u16) -> Result<Eq, CommandError> {
        let uar = self.state(fid).uar;
        let len = ENTRY << LOG_EQ;
        let at = self.memory.alloc(fid, len);
        for i in 0..1u64 << LOG_EQ {
            self.memory.put(at + i * ENTRY as u64 + eqe::OWNER as u64, &[1]);
        }
        let context = EqContext::with(|s| s.log_eq_size(LOG_EQ).uar_page(uar).intr(vector).log_page_size(0));
        // Four words of 64 events each.
        let mut bits = [0; 32];
        bits[..8].copy_from_slice(&mask.to_be_bytes());
        let input = CreateEqIn::with(|s| s.eq_context_entry(context).event_bitmask(bits));
        let out =
            self.command_with(fid, Opcode::CreateEq, 0, &input, &page_list(at, len), CreateEqOut::SIZE)?;
        let eq = Eq { fid, eqn: CreateEqOut::read(&out).eq_number() };
        self.queues.eqs.insert(eq, Ring { at, log: LOG_EQ, ci: 0, record: 0, arm_sn: 0 });
        self.arm_eq(eq);
        Ok(eq)
    }

    /// Allocates a counter set.
    pub fn counter_set(&mut self, fid: u8) -> u8 {
        let out: AllocQCounterOut = self
            .command(fid, Opcode::AllocQCounter, &CmdIn::zeroed())
            .unwrap_or_else(|e| panic!("ALLOC_Q_COUNTER: {e:?}"));
        out.counter_set_id()
    }

    /// Queries a counter set, and clears it if `clear`.
    pub fn query_counters(&mut self, fid: u8, set: u8, clear: bool) -> QueryQCounterOut {
        let input = QueryQCounterIn::with(|s| s.counter_set_id(set).clear(clear));
        self.command(fid, Opcode::QueryQCounter, &input).unwrap_or_else(|e| panic!("QUERY_Q_COUNTER: {e:?}"))
    }

    /// Creates a CQ of 128 entries, after bringing the function up if necessary.
    pub fn cq_on(&mut self, fid: u8) -> Cq {
        self.function(fid);
        self.cq(fid)
    }

    /// Creates a CQ of 128 entries.
    pub fn cq(&mut self, fid: u8) -> Cq {
        self.cq_of(fid, LOG_CQ)
    }

    /// Creates a CQ of `1 << log` entries.
    pub fn cq_of(&mut self, fid: u8, log: u8) -> Cq {
        self.cq_with(fid, log, |_| {})
    }

    /// The same; `change` adjusts its context.
    pub fn cq_with(&mut self, fid: u8, log: u8, change: impl FnOnce(&mut CqContext)) -> Cq {
        let eq = self.eq(fid);
        let len = ENTRY << log;
        let at = self.memory.alloc(fid, len);
        for i in 0..1u64 << log {
            let own = cqe::CqeOpcode::Invalid.raw() << 4 | 1;
            self.memory.put(at + i * ENTRY as u64 + cqe::OP_OWN as u64, &[own]);
        }
        let record = self.memory.alloc(fid, 8);
        let uar = self.state(fid).uar;
        let mut context = CqContext::zeroed();
        context.set().log_cq_size(log).uar_page(uar).c_eqn_or_apu_element(eq.eqn.into()).dbr_addr(record);
        change(&mut context);
        let input = CreateCqIn::with(|s| s.cq_context(context));
        let out = self
            .command_with(fid, Opcode::CreateCq, 0, &input, &page_list(at, len), CreateCqOut::SIZE)
            .unwrap_or_else(|e| panic!("CREATE_CQ: {e:?}"));
        let cq = Cq { fid, cqn: CreateCqOut::read(&out).cqn() };
        self.queues.cqs.insert(cq, Ring { at, log, ci: 0, record, arm_sn: 0 });
        cq
    }

    /// Destroys a CQ.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), CommandError> {
        let input = DestroyCqIn::with(|s| s.cqn(cq.cqn));
        self.command::<_, CmdOut>(cq.fid, Opcode::DestroyCq, &input)?;
        if let Some(ring) = self.queues.cqs.remove(&cq) {
            self.memory.free(ring.at);
            self.memory.free(ring.record);
        }
        Ok(())
    }

    /// Allocates memory of a program.
    pub fn buffer(&mut self, fid: u8, len: usize) -> Buffer {
        Buffer { at: self.memory.alloc(fid, len), len }
    }

    /// Creates a memory region over `len` new bytes, in the function's PD.
    pub fn mr(&mut self, fid: u8, len: usize, access: Access) -> Mr {
        let pd = self.state(fid).pd;
        self.mr_with(fid, len, access, pd, None)
    }

    /// Creates a memory region in `pd` over memory of `owner`'s program.
    pub fn mr_with(&mut self, fid: u8, len: usize, access: Access, pd: u32, owner: Option<Party>) -> Mr {
        let at = self.memory.alloc_for(fid, len, owner);
        self.mr_over(fid, Buffer { at, len }, access, pd).unwrap_or_else(|e| panic!("CREATE_MKEY: {e:?}"))
    }

    /// Creates a memory region over existing memory.
    pub fn mr_over(&mut self, fid: u8, buffer: Buffer, access: Access, pd: u32) -> Result<Mr, CommandError> {
        const VARIANT: u8 = 0x42;
        let va = buffer.at + Mr::VA;
        let pages = page_list(buffer.at & !0xfff, (buffer.at & 0xfff) as usize + buffer.len);
        let entries = (pages.len() / 8) as u32;
        let mut list = pages;
        list.resize(list.len().next_multiple_of(16), 0);
        let context = MkeyContext::with(|s| {
            s.access_mode_1_0(AccessMode::Mtt.raw())
                .a(access.remote_atomic)
                .rw(access.remote_write)
                .rr(access.remote_read)
                .lw(access.local_write)
                .lr(true)
                .en_rinval(access.remote_invalidate)
                .qpn(0xff_ffff)
                .mkey_7_0(VARIANT)
                .pd(pd)
                .start_addr(va)
                .len(buffer.len as u64)
                .translations_octword_size(entries.div_ceil(2))
                .log_page_size(12)
        });
        let mut input = CreateMkeyIn::zeroed();
        input.set().memory_key_mkey_entry(context).translations_octword_actual_size(entries.div_ceil(2));
        let out = self.command_with(fid, Opcode::CreateMkey, 0, &input, &list, CreateMkeyOut::SIZE)?;
        let key = CreateMkeyOut::read(&out).mkey_index() << 8 | u32::from(VARIANT);
        Ok(Mr { fid, va, len: buffer.len, key, at: buffer.at })
    }

    /// Destroys the key of a memory region; its memory stays mapped.
    pub fn destroy_mr(&mut self, mr: Mr) -> Result<(), CommandError> {
        let input = DestroyMkeyIn::with(|s| s.mkey_index(mr.key >> 8));
        self.command::<_, CmdOut>(mr.fid, Opcode::DestroyMkey, &input).map(drop)
    }

    /// Writes `bytes` to the start of a memory region.
    pub fn fill(&mut self, mr: Mr, bytes: &[u8]) {
        self.memory.put(mr.at, bytes);
    }

    /// Fills a memory region with a pattern that depends on `seed` and the position, and returns the pattern.
    pub fn pattern(&mut self, mr: Mr, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..mr.len).map(|i| (i as u8) ^ (i >> 8) as u8 ^ seed).collect();
        self.memory.put(mr.at, &bytes);
        bytes
    }

    /// Returns the bytes of a memory region.
    pub fn bytes(&self, mr: Mr) -> Vec<u8> {
        self.memory.get(mr.at, mr.len).to_vec()
    }

    /// Creates a shared receive queue of `1 << log` WQEs of 64 bytes.
    pub fn srq(&mut self, fid: u8, log: u8) -> Srq {
        let (at, record, ring) = self.srq_ring(fid, log);
        let pd = self.state(fid).pd;
        let context = SrqContext::with(|s| s.log_srq_size(log).log_rq_stride(2).pd(pd).dbr_addr(record));
        let input = CreateSrqIn::with(|s| s.srq_context_entry(context));
        self.create_srq(fid, Opcode::CreateSrq, &input, (at, log), ring)
    }

    /// Creates a cyclic memory pool of `1 << log` WQEs of 64 bytes. All its next segments point to the first WQE.
    pub fn cyclic_pool(&mut self, fid: u8, log: u8) -> Srq {
        let (at, record, ring) = self.srq_ring(fid, log);
        (0..1u64 << log).for_each(|i| self.memory.put(at + i * ring.stride, NextSeg::zeroed().as_bytes()));
        let pd = self.state(fid).pd;
        let wq =
            WorkQueue::with(|s| s.wq_type(CYCLIC).pd(pd).dbr_addr(record).log_wq_sz(log).log_wq_stride(6));
        let input = CreateRmpIn::with(|s| s.ctx(RmpContext::with(|s| s.wq(wq))));
        self.create_srq(fid, Opcode::CreateRmp, &input, (at, log), ring)
    }

    /// Allocates an XRC domain.
    pub fn xrcd(&mut self, fid: u8) -> u32 {
        self.function(fid);
        let out: AllocXrcdOut = self
            .command(fid, Opcode::AllocXrcd, &CmdIn::zeroed())
            .unwrap_or_else(|e| panic!("ALLOC_XRCD: {e:?}"));
        out.xrcd()
    }

    /// Creates an XRC SRQ of `1 << log` WQEs of 64 bytes in `xrcd`, with completions in `cq`.
    pub fn xrc_srq(&mut self, fid: u8, log: u8, xrcd: u32, cq: Cq) -> Srq {
        let pd = self.state(fid).pd;
        self.xrc_srq_in(fid, log, xrcd, cq, pd)
    }

    /// Like [`xrc_srq`](Self::xrc_srq), in protection domain `pd`.
    pub fn xrc_srq_in(&mut self, fid: u8, log: u8, xrcd: u32, cq: Cq, pd: u32) -> Srq {
        let (at, record, ring) = self.srq_ring(fid, log);
        let context = XrcSrqContext::with(|s| {
            s.log_xrc_srq_size(log)
                .log_rq_stride(2)
                .xrcd(xrcd)
                .cqn(cq.cqn)
                .user_index(0xff_ffff)
                .pd(pd)
                .db_record_addr_h((record >> 32) as u32)
                .db_record_addr_l(record as u32 >> 2)
        });
        let input = CreateXrcSrqIn::with(|s| s.xrc_srq_context_entry(context));
        self.create_srq(fid, Opcode::CreateXrcSrq, &input, (at, log), ring)
    }

    /// Executes a command that creates a queue over the `1 << log` WQEs at `at`.
    fn create_srq<I: Layout>(
        &mut self,
        fid: u8,
        op: Opcode,
        input: &I,
        (at, log): (u64, u8),
        ring: SrqRing,
    ) -> Srq {
        let pages = page_list(at, Self::SRQ_STRIDE << log);
        let out = self.command_with(fid, op, 0, input, &pages, CreateSrqOut::SIZE);
        // Every such command returns the number at this offset.
        let srq =
            Srq { fid, srqn: CreateSrqOut::read(&out.unwrap_or_else(|e| panic!("{op:?}: {e:?}"))).srqn() };
        self.queues.srqs.insert(srq, ring);
        srq
    }

    /// Destroys an XRC SRQ.
    pub fn destroy_xrc_srq(&mut self, srq: Srq) -> Result<(), CommandError> {
        let input = DestroyXrcSrqIn::with(|s| s.xrc_srqn(srq.srqn));
        self.command::<_, CmdOut>(srq.fid, Opcode::DestroyXrcSrq, &input).map(drop)
    }

    /// Allocates a ring of `1 << log` SRQ WQEs. Returns its address, that of its doorbell record, and its state.
    fn srq_ring(&mut self, fid: u8, log: u8) -> (u64, u64, SrqRing) {
        let stride = Self::SRQ_STRIDE as u64;
        let at = self.memory.alloc(fid, Self::SRQ_STRIDE << log);
        let count = 1u16 << log;
        for i in 0..count {
            let next = NextSeg::with(|s| s.next_wqe_index((i + 1) % count));
            self.memory.put(at + u64::from(i) * stride, next.as_bytes());
        }
        let record = self.memory.alloc(fid, 8);
        let free = (0..count - 1).collect();
        (at, record, SrqRing { at, stride, free, tail: count - 1, counter: 0, record })
    }

    /// Requests one event when fewer than `limit` WQEs are left in the SRQ.
    pub fn arm_srq(&mut self, srq: Srq, limit: u16) -> Result<(), CommandError> {
        let input = ArmRqIn::with(|s| s.srq_number(srq.srqn).lwm(limit));
        self.command_with(srq.fid, Opcode::ArmRq, ARM, &input, &[], CmdOut::SIZE).map(drop)
    }

    /// Bytes of the scatter list in an SRQ WQE.
    pub(super) const SRQ_SCATTER: usize = Self::SRQ_STRIDE - WQE_DS;
    /// Bytes of an SRQ WQE.
    const SRQ_STRIDE: usize = 64;
}
