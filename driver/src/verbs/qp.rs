//! Queue pairs.

use super::{
    AccessFlags, Cq, Pd, QpAttr, QpAttrMask, QpCap, QpState, RwqTable, Service, Srq, XrcDomain, ends::ends,
    modify, raw::RawQueues, transitions::transition,
};
use crate::{
    dma::DmaMem,
    error::Error,
    poll::QpQueues,
    post::{RecvQueue, SendQueue},
    records::Record,
    transport::Bar,
};
use hwspec::{
    cmd::{Opcode, qp::*},
    context,
    doorbell::{RCV_DBR, SND_DBR},
};
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering::Relaxed},
};
use sync::BiasedMutex;

/// `qpc.log_ack_req_freq`: an acknowledge is requested at least every 2^n packets.
pub(crate) const LOG_ACK_REQ_FREQ: u8 = 8;

/// A queue pair.
pub struct Qp {
    pub(crate) sq: BiasedMutex<SendQueue>,
    pub(crate) rq: BiasedMutex<RecvQueue>,
    pub(crate) queues: Arc<QpQueues>,
    pub(crate) bar: Bar,
    pub(crate) doorbell: u32,
    pub(super) record: Option<Record>,
    /// Copy of the state in `control`, readable by posts without its lock.
    pub(super) state: AtomicU32,
    pub(super) control: Mutex<Control>,
    /// Multicast groups that the QP is attached to, by GID and LID.
    pub(super) groups: Mutex<Vec<([u8; 16], u16)>>,
    pub(super) cap: QpCap,
    pub(super) service: Service,
    pub(crate) pd: Arc<Pd>,
    /// User context that owns the QP.
    pub(crate) uid: u16,
    pub(super) cookie: u64,
    pub(super) links: Links,
    /// The objects on the device, for a raw packet QP.
    pub(super) raw: Option<RawQueues>,
    pub(super) mem: Arc<DmaMem>,
    pub(super) live: bool,
}

/// Objects that the QP uses and keeps alive.
#[derive(Default)]
pub(super) struct Links {
    pub(super) send_cq: Option<Arc<Cq>>,
    pub(super) recv_cq: Option<Arc<Cq>>,
    pub(super) srq: Option<Arc<Srq>>,
    /// The domain, for an XRC target QP, which belongs to it.
    pub(super) domain: Option<Arc<XrcDomain>>,
    /// The table, for a QP that spreads frames over work queues.
    pub(super) table: Option<Arc<RwqTable>>,
}

impl Links {
    pub(super) fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        self.recv_cq.iter().chain(&self.send_cq)
    }
}

/// State and attributes as last set.
pub(crate) struct Control {
    pub state: QpState,
    pub attr: QpAttr,
}

impl Control {
    /// Those of a QP in RESET.
    pub fn new(cap: QpCap) -> Self {
        Self { state: QpState::Reset, attr: QpAttr { cap, port_num: 1, ..QpAttr::default() } }
    }
}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.queues.qpn
    }

    /// The actual sizes.
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

    /// The state last set by this opener.
    pub fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Relaxed)).unwrap_or_default()
    }

    /// True if send work requests may be posted (IBTA 10.3.1): from RTS on; in ERR they flush.
    #[inline(always)]
    pub(crate) fn may_send(&self) -> bool {
        self.state.load(Relaxed) >= QpState::Rts as u32
    }

    /// True if receive work requests may be posted: in all states but RESET.
    #[inline(always)]
    pub(crate) fn may_receive(&self) -> bool {
        self.state.load(Relaxed) != QpState::Reset as u32
    }

    /// Writes one half of the doorbell record.
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

    /// Fails with EOPNOTSUPP for a QP that spreads frames, which has neither states nor attributes.
    fn has_states(&self) -> Result<(), Error> {
        match self.links.table {
            Some(_) => Err(Error::unsupported("a QP over a table of work queues has no states")),
            None => Ok(()),
        }
    }

    /// Changes state or attributes (`ibv_modify_qp`). An error leaves the QP unchanged: EINVAL, or EOPNOTSUPP for a
    /// QP that spreads frames over work queues.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.has_states()?;
        let now = if self.links.domain.is_some() { Some(self.query()?.qp_state) } else { None };
        let mut control = self.control();
        if let Some(state) = now {
            control.state = state; // another opener may have changed it
        }
        let next = modify::apply(self, &control, attr, mask)?;
        self.state.store(next.state as u32, Relaxed);
        if next.state == QpState::Reset && control.state != QpState::Reset {
            self.start_over();
        }
        *control = next;
        Ok(())
    }

    /// Moves a queue pair through the states before `goal` (RESET, INIT, RTR, RTS) to `goal`. Each move sets the
    /// attributes of `attr` that this service requires for it; `qp_state` is not read. Errors are those of
    /// [`modify`](Self::modify), and leave the queue pair in the last state that it reached.
    pub fn advance_to(&self, goal: QpState, attr: &QpAttr) -> Result<(), Error> {
        while self.state() != goal {
            let from = self.state();
            let to = match from {
                QpState::Reset => QpState::Init,
                QpState::Init => QpState::Rtr,
                QpState::Rtr => QpState::Rts,
                _ => goal,
            };
            let needed = transition(self.service, from, to).map_or(QpAttrMask::empty(), |row| row.required);
            self.modify(&QpAttr { qp_state: to, ..*attr }, QpAttrMask::STATE | needed)?;
        }
        Ok(())
    }

    /// Discards outstanding work requests after a transition to RESET.
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

    /// The TIR that frames are steered to, for a raw packet QP that receives.
    pub(super) fn tir(&self) -> Option<u32> {
        self.raw.as_ref().and_then(|raw| raw.tirn)
    }

    /// The queues of a raw packet QP.
    pub(super) fn raw(&self) -> Option<&RawQueues> {
        self.raw.as_ref()
    }

    /// Queries the device. EOPNOTSUPP: the QP spreads frames over work queues.
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.has_states()?;
        if self.raw.is_some() {
            let control = self.control();
            let (state, attr) = (control.state, control.attr);
            return Ok(QpAttr { qp_state: state, cur_qp_state: state, cap: self.cap, ..attr });
        }
        let input = QueryQpIn::with(|s| s.qpn(self.qpn()));
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
        // The device enters SQE or ERR on its own. The next transition starts from there.
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

    fn release(&mut self) -> Result<(), Error> {
        let device = &self.pd.device;
        let result = match (&self.links.domain, &mut self.raw) {
            (Some(domain), _) => domain.drop_target(self.queues.qpn),
            (None, Some(raw)) => raw.end(),
            (None, None) => device.function.destroy_object(Opcode::DestroyQp, self.uid, self.qpn()),
        };
        self.links.cqs().for_each(|cq| cq.detach(self.qpn()));
        if self.links.table.is_none() {
            device.registry.remove_qp(self.qpn(), self.cookie);
        }
        // The device may still access its memory, which is therefore kept forever.
        result.inspect_err(|_| std::mem::forget((self.mem.clone(), self.record.take())))
    }
}

ends! {
    /// Destroys the QP and removes its completions from its CQs. Dropping the last reference does the same without
    /// reporting errors. EBUSY: this is not the last reference.
    Qp.destroy: "the QP is in use", "a QP could not be destroyed", qpn = qpn
}
