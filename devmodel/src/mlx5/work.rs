//! The queue pair that a stage works on.

use super::{counter_of_event, event, step::Step};
use crate::{
    Conformance,
    host::Rid,
    identity,
    region::{self, Func, Held, Outlet, OutletRing, TimerKind, WireRing, is_watched},
    state::{Counters, QpFlags, QpRow},
    translate::{Domain, User},
    transport::{Event, Timer},
};
use hwspec::{
    context::{QpState, ServiceType},
    eqe::{EventType, QueueKind},
};
use std::sync::atomic::Ordering::Acquire;

pub(crate) use super::Failure;

/// The queue pair that a stage works on: its row in place, recorded in the journal before the stage began.
pub(crate) struct QpStage<'a, 'r, 'h> {
    pub func: &'a mut Func<'r>,
    pub step: &'a mut Step<'h>,
    /// QP index.
    pub qp: u32,
    pub q: Held<'r, QpRow>,
    /// The destination of the peer's requests; for XRC, the one that the current request names.
    pub receiver: Receiver,
    /// Put the QP in the ready ring afterwards.
    pub ready: bool,
    /// Give the QP its turn to send afterwards.
    pub execute: bool,
}

/// The objects that a peer's requests use: those of the QP, or of the SRQ that a request over XRC names.
#[derive(Clone, Copy)]
pub(crate) struct Receiver {
    pub pd: u32,
    pub srqn: u32,
    pub cqn: u32,
    pub user_index: u32,
}

impl Receiver {
    #[inline(always)]
    pub(super) fn of(q: &QpRow) -> Self {
        Self { pd: q.pd, srqn: q.srqn, cqn: q.cqn_rcv, user_index: q.user_index }
    }
}

