//! The wire between the functions: it captures frames, and can lose, duplicate, corrupt, delay and reorder them by plan.

use devmodel::engine::{Link, Schedule, Verdict};
use hwspec::{
    handle::{Psn, Qpn},
    wire::{BthOpcode, Headers, Icrc, Operation, ParseError, Syndrome, VCRC_SIZE, lrh},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A fault that happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// The byte at this offset after the headers (or the last byte, if that is too far) is inverted.
    Corrupt(usize),
    /// It arrives this much later, in picoseconds.
    Delay(u64),
    /// It arrives after this many frames that enter the wire after it.
    Behind(u32),
    /// Its P_Key is replaced, and the ICRC is updated.
    Pkey(u16),
}

/// Selects the frames of a rule; `None` matches any.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Filter {
    /// Sending function.
    pub from: Option<u8>,
    /// BTH opcode.
    pub opcode: Option<BthOpcode>,
    /// Operation.
    pub operation: Option<Operation>,
    /// PSN.
    pub psn: Option<u32>,
}

impl Filter {
    /// Frames sent by function `fid`.
    pub fn from(fid: u8) -> Self {
        Self { from: Some(fid), ..Self::default() }
    }
    /// Frames with this opcode.
    pub fn opcode(opcode: BthOpcode) -> Self {
        Self { opcode: Some(opcode), ..Self::default() }
    }
    /// Frames of this operation.
    pub fn operation(operation: Operation) -> Self {
        Self { operation: Some(operation), ..Self::default() }
    }
    /// Restricts the filter to this PSN.
    #[must_use]
    pub fn psn(mut self, psn: u32) -> Self {
        self.psn = Some(psn);
        self
    }

    fn wants(&self, from: u8, h: &Headers<'_>) -> bool {
        let bth = h.bth();
        self.from.is_none_or(|f| f == from)
            && self.opcode.is_none_or(|o| o == bth.opcode())
            && self.operation.is_none_or(|o| Some(o) == bth.opcode().operation())
            && self.psn.is_none_or(|p| p == bth.psn().get())
    }
}

/// A fault for some of the frames that a filter selects.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    filter: Filter,
    skip: u32,
    times: u32,
    fault: Fault,
}

/// Probabilities of faults, in parts of 10,000 per frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chaos {
    /// State of the generator, nonzero.
    pub seed: u64,
    /// Lost.
    pub drop: u32,
    /// Duplicated.
    pub duplicate: u32,
    /// Delayed until after one to eight later frames.
    pub reorder: u32,
    /// Corrupted.
    pub corrupt: u32,
    /// Delayed by up to 100 us.
    pub delay: u32,
}

impl Chaos {
    /// Returns the next random number (xorshift64*).
    pub fn draw(&mut self) -> u64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fault(&mut self) -> Option<Fault> {
        let mut roll = (self.draw() >> 33) as u32 % 10_000;
        for (chance, kind) in
            [(self.drop, 0), (self.duplicate, 1), (self.reorder, 2), (self.corrupt, 3), (self.delay, 4)]
        {
            if roll < chance {
                let r = self.draw() >> 33;
                return Some(match kind {
                    0 => Fault::Drop,
                    1 => Fault::Duplicate,
                    2 => Fault::Behind(1 + r as u32 % 8),
                    3 => Fault::Corrupt(r as usize % 4096),
                    _ => Fault::Delay(r % 100_000_000),
                });
            }
            roll -= chance;
        }
        None
    }
}

/// A frame as it entered the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// Time in picoseconds.
    pub at: u64,
    /// The function that sent it.
    pub from: u8,
    /// The bytes from Ethernet to ICRC.
    pub bytes: Vec<u8>,
}

impl Captured {
    /// Returns its headers, which all frames of the model have.
    pub fn headers(&self) -> Headers<'_> {
        parse(&self.bytes).expect("a RoCEv2 or InfiniBand frame")
    }
    /// BTH opcode.
    pub fn opcode(&self) -> BthOpcode {
        self.headers().bth().opcode()
    }
    /// PSN.
    pub fn psn(&self) -> u32 {
        self.headers().bth().psn().get()
    }
    /// Destination QP.
    pub fn dest_qp(&self) -> Qpn {
        self.headers().bth().dest_qp()
    }
    /// AETH syndrome, if there is an AETH.
    pub fn syndrome(&self) -> Option<Syndrome> {
        self.headers().aeth().map(|a| a.syndrome())
    }
    /// AETH MSN, if there is an AETH.
    pub fn msn(&self) -> Option<u32> {
        self.headers().aeth().map(|a| Psn::get(a.msn()))
    }
    /// Payload without padding.
    pub fn payload(&self) -> &[u8] {
        self.headers().payload().expect("a pad count that fits")
    }
}

/// State of the wire.
#[derive(Clone, Default)]
pub struct Wire {
    /// Logical time, maintained by the bed.
    pub now: u64,
    /// All frames that entered, in order.
    pub captured: Vec<Captured>,
    /// Frames to MACs that belong to no function of the adapter, in order.
    pub left: Vec<Vec<u8>>,
    /// Random faults.
    pub chaos: Option<Chaos>,
    /// Does not keep frames, for long runs.
    pub forgetful: bool,
    /// Number of frames that entered.
    pub frames: u64,
    rules: Vec<Rule>,
    /// Delayed frames.
    late: Schedule<Vec<u8>>,
    /// Frames held back, and the number of others that must enter first.
    behind: Vec<(u32, Vec<u8>)>,
}

