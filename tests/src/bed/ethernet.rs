//! The Ethernet side of a function: queues without a QP, transport interfaces, flow tables, and frames.

use super::{Access, Bed, CommandError, Cq, Mr, objects::page_list};
use hwspec::{
    cmd::{CmdIn, CmdOut, Opcode, flow::*, resource::*, rq_sq::*, tir::*},
    context::{
        flow::*,
        rq_sq::*,
        tir::{RqtContext, TirContext, TisContext},
        wq::{CYCLIC, WorkQueue},
    },
    cqe::{Cqe64, CqeOpcode},
    doorbell::{BF_OFFSET, RCV_DBR, SND_DBR},
    handle::Qpn,
    layout::Layout,
    wqe::{CqeMode, CtrlSeg, DataSeg, EthSeg, WQE_BB, WqeOpcode},
};

/// log2 of the number of basic blocks of a send queue, and of WQEs of a receive queue.
const LOG_SIZE: u8 = 6;
/// log2 of a receive WQE in bytes: two data segments.
const LOG_STRIDE: u8 = 5;
/// Bytes of the first of a receive WQE's two buffers: short, so that frames are split.
const FIRST: usize = 512;
const SECOND: usize = 9 << 10;
/// `user_index` of receive queues.
pub const USER_INDEX: u32 = 0x12_3456;

/// A receive queue and its buffers.
#[derive(Clone, Debug)]
pub struct RxQueue {
    /// Number.
    pub rqn: u32,
    /// Its completion queue.
    pub cq: Cq,
    buffers: Mr,
    ring: u64,
    record: u64,
    posted: u16,
}

/// A driver's net device: one send queue and some receive queues.
#[derive(Clone, Debug)]
pub struct Nic {
    /// Function.
    pub fid: u8,
    /// Transport domain.
    pub td: u32,
    /// Transport interface send.
    pub tisn: u32,
    /// Send queue number.
    pub sqn: u32,
    /// Completion queue of sends.
    pub send_cq: Cq,
    /// Receive queues, with posted receives.
    pub rx: Vec<RxQueue>,
    ring: u64,
    record: u64,
    data: Mr,
    pi: u16,
}

/// Options for sending a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Send {
    /// Bytes of headers to put inline into the WQE.
    pub inline: usize,
    /// Fills in the checksums of IP, and of TCP or UDP.
    pub checksums: bool,
    /// Inserts this VLAN tag.
    pub vlan: Option<u16>,
    /// Segments the data after the inline headers into frames with this many bytes of data.
    pub mss: u16,
}

impl Bed {
    /// Creates a bed with the default behaviour and a [`nic`](Self::nic).
    pub fn with_nic(fid: u8, queues: usize) -> (Self, Nic) {
        let mut bed = Self::cx5();
        let nic = bed.nic(fid, queues);
        (bed, nic)
    }

    /// Creates a bed with the default behaviour and an [`open_nic`](Self::open_nic) on each of `fids`.
    pub fn with_open_nics<const N: usize>(fids: [u8; N]) -> (Self, [Nic; N]) {
        let mut bed = Self::cx5();
        let nics = fids.map(|fid| bed.open_nic(fid));
        (bed, nics)
    }

    /// Creates a net device with `queues` receive queues of 64 WQEs, all posted. No frames are directed to it yet.
    pub fn nic(&mut self, fid: u8, queues: usize) -> Nic {
        self.function(fid);
        let td: AllocTransportDomainOut =
            self.command(fid, Opcode::AllocTransportDomain, &CmdIn::zeroed()).expect("a transport domain");
        let td = td.transport_domain();
        let tis = TisContext::with(|s| s.transport_domain(td));
        let input = CreateTisIn::with(|s| s.ctx(tis));
        let tis: CreateTisOut = self.command(fid, Opcode::CreateTis, &input).expect("a TIS");
        let send_cq = self.cq(fid);
        let (ring, record) = (self.memory.alloc(fid, WQE_BB << LOG_SIZE), self.memory.alloc(fid, 8));
        let data = self.mr(fid, 256 << 10, Access::LOCAL);
        let mut nic =
            Nic { fid, td, tisn: tis.tisn(), sqn: 0, send_cq, rx: Vec::new(), ring, record, data, pi: 0 };
        nic.sqn = self.create_sq(&nic, |_| {}).expect("an SQ");
        self.modify_sq(&nic, RESET, READY).expect("a ready SQ");
        for _ in 0..queues {
            self.add_queue(&mut nic, 1 << LOG_SIZE, |_| {});
        }
        nic
    }

