//! The device's clock, as counts and as the time of day.

use crate::abi::public::{self as abi, ibv_context, ibv_values_ex};
use crate::context::Context;
use crate::guard::guard_int;
use driver::Device;
use libc::c_int;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// `ibv_query_rt_values_ex`: the clock's counts lie in `tv_nsec`, as other providers have it. Values that are not known
/// are left out of the mask.
///
/// # Safety
/// Called by programs with an open context of ours and room for the answer.
pub unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    guard_int(|| {
        // SAFETY: V1 for the context, V4 for `values`.
        let (ours, values) = unsafe { (Context::of(context), &mut *values) };
        ours.birth.check()?;
        let wanted = values.comp_mask & abi::IBV_VALUES_MASK_RAW_CLOCK;
        if wanted != 0 {
            if ours.device.attr().clock_khz == 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let counts = ours.device.clock().map_err(|e| e.errno())?;
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: counts as i64 };
        }
        values.comp_mask = wanted;
        Ok(())
    })
}

/// One instant by both clocks: counts of the device's, and nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Instant {
    counts: u64,
    wall: u64,
}

/// Relates the device's clock to the time of day.
#[derive(Default)]
pub struct WallClock(Mutex<Option<Instant>>);

impl WallClock {
    /// Nanoseconds since 1970 when the device's clock read `counts`; 0 if the device does not answer. The two clocks
    /// are compared again if `counts` lies more than a second from the last comparison.
    pub fn at(&self, device: &Device, counts: u64) -> u64 {
        let khz = u64::from(device.attr().clock_khz.max(1));
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

fn compare(device: &Device) -> Option<Instant> {
    let wall = || Some(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos() as u64);
    let before = wall()?;
    let counts = device.clock().ok()?;
    let after = wall()?;
    Some(Instant { counts, wall: before + after.saturating_sub(before) / 2 })
}
