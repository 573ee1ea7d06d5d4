//! Costs: profiles of a card, its slot, the wire between two cards, and the hosts' programs.
//!
//! All numbers are in files in `devmodel/profiles/`, each with its source. docs/time-inside.md explains how the units use them, and
//! how well they match measurements on cards.

mod load;
mod spread;

pub use load::{BUILT_IN, ProfileError};
pub use spread::{Dice, Spread};

use super::sched::Ps;
use crate::{Config, LinkLayer, transport::Dcqcn};
use serde::Deserialize;

/// Framing overhead of an InfiniBand packet beyond LRH to ICRC: the VCRC and the delimiters (IBTA volume 2, 5.6).
const AROUND: u64 = 4;

/// A card in a slot of a host, and the wire to another one like it.
#[derive(Clone, Debug, PartialEq)]
pub struct TimingProfile {
    /// File name.
    pub name: String,
    /// Parameters of the card itself, independent of its slot.
    pub card: Card,
    /// The slot it is in.
    pub slot: Slot,
    /// The wire between the ports.
    pub wire: Wire,
    /// Memory and programs.
    pub host: HostCosts,
}

/// The card's units. Latencies are pipelined; the time that a packet occupies a unit is not.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Number of cached QP contexts; others are read from host memory (ICM).
    pub contexts: u32,
    /// Number of cached keys (TPT).
    pub keys: u32,
    /// Number of cached lines of eight translations, one page each (TPT).
    pub translations: u32,
    /// From the doorbell's arrival to the first bit on the port, for a message with inline data (SXD, SXW, SXP).
    pub send: Ns,
    /// For each 64-byte block of a work request after the first (SXW).
    pub send_block: Ns,
    /// Time that a packet occupies the sender (SXP).
    pub send_packet: Ns,
    /// From the last bit of a packet to its first write to the host (RXB, RXT, RXW, RXC).
    pub receive: Ns,
    /// Time that a packet occupies the receiver (RXT).
    pub receive_packet: Ns,
    /// Bytes that can wait for the writer to host memory before the port pauses the wire (RXB).
    pub receive_buffer: u32,
    /// From the arrival of a request's last bit to the first bit of its acknowledgement (RXS).
    pub acknowledge: Ns,
    /// From the arrival of a request's last bit to the first bit of a response with data, not including the read of the data (RXS).
    pub answer: Ns,
    /// Time that a context miss blocks the unit that needs it, in addition to the read (SXP, RXT, RXS).
    pub miss: Ns,
    /// Time that a packet of a READ response occupies the responder (RXS),
    pub read_answer: Ns,
    /// and each byte of its data.
    pub read_answer_byte: Ns,
    /// Number of READ response packets that the responder generates at once after an idle period.
    pub answers_at_once: u32,
    /// Time that an atomic occupies its address, in addition to the read (RXS).
    pub atomic: Ns,
    /// From the arrival of the packet that completes a request, or ends a message, to the write of the completion (RXC).
    pub complete: Ns,
    /// Data passes through the units in pieces of this many bytes: the next unit starts when it has one.
    pub chunk: u32,
    /// Time per byte of the reader of host memory at the beginning of a message (PXDP).
    pub read_pace: Ns,
    /// After this many bytes of the message the time per byte has halved, after twice as many it is a third, and so on.
    pub read_pace_bytes: u32,
    /// Interval in packets between those of a message that request an acknowledgement.
    pub ack_every: u32,
    /// Minimum exponent of the ACK timeout.
    pub min_ack_timeout: u8,
    /// Multiples of the ACK timeout after which a request is retransmitted or given up: the first, the second, and each later one.
    pub ack_timeouts: [Factor; 3],
}

/// A PCI Express slot.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Number of lanes.
    pub lanes: u32,
    /// Gb/s per lane after encoding.
    pub lane_gbps: Rate,
    /// Maximum payload of a packet, in bytes.
    pub max_payload: u32,
    /// Overhead per payload in bytes: headers, checksums and flow control.
    pub overhead: u32,
    /// From the root complex to the card, or back.
    pub one_way: Ns,
    /// Time that a write occupies the card's writer in addition to its bytes.
    pub write: Ns,
}

