//! Queue pairs.

use super::{
    AccessFlags, Cq, Pd, QpAttr, QpAttrMask, QpCap, QpInit, QpState, RssInit, RwqTable, Service, Srq,
    XrcDomain, geometry::Geometry, modify, raw::RawQueues, xrc,
};
use crate::{
    dma::{DmaMem, DmaRing, page_list},
    error::Error,
    inline::Inbox,
    poll::{QpQueues, RecvTracker, SendTracker},
    post::{RecvQueue, SendQueue},
    records::Record,
    stand_ins::StandIns,
    transport::{Bar, Scope},
};
use hwspec::{
    cmd::{Opcode, qp::*},
    context::{self, PathMigState, qp::QpContext},
    doorbell::{BF_OFFSET, RCV_DBR, SND_DBR},
    wqe::{WQE_BB, WQE_DS},
};
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering::Relaxed},
};
use sync::BiasedMutex;

/// `qpc.rq_type`: an own receive queue, a shared one, or none.
const RQ: u8 = 0;
const SHARED_RQ: u8 = 1;
const NO_RQ: u8 = 3;
/// `qpc.user_index` of those who have none.
const NO_USER_INDEX: u32 = 0xff_ffff;
/// `qpc.cs_res`: received messages of up to 32 bytes come in the CQE.
const SCATTER_32: u8 = 1;
/// `qpc.log_ack_req_freq`: an acknowledge is asked for at least every 2^n packets.
pub(crate) const LOG_ACK_REQ_FREQ: u8 = 8;

/// A queue pair.
pub struct Qp {
    pub(crate) sq: BiasedMutex<SendQueue>,
    pub(crate) rq: BiasedMutex<RecvQueue>,
    pub(crate) queues: Arc<QpQueues>,
    pub(crate) bar: Bar,
    pub(crate) doorbell: u32,
    record: Option<Record>,
    /// As in `control`, for posts.
    state: AtomicU32,
    control: Mutex<Control>,
    /// Groups it is a member of, by GID and LID.
    groups: Mutex<Vec<([u8; 16], u16)>>,
    cap: QpCap,
    service: Service,
    pub(crate) pd: Arc<Pd>,
    /// User context it belongs to.
    pub(crate) uid: u16,
    cookie: u64,
    links: Links,
    /// What it is on the device, if that is not a queue pair.
    raw: Option<RawQueues>,
    mem: Arc<DmaMem>,
    live: bool,
}

/// What it uses, and keeps.
#[derive(Default)]
struct Links {
    send_cq: Option<Arc<Cq>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    /// Of a target of XRC, which is the domain's.
    domain: Option<Arc<XrcDomain>>,
    /// Of one that spreads frames over work queues.
    table: Option<Arc<RwqTable>>,
}

impl Links {
    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        self.recv_cq.iter().chain(&self.send_cq)
    }
}

/// State and attributes as they were last set.
pub(crate) struct Control {
    pub state: QpState,
    pub attr: QpAttr,
}

