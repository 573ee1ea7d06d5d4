//! Collects the work requests between `ibv_wr_start` and `ibv_wr_complete`.

use crate::convert::common_flags;
use crate::ours;
use driver::{SendBatch, SendFlags, SendOp, SendWr, Service, Sge, Target};
use libc::c_int;

/// Maximum number of SGEs of an inline request; more SGEs than bytes would be useless.
pub const MAX_INLINE_PIECES: usize = 32;

/// A request is open.
const OPEN: u8 = 1 << 0;
/// Requests have destinations: a request is then complete only after both setters.
const ADDRESSED: u8 = 1 << 1;
/// A request was refused.
const FAILED: u8 = 1 << 2;

/// Requests collected since `ibv_wr_start`.
pub struct Posting {
    /// The requests, with the send queue's lock. `None`: no thread is between start and complete, and the fields below have their initial
    /// values.
    batch: Option<SendBatch<'static>>,
    /// [`OPEN`], [`ADDRESSED`] and [`FAILED`] in one word, because it nearly always has one of two values.
    state: u8,
    /// True if requests are raw packets.
    raw: bool,
    /// The open request, or the last one.
    open: (u64, SendOp, SendFlags),
    /// The destination of the open request.
    target: Option<Target<'static>>,
    /// Data set before the destination.
    early: Option<Early>,
    /// errno of the first failure.
    failed: c_int,
}

/// Data of a request without a destination yet.
pub enum Early {
    Pieces(Vec<Sge>),
    Inline(Vec<u8>),
}

impl Posting {
    /// An empty collection for a QP of `service`.
    pub fn of(service: Service) -> Self {
        let addressed = matches!(service, Service::Ud | Service::XrcIni);
        Self {
            batch: None,
            state: if addressed { ADDRESSED } else { 0 },
            raw: service == Service::RawPacket,
            open: (0, SendOp::Send, SendFlags::empty()),
            target: None,
            early: None,
            failed: 0,
        }
    }

    /// Starts to collect into `batch`. Its lock excludes other threads.
    #[inline(always)]
    pub fn start(&mut self, batch: SendBatch<'static>) {
        let none = self.batch.replace(batch);
        debug_assert!(none.is_none());
        std::mem::forget(none);
    }

    /// True between start and complete.
    #[inline(always)]
    pub fn is_started(&self) -> bool {
        self.batch.is_some()
    }

    #[inline(always)]
    pub fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp) {
        if self.state != 0 {
            self.finish();
        }
        match common_flags(flags).or_else(|| self.rare_flags(flags)) {
            Some(flags) => {
                self.open = (wr_id, op, flags - SendFlags::INLINE);
                self.state |= OPEN;
            }
            None => self.fail(libc::EINVAL),
        }
    }

    /// Converts flags that only raw packets support.
    #[cold]
    fn rare_flags(&self, flags: u32) -> Option<SendFlags> {
        SendFlags::from_bits(flags).filter(|_| self.raw)
    }

    /// Sets the data of the open request to one SGE, which is not sent inline.
    #[inline(always)]
    pub fn piece(&mut self, lkey: u32, addr: u64, length: u32) {
        if let (OPEN, Some(batch)) = (self.state, &mut self.batch) {
            let (wr_id, op, flags) = &self.open;
            if batch.put_plain(*wr_id, op, Sge { addr, length, lkey }, *flags) {
                self.state = 0;
                return;
            }
        }
        self.other_piece(lkey, addr, length);
    }

    #[cold]
    #[inline(never)]
    fn other_piece(&mut self, lkey: u32, addr: u64, length: u32) {
        self.data(&[Sge { addr, length, lkey }], SendFlags::empty());
    }

    /// Sets the data of the open request.
    #[inline(never)]
    pub fn data(&mut self, sge: &[Sge], more: SendFlags) {
        match self.state & ADDRESSED != 0 {
            false => self.push(sge, more),
            true if self.target.is_some() => self.push(sge, more),
            true => self.keep(sge, more.contains(SendFlags::INLINE)),
        }
    }

    /// Stores data until the destination is set. Inline data is copied, because the program may change it from now on.
    #[cold]
    fn keep(&mut self, sge: &[Sge], inline: bool) {
        self.early = Some(match inline {
            false => Early::Pieces(sge.to_vec()),
            true => Early::Inline(sge.iter().flat_map(bytes_of).copied().collect()),
        });
    }

    /// Sets the destination of the open request.
    pub fn aim(&mut self, target: Target<'static>) {
        self.target = Some(target);
        if self.early.is_some() {
            self.finish();
        }
    }

    /// Closes the open request, if any, with the data set so far.
    #[inline(never)]
    pub fn finish(&mut self) {
        if self.state & OPEN == 0 {
            (self.target, self.early) = (None, None);
            return;
        }
        match self.early.take() {
            None => self.push(&[], SendFlags::empty()),
            Some(Early::Pieces(list)) => self.push(&list, SendFlags::empty()),
            Some(Early::Inline(bytes)) => {
                let all = Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
                self.push(&[all], SendFlags::INLINE);
            }
        }
    }

    #[inline]
    fn push(&mut self, sge: &[Sge], more: SendFlags) {
        let state = self.state;
        self.state &= !OPEN;
        if state & OPEN == 0 || state & FAILED != 0 {
            return;
        }
        let Some(batch) = &mut self.batch else { return };
        let (wr_id, op, flags) = self.open;
        let wr = SendWr { wr_id, op, sge, flags: flags | more };
        // SAFETY: inline data is readable by the program's guarantee to the verb that set it, or it is in `early`.
        let pushed = unsafe {
            match state & ADDRESSED != 0 {
                false => batch.push(&wr),
                true => batch.push_to(&wr, &self.target.take().unwrap_or_default()),
            }
        };
        if let Err(errno) = pushed {
            self.fail(errno);
        }
    }

    #[cold]
    pub fn fail(&mut self, errno: c_int) {
        if self.state & FAILED == 0 {
            self.state |= FAILED;
            self.failed = errno;
        }
    }

    /// Rings the doorbell for all requests, and ends the collection. If a request was refused, returns its errno and posts none.
    #[inline(always)]
    pub fn complete(&mut self) -> c_int {
        if self.state != 0 {
            return self.complete_other();
        }
        // The collection is reset before the lock, which is part of the batch, is released.
        match self.batch.take() {
            None => libc::EIO,
            Some(batch) => {
                batch.commit();
                0
            }
        }
    }

    #[inline(never)]
    fn complete_other(&mut self) -> c_int {
        self.finish();
        let failed = if self.state & FAILED != 0 { self.failed } else { 0 };
        match self.end() {
            None => libc::EIO,
            Some(_) if failed != 0 => failed,
            Some(batch) => {
                batch.commit();
                0
            }
        }
    }

    /// Discards the requests, and ends the collection.
    pub fn abort(&mut self) {
        drop(self.end());
    }

    /// Resets the collection and returns the requests, with the lock that protects it.
    fn end(&mut self) -> Option<SendBatch<'static>> {
        self.state &= ADDRESSED;
        (self.target, self.early) = (None, None);
        self.batch.take()
    }
}

/// The bytes of an inline SGE.
pub fn bytes_of(piece: &Sge) -> &[u8] {
    // SAFETY: inline data is program memory at this address, valid during the call that names it.
    unsafe { ours::list(piece.addr as *const u8, piece.length as usize) }
}
