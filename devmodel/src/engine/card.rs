//! The units of a card, and the time at which each is free (docs/time-inside.md).

use super::{
    cache::Cache,
    sched::Ps,
    spans::{Cause, Part, Spans, Unit},
    timing::TimingProfile,
};
use crate::{named::named, region::Lookup};
use std::collections::HashMap;

/// Translations per line of memory, which one read fetches.
const PER_LINE: u32 = 8;

/// The units of a card, shared by all of its functions.
pub(crate) struct Units {
    profile: TimingProfile,
    /// The number of the card.
    here: usize,
    reader: Reader,
    /// QP contexts.
    contexts: Cache,
    keys: Cache,
    /// Translations, by line of memory.
    translations: Cache,
    /// Time at which the packet generator is free.
    sender: Ps,
    /// Time at which the READ response generator is free.
    responder: Ps,
    /// Time at which the address of atomics is free.
    atomics: Ps,
    /// Time at which the port is free.
    port: Ps,
    /// Time at which the receiver is free.
    receiver: Ps,
    /// Time at which the writer to host memory is free.
    writer: Ps,
    loads: Loads,
}

/// Work done by each station.
#[derive(Default)]
struct Loads([Load; Station::ALL.len()]);

impl Loads {
    fn add(&mut self, station: Station, busy: Ps, waited: Ps) {
        let load = &mut self.0[station as usize];
        load.count += 1;
        load.busy += busy;
        load.waited += waited;
    }

    /// Adds a read of an entry that was not cached.
    #[inline]
    fn missed(&mut self, p: &TimingProfile, station: Station, missed: bool) {
        if missed {
            self.add(station, p.read_trip(), 0);
        }
    }
}

named! {
    /// A unit that does one thing at a time, in the order in which a packet passes them.
    pub enum Station, ALL;
    /// The unit of the card that it belongs to, and its work there.
    pub fn name -> (Unit, &'static str);

    /// Generates packets.
    Sender = (Unit::Sxp, "packets"),
    /// Generates READ responses.
    Responder = (Unit::Rxs, "answers"),
    /// Executes atomics on their address.
    Atomics = (Unit::Rxs, "atomics"),
    /// Reads host memory.
    Reader = (Unit::Pxdp, "reads"),
    /// Transmits bits.
    Port = (Unit::Port, "frames"),
    /// Processes received packets.
    Receiver = (Unit::Rxb, "packets"),
    /// Writes to host memory.
    Writer = (Unit::Pxdp, "writes"),
    /// Reads QP contexts.
    Contexts = (Unit::Icm, "misses"),
    /// Reads keys.
    Keys = (Unit::Tpt, "keys missed"),
    /// Reads translations.
    Translations = (Unit::Tpt, "translations missed"),
}

/// Work done by a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of operations.
    pub count: u64,
    /// Busy time, in picoseconds.
    pub busy: Ps,
    /// Total time that operations waited for it, in picoseconds.
    pub waited: Ps,
}

/// Purpose of a QP context lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// The QP has something to send.
    Sending,
    /// A packet arrived for it.
    Receiving,
}

/// Kinds of packets, by the data that they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// No data beyond the work request, which contains it.
    Inline,
    /// Data read from host memory.
    Read,
    /// An acknowledgement.
    Acknowledgement,
    /// Part of a READ response, with data from host memory.
    ReadAnswer,
    /// An atomic response.
    AtomicAnswer,
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// Its kind.
    pub made: Made,
    /// Bytes from the first header to the ICRC.
    pub frame: u64,
    /// Bytes of data.
    pub data: u64,
    /// Its position in a message of several packets; `None` for a message of one packet.
    pub piece: Option<Piece>,
}

/// Identifies a message that a card is sending: the sending function, true for a READ response, the destination QP, and the
/// destination address (MAC or LID).
pub(crate) type Flow = (u8, bool, u32, [u8; 6]);

/// One packet of a message of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The message.
    pub flow: Flow,
    /// True for the first packet of the message.
    pub begins: bool,
    /// True for the last packet.
    pub ends: bool,
}

impl Units {
    /// The idle units of card `here` with profile `p`.
    pub(crate) fn new(p: &TimingProfile, here: usize) -> Self {
        Self {
            profile: p.clone(),
            here,
            contexts: Cache::new(p.card.contexts),
            keys: Cache::new(p.card.keys),
            translations: Cache::new(p.card.translations),
            reader: Reader::default(),
            sender: 0,
            responder: 0,
            atomics: 0,
            port: 0,
            receiver: 0,
            writer: 0,
            loads: Default::default(),
        }
    }

