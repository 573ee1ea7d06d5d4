//! Commands: what the driver asks of the device through the command queue.

use crate::{pipe::Step, region::Func};

/// Works on the command queue slots whose doorbell bits are set.
pub(crate) fn doorbell(_func: &mut Func<'_>, _step: &mut Step<'_>, _slots: u32) {}
