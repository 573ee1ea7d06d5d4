//! Sorts frames by connection and checks each rule.

use super::{
    Breach, Rule,
    stream::{Broken, Requests, ahead},
};
use hwspec::wire::{
    BthOpcode, Headers, IpPair, NakCode, Operation, ParseError, ROCE_PORT, Syndrome, aeth::rnr_ns,
    bth::Transport, eth::ip_offset, ip::PROTO_UDP,
};
use std::collections::BTreeMap;

/// EtherType of RoCE v1 (annex A16).
const ROCE_V1: u16 = 0x8915;

/// True if a frame's IP and UDP headers, correct or not, identify it as RoCE v2.
fn is_roce(frame: &[u8]) -> bool {
    let ip = ip_offset(frame);
    let (protocol, udp) = match frame.get(ip).map(|first| first >> 4) {
        Some(4) => (frame.get(ip + 9), ip + 20),
        Some(6) => (frame.get(ip + 6), ip + 40),
        _ => return false,
    };
    let port = frame.get(udp + 2..udp + 4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    protocol == Some(&PROTO_UDP) && port == Some(ROCE_PORT)
}

/// Source address, destination address and destination queue pair.
type Key = ([u8; 16], [u8; 16], u32);

/// Frame counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All frames.
    pub frames: u64,
    /// Frames of reliable connections.
    pub checked: u64,
    /// Queue pairs that received packets.
    pub queue_pairs: u64,
    /// Frames not checked, because too little of them was captured or because they are RoCE v1.
    pub left_out: u64,
}

/// Responses from an address to a queue pair.
#[derive(Default)]
struct Answers {
    /// The request stream that they answer, once known.
    of: Option<Key>,
    msn: Option<u32>,
    /// The READ being answered: next PSN and remaining bytes.
    read: Option<(u32, u64)>,
}

/// Checks frames against the rules, as described in the [module](super).
#[derive(Default)]
pub struct Checker {
    requests: BTreeMap<Key, Requests>,
    answers: BTreeMap<Key, Answers>,
    lossy: bool,
    count: Count,
    breaches: Vec<Breach>,
}

impl Checker {
    /// Creates a checker that has seen no frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares that the capture may lack frames: rules that a gap would break are not checked.
    #[must_use]
    pub fn lossy(mut self) -> Self {
        self.lossy = true;
        self
    }

    /// Frame counts so far.
    pub fn count(&self) -> Count {
        Count { queue_pairs: (self.requests.len() + self.answers.len()) as u64, ..self.count }
    }

    /// Breaches of rules so far.
    pub fn breaches(&self) -> &[Breach] {
        &self.breaches
    }

    /// Checks the next frame, with its Ethernet header and without its FCS, captured at `at` nanoseconds. A frame other than
    /// RoCE v2 is only counted.
    pub fn frame(&mut self, at: u64, frame: &[u8]) {
        self.beginning(at, frame, frame.len());
    }

    /// Like [`frame`](Self::frame), for a frame of `whole` bytes that begins with `frame`. The missing bytes are not checked.
    pub fn beginning(&mut self, at: u64, frame: &[u8], whole: usize) {
        self.count.frames += 1;
        let headers = match Headers::parse_head(frame, whole) {
            Ok(headers) => headers,
            // Other traffic is ignored: hosts with checksum offload capture it without valid checksums.
            Err(ParseError::BadIpChecksum | ParseError::BadUdpLength) if is_roce(frame) => {
                return self.note(
                    at,
                    0,
                    vec![(Rule::Header, "IP and UDP headers that are right".into(), "others".into())],
                );
            }
            Err(ParseError::Truncated) if is_roce(frame) => return self.count.left_out += 1,
            Err(ParseError::NotIp(ROCE_V1)) => return self.count.left_out += 1,
            Err(_) => return,
        };
        let bth = headers.bth();
        let qp = bth.dest_qp().0;
        let mut broken: Vec<Broken> = Vec::new();
        if frame.len() >= whole && !headers.icrc_ok() {
            broken.push((Rule::Icrc, "the ICRC of what the frame says".into(), "another".into()));
            // The frame's bytes are not those that were sent.
            return self.note(at, qp, broken);
        }
        if bth.tver() != 0 {
            broken.push((Rule::Header, "transport version 0".into(), bth.tver().to_string()));
        }
        let Some(payload) = headers.payload_range() else {
            broken.push((Rule::Header, "no more padding than payload".into(), bth.pad_count().to_string()));
            return self.note(at, qp, broken);
        };
        let padded = headers.padded_range().len();
        if padded % 4 != 0 || padded - payload.len() > 3 {
            let found = format!("{} bytes and {} of padding", payload.len(), padded - payload.len());
            broken.push((Rule::Header, "payload and padding of a multiple of four bytes".into(), found));
        }
        let (from, to) = match headers.addresses() {
            IpPair::V4 { src, dst } => (mapped(src), mapped(dst)),
            IpPair::V6 { src, dst } => (src, dst),
        };
        let opcode = bth.opcode();
        if opcode == BthOpcode::Cnp {
            if !bth.becn() {
                broken.push((Rule::Notification, "BECN".into(), "none".into()));
            }
        } else if opcode.transport() == Transport::Rc {
            self.count.checked += 1;
            if !opcode.is_known() {
                broken.push((
                    Rule::Header,
                    "an opcode of the reliable connection".into(),
                    format!("{:#04x}", opcode.raw()),
                ));
            } else if opcode.is_response() {
                self.answer(at, (from, to, qp), &headers, &mut broken);
            } else {
                let lossy = self.lossy;
                self.requests.entry((from, to, qp)).or_default().request(at, &headers, lossy, &mut broken);
            }
        }
        self.note(at, qp, broken);
    }

