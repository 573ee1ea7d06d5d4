//! Waiting for a function whose firmware starts, as after a reset.

use crate::{
    cmd,
    config::Config,
    error::Error,
    transport::{Bar, Transport},
};
use std::time::{Duration, Instant};

/// `initializing` of the initialization segment.
const INITIALIZING: u32 = 0x1fc;
/// A function that has not answered a read of its configuration space for so long is not there: one second after a reset it
/// answers, or has the host read again until it does (PCI Express 6.6.1).
const ABSENT: Duration = Duration::from_secs(1);

/// Waits until the firmware has started, at most for `limit`, as Linux does (`wait_fw_init`). Returns how long it took.
///
/// Registers may read as all ones at first, since for some time after a reset nobody answers (PCI Express 6.6.2). Those of a
/// function that is gone always do, and so does its configuration space.
pub fn wait(transport: &dyn Transport, bar: &Bar, limit: Duration) -> Result<Duration, Error> {
    let begin = Instant::now();
    let mut absent = None;
    loop {
        let initializing = bar.read32(INITIALIZING);
        if initializing >> 31 == 0 {
            return Ok(begin.elapsed());
        }
        let what = || "initialization of the firmware".into();
        if transport.acts_at_once() {
            return Err(cmd::left_undone(bar, what()));
        }
        let silent = initializing == u32::MAX;
        if silent && Config(transport).identity()?.0 == u16::MAX {
            if absent.get_or_insert_with(Instant::now).elapsed() > ABSENT {
                return Err(Error::Gone);
            }
        } else {
            absent = None;
        }
        if begin.elapsed() > limit {
            return Err(if silent { Error::Gone } else { Error::Timeout { what: what(), waited: limit } });
        }
        transport.idle();
        transport.nap(Duration::from_millis(1));
    }
}
