//! Measures the driver's cost of work requests and completions: `make driver-costs` counts the instructions of the four
//! functions below under valgrind. The function comes from `ironverbs serve`, so that the device runs in another
//! process.
//!
//! `costs SOCKET ROUNDS`

mod ends;

use ends::{End, Outcome, connected_by};
use ironverbs_driver::{
    Completion, Device, OpenOptions, RecvWr, SendOp, WcStatus, transport::VfioUserTransport,
};
use std::{path::Path, thread, time::Duration};

/// Bytes of a message.
const LEN: u32 = 64;
/// Time after which a message has certainly arrived. Polling earlier would add to the count.
const COMES: Duration = Duration::from_millis(10);

fn main() -> Outcome {
    let mut words = std::env::args().skip(1);
    let (Some(socket), Some(Ok(rounds))) = (words.next(), words.next().map(|word| word.parse::<u32>()))
    else {
        return Err("expected the socket of a function and a number of rounds".into());
    };
    let options = OpenOptions { link_local: true, ..OpenOptions::default() };
    let device = Device::open(VfioUserTransport::open(Path::new(&socket))?, options)?;
    // GID 0 is the link-local address, which every function has.
    let [from, to] = connected_by(0, [device.clone(), device])?;
    for _ in 0..rounds {
        receive(&to)?;
        post(&from)?;
        thread::sleep(COMES);
        for end in [&to, &from] {
            let found = take(end).ok_or(format!("expected a completion within {COMES:?}, found none"))?;
            if found.status != WcStatus::Success {
                return Err(format!("work request {} ended with {:?}", found.wr_id, found.status).into());
            }
        }
        if !find_nothing(&from) {
            return Err("expected no completion, found one".into());
        }
    }
    Ok(())
}

#[inline(never)]
fn receive(end: &End) -> Outcome {
    Ok(end.qp.post_recv([RecvWr { wr_id: 1, sge: &[end.sge(2048, LEN)] }])?)
}

#[inline(never)]
fn post(end: &End) -> Outcome {
    end.post(2, SendOp::Send, end.sge(0, LEN))
}

#[inline(never)]
fn take(end: &End) -> Option<Completion> {
    poll(end)
}

#[inline(never)]
fn find_nothing(end: &End) -> bool {
    poll(end).is_none()
}

#[inline(always)]
fn poll(end: &End) -> Option<Completion> {
    let mut found = [Completion::default()];
    (end.cq.poll(&mut found) == 1).then(|| found[0])
}
