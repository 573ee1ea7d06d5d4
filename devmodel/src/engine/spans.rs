//! The spans that took time, one behind the other: how everything that happened in virtual time came about.

use super::sched::Ps;
use crate::named::named;
use std::fmt;

named! {
    /// The letters that the vendor's counters use for the units, and for what is none of the card's.
    #[derive(PartialOrd, Ord)]
    pub enum Unit;
    fn letters -> &'static str;

    /// The program.
    Host = "host",
    /// The slot: from the processor to the card, or back.
    Slot = "PCIe",
    /// Contexts of queue pairs.
    Icm = "ICM",
    /// Keys and translations.
    Tpt = "TPT",
    /// Send queues in turn.
    Sxd = "SXD",
    /// Work requests.
    Sxw = "SXW",
    /// Packets that are made.
    Sxp = "SXP",
    /// Host memory is read and written.
    Pxdp = "PXDP",
    /// The port.
    Port = "port",
    /// The wire to the other port, and a switch on it.
    Wire = "wire",
    /// The receiver's buffer.
    Rxb = "RXB",
    /// Packets that are looked at.
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
    /// A thing that takes time.
    pub enum Part;
    fn facts -> (Unit, &'static str);

    /// A program makes a work request.
    Post = (Unit::Host, "makes a work request"),
    /// It writes to a doorbell page.
    Doorbell = (Unit::Host, "writes to the doorbell page"),
    /// Its write goes to the card.
    Down = (Unit::Slot, "from the processor to the card"),
    /// Blocks of a work request behind the first are taken up.
    Blocks = (Unit::Sxw, "further blocks of the work request"),
    /// The context of a queue pair is read.
    Context = (Unit::Icm, "reads the context"),
    /// Keys are read.
    Key = (Unit::Tpt, "reads the key"),
    /// Translations are read.
    Translation = (Unit::Tpt, "reads translations"),
    /// A queue pair waits for its turn.
    Turn = (Unit::Sxd, "waits for its turn"),
    /// The maker of packets is busy.
    WaitSender = (Unit::Sxp, "waits for packets before it"),
    /// Data is read.
    Fetch = (Unit::Pxdp, "reads data"),
    /// A packet is made.
    Send = (Unit::Sxp, "makes the packet"),
    /// The maker of READs' answers is busy.
    WaitResponder = (Unit::Rxs, "waits for answers before it"),
    /// The address of an atomic is busy, is read, and changes.
    Atomic = (Unit::Rxs, "reads and changes the address"),
    /// An answer is made.
    Answer = (Unit::Rxs, "makes the answer"),
    /// An acknowledgement is made.
    Acknowledge = (Unit::Rxs, "makes the acknowledgement"),
    /// Other packets are on the port, or are to go first.
    WaitPort = (Unit::Port, "waits for the port"),
    /// The bits of a packet that are left when its data is there go out.
    Bits = (Unit::Port, "bits that were not out before"),
    /// Bits go over cables.
    Cable = (Unit::Wire, "cables"),
    /// A switch has the packet.
    Switch = (Unit::Wire, "switch"),
    /// The receiver is busy, or has no room.
    WaitReceiver = (Unit::Rxb, "waits for the receiver"),
    /// A packet is looked at.
    Receive = (Unit::Rxt, "looks at the packet"),
    /// The writer to host memory is busy.
    WaitWriter = (Unit::Pxdp, "waits for the writer"),
    /// Data, or a completion, is written.
    Write = (Unit::Pxdp, "writes"),
    /// The card's write goes to memory.
    Up = (Unit::Slot, "from the card to memory"),
    /// A completion is made.
    Complete = (Unit::Rxc, "makes the completion"),
    /// The program is on no processor.
    Asleep = (Unit::Host, "the program is on no processor"),
    /// The program takes note.
    Notice = (Unit::Host, "takes note"),
    /// By how much longer that takes than usual.
    Spread = (Unit::Host, "takes longer than at best"),
}

impl Part {
    /// The unit that takes it.
    pub fn unit(self) -> Unit {
        self.facts().0
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.facts().1)
    }
}

/// A stretch of time, and what took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The part that took it.
    pub part: Part,
    /// On which card or its host: 0 is the client's.
    pub card: u8,
    /// Its begin.
    pub from: Ps,
    /// Its end.
    pub until: Ps,
    /// The number of the span that it followed.
    pub before: Option<u32>,
}

/// A moment, and what it came about by.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// When it is.
    pub at: Ps,
    /// The last span before, if spans are kept.
    last: Option<u32>,
}

impl Cause {
    /// The beginning of something at `at`.
    pub fn new(at: Ps) -> Self {
        Self { at, last: None }
    }
}

/// All that took time in a run, and what each message came about by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    spans: Vec<Span>,
    /// For each message the number of its last span.
    ends: Vec<Option<u32>>,
}

impl Timeline {
    /// All spans. The span that a span followed has a lower number.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// How message `number` came about, 0 is the first: each span begins where the one before it ends, so together they take the time from
    /// the begin of the first to the end of the last. Empty if there was no such message.
    pub fn of(&self, number: usize) -> Vec<Span> {
        self.way(self.ends.get(number).copied().flatten())
            .into_iter()
            .map(|number| self.spans[number])
            .collect()
    }

    /// For each message the numbers of its spans, in their order.
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

/// Keeps spans, if anybody wants them.
#[derive(Default)]
pub(crate) struct Spans(Option<Timeline>);

impl Spans {
    /// Keeps those that follow.
    pub(crate) fn keep(&mut self) {
        self.0 = Some(Timeline::default());
    }

    /// After `cause`, `part` takes until `until` on `card`. A part that is over by then already takes nothing.
    pub(crate) fn then(&mut self, cause: Cause, card: usize, part: Part, until: Ps) -> Cause {
        if until <= cause.at {
            return cause;
        }
        let Some(Timeline { spans, .. }) = &mut self.0 else { return Cause { at: until, ..cause } };
        let number = u32::try_from(spans.len()).ok();
        spans.push(Span { part, card: card as u8, from: cause.at, until, before: cause.last });
        Cause { at: until, last: number }
    }

    /// A message has come about by `end`.
    pub(crate) fn message(&mut self, end: Cause) {
        if let Some(Timeline { ends, .. }) = &mut self.0 {
            ends.push(end.last);
        }
    }

    /// All that was kept.
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