impl Qp {
    /// Creates a queue pair in RESET.
    pub fn create(pd: &Arc<Pd>, init: &QpInit) -> Result<Arc<Qp>, Error> {
        let device = &pd.device;
        init.service.offered()?;
        let init = &xrc::without_receives(init);
        for cq in [&init.send_cq, &init.recv_cq] {
            if !Arc::ptr_eq(cq.device(), device) {
                return Err(Error::invalid("CQ and protection domain belong to different devices"));
            }
        }
        let frames = init.service == Service::RawPacket;
        if frames && (init.srq.is_some() || !device.function.is_ethernet()) {
            return Err(Error::Invalid {
                what: "raw packets have receives of their own, and a port that is Ethernet".into(),
                errno: libc::EOPNOTSUPP,
            });
        }
        if init.strip_vlan && !(frames && device.attr().raw_vlan_stripping) {
            return Err(Error::Invalid {
                what: "VLAN tags are taken out of raw packets, where the device can".into(),
                errno: libc::EOPNOTSUPP,
            });
        }
        if let Some(srq) = &init.srq {
            if srq.is_xrc() || !init.service.receives() || !Arc::ptr_eq(srq.pd().device(), device) {
                return Err(Error::invalid("the QP cannot take receives from this SRQ"));
            }
        }
        let stand_ins = match init.service.is_xrc() {
            true => Some(XrcDomain::placeholders(device)?),
            false => None,
        };
        let geometry = Geometry::of(init, device.attr())?;
        let function = &device.function;
        let mem = Arc::new(pd.queue_memory(geometry.room())?);
        let record = device.records.alloc(&function.transport)?;
        if init.service == Service::RawPacket {
            return Self::create_raw(pd, init, geometry, mem, record);
        }
        let (log_page_size, pages) = page_list(mem.iova(), geometry.bytes());
        let mut qpc = QpContext::zeroed();
        qpc.set()
            .st(init.service.context())
            .block_lb_mc(init.block_multicast_loopback)
            .pm_state(PathMigState::Migrated)
            .pd(pd.pdn)
            .uar_page(device.opener.uar())
            .log_page_size(log_page_size)
            .cqn_snd(init.send_cq.cqn())
            .cqn_rcv(init.recv_cq.cqn())
            .dbr_addr(record.iova())
            .log_ack_req_freq(LOG_ACK_REQ_FREQ)
            .cs_res(if init.service.is_connected() { SCATTER_32 } else { 0 })
            .user_index(NO_USER_INDEX);
        match geometry.sq_blocks {
            0 => qpc.set().no_sq(true),
            blocks => qpc.set().log_sq_size(blocks.trailing_zeros() as u8),
        };
        if let Some(StandIns { cqn, xrcdn, .. }) = stand_ins {
            qpc.set().cqn_rcv(cqn).xrcd(xrcdn);
        }
        let shared = init.srq.as_ref().map(|srq| srq.srqn()).or(stand_ins.map(|s| s.srqn));
        match (geometry.rq_entries, shared) {
            (0, Some(srqn)) => qpc.set().rq_type(SHARED_RQ).srqn_rmpn_xrqn(srqn),
            (0, None) => qpc.set().rq_type(NO_RQ),
            (entries, _) => qpc
                .set()
                .rq_type(RQ)
                .log_rq_size(entries.trailing_zeros() as u8)
                .log_rq_stride((geometry.rq_stride / WQE_DS).trailing_zeros() as u8),
        };
        let mut input = CreateQpIn::zeroed();
        input.set().qpc(qpc);
        let created: Result<CreateQpOut, Error> =
            function.call_with(Opcode::CreateQp, device.opener.uid(), &input, &pages);
        let qpn = match created {
            Ok(out) => out.qpn(),
            Err(error) => {
                if error.is_uncertain() {
                    std::mem::forget((mem, record)); // the QP may yet come to life
                }
                return Err(error);
            }
        };
        let links = Links {
            send_cq: Some(init.send_cq.clone()),
            recv_cq: (!init.service.is_xrc()).then(|| init.recv_cq.clone()),
            srq: init.srq.clone(),
            ..Links::default()
        };
        Ok(Self::assemble(
            pd,
            qpn,
            init.service,
            geometry,
            mem,
            Some(record),
            links,
            init.sq_sig_all,
            init.cookie,
        ))
    }

    /// Makes one that is two queues on the device. Its number is that of the send queue, which is always there.
    fn create_raw(
        pd: &Arc<Pd>,
        init: &QpInit,
        geometry: Geometry,
        mem: Arc<DmaMem>,
        record: Record,
    ) -> Result<Arc<Qp>, Error> {
        let raw = match RawQueues::create(pd, init, &geometry, &mem, record.iova()) {
            Ok(raw) => raw,
            Err(error) => {
                if error.is_uncertain() {
                    std::mem::forget((mem, record)); // a queue may yet come to life
                }
                return Err(error);
            }
        };
        let links = Links {
            send_cq: Some(init.send_cq.clone()),
            recv_cq: Some(init.recv_cq.clone()),
            ..Links::default()
        };
        let (qpn, service) = (raw.sqn, init.service);
        let made = Self::assemble(
            pd,
            qpn,
            service,
            geometry,
            mem,
            Some(record),
            links,
            init.sq_sig_all,
            init.cookie,
        );
        Self::with_raw(made, raw)
    }