    /// Looks up the context of a QP that has something to send or receives a packet; returns the time at which it is available.
    /// A miss blocks units that process packets in order.
    #[inline]
    pub(crate) fn context(
        &mut self,
        spans: &mut Spans,
        (fid, qp, for_what): (u8, u32, For),
        cause: Cause,
    ) -> Cause {
        let (p, here) = (&self.profile, self.here);
        let (from, missed) = self.contexts.get(fid, qp, cause.at, p.read_trip());
        self.loads.missed(p, Station::Contexts, missed);
        if missed {
            let behind = |unit: &mut Ps| *unit = cause.at.max(*unit) + p.card.miss.ps();
            match for_what {
                For::Sending => behind(&mut self.sender),
                For::Receiving => {
                    behind(&mut self.receiver);
                    behind(&mut self.responder);
                }
            }
        }
        spans.then(cause, here, Part::Context, from)
    }

    /// Looks up keys and translations; returns the time at which they are available. Misses of one kind are read concurrently,
    /// because several reads of host memory can be in flight; but a translation can only be looked up after its key.
    #[inline]
    pub(crate) fn look_up(
        &mut self,
        spans: &mut Spans,
        (fid, lookups): (u8, &[Lookup]),
        cause: Cause,
    ) -> Cause {
        let (p, here) = (&self.profile, self.here);
        let (mut keys, mut pages) = (cause.at, cause.at);
        for lookup in lookups {
            if let Lookup::Key(number) = lookup {
                let (from, missed) = self.keys.get(fid, *number, cause.at, p.read_trip());
                self.loads.missed(p, Station::Keys, missed);
                keys = keys.max(from);
            }
        }
        for lookup in lookups {
            let Lookup::Translations(first, count) = *lookup else { continue };
            for line in first / PER_LINE..=(first + count.max(1) - 1) / PER_LINE {
                let (from, missed) = self.translations.get(fid, line, keys, p.read_trip());
                self.loads.missed(p, Station::Translations, missed);
                pages = pages.max(from);
            }
        }
        let cause = spans.then(cause, here, Part::Key, keys);
        spans.then(cause, here, Part::Translation, pages)
    }

    /// The load of each unit, in the order of [`Station::ALL`].
    pub(crate) fn loads(&self) -> &[Load; Station::ALL.len()] {
        &self.loads.0
    }

    /// Sends a packet requested at `cause`; returns the time at which its last bit has left the port.
    pub(crate) fn send(&mut self, spans: &mut Spans, cause: Cause, out: Outgoing) -> Cause {
        let (p, here) = (&self.profile, self.here);
        let (now, card, on_wire) = (cause.at, &p.card, p.wire.time(out.frame));
        if out.made == Made::Acknowledgement {
            // It overtakes packets that wait for data.
            self.port += on_wire;
            self.loads.add(Station::Port, on_wire, 0);
            let made = spans.then(cause, here, Part::Acknowledge, now + card.acknowledge.ps());
            return spans.then(made, here, Part::Bits, made.at + on_wire);
        }
        let answers = matches!(out.made, Made::ReadAnswer | Made::AtomicAnswer);
        let turn = if answers { card.answer.ps() } else { card.send.ps() };
        let (unit, busy, at_once) = match answers {
            true => {
                let busy = card.read_answer.ps() + card.read_answer_byte.time(out.data, 0, 1);
                (&mut self.responder, busy, Ps::from(card.answers_at_once))
            }
            false => (&mut self.sender, card.send_packet.ps(), 1),
        };
        // An idle unit generates several at once, and then one per `busy`.
        let made = now.max((*unit).saturating_sub((at_once - 1) * busy));
        *unit = made.max(*unit) + busy;
        self.loads.add(if answers { Station::Responder } else { Station::Sender }, busy, made - now);
        let cause =
            spans.then(cause, here, if answers { Part::WaitResponder } else { Part::WaitSender }, made);
        // Time at which the last piece of its data arrives.
        let cause = match out.made {
            Made::Read | Made::ReadAnswer => {
                let read = self.reader.read(p, made, &out);
                self.loads.add(Station::Reader, read.busy, read.waited);
                spans.then(cause, here, Part::Fetch, read.until)
            }
            Made::AtomicAnswer => {
                let (begin, busy) = (made.max(self.atomics), p.read_trip() + card.atomic.ps());
                self.loads.add(Station::Atomics, busy, begin - made);
                self.atomics = begin + busy;
                spans.then(cause, here, Part::Atomic, self.atomics)
            }
            Made::Inline | Made::Acknowledgement => cause,
        };
        // The port starts when it will not run out of data in the middle of the packet.
        let piece = on_wire.min(p.wire.gbps.time(out.data.min(u64::from(card.chunk))));
        let ready = cause.at + turn;
        let alone = (ready + piece).max(made + turn + on_wire);
        self.port = alone.max(self.port + on_wire);
        let waited = self.port - alone;
        self.loads.add(Station::Port, on_wire, waited);
        let cause = spans.then(cause, here, if answers { Part::Answer } else { Part::Send }, ready);
        let cause = spans.then(cause, here, Part::WaitPort, ready + waited);
        spans.then(cause, here, Part::Bits, self.port)
    }

