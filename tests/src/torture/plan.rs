//! The requests, derived from a seed: both sides know every request of the other and every byte of it.

use crate::end::Words;
use driver::Service;

/// Maximum size of a message in bytes.
pub const LARGEST: usize = 100_000;
/// Maximum size of a datagram in bytes: the path MTU.
pub const DATAGRAM: usize = 4096;
/// Maximum number of bytes of an inline message.
pub const INLINE: usize = 64;
/// Maximum number of outstanding requests of a lane; request `n` has buffer `n % SLOTS` on both sides.
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
    /// Returns true if it consumes a receive of the peer.
    pub fn receives(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// Returns true if it carries immediate data.
    pub fn has_immediate(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Returns true if it writes to an address of the peer.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm)
    }

    /// Returns true if it has a result that must be checked.
    pub fn answers(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CmpSwap)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub kind: Kind,
    /// Number of bytes; 8 for atomics.
    pub len: usize,
    /// The data is inline in the work request.
    pub inline: bool,
    /// It generates a completion.
    pub signaled: bool,
    /// The data is in two pieces.
    pub halved: bool,
    /// A random number for the remaining choices: where a READ begins, the operand of an atomic.
    pub draw: u64,
}

/// All requests of one lane, from one queue pair to another.
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
    /// Returns the plan of lane `lane` for runs of `seed`.
    pub fn new(seed: u64, lane: u8, service: Service) -> Self {
        Self { lane, base: mix(seed.wrapping_add(u64::from(lane) << 56 | 0x5eed)), service }
    }

    /// Returns request `n`.
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
        // Prefers small sizes, and sizes near a packet boundary.
        let len = match pick(12) {
            0 => 0,
            1..=3 => pick(INLINE + 1),
            4 | 5 => pick(1024),
            6 | 7 => [255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 8192][pick(10)],
            8..=10 => pick(16 << 10),
            _ => pick(LARGEST + 1),
        };
        let mut len = len.min(most);
        // If messages may be missing, they must carry their numbers.
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

    /// Returns the immediate data of request `n`.
    pub fn immediate(&self, n: u64) -> u32 {
        u32::from(self.lane) << 24 | n as u32 & 0xff_ffff
    }

    /// Returns the number of the request that immediate data belongs to.
    pub fn number_of(&self, immediate: u32) -> Result<u64, String> {
        match immediate >> 24 == u32::from(self.lane) {
            true => Ok(u64::from(immediate & 0xff_ffff)),
            false => Err(format!("expected immediate data of lane {}, found {immediate:#x}", self.lane)),
        }
    }

    /// Returns word `k` of request `n`: the request number in the upper half, and a value unique to this word below.
    fn word(&self, n: u64, k: u64) -> u64 {
        n << 32 | mix(self.base ^ n << 32 ^ k) & 0xffff_ffff
    }

    /// Returns the number of the request with `word` as its first word.
    pub fn number_in(word: u64) -> u64 {
        word >> 32
    }

    /// Writes the data of request `n` to `at` (a multiple of 8): `len` bytes, and the rest of the last word.
    pub fn fill(&self, words: &Words, at: usize, n: u64, len: usize) {
        for k in 0..len.div_ceil(8) {
            words.set_word(at + 8 * k, self.word(n, k as u64));
        }
    }

    /// Checks that exactly the data of request `n` is at `at`: `len` bytes, from word `from` of the whole on.
    pub fn check(&self, words: &Words, at: usize, n: u64, from: usize, len: usize) -> Result<(), String> {
        for k in 0..len.div_ceil(8) {
            let (found, expected) = (words.word(at + 8 * k), self.word(n, (from + k) as u64));
            if differ(found, expected, len - 8 * k) {
                return Err(format!("byte {} of {len}: expected {expected:#x}, found {found:#x}", 8 * k));
            }
        }
        Ok(())
    }

    /// Returns true if the data at `at` is that of WRITE `n`, or of later requests with the same buffer; if `any`, earlier ones are
    /// accepted as well.
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
            // Most words come from one request.
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

    /// Returns true if `found`, word `k` of a buffer, begins with bytes of one WRITE and ends with bytes of another a few before or after
    /// it, both between request `first` and a few requests after `n`: a WRITE arrives while the word is read, and RDMA guarantees no order
    /// of the bytes of a message.
    fn is_torn(&self, found: u64, k: usize, first: u64, n: u64) -> bool {
        /// More than the number of consecutive WRITEs lost on an unreliable lane.
        const FEW: usize = 16;
        let writers: Vec<u64> = (first..n + (SLOTS << 10))
            .step_by(SLOTS as usize)
            .filter(|by| {
                let request = self.request(*by);
                request.kind.writes() && request.len > 8 * k
            })
            .map(|by| self.word(by, k as u64))
            .collect();
        let joins = |low: u64, high: u64| {
            (1..8).any(|bytes| {
                let of_low = u64::MAX >> (64 - 8 * bytes);
                found == low & of_low | high & !of_low
            })
        };
        let near = |i: usize| &writers[i.saturating_sub(FEW)..i];
        writers
            .iter()
            .enumerate()
            .any(|(i, new)| near(i).iter().any(|old| joins(*new, *old) || joins(*old, *new)))
    }

    /// Returns true if the first `left` bytes of `found`, word `k` of a buffer, come from WRITEs between request `first` and a few requests
    /// after `n`, at least one of which ends within the word and leaves the rest to earlier ones. Each contributes all bytes from the end
    /// of the one before to its own end, or to the middle of the word while it is being written.
    fn is_mixed(&self, found: u64, k: usize, first: u64, n: u64, left: usize) -> bool {
        let left = left.min(8);
        let writers: Vec<([u8; 8], usize)> = (first..n + (SLOTS << 10))
            .step_by(SLOTS as usize)
            .filter_map(|by| {
                let request = self.request(by);
                let writes = request.kind.writes() && request.len > 8 * k;
                writes.then(|| (self.word(by, k as u64).to_ne_bytes(), (request.len - 8 * k).min(8)))
            })
            .collect();
        let found = found.to_ne_bytes();
        // The offset up to which each byte comes from some writer.
        let mut reached = [false; 9];
        reached[0] = true;
        for from in 0..left {
            if !reached[from] {
                continue;
            }
            for (bytes, end) in &writers {
                for to in [*end, 4.min(*end)] {
                    let to = to.min(left);
                    if to > from && bytes[from..to] == found[from..to] {
                        reached[to] = true;
                    }
                }
            }
        }
        reached[left] && writers.iter().any(|(_, end)| *end < 8)
    }
}

