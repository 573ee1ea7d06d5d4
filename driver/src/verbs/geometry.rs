//! Sizes and offsets of a queue pair's rings.

use super::{
    DeviceAttr, QpCap, QpInit, Service,
    device::{INLINE_HEAD, SEND_OVERHEAD},
};
use crate::{dma::PAGE_SIZE, error::Error};
use hwspec::wqe::{AvSeg, WQE_BB, WQE_DS};

/// Basic blocks of a work request that binds a memory window.
const KEY_BLOCKS: usize = 3;
/// Queues are enlarged for such requests up to this number of basic blocks.
const KEY_ROOM: usize = 64 * KEY_BLOCKS;

/// Bytes of a send WQE before its data: the control segment and the service's segments.
fn overhead(service: Service) -> usize {
    match service {
        Service::Ud | Service::Gsi => WQE_DS + AvSeg::SIZE,
        Service::XrcIni | Service::XrcTgt => SEND_OVERHEAD + WQE_DS,
        Service::Rc | Service::Uc | Service::RawPacket | Service::Keys => SEND_OVERHEAD,
    }
}

/// Number and size of the entries of a ring for `max_wr` receives of `max_sge` SGEs; no entries for no receives. The
/// ring ends on a basic block boundary, since a send queue may follow.
pub(super) fn receive_ring(max_wr: u32, max_sge: u32) -> (u32, usize) {
    if max_wr == 0 {
        return (0, WQE_DS);
    }
    let stride = (max_sge.max(1) as usize * WQE_DS).next_power_of_two();
    let bytes = (max_wr.next_power_of_two() as usize * stride).max(WQE_BB);
    ((bytes / stride) as u32, stride)
}

/// Sizes of the queues in memory: receive queue, then send queue.
#[derive(Default)]
pub(super) struct Geometry {
    pub rq_entries: u32,
    pub rq_stride: usize,
    pub sq_blocks: u32,
    pub sq_offset: usize,
    pub cap: QpCap,
}

impl Geometry {
    /// Computes the sizes for `init`. EINVAL: more than the device supports.
    pub fn of(init: &QpInit, attr: &DeviceAttr) -> Result<Self, Error> {
        let overhead = overhead(init.service);
        let most_inline = attr.max_inline.saturating_sub((overhead - SEND_OVERHEAD) as u32);
        let limits = [
            ("max_send_wr", init.max_send_wr, attr.max_qp_wr),
            ("max_recv_wr", init.max_recv_wr, attr.max_qp_wr),
            ("max_send_sge", init.max_send_sge, attr.max_sge),
            ("max_recv_sge", init.max_recv_sge, attr.max_sge),
            ("max_inline", init.max_inline, most_inline),
        ];
        if let Some((name, asked, most)) = limits.into_iter().find(|(_, asked, most)| asked > most) {
            return Err(Error::invalid(format!("{name} {asked} was asked for, {most} can be had")));
        }
        let (rq_entries, rq_stride) = receive_ring(init.max_recv_wr, init.max_recv_sge);
        let mut rq_bytes = rq_entries as usize * rq_stride;
        if init.service == Service::RawPacket {
            // Each queue has its own pages.
            rq_bytes = rq_bytes.next_multiple_of(PAGE_SIZE);
        }
        let with_inline = match init.max_inline {
            0 => 0,
            bytes => (INLINE_HEAD + bytes as usize).next_multiple_of(WQE_DS),
        };
        // An atomic has an operand segment and a data segment.
        let atomic = if init.service.has_atomics() { 2 * WQE_DS } else { 0 };
        let wqe = overhead + with_inline.max(init.max_send_sge as usize * WQE_DS).max(atomic);
        let blocks_each = wqe.div_ceil(WQE_BB);
        let sq_blocks = match init.max_send_wr {
            0 => 0,
            wrs => {
                // A bind or an invalidation takes more blocks. Small queues are enlarged so that all their work
                // requests may be of this kind.
                let of_keys = match init.service.is_connected() || init.service == Service::Keys {
                    true => (wrs as usize * KEY_BLOCKS).min(KEY_ROOM),
                    false => 0,
                };
                (wrs as usize * blocks_each).max(of_keys).next_power_of_two()
            }
        };
        if sq_blocks > attr.max_qp_wr as usize {
            return Err(Error::invalid(format!(
                "{} send work requests of {wqe} bytes take {sq_blocks} basic blocks, {} can be had",
                init.max_send_wr, attr.max_qp_wr
            )));
        }
        let data = blocks_each * WQE_BB - overhead;
        let cap = QpCap {
            max_send_wr: (sq_blocks / blocks_each) as u32,
            max_recv_wr: rq_entries,
            max_send_sge: if sq_blocks == 0 { 0 } else { ((data / WQE_DS) as u32).min(attr.max_sge) },
            max_recv_sge: if rq_entries == 0 { 0 } else { ((rq_stride / WQE_DS) as u32).min(attr.max_sge) },
            max_inline: if sq_blocks == 0 { 0 } else { ((data - INLINE_HEAD) as u32).min(most_inline) },
        };
        Ok(Self { rq_entries, rq_stride, sq_blocks: sq_blocks as u32, sq_offset: rq_bytes, cap })
    }

    /// Total bytes of both rings.
    pub fn bytes(&self) -> usize {
        self.sq_offset + self.sq_blocks as usize * WQE_BB
    }

    /// Bytes of memory for both rings. A missing ring still gets one entry, which is never used.
    pub fn room(&self) -> usize {
        let rq = self.rq_entries.max(1) as usize * self.rq_stride;
        rq.max(self.sq_offset + self.sq_blocks.max(1) as usize * WQE_BB)
    }
}
