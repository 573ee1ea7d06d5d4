//! State of the packets that one end sends to a queue pair of the other.

use super::Rule;
use hwspec::wire::{BthOpcode, Headers, Operation};
use std::collections::BTreeMap;

/// Distance from `b` to `a` in 24-bit sequence number arithmetic.
pub(super) fn ahead(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

fn behind(psn: u32, by: u32) -> u32 {
    psn.wrapping_add(by) & 0xff_ffff
}

/// Path MTUs.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// PSN distance for which requests are remembered.
const REMEMBERED: i32 = 1 << 16;

/// A message in progress, with the remaining bytes of a WRITE if known.
#[derive(Clone, Copy)]
struct Message {
    operation: Operation,
    left: Option<u64>,
}

/// A READ request.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub bytes: u32,
}

/// Requests from one end to a queue pair.
#[derive(Default)]
pub(super) struct Requests {
    /// The PSN after the last request, or after the first packet of a READ with a still unknown number of packets.
    next: Option<u32>,
    /// Bytes of the last READ while its number of packets, which depends on the MTU, is unknown.
    open_read: Option<u32>,
    message: Option<Message>,
    pub mtu: Option<u32>,
    /// READs by PSN.
    pub reads: BTreeMap<u32, Read>,
    /// Transmissions of each PSN since the last progress.
    sent: BTreeMap<u32, u32>,
    /// The oldest unacknowledged PSN.
    una: Option<u32>,
    /// This PSN must not be retransmitted before this time.
    rnr: Option<(u32, u64)>,
    /// PSN of a NAK that has not been followed by a retransmission yet.
    pub asked: Option<u32>,
}

/// A broken rule: expected and found.
pub(super) type Broken = (Rule, String, String);

impl Requests {
    /// True if `psn` belongs to a request that was sent.
    pub fn has_sent(&self, psn: u32) -> bool {
        // The packets of a READ that cannot be counted yet are ahead of `next`.
        let most = if self.open_read.is_some() { REMEMBERED } else { 0 };
        self.next.is_some_and(|next| ahead(psn, next) < most)
    }

    /// True for PSNs from the oldest unacknowledged to the last one.
    pub fn is_under_way(&self, psn: u32) -> bool {
        self.una.is_some_and(|una| ahead(psn, una) >= 0) && self.has_sent(psn)
    }

    /// Checks a request.
    pub fn request(&mut self, at: u64, headers: &Headers<'_>, lossy: bool, out: &mut Vec<Broken>) {
        let bth = headers.bth();
        let (opcode, psn) = (bth.opcode(), bth.psn().get());
        let bytes = headers.payload_range().map_or(0, |range| range.len() as u32);
        self.una.get_or_insert(psn);
        let is_new = match self.next {
            None => true,
            Some(next) => self.is_next(next, psn) || ahead(psn, next) > 0,
        };
        let gap = self.next.filter(|next| ahead(psn, *next) > 0 && !self.is_next(*next, psn) && !lossy);
        if let Some(next) = gap {
            out.push((Rule::Sequence, format!("PSN {next} or one before"), psn.to_string()));
            // The missing frames may have ended the message and begun another.
            self.message = None;
        }
        self.again(at, psn, out);
        if self.asked.is_some_and(|asked| ahead(asked, psn) >= 0) {
            self.asked = None;
        }
        self.lengths(opcode, bytes, out);
        if is_new {
            self.follow(headers, opcode, bytes, lossy || gap.is_some(), out);
            self.next = Some(behind(psn, 1));
            self.open_read = None;
        }
        if opcode.operation() == Some(Operation::ReadRequest) {
            let bytes = headers.reth().map_or(0, |reth| reth.dma_len());
            self.reads.insert(psn, Read { bytes });
            if is_new {
                match self.mtu {
                    Some(mtu) => self.next = Some(behind(psn, bytes.div_ceil(mtu).max(1))),
                    None => self.open_read = Some(bytes),
                }
            }
        }
    }

    /// True if `psn` is the expected next one.
    fn is_next(&mut self, next: u32, psn: u32) -> bool {
        let Some(bytes) = self.open_read else { return psn == next };
        // `next` is the PSN after the READ's first packet.
        let fits = |mtu: &u32| behind(next, bytes.div_ceil(*mtu).max(1) - 1) == psn;
        let known = MTUS.into_iter().filter(fits).collect::<Vec<_>>();
        if let [mtu] = known[..] {
            self.mtu = Some(mtu);
        }
        !known.is_empty()
    }

