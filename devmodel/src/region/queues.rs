//! A function's scheduling queues: the ready ring (QPs with something to send) and the timers.

use super::{Func, Region, Row, Sync, Table};
use crate::{
    state::{CqRow, QpFlags, QpRow, RqRow, SqRow, SubnetSendRow, TimerRow},
    transport::Timer,
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use sync::laboratory::{Site, step};

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// A timer of a QP's connection.
    Connection(Timer),
    /// The event of a CQ has been held back for its period (`cq_period`).
    Cq,
    /// Flush the receives of a receive queue in error that belongs to no QP.
    Rq,
    /// Complete commands that take time (`slow`).
    Command,
    /// The rate-limited port may send again.
    Pace,
    /// A QP limited by congestion control may send again.
    Rate,
    /// The receiver of a table's segments has not responded in time.
    Segments,
}

/// Numbers the timer kinds, as stored in heap entries.
macro_rules! numbered { ($( $kind:ident $(($timer:path))? = $raw:literal, )*) => {
    impl TimerKind {
        const fn raw(self) -> u32 {
            match self { $( Self::$kind $(($timer))? => $raw, )* }
        }

        fn from_raw(raw: u32) -> Option<Self> {
            match raw { $( $raw => Some(Self::$kind $(($timer))?), )* _ => None }
        }
    }
} }
numbered! {
    Connection(Timer::Ack) = 0,
    Connection(Timer::Rnr) = 1,
    Cq = 2,
    Rq = 3,
    Command = 4,
    Pace = 5,
    Rate = 6,
    Segments = 7,
}

/// Marks a send queue without a QP in the ready ring.
pub const READY_SQ: u32 = 1 << 31;

/// Entries of the ready ring before it is first doubled: one page.
pub(super) const READY: u32 = 1024;

/// log2 of the picoseconds per unit of [`Sync::Timer`].
const COARSE: u32 = 20;

