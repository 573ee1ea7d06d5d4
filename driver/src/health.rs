//! The health state reported by the device (initialization segment, health buffer).

use crate::{cmd::HEALTH, transport::Bar, verbs::Device};
use std::time::{Duration, Instant};

/// Registers of the health buffer and after it.
const FW_VERSION: u32 = 0x230;
const RFR_SEVERITY: u32 = 0x238;
const SYNDROME: u32 = 0x23c;

/// A snapshot of the health buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Incremented continuously while the firmware is alive.
    pub counter: u32,
    /// Nonzero: the device has declared a fatal state.
    pub fatal: u8,
    /// Syndrome of the last error, 0 if none.
    pub syndrome: u8,
    /// Extended syndrome.
    pub ext_syndrome: u16,
    /// Severity, 0 (emergency) to 7 (debug); only with a syndrome.
    pub severity: u8,
    /// The device requests a reset.
    pub reset_requested: bool,
    /// Firmware version from the health buffer.
    pub fw_version: u32,
}

impl Health {
    pub(crate) fn read(bar: &Bar) -> Self {
        let counter = bar.read32(HEALTH);
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

    /// True if the device is lost: it requests a reset and gives a reason, or does not respond. A syndrome alone, such
    /// as that of an overheated module, is not fatal.
    pub fn is_fatal(&self) -> bool {
        self.fatal != 0 || self.fw_version == u32::MAX || self.reset_requested && self.syndrome != 0
    }
}

/// Monitors a device's health. The device is lost if it says so, or if its counter stops.
#[derive(Debug, Default)]
pub struct HealthWatch {
    /// The last counter, and the time it was read.
    last: Option<(u32, Instant)>,
    misses: u32,
}

impl HealthWatch {
    /// Minimum time between two reads that are compared.
    pub const INTERVAL: Duration = Duration::from_secs(2);
    /// Consecutive reads of the same counter after which the device is lost.
    const MISSES: u32 = 3;

    /// Evaluates `health`, read at time `now`. Returns true if the device is alive.
    pub fn look(&mut self, health: &Health, now: Instant) -> bool {
        let (counter, at) = *self.last.get_or_insert((health.counter, now));
        if counter != health.counter {
            (self.last, self.misses) = (Some((health.counter, now)), 0);
        } else if now.saturating_duration_since(at) >= Self::INTERVAL {
            (self.last, self.misses) = (Some((counter, now)), self.misses + 1);
        }
        !health.is_fatal() && self.misses < Self::MISSES
    }
}

impl Device {
    /// Reads the health buffer. The device is alive if `counter` has changed in a later reading.
    pub fn health(&self) -> Health {
        Health::read(&self.function.bar)
    }

    /// Marks the device as lost, for all its openers, until it is brought up again: commands, also those being waited
    /// for, fail at once (ENODEV), and CQs without completions [are gone](crate::Cq::is_gone), so that no program polls
    /// them forever. An opener that has only lost its own connection says nothing about the device of the others.
    pub fn give_up(&self) {
        if !self.function.transport.is_gone() {
            self.function.shared.give_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_lost_when_it_asks_for_a_reset_or_its_counter_stands_still() {
        let well = Health {
            counter: 1,
            fatal: 0,
            syndrome: 0,
            ext_syndrome: 0,
            severity: 0,
            reset_requested: false,
            fw_version: 16,
        };
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let once = |health: Health| HealthWatch::default().look(&health, begin);
        assert!(once(well) && once(Health { syndrome: 0x10, ..well }));
        assert!(once(Health { reset_requested: true, ..well }));
        assert!(!once(Health { reset_requested: true, syndrome: 7, ..well }));
        assert!(!once(Health { fw_version: u32::MAX, ..well }));

        let mut watch = HealthWatch::default();
        for second in 0..20 {
            assert!(watch.look(&Health { counter: second as u32 / 5, ..well }, after(second)), "{second}");
        }
        // Readings in quick succession count once.
        let mut watch = HealthWatch::default();
        assert!((0..100).all(|_| watch.look(&well, begin)));
        assert!(watch.look(&well, after(2)) && watch.look(&well, after(4)));
        assert!(!watch.look(&well, after(6)));
    }
}
