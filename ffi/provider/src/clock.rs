//! The device clock, as raw ticks and as wall clock time.

use crate::abi::public::{self as abi, ibv_context, ibv_values_ex};
use crate::guard::{lock, verb};
use crate::ours::Of;
use driver::Device;
use libc::c_int;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// `ibv_query_rt_values_ex`. Returns the raw clock in `tv_nsec`, as other providers do. Unknown values are left out of the mask.
pub extern "C" fn query_rt_values(context: Of<ibv_context>, values: &mut ibv_values_ex) -> c_int {
    verb(context, || {
        let wanted = values.comp_mask & abi::IBV_VALUES_MASK_RAW_CLOCK;
        if wanted != 0 {
            if context.device.attr().clock_khz == 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let counts = context.device.clock()?;
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: counts as i64 };
        }
        values.comp_mask = wanted;
        Ok(())
    })
}

/// A pair of simultaneous readings: device clock ticks, and nanoseconds since the Unix epoch.
#[derive(Clone, Copy)]
struct Instant {
    counts: u64,
    wall: u64,
}

/// Converts the device clock to wall clock time.
#[derive(Default)]
pub struct WallClock(Mutex<Option<Instant>>);

impl WallClock {
    /// Returns the wall clock time, in nanoseconds since the Unix epoch, at which the device clock read `counts`, or 0 if the device does
    /// not respond. The two clocks are compared again if `counts` is more than a second away from the last comparison.
    pub fn at(&self, device: &Device, counts: u64) -> u64 {
        let khz = u64::from(device.attr().clock_khz.max(1));
        let mut known = lock(&self.0);
        let near = |known: &Instant| known.counts.abs_diff(counts) < khz.saturating_mul(1000);
        let instant = match known.filter(near) {
            Some(instant) => instant,
            None => match compare(device) {
                Some(instant) => *known.insert(instant),
                None => return 0,
            },
        };
        let apart = u128::from(instant.counts.abs_diff(counts)) * 1_000_000 / u128::from(khz);
        let apart = u64::try_from(apart).unwrap_or(u64::MAX);
        match counts >= instant.counts {
            true => instant.wall.saturating_add(apart),
            false => instant.wall.saturating_sub(apart),
        }
    }
}

/// Number of comparisons of the clocks, of which the closest counts.
const COMPARISONS: usize = 8;
/// Nanoseconds between the readings of the wall clock before and after that of the device, within which a comparison is close enough.
const CLOSE: u64 = 10_000;

fn compare(device: &Device) -> Option<Instant> {
    let wall = || Some(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos() as u64);
    closest(|| Some((wall()?, device.clock().ok()?, wall()?)))
}

/// Reads wall clock, device clock and wall clock by `read`, several times, since the thread may be preempted between the readings.
fn closest(mut read: impl FnMut() -> Option<(u64, u64, u64)>) -> Option<Instant> {
    let mut best = None;
    for _ in 0..COMPARISONS {
        let (before, counts, after) = read()?;
        // The wall clock may be set back meanwhile.
        let Some(apart) = after.checked_sub(before) else { continue };
        if best.is_none_or(|(least, _)| apart < least) {
            best = Some((apart, Instant { counts, wall: before + apart / 2 }));
        }
        if apart < CLOSE {
            break;
        }
    }
    best.map(|(_, instant)| instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_during_which_the_thread_was_preempted_does_not_count() {
        let mut readings =
            [(0, 7, 30_000_000), (40_000_000, 40_007, 39_000_000), (50_000_000, 50_007, 50_000_400)].iter();
        let instant = closest(|| readings.next().copied()).expect("a comparison");
        assert_eq!((instant.counts, instant.wall), (50_007, 50_000_200));
        // If all were slow, the closest counts.
        let mut apart = [30_000, 12_000, 20_000, 50_000, 11_000, 40_000, 60_000, 90_000].into_iter();
        let slow = closest(|| apart.next().map(|apart| (0, apart, apart)));
        assert_eq!(slow.map(|instant| instant.wall), Some(5_500));
    }
}