impl Func<'_> {
    /// Appends QP `index` to the ready ring unless it is there already.
    pub fn make_ready(&mut self, index: u32) {
        let Some(qp) = self.row_mut::<QpRow>(index) else { return };
        if qp.has(QpFlags::READY) {
            return;
        }
        qp.set(QpFlags::READY, true);
        self.push_ready(index);
    }

    /// Appends send queue `index` to the ready ring unless it is there already.
    pub fn make_sq_ready(&mut self, index: u32) {
        let Some(sq) = self.row_mut::<SqRow>(index) else { return };
        if sq.flags & SqRow::READY != 0 {
            return;
        }
        sq.flags |= SqRow::READY;
        self.push_ready(READY_SQ | index);
    }

    /// Entries of the ready ring, a power of two. The ring spans no more pages than its entries at a time need, since every
    /// page touched costs memory.
    fn ready_rows(&self) -> u32 {
        let rows = u64::from(READY) << self.function().ready_doubled.min(u32::BITS);
        rows.min(self.rows(Table::Ready).into()) as u32
    }

    /// Doubles the ready ring when it is full. Entries are only copied to unused places, so the old ring stays intact until the
    /// job commits.
    #[cold]
    fn double_ready(&mut self, head: u32, tail: u32) {
        let rows = self.ready_rows();
        if rows >= self.rows(Table::Ready) {
            return;
        }
        // This memory was normally requested with the queue pairs that wait here.
        let _ = self.back_rows(Table::Ready, rows, 2 * rows);
        for n in 0..tail.wrapping_sub(head) {
            let at = head.wrapping_add(n) % (2 * rows);
            if at >= rows {
                let entry = *self.plain::<u32>(Table::Ready, at - rows);
                self.set_ready(at, entry);
            }
        }
        *self.function_mut(|f| &mut f.ready_doubled) += 1;
    }

    fn push_ready(&mut self, entry: u32) {
        let [head, tail] = self.function().ready;
        // A longer ring is corrupted and is discarded by `take_first_ready`.
        if tail.wrapping_sub(head) == self.ready_rows() {
            self.double_ready(head, tail);
        }
        *self.plain_mut::<u32>(Table::Ready, tail % self.ready_rows()) = entry;
        self.function_mut(|f| &mut f.ready)[1] = tail.wrapping_add(1);
        step(Site::Publish);
        self.sync(Sync::Ready).store(1, Relaxed);
    }

    /// True if no other queue is ready while the one taken last is executed.
    pub(crate) fn is_only_ready(&self) -> bool {
        let [head, tail] = self.function().ready;
        head == tail
    }

    /// True if the port has used up its rate for now, so that queues stay in the ready ring.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.function().held != 0
    }

    /// Takes the QP or send queue that has waited longest; a send queue is marked by [`READY_SQ`].
    #[inline]
    pub fn take_ready(&mut self) -> Option<u32> {
        let [head, tail] = self.function().ready;
        if head == tail {
            let word = self.sync(Sync::Ready);
            if word.load(Relaxed) != 0 {
                step(Site::Publish);
                word.store(0, Relaxed);
            }
            return None;
        }
        self.take_first_ready()
    }

    #[inline(never)]
    fn take_first_ready(&mut self) -> Option<u32> {
        if self.is_held() {
            // The timer triggers the next attempt.
            self.sync(Sync::Ready).store(0, Relaxed);
            return None;
        }
        loop {
            let [head, tail] = self.function().ready;
            if head == tail {
                self.sync(Sync::Ready).store(0, Relaxed);
                return None;
            }
            let rows = self.ready_rows();
            if tail.wrapping_sub(head) > rows {
                // Corrupted: the ring never holds more entries.
                self.function_mut(|f| &mut f.ready)[0] = tail;
                continue;
            }
            let index = *self.plain::<u32>(Table::Ready, head % rows);
            self.function_mut(|f| &mut f.ready)[0] = head.wrapping_add(1);
            // A QP that was destroyed in the meantime leaves its entry behind.
            if let Some(qp) = self.row_mut::<QpRow>(index) {
                if qp.has(QpFlags::READY) {
                    qp.set(QpFlags::READY, false);
                    return Some(index);
                }
            } else if let Some(sq) = self.row_mut::<SqRow>(index ^ READY_SQ) {
                sq.flags &= !SqRow::READY;
                return Some(index);
            }
        }
    }

    /// True if the heap holds a timer of this kind for the queue; `None` if there is no such queue.
    fn is_timed(&self, index: u32, kind: TimerKind) -> Option<bool> {
        match kind {
            TimerKind::Connection(timer) => Some(self.row::<QpRow>(index)?.has(QpFlags::of_timer(timer))),
            TimerKind::Cq => Some(self.row::<CqRow>(index)?.flags & CqRow::TIMED != 0),
            TimerKind::Rq => Some(self.row::<RqRow>(index)?.flags & RqRow::TIMED != 0),
            TimerKind::Command => Some(self.function().cmd_timed != 0),
            TimerKind::Pace => Some(self.is_held()),
            TimerKind::Rate => Some(self.row::<QpRow>(index)?.has(QpFlags::TIMER_RATE)),
            TimerKind::Segments => Some(self.row::<SubnetSendRow>(index)?.timed != 0),
        }
    }

    fn set_timed(&mut self, index: u32, kind: TimerKind, on: bool) {
        match kind {
            TimerKind::Connection(timer) => {
                if let Some(qp) = self.row_mut::<QpRow>(index) {
                    qp.set(QpFlags::of_timer(timer), on);
                }
            }
            TimerKind::Cq => {
                if let Some(cq) = self.row_mut::<CqRow>(index) {
                    cq.flags = if on { cq.flags | CqRow::TIMED } else { cq.flags & !CqRow::TIMED };
                }
            }
            TimerKind::Rq => {
                if let Some(rq) = self.row_mut::<RqRow>(index) {
                    rq.flags = if on { rq.flags | RqRow::TIMED } else { rq.flags & !RqRow::TIMED };
                }
            }
            TimerKind::Command => *self.function_mut(|f| &mut f.cmd_timed) = on.into(),
            TimerKind::Pace => *self.function_mut(|f| &mut f.held) = on.into(),
            TimerKind::Rate => {
                if let Some(qp) = self.row_mut::<QpRow>(index) {
                    qp.set(QpFlags::TIMER_RATE, on);
                }
            }
            TimerKind::Segments => {
                if let Some(row) = self.row_mut::<SubnetSendRow>(index) {
                    row.timed = on.into();
                }
            }
        }
    }

    /// Starts a timer of queue `index` for `at` (ps). A queue has one entry per kind: an earlier entry is kept, and the later deadline is
    /// found when it fires. Returns false if there is no room.
    pub fn arm_timer(&mut self, index: u32, kind: TimerKind, at: u64) -> bool {
        match self.is_timed(index, kind) {
            Some(false) => {}
            Some(true) => return true,
            None => return false,
        }
        let n = self.function().timers;
        if n >= self.rows(Table::Timer) {
            return false;
        }
        self.set_timed(index, kind, true);
        *self.function_mut(|f| &mut f.timers) = n + 1;
        self.rise(n, TimerRow { at, qp: index, kind: kind.raw() });
        self.publish_timer();
        true
    }

    /// Cancels the timers of QP `index`.
    pub fn forget_timers(&mut self, index: u32) {
        for timer in Timer::ALL {
            self.forget_timer(index, TimerKind::Connection(timer));
        }
        self.forget_timer(index, TimerKind::Rate);
    }

    /// Cancels a timer of queue `index`.
    pub fn forget_timer(&mut self, index: u32, kind: TimerKind) {
        if self.is_timed(index, kind) == Some(true) {
            self.drop_timers(|timer| timer.qp == index && timer.kind == kind.raw());
            self.set_timed(index, kind, false);
        }
    }

    fn drop_timers(&mut self, goes: impl Fn(&TimerRow) -> bool) {
        let mut i = 0;
        while i < self.function().timers {
            if goes(self.plain::<TimerRow>(Table::Timer, i)) {
                self.remove_timer(i);
            } else {
                i += 1;
            }
        }
        self.publish_timer();
    }

    /// Removes heap entry `i`: the last entry takes its place and is sifted. Entries moved to before `i` have been visited by
    /// the caller already; one moved to `i` or after is visited next.
    fn remove_timer(&mut self, i: u32) {
        let n = self.function().timers - 1;
        *self.function_mut(|f| &mut f.timers) = n;
        if i >= n {
            return;
        }
        let last = *self.plain::<TimerRow>(Table::Timer, n);
        if i > 0 && last.at < self.plain::<TimerRow>(Table::Timer, (i - 1) / 2).at {
            self.rise(i, last);
        } else {
            self.sink(i, n, last);
        }
    }

    /// Sifts `entry` up from `i`.
    fn rise(&mut self, mut i: u32, entry: TimerRow) {
        while i > 0 {
            let up = (i - 1) / 2;
            let parent = *self.plain::<TimerRow>(Table::Timer, up);
            if parent.at <= entry.at {
                break;
            }
            *self.plain_mut(Table::Timer, i) = parent;
            i = up;
        }
        *self.plain_mut(Table::Timer, i) = entry;
    }

    /// Sifts `entry` down from `i` in a heap of `n`.
    fn sink(&mut self, mut i: u32, n: u32, entry: TimerRow) {
        loop {
            let mut child = 2 * i + 1;
            if child >= n {
                break;
            }
            if child + 1 < n
                && self.plain::<TimerRow>(Table::Timer, child + 1).at
                    < self.plain::<TimerRow>(Table::Timer, child).at
            {
                child += 1;
            }
            let row = *self.plain::<TimerRow>(Table::Timer, child);
            if row.at >= entry.at {
                break;
            }
            *self.plain_mut(Table::Timer, i) = row;
            i = child;
        }
        *self.plain_mut(Table::Timer, i) = entry;
    }

    /// The earliest deadline, ps.
    #[inline]
    pub fn next_timer(&self) -> Option<u64> {
        (self.function().timers > 0).then(|| self.plain::<TimerRow>(Table::Timer, 0).at)
    }

    /// Takes a timer that is due at `now` (ps): index of the queue, and kind. The caller may have to rearm it.
    #[inline]
    pub fn take_timer(&mut self, now: u64) -> Option<(u32, TimerKind)> {
        if self.next_timer()? > now {
            return None;
        }
        self.take_due_timer()
    }

    #[cold]
    fn take_due_timer(&mut self) -> Option<(u32, TimerKind)> {
        let top = *self.plain::<TimerRow>(Table::Timer, 0);
        self.remove_timer(0);
        self.publish_timer();
        // A corrupted entry is discarded.
        let kind = TimerKind::from_raw(top.kind)?;
        self.set_timed(top.qp, kind, false);
        Some((top.qp, kind))
    }

    pub(super) fn publish_timer(&self) {
        let coarse = self.next_timer().map_or(0, |at| ((at >> COARSE) as u32).max(1));
        step(Site::Publish);
        self.sync(Sync::Timer).store(coarse, Release);
    }

    pub(crate) fn publish_ready(&self) {
        let [head, tail] = self.function().ready;
        step(Site::Publish);
        self.sync(Sync::Ready).store((head != tail).into(), Relaxed);
    }

    /// True if row `index` of `R` is allocated.
    pub fn exists<R: Row>(&self, index: u32) -> bool {
        self.row::<R>(index).is_some()
    }
}

impl Region {
    /// True if a timer of `fid` may be due at `now` (ps), checked without the lock. Reports a due timer within about a microsecond.
    #[inline]
    pub fn timer_due(&self, fid: u8, now: u64) -> bool {
        match self.sync(fid, Sync::Timer).load(Acquire) {
            0 => false,
            at => ((now >> COARSE) as u32).wrapping_sub(at) as i32 >= 0,
        }
    }

    /// Approximate deadline (ps) of the earliest timer of `fid`, read without the lock.
    pub fn timer_hint(&self, fid: u8, now: u64) -> Option<u64> {
        match self.sync(fid, Sync::Timer).load(Acquire) {
            0 => None,
            at => {
                let behind = at.wrapping_sub((now >> COARSE) as u32) as i32;
                Some(now.saturating_add_signed(i64::from(behind) << COARSE))
            }
        }
    }
}