/// Returns true if the first `left` bytes of two words in memory differ.
fn differ(a: u64, b: u64, left: usize) -> bool {
    let count = left.min(8);
    a.to_ne_bytes()[..count] != b.to_ne_bytes()[..count]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;
    /// Requests that share a buffer, one after the other.
    fn sharers(plan: &Plan) -> Vec<(u64, usize)> {
        let writes = |n: &u64| {
            let request = plan.request(*n);
            request.kind.writes() && (64..2000).contains(&request.len)
        };
        (3..).step_by(SLOTS as usize).filter(writes).map(|n| (n, plan.request(n).len)).take(4).collect()
    }

    #[test]
    fn a_damaged_byte_is_found_wherever_it_is() {
        let plan = Plan::new(SEED, 1, Service::Uc);
        let (n, len) = sharers(&plan)[0];
        let words = Words::new(2048);
        plan.fill(&words, 0, n, len);
        assert_eq!(plan.check(&words, 0, n, 0, len), Ok(()));
        assert_eq!(plan.check_written(&words, 0, n, len, false), Ok(()));
        let mut missed = 0;
        for bit in 0..8 * len {
            let (at, one) = (bit / 64 * 8, 1 << (bit % 64));
            words.set_word(at, words.word(at) ^ one);
            assert!(plan.check(&words, 0, n, 0, len).is_err(), "bit {bit} of what arrived");
            missed += usize::from(plan.check_written(&words, 0, n, len, false).is_ok());
            words.set_word(at, words.word(at) ^ one);
        }
        // Written data may be in the process of being overwritten: a number may become that of another request of the buffer, and a byte
        // that of a request which ended there.
        println!("{missed} of {} damaged bits of {len} bytes written are not seen", 8 * len);
        assert!(missed < 8 * len / 50, "{missed}");
    }

    #[test]
    fn a_word_between_two_requests_is_of_both_and_of_no_third() {
        let plan = Plan::new(SEED, 1, Service::Uc);
        let all = sharers(&plan);
        let ((first, a), (second, b)) = (all[0], all[1]);
        let len = a.min(b) & !7;
        let words = Words::new(len);
        plan.fill(&words, 0, first, len);
        let (old, new) = (plan.word(first, 2), plan.word(second, 2));
        for (low, high) in [(old, new), (new, old)] {
            for bytes in 1..8 {
                let of_low = u64::MAX >> (64 - 8 * bytes);
                words.set_word(16, low & of_low | high & !of_low);
                let found = plan.check_written(&words, 0, first, len, false);
                assert_eq!(found, Ok(()), "its first {bytes} bytes are of another request than the rest");
            }
        }
        words.set_word(16, new & !0xffff_ffff | plan.word(second, 3) & 0xffff_ffff);
        assert!(
            plan.check_written(&words, 0, first, len, false).is_err(),
            "its lower half is another word's"
        );
        words.set_word(16, plan.word(second + 1, 2));
        assert!(plan.check_written(&words, 0, first, len, false).is_err(), "the word is of another buffer");
    }
}
