//! The layout of the memory of a side; it is the same on both.

use super::plan::{DATAGRAM, LARGEST, Request, SLOTS};
use driver::Service;

/// Bytes of a buffer for a message of any size.
pub const ROOM: usize = LARGEST.next_multiple_of(4096);
/// Bytes of a GRH, which lies before each datagram.
pub const GRH: usize = 40;
/// Bytes of a buffer for a datagram behind its GRH.
pub const DATAGRAM_ROOM: usize = GRH + DATAGRAM;

/// The kind of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A service with receives of each queue pair's own.
    Own(Service),
    /// RC whose receives are shared.
    Shared,
    /// XRC.
    Extended,
}

impl Way {
    /// The service of what is sent.
    pub fn service(self) -> Service {
        match self {
            Self::Own(service) => service,
            Self::Shared => Service::Rc,
            Self::Extended => Service::XrcIni,
        }
    }

    /// Receives of a queue pair, or of all that share them.
    pub fn receives(self) -> usize {
        match self {
            Self::Own(Service::Ud) => 32,
            Self::Own(_) => 4,
            Self::Shared | Self::Extended => 8,
        }
    }

    /// Bytes of the buffer of a receive.
    pub fn room(self) -> usize {
        match self {
            Self::Own(Service::Ud) => DATAGRAM_ROOM,
            _ => ROOM,
        }
    }
}

/// All lanes.
pub const LANES: [Way; 13] = [
    Way::Own(Service::Rc),
    Way::Own(Service::Rc),
    Way::Own(Service::Rc),
    Way::Shared,
    Way::Shared,
    Way::Shared,
    Way::Own(Service::Uc),
    Way::Own(Service::Uc),
    Way::Own(Service::Uc),
    Way::Own(Service::Ud),
    Way::Own(Service::Ud),
    Way::Extended,
    Way::Extended,
];

/// Offsets in a side's memory.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The first byte.
    pub start: usize,
    /// Words of each lane that atomics work on, two of each, and one that those of all lanes add to.
    pub words: usize,
    /// The source of READs: [`LARGEST`] bytes that never change.
    pub readable: usize,
    /// For each lane, where what it sends or reads lies: [`SLOTS`] buffers.
    pub sources: usize,
    /// For each lane, where its peer writes: [`SLOTS`] buffers.
    pub targets: usize,
    /// For each lane, its receives. Lanes that share theirs have the same.
    pub inboxes: [usize; LANES.len()],
    /// Bytes of all.
    pub len: usize,
}

impl Layout {
    /// The layout of a side whose memory begins at `start`.
    pub fn new(start: usize) -> Self {
        let mut end = start;
        let mut take = |len: usize| {
            let at = end;
            end += len.next_multiple_of(4096);
            at
        };
        let buffers = LANES.len() * SLOTS as usize * ROOM;
        let words = take((2 * LANES.len() + 1) * 8);
        let (readable, sources, targets) = (take(LARGEST), take(buffers), take(buffers));
        let mut inboxes = [0; LANES.len()];
        for (lane, way) in LANES.into_iter().enumerate() {
            let alike =
                LANES.iter().position(|other| *other == way && matches!(way, Way::Shared | Way::Extended));
            inboxes[lane] = match alike {
                Some(first) if first < lane => inboxes[first],
                _ => take(way.receives() * way.room()),
            };
        }
        Self { start, words, readable, sources, targets, inboxes, len: end - start }
    }

    /// The word of what is readable that a READ begins with.
    pub fn read_from(request: &Request) -> usize {
        request.draw as usize % ((LARGEST - request.len) / 8 + 1)
    }

    /// Where request `n` of `lane` has its data, or the answer to it.
    pub fn source(&self, lane: usize, n: u64) -> usize {
        self.sources + slot(lane, n)
    }

    /// Where request `n` of a peer's `lane` writes.
    pub fn target(&self, lane: usize, n: u64) -> usize {
        self.targets + slot(lane, n)
    }

    /// Receive `slot` of `lane`.
    pub fn inbox(&self, lane: usize, slot: usize) -> usize {
        self.inboxes[lane] + slot * LANES[lane].room()
    }

    /// The word that the FetchAdds of `lane` count in, and the one its CmpSwaps do.
    pub fn word(&self, lane: usize, which: usize) -> usize {
        self.words + 8 * (2 * lane + which)
    }

    /// The word that all lanes add to.
    pub fn sum(&self) -> usize {
        self.words + 16 * LANES.len()
    }
}

fn slot(lane: usize, n: u64) -> usize {
    (lane * SLOTS as usize + (n % SLOTS) as usize) * ROOM
}
