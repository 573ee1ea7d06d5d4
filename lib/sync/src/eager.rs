//! Waits that start with polling if it pays.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Maximum time of polling. A sleep and wake-up costs 5 us, or 40 us on a virtual machine that returns idle processors
/// to its host.
const MOST: Duration = Duration::from_micros(200);
/// If a thread that yields between polls gets the processor back later than this, it is delaying others.
const LATE: Duration = Duration::from_micros(50);
/// It then does not poll for this many times as long.
const SHARE: u32 = 100;

/// Decides if a wait starts with polling: it does if the last wait was short and the processor is not needed by others.
/// So long waits cost no processor time, and frequent requests are answered at once.
#[derive(Debug, Default)]
pub struct Eager {
    was_short: bool,
    begun: Option<Instant>,
    /// Time until which others need the processor.
    crowded: Option<Instant>,
}

impl Eager {
    /// Begins a wait. Polls with `look` until that finds something, for as long as it pays; if the result is `None`,
    /// the caller sleeps. In both cases [`end`](Self::end) must be called after the wait.
    pub fn look<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let begun = Instant::now();
        self.begun = Some(begun);
        if !self.was_short || self.crowded.is_some_and(|until| begun < until) {
            return None;
        }
        let mut now = begun;
        while now.duration_since(begun) < MOST {
            let found = look();
            if found.is_some() {
                return found;
            }
            thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            let took = now.duration_since(before);
            if took > LATE {
                self.crowded = Some(now + took * SHARE);
                return None;
            }
        }
        self.was_short = false;
        None
    }

    /// Ends the wait after a message has arrived.
    pub fn end(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.was_short = begun.elapsed() < MOST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_looks_after_a_short_one_and_sleeps_after_a_long_one() {
        let (mut eager, mut looks) = (Eager::default(), 0);
        let wait = |eager: &mut Eager, looks: &mut u32, time: Duration| {
            let before = *looks;
            let begun = Instant::now();
            let found = eager.look(|| {
                *looks += 1;
                (begun.elapsed() >= time).then_some(())
            });
            if found.is_none() {
                thread::sleep(time);
            }
            eager.end();
            *looks > before
        };
        let (short, long) = (Duration::ZERO, Duration::from_millis(3));
        assert!(!wait(&mut eager, &mut looks, long), "the first sleeps");
        assert!(!wait(&mut eager, &mut looks, long));
        // A sleep may take long on a busy machine, but out of many, one will be short.
        let begun = Instant::now();
        while !(wait(&mut eager, &mut looks, short) && eager.was_short) {
            assert!(begun.elapsed() < Duration::from_secs(20), "no sleep was short");
        }
        assert!(wait(&mut eager, &mut looks, long), "it looks, in vain");
        assert!(!wait(&mut eager, &mut looks, long));
    }

    #[test]
    fn a_wait_that_is_in_the_way_of_others_does_not_look_for_a_while() {
        let mut eager = Eager { was_short: true, ..Eager::default() };
        // Simulates another thread that had the processor for this long.
        let late = || {
            thread::sleep(Duration::from_millis(20));
            None::<()>
        };
        assert_eq!(eager.look(late), None);
        assert!(eager.crowded.is_some_and(|until| until > Instant::now() + Duration::from_secs(1)));
        eager.was_short = true;
        assert_eq!(eager.look(|| Some(())), None, "it sleeps though a look would find something");
        eager.crowded = Some(Instant::now());
        assert_eq!(eager.look(|| Some(())), Some(()));
    }
}
