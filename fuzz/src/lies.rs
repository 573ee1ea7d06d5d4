//! A device that lies, and the driver that uses it.
//!
//! A liar sits between the driver and a function of the model. It changes the values read from registers and configuration space, drops
//! register writes, falsifies answers to commands, and writes spurious completions, events and page requests where the driver looks next.
//! The driver may fail with an error at every step. It must not panic, wait forever, or touch memory that is not its own.
//!
//! The liar leaves WQE rings and doorbell records alone: the device only reads them, and libmlx5 too trusts the device not to write there.

mod liar;
mod memory;
mod told;

use crate::bytes::Bytes;
use ::tests::end::{Card, End, Patience, own_gid};
use devmodel::Config;
use driver::{
    Completion, Cq, Device, Error, OpenOptions, Qp, QpAttr, QpAttrMask, QpInit, QpState, RecvWr, SendOp,
    Service, Srq, SrqInit, WcStatus,
    harness::{self, Plan},
    transport::Transport,
};
use ironverbs::sim::machine::Machine;
use liar::Liar;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use told::{Kind, Told};

/// Maximum time that the driver waits for anything.
const PATIENCE: Duration = Duration::from_millis(3);
/// Upper bound for a run in which every wait times out, one after the other.
const LONGEST: Duration = Duration::from_secs(20);
/// Maximum number of events taken from one device, so that a run ends even if the device raises events forever.
const EVENTS: usize = 300;
/// Rounds of traffic.
const ROUNDS: u64 = 12;
/// Bytes of a program's memory, and of the pieces it is used in: only the second half of each may be written.
const MEMORY: usize = 4096;
const PIECE: usize = 128;
/// Value of every word of a buffer that no receive may change.
const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// How much of an input reached the driver.
#[derive(Debug, Default)]
pub struct Reach {
    /// Lies told, by kind.
    told: [u64; Kind::COUNT],
    /// Completions and events that the driver returned.
    completions: u64,
    events: u64,
}

/// Runs a program's traffic, in which every step may fail.
fn use_device(device: &Arc<Device>, reach: &mut Reach) -> Result<(), Error> {
    // The device determines the results; the driver only has to return.
    let _ = (device.port(), device.gid(0), device.set_gid(1, Some(&[0xfd; 16])), device.clock());
    let _ = device.health().is_fatal();
    let end = End::new(device.clone(), MEMORY)?;
    (0..MEMORY).step_by(8).for_each(|at| end.words.set_word(at, UNTOUCHED));
    let own = own_gid(device).map(|gid| Card { gid, qpn: end.qp.qpn(), addr: 0, rkey: 0 });
    let _ = own.and_then(|card| end.connect(&card, Patience::default()));
    let small = Cq::create(device, 8, 1)?;
    let shared = Srq::create(&end.pd, &SrqInit { max_wr: 16, max_sge: 2, xrc: None, cookie: 2 });
    let init = |service| QpInit {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 1,
        max_recv_sge: 2,
        ..QpInit::new(service, &small, &end.cq)
    };
    let ud = Qp::create(&end.pd, &init(Service::Ud));
    let with_srq = shared
        .as_ref()
        .ok()
        .map(|srq| Qp::create(&end.pd, &QpInit { srq: Some(srq.clone()), ..init(Service::Rc) }));
    let attr = |qp_state| QpAttr { qp_state, port_num: 1, ..QpAttr::default() };
    if let Ok(ud) = &ud {
        let _ = ud.advance_to(QpState::Init, &attr(QpState::Init));
    }
    let mut out = [Completion::default(); 16];
    for round in 0..ROUNDS {
        let at = |n: u64| (n as usize * PIECE) % MEMORY + PIECE / 2;
        let pieces = [end.sge(at(round), 16), end.sge(at(round) + 16, PIECE / 2 - 16)];
        let receive = || [RecvWr { wr_id: round, sge: &pieces }];
        // Full queues and queue pairs in error refuse work requests.
        let _ = end.qp.post_recv(receive());
        let _ = ud.as_ref().map(|qp| qp.post_recv(receive()));
        let _ = shared.as_ref().map(|srq| srq.post_recv(receive()));
        let _ = end.try_post(round, SendOp::Send, &[end.sge(at(round + 7), 24)]);
        let _ = end.try_post(round, end.to_write(at(round)), &[end.sge(at(round + 3), 8)]);
        end.cq.arm(round % 2 == 0);
        for cq in [&end.cq, &small] {
            let found = cq.poll(&mut out);
            reach.completions +=
                out[..found].iter().filter(|wc| wc.status != WcStatus::GeneralErr).count() as u64;
        }
        reach.events += (0..EVENTS).map_while(|_| device.events().next()).count() as u64;
        match round {
            4 => drop(end.qp.query()),
            6 => drop(small.resize(100)),
            8 => drop(end.qp.modify(&attr(QpState::Err), QpAttrMask::STATE)),
            _ => {}
        }
    }
    for at in (0..MEMORY).step_by(PIECE) {
        let word = |at| end.words.word(at) == UNTOUCHED;
        assert!((at..at + PIECE / 2).step_by(8).all(word), "what nobody posted was written at {at:#x}");
    }
    drop((with_srq, ud));
    shared.and_then(Srq::destroy)
}

