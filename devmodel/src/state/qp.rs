//! The queue pair: context, requester and responder.

use super::{Head, WqMemory};
use crate::transport::{Request, Requester, Responder, Timer};
use hwspec::{context::ServiceType, wire::bth::Transport};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

bitflags::bitflags! {
    /// Facts of a QP that are one bit.
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
        /// An acknowledgement timer lies in the heap.
        const TIMER_ACK = 1 << 7;
        /// An RNR timer lies in the heap.
        const TIMER_RNR = 1 << 8;
        /// A timer of its rate lies in the heap.
        const TIMER_RATE = 1 << 9;
        /// Flush completions are owed to the send queue.
        const FLUSH_SQ = 1 << 12;
        /// Flush completions are owed to the receive queue.
        const FLUSH_RQ = 1 << 13;
        /// Receives come from an SRQ.
        const HAS_SRQ = 1 << 14;
        /// No send queue.
        const NO_SQ = 1 << 18;
        /// No receive queue.
        const NO_RQ = 1 << 19;
        /// A bad WQE was met: nothing behind it runs.
        const SQ_FAILED = 1 << 20;
        /// First packet seen in RTR (communication established was signalled).
        const COMM_EST = 1 << 21;
        /// Packets that it sent itself to a group do not come back to it (`block_lb_mc`).
        const BLOCK_MULTICAST_LOOPBACK = 1 << 23;
        /// In SQD with requests under way: when the last is done the driver gets an event.
        const DRAINING = 1 << 24;
        /// The event that nothing more comes from the SRQ is still to be sent.
        const LAST_WQE_OWED = 1 << 25;
    }
}

impl QpFlags {
    /// An entry of `timer` lies in the heap.
    #[inline(always)]
    pub const fn of_timer(timer: Timer) -> Self {
        match timer {
            Timer::Ack => Self::TIMER_ACK,
            Timer::Rnr => Self::TIMER_RNR,
        }
    }
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
    /// CQ numbers of the two sides.
    pub cqn_snd: u32,
    /// See `cqn_snd`.
    pub cqn_rcv: u32,
    /// `user_index`, returned in CQEs where the CQE version asks for it.
    pub user_index: u32,
    /// SRQ or RMP number, if any.
    pub srqn: u32,
    /// XRC domain.
    pub xrcd: u32,
    /// Doorbell record: receive counter, then send counter, 32 bits each.
    pub dbr: u64,
    /// Ring memory: RQ first, SQ behind it.
    pub memory: WqMemory,
    /// Byte offset of the SQ in `memory`.
    pub sq_offset: u32,
    /// log2 of WQEBBs.
    pub log_sq: u8,
    /// log2 of RQ WQEs.
    pub log_rq: u8,
    /// log2 of an RQ WQE in bytes.
    pub log_rq_stride: u8,
    /// Largest message as log2.
    pub log_msg_max: u8,
    /// RoCE address table index of ours.
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
    /// P_Key index.
    pub pkey_index: u16,
    /// Counter set.
    pub counter_set: u16,
    /// Q_Key (UD).
    pub qkey: u32,
    /// UAR of its doorbells.
    pub uar: u32,
    /// InfiniBand: the peer's LID.
    pub rlid: u16,
    /// InfiniBand: service level.
    pub sl: u8,
    /// InfiniBand: low bits of the source LID.
    pub path_bits: u8,

    /// See [`QpFlags`].
    pub flags: u32,
    /// In ERR: microseconds until the receive counter is looked at again; 0 is not begun.
    pub flush_wait: u32,
    /// Requester: producer index as last read from the doorbell record.
    pub sq_pi: u16,
    /// WQE that will be looked at next.
    pub sq_next: u16,
    /// Oldest WQE without a completion decided.
    pub sq_ci: u16,
    /// Padding.
    pub reserved_sq: u16,
    /// The requester. Its last word, the deadline of the RNR timer, is in ERR when the receive counter is looked at again.
    pub requester: Requester,