/// The wire, and a switch on it if there is one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wire {
    /// Link layer of the ports, which determines the framing overhead.
    #[serde(default)]
    pub link_layer: LinkLayer,
    /// The port's rate.
    pub gbps: Rate,
    /// Maximum payload of a packet in bytes, unless a run overrides it.
    pub mtu: u16,
    /// All cables from port to port, and the ports' own encoding.
    pub propagation: Ns,
    /// Forwarding latency of the switch; 0 means no switch.
    pub switch: Ns,
    /// The switch receives a packet completely before it forwards it.
    pub store_and_forward: bool,
}

/// Times of programs and memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCosts {
    /// From the root complex to memory.
    pub memory: Ns,
    /// A program's write of 64 bytes to a doorbell page.
    pub pio: Ns,
    /// Each further 64 bytes.
    pub pio_block: Ns,
    /// All other work of a program to post a request.
    pub post: Ns,
    /// The same for a program that only posts and polls, such as a throughput benchmark.
    pub post_rate: Ns,
    /// Noticing a completion.
    pub poll_cq: Ns,
    /// Noticing a byte in memory.
    pub poll_memory: Ns,
    /// Distribution of the additional time to notice a completion.
    pub spread_cq: Spread,
    /// The same for a byte in memory.
    pub spread_memory: Spread,
}

/// Nanoseconds, not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Ns(pub f64);

impl Ns {
    /// In picoseconds.
    pub fn ps(self) -> Ps {
        (self.0 * 1e3 + 0.5) as Ps
    }

    /// Time in picoseconds for `bytes` at this time per byte, which halves after `half` bytes, with `behind` bytes before them.
    pub fn time(self, bytes: u64, behind: u64, half: u32) -> Ps {
        let half = f64::from(half);
        (self.0 * 1e3 * bytes as f64 * half / (half + behind as f64) + 0.5) as Ps
    }
}

/// A multiple, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor(pub f64);

/// Gigabits per second, above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl Rate {
    /// Time for `bytes`, in picoseconds.
    pub fn time(self, bytes: u64) -> Ps {
        (bytes as f64 * 8e3 / self.0 + 0.5) as Ps
    }

    /// Time on a link for a frame of `bytes` from its first header to its ICRC; preamble, FCS and gap add 24.
    pub fn frame(self, bytes: u64) -> Ps {
        self.time(bytes + 24)
    }
}

impl Slot {
    /// Time for `bytes` on the lanes, in packets with the maximum payload.
    pub fn time(&self, bytes: u64) -> Ps {
        let payload = f64::from(self.max_payload);
        let share = payload / (payload + f64::from(self.overhead));
        Rate(f64::from(self.lanes) * self.lane_gbps.0 * share).time(bytes)
    }
}

impl Wire {
    /// Time for a frame of `bytes` from its first header to its ICRC.
    pub fn time(&self, bytes: u64) -> Ps {
        match self.link_layer {
            LinkLayer::Ethernet => self.gbps.frame(bytes),
            LinkLayer::Infiniband => self.gbps.time(bytes + AROUND),
        }
    }

    /// From the last bit leaving one port to its arrival at the other.
    pub fn across(&self, bytes: u64) -> Ps {
        let whole = self.switch.0 > 0.0 && self.store_and_forward;
        let again = if whole { self.time(bytes) } else { 0 };
        self.propagation.ps() + self.switch.ps() + again
    }
}

impl TimingProfile {
    /// The configuration of an adapter with base `config` that behaves like this card on this wire.
    pub(crate) fn behaviour(&self, config: &Config) -> Config {
        let line_rate = (self.wire.gbps.0 * 1e3) as u32;
        Config {
            ack_every: self.card.ack_every,
            min_ack_timeout: self.card.min_ack_timeout,
            ack_timeouts: self.card.ack_timeouts.map(|times| (times.0 * 100.0).round() as u16),
            dcqcn: Dcqcn { line_rate, ..config.dcqcn },
            ..*config
        }
    }

    /// A read of host memory: request, memory, response.
    pub fn read_trip(&self) -> Ps {
        2 * self.slot.one_way.ps() + self.host.memory.ps()
    }

    /// A write to host memory until a program can see it.
    pub fn write_trip(&self) -> Ps {
        self.slot.one_way.ps() + self.host.memory.ps()
    }
}