/// Runs all steps of the bring-up harness or a program, on a device that lies as `data` says.
pub fn lies(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) -> Reach {
    let mut input = Bytes(data);
    let how = input.u8();
    let (at_once, by_harness, endless) = (how & 1 == 0, how & 2 != 0, how & 4 != 0);
    let machine = Machine::new(1, Config::default());
    let liar = Arc::new(Liar::new(machine.function(1), Told::new(input, endless), at_once));
    let transport: Arc<dyn Transport> = liar.clone();
    let mut reach = Reach::default();

    let began = Instant::now();
    if by_harness {
        let plan = Plan { write: true, ..Plan::default() }.within(PATIENCE);
        harness::run(&transport, &plan, &mut |_| ());
    }
    let options = OpenOptions {
        link_local: true,
        gids: vec![hwspec::wire::ip::gid_of_v4([127, 0, 0, 2])],
        command_timeout: PATIENCE,
        ready_timeout: PATIENCE,
        lock_timeout: PATIENCE,
        eq_entries: 64,
        ..OpenOptions::default()
    };
    if let Ok(device) = Device::open(transport, options) {
        // SAFETY: receives name memory of the ends of `use_device`, which outlives their queues.
        #[allow(unsafe_code)]
        unsafe {
            device.receive_in_cqes();
        }
        let _ = use_device(&device, &mut reach);
        let _ = device.close();
    }
    assert!(began.elapsed() < LONGEST, "it took {:?}", began.elapsed());
    reach.told = liar.told();
    reach
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds an input of one lie.
    fn one(how: u8, kind: Kind, after: u8, shape: u8, count: u8, value: u64) -> Vec<u8> {
        [&[how, kind as u8, after, shape, count][..], &value.to_be_bytes()].concat()
    }

    #[test]
    fn an_honest_device_works() {
        let reach = run(&[]);
        assert_eq!(reach.told, [0; Kind::COUNT]);
        assert!(reach.completions > 10, "{reach:?}");
    }

    #[test]
    fn every_kind_of_lie_reaches_the_driver() {
        let honest = run(&[]);
        for kind in [Kind::Config, Kind::Register, Kind::Lost, Kind::Answer] {
            let reach = run(&one(0, kind, 0, 0, 0, 0));
            assert!(reach.told[kind as usize] == 1 && reach.completions == 0, "{kind:?}: {reach:?}");
        }
        // Spurious receive completions for the first queue pair; port events.
        let reach = run(&one(0, Kind::Completion, 0, 0, 60, 0x0010_0000_0000_0002));
        assert!(reach.told[Kind::Completion as usize] == 1, "{reach:?}");
        assert_ne!(reach.completions, honest.completions, "{reach:?}");
        let reach = run(&one(0, Kind::Event, 0, 0, 60, 9));
        assert!(reach.events >= honest.events + 60, "{reach:?}, of an honest device {honest:?}");
        let reach = run(&one(0, Kind::Pages, 0, 1, 0, 0));
        assert!(
            reach.told[Kind::Pages as usize] == 1 && reach.completions == honest.completions,
            "{reach:?}"
        );
    }
}
