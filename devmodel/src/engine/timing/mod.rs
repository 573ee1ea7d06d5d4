//! The costs of everything: profiles of a card, the slot it is in, the wire between two of them, and the host's programs.
//!
//! All numbers are in files, `devmodel/profiles/`, each with its source. docs/time.md says what the units do with them, and how well
//! they meet what was measured on cards.

mod load;
mod spread;

pub use load::{BUILT_IN, ProfileError};
pub use spread::{Dice, Spread};

use super::sched::Ps;
use crate::{Config, LinkLayer, transport::Dcqcn};
use serde::Deserialize;

/// Bytes around a packet of InfiniBand from its LRH to its ICRC: the VCRC, and where it begins and ends (IBTA volume 2, 5.6).
const AROUND: u64 = 4;

/// A card in a slot of a host, and the wire to another one like it.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its file's name.
    pub name: String,
    /// The numbers that are the card's own, whatever it is plugged into.
    pub card: Card,
    /// The slot it is in.
    pub slot: Slot,
    /// From port to port.
    pub wire: Wire,
    /// Memory, and programs.
    pub host: HostCosts,
}

/// The card's units. Latencies let the next packet in before they are over; what a unit is busy with does not.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Contexts of queue pairs that it has at hand; others it reads from host memory (ICM).
    pub contexts: u32,
    /// Keys that it has at hand (TPT).
    pub keys: u32,
    /// Lines of eight translations that it has at hand, a page each (TPT).
    pub translations: u32,
    /// From the doorbell's arrival to the first bit on the port, of a message whose data is in the work request (SXD, SXW, SXP).
    pub send: Ns,
    /// For each block of 64 bytes of a work request behind the first (SXW).
    pub send_block: Ns,
    /// How long a packet keeps the sender busy (SXP).
    pub send_packet: Ns,
    /// From the last bit of a packet to its first write to the host (RXB, RXT, RXW, RXC).
    pub receive: Ns,
    /// How long a packet keeps the receiver busy (RXT).
    pub receive_packet: Ns,
    /// Bytes that may wait for the writer to host memory before the port pauses the wire (RXB).
    pub receive_buffer: u32,
    /// From the arrival of a request's last bit to the first bit of its acknowledgement (RXS).
    pub acknowledge: Ns,
    /// From there to the first bit of an answer with data, beside the read of it (RXS).
    pub answer: Ns,
    /// How long a context that is not at hand holds up the unit that needs it, beside the read (SXP, RXT, RXS).
    pub miss: Ns,
    /// How long a packet of a READ's answer keeps the responder busy (RXS),
    pub read_answer: Ns,
    /// and each byte of its data.
    pub read_answer_byte: Ns,
    /// How many of them it makes at once when it rested.
    pub answers_at_once: u32,
    /// How long an atomic keeps its address, beside the read of it (RXS).
    pub atomic: Ns,
    /// From the arrival of what completes a request, or is a message's last, to the write of the completion (RXC).
    pub complete: Ns,
    /// Data goes through the units in pieces of so many bytes: the next unit begins when it has one.
    pub chunk: u32,
    /// The time that the reader of host memory takes for a byte when it rested (PXDP).
    pub read_pace: Ns,
    /// Behind so many bytes it takes half of that, behind twice as many a third, and so on.
    pub read_pace_bytes: u32,
    /// Packets of a message from one that asks for an acknowledgement to the next.
    pub ack_every: u32,
    /// Least exponent of the acknowledgement timeout.
    pub min_ack_timeout: u8,
    /// Acknowledgement timeouts after which a request is sent again, or given up: the first, the second, and each later one.
    pub ack_timeouts: [Factor; 3],
}

/// A PCI Express slot.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Lanes.
    pub lanes: u32,
    /// Gb/s of a lane behind its encoding.
    pub lane_gbps: Rate,
    /// Bytes of a packet's payload at most.
    pub max_payload: u32,
    /// Bytes around each payload: headers, check sums, and what flow control takes.
    pub overhead: u32,
    /// From the root complex to the card, or back.
    pub one_way: Ns,
    /// How long a write keeps the card's writer busy beside its bytes.
    pub write: Ns,
}

