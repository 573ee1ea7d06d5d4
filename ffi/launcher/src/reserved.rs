//! Descriptor numbers for the supervisor's sockets that cannot occur as a program's own descriptors.
//!
//! A seccomp filter distinguishes sockets only by their numbers, and a trapped call depends on the supervisor. The kernel allocates no
//! number at or above a process's limit (`RLIMIT_NOFILE`), so the reserved numbers begin at the launched program's limit: it can have no
//! socket there, and none of its own calls is trapped. The supervisor raises the limit while it installs a socket.

use super::sys::{self, Answer, Limit};
use std::io;
use std::ops::Range;

/// Maximum number of descriptors for the program itself, as far as its own limit allows. Servers request at most 65536, and larger numbers
/// would require a kernel descriptor table of a megabyte.
const OWN: u64 = 65536;
/// Maximum number of RDMA netlink sockets of a program at a time. iproute2's `rdma` opens up to three for each device and closes none.
const MOST: u64 = 512;
/// Minimum number of sockets: one for each of 128 devices.
const LEAST: u64 = 160;

/// The reserved numbers, and the limits that keep programs from using them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    first: u32,
    end: u32,
    /// The limits that the program is started with.
    program: Limit,
}

impl Reserved {
    /// Chooses the numbers for the program that the calling process will exec, or with `given` for one with those limits.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported): the program's limit is too low to reserve any.
    pub fn choose(given: Option<Limit>) -> io::Result<Self> {
        let limit = sys::descriptor_limit(None)?;
        let raises = sys::in_child(|| {
            let hard = limit.hard.min(OWN);
            sys::limit_descriptors(None, Limit { soft: hard, hard })?;
            sys::limit_descriptors(None, Limit { soft: hard, hard: OWN + MOST })
        });
        let chosen = Self::under(given.unwrap_or(limit), raises == Answer::Yes, sys::inherited()?);
        if chosen.numbers().is_empty() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(chosen)
    }

    /// Chooses the numbers on a host with limits `limit`, for a program that inherits descriptors `inherited`. A process that may raise a
    /// hard limit takes numbers above the maximum of programs. Others can only raise a soft limit, so they take the last numbers below the
    /// hard limit and lower the soft one.
    fn under(limit: Limit, raises: bool, mut inherited: Vec<u32>) -> Self {
        let window = match raises || limit.hard >= OWN + MOST {
            true => OWN..OWN + MOST,
            false => limit.hard * 3 / 8..limit.hard,
        };
        // Inherited descriptors remain the program's, so the range lies between two of them.
        inherited.sort_unstable();
        let taken = inherited.into_iter().map(u64::from).filter(|number| window.contains(number));
        let mut widest = window.start..window.start;
        let mut start = window.start;
        for end in taken.chain([window.end]) {
            if end - start > widest.end - widest.start {
                widest = start..end;
            }
            start = end + 1;
        }
        let count = (limit.hard / 8).clamp(LEAST, MOST);
        let count = if window.start == OWN { MOST } else { count };
        let (first, end) = (widest.start.max(widest.end.saturating_sub(count)), widest.end);
        let hard = if raises { limit.hard.min(first) } else { limit.hard };
        // Both are below 2^17.
        Self { first: first as u32, end: end as u32, program: Limit { soft: limit.soft.min(first), hard } }
    }

