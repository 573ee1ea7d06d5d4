//! Waits for the firmware of a function to start, as after a reset.

use crate::{
    cmd,
    config::Config,
    error::Error,
    transport::{Bar, Transport},
};
use std::time::{Duration, Instant};

/// `initializing` of the initialization segment.
const INITIALIZING: u32 = 0x1fc;
/// If the configuration space of a function cannot be read for this long, the function is absent: one second after a
/// reset it must respond, or make the host retry until it does (PCI Express 6.6.1).
const ABSENT: Duration = Duration::from_secs(1);

/// Waits until the firmware has started, up to `limit`, as Linux does (`wait_fw_init`). Returns the time taken.
///
/// Registers may read as all ones at first, since a function may not respond for some time after a reset (PCI Express
/// 6.6.2). If the function is gone, its registers and its configuration space always read so.
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
