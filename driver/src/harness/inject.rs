//! Deliberate errors: the device must refuse them, report them, and keep working.

use super::{loopback::Pair, report::Recorder};
use crate::{
    error::Error,
    verbs::{Device, QpState, WcStatus},
};
use hwspec::cmd::{Opcode, Status};
use std::{sync::Arc, time::Duration};

/// An opcode that no ConnectX implements.
const NO_COMMAND: u16 = 0x7ff;
/// A number that none of our objects has.
const NO_OBJECT: u32 = 0xff_fffe;
/// Requests posted after the one that fails.
const BEHIND: usize = 3;

/// The device's answer to a command that it had to refuse.
fn refusal(result: Result<(), Error>) -> Result<Status, Error> {
    match result {
        Err(Error::Command { status, .. }) => Ok(status),
        Ok(()) => Err(Error::device("the command to be refused", "it was carried out")),
        Err(other) => Err(other),
    }
}

/// Invalid commands must be refused with a status, and the next command must work.
pub fn commands(device: &Arc<Device>, pair: &Pair, r: &mut Recorder<'_>) -> Result<(), Error> {
    let function = &device.function;
    let mut input = [0; 16];
    input[..2].copy_from_slice(&NO_COMMAND.to_be_bytes());
    let unknown = function.execute(Opcode::from_raw(NO_COMMAND), &input, &mut [0; 16]);
    r.expect("unknown opcode", format!("{:?}", refusal(unknown)?), format!("{:?}", Status::BadOp))?;

    let status = refusal(function.destroy_object(Opcode::DestroyCq, device.opener.uid(), NO_OBJECT))?;
    r.note("a CQ that is not there", format!("{status:?}"));

    let status = refusal(function.destroy_object(Opcode::DeallocPd, device.opener.uid(), pair.pdn()))?;
    r.note("a protection domain in use", format!("{status:?}"));
    device.port().map(drop)
}

/// WRITE with an invalid rkey: it must complete in error, both QPs must go to ERR, the requests behind it must be
/// flushed, and another pair must work. Consumes `pair`.
pub fn key(device: &Arc<Device>, pair: Pair, timeout: Duration, r: &mut Recorder<'_>) -> Result<(), Error> {
    // Change the index rather than the variant, since none of our keys has this index.
    pair.write_with(pair.rkey() ^ 0x80_0000)?;
    for _ in 0..BEHIND {
        pair.write_with(pair.rkey())?;
    }
    let name = |status: WcStatus| format!("{status:?}");
    let first = pair.outcome("a WRITE with a wrong key")?;
    r.expect("completion", name(first.status), name(WcStatus::RemAccessErr))?;
    for _ in 0..BEHIND {
        let next = pair.outcome("a request behind one that failed")?;
        r.expect("behind it", name(next.status), name(WcStatus::WrFlushErr))?;
    }
    let (requester, responder) = pair.states()?;
    r.expect("requester", format!("{requester:?}"), format!("{:?}", QpState::Err))?;
    r.expect("responder", format!("{responder:?}"), format!("{:?}", QpState::Err))?;
    pair.destroy()?;
    device.events().drain(drop);

    let next = Pair::new(device, timeout, r)?;
    next.write_with(next.rkey())?;
    let after = next.outcome("a WRITE on a new pair")?;
    r.expect("a WRITE on a new pair", name(after.status), name(WcStatus::Success))?;
    next.destroy()
}
