//! The state that the device reports of itself (initialization segment, health buffer).

use crate::{transport::Bar, verbs::Device};
use std::time::{Duration, Instant};

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

    /// True if the device is lost: it asks to be reset and says why, or does not answer. A syndrome alone, such as that
    /// of a module that got too warm, ends nothing.
    pub fn is_fatal(&self) -> bool {
        self.fatal != 0 || self.fw_version == u32::MAX || self.reset_requested && self.syndrome != 0
    }
}

/// Looks at a device's health again and again. The device is lost when it says so, or when its counter stands still.
#[derive(Debug, Default)]
pub struct HealthWatch {
    /// The counter, and when it was looked at.
    last: Option<(u32, Instant)>,
    misses: u32,
}

impl HealthWatch {
    /// Time between two looks that count.
    pub const INTERVAL: Duration = Duration::from_secs(2);
    /// Looks in a row that find the same counter at a device that is lost.
    const MISSES: u32 = 3;

    /// True if the device lives, after a look at `now` that found `health`.
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
    /// Reads the health buffer. The device lives if a later reading has another `counter`.
    pub fn health(&self) -> Health {
        Health::read(&self.function.bar)
    }

    /// Gives a device up that is lost, for all its openers, until it is brought up again: commands fail at once (ENODEV),
    /// those that are waited for too, and CQs without completions [are gone](crate::Cq::is_gone), so that nobody polls them
    /// for ever.
    pub fn give_up(&self) {
        self.function.shared.give_up();
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
        // Looks that follow one another closely count once.
        let mut watch = HealthWatch::default();
        assert!((0..100).all(|_| watch.look(&well, begin)));
        assert!(watch.look(&well, after(2)) && watch.look(&well, after(4)));
        assert!(!watch.look(&well, after(6)));
    }
}
