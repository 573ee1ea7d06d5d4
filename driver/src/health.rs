//! The state that the device reports of itself (initialization segment, health buffer).

use crate::{transport::Bar, verbs::Device};

/// Registers of the health buffer and behind it.
const FW_VERSION: u32 = 0x230;
const RFR_SEVERITY: u32 = 0x238;
const SYNDROME: u32 = 0x23c;
const COUNTER: u32 = 0x1010;

/// A reading of the health buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Counts up continuously while the firmware lives.
    pub counter: u32,
    /// Not 0: the device has declared a fatal state.
    pub fatal: u8,
    /// Syndrome of the last error, 0 if there was none.
    pub syndrome: u8,
    /// Extended syndrome.
    pub ext_syndrome: u16,
    /// Severity, 0 (emergency) to 7 (debug); only with a syndrome.
    pub severity: u8,
    /// The device asks to be reset.
    pub reset_requested: bool,
    /// Firmware version as the health buffer has it.
    pub fw_version: u32,
}

impl Health {
    pub(crate) fn read(bar: &Bar) -> Self {
        let counter = bar.read32(COUNTER);
        let severity = bar.read32(RFR_SEVERITY);
        let syndrome = bar.read32(SYNDROME);
        Self {
            counter: counter & 0xff_ffff,
            fatal: (counter >> 24) as u8,
            syndrome: (syndrome >> 16) as u8,
            ext_syndrome: syndrome as u16,
            severity: (severity >> 24) as u8 & 7,
            reset_requested: severity >> 31 != 0,
            fw_version: bar.read32(FW_VERSION),
        }
    }

    /// Whether the device can still be used.
    pub fn is_good(&self) -> bool {
        self.fatal == 0 && self.syndrome == 0
    }
}

impl Device {
    /// Reads the health buffer. The device lives if a later reading has another `counter`.
    pub fn health(&self) -> Health {
        Health::read(&self.function.bar)
    }
}