    /// Blocks the port until `until`.
    pub(crate) fn pause(&mut self, until: Ps) {
        self.port = self.port.max(until);
    }

    /// Time at which the port has sent everything given to it.
    pub(crate) fn port_free(&self) -> Ps {
        self.port
    }

    /// Time, in picoseconds of PCIe transfer, until all data received so far is in host memory.
    pub(crate) fn behind(&self, now: Ps) -> Ps {
        self.writer.saturating_sub(now)
    }

    /// Receives a packet with its last bit arriving at `cause`; returns the time at which it is processed. Packets wait for the
    /// receiver while earlier ones fill the buffer in front of the writer.
    pub(crate) fn receive(&mut self, spans: &mut Spans, cause: Cause) -> Cause {
        let (p, here) = (&self.profile, self.here);
        let full = self.writer.saturating_sub(p.slot.time(p.card.receive_buffer.into()));
        let busy = p.card.receive_packet.ps();
        self.receiver = cause.at.max(self.receiver + busy).max(full);
        self.loads.add(Station::Receiver, busy, self.receiver - cause.at);
        spans.then(cause, here, Part::WaitReceiver, self.receiver)
    }

    /// Writes data of a received packet to host memory; returns the time at which a program can see it.
    pub(crate) fn write(&mut self, spans: &mut Spans, cause: Cause, len: u64) -> Cause {
        let (p, here) = (&self.profile, self.here);
        let piece = len.min(u64::from(p.card.chunk));
        let received = cause.at + p.card.receive.ps();
        // All but the last piece may have been written while the packet came in.
        let first = received.saturating_sub(p.wire.gbps.time(len - piece));
        let (last, whole) = (received + p.slot.time(piece), p.slot.time(len));
        let alone = (first + whole).max(last);
        let end = alone.max(self.writer + whole);
        let waited = end - alone;
        self.writer = end + p.slot.write.ps();
        self.loads.add(Station::Writer, whole + p.slot.write.ps(), waited);
        let cause = spans.then(cause, here, Part::Receive, received);
        self.in_memory(spans, cause, waited)
    }

    /// Writes a completion to host memory; returns the time at which a program can see it, which is never before the data.
    pub(crate) fn complete(&mut self, spans: &mut Spans, cause: Cause, len: u64) -> Cause {
        let (p, here) = (&self.profile, self.here);
        let made = cause.at + p.card.complete.ps();
        let (start, busy) = (made.max(self.writer), p.slot.time(len) + p.slot.write.ps());
        self.loads.add(Station::Writer, busy, start - made);
        self.writer = start + busy;
        let cause = spans.then(cause, here, Part::Complete, made);
        self.in_memory(spans, cause, start - made)
    }

    /// Time at which a program can see the writer's last write, which followed `cause` and a wait.
    fn in_memory(&self, spans: &mut Spans, cause: Cause, waited: Ps) -> Cause {
        let here = self.here;
        let cause = spans.then(cause, here, Part::WaitWriter, cause.at + waited);
        let cause = spans.then(cause, here, Part::Write, self.writer);
        spans.then(cause, here, Part::Up, self.writer + self.profile.write_trip())
    }
}

/// The reader of host memory. It reads one stream at the rate of the PCIe lanes. The first bytes of a message arrive more
/// slowly than the lanes allow, and the rate rises with the bytes of that message read so far, regardless of their division into
/// packets and of other reads. So no message is faster because others are outstanding.
#[derive(Default)]
struct Reader {
    /// Time at which the lanes have carried all reads requested so far.
    until: Ps,
    /// For each message that is partly read: its bytes read so far, and the arrival of the last of them.
    begun: HashMap<Flow, (u64, Ps)>,
}

/// A read of host memory: arrival of its last byte, time it occupied the lanes, and time it waited for earlier reads.
struct Read {
    until: Ps,
    busy: Ps,
    waited: Ps,
}