    fn with_raw(made: Arc<Qp>, raw: RawQueues) -> Result<Arc<Qp>, Error> {
        let mut made = Arc::into_inner(made).ok_or_else(|| Error::invalid("the QP is in use"))?;
        made.raw = Some(raw);
        Ok(Arc::new(made))
    }

    /// One that spreads frames over the work queues of a table. It has no number: no packet and no completion names it.
    pub(super) fn of_table(pd: &Arc<Pd>, init: &RssInit) -> Result<Arc<Qp>, Error> {
        let mem = Arc::new(DmaMem::alloc(&pd.device.function.transport, 0, Scope::Opener)?);
        let raw = RawQueues::spread(pd, &init.table, &init.hash, init.block_multicast_loopback)?;
        let links = Links { table: Some(init.table.clone()), ..Links::default() };
        let geometry = Geometry { rq_stride: WQE_DS, ..Geometry::default() };
        let made = Self::assemble(pd, 0, Service::RawPacket, geometry, mem, None, links, false, 0);
        Self::with_raw(made, raw)
    }

    /// A handle of the target QP of XRC `qpn`.
    pub(super) fn of_target(domain: &Arc<XrcDomain>, qpn: u32, cookie: u64) -> Result<Arc<Qp>, Error> {
        let transport = &domain.device().function.transport;
        let mem = match DmaMem::alloc(transport, 0, Scope::Opener) {
            Ok(mem) => Arc::new(mem),
            Err(error) => {
                domain.let_go_target(qpn)?;
                return Err(error);
            }
        };
        let links = Links { domain: Some(domain.clone()), ..Links::default() };
        let (pd, service) = (domain.pd(), Service::XrcTgt);
        let geometry = Geometry { rq_stride: WQE_DS, ..Geometry::default() };
        Ok(Self::assemble(&pd, qpn, service, geometry, mem, None, links, false, cookie))
    }

