//! The model's frames keep the rules, and altered ones break them.

use super::*;
use crate::engine::{
    faults::{FaultPlan, FaultReport},
    sim::{Measure, Operation, Plan, Watch, watch},
    timing::TimingProfile,
};
use hwspec::{
    handle::Psn,
    layout::Layout,
    wire::{Bth, Headers, Icrc, NakCode, Syndrome},
};

type Frames = Vec<(u64, Vec<u8>)>;

/// The frames of a run of a perftest pattern, under `faults` if not empty.
fn frames(operation: Operation, measure: Measure, bytes: u32, faults: &str) -> Frames {
    let mut plan = Plan::new(operation, measure, TimingProfile::load("direct-x16").unwrap());
    (plan.bytes, plan.iters) = (bytes, 60);
    let mut frames = Vec::new();
    let mut take = |at: u64, whole: &[u8]| frames.push((at / 1000, whole.to_vec()));
    let mut found = FaultReport::default();
    let faults = (!faults.is_empty()).then(|| (FaultPlan::parse("plan", faults, 1).unwrap(), &mut found));
    watch(&plan, Watch { frames: Some(&mut take), faults, ..Watch::default() }).unwrap();
    frames
}

fn checked(frames: &[(u64, Vec<u8>)]) -> Checker {
    let mut checker = Checker::new();
    frames.iter().for_each(|(at, frame)| checker.frame(*at, frame));
    checker
}

