//! Consecutive spans of time: the causal chain behind every event in virtual time.

use super::sched::Ps;
use crate::named::named;
use std::fmt;

named! {
    /// The vendor's abbreviations for the units in its counters, and names for parts outside the card.
    #[derive(PartialOrd, Ord)]
    pub enum Unit;
    fn letters -> &'static str;

    /// The program.
    Host = "host",
    /// The slot: from the processor to the card, or back.
    Slot = "PCIe",
    /// QP contexts.
    Icm = "ICM",
    /// Keys and translations.
    Tpt = "TPT",
    /// Scheduling of send queues.
    Sxd = "SXD",
    /// Work requests.
    Sxw = "SXW",
    /// Packet generation.
    Sxp = "SXP",
    /// Reads and writes of host memory.
    Pxdp = "PXDP",
    /// The port.
    Port = "port",
    /// The wire to the other port, including a switch.
    Wire = "wire",
    /// The receiver's buffer.
    Rxb = "RXB",
    /// Processing of received packets.
    Rxt = "RXT",
    /// The responder.
    Rxs = "RXS",
    /// Completions.
    Rxc = "RXC",
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.letters())
    }
}

named! {
    /// An activity that takes time.
    pub enum Part;
    fn facts -> (Unit, &'static str);

    /// A program builds a work request.
    Post = (Unit::Host, "makes a work request"),
    /// It writes to a doorbell page.
    Doorbell = (Unit::Host, "writes to the doorbell page"),
    /// Its write travels to the card.
    Down = (Unit::Slot, "from the processor to the card"),
    /// Further blocks of a work request are processed.
    Blocks = (Unit::Sxw, "further blocks of the work request"),
    /// The context of a queue pair is read.
    Context = (Unit::Icm, "reads the context"),
    /// Keys are read.
    Key = (Unit::Tpt, "reads the key"),
    /// Translations are read.
    Translation = (Unit::Tpt, "reads translations"),
    /// A queue pair waits for its turn.
    Turn = (Unit::Sxd, "waits for its turn"),
    /// The packet generator is busy.
    WaitSender = (Unit::Sxp, "waits for packets before it"),
    /// Data is read.
    Fetch = (Unit::Pxdp, "reads data"),
    /// A packet is generated.
    Send = (Unit::Sxp, "makes the packet"),
    /// The READ response generator is busy.
    WaitResponder = (Unit::Rxs, "waits for answers before it"),
    /// The address of an atomic is busy, then read and modified.
    Atomic = (Unit::Rxs, "reads and changes the address"),
    /// A response is generated.
    Answer = (Unit::Rxs, "makes the answer"),
    /// An acknowledgement is generated.
    Acknowledge = (Unit::Rxs, "makes the acknowledgement"),
    /// Other packets occupy the port or have priority.
    WaitPort = (Unit::Port, "waits for the port"),
    /// Transmission of the bits that remain once all data of the packet has arrived.
    Bits = (Unit::Port, "bits that were not out before"),
    /// Propagation over cables.
    Cable = (Unit::Wire, "cables"),
    /// A switch forwards the packet.
    Switch = (Unit::Wire, "switch"),
    /// The receiver is busy or has no room.
    WaitReceiver = (Unit::Rxb, "waits for the receiver"),
    /// A packet is processed.
    Receive = (Unit::Rxt, "looks at the packet"),
    /// The writer to host memory is busy.
    WaitWriter = (Unit::Pxdp, "waits for the writer"),
    /// Data or a completion is written.
    Write = (Unit::Pxdp, "writes"),
    /// The card's write travels to memory.
    Up = (Unit::Slot, "from the card to memory"),
    /// A completion is generated.
    Complete = (Unit::Rxc, "makes the completion"),
    /// The program is descheduled.
    Asleep = (Unit::Host, "the program is on no processor"),
    /// The program notices the completion or data.
    Notice = (Unit::Host, "takes note"),
    /// Additional time for that, beyond the minimum.
    Spread = (Unit::Host, "takes longer than at best"),
}

impl Part {
    /// The unit that spends this time.
    pub fn unit(self) -> Unit {
        self.facts().0
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.facts().1)
    }
}