    /// Checks that a retransmission is neither too early nor one too many.
    fn again(&mut self, at: u64, psn: u32, out: &mut Vec<Broken>) {
        if let Some((waits, until)) = self.rnr.filter(|(waits, _)| ahead(psn, *waits) >= 0) {
            if at < until {
                out.push((
                    Rule::RnrWait,
                    format!("PSN {waits} again from {until} ns on"),
                    format!("PSN {psn} at {at} ns"),
                ));
            }
            self.rnr = None;
        }
        let times = self.sent.get(&psn).map_or(0, |times| *times) + 1;
        if times > 8 {
            out.push((
                Rule::Retries,
                "a request at most eight times without progress".into(),
                format!("PSN {psn} for the {times}th time"),
            ));
        }
        self.sent.insert(psn, times);
    }

    fn lengths(&mut self, opcode: BthOpcode, bytes: u32, out: &mut Vec<Broken>) {
        let wrong = |expected: String| (Rule::Length, expected, format!("{bytes} bytes"));
        if !opcode.has_payload() {
            return;
        }
        let whole = opcode.is_middle() || opcode.is_first() && !opcode.is_only();
        match self.mtu {
            None if whole && MTUS.contains(&bytes) => self.mtu = Some(bytes),
            None if whole => out.push(wrong("a path MTU of 256, 512, 1024, 2048 or 4096".into())),
            Some(mtu) if whole && bytes != mtu => out.push(wrong(format!("{mtu} bytes, the path MTU"))),
            Some(mtu) if bytes > mtu => out.push(wrong(format!("at most {mtu} bytes, the path MTU"))),
            _ => {}
        }
        if opcode.is_last() && !opcode.is_only() && bytes == 0 {
            out.push(wrong("a byte at least in the last packet of several".into()));
        }
    }

    /// Checks the order of FIRST, MIDDLE and LAST.
    fn follow(
        &mut self,
        headers: &Headers<'_>,
        opcode: BthOpcode,
        bytes: u32,
        lossy: bool,
        out: &mut Vec<Broken>,
    ) {
        let Some(operation) = opcode.operation() else { return };
        let begins = opcode.is_first()
            || matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd);
        match (self.message, begins) {
            (Some(message), true) if !lossy => {
                out.push((
                    Rule::Order,
                    format!("a MIDDLE or LAST of a {:?}", message.operation),
                    format!("{opcode:?}"),
                ));
            }
            (Some(message), false) if message.operation != operation && !lossy => {
                out.push((
                    Rule::Order,
                    format!("a MIDDLE or LAST of a {:?}", message.operation),
                    format!("{opcode:?}"),
                ));
            }
            // A capture may begin in the middle of a message.
            (None, false) if self.next.is_some() && !lossy => {
                out.push((Rule::Order, "a FIRST or ONLY".into(), format!("{opcode:?}")));
            }
            _ => {}
        }
        let left = match (begins, operation) {
            (true, Operation::Write) => headers.reth().map(|reth| u64::from(reth.dma_len())),
            (true, _) => None,
            (false, _) => self.message.and_then(|message| message.left),
        };
        let left = match left {
            Some(left) if u64::from(bytes) > left || opcode.is_last() && u64::from(bytes) != left => {
                if !lossy {
                    let expected = if opcode.is_last() { "" } else { "at most " };
                    out.push((
                        Rule::WriteLength,
                        format!("{expected}{left} bytes, the rest of the WRITE"),
                        bytes.to_string(),
                    ));
                }
                None
            }
            left => left.map(|left| left - u64::from(bytes)),
        };
        let single =
            matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd);
        self.message = (!opcode.is_last() && !single).then_some(Message { operation, left });
    }

    /// Marks everything up to `psn` as acknowledged.
    pub fn acknowledged(&mut self, psn: u32) {
        if self.una.is_none_or(|una| ahead(psn, una) >= 0) {
            self.una = Some(behind(psn, 1));
            // READs are remembered for a while, because they may be retransmitted.
            self.sent.retain(|sent, _| ahead(*sent, psn) > 0);
            self.reads.retain(|at, _| ahead(psn, *at) < REMEMBERED);
        }
        self.sent.values_mut().for_each(|times| *times = 1.min(*times));
    }

    /// Records an RNR NAK for `psn`, received at `at` with a delay of `wait`, in nanoseconds.
    pub fn not_ready(&mut self, psn: u32, at: u64, wait: u64) {
        self.rnr = Some((psn, at + wait));
        self.sent.values_mut().for_each(|times| *times = 0);
    }
}
