//! Receive work queues without a queue pair (`ibv_create_wq`). Frames reach them through indirection tables.

use super::{
    Cq, Pd, RecvWr,
    ends::ends,
    geometry::receive_ring,
    raw::{self, Receives},
};
use crate::{
    dma::{DmaMem, DmaRing},
    error::{Error, PostError},
    poll::{QpQueues, RecvTracker, SendTracker},
    post::{RecvQueue, in_order},
    records::Record,
};
use hwspec::{
    cmd::{Opcode, rq_sq::*},
    context::rq_sq::*,
    doorbell::RCV_DBR,
    wqe::WQE_DS,
};
use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering::Relaxed},
};
use sync::BiasedMutex;

/// The attributes of a new work queue.
#[derive(Clone)]
pub struct WqInit {
    /// CQ for its receives.
    pub cq: Arc<Cq>,
    /// Minimum number of outstanding receives.
    pub max_wr: u32,
    /// SGEs per receive.
    pub max_sge: u32,
    /// VLAN tags are stripped from frames and reported in `vlan_info` of the CQE.
    pub strip_vlan: bool,
    /// Returned in its events.
    pub cookie: u64,
}

/// State of a work queue, numbered as `ibv_wq_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WqState {
    /// Accepts neither receives nor frames.
    #[default]
    Reset = 0,
    /// Accepts both.
    Rdy = 1,
    /// Receives are flushed, frames are lost.
    Err = 2,
}

impl WqState {
    /// Converts from `ibv_wq_state`.
    pub fn from_raw(raw: u32) -> Option<Self> {
        [Self::Reset, Self::Rdy, Self::Err].into_iter().find(|state| *state as u32 == raw)
    }

    /// The code of the state in `rqc.state`.
    fn context(self) -> u8 {
        match self {
            Self::Reset => RESET,
            Self::Rdy => READY,
            Self::Err => ERROR,
        }
    }
}

/// Changes to a work queue. `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WqAttr {
    /// The new state.
    pub state: Option<WqState>,
    /// The expected current state. If the queue is in another, nothing changes.
    pub current: Option<WqState>,
    /// VLAN stripping, as for [`WqInit::strip_vlan`].
    pub strip_vlan: Option<bool>,
}

/// A receive work queue. Its completions contain its number in place of a QP number.
pub struct Wq {
    queue: BiasedMutex<RecvQueue>,
    queues: Arc<QpQueues>,
    record: Option<Record>,
    /// Copy of the state in `control`, for posts.
    state: AtomicU32,
    control: Mutex<WqState>,
    /// The user index in its CQEs.
    index: u32,
    size: (u32, u32),
    cq: Arc<Cq>,
    pd: Arc<Pd>,
    mem: Arc<DmaMem>,
    live: bool,
}

impl Wq {
    /// Creates a work queue in RESET with at least the capacity in `init`. EINVAL: sizes beyond the device's limits, or
    /// a CQ of another device; EOPNOTSUPP: a port that is not Ethernet, or tags cannot be stripped.
    pub fn create(pd: &Arc<Pd>, init: &WqInit) -> Result<Arc<Wq>, Error> {
        let device = &pd.device;
        let attr = device.attr();
        if attr.max_wq == 0 {
            return Err(Error::unsupported("work queues receive frames, and this port has none"));
        }
        if !Arc::ptr_eq(init.cq.device(), device) {
            return Err(Error::invalid("CQ and protection domain belong to different devices"));
        }
        if init.max_wr == 0 || init.max_wr > attr.max_wq_wr || init.max_sge > attr.max_sge {
            return Err(Error::invalid(format!(
                "a work queue of {} receives of {} pieces was asked for, 1 to {} of at most {} can be had",
                init.max_wr, init.max_sge, attr.max_wq_wr, attr.max_sge
            )));
        }
        if init.strip_vlan && !attr.raw_vlan_stripping {
            return Err(Error::unsupported("the device does not take VLAN tags out of frames"));
        }
        let (entries, stride) = receive_ring(init.max_wr, init.max_sge);
        let mem = Arc::new(pd.queue_memory(entries as usize * stride)?);
        let record = device.records.alloc(&device.function.transport)?;
        let index = init.cq.claim_wq();
        let receives = Receives { cqn: init.cq.cqn(), strip_vlan: init.strip_vlan, user_index: index };
        let created = raw::create_rq(pd, (mem.iova(), record.iova()), entries, stride, &receives)
            .inspect_err(|_| init.cq.detach_wq(index));
        let (rqn, (mem, record)) = Error::or_keep(created, (mem, record))?;
        let queues = Arc::new(QpQueues {
            qpn: rqn,
            extended: true,
            raw: true,
            sq: SendTracker::new(0),
            rq: RecvTracker::new(entries),
            inbox: None,
            srq: None,
        });
        init.cq.attach_wq(index, queues.clone());
        device.registry.wqs.add(rqn, init.cookie);
        let size = (entries, ((stride / WQE_DS) as u32).min(attr.max_sge));
        Ok(Arc::new(Wq {
            queue: BiasedMutex::new(RecvQueue {
                ring: DmaRing::new(mem.clone(), 0, entries, stride),
                number: 0,
                max_wr: size.0,
                max_sge: size.1 as usize,
                segments: stride / WQE_DS,
            }),
            queues,
            record: Some(record),
            state: AtomicU32::new(WqState::Reset as u32),
            control: Mutex::default(),
            index,
            size,
            cq: init.cq.clone(),
            pd: pd.clone(),
            mem,
            live: true,
        }))
    }

