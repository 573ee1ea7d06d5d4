//! The frames on the wire, and the consequences of each fault.

use super::super::sched::Ps;
use hwspec::wire::{BthOpcode, Syndrome};
use std::collections::HashSet;

/// A sent frame.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameLine {
    /// Time at which its last bit left, in picoseconds.
    pub at: Ps,
    /// Time at which its receiver processed it; `None` if it never did.
    pub arrived: Option<Ps>,
    /// Sending function; `None` if it came from outside the adapter.
    pub from: Option<u8>,
    /// Destination function; `None` for outside.
    pub to: Option<u8>,
    /// Its opcode.
    pub opcode: BthOpcode,
    /// Destination queue pair.
    pub qp: u32,
    /// Its packet sequence number.
    pub psn: u32,
    /// Syndrome of an acknowledgement.
    pub syndrome: Option<Syndrome>,
    /// Bytes of payload.
    pub bytes: u32,
    /// The faults applied to it, by index in the plan.
    pub faults: Vec<usize>,
}

/// The consequences of a fault applied to a frame, or of a NAK that no such fault explains.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// Index of the frame.
    pub frame: usize,
    /// Index of the fault in the plan.
    pub fault: Option<usize>,
    /// The first NAK from the receiver for this PSN or an earlier one: send time and syndrome.
    pub nak: Option<(Ps, Syndrome)>,
    /// Time at which the sender sent the same PSN again.
    pub again: Option<Ps>,
    /// Time at which an acknowledgement or response that covers it was sent.
    pub covered: Option<Ps>,
}

/// The frames of a run in the order in which they were generated, the first four million of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The frames.
    pub frames: Vec<FrameLine>,
}

/// Distance from `b` to `a` in 24-bit sequence number arithmetic.
fn ahead(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

impl Timeline {
    /// The consequences of each fault and each NAK, in the order of their frames. For faults of responses, and for NAKs, these
    /// are the requester's retransmissions.
    pub fn followed(&self) -> Vec<Followed> {
        let (mut all, mut explained) = (Vec::new(), HashSet::new());
        for (number, frame) in self.frames.iter().enumerate() {
            let is_nak = matches!(frame.syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_)));
            let mut faults: Vec<_> = frame.faults.iter().map(|fault| Some(*fault)).collect();
            if faults.is_empty() && is_nak && !explained.contains(&(frame.from, frame.at)) {
                faults.push(None);
            }
            for fault in faults {
                let followed = self.after(number, fault);
                explained.extend(followed.nak.map(|(at, _)| (frame.to, at)));
                all.push(followed);
            }
        }
        all
    }

    fn after(&self, number: usize, fault: Option<usize>) -> Followed {
        let frame = &self.frames[number];
        let mut followed = Followed { frame: number, fault, nak: None, again: None, covered: None };
        let answered = frame.opcode.is_response();
        for later in &self.frames[number + 1..] {
            // Connections are distinguished by their functions: a frame does not contain the queue pairs of both ends.
            let back = (later.from, later.to) == (frame.to, frame.from);
            let forth = (later.from, later.to) == (frame.from, frame.to);
            let same = forth && later.qp == frame.qp;
            let asks = if answered { back && !later.opcode.is_response() } else { same };
            if asks && followed.again.is_none() && ahead(frame.psn, later.psn) >= 0 {
                followed.again = Some(later.at);
            }
            let acknowledges = if answered { same } else { back };
            let Some(syndrome) = later.syndrome.filter(|_| acknowledges) else { continue };
            match syndrome {
                Syndrome::Ack(_) if ahead(later.psn, frame.psn) >= 0 => {
                    followed.covered = Some(later.at);
                    break;
                }
                Syndrome::Nak(_) | Syndrome::RnrNak(_)
                    if followed.nak.is_none() && ahead(frame.psn, later.psn) >= 0 =>
                {
                    followed.nak = Some((later.at, syndrome));
                }
                _ => {}
            }
        }
        followed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hwspec::wire::NakCode;

    fn line(at: Ps, from: u8, opcode: BthOpcode, psn: u32, syndrome: Option<Syndrome>) -> FrameLine {
        let (from, to, qp) = (Some(from), Some(3 - from), u32::from(from));
        FrameLine { at, arrived: None, from, to, opcode, qp, psn, syndrome, bytes: 0, faults: Vec::new() }
    }

    #[test]
    fn a_lost_packet_is_asked_for_sent_again_and_acknowledged() {
        let mut frames = vec![
            line(1, 1, BthOpcode::RcWriteFirst, 0xff_ffff, None),
            line(2, 1, BthOpcode::RcWriteMiddle, 0, None),
            line(3, 1, BthOpcode::RcWriteLast, 1, None),
            line(4, 2, BthOpcode::RcAck, 0, Some(Syndrome::Nak(NakCode::PsnSequence))),
            line(5, 1, BthOpcode::RcWriteMiddle, 0, None),
            line(6, 1, BthOpcode::RcWriteLast, 1, None),
            line(7, 2, BthOpcode::RcAck, 1, Some(Syndrome::Ack(31))),
        ];
        frames[1].faults.push(0);
        let followed = Timeline { frames }.followed();
        assert_eq!(followed.len(), 1);
        let one = &followed[0];
        assert_eq!((one.frame, one.again, one.covered), (1, Some(5), Some(7)));
        assert_eq!(one.nak, Some((4, Syndrome::Nak(NakCode::PsnSequence))));
    }

    #[test]
    fn a_receiver_that_was_not_ready_is_asked_again() {
        let frames = vec![
            line(1, 1, BthOpcode::RcSendOnly, 5, None),
            line(2, 2, BthOpcode::RcAck, 5, Some(Syndrome::RnrNak(12))),
            line(3, 1, BthOpcode::RcSendOnly, 6, None),
            line(4, 1, BthOpcode::RcSendOnly, 5, None),
            line(5, 2, BthOpcode::RcAck, 6, Some(Syndrome::Ack(31))),
        ];
        let expected = Followed { frame: 1, fault: None, nak: None, again: Some(4), covered: Some(5) };
        assert_eq!(Timeline { frames }.followed(), [expected]);
    }
}