    /// Adds a receive queue with `n` posted WQEs; `change` adjusts its context.
    pub fn add_queue(&mut self, nic: &mut Nic, n: u16, change: impl FnOnce(&mut RqContext)) {
        let rq = self.receive_queue(nic.fid, change);
        nic.rx.push(rq);
        self.fill_last(nic, n);
    }

    /// CREATE_SQ on the device's ring.
    pub fn create_sq(&mut self, nic: &Nic, change: impl FnOnce(&mut SqContext)) -> Result<u32, CommandError> {
        let (pd, uar) = (self.state(nic.fid).pd, self.state(nic.fid).uar);
        let wq = WorkQueue::with(|s| {
            s.wq_type(CYCLIC).pd(pd).uar_page(uar).dbr_addr(nic.record).log_wq_stride(6).log_wq_sz(LOG_SIZE)
        });
        let mut c = SqContext::zeroed();
        c.set().cqn(nic.send_cq.cqn).tis_lst_sz(1).tis_num_0(nic.tisn).flush_in_error_en(true).wq(wq);
        change(&mut c);
        let input = CreateSqIn::with(|s| s.ctx(c));
        let pages = page_list(nic.ring, WQE_BB << LOG_SIZE);
        self.command_with(nic.fid, Opcode::CreateSq, 0, &input, &pages, CreateSqOut::SIZE)
            .map(|out| CreateSqOut::read(&out).sqn())
    }

    /// MODIFY_SQ from one state to another.
    pub fn modify_sq(&mut self, nic: &Nic, from: u8, to: u8) -> Result<(), CommandError> {
        let c = SqContext::with(|s| s.state(to));
        let input = ModifySqIn::with(|s| s.sqn(nic.sqn).sq_state(from).ctx(c));
        self.command::<_, CmdOut>(nic.fid, Opcode::ModifySq, &input).map(drop)
    }

    /// MODIFY_RQ from one state to another.
    pub fn modify_rq(&mut self, fid: u8, rqn: u32, from: u8, to: u8) -> Result<(), CommandError> {
        let c = RqContext::with(|s| s.state(to));
        let input = ModifyRqIn::with(|s| s.rqn(rqn).rq_state(from).ctx(c));
        self.command::<_, CmdOut>(fid, Opcode::ModifyRq, &input).map(drop)
    }

    fn receive_queue(&mut self, fid: u8, change: impl FnOnce(&mut RqContext)) -> RxQueue {
        let pd = self.state(fid).pd;
        let cq = self.cq(fid);
        let len = 1usize << (LOG_SIZE + LOG_STRIDE);
        let (ring, record) = (self.memory.alloc(fid, len), self.memory.alloc(fid, 8));
        let buffers = self.mr(fid, (FIRST + SECOND) << LOG_SIZE, Access::LOCAL);
        for i in 0..1u64 << LOG_SIZE {
            let va = buffers.va + i * (FIRST + SECOND) as u64;
            let mut wqe = Vec::new();
            for (at, len) in [(va, FIRST), (va + FIRST as u64, SECOND)] {
                let seg = DataSeg::with(|s| s.byte_count(len as u32).lkey(buffers.key).addr(at));
                wqe.extend_from_slice(seg.as_bytes());
            }
            self.memory.put(ring + (i << LOG_STRIDE), &wqe);
        }
        let mut wq = WorkQueue::zeroed();
        wq.set().wq_type(CYCLIC).pd(pd).dbr_addr(record).log_wq_stride(LOG_STRIDE).log_wq_sz(LOG_SIZE);
        let mut c = RqContext::zeroed();
        c.set().flush_in_error_en(true).cqn(cq.cqn).user_index(USER_INDEX).wq(wq);
        change(&mut c);
        let input = CreateRqIn::with(|s| s.ctx(c));
        let out = self
            .command_with(fid, Opcode::CreateRq, 0, &input, &page_list(ring, len), CreateRqOut::SIZE)
            .expect("an RQ");
        let rqn = CreateRqOut::read(&out).rqn();
        self.modify_rq(fid, rqn, RESET, READY).expect("a ready RQ");
        RxQueue { rqn, cq, buffers, ring, record, posted: 0 }
    }

