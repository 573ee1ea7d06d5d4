//! All parties ask here, without a lock, how the port reacts to congestion.

use super::Region;
use crate::{
    Config,
    state::{CongestionRow, FunctionRow},
    transport::Dcqcn,
};
use std::mem::offset_of;

impl Region {
    /// Parameters of congestion control: those of `config`, and what a driver has set of the port.
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
