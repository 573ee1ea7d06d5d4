//! The queue pair: context, requester and responder.

use super::{Head, WorkQueue, WqMemory};
use crate::transport::{Request, Requester, Responder, Timer};
use hwspec::{context::ServiceType, wire::bth::Transport, wqe::WQE_BB_SHIFT};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

bitflags::bitflags! {
    /// Single-bit state of a QP.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpFlags: u32 {
        /// Small payloads of received messages go into the CQE (`cs_res`).
        const SCATTER_RES = 1 << 3;
        /// Small payloads of READ responses go into the CQE (`cs_req`).
        const SCATTER_REQ = 1 << 4;
        /// Reserved lkey usable (`rlky`).
        const RESERVED_LKEY = 1 << 5;
        /// In the ready ring.
        const READY = 1 << 6;
        /// The timer heap has an acknowledgement timer of the QP.
        const TIMER_ACK = 1 << 7;
        /// The timer heap has an RNR timer of the QP.
        const TIMER_RNR = 1 << 8;
        /// The timer heap has a rate timer of the QP.
        const TIMER_RATE = 1 << 9;
        /// The send queue is owed flush completions.
        const FLUSH_SQ = 1 << 12;
        /// The receive queue is owed flush completions.
        const FLUSH_RQ = 1 << 13;
        /// Receives come from an SRQ.
        const HAS_SRQ = 1 << 14;
        /// No send queue.
        const NO_SQ = 1 << 18;
        /// No receive queue.
        const NO_RQ = 1 << 19;
        /// The send queue stopped at a bad WQE.
        const SQ_FAILED = 1 << 20;
        /// The first packet in RTR was received (the communication established event was raised).
        const COMM_EST = 1 << 21;
        /// Its own packets to a multicast group are not looped back to it (`block_lb_mc`).
        const BLOCK_MULTICAST_LOOPBACK = 1 << 23;
        /// In SQD with outstanding requests: the driver gets an event when the last one completes.
        const DRAINING = 1 << 24;
        /// The last WQE reached event of the SRQ is still to be sent.
        const LAST_WQE_OWED = 1 << 25;
    }
}

impl QpFlags {
    /// The flag for an entry of `timer` in the heap.
    #[inline(always)]
    pub const fn of_timer(timer: Timer) -> Self {
        match timer {
            Timer::Ack => Self::TIMER_ACK,
            Timer::Rnr => Self::TIMER_RNR,
        }
    }
}

/// The path of a packet to its destination: the fields of its headers before the BTH.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Path {
    /// Own RoCE address table index.
    pub sgid_index: u8,
    /// Hop limit (TTL).
    pub hop_limit: u8,
    /// Traffic class (DSCP and ECN).
    pub tclass: u8,
    /// 1: a GRH is configured (always for RoCE).
    pub grh: u8,
    /// UDP source port.
    pub udp_sport: u16,
    /// Peer's MAC.
    pub dmac: [u8; 6],
    /// Peer's GID.
    pub dgid: [u8; 16],
    /// Flow label, for IPv6.
    pub flow_label: u32,
    /// InfiniBand: the peer's LID.
    pub rlid: u16,
    /// InfiniBand: service level.
    pub sl: u8,
    /// InfiniBand: low bits of the source LID.
    pub path_bits: u8,
}

/// A queue pair.
///
/// Indices of work queues are free-running 16-bit counters, in WQEBBs of 64 bytes for the SQ and in WQEs for the RQ.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct QpRow {
    /// Allocation and ownership.
    pub head: Head,
    /// `QpState`.
    pub state: u8,
    /// `ServiceType`.
    pub service: u8,
    /// Path MTU in bytes.
    pub mtu: u16,
    /// Peer's QP number.
    pub remote_qpn: u32,
    /// Protection domain number.
    pub pd: u32,
    /// CQ number of the send queue.
    pub cqn_snd: u32,
    /// CQ number of the receive queue.
    pub cqn_rcv: u32,
    /// `user_index`, returned in CQEs where the CQE version asks for it.
    pub user_index: u32,
    /// SRQ or RMP number, if any.
    pub srqn: u32,
    /// XRC domain.
    pub xrcd: u32,
    /// Doorbell record: receive counter, then send counter, 32 bits each.
    pub dbr: u64,
    /// Ring memory: the RQ, followed by the SQ.
    pub memory: WqMemory,
    /// Byte offset of the SQ in `memory`.
    pub sq_offset: u32,
    /// log2 of the SQ's size in WQEBBs.
    pub log_sq: u8,
    /// log2 of the RQ's size in WQEs.
    pub log_rq: u8,
    /// log2 of an RQ WQE in bytes.
    pub log_rq_stride: u8,
    /// log2 of the largest message.
    pub log_msg_max: u8,
    /// Path to the peer. In a datagram QP, the MAC and LID are those of the latest destination: the room there limits the next turn.
    pub path: Path,
    /// P_Key index.
    pub pkey_index: u16,
    /// Counter set.
    pub counter_set: u16,
    /// Q_Key (UD).
    pub qkey: u32,
    /// UAR of its doorbells.
    pub uar: u32,

    /// The flags of [`QpFlags`].
    pub flags: u32,
    /// In ERR: microseconds until the next check of the receive counter; 0 is not started.
    pub flush_wait: u32,
    /// Requester: producer index as last read from the doorbell record.
    pub sq_pi: u16,
    /// Next WQE to process.
    pub sq_next: u16,
    /// Oldest WQE without a final completion status.
    pub sq_ci: u16,
    /// Padding.
    pub reserved_sq: u16,
    /// The requester. In ERR, its last word, the deadline of the RNR timer, is the time of the next check of the receive counter.
    pub requester: Requester,

    /// RQ: producer index as last read (16 bits).
    pub rq_pi: u16,
    /// RQ: next WQE to consume (16 bits).
    pub rq_ci: u16,
    /// XRC target: the SRQ named by the current request.
    pub xrc_srqn: u32,
    /// The responder.
    pub responder: Responder,
    /// Source QP number in a DETH; 0 is the QP's own number (`deth_sqpn`).
    pub deth_sqpn: u32,
    /// For QP1 with several user contexts: the next QP1, index plus one; 0 is the last.
    pub special_next: u32,
    /// User memory objects of the ring and the doorbell record, index plus one; 0 is none.
    pub umems: [u16; 2],
    /// Expired acknowledgement timers while frames waited at the peer: the oldest unacknowledged PSN, with [`STALL`](Self::STALL); 0
    /// is none.
    pub stall_psn: u32,
    /// Number of frames that the peer had consumed at that time, as counted by [`Sync::RxHead`](crate::region::Sync::RxHead).
    pub stall_head: u32,
    /// Padding to whole cache lines.
    pub reserved: [u8; 20],
}