    #[allow(clippy::too_many_arguments)]
    fn assemble(
        pd: &Arc<Pd>,
        qpn: u32,
        service: Service,
        geometry: Geometry,
        mem: Arc<DmaMem>,
        record: Option<Record>,
        links: Links,
        signal_all: bool,
        cookie: u64,
    ) -> Arc<Qp> {
        let device = &pd.device;
        let queues = Arc::new(QpQueues {
            qpn,
            tells_more: service.is_datagram() || service == Service::RawPacket,
            raw: service == Service::RawPacket,
            sq: SendTracker::new(geometry.sq_blocks),
            rq: RecvTracker::new(geometry.rq_entries),
            inbox: (geometry.rq_entries > 0).then(|| Inbox {
                ring: DmaRing::new(mem.clone(), 0, geometry.rq_entries, geometry.rq_stride),
                first: 0,
                segments: geometry.rq_stride / WQE_DS,
                shifted: device.shifted.clone(),
            }),
            srq: links.srq.as_ref().map(|srq| srq.receives().clone()),
        });
        links.cqs().for_each(|cq| cq.attach(queues.clone()));
        if links.table.is_none() {
            device.registry.add_qp(qpn, cookie);
        }
        let cap = geometry.cap;
        Arc::new(Qp {
            sq: BiasedMutex::new(SendQueue {
                ring: DmaRing::new(mem.clone(), geometry.sq_offset, geometry.sq_blocks.max(1), WQE_BB),
                qpn,
                service,
                block: 0,
                number: 0,
                max_wr: cap.max_send_wr,
                max_sge: cap.max_send_sge as usize,
                max_inline: cap.max_inline as usize,
                signal_all,
                small_fence: false,
                scratch: SendQueue::scratch(cap.max_inline as usize),
            }),
            rq: BiasedMutex::new(RecvQueue {
                ring: DmaRing::new(mem.clone(), 0, geometry.rq_entries.max(1), geometry.rq_stride),
                number: 0,
                max_wr: cap.max_recv_wr,
                max_sge: cap.max_recv_sge as usize,
                segments: geometry.rq_stride / WQE_DS,
            }),
            queues,
            bar: device.function.bar.clone(),
            doorbell: device.uar_register(BF_OFFSET),
            record,
            state: AtomicU32::new(QpState::Reset as u32),
            control: Mutex::new(Control {
                state: QpState::Reset,
                attr: QpAttr { cap, port_num: 1, ..QpAttr::default() },
            }),
            groups: Mutex::default(),
            cap,
            service,
            pd: pd.clone(),
            // What is the domain's is the function's.
            uid: if links.domain.is_some() { 0 } else { device.opener.uid() },
            cookie,
            links,
            raw: None,
            mem,
            live: true,
        })
    }

    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.queues.qpn
    }

    /// Sizes actually given.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Its transport service.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// State as this side last set it.
    pub fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Relaxed)).unwrap_or_default()
    }

    /// Whether send work requests may be posted (IBTA 10.3.1): from RTS on; in ERR they flush.
    #[inline(always)]
    pub(crate) fn may_send(&self) -> bool {
        self.state.load(Relaxed) >= QpState::Rts as u32
    }

    /// Whether receive work requests may be posted: in all states but RESET.
    #[inline(always)]
    pub(crate) fn may_receive(&self) -> bool {
        self.state.load(Relaxed) != QpState::Reset as u32
    }

    /// Writes half of the doorbell record.
    #[inline(always)]
    pub(crate) fn record(&self, half: usize, value: u32) {
        if let Some(record) = &self.record {
            record.set(half, value);
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, Vec<([u8; 16], u16)>> {
        self.groups.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// EOPNOTSUPP of a QP that spreads frames: it has no states, nor other attributes.
    fn has_states(&self) -> Result<(), Error> {
        match self.links.table {
            Some(_) => Err(Error::unsupported("a QP over a table of work queues has no states")),
            None => Ok(()),
        }
    }

    /// Moves it to another state or changes attributes (`ibv_modify_qp`); EINVAL leaves it as it was, and so does EOPNOTSUPP,
    /// of a QP that spreads frames over work queues.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.has_states()?;
        let now = if self.links.domain.is_some() { Some(self.query()?.qp_state) } else { None };
        let mut control = self.control();
        if let Some(state) = now {
            control.state = state; // others may have moved it
        }
        let next = modify::apply(self, &control, attr, mask)?;
        self.state.store(next.state as u32, Relaxed);
        if next.state == QpState::Reset && control.state != QpState::Reset {
            self.start_over();
        }
        *control = next;
        Ok(())
    }

    /// After the move to RESET: nothing is posted, nothing completes any more.
    fn start_over(&self) {
        let (mut sq, mut rq) = (self.sq.lock(), self.rq.lock());
        self.links.cqs().for_each(|cq| cq.remove_completions(self.qpn()));
        sq.reset();
        rq.number = 0;
        self.queues.sq.reset();
        self.queues.rq.reset();
        self.record(RCV_DBR, 0);
        self.record(SND_DBR, 0);
    }

    /// Where frames for it are steered to, if it is a raw packet QP that receives.
    pub(super) fn tir(&self) -> Option<u32> {
        self.raw.as_ref().and_then(|raw| raw.tirn)
    }

    /// The queues of a raw packet QP.
    pub(super) fn raw(&self) -> Option<&RawQueues> {
        self.raw.as_ref()
    }

    /// Asks the device. EOPNOTSUPP: it spreads frames over work queues.
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.has_states()?;
        if self.raw.is_some() {
            let control = self.control();
            let (state, attr) = (control.state, control.attr);
            return Ok(QpAttr { qp_state: state, cur_qp_state: state, cap: self.cap, ..attr });
        }
        let mut input = QueryQpIn::zeroed();
        input.set().qpn(self.qpn());
        let device = &self.pd.device;
        let out: QueryQpOut = device.function.call(Opcode::QueryQp, self.uid, &input)?;
        let qpc = out.qpc();
        let path = qpc.primary_address_path();
        let mut control = self.control();
        let last = control.attr;
        let state = match qpc.state() {
            context::QpState::Reset => QpState::Reset,
            context::QpState::Init => QpState::Init,
            context::QpState::Rtr => QpState::Rtr,
            context::QpState::Rts => QpState::Rts,
            context::QpState::SqErr => QpState::Sqe,
            context::QpState::SqDrained | context::QpState::SqDraining => QpState::Sqd,
            context::QpState::Err => QpState::Err,
            other => {
                return Err(Error::device("a QP state from 0 to 6", other.raw().to_string()));
            }
        };
        // The device stops sending, or altogether, of its own accord; the next move begins where it stands.
        let alone = matches!(state, QpState::Sqe | QpState::Err) && control.state != QpState::Reset;
        if alone {
            control.state = state;
            self.state.store(state as u32, Relaxed);
        }
        drop(control);
        let mut access = AccessFlags::empty();
        access.set(AccessFlags::REMOTE_READ, qpc.rre());
        access.set(AccessFlags::REMOTE_WRITE, qpc.rwe());
        access.set(AccessFlags::REMOTE_ATOMIC, qpc.rae());
        Ok(QpAttr {
            qp_state: state,
            cur_qp_state: state,
            sq_draining: qpc.state() == context::QpState::SqDraining,
            path_mtu: if qpc.mtu() == 0 { 0 } else { 128 << qpc.mtu().min(5) },
            qkey: qpc.q_key(),
            rq_psn: qpc.next_rcv_psn(),
            sq_psn: qpc.next_send_psn(),
            dest_qp_num: qpc.remote_qpn(),
            qp_access_flags: access,
            cap: self.cap,
            ah: super::AddressHandle {
                dgid: path.rgid_rip(),
                flow_label: path.flow_label(),
                sgid_index: path.src_addr_index(),
                hop_limit: path.hop_limit(),
                traffic_class: path.tclass(),
                is_global: path.grh(),
                ..last.ah
            },
            pkey_index: path.pkey_index(),
            max_rd_atomic: 1 << qpc.log_sra_max(),
            max_dest_rd_atomic: 1 << qpc.log_rra_max(),
            min_rnr_timer: qpc.min_rnr_nak(),
            timeout: path.ack_timeout(),
            retry_cnt: qpc.retry_count(),
            rnr_retry: qpc.rnr_retry(),
            ..last
        })
    }

    /// Destroys it and removes its completions from its CQs. Dropping the last reference does the same silently; EBUSY
    /// if it is not the last.
    pub fn destroy(self: Arc<Self>) -> Result<(), Error> {
        match Arc::into_inner(self) {
            None => Err(Error::Invalid { what: "the QP is in use".into(), errno: libc::EBUSY }),
            Some(mut qp) => qp.release(),
        }
    }

    fn release(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.live) {
            return Ok(());
        }
        let device = &self.pd.device;
        let result = match (&self.links.domain, &mut self.raw) {
            (Some(domain), _) => domain.let_go_target(self.queues.qpn),
            (None, Some(raw)) => raw.end(),
            (None, None) => {
                let mut input = DestroyQpIn::zeroed();
                input.set().qpn(self.qpn());
                device.function.order(Opcode::DestroyQp, self.uid, &input)
            }
        };
        self.links.cqs().for_each(|cq| cq.detach(self.qpn()));
        if self.links.table.is_none() {
            device.registry.remove_qp(self.qpn(), self.cookie);
        }
        if result.is_err() {
            // The device may still read and write: its memory is kept for ever.
            std::mem::forget((self.mem.clone(), self.record.take()));
        }
        result
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(qpn = self.qpn(), %error, "a QP could not be destroyed");
        }
    }
}
