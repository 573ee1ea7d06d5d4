//! Events: a program sleeps until a completion arrives, and receives an asynchronous event.
//!
//! `cargo run --release -p ironverbs-driver --example events`

mod ends;

use ends::{End, Outcome, SOON, Scratch, connected};
use ironverbs_driver::{Completion, Event, RecvWr, SendOp};

fn main() -> Outcome {
    let (_scratch, devices) = Scratch::devices()?;
    let [sender, sleeper] = connected(devices)?;

    // An armed completion queue raises one event. Arm first and poll afterwards: the poll finds earlier completions,
    // and the event reports later ones.
    sleeper.qp.post_recv([RecvWr { wr_id: 7, sge: &[sleeper.sge(0, 64)] }])?;
    sleeper.cq.arm(false);
    if sleeper.cq.poll(&mut [Completion::default()]) != 0 {
        return Err("a completion before anything was sent".into());
    }

    let woken = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| next_event(&sleeper).map_err(|e| e.to_string()));
        sender.memory.copy_in(0, b"wake up");
        sender.post(1, SendOp::Send, sender.sge(0, 7)).map_err(|e| e.to_string())?;
        waiting.join().map_err(|_| String::from("the thread that waits panicked"))?
    })?;
    match woken {
        Event::Cq { cqn, .. } if cqn == sleeper.cq.cqn() => {
            let wc = sleeper.completion()?;
            println!("woken by the completion queue: work request {}, {} bytes", wc.wr_id, wc.byte_len);
        }
        other => return Err(format!("expected an event of the completion queue, found {other:?}").into()),
    }

    // WRITE with an invalid rkey. The writer gets a completion in error. The peer has posted nothing that could
    // complete, so it gets an asynchronous event for its queue pair.
    let (raddr, rkey) = (sleeper.memory.iova(), sleeper.mr.rkey() ^ 1);
    let sent = sender.completion()?;
    println!("the SEND ended with {:?}", sent.status);
    sender.post(2, SendOp::Write { raddr, rkey }, sender.sge(0, 7))?;
    println!("the WRITE ended with {:?}", sender.completion()?.status);
    match next_event(&sleeper)? {
        Event::Qp { qpn, kind, .. } if qpn == sleeper.qp.qpn() => println!("the peer's queue pair: {kind:?}"),
        other => return Err(format!("expected an event of the queue pair, found {other:?}").into()),
    }
    Ok(())
}

/// Sleeps until the device raises its interrupt, then takes an event. `next` arms the event queue before it returns
/// `None`, so `wait` (or poll(2) on `fd`) returns at the next event.
fn next_event(end: &End) -> Outcome<Event> {
    let events = end.device.events();
    loop {
        if let Some(event) = events.next() {
            return Ok(event);
        }
        if !events.wait(Some(SOON))? {
            return Err(format!("no event within {SOON:?}").into());
        }
    }
}