/// The broken rules, without duplicates.
fn broken(frames: &[(u64, Vec<u8>)]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = checked(frames).breaches().iter().map(|breach| breach.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

/// Changes the bytes of a frame after its IP header and corrects its ICRC.
fn change(frame: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let bth = Headers::parse(frame).unwrap().bth_start();
    change(&mut frame[bth..]);
    let end = frame.len() - 4;
    let icrc = Icrc::new(&frame[14..end]).finish();
    frame[end..].copy_from_slice(&icrc);
}

fn change_bth(frame: &mut [u8], with: impl FnOnce(&mut Bth)) {
    change(frame, |bytes| {
        let mut bth = Bth::read(bytes);
        with(&mut bth);
        bytes[..Bth::SIZE].copy_from_slice(bth.as_bytes());
    });
}

/// Index of the `nth` frame, from 0, for which `is` holds.
fn place(frames: &Frames, nth: usize, is: impl Fn(&Headers<'_>) -> bool) -> usize {
    let places = frames.iter().enumerate().filter(|(_, (_, frame))| is(&Headers::parse(frame).unwrap()));
    places.map(|(at, _)| at).nth(nth).unwrap()
}

#[test]
fn what_the_model_sends_keeps_all_rules() {
    for operation in [Operation::Send, Operation::Write, Operation::Read, Operation::FetchAdd] {
        for measure in [Measure::Latency, Measure::Bandwidth] {
            let sizes: &[u32] = if operation.is_atomic() { &[8] } else { &[1, 4096, 65537] };
            for bytes in sizes {
                let frames = frames(operation, measure, *bytes, "");
                let checker = checked(&frames);
                assert_eq!(checker.breaches(), [], "{operation:?} {measure:?} {bytes}");
                assert!(checker.count().checked >= 60, "{:?}", checker.count());
            }
        }
    }
}

#[test]
fn so_does_what_it_sends_when_frames_are_lost_late_or_doubled() {
    for (operation, bytes) in [(Operation::Write, 65536), (Operation::Read, 65536), (Operation::Send, 9000)] {
        for fault in [
            "do = \"drop\"\nchance = 0.02",
            "do = \"delay\"\nchance = 0.02\nfor_us = 3",
            "do = \"reorder\"\nchance = 0.02\nbehind = 2",
            "do = \"duplicate\"\nchance = 0.05",
            "do = \"mark\"\nchance = 0.05",
        ] {
            let frames = frames(operation, Measure::Bandwidth, bytes, &format!("[[fault]]\n{fault}\n"));
            assert_eq!(checked(&frames).breaches(), [], "{operation:?} {fault}");
        }
    }
}

#[test]
fn each_rule_that_is_broken_is_found() {
    let writes = frames(Operation::Write, Measure::Bandwidth, 9000, "");
    let reads = frames(Operation::Read, Measure::Bandwidth, 9000, "");
    let middle = place(&writes, 3, |h| h.bth().opcode().is_middle());
    let with = |frames: &Frames, at: usize, with: &dyn Fn(&mut [u8])| {
        let mut frames = frames.clone();
        with(&mut frames[at].1);
        broken(&frames)
    };
    assert_eq!(with(&writes, middle, &|frame| *frame.last_mut().unwrap() ^= 1), [Rule::Icrc, Rule::Sequence]);
    assert_eq!(
        with(&writes, middle, &|frame| change_bth(frame, |bth| _ = bth.set().tver(1))),
        [Rule::Header]
    );
    let mut gap = writes.clone();
    gap.remove(middle);
    // Only one breach: the missing frame may account for everything that later frames seem to lack.
    let found: Vec<_> = checked(&gap).breaches().iter().map(|breach| breach.rule).collect();
    assert_eq!(found, [Rule::Sequence]);
    // A checker of a lossy capture does not report gaps.
    let mut lossy = Checker::new().lossy();
    gap.iter().for_each(|(at, frame)| lossy.frame(*at, frame));
    assert_eq!(lossy.breaches(), []);
    // A LAST turned into a MIDDLE: the message does not end.
    let last = place(&writes, 3, |h| h.bth().opcode().is_last() && !h.bth().opcode().is_response());
    let found = with(&writes, last, &|frame| {
        change_bth(frame, |bth| _ = bth.set().opcode(hwspec::wire::BthOpcode::RcWriteMiddle))
    });
    assert!(found.contains(&Rule::Order) && found.contains(&Rule::Length), "{found:?}");
    // A RETH with another length.
    let first = place(&writes, 3, |h| h.reth().is_some());
    let found = with(&writes, first, &|frame| change(frame, |bytes| bytes[Bth::SIZE + 15] ^= 1));
    assert_eq!(found, [Rule::WriteLength]);
    // An acknowledgement of a request that was not sent, and a decreasing MSN.
    let ack = place(&writes, 5, |h| h.bth().opcode().is_response());
    let found = with(&writes, ack, &|frame| change_bth(frame, |bth| _ = bth.set().psn(Psn::new(0x40_0000))));
    assert_eq!(found, [Rule::Acknowledge]);
    let found =
        with(&writes, ack, &|frame| change(frame, |bytes| bytes[Bth::SIZE + 1..Bth::SIZE + 4].fill(0)));
    assert_eq!(found, [Rule::Msn]);
    // A READ response out of order.
    let answers = |h: &Headers<'_>| h.bth().opcode() == hwspec::wire::BthOpcode::RcReadRespMiddle;
    let mut swapped = reads.clone();
    let (one, other) = (place(&reads, 3, answers), place(&reads, 3, answers) + 1);
    let frame = swapped[one].1.clone();
    swapped[one].1 = std::mem::replace(&mut swapped[other].1, frame);
    assert_eq!(broken(&swapped), [Rule::ReadAnswer]);
    // A congestion notification without BECN.
    let marked = frames(Operation::Write, Measure::Bandwidth, 9000, "[[fault]]\ndo = \"mark\"\n");
    let cnp = place(&marked, 0, |h| h.bth().opcode() == hwspec::wire::BthOpcode::Cnp);
    assert_eq!(broken(&marked), []);
    assert_eq!(
        with(&marked, cnp, &|frame| change_bth(frame, |bth| _ = bth.set().becn(false))),
        [Rule::Notification]
    );
}

#[test]
fn naks_and_retries_have_their_measure() {
    let lost = frames(
        Operation::Write,
        Measure::Bandwidth,
        9000,
        "[[fault]]\ndo = \"drop\"\nopcode = \"RcWriteMiddle\"\nnth = 9\n",
    );
    assert_eq!(broken(&lost), []);
    let nak = place(&lost, 0, |h| {
        h.aeth().is_some_and(|aeth| aeth.syndrome() == Syndrome::Nak(NakCode::PsnSequence))
    });
    let mut twice = lost.clone();
    twice.insert(nak + 1, lost[nak].clone());
    assert_eq!(broken(&twice), [Rule::NakOnce]);
    // An RNR NAK of 655 ms instead: the retransmission comes too early.
    let mut early = lost.clone();
    change(&mut early[nak].1, |bytes| bytes[Bth::SIZE] = 0x20);
    assert_eq!(broken(&early), [Rule::RnrWait]);
    // A packet that is never acknowledged, sent nine times.
    let mut often = lost[..=place(&lost, 0, |h| h.bth().opcode().is_middle())].to_vec();
    let last = often.last().unwrap().clone();
    often.extend(vec![last; 8]);
    assert_eq!(broken(&often), [Rule::Retries]);
}

#[test]
fn no_bytes_make_it_panic() {
    let frames = frames(Operation::Read, Measure::Bandwidth, 9000, "");
    let mut checker = Checker::new();
    let mut number = 1u64;
    for (at, frame) in frames.iter().cycle().take(20_000) {
        let mut frame = frame.clone();
        number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let place = (number >> 33) as usize % frame.len();
        frame[place] ^= (number >> 20) as u8;
        frame.truncate(frame.len() - (number >> 61) as usize * 9 % frame.len());
        checker.frame(*at, &frame);
    }
    assert_eq!(checker.count().frames, 20_000);
}

#[test]
fn of_frames_of_which_only_the_beginning_is_there_all_but_the_icrc_is_asked() {
    let writes = frames(Operation::Write, Measure::Bandwidth, 9000, "");
    let beginnings = |frames: &[(u64, Vec<u8>)], len: usize| {
        let mut checker = Checker::new();
        for (at, frame) in frames {
            checker.beginning(*at, &frame[..frame.len().min(len)], frame.len());
        }
        checker
    };
    let whole = beginnings(&writes, 96);
    assert_eq!(
        (whole.breaches(), whole.count().checked, whole.count().left_out),
        (&[][..], writes.len() as u64, 0)
    );
    let mut gap = writes.clone();
    gap.remove(place(&writes, 3, |h| h.bth().opcode().is_middle()));
    assert_eq!(beginnings(&gap, 96).breaches()[0].rule, Rule::Sequence);
    let few = beginnings(&writes, 48);
    assert_eq!(
        (few.breaches(), few.count().checked, few.count().left_out),
        (&[][..], 0, writes.len() as u64)
    );
}

#[test]
fn frames_that_are_none_of_ours_break_no_rules_and_older_ones_are_told_of() {
    let writes = frames(Operation::Write, Measure::Bandwidth, 8, "");
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut one = writes[0].clone();
        change(&mut one.1);
        checked(&[one])
    };
    // A host with checksum offload captures frames without valid checksums. The checker checks only RoCE's, which the adapter
    // itself writes.
    let [tcp, udp] = [6, 17].map(|protocol| {
        with(&|frame| {
            frame[14 + 9] = protocol;
            frame[14 + 10] ^= 1;
        })
    });
    assert_eq!((tcp.breaches(), tcp.count().left_out), (&[][..], 0));
    assert_eq!(udp.breaches().iter().map(|breach| breach.rule).collect::<Vec<_>>(), [Rule::Header]);
    let first = with(&|frame| frame[12..14].copy_from_slice(&0x8915u16.to_be_bytes()));
    assert_eq!((first.breaches(), first.count().left_out), (&[][..], 1));
}
