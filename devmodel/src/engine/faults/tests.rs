//! The effects of faults in perftest's patterns.

use super::*;
use crate::{
    engine::{
        sim::{Measure, Operation, Plan, Report, SimError, Watch, watch},
        timing::TimingProfile,
    },
    state::Counters,
};
use hwspec::wire::{BthOpcode, NakCode, Syndrome};

/// Runs 64 KiB WRITEs under `faults`.
fn under(faults: &str) -> (Result<Report, SimError>, FaultReport, FaultPlan) {
    let mut plan =
        Plan::new(Operation::Write, Measure::Bandwidth, TimingProfile::load("direct-x16").unwrap());
    plan.iters = 200;
    run(&plan, faults)
}

fn run(plan: &Plan, faults: &str) -> (Result<Report, SimError>, FaultReport, FaultPlan) {
    let mut found = FaultReport::default();
    let faults = FaultPlan::parse("plan.toml", faults, 1).unwrap();
    let report = watch(plan, Watch { faults: Some((faults.clone(), &mut found)), ..Watch::default() });
    (report, found, faults)
}

/// Total of `counter` over all functions.
fn counted(report: &Report, counter: Counters) -> u64 {
    report.counters.iter().map(|counters| counters[counter as usize]).sum()
}

#[test]
fn a_lost_packet_is_asked_for_within_a_microsecond_and_comes_again() {
    let (report, found, _) = under("[[fault]]\ndo = \"drop\"\nopcode = \"RcWriteMiddle\"\nnth = 100\n");
    let report = report.unwrap();
    assert_eq!((found.hits.as_slice(), counted(&report, Counters::PacketSeqErr)), (&[1][..], 1));
    let followed = &found.timeline.followed()[0];
    let frame = &found.timeline.frames[followed.frame];
    assert!(frame.opcode == BthOpcode::RcWriteMiddle && frame.arrived.is_none());
    let after = |at: u64| (at - frame.at) as f64 / 1e6;
    let (nak, syndrome) = followed.nak.unwrap();
    assert_eq!(syndrome, Syndrome::Nak(NakCode::PsnSequence));
    assert!(after(nak) < 1.0, "{}", after(nak));
    // Packets that the card has generated already go out first.
    assert!((1.0..20.0).contains(&after(followed.again.unwrap())), "{}", after(followed.again.unwrap()));
    assert!(followed.covered.unwrap() > followed.again.unwrap());
}

#[test]
fn a_damaged_packet_is_counted_and_comes_again() {
    let (report, found, _) = under("[[fault]]\ndo = \"corrupt\"\nnth = 100\n");
    let report = report.unwrap();
    assert_eq!(counted(&report, Counters::RxIcrcErrors), 1);
    let followed = &found.timeline.followed()[0];
    assert!(found.timeline.frames[followed.frame].arrived.is_some() && followed.again.is_some());
}

#[test]
fn a_packet_that_comes_twice_is_taken_once() {
    let (report, _, _) = under("[[fault]]\ndo = \"duplicate\"\nopcode = \"RcWriteLast\"\nnth = 7\n");
    let report = report.unwrap();
    assert_eq!(
        (counted(&report, Counters::DuplicateRequest), counted(&report, Counters::PacketSeqErr)),
        (1, 0)
    );
}

#[test]
fn what_is_lost_or_damaged_on_infiniband_is_asked_for_and_nothing_is_marked() {
    let mut plan = Plan::new(Operation::Write, Measure::Bandwidth, TimingProfile::load("edr-x16").unwrap());
    plan.iters = 200;
    let on = |faults: &str| {
        let (report, found, _) = run(&plan, faults);
        (report.unwrap(), found)
    };
    let (plain, _) = on("[[fault]]\ndo = \"mark\"\n");
    assert_eq!(counted(&plain, Counters::NpCnpSent), 0);
    for what in ["drop", "corrupt"] {
        let (report, found) =
            on(&format!("[[fault]]\ndo = \"{what}\"\nopcode = \"RcWriteMiddle\"\nnth = 100\n"));
        let errors = [Counters::RxIcrcErrors, Counters::PacketSeqErr].map(|of| counted(&report, of));
        assert_eq!((errors, &found.hits[..]), ([u64::from(what == "corrupt"), 1], &[1][..]), "{what}");
        assert!(report.duration > plain.duration);
    }
}

#[test]
fn packets_out_of_order_are_asked_for() {
    for fault in ["do = \"reorder\"\nbehind = 3", "do = \"delay\"\nfor_us = 1.5"] {
        let (report, found, _) =
            under(&format!("[[fault]]\n{fault}\nopcode = \"RcWriteMiddle\"\nnth = 50\n"));
        let report = report.unwrap();
        assert!(counted(&report, Counters::OutOfSequence) > 0, "{fault}");
        let late = &found.timeline.frames[found.timeline.followed()[0].frame];
        assert!(late.arrived.unwrap() > late.at + 300_000, "{fault}: {late:?}");
    }
}

#[test]
fn a_marked_packet_is_told_of_and_its_sender_slows_down() {
    let (report, _, _) = under("[[fault]]\ndo = \"mark\"\nfrom = 0\n");
    let report = report.unwrap();
    let (told, heard) = (counted(&report, Counters::NpCnpSent), counted(&report, Counters::RpCnpHandled));
    assert!(told > 10 && heard > 10, "{told} {heard}");
    let (plain, _, _) = under("[[fault]]\ndo = \"mark\"\nnth = 1\nchance = 0.0\n");
    assert!(report.duration > 3 * plain.unwrap().duration);
}

