//! Waits that begin with looking, where that pays.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Somebody who waits looks for no longer. To sleep and be woken takes 5 us, or 40 on a virtual machine whose idle processors are its host's.
const MOST: Duration = Duration::from_micros(200);
/// A thread that yields between two looks is in the way of others if it gets the processor back later than this.
const LATE: Duration = Duration::from_micros(50);
/// Then it does not look for so many times as long.
const SHARE: u32 = 100;

/// Says whether a wait pays to begin with looks: it does if the last one was short and nobody else wants the processor. So who waits for long
/// costs none, and who is asked again and again answers at once.
#[derive(Debug, Default)]
pub struct Eager {
    was_short: bool,
    begun: Option<Instant>,
    /// Until when others need the processor.
    crowded: Option<Instant>,
}

impl Eager {
    /// Begins a wait. Looks by `look` until that finds something, for as long as it pays; if nothing is returned the caller sleeps. Both say
    /// when the wait is over, by [`end`](Self::end).
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

    /// Ends the wait: a message is there.
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
        // A sleep may take long on a busy machine; one in many does not.
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
        // As if another thread had the processor that long.
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