impl<'r, 'h> QpStage<'_, 'r, 'h> {
    /// Runs `stage` on QP `qp`, starts the timers for its deadlines, and queues the QP if it has more to do. `None` if there is
    /// no such QP.
    #[inline(always)]
    pub(crate) fn on<T>(
        func: &mut Func<'r>,
        step: &mut Step<'h>,
        qp: u32,
        stage: impl FnOnce(&mut QpStage<'_, 'r, 'h>) -> T,
    ) -> Option<T> {
        let q = func.hold::<QpRow>(qp)?;
        let receiver = Receiver::of(&q);
        let mut w = QpStage { func, step, qp, q, receiver, ready: false, execute: false };
        let out = stage(&mut w);
        w.close();
        Some(out)
    }

    #[inline(always)]
    fn close(&mut self) {
        for (timer, at) in self.q.requester.timers.pending() {
            if !self.q.has(QpFlags::of_timer(timer)) {
                self.arm(timer, at);
            }
        }
        if self.ready {
            self.func.make_ready(self.qp);
        }
    }

    #[inline(never)]
    fn arm(&mut self, timer: Timer, at: u64) {
        // Limited to the range of the hint for readers without the lock; a timer that expires too early is armed again.
        let far = self.step.now + (1 << 50);
        self.func.arm_timer(self.qp, TimerKind::Connection(timer), at.min(far));
    }

    /// The QP's number.
    #[inline]
    pub(crate) fn qpn(&self) -> u32 {
        self.func.number::<QpRow>(self.qp)
    }

    /// The user of keys for this QP.
    #[inline]
    pub(crate) fn user(&self) -> User {
        User { pd: self.receiver.pd, qpn: self.qpn() }
    }

    /// The domain of the keys in its work requests' lists.
    #[inline(always)]
    pub(crate) fn domain(&self) -> Domain {
        Domain { user: self.user(), rlky: self.q.has(QpFlags::RESERVED_LKEY) }
    }

    /// True if this is the QP's service.
    #[inline(always)]
    pub(crate) fn is(&self, service: ServiceType) -> bool {
        self.q.service == service.raw()
    }

    /// True in the states in which the QP takes packets.
    #[inline(always)]
    pub(crate) fn receives(&self) -> bool {
        matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr)
    }

    /// Raises an event of the QP.
    #[cold]
    pub(crate) fn raise(&mut self, kind: EventType) {
        let qpn = self.qpn();
        event::queue(self.func, self.q.head.uid, kind, (QueueKind::Qp, qpn));
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        QpState::from_raw(self.q.state)
    }

    #[inline(never)]
    pub(crate) fn count(&mut self, counter: Counters) {
        self.func.count(counter, 1);
        if self.q.counter_set != 0 {
            self.func.count_in_set(self.q.counter_set.into(), counter, 1);
        }
    }

    /// Counts an event of the connection.
    pub(crate) fn count_event(&mut self, event: Event) {
        // A ConnectX-5 counts a refused access only at the requester (row 60 of the conformance table).
        if event != Event::AccessRefused || self.profile() == Conformance::Ibta {
            self.count(counter_of_event(event));
        }
    }

    pub(crate) fn profile(&self) -> Conformance {
        self.step.config.profile
    }

    /// Number of packets that may be sent now: the peer's receive ring must have room for them, as on a link with priority flow
    /// control.
    #[inline]
    pub(crate) fn room(&mut self) -> u32 {
        match self.peer() {
            Some(fid) => self.room_in_ring(WireRing::of(self.func.region(), fid).free()),
            None => self.room_outside(),
        }
    }

    /// Leaves a share of the `free` slots for acknowledgements and other senders.
    #[inline]
    fn room_in_ring(&self, free: usize) -> u32 {
        free.saturating_sub(self.step.sent() + 32).min(BATCH) as u32
    }

    /// The function of this adapter that the QP is connected to; `None` if its peer is outside.
    #[inline]
    pub(crate) fn peer(&self) -> Option<u8> {
        let fid = match self.is_infiniband() {
            true => identity::fid_of_lid(self.step.config.node_id, self.q.path.rlid),
            false => identity::fid_of_mac(self.step.config.node_id, self.q.path.dmac),
        };
        fid.filter(|fid| *fid < self.func.region().functions())
    }

    /// True if the peer can't respond because a program is stopped: one that holds the peer's function or its receive ring, or
    /// the only one that can consume the waiting frames. With a card this would go unnoticed, because the adapter runs on when
    /// its users are stopped. Called when the acknowledgement timer expired.
    #[cold]
    pub(crate) fn is_peer_held_up(&mut self) -> bool {
        let (Some(fid), region) = (self.peer(), self.func.region()) else { return false };
        let holders = [region.function_lock(fid).holder(), region.ring_lock(fid).holder()];
        let host = &mut self.step.host;
        if holders.into_iter().flatten().any(|party| host.is_stopped(party)) {
            return true;
        }
        if !WireRing::of(region, fid).waits() {
            return false;
        }
        // If others consume the frames of that function, a stopped user of it is a bystander and our packet is lost.
        let stall =
            (self.q.requester.una_psn | QpRow::STALL, region.sync(fid, region::Sync::RxHead).load(Acquire));
        let (psn, head) = (self.q.stall_psn, self.q.stall_head);
        (self.q.stall_psn, self.q.stall_head) = stall;
        let is_served = psn == stall.0 && head != stall.1;
        !is_served && host.has_stopped_user(Rid(fid))
    }

    /// The uplink pauses senders like a port with priority flow control.
    #[inline(never)]
    fn room_outside(&mut self) -> u32 {
        let uplink = OutletRing::of(self.func.region(), Outlet::Uplink);
        let region = self.func.region();
        let uplink_only =
            self.is_infiniband() || region.is_switched() || is_watched(region, self.step.config);
        let beside = if uplink_only { None } else { self.step.host.room_beside(self.q.path.dmac) };
        match beside {
            Some(free) if uplink.is_idle() => return self.room_in_ring(free),
            // Frames in the uplink must not be overtaken. Once it is idle, the direct way is faster.
            Some(_) if uplink.is_idle_soon(self.step.now) => return 0,
            _ => {}
        }
        let frames = uplink.allowance(self.step.now) / (usize::from(self.q.mtu) + UPLINK_HEADERS);
        frames.saturating_sub(self.step.sent()).min(BATCH) as u32
    }
}

/// Maximum size of a frame in the uplink without its payload, including the ring's own header.
const UPLINK_HEADERS: usize = 160;
/// Number of packets that a QP sends at once.
const BATCH: usize = 64;
