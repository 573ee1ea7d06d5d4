//! The QP and its state transitions.

use super::{
    Bed, Cq, Srq,
    command::CommandError,
    function::{GID_IPV4, gid_v4},
    objects::page_list,
};
use devmodel::{LinkLayer, identity};
use hwspec::{
    cmd::{CmdOut, Opcode, qp::*},
    context::{
        PathMigState, QpState, ServiceType,
        qp::{AddressPath, QpContext},
    },
    layout::Layout,
};

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Qp {
    /// Function.
    pub fid: u8,
    /// Number.
    pub qpn: u32,
    /// Send CQ.
    pub send_cq: Cq,
    /// Receive CQ.
    pub recv_cq: Cq,
}

/// The creation parameters of a QP.
#[derive(Clone, Copy, Debug)]
pub struct QpSpec {
    /// Service.
    pub service: ServiceType,
    /// log2 of the send queue size in basic blocks of 64 bytes.
    pub log_sq: u8,
    /// log2 of the receive queue size in WQEs.
    pub log_rq: u8,
    /// log2 of the receive WQE size in 16-byte units.
    pub log_stride: u8,
    /// Send CQ; if `None`, a new one.
    pub send_cq: Option<Cq>,
    /// Receive CQ; if `None`, the send CQ.
    pub recv_cq: Option<Cq>,
    /// SRQ to use for receives.
    pub srq: Option<Srq>,
    /// Protection domain; if `None`, the function's.
    pub pd: Option<u32>,
    /// Creates the QP without a send queue.
    pub no_sq: bool,
    /// Creates the QP without a receive queue.
    pub no_rq: bool,
    /// XRC domain.
    pub xrcd: u32,
    /// Allows the reserved lkey.
    pub rlky: bool,
    /// Blocks multicast loopback.
    pub block_loopback: bool,
    /// Source QP number in datagrams; 0 means the QP's own.
    pub deth_sqpn: u32,
    /// Counter set.
    pub counter_set: u8,
    /// Number that completions carry, 24 bits. All ones means none.
    pub user_index: u32,
}

impl Default for QpSpec {
    fn default() -> Self {
        Self {
            service: ServiceType::Rc,
            log_sq: 6,
            log_rq: 5,
            log_stride: 2,
            send_cq: None,
            recv_cq: None,
            srq: None,
            pd: None,
            no_sq: false,
            no_rq: false,
            xrcd: 0,
            rlky: false,
            block_loopback: false,
            deth_sqpn: 0,
            counter_set: 0,
            user_index: 0xff_ffff,
        }
    }
}

/// How a QP reaches its peer, and the parameters of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Peer's QP number.
    pub remote_qpn: u32,
    /// Peer's MAC.
    pub dmac: [u8; 6],
    /// Peer's GID.
    pub dgid: [u8; 16],
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// ACK timeout exponent.
    pub timeout: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries; 7 is infinite.
    pub rnr_retry: u8,
    /// RNR NAK timer code.
    pub min_rnr_nak: u8,
    /// log2 of the maximum number of outstanding READs and atomics.
    pub log_rd_atomic: u8,
    /// log2 of the maximum number of READs and atomics accepted.
    pub log_dest_rd_atomic: u8,
    /// Allows remote READs.
    pub remote_read: bool,
    /// Allows remote WRITEs.
    pub remote_write: bool,
    /// Allows remote atomics.
    pub remote_atomic: bool,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Q_Key of a datagram QP.
    pub qkey: u32,
    /// Counter set.
    pub counter_set: u8,
    /// InfiniBand: the peer's LID.
    pub rlid: u16,
    /// InfiniBand: the service level.
    pub sl: u8,
    /// InfiniBand: index of the P_Key.
    pub pkey_index: u16,
    /// InfiniBand: sends a GRH; on Ethernet there always is one.
    pub grh: bool,
}

/// First PSN sent by a QP of the default path.
pub const SENDS: u32 = 0x100;
/// First PSN expected by a QP of the default path.
pub const EXPECTS: u32 = 0x200;

impl Default for Path {
    fn default() -> Self {
        Self {
            remote_qpn: 0,
            dmac: [0; 6],
            dgid: [0; 16],
            sgid_index: GID_IPV4,
            mtu: 1024,
            sq_psn: SENDS,
            rq_psn: EXPECTS,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_nak: 12,
            log_rd_atomic: 3,
            log_dest_rd_atomic: 3,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            traffic_class: 2,
            hop_limit: 64,
            qkey: 0,
            counter_set: 0,
            rlid: 0,
            sl: 0,
            pkey_index: 0,
            grh: true,
        }
    }
}

