//! XRC objects shared by several openers of a function (IBTA annex A14): domains, which openers find by an open file,
//! and target QPs in them, found by number.
//!
//! These objects belong to the function. Each reference ("hold") is recorded with its opener, and an object is
//! destroyed with its last hold. Holds of dead openers are found by the next opener that opens, closes or shares such
//! an object.

use super::{BLOCK, BLOCK_WORDS, FunctionLock, PAGE_BLOCKS, SHARED_LEN};
use crate::error::Error;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Maximum number of XRC domains with a file.
const DOMAINS: usize = 128;
/// Words per domain: device and inode of the file (two each), number + 1.
const DOMAIN_WORDS: usize = 6;
/// Maximum number of holds.
const HOLDS: usize = 2048;
/// Words per hold: opener and object.
const HOLD_WORDS: usize = 2;
/// Words for the numbers of the placeholders.
const PLACEHOLDERS: usize = 8;

const PLACEHOLDER: usize = BLOCK + PAGE_BLOCKS * BLOCK_WORDS;
const DOMAIN: usize = PLACEHOLDER + PLACEHOLDERS;
const HOLD: usize = DOMAIN + DOMAINS * DOMAIN_WORDS;
pub(super) const END: usize = HOLD + HOLDS * HOLD_WORDS;
const _: () = assert!(END * 4 <= SHARED_LEN);

/// Bit in a hold that tells the kind of object.
const DOMAIN_FLAG: u32 = 1 << 30;
const TARGET_FLAG: u32 = 1 << 31;

/// The file that identifies an XRC domain: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// An object of the function held by openers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XrcObject {
    /// A target QP. Sorts before domains, so that it is destroyed before its own domain.
    Target(u32),
    /// An XRC domain.
    Domain(u32),
}

impl XrcObject {
    fn raw(self) -> u32 {
        match self {
            Self::Target(number) => TARGET_FLAG | number & 0xff_ffff,
            Self::Domain(number) => DOMAIN_FLAG | number & 0xff_ffff,
        }
    }

    fn from_raw(raw: u32) -> Option<Self> {
        match raw & (TARGET_FLAG | DOMAIN_FLAG) {
            TARGET_FLAG => Some(Self::Target(raw & 0xff_ffff)),
            DOMAIN_FLAG => Some(Self::Domain(raw & 0xff_ffff)),
            _ => None,
        }
    }
}