/// The wire, and a switch on it if there is one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wire {
    /// The ports speak this, which decides what is around a packet.
    #[serde(default)]
    pub link_layer: LinkLayer,
    /// The port's rate.
    pub gbps: Rate,
    /// Bytes of payload of a packet at most, unless a run says otherwise.
    pub mtu: u16,
    /// All cables from port to port, and the ports' own encoding.
    pub propagation: Ns,
    /// The time that a switch takes to look at a packet; 0 is none.
    pub switch: Ns,
    /// The switch has a packet whole before it sends it on.
    pub store_and_forward: bool,
}

/// The time that programs and memory take.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCosts {
    /// From the root complex to memory.
    pub memory: Ns,
    /// A program writes 64 bytes to a doorbell page.
    pub pio: Ns,
    /// Each further 64 bytes.
    pub pio_block: Ns,
    /// All else that a program does for a request that it posts.
    pub post: Ns,
    /// The same where it only posts and polls, as programs that measure rates.
    pub post_rate: Ns,
    /// It takes note of a completion.
    pub poll_cq: Ns,
    /// It takes note of a byte in memory.
    pub poll_memory: Ns,
    /// How much longer taking note of a completion may take.
    pub spread_cq: Spread,
    /// The same of a byte in memory.
    pub spread_memory: Spread,
}

/// Nanoseconds, none below zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Ns(pub f64);

impl Ns {
    /// In picoseconds.
    pub fn ps(self) -> Ps {
        (self.0 * 1e3 + 0.5) as Ps
    }

    /// In picoseconds, what `bytes` take at this pace, which is halved behind `half` bytes, where `behind` went before.
    pub fn time(self, bytes: u64, behind: u64, half: u32) -> Ps {
        let half = f64::from(half);
        (self.0 * 1e3 * bytes as f64 * half / (half + behind as f64) + 0.5) as Ps
    }
}

/// So many times something else, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor(pub f64);

/// Gigabits per second, above zero.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl Rate {
    /// The time that `bytes` take, in picoseconds.
    pub fn time(self, bytes: u64) -> Ps {
        (bytes as f64 * 8e3 / self.0 + 0.5) as Ps
    }

    /// The time that a frame of `bytes` from its first header to its ICRC takes on a link: preamble, check sequence and gap are 24 more.
    pub fn frame(self, bytes: u64) -> Ps {
        self.time(bytes + 24)
    }
}

impl Slot {
    /// The time that `bytes` take on the lanes, in packets of the largest payload.
    pub fn time(&self, bytes: u64) -> Ps {
        let payload = f64::from(self.max_payload);
        let share = payload / (payload + f64::from(self.overhead));
        Rate(f64::from(self.lanes) * self.lane_gbps.0 * share).time(bytes)
    }
}

impl Wire {
    /// The time that a frame of `bytes` from its first header to its ICRC takes.
    pub fn time(&self, bytes: u64) -> Ps {
        match self.link_layer {
            LinkLayer::Ethernet => self.gbps.frame(bytes),
            LinkLayer::Infiniband => self.gbps.time(bytes + AROUND),
        }
    }

    /// From the last bit that leaves a port to the last one that arrives at the other.
    pub fn across(&self, bytes: u64) -> Ps {
        let whole = self.switch.0 > 0.0 && self.store_and_forward;
        let again = if whole { self.time(bytes) } else { 0 };
        self.propagation.ps() + self.switch.ps() + again
    }
}

impl Profile {
    /// Returns how an adapter that behaves by `config` behaves as this card at this wire.
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

    /// A read of host memory: there, memory, back.
    pub fn read_trip(&self) -> Ps {
        2 * self.slot.one_way.ps() + self.host.memory.ps()
    }

    /// A write to host memory until a program can see it.
    pub fn write_trip(&self) -> Ps {
        self.slot.one_way.ps() + self.host.memory.ps()
    }
}