// The context fills two cache lines. Requests change one, responses change another and part of the last.
const _: () = assert!(size_of::<QpRow>() == 320 && offset_of!(QpRow, flags) == 128);
const _: () = assert!(offset_of!(QpRow, requester) + offset_of!(Requester, timers) + size_of::<u64>() == 192);
impl QpRow {
    /// Bit of `stall_psn` that marks it as valid.
    pub const STALL: u32 = 1 << 31;

    /// The send queue, behind the receive queue in the same memory.
    #[inline(always)]
    pub fn sq(&self) -> WorkQueue {
        let offset = self.memory.offset.wrapping_add(self.sq_offset);
        WorkQueue {
            memory: WqMemory { offset, ..self.memory },
            dbr: self.dbr,
            pi: self.sq_pi,
            ci: self.sq_next,
            log_size: self.log_sq,
            log_stride: WQE_BB_SHIFT as u8,
        }
    }

    /// The receive queue.
    #[inline(always)]
    pub fn rq(&self) -> WorkQueue {
        WorkQueue {
            memory: self.memory,
            dbr: self.dbr,
            pi: self.rq_pi,
            ci: self.rq_ci,
            log_size: self.log_rq,
            log_stride: self.log_rq_stride,
        }
    }

    /// True for a datagram service: messages are single packets, and each names its destination.
    pub fn is_datagram(&self) -> bool {
        matches!(ServiceType::from_raw(self.service), ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1)
    }

    /// The transport of the service's packets: the upper three bits of their opcodes (IBTA 9.2.1).
    #[inline]
    pub fn transport(&self) -> Transport {
        if self.service == ServiceType::Rc.raw() {
            return Transport::Rc;
        }
        match ServiceType::from_raw(self.service) {
            ServiceType::Uc => Transport::Uc,
            ServiceType::Xrc => Transport::Xrc,
            _ => Transport::Ud,
        }
    }

    /// True if it is the target side of XRC.
    #[cold]
    pub fn is_xrc_target(&self) -> bool {
        self.service == ServiceType::Xrc.raw() && self.has(QpFlags::NO_SQ)
    }

    /// The flags as a [`QpFlags`].
    pub fn flags(&self) -> QpFlags {
        QpFlags::from_bits_retain(self.flags)
    }
    /// Sets or clears `flag`.
    pub fn set(&mut self, flag: QpFlags, on: bool) {
        let mut flags = self.flags();
        flags.set(flag, on);
        self.flags = flags.bits();
    }
    /// True if all of `flag` is set.
    pub fn has(&self, flag: QpFlags) -> bool {
        self.flags & flag.bits() == flag.bits()
    }
}

/// An outstanding request, from its WQE to its completion.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SendRecord {
    /// WQE index (its first WQEBB).
    pub wqe_index: u16,
    /// Size of the WQE in WQEBBs.
    pub wqebbs: u8,
    /// `WqeOpcode`.
    pub opcode: u8,
    /// [`SIGNALED`](Self::SIGNALED), [`SOLICITED`](Self::SOLICITED).
    pub flags: u8,
    /// 16-byte units of the WQE.
    pub ds: u8,
    /// CQE syndrome if the request failed locally before it was sent completely; 0 is none.
    pub status: u8,
    /// Vendor error syndrome for `status`.
    pub vendor: u8,
    /// The transport's view of the request.
    pub request: Request,
    /// Remote address.
    pub raddr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Immediate data, or key to invalidate.
    pub imm: u32,
}

const _: () = assert!(size_of::<SendRecord>() == 40);

impl SendRecord {
    /// Maximum number of outstanding requests per QP.
    pub const PER_QP: usize = Request::PER_QP;
    /// In `flags`: the request reports its completion.
    pub const SIGNALED: u8 = 1 << 0;
    /// In `flags`: its last packet solicits an event at the peer.
    pub const SOLICITED: u8 = 1 << 1;

    /// Builds the `flags` of a request.
    #[inline(always)]
    pub fn flags(signaled: bool, solicited: bool) -> u8 {
        u8::from(signaled) * Self::SIGNALED + u8::from(solicited) * Self::SOLICITED
    }
}
