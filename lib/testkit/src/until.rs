//! Waiting for a condition.

use std::{
    fmt::Display,
    thread::sleep,
    time::{Duration, Instant},
};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Calls `so` until it returns true, at least once.
///
/// # Panics
///
/// If `limit` has passed without that. The message has `what` and the caller's line.
#[track_caller]
pub fn until(what: impl Display, limit: Duration, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_condition_is_waited_for_until_it_holds_or_its_time_is_up() {
        let mut looks = 0;
        until("the third look", Duration::from_secs(100), || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        until("the first look", Duration::ZERO, || true);
        let failed = catch_unwind(|| until("the end of time", Duration::from_millis(5), || false));
        let why = *failed.expect_err("it fails").downcast::<String>().expect("a reason");
        assert_eq!(why, "the end of time: not within 5ms");
    }
}