/// A span of time and its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The part.
    pub part: Part,
    /// The card or its host: 0 is the client's.
    pub card: u8,
    /// Start time.
    pub from: Ps,
    /// End time.
    pub until: Ps,
    /// Number of the preceding span.
    pub before: Option<u32>,
}

/// A point in time, with the chain of spans that led to it.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// The time.
    pub at: Ps,
    /// The last span before it, if spans are kept.
    last: Option<u32>,
}

impl Cause {
    /// The start of a chain at `at`.
    pub fn new(at: Ps) -> Self {
        Self { at, last: None }
    }
}

/// All spans of a run, and the chain of each message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    spans: Vec<Span>,
    /// For each message the number of its last span.
    ends: Vec<Option<u32>>,
}

impl Timeline {
    /// All spans. The predecessor of a span has a lower number.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The spans of message `number`, from 0: each starts where the previous one ends, so that together they cover the time
    /// from the start of the first to the end of the last. Empty if there is no such message.
    pub fn of(&self, number: usize) -> Vec<Span> {
        self.way(self.ends.get(number).copied().flatten())
            .into_iter()
            .map(|number| self.spans[number])
            .collect()
    }

    /// For each message the numbers of its spans, in order.
    pub fn ways(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        self.ends.iter().map(|end| self.way(*end))
    }

    fn way(&self, end: Option<u32>) -> Vec<usize> {
        let mut way = Vec::new();
        let mut next = end.map(|number| number as usize);
        while let Some(number) = next {
            way.push(number);
            next = self.spans[number].before.map(|number| number as usize);
        }
        way.reverse();
        way
    }
}

/// Records spans, if enabled.
#[derive(Default)]
pub(crate) struct Spans(Option<Timeline>);

impl Spans {
    /// Enables recording.
    pub(crate) fn keep(&mut self) {
        self.0 = Some(Timeline::default());
    }

    /// Appends a span of `part` on `card` from `cause` to `until`. Adds nothing if `until` has passed already.
    pub(crate) fn then(&mut self, cause: Cause, card: usize, part: Part, until: Ps) -> Cause {
        if until <= cause.at {
            return cause;
        }
        let Some(Timeline { spans, .. }) = &mut self.0 else { return Cause { at: until, ..cause } };
        let number = u32::try_from(spans.len()).ok();
        spans.push(Span { part, card: card as u8, from: cause.at, until, before: cause.last });
        Cause { at: until, last: number }
    }

    /// Records `end` as the end of a message.
    pub(crate) fn message(&mut self, end: Cause) {
        if let Some(Timeline { ends, .. }) = &mut self.0 {
            ends.push(end.last);
        }
    }

    /// The recorded timeline.
    pub(crate) fn into_timeline(self) -> Timeline {
        self.0.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_came_about_without_gaps_and_what_took_no_time_is_left_out() {
        let mut spans = Spans::default();
        assert_eq!(spans.then(Cause::new(5), 0, Part::Post, 9).at, 9, "they need not be kept");
        spans.keep();
        let begin = spans.then(Cause::new(5), 0, Part::Post, 9);
        spans.then(begin, 0, Part::Down, 20);
        let waited = spans.then(begin, 0, Part::WaitPort, 9);
        let end = spans.then(waited, 1, Part::Bits, 30);
        spans.message(end);
        let timeline = spans.into_timeline();
        let parts: Vec<_> =
            timeline.of(0).iter().map(|span| (span.part, span.from, span.until, span.card)).collect();
        assert_eq!(parts, [(Part::Post, 5, 9, 0), (Part::Bits, 9, 30, 1)]);
        assert_eq!((timeline.spans().len(), timeline.of(1).len()), (3, 0));
    }
}