impl FunctionLock<'_> {
    /// Clears all records after a reset of the function.
    pub fn clear_xrc(&self) {
        (PLACEHOLDER..END).for_each(|word| self.0.word(word).store(0, Release));
    }

    /// The recorded numbers of the placeholders; all zero if there are none.
    pub fn placeholders(&self) -> [u32; PLACEHOLDERS] {
        std::array::from_fn(|at| self.0.word(PLACEHOLDER + at).load(Acquire))
    }

    /// Records the placeholders.
    pub fn set_placeholders(&self, words: [u32; PLACEHOLDERS]) {
        words.iter().enumerate().for_each(|(at, word)| self.0.word(PLACEHOLDER + at).store(*word, Release));
    }

    fn domain_words(&self, at: usize) -> [u32; DOMAIN_WORDS] {
        let first = DOMAIN + at * DOMAIN_WORDS;
        std::array::from_fn(|word| self.0.word(first + word).load(Acquire))
    }

    fn set_domain(&self, at: usize, words: [u32; DOMAIN_WORDS]) {
        let first = DOMAIN + at * DOMAIN_WORDS;
        words.iter().enumerate().for_each(|(word, value)| self.0.word(first + word).store(*value, Release));
    }

    /// The domain of a file.
    pub fn domain_of(&self, file: FileId) -> Option<u32> {
        let key = split(file);
        let found = (0..DOMAINS).map(|at| self.domain_words(at)).find(|w| w[4] != 0 && w[..4] == key);
        found.map(|words| words[4] - 1)
    }

    /// Records the domain of a file. ENOMEM: too many files have a domain.
    pub fn name_domain(&self, file: FileId, xrcdn: u32) -> Result<(), Error> {
        let free = (0..DOMAINS).find(|at| self.domain_words(*at)[4] == 0);
        let at = free.ok_or_else(|| Error::no_memory(format!("{DOMAINS} files have XRC domains already")))?;
        let [a, b, c, d] = split(file);
        self.set_domain(at, [a, b, c, d, xrcdn + 1, 0]);
        Ok(())
    }

    /// Removes the record of a domain's file.
    pub fn unname_domain(&self, xrcdn: u32) {
        for at in (0..DOMAINS).filter(|at| self.domain_words(*at)[4] == xrcdn + 1) {
            self.set_domain(at, [0; DOMAIN_WORDS]);
        }
    }

    /// Opener and object of a hold, `None` if the slot is free.
    fn hold_at(&self, at: usize) -> Option<(u32, u32)> {
        let first = HOLD + at * HOLD_WORDS;
        let what = self.0.word(first + 1).load(Acquire);
        (what != 0).then(|| (self.0.word(first).load(Relaxed), what))
    }

    fn clear_hold(&self, at: usize) {
        self.0.word(HOLD + at * HOLD_WORDS + 1).store(0, Release);
    }

    /// Adds a hold for this opener. ENOMEM: too many holds.
    pub fn hold(&self, object: XrcObject) -> Result<(), Error> {
        self.hold_as(self.0.me, object)
    }

    fn hold_as(&self, opener: u32, object: XrcObject) -> Result<(), Error> {
        let free = (0..HOLDS).find(|at| self.hold_at(*at).is_none());
        let at = free.ok_or_else(|| {
            Error::no_memory(format!("{HOLDS} XRC domains and target QPs of the function are open already"))
        })?;
        self.0.word(HOLD + at * HOLD_WORDS).store(opener, Relaxed);
        self.0.word(HOLD + at * HOLD_WORDS + 1).store(object.raw(), Release);
        Ok(())
    }

    /// Records an object without holders that could not be destroyed yet, as if held by a dead opener.
    pub fn orphan(&self, object: XrcObject) -> Result<(), Error> {
        self.hold_as(0, object)
    }

    /// True if any opener holds it.
    pub fn is_held(&self, object: XrcObject) -> bool {
        (0..HOLDS).filter_map(|at| self.hold_at(at)).any(|(_, what)| what == object.raw())
    }

    /// Removes one of our holds. Returns true if no holder is left.
    pub fn drop_hold(&self, object: XrcObject) -> bool {
        let mine = (0..HOLDS).find(|at| self.hold_at(*at) == Some((self.0.me, object.raw())));
        if let Some(at) = mine {
            self.clear_hold(at);
        }
        !self.is_held(object)
    }

    /// Returns the objects that only dead openers hold, target QPs first. Removes holds of dead openers on objects
    /// that living ones hold too.
    pub fn abandoned(&self) -> Vec<XrcObject> {
        let dead = |opener: u32| opener == 0 || opener != self.0.me && !self.0.transport.alive(opener);
        let all = (0..HOLDS).filter_map(|at| self.hold_at(at).map(|(opener, what)| (at, opener, what)));
        let (gone, living): (Vec<_>, Vec<_>) = all.partition(|(_, opener, _)| dead(*opener));
        let mut found = Vec::new();
        for (at, _, what) in gone {
            match living.iter().any(|(.., same)| *same == what) {
                true => self.clear_hold(at),
                false => found.extend(XrcObject::from_raw(what)),
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Removes all holds of a destroyed object.
    pub fn remove_holders(&self, object: XrcObject) {
        for at in 0..HOLDS {
            if self.hold_at(at).is_some_and(|(_, what)| what == object.raw()) {
                self.clear_hold(at);
            }
        }
    }
}

fn split(file: FileId) -> [u32; 4] {
    [file.dev as u32, (file.dev >> 32) as u32, file.ino as u32, (file.ino >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        shared_area::Shared,
        transport::{Transport, fake::Chip},
    };
    use std::{sync::Arc, time::Duration};

    const FILE: FileId = FileId { dev: 1 << 40 | 7, ino: 3 << 33 };

    #[test]
    fn an_object_goes_with_its_last_living_holder() {
        let chip = Chip::new();
        let shared = |opener| {
            let transport: Arc<dyn Transport> = chip.opener(opener);
            Shared::open(&transport).unwrap()
        };
        let (a, b) = (shared(1), shared(2));
        let domain = XrcObject::Domain(5);
        let with = |shared: &Shared, then: &dyn Fn(&FunctionLock<'_>) -> bool| {
            then(&shared.lock(Duration::from_secs(1)).unwrap())
        };
        assert!(with(&a, &|lock| {
            lock.name_domain(FILE, 5).unwrap();
            lock.hold(domain).unwrap();
            lock.hold(XrcObject::Target(9)).unwrap();
            lock.domain_of(FILE) == Some(5) && lock.domain_of(FileId { ino: 1, ..FILE }).is_none()
        }));
        assert!(with(&b, &|lock| {
            lock.hold(domain).unwrap();
            lock.abandoned().is_empty() && !lock.drop_hold(XrcObject::Target(9))
        }));
        chip.state().dead.insert(1);
        assert!(with(&b, &|lock| lock.abandoned() == [XrcObject::Target(9)]));
        assert!(with(&b, &|lock| {
            lock.remove_holders(XrcObject::Target(9));
            lock.abandoned().is_empty() && !lock.is_held(XrcObject::Target(9))
        }));
        // `abandoned` has removed the dead opener's hold.
        assert!(with(&b, &|lock| lock.drop_hold(domain) && lock.abandoned().is_empty()));
        assert!(with(&b, &|lock| {
            lock.unname_domain(5);
            lock.domain_of(FILE).is_none()
        }));
    }

    #[test]
    fn too_many_holds_are_refused() {
        let chip = Chip::new();
        let transport: Arc<dyn Transport> = chip.opener(1);
        let shared = Shared::open(&transport).unwrap();
        let lock = shared.lock(Duration::from_secs(1)).unwrap();
        for _ in 0..HOLDS {
            lock.hold(XrcObject::Target(1)).unwrap();
        }
        assert_eq!(lock.hold(XrcObject::Target(1)).unwrap_err().errno(), libc::ENOMEM);
        lock.clear_xrc();
        assert!(!lock.is_held(XrcObject::Target(1)));
    }
}