    /// Posts `n` more receive WQEs to the last queue.
    pub fn fill_last(&mut self, nic: &mut Nic, n: u16) {
        if let Some(rq) = nic.rx.last_mut() {
            rq.posted = rq.posted.wrapping_add(n);
            let record = rq.record + 4 * RCV_DBR as u64;
            self.memory.put(record, &u32::from(rq.posted).to_be_bytes());
        }
    }

    /// Puts an invalid key into the oldest receive WQE of the first queue.
    pub fn spoil(&mut self, nic: &Nic) {
        let seg = DataSeg::with(|s| s.byte_count(FIRST as u32).lkey(!0).addr(nic.rx[0].buffers.va));
        self.memory.put(nic.rx[0].ring, seg.as_bytes());
    }

    /// CREATE_TIR.
    pub fn tir(&mut self, nic: &Nic, context: TirContext) -> Result<u32, CommandError> {
        let mut context = context;
        context.set().transport_domain(nic.td);
        let input = CreateTirIn::with(|s| s.ctx(context));
        self.command::<_, CreateTirOut>(nic.fid, Opcode::CreateTir, &input).map(|out| out.tirn())
    }

    /// Creates a TIR that delivers to receive queue `q` only.
    pub fn direct_tir(&mut self, nic: &Nic, q: usize) -> u32 {
        self.tir(nic, TirContext::with(|s| s.inline_rqn(nic.rx[q].rqn))).expect("a TIR")
    }

    /// Creates a table of all the device's receive queues, in order.
    pub fn rqt(&mut self, nic: &Nic) -> u32 {
        let n = nic.rx.len() as u16;
        let c = RqtContext::with(|s| s.rqt_max_size(n).rqt_actual_size(n));
        let input = CreateRqtIn::with(|s| s.rqt_context(c));
        let list: Vec<u8> = nic.rx.iter().flat_map(|rq| rq.rqn.to_be_bytes()).collect();
        let out = self
            .command_with(nic.fid, Opcode::CreateRqt, 0, &input, &list, CreateRqtOut::SIZE)
            .expect("an RQT");
        CreateRqtOut::read(&out).rqtn()
    }

    /// Creates a flow table at `level`. Packets without a match go to table `miss`, or are dropped.
    pub fn flow_table(&mut self, fid: u8, level: u8, miss: Option<u32>) -> Result<u32, CommandError> {
        let mut c = FlowTableContext::zeroed();
        c.set()
            .level(level)
            .log_size(4)
            .table_miss_action(miss.is_some().into())
            .table_miss_id(miss.unwrap_or(0));
        let input = CreateFlowTableIn::with(|s| s.flow_table_context(c));
        self.command::<_, CreateFlowTableOut>(fid, Opcode::CreateFlowTable, &input).map(|out| out.table_id())
    }

    /// Makes `table` the root; `None` removes the root.
    pub fn flow_root(&mut self, fid: u8, table: Option<u32>) -> Result<(), CommandError> {
        let input = SetFlowTableRootIn::with(|s| s.table_id(table.unwrap_or(0)));
        let op_mod = u16::from(table.is_none());
        self.command_with(fid, Opcode::SetFlowTableRoot, op_mod, &input, &[], CmdOut::SIZE).map(drop)
    }

