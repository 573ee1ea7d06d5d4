//! The queue pair: context, requester and responder.

use super::{Head, WqMemory};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

bitflags::bitflags! {
    /// Facts of a QP that are one bit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpFlags: u32 {
        /// Remote READs allowed (`rre`).
        const REMOTE_READ = 1 << 0;
        /// Remote WRITEs allowed (`rwe`).
        const REMOTE_WRITE = 1 << 1;
        /// Remote atomics allowed (`rae`).
        const REMOTE_ATOMIC = 1 << 2;
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
        /// A sequence NAK was sent and the expected PSN has not come yet (IBTA 9.7.5.1.2).
        const NAK_SENT = 1 << 9;
        /// An RNR NAK was sent and the PSN has not come again yet.
        const RNR_SENT = 1 << 10;
        /// Waiting out an RNR NAK received.
        const RNR_WAIT = 1 << 11;
        /// Flush completions are owed to the send queue.
        const FLUSH_SQ = 1 << 12;
        /// Flush completions are owed to the receive queue.
        const FLUSH_RQ = 1 << 13;
        /// Receives come from an SRQ.
        const HAS_SRQ = 1 << 14;
        /// The acknowledgement for `rx_ack_psn` is still to be sent.
        const ACK_OWED = 1 << 15;
        /// No send queue.
        const NO_SQ = 1 << 18;
        /// No receive queue.
        const NO_RQ = 1 << 19;
        /// A bad WQE was met: nothing behind it runs.
        const SQ_FAILED = 1 << 20;
        /// First packet seen in RTR (communication established was signalled).
        const COMM_EST = 1 << 21;
        /// A gap in the answers was noted and the requester went back; no further gap counts until there is progress.
        const GAP = 1 << 22;
        /// Own multicasts do not come back (`block_lb_mc`).
        const BLOCK_MULTICAST_LOOPBACK = 1 << 23;
        /// In SQD with requests under way: when the last is done the driver is told.
        const DRAINING = 1 << 24;
        /// The event that nothing more comes from the SRQ is still to be sent.
        const LAST_WQE_OWED = 1 << 25;
    }
}

/// Message that is being received: between FIRST and LAST.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RxMessage {
    /// 0 none, 1 SEND, 2 WRITE.
    pub kind: u32,
    /// RQ or SRQ WQE index in use (SEND).
    pub wqe_index: u32,
    /// Bytes taken so far.
    pub done: u32,
    /// Bytes announced by the RETH (WRITE).
    pub length: u32,
    /// Address of the RETH (WRITE).
    pub va: u64,
    /// Key of the RETH (WRITE).
    pub rkey: u32,
    /// Padding.
    pub reserved: u32,
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

    /// Attributes of the requester: retry count, RNR retry (7 is infinite), ACK timeout exponent, log2 of READs and
    /// atomics allowed under way.
    pub retry_count: u8,
    /// See `retry_count`.
    pub rnr_retry: u8,
    /// See `retry_count`.
    pub ack_timeout: u8,
    /// See `retry_count`.
    pub log_sra_max: u8,
    /// Attributes of the responder: RNR NAK timer code, log2 of READs and atomics accepted.
    pub min_rnr_nak: u8,
    /// See `min_rnr_nak`.
    pub log_rra_max: u8,
    /// Retries and RNR retries left.
    pub retries_left: u8,
    /// See `retries_left`.
    pub rnr_left: u8,
    /// See [`QpFlags`].
    pub flags: u32,
    /// Requester: producer index as last read from the doorbell record.
    pub sq_pi: u16,
    /// WQE that will be looked at next.
    pub sq_next: u16,
    /// Oldest WQE without a completion decided.
    pub sq_ci: u16,
    /// READs and atomics under way.
    pub sq_reads: u16,
    /// Send records: oldest and next to fill, free-running; rows are the index modulo [`SendRecord::PER_QP`].
    pub sr_head: u32,
    /// See `sr_head`.
    pub sr_tail: u32,
    /// Record that is being transmitted (`sr_head..=sr_tail`), and how many of its packets went out.
    pub sr_send: u32,
    /// See `sr_send`.
    pub sr_packet: u32,
    /// PSN of the next new request.
    pub snd_psn: u32,
    /// Oldest PSN not acknowledged.
    pub una_psn: u32,
    /// Highest PSN ever sent plus one, to tell an ACK of something never sent.
    pub max_psn: u32,
    /// Packets sent since the last one that asked for an acknowledgement.
    pub unasked: u32,
    /// In ERR: microseconds until the receive counter is looked at again; 0 is not begun.
    pub flush_wait: u32,
    /// When the acknowledgement timer runs out; 0 is stopped. Picoseconds.
    pub ack_deadline: u64,

    /// When the RNR wait ends. Picoseconds.
    pub rnr_deadline: u64,
    /// Responder: PSN expected next.
    pub rx_psn: u32,
    /// Messages completed, 24 bits.
    pub rx_msn: u32,
    /// PSN the next acknowledgement will carry.
    pub rx_ack_psn: u32,
    /// RQ: producer as last read, next WQE to take (16 bits each).
    pub rq_pi: u16,
    /// See `rq_pi`.
    pub rq_ci: u16,
    /// READ and atomic resources: next to fill, free-running; rows are the index modulo [`ReadResource::PER_QP`].
    pub rr_tail: u32,
    /// Oldest resource with responses still to be sent, and how many went out.
    pub rr_send: u32,
    /// See `rr_send`.
    pub rr_packet: u32,
    /// What is owed to the requester at `rx_ack_psn`: an AETH syndrome.
    pub ack_syndrome: u8,
    /// With a fatal NAK owed: CQE syndrome for the receive WQE in use (0 none), its vendor error, and the event type.
    pub rx_status: u8,
    /// See `rx_status`.
    pub rx_vendor: u8,
    /// See `rx_status`.
    pub rx_event: u8,
    /// No congestion notification before this time, ps.
    pub cnp_after: u64,
    /// Message under reception.
    pub rx: RxMessage,
    /// Source QP number in a DETH, if not the QP's own; 0 is the QP's own (`deth_sqpn`).
    pub deth_sqpn: u32,
    /// XRC target: the SRQ that the request at hand names.
    pub xrc_srqn: u32,
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
    pub reserved: [u8; 24],
}

