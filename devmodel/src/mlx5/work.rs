//! A queue pair in the hands of a stage.

use super::{counter_of_event, lists::Domain, step::Step};
use crate::{
    Profile,
    host::Rid,
    identity,
    region::{self, Func, Held, Outlet, OutletRing, TimerKind, WireRing},
    state::{Counters, QpFlags, QpRow},
    translate::User,
    transport::{Event, Timer},
};
use hwspec::context::QpState;
use std::sync::atomic::Ordering::Acquire;

pub(crate) use super::Failure;

/// A queue pair in the hands of a stage: its row where it lies, noted in the journal before the stage began.
pub(crate) struct Work<'a, 'r, 'h> {
    pub func: &'a mut Func<'r>,
    pub step: &'a mut Step<'h>,
    /// Index.
    pub qp: u32,
    pub q: Held<'r, QpRow>,
    /// Put the QP into the ready ring when done.
    pub ready: bool,
    /// Give the QP its turn to send when done.
    pub execute: bool,
}

impl<'r, 'h> Work<'_, 'r, 'h> {
    /// Runs `stage` on QP `qp`, starts the timers its deadlines call for, and queues the QP if it has more to do. `None` if
    /// there is no such QP.
    #[inline(always)]
    pub(crate) fn on<T>(
        func: &mut Func<'r>,
        step: &mut Step<'h>,
        qp: u32,
        stage: impl FnOnce(&mut Work<'_, 'r, 'h>) -> T,
    ) -> Option<T> {
        let q = func.hold::<QpRow>(qp)?;
        let mut w = Work { func, step, qp, q, ready: false, execute: false };
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
        // Not further than the hint for those without the lock reaches; who wakes too early is armed again.
        let far = self.step.now + (1 << 50);
        self.func.arm_timer(self.qp, TimerKind::Connection(timer), at.min(far));
    }

    /// The QP's number.
    #[inline]
    pub(crate) fn qpn(&self) -> u32 {
        self.func.number::<QpRow>(self.qp)
    }

    /// As whom the QP uses keys.
    #[inline]
    pub(crate) fn user(&self) -> User {
        User { pd: self.q.pd, qpn: self.qpn() }
    }

    /// The user whose keys the lists of its work requests name.
    #[inline(always)]
    pub(crate) fn domain(&self) -> Domain {
        Domain { user: self.user(), rlky: self.q.has(QpFlags::RESERVED_LKEY) }
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

    /// Counts what happened on the connection.
    pub(crate) fn count_event(&mut self, event: Event) {
        // A ConnectX-5 counts a refused access where it was asked for only (row 60 of the conformance table).
        if event != Event::AccessRefused || self.profile() == Profile::Ibta {
            self.count(counter_of_event(event));
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        self.step.config.profile
    }

    /// Packets that may be put into a ring with `free` slots: acknowledgements and other senders get a share.
    #[inline]
    fn share_of(&self, free: usize) -> usize {
        free.saturating_sub(self.step.sent() + 32).min(BATCH)
    }

    /// Packets that may be sent now: the peer's receive ring must have room for them, as on a link with priority flow
    /// control.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        match self.peer() {
            Some(fid) => self.share_of(WireRing::of(self.func.region(), fid).free()) as u32,
            None if self.is_infiniband() => BATCH as u32,
            None => self.room_of_uplink(),
        }
    }

    /// The function of this adapter that the QP is connected to; `None` if its peer is outside.
    #[inline]
    pub(crate) fn peer(&self) -> Option<u8> {
        let fid = match self.is_infiniband() {
            true => self.routed_peer(),
            false => identity::fid_of_mac(self.step.config.node_id, self.q.dmac),
        };
        fid.filter(|fid| *fid < self.func.region().functions())
    }

    /// True if the peer can't answer because a program is stopped: one that holds the peer's function or its receive ring, or one
    /// that alone can take what waits there. On a card nobody would notice that: the adapter goes on when its users do not. Asked
    /// when the acknowledgement timer ran out.
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
        // A user of that function who is stopped is a bystander if others take what comes there: then our packet is lost.
        let stall =
            (self.q.requester.una_psn | QpRow::STALL, region.sync(fid, region::Sync::RxHead).load(Acquire));
        let (psn, head) = (self.q.stall_psn, self.q.stall_head);
        (self.q.stall_psn, self.q.stall_head) = stall;
        let is_served = psn == stall.0 && head != stall.1;
        !is_served && host.has_stopped_user(Rid(fid))
    }

    /// The uplink pauses us as a port with priority flow control does.
    #[inline(never)]
    fn room_of_uplink(&self) -> u32 {
        let uplink = OutletRing::of(self.func.region(), Outlet::Uplink);
        let frames = uplink.allowance(self.step.now) / (usize::from(self.q.mtu) + UPLINK_HEADERS);
        frames.saturating_sub(self.step.sent()).min(BATCH) as u32
    }
}

/// Bytes of a frame besides its payload, and of what keeps it in the uplink, at most.
const UPLINK_HEADERS: usize = 160;
/// Packets a QP sends in one go.
const BATCH: usize = 64;