#[test]
fn a_port_that_is_paused_costs_its_time_and_nothing_else() {
    let (plain, _, _) = under("[[fault]]\ndo = \"drop\"\nchance = 0.0\n");
    let (report, _, _) = under("[[fault]]\ndo = \"pause\"\nfrom = 0\nnth = 20\nfor_us = 300\n");
    let report = report.unwrap();
    let longer = (report.duration - plain.unwrap().duration) as f64 / 1e6;
    assert!((250.0..310.0).contains(&longer), "{longer} us longer");
    assert_eq!(counted(&report, Counters::PacketSeqErr), 0);
}

#[test]
fn a_function_that_stops_takes_up_later_what_came_meanwhile() {
    let (report, found, _) = under("[[fault]]\ndo = \"stop\"\nfrom = 1\nnth = 20\nfor_us = 300\n");
    assert_eq!(counted(&report.unwrap(), Counters::PacketSeqErr), 0);
    let frames = &found.timeline.frames;
    let stops = frames.iter().position(|line| !line.faults.is_empty()).unwrap();
    let next = frames[stops + 1..].iter().find(|line| line.from == Some(1)).unwrap();
    assert!(next.at > frames[stops].at + 299_000_000, "{next:?}");
    assert!(
        frames.iter().all(|line| line.arrived.is_some() || line.at > frames[stops].at),
        "nothing is lost"
    );
}

/// The 255 receives of the descheduled program are soon used up.
#[test]
fn a_program_on_no_processor_has_its_peer_wait_for_receives() {
    let mut plan = Plan::new(Operation::Send, Measure::Bandwidth, TimingProfile::load("direct-x16").unwrap());
    (plan.bytes, plan.iters) = (64, 5000);
    let (report, found, _) = run(&plan, "[[fault]]\ndo = \"sleep\"\nfrom = 1\nnth = 20\nfor_us = 200\n");
    let report = report.unwrap();
    let frames = &found.timeline.frames;
    let begin = frames.iter().find(|line| !line.faults.is_empty()).expect("the frame").at;
    let naks: Vec<_> = frames
        .iter()
        .filter(|line| matches!(line.syndrome, Some(Syndrome::RnrNak(_))))
        .map(|line| line.at)
        .collect();
    let (first, last) = (naks[0] - begin, naks[naks.len() - 1] - begin);
    // 255 messages at 7.8 million per second; none once the program polls again.
    assert!((20_000_000..60_000_000).contains(&first) && last < 205_000_000, "{first} {last}");
    assert!(counted(&report, Counters::OutOfBuffer) >= naks.len() as u64);
    // The sender sends its outstanding requests, and then nothing for the RNR timer of the NAK, code 12: 0.64 ms.
    let mut times: Vec<_> = frames.iter().map(|line| line.at).collect();
    times.sort_unstable();
    let gap = times.windows(2).map(|two| two[1] - two[0]).max().expect("frames");
    assert!((600_000_000..1_400_000_000).contains(&gap), "{gap}");
}

#[test]
fn a_bus_that_refuses_ends_the_connection_and_what_was_found_is_told() {
    let (report, found, _) = under("[[fault]]\ndo = \"abort\"\nfrom = 0\nnth = 100\nfor_us = 50\n");
    assert!(matches!(report, Err(SimError::Broken(_))), "{report:?}");
    assert!(found.hits == [1] && found.timeline.frames.len() > 100);
}

#[test]
fn memory_that_is_not_mapped_is_refused_at_either_end_as_a_key_that_is_none() {
    let refused = |line: &FrameLine| line.syndrome == Some(Syndrome::Nak(NakCode::RemoteAccess));
    let naks = |from: u8| {
        let fault = format!("[[fault]]\ndo = \"unmap\"\nfrom = {from}\nnth = 20\nfor_us = 50\n");
        let (report, found, _) = under(&fault);
        assert!(matches!(report, Err(SimError::Broken(_))), "{report:?}");
        found.timeline.frames.iter().filter(|line| refused(line)).map(|line| line.from).collect::<Vec<_>>()
    };
    // A sender that cannot read its own memory sends nothing that could be refused.
    assert_eq!((naks(1), naks(0)), (vec![Some(1)], vec![]));
}

#[test]
fn faults_are_the_same_at_every_run_and_messages_are_counted() {
    let plan = "[[fault]]\ndo = \"drop\"\nchance = 0.001\n\n[[fault]]\ndo = \"drop\"\nmessage = 40\nopcode = \"RcWriteFirst\"\n";
    let (report, found, _) = under(plan);
    let (again, same, _) = under(plan);
    assert_eq!((report.unwrap(), &found), (again.unwrap(), &same));
    // The fortieth message starts after 39 messages of 16 packets. Its retransmission is not counted as another message.
    let of_message = found.timeline.frames.iter().filter(|line| line.faults.contains(&1));
    let psns: Vec<u32> = of_message.map(|line| line.psn).collect();
    assert!(!psns.is_empty() && psns.iter().all(|psn| *psn == 39 * 16), "{psns:?}");
}

#[test]
fn a_fault_that_names_a_queue_pair_that_never_is_is_said_with_its_line() {
    let (_, found, plan) = under("[[fault]]\ndo = \"drop\"\nnth = 1\n\n[[fault]]\ndo = \"drop\"\nqp = 77\n");
    let line = plan.without_frame(&found.hits).unwrap().to_string();
    assert_eq!(line, "plan.toml:5: expected a frame as this fault says, found none in the whole run");
}