impl Reader {
    fn read(&mut self, p: &TimingProfile, at: Ps, out: &Outgoing) -> Read {
        let first = at + p.read_trip();
        let begun =
            out.piece.filter(|piece| !piece.begins).and_then(|piece| self.begun.get(&piece.flow).copied());
        let (behind, before) = begun.unwrap_or((0, first));
        let (begin, busy) = (first.max(self.until), p.slot.time(out.data));
        self.until = begin + busy;
        let there = first.max(before) + pace(p, out.data, behind);
        match out.piece {
            Some(piece) if piece.ends => _ = self.begun.remove(&piece.flow),
            Some(piece) => _ = self.begun.insert(piece.flow, (behind + out.data, there)),
            None => {}
        }
        Read { until: self.until.max(there), busy, waited: begin - first }
    }
}

/// Time to read `len` bytes of a message after its first `behind` bytes, if nothing else is read.
fn pace(p: &TimingProfile, len: u64, behind: u64) -> Ps {
    let (chunk, mut took, mut read) = (u64::from(p.card.chunk), 0, 0);
    let bound = p.slot.time(chunk);
    while read < len {
        let piece = (len - read).min(chunk);
        let pace = p.card.read_pace.time(piece, behind + read, p.card.read_pace_bytes);
        // The pace only improves: once the PCIe bandwidth is the limit, it remains the limit.
        let pieces = if piece == chunk && pace <= bound { (len - read) / chunk } else { 1 };
        took += pieces * if piece == chunk { bound } else { p.slot.time(piece) }.max(pace);
        read += pieces * piece;
    }
    took
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> TimingProfile {
        TimingProfile::load("direct-x16").unwrap()
    }

    /// Sends a packet at time 0; returns the time at which its last bit has left.
    fn sent(card: &mut Units, packet: Outgoing) -> Ps {
        card.send(&mut Spans::default(), Cause::new(0), packet).at
    }

    /// A packet of `len` bytes: a whole message, or a piece of one.
    fn packet(len: u64, piece: Option<Piece>) -> Outgoing {
        Outgoing { made: Made::Read, frame: len + 58, data: len, piece }
    }

    #[test]
    fn the_first_bytes_of_a_message_take_longer_than_those_behind_them() {
        let p = profile();
        let alone = |len| Reader::default().read(&p, 0, &packet(len, None)).until - p.read_trip();
        let slope = |from: u64, to: u64| (alone(to) - alone(from)) as f64 / (to - from) as f64 / 1e3;
        // As measured on cards (ns per byte), unless the wire is slower.
        assert!((0.2..0.25).contains(&slope(256, 4096)), "{}", slope(256, 4096));
        assert!((0.14..0.2).contains(&slope(4096, 8192)), "{}", slope(4096, 8192));
        assert!((0.1..0.15).contains(&slope(8192, 16384)), "{}", slope(8192, 16384));
        // The same message in packets takes as long. The lanes delay the packet after it only by their own rate; each read is
        // rounded to a picosecond by itself.
        let mut reader = Reader::default();
        let piece = |n: u64| Piece { flow: (1, false, 7, [0; 6]), begins: n == 0, ends: n == 7 };
        let pieces = (0..8).map(|n| reader.read(&p, 0, &packet(1024, Some(piece(n)))).until).last();
        assert_eq!(pieces.unwrap() - p.read_trip(), alone(8192));
        let lanes = 8 * p.slot.time(1024) + p.slot.time(64);
        assert_eq!(reader.read(&p, 0, &packet(64, None)).until, p.read_trip() + lanes);
        // Other messages delay a message once they fill the lanes, and never speed it up.
        let mut reader = Reader::default();
        let ends: Vec<_> = (0..100).map(|_| reader.read(&p, 0, &packet(8192, None)).until).collect();
        assert!(ends.windows(2).all(|two| two[0] <= two[1] && two[0] >= alone(8192) + p.read_trip()));
        assert_eq!(ends[99] - ends[98], p.slot.time(8192));
    }

    #[test]
    fn an_acknowledgement_passes_packets_that_wait_for_data() {
        let p = profile();
        let mut card = Units::new(&profile(), 0);
        let packet = Outgoing { made: Made::Read, frame: 4154, data: 4096, piece: None };
        let busy = (0..8).map(|_| sent(&mut card, packet)).last().unwrap();
        let ack = Outgoing { made: Made::Acknowledgement, frame: 62, data: 0, piece: None };
        assert!(sent(&mut card, ack) < busy / 2);
        assert_eq!(card.port_free(), busy + p.wire.time(62), "it takes its bits of the port all the same");
    }
}
