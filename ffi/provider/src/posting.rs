//! The work requests between `ibv_wr_start` and `ibv_wr_complete`.

use crate::convert::common_flags;
use driver::{SendBatch, SendFlags, SendOp, SendWr, Sge, Target};
use libc::c_int;

/// Pieces of one inline work request; more than the device's largest inline data has bytes would be no use.
pub const MAX_INLINE_PIECES: usize = 32;

/// What has been collected since `ibv_wr_start`.
pub struct Posting {
    pub batch: SendBatch<'static>,
    /// Whether work requests say whom they are for: then both setters must come before one is closed.
    pub addressed: bool,
    /// Whether they are raw packets.
    pub raw: bool,
    pub open: Option<(u64, SendOp, SendFlags)>,
    /// Whom the open work request is for.
    pub target: Option<Target<'static>>,
    /// Data that came before the address.
    pub early: Option<Early>,
    pub failed: Option<c_int>,
}

/// Data of a work request whose address is not known yet.
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

    /// Flags that raw packets alone have.
    #[cold]
    fn rare_flags(&self, flags: u32) -> Option<SendFlags> {
        SendFlags::from_bits(flags).filter(|_| self.raw)
    }

    /// The data of the open work request.
    #[inline]
    pub fn data(&mut self, sge: &[Sge], more: SendFlags) {
        match self.addressed {
            false => self.push(sge, more),
            true if self.target.is_some() => self.push(sge, more),
            true => self.keep(sge, more.contains(SendFlags::INLINE)),
        }
    }

    /// Keeps data until the address comes; inline data are the program's to change from now on.
    #[cold]
    pub fn keep(&mut self, sge: &[Sge], inline: bool) {
        self.early = Some(match inline {
            false => Early::Pieces(sge.to_vec()),
            true => Early::Inline(sge.iter().flat_map(bytes_of).copied().collect()),
        });
    }

    /// Whom the open work request is for.
    pub fn aim(&mut self, target: Target<'static>) {
        self.target = Some(target);
        if self.early.is_some() {
            self.finish();
        }
    }

    /// Closes the open work request with what it has.
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

/// A collection that is over when this is dropped: what was not rung for is forgotten.
pub struct Ending<'a>(pub &'a mut Option<Posting>);

impl Drop for Ending<'_> {
    #[inline]
    fn drop(&mut self) {
        // Empty before the lock is let go of, which goes with the collection.
        drop(self.0.take());
    }
}

/// The bytes a piece of inline data names.
pub fn bytes_of(piece: &Sge) -> &[u8] {
    match piece.length {
        0 => &[],
        // SAFETY: inline data are the program's own memory at this address, valid during the call that names them.
        length => unsafe { std::slice::from_raw_parts(piece.addr as *const u8, length as usize) },
    }
}