    /// RQ: producer as last read, next WQE to take (16 bits each).
    pub rq_pi: u16,
    /// See `rq_pi`.
    pub rq_ci: u16,
    /// XRC target: the SRQ that the request at hand names.
    pub xrc_srqn: u32,
    /// The responder.
    pub responder: Responder,
    /// Source QP number in a DETH, if not the QP's own; 0 is the QP's own (`deth_sqpn`).
    pub deth_sqpn: u32,
    /// QP1 of several user contexts: the next of them, index plus one; 0 is the last.
    pub special_next: u32,
    /// User memory objects of ring and doorbell record, index plus one; 0 is none.
    pub umems: [u16; 2],
    /// Acknowledgement timers that ran out while frames waited at the peer: the PSN that was waited for, with [`STALL`](Self::STALL);
    /// 0 is none.
    pub stall_psn: u32,
    /// How many frames the peer had taken then, see [`Sync::RxHead`](crate::region::Sync::RxHead).
    pub stall_head: u32,
    /// Padding to whole cache lines.
    pub reserved: [u8; 20],
}

// The context fills two lines, what requests change one, what responses change another and part of the last.
const _: () = assert!(size_of::<QpRow>() == 320 && offset_of!(QpRow, flags) == 128);
const _: () = assert!(offset_of!(QpRow, requester) + offset_of!(Requester, timers) + size_of::<u64>() == 192);
// The fields that the packets of a queue pair begin with lie in one piece.
const _: () = assert!(QpRow::PATH == 32);

impl QpRow {
    /// Bit of `stall_psn` that says that there is one.
    pub const STALL: u32 = 1 << 31;
    /// Bytes of [`path`](Self::path).
    pub const PATH: usize = offset_of!(Self, flow_label) + 4 - offset_of!(Self, sgid_index);

    /// The way to the peer: what its packets say before the BTH, from `sgid_index` to `flow_label`.
    #[inline(always)]
    pub fn path(&self) -> &[u8; Self::PATH] {
        const AT: usize = offset_of!(QpRow, sgid_index);
        let bytes: &[u8; size_of::<Self>()] = zerocopy::transmute_ref!(self);
        match bytes[AT..].first_chunk() {
            Some(path) => path,
            None => &[0; Self::PATH],
        }
    }

    /// True if its service sends whole messages in single packets to whom each of them names.
    pub fn is_datagram(&self) -> bool {
        matches!(ServiceType::from_raw(self.service), ServiceType::Ud | ServiceType::Qp0 | ServiceType::Qp1)
    }

    /// The transport of its service's packets, as the upper three bits of their opcodes say (IBTA 9.2.1).
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

    /// The flags as such.
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

/// A request under way: from its WQE to its completion.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SendRecord {
    /// WQE index (its first WQEBB) and WQEBBs.
    pub wqe_index: u16,
    /// See `wqe_index`.
    pub wqebbs: u8,
    /// `WqeOpcode`.
    pub opcode: u8,
    /// [`SIGNALED`](Self::SIGNALED), [`SOLICITED`](Self::SOLICITED).
    pub flags: u8,
    /// 16-byte units of the WQE.
    pub ds: u8,
    /// CQE syndrome if the request failed here before it was sent whole; 0 is none.
    pub status: u8,
    /// Vendor error that goes with it.
    pub vendor: u8,
    /// The request as the transport knows it.
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
    /// Requests under way at most, per QP.
    pub const PER_QP: usize = Request::PER_QP;
    /// In `flags`: it reports its completion.
    pub const SIGNALED: u8 = 1 << 0;
    /// In `flags`: its last packet solicits an event at the peer.
    pub const SOLICITED: u8 = 1 << 1;

    /// `flags` of a request.
    #[inline(always)]
    pub fn flags(signaled: bool, solicited: bool) -> u8 {
        u8::from(signaled) * Self::SIGNALED + u8::from(solicited) * Self::SOLICITED
    }
}
