//! The memory layout of a side, the same on both.

use super::plan::{DATAGRAM, LARGEST, Request, SLOTS};
use driver::Service;

/// Bytes of a buffer for a message of any size.
pub const ROOM: usize = LARGEST.next_multiple_of(4096);
/// Bytes of the GRH before each datagram.
pub const GRH: usize = 40;
/// Bytes of a buffer for a datagram with its GRH.
pub const DATAGRAM_ROOM: usize = GRH + DATAGRAM;

/// The kind of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A service in which each queue pair has its own receives.
    Own(Service),
    /// RC with shared receives.
    Shared,
    /// XRC.
    Extended,
}

impl Way {
    /// Returns the service of the sender.
    pub fn service(self) -> Service {
        match self {
            Self::Own(service) => service,
            Self::Shared => Service::Rc,
            Self::Extended => Service::XrcIni,
        }
    }

    /// Returns the number of receives of a queue pair, or of all that share them.
    pub fn receives(self) -> usize {
        match self {
            Self::Own(Service::Ud) => 32,
            Self::Own(_) => 4,
            Self::Shared | Self::Extended => 8,
        }
    }

    /// Returns the size of a receive buffer in bytes.
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
    /// Words for atomics: two for each lane, and one that all lanes add to.
    pub words: usize,
    /// The source of READs: [`LARGEST`] bytes that never change.
    pub readable: usize,
    /// For each lane, [`SLOTS`] buffers for data that it sends or reads.
    pub sources: usize,
    /// For each lane, [`SLOTS`] buffers that its peer writes to.
    pub targets: usize,
    /// For each lane, its receives. Lanes that share receives have the same offset.
    pub inboxes: [usize; LANES.len()],
    /// Total size in bytes.
    pub len: usize,
}

impl Layout {
    /// Returns the layout of a side with memory starting at `start`.
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

    /// Returns the word of the readable data at which a READ begins.
    pub fn read_from(request: &Request) -> usize {
        request.draw as usize % ((LARGEST - request.len) / 8 + 1)
    }

    /// Returns the offset of the data or the result of request `n` of `lane`.
    pub fn source(&self, lane: usize, n: u64) -> usize {
        self.sources + slot(lane, n)
    }

    /// Returns the offset that request `n` of a peer's `lane` writes to.
    pub fn target(&self, lane: usize, n: u64) -> usize {
        self.targets + slot(lane, n)
    }

    /// Returns the offset of receive `slot` of `lane`.
    pub fn inbox(&self, lane: usize, slot: usize) -> usize {
        self.inboxes[lane] + slot * LANES[lane].room()
    }

    /// Returns the offset of the word for FetchAdds of `lane`, or of the one for its CmpSwaps.
    pub fn word(&self, lane: usize, which: usize) -> usize {
        self.words + 8 * (2 * lane + which)
    }

    /// Returns the offset of the word that all lanes add to.
    pub fn sum(&self) -> usize {
        self.words + 16 * LANES.len()
    }
}

fn slot(lane: usize, n: u64) -> usize {
    (lane * SLOTS as usize + (n % SLOTS) as usize) * ROOM
}
