//! The producer sides of send and receive queues.

use super::data_segment;
use crate::{
    blueflame::Register,
    dma::{BlockRing, DmaRing},
    poll::RecvTracker,
    verbs::{RecvWr, Service, Sge},
};
use hwspec::wqe::*;

/// Largest message that can be sent, reported as `max_msg_sz`.
pub(super) const MAX_MESSAGE: u64 = 1 << 30;
/// Maximum length of one segment of a receive (IBTA 9.7.6.1.4.1).
const MAX_RECEIVE: u64 = 1 << 31;

/// Producer side of a send queue.
pub struct SendQueue {
    pub ring: BlockRing,
    /// The BlueFlame register to ring, instead of the doorbell of the queue pair.
    pub blueflame: Option<Box<Register>>,
    pub qpn: u32,
    pub service: Service,
    /// Next basic block. Free-running: the ring takes it modulo its size.
    pub block: u32,
    /// Number of work requests posted.
    pub number: u32,
    pub max_wr: u32,
    pub max_sge: usize,
    pub max_inline: usize,
    pub signal_all: bool,
    /// The last WQE changed an mkey, so the next one has to wait for it.
    pub small_fence: bool,
    /// Number of plain work requests (an RC SEND or WRITE of one basic block) that may be posted before completions,
    /// the QP state and the previous WQE are checked again.
    pub plain: u32,
    /// Buffer for gathering inline data: a segment of `max_inline` bytes.
    pub scratch: Box<[u8]>,
}

/// Producer side of a receive queue.
pub struct RecvQueue {
    pub ring: DmaRing,
    /// Number of work requests posted.
    pub number: u32,
    pub max_wr: u32,
    pub max_sge: usize,
    /// Segments per entry.
    pub segments: usize,
}

impl SendQueue {
    /// Allocates a buffer for inline segments of up to `max_inline` bytes.
    pub fn scratch(max_inline: usize) -> Box<[u8]> {
        vec![0; InlineSeg::span(max_inline)].into_boxed_slice()
    }

    /// Restarts the queue after a reset of the QP.
    pub fn reset(&mut self) {
        (self.block, self.number, self.small_fence, self.plain) = (0, 0, false, 0);
    }

    /// Returns the total bytes and the number of 16-byte segments of a work request's data. ENOMEM, as in libmlx5: more
    /// SGEs or inline data than a WQE of this queue has room for; EINVAL: longer than a message may be.
    #[inline(always)]
    pub fn measure(&self, list: &[Sge], inline: bool) -> Result<(u64, usize), i32> {
        let (bytes, pieces) = match list {
            [one] => (one.length.into(), usize::from(one.length != 0)),
            _ => sums(list),
        };
        if inline {
            if bytes > self.max_inline as u64 {
                return Err(libc::ENOMEM);
            }
            let segments = if bytes == 0 { 0 } else { InlineSeg::span(bytes as usize) / WQE_DS };
            return Ok((bytes, segments));
        }
        match () {
            () if list.len() > self.max_sge => Err(libc::ENOMEM),
            () if bytes > MAX_MESSAGE => Err(libc::EINVAL),
            () => Ok((bytes, pieces)),
        }
    }
}

/// Total bytes, and number of nonempty SGEs.
#[inline(never)]
fn sums(list: &[Sge]) -> (u64, usize) {
    list.iter().fold((0, 0), |(bytes, pieces), sge| {
        (bytes + u64::from(sge.length), pieces + usize::from(sge.length != 0))
    })
}

impl RecvQueue {
    /// Writes the next receive, and records it for polls. EINVAL: more or longer SGEs than the queue supports; ENOMEM:
    /// the queue is full.
    #[inline(always)]
    pub fn put(&mut self, tracker: &RecvTracker, wr: &RecvWr<'_>) -> Result<(), i32> {
        if wr.sge.len() > self.max_sge {
            return Err(libc::EINVAL);
        }
        if self.number.wrapping_sub(tracker.done()) >= self.max_wr {
            // A QP without its own receive queue takes no receives.
            return Err(if self.max_wr == 0 { libc::EINVAL } else { libc::ENOMEM });
        }
        let mut segment = 0;
        for sge in wr.sge.iter().filter(|sge| sge.length != 0) {
            if u64::from(sge.length) > MAX_RECEIVE {
                return Err(libc::EINVAL);
            }
            self.ring.put_segment(self.number, segment, data_segment(sge).as_bytes());
            segment += 1;
        }
        if segment < self.segments {
            let end = DataSeg::with(|s| s.lkey(INVALID_LKEY));
            self.ring.put_segment(self.number, segment, end.as_bytes());
        }
        tracker.put(self.number, wr.wr_id);
        self.number = self.number.wrapping_add(1);
        Ok(())
    }
}