    fn note(&mut self, at: u64, qp: u32, broken: Vec<Broken>) {
        let frame = self.count.frames;
        self.breaches.extend(broken.into_iter().map(|(rule, expected, found)| Breach {
            frame,
            at,
            rule,
            qp,
            expected,
            found,
        }));
    }

    /// Checks a response.
    fn answer(&mut self, at: u64, key: Key, headers: &Headers<'_>, broken: &mut Vec<Broken>) {
        let bth = headers.bth();
        let (opcode, psn) = (bth.opcode(), bth.psn().get());
        let (from, to, _) = key;
        let answers = self.answers.entry(key).or_default();
        if answers.of.is_none() {
            // No header names the sending queue pair: take the only one with a matching outstanding request.
            let first: Key = (to, from, 0);
            let last: Key = (to, from, u32::MAX);
            let mut found =
                self.requests.range(first..=last).filter(|(_, requests)| requests.is_under_way(psn));
            answers.of = found.next().map(|(key, _)| *key).filter(|_| found.next().is_none());
        }
        let aeth = headers.aeth();
        // Acknowledge packets only: a retransmitted READ response carries its original MSN.
        if let Some(aeth) = aeth.as_ref().filter(|_| opcode.operation() == Some(Operation::Ack)) {
            let msn = aeth.msn().get();
            if let Some(before) = answers.msn.filter(|before| ahead(msn, *before) < 0) {
                broken.push((Rule::Msn, format!("an MSN of {before} or more"), msn.to_string()));
            }
            answers.msn = Some(msn);
        }
        let Some(requests) = answers.of.and_then(|of| self.requests.get_mut(&of)) else { return };
        if !requests.has_sent(psn) && !self.lossy {
            broken.push((Rule::Acknowledge, "the PSN of something that was sent".into(), psn.to_string()));
            return;
        }
        if opcode.operation() == Some(Operation::ReadResponse) {
            let bytes = headers.payload_range().map_or(0, |range| range.len() as u64);
            read_answer(answers, requests, (psn, opcode, bytes), self.lossy, broken);
        }
        match aeth.map(|aeth| aeth.syndrome()) {
            Some(Syndrome::Ack(_)) => requests.acknowledged(psn),
            Some(Syndrome::RnrNak(code)) => {
                requests.acknowledged(psn.wrapping_sub(1) & 0xff_ffff);
                requests.not_ready(psn, at, rnr_ns(code));
            }
            Some(Syndrome::Nak(code)) => {
                requests.acknowledged(psn.wrapping_sub(1) & 0xff_ffff);
                if code == NakCode::PsnSequence {
                    if requests.asked == Some(psn) && !self.lossy {
                        let expected = format!("no NAK for PSN {psn} before that was sent again");
                        broken.push((Rule::NakOnce, expected, "a second one".into()));
                    }
                    requests.asked = Some(psn);
                }
            }
            _ => {}
        }
    }
}

/// Checks a packet of a READ response.
fn read_answer(
    answers: &mut Answers,
    requests: &mut Requests,
    (psn, opcode, bytes): (u32, BthOpcode, u64),
    lossy: bool,
    broken: &mut Vec<Broken>,
) {
    let mut wrong = |expected: String, found: String| {
        if !lossy {
            broken.push((Rule::ReadAnswer, expected, found));
        }
    };
    if opcode.is_first() {
        // A READ may have been retried from the middle on, which is a READ of its own.
        let Some(read) = requests.reads.get(&psn) else {
            answers.read = None;
            return wrong("the PSN of a READ".into(), format!("{opcode:?} with PSN {psn}"));
        };
        answers.read = Some((psn, read.bytes.into()));
    }
    let Some((next, left)) = answers.read else {
        return wrong("the FIRST or ONLY of a READ's answer".into(), format!("{opcode:?}"));
    };
    if psn != next {
        answers.read = None;
        return wrong(format!("PSN {next}"), psn.to_string());
    }
    let is_last = opcode.is_last();
    if bytes > left || is_last && bytes != left || !is_last && bytes == left {
        let expected = if is_last {
            format!("{left} bytes, the rest")
        } else {
            format!("less than {left} bytes, and more behind")
        };
        wrong(expected, format!("{opcode:?} of {bytes}"));
    }
    answers.read = (!is_last).then_some((psn.wrapping_add(1) & 0xff_ffff, left.saturating_sub(bytes)));
}

fn mapped(v4: [u8; 4]) -> [u8; 16] {
    hwspec::wire::ip::gid_of_v4(v4)
}