impl Wire {
    /// Applies `fault` to the next `times` frames that `filter` selects, after skipping `skip`.
    pub fn plan(&mut self, filter: Filter, skip: u32, times: u32, fault: Fault) {
        self.rules.push(Rule { filter, skip, times, fault });
    }

    /// Clears the plan.
    pub fn heal(&mut self) {
        self.rules.clear();
        self.chaos = None;
    }

    fn fault(&mut self, from: u8, frame: &[u8]) -> Option<Fault> {
        let h = parse(frame).ok()?;
        for rule in self.rules.iter_mut().filter(|r| r.filter.wants(from, &h)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 {
                rule.times -= 1;
                return Some(rule.fault);
            }
        }
        self.chaos.as_mut()?.fault()
    }

    /// Returns the arrival time of the next delayed frame. Frames held back behind others that never come are included.
    pub fn next_arrival(&self) -> Option<u64> {
        self.late.peek().map(|(at, _)| at)
    }

    /// Returns a delayed frame that is due.
    pub fn take_late(&mut self) -> Option<Vec<u8>> {
        self.late.take_by(self.now).map(|(_, frame)| frame)
    }

    /// Returns a frame held back, released because nothing else moves.
    pub fn take_kept(&mut self) -> Option<Vec<u8>> {
        (!self.behind.is_empty()).then(|| self.behind.remove(0).1)
    }

    fn enter(&mut self, from: u8, frame: &mut [u8], more: &mut Vec<Vec<u8>>) -> Verdict {
        self.frames += 1;
        let fault = self.fault(from, frame);
        if !self.forgetful {
            self.captured.push(Captured { at: self.now, from, bytes: frame.to_vec() });
        }
        // Frames that waited for this one follow it.
        for (left, _) in &mut self.behind {
            *left = left.saturating_sub(1);
        }
        while let Some(i) = self.behind.iter().position(|(left, _)| *left == 0) {
            more.push(self.behind.remove(i).1);
        }
        match fault {
            None => Verdict::Deliver,
            Some(Fault::Drop) => Verdict::Drop,
            Some(Fault::Duplicate) => Verdict::Duplicate,
            Some(Fault::Corrupt(at)) => {
                let start = parse(frame).map_or(0, |h| h.payload_start());
                let at = (start + at).min(frame.len() - 1);
                frame[at] ^= 0xff;
                Verdict::Deliver
            }
            Some(Fault::Delay(by)) => {
                self.late.at(self.now + by, frame.to_vec());
                Verdict::Drop
            }
            Some(Fault::Behind(n)) => {
                self.behind.push((n, frame.to_vec()));
                Verdict::Drop
            }
            Some(Fault::Pkey(pkey)) => {
                rewrite(frame, |bth| {
                    bth.set().pkey(pkey);
                });
                Verdict::Deliver
            }
        }
    }
}

/// Parses the headers of a frame: Ethernet, or after an LRH.
pub fn parse(frame: &[u8]) -> Result<Headers<'_>, ParseError> {
    Headers::parse(frame).or_else(|wrong| Headers::parse_route(frame, frame.len()).map_err(|_| wrong))
}

/// Changes the BTH of a frame and updates its ICRC.
pub fn rewrite(frame: &mut [u8], change: impl FnOnce(&mut hwspec::wire::Bth)) {
    let Ok(h) = parse(frame) else { return };
    let at = h.payload_start() - h.bth().opcode().ext_len() - hwspec::wire::Bth::SIZE;
    let mut bth = h.bth();
    change(&mut bth);
    frame[at..at + hwspec::wire::Bth::SIZE].copy_from_slice(bth.as_bytes());
    reseal(frame);
}

/// Writes the correct ICRC to the last four bytes of an untagged frame; after an LRH, ICRC and VCRC.
pub fn reseal(frame: &mut [u8]) {
    if Headers::parse(frame).is_err() && Headers::parse_route(frame, frame.len()).is_ok() {
        let vcrc = frame.len() - VCRC_SIZE;
        let end = vcrc - hwspec::wire::ICRC_SIZE;
        let icrc = Icrc::of_route(&frame[..end]).finish();
        frame[end..vcrc].copy_from_slice(&icrc);
        let sum = lrh::vcrc(&frame[..vcrc]);
        frame[vcrc..].copy_from_slice(&sum);
        return;
    }
    let end = frame.len() - hwspec::wire::ICRC_SIZE;
    let icrc = Icrc::new(&frame[hwspec::wire::Ethernet::SIZE..end]).finish();
    frame[end..].copy_from_slice(&icrc);
}

/// The wire, shared by the bed and the runner.
#[derive(Clone, Default)]
pub struct SharedWire(Arc<Mutex<Wire>>);

impl SharedWire {
    /// Creates a wire with the given state.
    pub fn new(wire: Wire) -> Self {
        Self(Arc::new(Mutex::new(wire)))
    }
    /// Locks the state.
    pub fn get(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for SharedWire {
    fn transmit(&mut self, from: u8, frame: &mut Vec<u8>, more: &mut Vec<Vec<u8>>) -> Verdict {
        self.get().enter(from, frame, more)
    }
    fn leave(&mut self, frame: &[u8]) -> bool {
        self.get().left.push(frame.to_vec());
        true
    }
}
