//! The work requests between `ibv_wr_start` and `ibv_wr_complete`.

use crate::convert::common_flags;
use driver::{SendBatch, SendFlags, SendOp, SendWr, Sge, Target};
use libc::c_int;

/// Most pieces of an inline request, which has no use for more than its bytes.
pub const MAX_INLINE_PIECES: usize = 32;

/// Requests collected since `ibv_wr_start`.
pub struct Posting {
    pub batch: SendBatch<'static>,
    /// Whether requests have destinations. Then one is complete only after both setters.
    pub addressed: bool,
    /// Whether requests are raw packets.
    pub raw: bool,
    pub open: Option<(u64, SendOp, SendFlags)>,
    /// The destination of the open request.
    pub target: Option<Target<'static>>,
    /// Data that was set before the destination.
    pub early: Option<Early>,
    pub failed: Option<c_int>,
}

/// Data of a request whose destination is not known yet.
pub enum Early {
    Pieces(Vec<Sge>),
    Inline(Vec<u8>),
}

impl Posting {
    #[inline]
    pub fn begin(&mut self, wr_id: u64, flags: u32, op: SendOp) {
        self.finish();
        if self.addressed {
            (self.target, self.early) = (None, None);
        }
        match common_flags(flags).or_else(|| self.rare_flags(flags)) {
            Some(flags) => self.open = Some((wr_id, op, flags - SendFlags::INLINE)),
            None => self.fail(libc::EINVAL),
        }
    }

    /// Flags that only raw packets have.
    #[cold]
    fn rare_flags(&self, flags: u32) -> Option<SendFlags> {
        SendFlags::from_bits(flags).filter(|_| self.raw)
    }

    /// Sets the data of the open request.
    #[inline]
    pub fn data(&mut self, sge: &[Sge], more: SendFlags) {
        match self.addressed {
            false => self.push(sge, more),
            true if self.target.is_some() => self.push(sge, more),
            true => self.keep(sge, more.contains(SendFlags::INLINE)),
        }
    }

    /// Keeps data until the destination is set. The program may change inline data from now on, so it is copied.
    #[cold]
    pub fn keep(&mut self, sge: &[Sge], inline: bool) {
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

    /// Closes the open request with what it has.
    #[inline]
    pub fn finish(&mut self) {
        if self.open.is_none() {
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
    pub fn push(&mut self, sge: &[Sge], more: SendFlags) {
        let Some((wr_id, op, flags)) = self.open.take() else { return };
        if self.failed.is_some() {
            return;
        }
        let wr = SendWr { wr_id, op, sge, flags: flags | more };
        let pushed = match self.addressed {
            false => self.batch.push(&wr),
            true => self.batch.push_to(&wr, &self.target.take().unwrap_or_default()),
        };
        if let Err(errno) = pushed {
            self.fail(errno);
        }
    }

    pub fn fail(&mut self, errno: c_int) {
        self.failed.get_or_insert(errno);
    }
}

/// Ends a collection when it is dropped; requests that were not rung for are discarded.
pub struct Ending<'a>(pub &'a mut Option<Posting>);

impl Drop for Ending<'_> {
    #[inline]
    fn drop(&mut self) {
        // Empties it before the lock is released, which is part of the collection.
        drop(self.0.take());
    }
}

/// The bytes of a piece of inline data.
pub fn bytes_of(piece: &Sge) -> &[u8] {
    match piece.length {
        0 => &[],
        // SAFETY: inline data are the program's own memory at this address, valid during the call that names them.
        length => unsafe { std::slice::from_raw_parts(piece.addr as *const u8, length as usize) },
    }
}
