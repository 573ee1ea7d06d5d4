//! The spans that took time, one behind the other: how everything that happened in virtual time came about.

use super::sched::Ps;
use std::fmt;

/// The letters that the vendor's counters use for the units, and for what is none of the card's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// The program.
    Host,
    /// The slot: from the processor to the card, or back.
    Slot,
    /// Contexts of queue pairs.
    Icm,
    /// Keys and translations.
    Tpt,
    /// Send queues in turn.
    Sxd,
    /// Work requests.
    Sxw,
    /// Packets that are made.
    Sxp,
    /// Host memory is read and written.
    Pxdp,
    /// The port.
    Port,
    /// The wire to the other port, and a switch on it.
    Wire,
    /// The receiver's buffer.
    Rxb,
    /// Packets that are looked at.
    Rxt,
    /// The responder.
    Rxs,
    /// Completions.
    Rxc,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Slot => "PCIe",
            Self::Icm => "ICM",
            Self::Tpt => "TPT",
            Self::Sxd => "SXD",
            Self::Sxw => "SXW",
            Self::Sxp => "SXP",
            Self::Pxdp => "PXDP",
            Self::Port => "port",
            Self::Wire => "wire",
            Self::Rxb => "RXB",
            Self::Rxt => "RXT",
            Self::Rxs => "RXS",
            Self::Rxc => "RXC",
        })
    }
}

/// A thing that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A program makes a work request.
    Post,
    /// It writes to a doorbell page.
    Doorbell,
    /// Its write goes to the card.
    Down,
    /// Blocks of a work request behind the first are taken up.
    Blocks,
    /// The context of a queue pair is read.
    Context,
    /// Keys are read.
    Key,
    /// Translations are read.
    Translation,
    /// A queue pair waits for its turn.
    Turn,
    /// The maker of packets is busy.
    WaitSender,
    /// Data is read.
    Fetch,
    /// A packet is made.
    Send,
    /// The maker of READs' answers is busy.
    WaitResponder,
    /// The address of an atomic is busy, is read, and changes.
    Atomic,
    /// An answer is made.
    Answer,
    /// An acknowledgement is made.
    Acknowledge,
    /// Other packets are on the port, or are to go first.
    WaitPort,
    /// The bits of a packet that are left when its data is there go out.
    Bits,
    /// Bits go over cables.
    Cable,
    /// A switch has the packet.
    Switch,
    /// The receiver is busy, or has no room.
    WaitReceiver,
    /// A packet is looked at.
    Receive,
    /// The writer to host memory is busy.
    WaitWriter,
    /// Data, or a completion, is written.
    Write,
    /// The card's write goes to memory.
    Up,
    /// A completion is made.
    Complete,
    /// The program is on no processor.
    Asleep,
    /// The program takes note.
    Notice,
    /// By how much longer that takes than usual.
    Spread,
}

impl Part {
    /// The unit that takes it.
    pub fn unit(self) -> Unit {
        match self {
            Self::Post | Self::Doorbell | Self::Asleep | Self::Notice | Self::Spread => Unit::Host,
            Self::Down | Self::Up => Unit::Slot,
            Self::Turn => Unit::Sxd,
            Self::Blocks => Unit::Sxw,
            Self::WaitSender | Self::Send => Unit::Sxp,
            Self::Fetch | Self::WaitWriter | Self::Write => Unit::Pxdp,
            Self::WaitResponder | Self::Atomic | Self::Answer | Self::Acknowledge => Unit::Rxs,
            Self::WaitPort | Self::Bits => Unit::Port,
            Self::Cable | Self::Switch => Unit::Wire,
            Self::WaitReceiver => Unit::Rxb,
            Self::Receive => Unit::Rxt,
            Self::Complete => Unit::Rxc,
            Self::Context => Unit::Icm,
            Self::Key | Self::Translation => Unit::Tpt,
        }
    }

    /// True if it is a wait for something else.
    pub fn is_wait(self) -> bool {
        matches!(
            self,
            Self::Turn
                | Self::WaitSender
                | Self::WaitResponder
                | Self::WaitPort
                | Self::WaitReceiver
                | Self::WaitWriter
                | Self::Asleep
        )
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Post => "makes a work request",
            Self::Doorbell => "writes to the doorbell page",
            Self::Down => "from the processor to the card",
            Self::Blocks => "further blocks of the work request",
            Self::Turn => "waits for its turn",
            Self::WaitSender => "waits for packets before it",
            Self::Fetch => "reads data",
            Self::Context => "reads the context",
            Self::Key => "reads the key",
            Self::Translation => "reads translations",
            Self::Send => "makes the packet",
            Self::WaitResponder => "waits for answers before it",
            Self::Atomic => "reads and changes the address",
            Self::Answer => "makes the answer",
            Self::Acknowledge => "makes the acknowledgement",
            Self::WaitPort => "waits for the port",
            Self::Bits => "bits that were not out before",
            Self::Cable => "cables",
            Self::Switch => "switch",
            Self::WaitReceiver => "waits for the receiver",
            Self::Receive => "looks at the packet",
            Self::WaitWriter => "waits for the writer",
            Self::Write => "writes",
            Self::Up => "from the card to memory",
            Self::Complete => "makes the completion",
            Self::Asleep => "the program is on no processor",
            Self::Notice => "takes note",
            Self::Spread => "takes longer than at best",
        })
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