impl Path {
    /// Returns the attributes of the same connection at its other end, without addresses.
    #[must_use]
    pub fn back(self) -> Self {
        Self { sq_psn: self.rq_psn, rq_psn: self.sq_psn, ..self }
    }
}

/// The owner's state of a QP's rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpQueues {
    pub at: u64,
    pub record: u64,
    pub log_sq: u8,
    pub log_rq: u8,
    pub stride: u64,
    pub sq_offset: u64,
    /// Number of basic blocks and receive WQEs posted, free-running.
    pub sq_pi: u16,
    pub rq_pi: u16,
    pub srq: Option<Srq>,
}

/// Optional fields of a transition (PRM: `opt_param_mask`).
pub mod opt {
    /// `rre`
    pub const RRE: u32 = 1 << 1;
    /// `rae`
    pub const RAE: u32 = 1 << 2;
    /// `rwe`
    pub const RWE: u32 = 1 << 3;
    /// `pkey_index`
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `q_key`
    pub const Q_KEY: u32 = 1 << 5;
    /// `min_rnr_nak`
    pub const RNR_TIMEOUT: u32 = 1 << 6;
}

impl Bed {
    /// Creates an RC QP with its own CQ, in RESET.
    pub fn qp(&mut self, fid: u8) -> Qp {
        self.qp_with(fid, QpSpec::default()).unwrap_or_else(|e| panic!("CREATE_QP: {e:?}"))
    }

    /// Creates a QP, in RESET.
    pub fn qp_with(&mut self, fid: u8, spec: QpSpec) -> Result<Qp, CommandError> {
        self.function(fid);
        let send_cq = match spec.send_cq {
            Some(cq) => cq,
            None => self.cq(fid),
        };
        let recv_cq = spec.recv_cq.unwrap_or(send_cq);
        let stride = 16u64 << spec.log_stride;
        let own_rq = spec.srq.is_none() && !spec.no_rq;
        let rq_len = if own_rq { stride << spec.log_rq } else { 0 };
        let sq_offset = rq_len.next_multiple_of(64);
        let sq_len = if spec.no_sq { 0 } else { 64 << spec.log_sq };
        let len = (sq_offset + sq_len) as usize;
        let at = self.memory.alloc(fid, len);
        let record = self.memory.alloc(fid, 8);
        let state = self.state(fid);
        let (pd, uar) = (spec.pd.unwrap_or(state.pd), state.uar);
        let mut context = QpContext::zeroed();
        context
            .set()
            .st(spec.service)
            .pm_state(PathMigState::Migrated)
            .pd(pd)
            .log_rq_size(if own_rq { spec.log_rq } else { 0 })
            .log_rq_stride(if own_rq { spec.log_stride } else { 0 })
            .no_sq(spec.no_sq)
            .log_sq_size(if spec.no_sq { 0 } else { spec.log_sq })
            .rlky(spec.rlky)
            .block_lb_mc(spec.block_loopback)
            .deth_sqpn(spec.deth_sqpn)
            .xrcd(spec.xrcd)
            .log_msg_max(30)
            .uar_page(uar)
            .cqn_snd(send_cq.cqn)
            .cqn_rcv(recv_cq.cqn)
            .dbr_addr(record)
            .user_index(spec.user_index);
        if let Some(srq) = spec.srq {
            context.set().rq_type(1).srqn_rmpn_xrqn(srq.srqn);
        } else if spec.no_rq {
            context.set().rq_type(3);
        }
        let input = CreateQpIn::with(|s| s.qpc(context));
        let out =
            self.command_with(fid, Opcode::CreateQp, 0, &input, &page_list(at, len), CreateQpOut::SIZE)?;
        let qp = Qp { fid, qpn: CreateQpOut::read(&out).qpn(), send_cq, recv_cq };
        self.queues.qps.insert(
            qp,
            QpQueues {
                at,
                record,
                log_sq: spec.log_sq,
                log_rq: spec.log_rq,
                stride,
                sq_offset,
                sq_pi: 0,
                rq_pi: 0,
                srq: spec.srq,
            },
        );
        Ok(qp)
    }

