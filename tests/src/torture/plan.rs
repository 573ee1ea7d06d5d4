//! What is sent, drawn from a seed: both sides know every request of the other and every byte of it.

use crate::end::Words;
use driver::Service;

/// Bytes of the largest message.
pub const LARGEST: usize = 100_000;
/// Bytes of the largest datagram: the path MTU.
pub const DATAGRAM: usize = 4096;
/// Bytes up to which messages may be sent inline.
pub const INLINE: usize = 64;
/// Requests of a lane under way; request `n` has buffer `n % SLOTS` on both sides.
pub const SLOTS: u64 = 4;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CmpSwap,
}

impl Kind {
    /// Whether it takes a receive of the peer's.
    pub fn receives(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Whether it carries immediate data.
    pub fn has_immediate(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Whether it writes to an address of the peer's.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm)
    }

    /// Whether it has a result that must be checked.
    pub fn answers(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CmpSwap)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub kind: Kind,
    /// Bytes that it moves; 8 for atomics.
    pub len: usize,
    /// Its data are in the work request.
    pub inline: bool,
    /// It reports its completion.
    pub signaled: bool,
    /// Its data are in two pieces.
    pub halved: bool,
    /// A number for what the request leaves open: where a READ begins, what an atomic adds.
    pub draw: u64,
}

/// All requests of one lane: what one queue pair sends to another.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    lane: u8,
    base: u64,
    service: Service,
}

