//! The port's congestion control parameters, read by all parties without a lock.

use super::Region;
use crate::{
    Config,
    state::{CongestionRow, FunctionRow},
    transport::Dcqcn,
};
use std::mem::offset_of;

impl Region {
    /// Congestion control parameters: those of `config`, overridden by the driver's settings for the port.
    pub(crate) fn dcqcn(&self, config: &Config) -> Dcqcn {
        let mut p = config.dcqcn;
        if let Some(row) = self.look::<CongestionRow>(0, offset_of!(FunctionRow, congestion)) {
            if row != CongestionRow::default() {
                row.apply(&mut p);
            }
        }
        p
    }
}