// The context fills two lines, what requests change one, what responses change another and part of the last.
const _: () = assert!(size_of::<QpRow>() == 320 && std::mem::offset_of!(QpRow, retry_count) == 128);
const _: () = assert!(std::mem::offset_of!(QpRow, rnr_deadline) == 192);
// What the packets of a queue pair begin with lies in one piece.
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
    /// Whether all of `flag` is set.
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
    /// Bit 0 signaled, 1 solicited, 2 fence, 3 inline payload, 4 answered (READ, atomic).
    pub flags: u8,
    /// 16-byte units of the WQE.
    pub ds: u8,
    /// CQE syndrome if the request failed here before it was sent whole; 0 is none.
    pub status: u8,
    /// Vendor error that goes with it.
    pub vendor: u8,
    /// First PSN.
    pub psn: u32,
    /// Packets (PSNs) it takes, at least 1.
    pub packets: u32,
    /// Message bytes.
    pub length: u32,
    /// Immediate data, or key to invalidate.
    pub imm: u32,
    /// Remote address.
    pub raddr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Padding.
    pub reserved2: u32,
}

impl SendRecord {
    /// Requests under way at most, per QP.
    pub const PER_QP: usize = 64;
}

/// A READ or atomic the responder has accepted: kept to answer duplicates (IBTA 9.7.5.1.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReadResource {
    /// 0 none, 1 READ, 2 atomic.
    pub kind: u32,
    /// 0: not yet answered. 1: answered. 2: answered, and asked for again.
    pub answered: u32,
    /// READ: the bytes to be sent, from and up to.
    pub start: u32,
    /// See `start`.
    pub end: u32,
    /// XRC: the SRQ the request named.
    pub xrc_srqn: u32,
    /// First PSN of the answer.
    pub psn: u32,
    /// PSNs of the answer.
    pub packets: u32,
    /// READ: bytes.
    pub length: u32,
    /// READ: address.
    pub va: u64,
    /// READ: key.
    pub rkey: u32,
    /// MSN the answer carries.
    pub msn: u32,
    /// Atomic: the original value.
    pub original: u64,
}

impl ReadResource {
    /// READs and atomics remembered, per QP.
    pub const PER_QP: usize = 16;
}