/// SplitMix64's output function.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Plan {
    /// The plan of lane `lane` for runs of `seed`.
    pub fn new(seed: u64, lane: u8, service: Service) -> Self {
        Self { lane, base: mix(seed.wrapping_add(u64::from(lane) << 56 | 0x5eed)), service }
    }

    /// Request `n`.
    pub fn request(&self, n: u64) -> Request {
        use Kind::*;
        let mut draw = mix(self.base ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut pick = |among: usize| {
            draw = mix(draw.wrapping_add(0x9e37_79b9_7f4a_7c15));
            draw as usize % among
        };
        let kinds: &[Kind] = match self.service {
            Service::Ud => &[Send, SendImm],
            Service::Uc => &[Send, SendImm, Write, WriteImm],
            _ => &[Send, SendImm, Write, WriteImm, Read, FetchAdd, CmpSwap],
        };
        let mut kind = kinds[pick(kinds.len())];
        let most = if self.service == Service::Ud { DATAGRAM } else { LARGEST };
        // Small ones more often than large ones, and those next to a packet's end more often than chance has them.
        let len = match pick(12) {
            0 => 0,
            1..=3 => pick(INLINE + 1),
            4 | 5 => pick(1024),
            6 | 7 => [255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 8192][pick(10)],
            8..=10 => pick(16 << 10),
            _ => pick(LARGEST + 1),
        };
        let mut len = len.min(most);
        // Where messages may be missing their numbers must be in them.
        let counted = !matches!(self.service, Service::Uc | Service::Ud);
        if kind == Send && len < 8 && !counted {
            kind = SendImm;
        }
        if matches!(kind, FetchAdd | CmpSwap) {
            len = 8;
        }
        Request {
            kind,
            len,
            inline: len <= INLINE && !kind.answers() && pick(2) == 0,
            signaled: kind.answers() || n % 4 != 0,
            halved: len >= 2 && !kind.answers() && pick(3) == 0,
            draw: mix(draw),
        }
    }

    /// The immediate data of request `n`.
    pub fn immediate(&self, n: u64) -> u32 {
        u32::from(self.lane) << 24 | n as u32 & 0xff_ffff
    }

    /// The number of the request that immediate data are of.
    pub fn number_of(&self, immediate: u32) -> Result<u64, String> {
        match immediate >> 24 == u32::from(self.lane) {
            true => Ok(u64::from(immediate & 0xff_ffff)),
            false => Err(format!("expected immediate data of lane {}, found {immediate:#x}", self.lane)),
        }
    }

    /// Word `k` of request `n`: the number above, and below what only this word of it has.
    fn word(&self, n: u64, k: u64) -> u64 {
        n << 32 | mix(self.base ^ n << 32 ^ k) & 0xffff_ffff
    }

    /// The number of the request whose first word is `word`.
    pub fn number_in(word: u64) -> u64 {
        word >> 32
    }

    /// Lays the data of request `n` at `at` (a multiple of 8): `len` bytes, and up to the end of the last word.
    pub fn fill(&self, words: &Words, at: usize, n: u64, len: usize) {
        for k in 0..len.div_ceil(8) {
            words.set_word(at + 8 * k, self.word(n, k as u64));
        }
    }

    /// Whether exactly the data of request `n` are at `at`: of `len` bytes, from word `from` of the whole on.
    pub fn check(&self, words: &Words, at: usize, n: u64, from: usize, len: usize) -> Result<(), String> {
        for k in 0..len.div_ceil(8) {
            let (found, expected) = (words.word(at + 8 * k), self.word(n, (from + k) as u64));
            if differ(found, expected, len - 8 * k) {
                return Err(format!("byte {} of {len}: expected {expected:#x}, found {found:#x}", 8 * k));
            }
        }
        Ok(())
    }

    /// Whether the data at `at` are those of WRITE `n`, or of later requests that have the same buffer; where `any`, of
    /// earlier ones as well.
    pub fn check_written(
        &self,
        words: &Words,
        at: usize,
        n: u64,
        len: usize,
        any: bool,
    ) -> Result<(), String> {
        for k in 0..len.div_ceil(8) {
            let (found, left) = (words.word(at + 8 * k), len - 8 * k);
            // Most words are one request's.
            let by = Self::number_in(found);
            let sound =
                left >= 8 && (any || by >= n) && by % SLOTS == n % SLOTS && found == self.word(by, k as u64);
            let first = if any { n % SLOTS } else { n };
            let sound = sound || left >= 8 && self.is_torn(found, k, first, n);
            let sound = sound || self.is_mixed(found, k, first, n, left);
            if !sound {
                let expected = self.word(n, k as u64);
                return Err(format!(
                    "byte {} of {len}: expected {expected:#x} or a later request's, found {found:#x}",
                    8 * k
                ));
            }
        }
        Ok(())
    }

    /// Whether the halves of `found`, word `k` of a buffer, are of two WRITEs from request `first` to some way behind request
    /// `n`: one arrives while the word is read, and RDMA promises no order of the bytes of a message.
    fn is_torn(&self, found: u64, k: usize, first: u64, n: u64) -> bool {
        let mut writers = (first..n + (SLOTS << 10)).step_by(SLOTS as usize);
        let is_writer = |by: u64| {
            let request = self.request(by);
            request.kind.writes() && request.len > 8 * k
        };
        let by = Self::number_in(found);
        let in_range = by >= first && by < n + (SLOTS << 10) && by % SLOTS == n % SLOTS;
        in_range
            && is_writer(by)
            && writers.any(|other| self.word(other, k as u64) as u32 == found as u32 && is_writer(other))
    }

    /// Whether the first `left` bytes of `found`, word `k` of a buffer, are those of WRITEs from request `first` to some way
    /// behind request `n`, of which at least one ends within the word: it leaves the rest to those before it.
    fn is_mixed(&self, found: u64, k: usize, first: u64, n: u64, left: usize) -> bool {
        let writers: Vec<(u64, usize)> = (first..n + (SLOTS << 10))
            .step_by(SLOTS as usize)
            .filter_map(|by| {
                let request = self.request(by);
                (request.kind.writes() && request.len > 8 * k).then(|| (by, request.len - 8 * k))
            })
            .collect();
        let is_some_ones = |i: usize| {
            let is = |by: u64| self.word(by, k as u64).to_ne_bytes()[i] == found.to_ne_bytes()[i];
            writers.iter().any(|(by, reaches)| i < *reaches && is(*by))
        };
        writers.iter().any(|(_, reaches)| *reaches < 8) && (0..left.min(8)).all(is_some_ones)
    }
}

/// Whether the first `left` bytes of two words of memory differ, or all of them.
fn differ(a: u64, b: u64, left: usize) -> bool {
    let count = left.min(8);
    a.to_ne_bytes()[..count] != b.to_ne_bytes()[..count]
}