    /// Creates a group of `table` for flow indices `range`, with entries that match the bits of `mask`.
    pub fn flow_group(
        &mut self,
        fid: u8,
        table: u32,
        range: std::ops::RangeInclusive<u32>,
        mask: MatchHeaders,
    ) -> Result<u32, CommandError> {
        let criteria = MatchParam::with(|s| s.outer_headers(mask));
        let input = CreateFlowGroupIn::with(|s| {
            s.table_id(table)
                .start_flow_index(*range.start())
                .end_flow_index(*range.end())
                .match_criteria_enable(1)
                .match_criteria(criteria)
        });
        self.command::<_, CreateFlowGroupOut>(fid, Opcode::CreateFlowGroup, &input).map(|out| out.group_id())
    }

    /// Sets entry `index` of `table`: packets with `value` in the bits of the group go to all destinations in `to` and are counted by
    /// `counters`. An empty `to` drops them.
    pub fn flow_entry(
        &mut self,
        fid: u8,
        (table, group): (u32, u32),
        index: u32,
        value: MatchHeaders,
        to: &[(u8, u32)],
        counters: &[u32],
    ) -> Result<(), CommandError> {
        let param = MatchParam::with(|s| s.outer_headers(value));
        let action = if to.is_empty() { DROP } else { FORWARD } | if counters.is_empty() { 0 } else { COUNT };
        let mut c = FlowContext::zeroed();
        c.set()
            .group_id(group)
            .flow_tag(0x1000 + index)
            .action(action)
            .destination_list_size(to.len() as u32)
            .flow_counter_list_size(counters.len() as u32)
            .match_value(param);
        let input = SetFteIn::with(|s| s.table_id(table).flow_index(index).flow_context(c));
        let mut list = Vec::new();
        for (kind, id) in to {
            let d = FlowDestination::with(|s| s.destination_type(*kind).destination_id(*id));
            list.extend_from_slice(d.as_bytes());
        }
        for counter in counters {
            list.extend_from_slice(FlowCounterId::with(|s| s.flow_counter_id(*counter)).as_bytes());
        }
        self.command_with(fid, Opcode::SetFlowTableEntry, 0, &input, &list, CmdOut::SIZE).map(drop)
    }

    /// Deletes an entry.
    pub fn delete_flow_entry(&mut self, fid: u8, table: u32, index: u32) -> Result<(), CommandError> {
        let input = DeleteFteIn::with(|s| s.table_id(table).flow_index(index));
        self.command::<_, CmdOut>(fid, Opcode::DeleteFlowTableEntry, &input).map(drop)
    }

    /// Creates a device that receives all incoming frames in its only receive queue.
    pub fn open_nic(&mut self, fid: u8) -> Nic {
        let nic = self.nic(fid, 1);
        let tir = self.direct_tir(&nic, 0);
        self.steer_all(&nic, tir);
        nic
    }

    /// Directs all incoming frames to `tir`, by a table with one entry that matches everything. Returns table and group.
    pub fn steer_all(&mut self, nic: &Nic, tir: u32) -> (u32, u32) {
        let table = self.flow_table(nic.fid, 10, None).expect("a flow table");
        let group = self.flow_group(nic.fid, table, 0..=0, MatchHeaders::zeroed()).expect("a flow group");
        self.flow_entry(nic.fid, (table, group), 0, MatchHeaders::zeroed(), &[(TO_TIR, tir)], &[])
            .expect("an entry");
        self.flow_root(nic.fid, Some(table)).expect("a root");
        (table, group)
    }