    /// Returns the QP context with the fields of `path`.
    pub fn context(&self, qp: Qp, path: &Path) -> QpContext {
        let mut av = AddressPath::zeroed();
        av.set()
            .grh(path.grh)
            .rlid(path.rlid)
            .sl(path.sl)
            .eth_prio(path.sl & 7)
            .pkey_index(path.pkey_index)
            .ack_timeout(path.timeout)
            .src_addr_index(path.sgid_index)
            .hop_limit(path.hop_limit)
            .tclass(path.traffic_class)
            .dscp(path.traffic_class >> 2)
            .ecn(path.traffic_class & 3)
            .rgid_rip(path.dgid)
            .udp_sport(0xc000 | (qp.qpn as u16 & 0x3fff))
            .vhca_port_num(1)
            .rmac_47_32(u16::from_be_bytes([path.dmac[0], path.dmac[1]]))
            .rmac_31_0(u32::from_be_bytes([path.dmac[2], path.dmac[3], path.dmac[4], path.dmac[5]]));
        QpContext::with(|s| {
            s.pm_state(PathMigState::Migrated)
                .pd(self.state(qp.fid).pd)
                .cqn_snd(qp.send_cq.cqn)
                .cqn_rcv(qp.recv_cq.cqn)
                .mtu((path.mtu.trailing_zeros() - 7) as u8)
                .log_msg_max(30)
                .remote_qpn(path.remote_qpn)
                .primary_address_path(av)
                .log_sra_max(path.log_rd_atomic)
                .log_rra_max(path.log_dest_rd_atomic)
                .retry_count(path.retry_count)
                .rnr_retry(path.rnr_retry)
                .next_send_psn(path.sq_psn)
                .next_rcv_psn(path.rq_psn)
                .min_rnr_nak(path.min_rnr_nak)
                .atomic_mode(1)
                .q_key(path.qkey)
                .counter_set_id(path.counter_set)
                .rre(path.remote_read)
                .rwe(path.remote_write)
                .rae(path.remote_atomic)
        })
    }