    /// Its number.
    pub fn wqn(&self) -> u32 {
        self.queues.qpn
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Maximum number of outstanding receives, and SGEs per receive.
    pub fn size(&self) -> (u32, u32) {
        self.size
    }

    /// The state last set by this opener.
    pub fn state(&self) -> WqState {
        *self.control()
    }

    fn control(&self) -> MutexGuard<'_, WqState> {
        self.control.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes state or receive settings (`ibv_modify_wq`). EINVAL, with nothing changed: the current state differs
    /// from the request's, or there is no such transition; EOPNOTSUPP: the device does not strip tags.
    pub fn modify(&self, attr: &WqAttr) -> Result<(), Error> {
        let device = &self.pd.device;
        let (function, uid) = (&device.function, device.opener.uid());
        if attr.strip_vlan == Some(true) && !device.attr().raw_vlan_stripping {
            return Err(Error::unsupported("the device does not take VLAN tags out of frames"));
        }
        let mut state = self.control();
        let (now, to) = (*state, attr.state.unwrap_or(*state));
        if attr.current.is_some_and(|current| current != now) {
            return Err(Error::invalid(format!("the WQ is in {now:?}, the request says {:?}", attr.current)));
        }
        if (now, to) == (WqState::Err, WqState::Rdy) {
            return Err(Error::invalid("a WQ in error must be reset before it is ready again"));
        }
        if let Some(strip) = attr.strip_vlan {
            let mut context = RqContext::zeroed();
            context.set().state(now.context()).vsd(!strip);
            let mut input = ModifyRqIn::zeroed();
            input.set().rq_state(now.context()).rqn(self.wqn()).modify_bitmask(VSD).ctx(context);
            function.order(Opcode::ModifyRq, uid, &input)?;
        }
        if to != now {
            // Posts see the new state before the device does, so that no receive is posted to a queue that is being
            // reset.
            if to == WqState::Reset {
                self.state.store(to as u32, Relaxed);
            }
            let done = raw::step(function, uid, (Opcode::ModifyRq, self.wqn()), now.context(), to.context());
            self.state.store(if done.is_ok() { to } else { now } as u32, Relaxed);
            done?;
            *state = to;
            if to == WqState::Reset {
                self.start_over();
            }
        }
        Ok(())
    }

    /// Discards outstanding receives after a transition to RESET.
    fn start_over(&self) {
        let mut queue = self.queue.lock();
        self.cq.remove_wq_completions(self.index, self.wqn());
        queue.number = 0;
        self.queues.rq.reset();
        self.ring(0);
    }

    fn ring(&self, number: u32) {
        if let Some(record) = &self.record {
            record.set(RCV_DBR, number & 0xffff);
        }
    }

    /// Posts receives in order. On an error, the earlier ones are posted. EINVAL: unsupported SGEs, or the queue is in
    /// RESET; ENOMEM: the queue is full.
    pub fn post_recv<'w>(&self, wrs: impl IntoIterator<Item = RecvWr<'w>>) -> Result<(), PostError> {
        let mut queue = self.queue.lock_biased();
        let begin = queue.number;
        let result = in_order(wrs, |wr| match self.state.load(Relaxed) == WqState::Reset as u32 {
            true => Err(libc::EINVAL),
            false => queue.put(&self.queues.rq, &wr),
        });
        if queue.number != begin {
            self.queues.rq.publish(queue.number);
            self.ring(queue.number);
        }
        result
    }

    fn release(&mut self) -> Result<(), Error> {
        let device = &self.pd.device;
        device.registry.wqs.remove(self.wqn());
        let result = device.function.destroy_object(Opcode::DestroyRq, device.opener.uid(), self.wqn());
        self.cq.remove_wq_completions(self.index, self.wqn());
        self.cq.detach_wq(self.index);
        // The device may still read its memory, which is therefore kept forever.
        result.inspect_err(|_| std::mem::forget((self.mem.clone(), self.record.take())))
    }
}

ends! {
    /// Destroys the queue and removes its completions from its CQ. EBUSY while tables use it, which keep it until the
    /// last of them is gone. Dropping the last reference does the same without reporting errors.
    Wq.destroy: "the WQ is in use", "a WQ could not be destroyed", wqn = wqn
}