    /// Sends `frame`, signaled, and runs the model.
    pub fn send_frame(&mut self, nic: &mut Nic, frame: &[u8], how: Send) {
        let (inline, rest) = frame.split_at(how.inline);
        let mut eth = EthSeg::zeroed();
        eth.set().l3_csum(how.checksums).l4_csum(how.checksums).mss(how.mss);
        match how.vlan {
            Some(tci) => eth.set().insert_vlan(true).vlan_tci(tci),
            None => eth.set().inline_hdr_sz(inline.len() as u16),
        };
        let mut body = eth.as_bytes().to_vec();
        body.truncate(EthSeg::INLINE_START);
        body.extend_from_slice(inline);
        if how.vlan.is_some() || body.len() < EthSeg::SIZE {
            body = eth.as_bytes().to_vec();
            let n = inline.len().min(2);
            body[EthSeg::INLINE_START..][..n].copy_from_slice(&inline[..n]);
        }
        body.resize(body.len().next_multiple_of(16), 0);
        if !rest.is_empty() {
            self.memory.put(nic.data.at, rest);
            // In two pieces, so that the device must gather them.
            let half = rest.len() / 2;
            for (at, len) in [(0, half), (half, rest.len() - half)] {
                let mut seg = DataSeg::zeroed();
                seg.set().byte_count(len as u32).lkey(nic.data.key).addr(nic.data.va + at as u64);
                if len != 0 {
                    body.extend_from_slice(seg.as_bytes());
                }
            }
        }
        let opcode = if how.mss == 0 { WqeOpcode::Send } else { WqeOpcode::Lso };
        self.post_raw(nic, opcode, &body);
        self.run();
    }

    /// Posts a WQE with a control segment and `body`, and rings the doorbell.
    pub fn post_raw(&mut self, nic: &mut Nic, opcode: WqeOpcode, body: &[u8]) {
        let ds = 1 + body.len().div_ceil(16);
        let mut ctrl = CtrlSeg::zeroed();
        ctrl.set().wqe_idx(nic.pi).opcode(opcode).qpn(Qpn(nic.sqn)).ds(ds as u8).ce(CqeMode::Always);
        let mut wqe = ctrl.as_bytes().to_vec();
        wqe.extend_from_slice(body);
        for (i, block) in wqe.chunks(WQE_BB).enumerate() {
            let slot = u64::from(nic.pi.wrapping_add(i as u16)) & ((1 << LOG_SIZE) - 1);
            self.memory.put(nic.ring + slot * WQE_BB as u64, block);
        }
        nic.pi = nic.pi.wrapping_add(wqe.len().div_ceil(WQE_BB) as u16);
        self.memory.put(nic.record + 4 * SND_DBR as u64, &u32::from(nic.pi).to_be_bytes());
        let value = u64::from_be_bytes(hwspec::layout::prefix(ctrl.as_bytes()));
        self.write64(nic.fid, self.uar_register(nic.fid, BF_OFFSET), value);
    }

    /// Returns the next frame received by queue `q`: its CQE and its bytes. Posts the WQE again.
    pub fn received(&mut self, nic: &mut Nic, q: usize) -> Option<(Cqe64, Vec<u8>)> {
        let rq = nic.rx[q].clone();
        let cqe = self.poll_raw(rq.cq)?;
        assert_eq!(cqe.opcode(), CqeOpcode::RespSend, "{:?}", cqe.as_error());
        let slot = u64::from(cqe.wqe_counter()) & ((1 << LOG_SIZE) - 1);
        let at = rq.buffers.at + slot * (FIRST + SECOND) as u64;
        let bytes = self.memory.get(at, cqe.byte_cnt() as usize).to_vec();
        let rq = &mut nic.rx[q];
        rq.posted = rq.posted.wrapping_add(1);
        let (record, posted) = (rq.record + 4 * RCV_DBR as u64, rq.posted);
        self.memory.put(record, &u32::from(posted).to_be_bytes());
        Some((cqe, bytes))
    }

    /// Returns the frames received by all queues.
    pub fn all_received(&mut self, nic: &mut Nic) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for q in 0..nic.rx.len() {
            while let Some((_, bytes)) = self.received(nic, q) {
                all.push(bytes);
            }
        }
        all
    }
}