    /// RESET to INIT.
    pub fn to_init(&mut self, qp: Qp, path: &Path) -> Result<(), CommandError> {
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn).qpc(self.context(qp, path)));
        self.command::<_, ModifyQpOut>(qp.fid, Opcode::Rst2initQp, &input).map(drop)
    }

    /// INIT to RTR.
    pub fn to_rtr(&mut self, qp: Qp, path: &Path) -> Result<(), CommandError> {
        self.to_rtr_with(qp, path, opt::RRE | opt::RAE | opt::RWE)
    }

    /// INIT to RTR with an optional-field mask.
    pub fn to_rtr_with(&mut self, qp: Qp, path: &Path, mask: u32) -> Result<(), CommandError> {
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn).qpc(self.context(qp, path)).opt_param_mask(mask));
        self.command::<_, ModifyQpOut>(qp.fid, Opcode::Init2rtrQp, &input).map(drop)
    }

    /// RTR to RTS.
    pub fn to_rts(&mut self, qp: Qp, path: &Path) -> Result<(), CommandError> {
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn).qpc(self.context(qp, path)));
        self.command::<_, ModifyQpOut>(qp.fid, Opcode::Rtr2rtsQp, &input).map(drop)
    }

    /// SQE to RTS.
    pub fn sqerr_to_rts(&mut self, qp: Qp) -> Result<(), CommandError> {
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn));
        self.command::<_, ModifyQpOut>(qp.fid, Opcode::Sqerr2rtsQp, &input).map(drop)
    }

    /// RTS to SQD.
    pub fn to_sqd(&mut self, qp: Qp) -> Result<(), CommandError> {
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn));
        self.command::<_, ModifyQpOut>(qp.fid, Opcode::Rts2sqdQp, &input).map(drop)
    }

    /// SQD to RTS.
    pub fn sqd_to_rts(&mut self, qp: Qp) -> Result<(), CommandError> {
        let input = Sqd2rtsQpIn::with(|s| s.qpn(qp.qpn));
        self.command::<_, CmdOut>(qp.fid, Opcode::SqdRtsQp, &input).map(drop)
    }

    /// SQD to SQD, changing the fields in `mask`.
    pub fn sqd_to_sqd(&mut self, qp: Qp, path: &Path, mask: u32) -> Result<(), CommandError> {
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn).qpc(self.context(qp, path)).opt_param_mask(mask));
        self.command::<_, ModifyQpOut>(qp.fid, Opcode::Sqd2sqdQp, &input).map(drop)
    }

    /// RTS to RTS, changing the fields in `mask`.
    pub fn rts_to_rts(&mut self, qp: Qp, path: &Path, mask: u32) -> Result<(), CommandError> {
        let input = ModifyQpIn::with(|s| s.qpn(qp.qpn).qpc(self.context(qp, path)).opt_param_mask(mask));
        self.command::<_, ModifyQpOut>(qp.fid, Opcode::Rts2rtsQp, &input).map(drop)
    }

    /// Any state to ERR.
    pub fn to_err(&mut self, qp: Qp) -> Result<(), CommandError> {
        let input = Qp2errIn::with(|s| s.qpn(qp.qpn));
        self.command::<_, CmdOut>(qp.fid, Opcode::Qp2Err, &input).map(drop)
    }

    /// Any state to RESET.
    pub fn to_reset(&mut self, qp: Qp) -> Result<(), CommandError> {
        self.command::<_, CmdOut>(qp.fid, Opcode::Qp2Rst, &Qp2rstIn::with(|s| s.qpn(qp.qpn)))?;
        // The owner resets its rings, as after creation.
        if let Some(q) = self.queues.qps.get_mut(&qp) {
            (q.sq_pi, q.rq_pi) = (0, 0);
            self.memory.put(q.record, &[0; 8]);
        }
        Ok(())
    }

    /// Destroys a QP and frees its rings.
    pub fn destroy_qp(&mut self, qp: Qp) -> Result<(), CommandError> {
        let input = DestroyQpIn::with(|s| s.qpn(qp.qpn));
        self.command::<_, CmdOut>(qp.fid, Opcode::DestroyQp, &input)?;
        if let Some(q) = self.queues.qps.remove(&qp) {
            self.memory.free(q.at);
            self.memory.free(q.record);
        }
        Ok(())
    }

    /// Queries the context of a QP.
    pub fn query(&mut self, qp: Qp) -> QpContext {
        let input = QueryQpIn::with(|s| s.qpn(qp.qpn));
        let out: QueryQpOut = self
            .command(qp.fid, Opcode::QueryQp, &input)
            .unwrap_or_else(|e| panic!("QUERY_QP {:#x}: {e:?}", qp.qpn));
        out.qpc()
    }

    /// Queries the state of a QP.
    pub fn qp_state(&mut self, qp: Qp) -> QpState {
        self.query(qp).state()
    }

    /// Moves a QP from RESET to RTS.
    pub fn ready(&mut self, qp: Qp, path: &Path) {
        self.to_init(qp, path).unwrap_or_else(|e| panic!("RST2INIT_QP: {e:?}"));
        self.to_rtr(qp, path).unwrap_or_else(|e| panic!("INIT2RTR_QP: {e:?}"));
        self.to_rts(qp, path).unwrap_or_else(|e| panic!("RTR2RTS_QP: {e:?}"));
    }

    /// Returns `base` with the addresses of `to`.
    pub fn path_to(&self, to: Qp, base: Path) -> Path {
        if self.adapter.config().link_layer == LinkLayer::Infiniband {
            let id = self.adapter.config().node_id;
            let (rlid, dgid) = (identity::lid(id, to.fid), identity::port_gid(id, to.fid));
            return Path { remote_qpn: to.qpn, rlid, dgid, sgid_index: 0, ..base };
        }
        let dgid = match base.sgid_index {
            GID_IPV4 => gid_v4(to.fid),
            _ => identity::link_local_gid(0, to.fid),
        };
        Path { remote_qpn: to.qpn, dmac: identity::mac(0, to.fid), dgid, ..base }
    }

    /// Connects two QPs: moves both to RTS with the attributes of `path`; `b` sends from `path.rq_psn`.
    pub fn connect(&mut self, a: Qp, b: Qp, path: Path) {
        self.connect_each([a, b], [path, path.back()]);
    }

    /// Moves two QPs to RTS, each with its own attributes of the connection.
    pub fn connect_each(&mut self, [a, b]: [Qp; 2], [from_a, from_b]: [Path; 2]) {
        self.ready(a, &self.path_to(b, from_a));
        self.ready(b, &self.path_to(a, from_b));
    }

    /// Creates two connected RC QPs on functions 1 and 2.
    pub fn pair(&mut self, path: Path) -> (Qp, Qp) {
        self.pair_of([QpSpec::default(); 2], path)
    }

    /// Like [`pair`](Self::pair), with creation parameters.
    pub fn pair_of(&mut self, [a, b]: [QpSpec; 2], path: Path) -> (Qp, Qp) {
        let mut qp = |fid, spec| self.qp_with(fid, spec).unwrap_or_else(|e| panic!("CREATE_QP: {e:?}"));
        let (a, b) = (qp(1, a), qp(2, b));
        self.connect(a, b, path);
        (a, b)
    }
}