    /// The numbers that a supervisor has already chosen, for the program that the calling process will exec.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported): the program inherits descriptors with these numbers.
    pub fn chosen(numbers: Range<u32>) -> io::Result<Self> {
        if sys::inherited()?.iter().any(|number| numbers.contains(number)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let limit = sys::descriptor_limit(None)?;
        let soft = limit.soft.min(numbers.start.into());
        Ok(Self { first: numbers.start, end: numbers.end, program: Limit { soft, ..limit } })
    }

    #[cfg(test)]
    pub fn of(numbers: Range<u32>) -> Self {
        let limit = u64::from(numbers.start);
        Self { first: numbers.start, end: numbers.end, program: Limit { soft: limit, hard: limit } }
    }

    /// The soft limit that the program is started with.
    pub fn soft_limit(self) -> u64 {
        self.program.soft
    }

    /// The numbers.
    pub fn numbers(self) -> Range<u32> {
        self.first..self.end
    }

    /// Lowers the limits of the calling process and its children to the first reserved number.
    pub fn keep_away(self) -> io::Result<()> {
        sys::limit_descriptors(None, self.program)
    }

    /// Permits `process` the reserved numbers while `give` runs.
    ///
    /// # Errors
    /// EPERM: the process has lowered its hard limit, and this process may not raise it.
    pub fn lift<T>(self, process: u32, give: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let before = sys::descriptor_limit(Some(process))?;
        let end = u64::from(self.end);
        let lifted = Limit { soft: before.soft.max(end), hard: before.hard.max(end) };
        sys::limit_descriptors(Some(process), lifted)?;
        let given = give();
        // Another thread of the program may have changed the limit meanwhile. Then it stays.
        if sys::descriptor_limit(Some(process)).is_ok_and(|now| now == lifted) {
            let _ = sys::limit_descriptors(Some(process), before);
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(soft: u64, hard: u64, raises: bool) -> (Range<u32>, u64, u64) {
        let reserved = Reserved::under(Limit { soft, hard }, raises, vec![0, 1, 2]);
        (reserved.numbers(), reserved.program.soft, reserved.program.hard)
    }

    #[test]
    fn numbers_begin_where_the_programs_own_end() {
        // With the right to raise limits, the program's own limits remain, up to a bound.
        assert_eq!(under(256, 256, true), (65536..66048, 256, 256));
        assert_eq!(under(1024, 4096, true), (65536..66048, 1024, 4096));
        assert_eq!(under(1 << 20, 1 << 20, true), (65536..66048, 65536, 65536));
        // Without it the numbers must lie below the hard limit.
        assert_eq!(under(1024, 1 << 19, false), (65536..66048, 1024, 1 << 19));
        assert_eq!(under(1024, 4096, false), (3584..4096, 1024, 4096));
        assert_eq!(under(4096, 4096, false), (3584..4096, 3584, 4096));
        assert_eq!(under(1024, 1024, false), (864..1024, 864, 1024));
        // The minimum: a socket for each of 128 devices.
        assert_eq!(under(256, 256, false), (96..256, 96, 256));
        for hard in 0..2000 {
            let (numbers, soft, _) = under(hard, hard, false);
            assert!(soft <= u64::from(numbers.start) && u64::from(numbers.end) <= hard, "{hard}");
        }
        assert!(under(0, 0, false).0.is_empty());
    }

    #[test]
    fn inherited_descriptors_are_not_among_the_numbers() {
        let under = |inherited: &[u32]| {
            let reserved = Reserved::under(Limit { soft: 256, hard: 256 }, false, inherited.to_vec());
            reserved.numbers()
        };
        assert_eq!(under(&[251, 2, 10]), 96..251);
        assert_eq!(under(&[120, 100, 255]), 121..255);
        assert_eq!(under(&(0..256).collect::<Vec<_>>()), 96..96);
    }

    #[test]
    fn a_lifted_limit_comes_down_again_and_one_the_program_set_meanwhile_stays() {
        let reserved = Reserved::of(100..120);
        let answer = sys::in_child(|| {
            let me = std::process::id();
            let is = |limit: Limit| match sys::descriptor_limit(Some(me))? == limit {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::EIO)),
            };
            let (low, other) = (Limit { soft: 90, hard: 120 }, Limit { soft: 60, hard: 110 });
            sys::limit_descriptors(None, low)?;
            reserved.lift(me, || is(Limit { soft: 120, hard: 120 }))?;
            is(low)?;
            reserved.lift(me, || sys::limit_descriptors(None, other))?;
            is(other)
        });
        assert_eq!(answer, Answer::Yes);
    }
}
