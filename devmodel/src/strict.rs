//! The digital twin's strictness: how closely the adapter enforces a card's rules. Without a switch it grants everything it
//! can carry out.

use crate::named::named;
use hwspec::pcie::{ADAPTERS, Adapter, PF_DEVICE_ID};
use std::{fmt, str::FromStr};

/// Independent switches of the adapter's strictness; by default it is as permissive as it can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strict {
    /// `owner=pf`: the PF controls its VFs' addresses, the frames that reach them, and their view of the port.
    pub owner: bool,
    /// `pages=real`: pages are requested in thousands, while commands wait, in both directions.
    pub pages: bool,
    /// `events=strict`: each class of events that the capabilities offer is mapped once, and not to a user context.
    pub events: bool,
    /// `uid=strict`: a user context can use only its own objects and what its rights allow.
    pub uid: bool,
    /// `reserved=zero`: bits of a command that belong to no field must be zero.
    pub reserved: bool,
    /// `slow`: operations that take seconds on a card take this many millionths of that time; 0 takes no time.
    pub slow: u32,
    /// `ids`: the card with the identifiers and capabilities that the adapter presents.
    pub card: Card,
}

named! {
    /// A card of the family. Files store it by its number.
    #[derive(Default)]
    pub enum Card, ALL;
    /// Device ID of its PF, major version of its firmware, number of its silicon, and its name among the switches.
    fn facts -> (u16, u16, u32, &'static str);

    /// ConnectX-5.
    #[default]
    Cx5 = (PF_DEVICE_ID, 16, 0x20d, "cx5"),
    /// ConnectX-4 Lx.
    Cx4Lx = (0x1015, 14, 0x20b, "cx4lx"),
    /// ConnectX-6.
    Cx6 = (0x101b, 20, 0x20f, "cx6"),
    /// ConnectX-6 Dx.
    Cx6Dx = (0x101d, 22, 0x212, "cx6dx"),
    /// ConnectX-7.
    Cx7 = (0x1021, 28, 0x218, "cx7"),
    /// BlueField-2, as its host sees it.
    BlueField2 = (0xa2d6, 24, 0x214, "bf2"),
}

impl Card {
    /// Its entry in the list of adapters of the family.
    fn adapter(self) -> &'static Adapter {
        // A test below checks that each card has an entry.
        ADAPTERS.iter().find(|adapter| adapter.physical == self.facts().0).unwrap_or(&ADAPTERS[0])
    }

    /// Device ID of its function `fid`; 0 is the PF.
    pub fn device_id(self, fid: u8) -> u16 {
        if fid == 0 { self.adapter().physical } else { self.adapter().virtual_function }
    }

    /// Major version of its firmware.
    pub const fn firmware(self) -> u16 {
        self.facts().1
    }

    /// Number of its silicon, as reported in the health buffer (mstflint: `HW_DEV_ID`).
    pub const fn hardware(self) -> u32 {
        self.facts().2
    }

    /// True if it has device memory to allocate, and relaxed ordering: ConnectX-5 and later.
    pub const fn has_later_features(self) -> bool {
        !matches!(self, Self::Cx4Lx)
    }

    /// True if flow tables of a vport can change VLAN tags: ConnectX-6 Dx and later.
    pub const fn steers_tags(self) -> bool {
        matches!(self, Self::Cx6Dx | Self::Cx7 | Self::BlueField2)
    }

    /// Its name among the switches.
    pub const fn name(self) -> &'static str {
        self.facts().3
    }
}

/// The description of strictness is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected all, none, or some of owner=pf,pages=real,events=strict,uid=strict,reserved=zero,slow=0.01,\
     ids=cx5|cx4lx|cx6|cx6dx|cx7|bf2, found '{0}' in them"
)]
pub struct StrictError(String);

/// The factor at which one second takes one second.
const TRUE_TIME: u32 = 1_000_000;

impl Strict {
    /// All switches, on a ConnectX-5, at a hundredth of a card's times.
    pub const ALL: Self = Self {
        owner: true,
        pages: true,
        events: true,
        uid: true,
        reserved: true,
        slow: TRUE_TIME / 100,
        card: Card::Cx5,
    };

    /// The boolean switches, with their names.
    fn switches(&self) -> [(&'static str, bool); 5] {
        [
            ("owner=pf", self.owner),
            ("pages=real", self.pages),
            ("events=strict", self.events),
            ("uid=strict", self.uid),
            ("reserved=zero", self.reserved),
        ]
    }

    /// Encoded as words of a file.
    pub fn words(&self) -> [u32; 3] {
        let flags = self.switches().iter().rev().fold(0, |bits, (_, on)| bits << 1 | u32::from(*on));
        [flags, self.slow, self.card as u32]
    }

    /// The inverse of [`Strict::words`]; `None` for invalid words.
    pub fn of_words([flags, slow, card]: [u32; 3]) -> Option<Self> {
        let on = |bit: u32| flags >> bit & 1 != 0;
        let known = flags < 1 << Self::default().switches().len() && slow <= TRUE_TIME;
        known.then_some(Self {
            owner: on(0),
            pages: on(1),
            events: on(2),
            uid: on(3),
            reserved: on(4),
            slow,
            card: *Card::ALL.get(card as usize)?,
        })
    }
}

impl FromStr for Strict {
    type Err = StrictError;

    fn from_str(text: &str) -> Result<Self, StrictError> {
        let mut strict = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = || StrictError(part.into());
            match part.split_once('=').unwrap_or((part, "")) {
                ("all", "") => strict = Self { card: strict.card, ..Self::ALL },
                ("none", "") => strict = Self::default(),
                ("owner", "pf") => strict.owner = true,
                ("pages", "real") => strict.pages = true,
                ("events", "strict") => strict.events = true,
                ("uid", "strict") => strict.uid = true,
                ("reserved", "zero") => strict.reserved = true,
                ("slow", "") if !part.ends_with('=') => strict.slow = TRUE_TIME,
                ("slow", factor) => strict.slow = millionths(factor).ok_or_else(wrong)?,
                ("ids", name) => {
                    let card = Card::ALL.into_iter().find(|card| card.name() == name);
                    strict.card = card.ok_or_else(wrong)?;
                }
                _ => return Err(wrong()),
            }
        }
        Ok(strict)
    }
}

impl fmt::Display for Strict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("none");
        }
        let mut parts: Vec<String> =
            self.switches().iter().filter(|(_, on)| *on).map(|(name, _)| (*name).into()).collect();
        if self.slow != 0 {
            parts.push(format!("slow={}", f64::from(self.slow) / f64::from(TRUE_TIME)));
        }
        if self.card != Card::default() {
            parts.push(format!("ids={}", self.card.name()));
        }
        f.write_str(&parts.join(","))
    }
}

/// Parses a factor such as `0.01` or `1` into millionths; it must not round to zero or exceed one.
fn millionths(text: &str) -> Option<u32> {
    let factor = text.parse::<f64>().ok()? * f64::from(TRUE_TIME);
    (1.0..=f64::from(TRUE_TIME)).contains(&factor).then_some(factor.round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read_and_written() {
        let strict = |text: &str| text.parse::<Strict>();
        let some = strict("owner=pf,reserved=zero,slow=0.01,ids=cx6dx").expect("known");
        assert!(some.owner && some.reserved && !some.events);
        assert_eq!((some.slow, some.card), (10_000, Card::Cx6Dx));
        assert_eq!((strict("slow").map(|s| s.slow), strict("all")), (Ok(TRUE_TIME), Ok(Strict::ALL)));
        for text in
            ["none", "", "all", "all,ids=bf2", "ids=cx7,all", "slow=1", "pages=real,events=strict,uid=strict"]
        {
            let read = strict(text).expect(text);
            assert_eq!(strict(&read.to_string()), Ok(read), "{text}");
            assert_eq!(Strict::of_words(read.words()), Some(read), "{text}");
        }
        assert_eq!(Strict::default().to_string(), "none");
        assert_eq!(strict("all,none"), Ok(Strict::default()));
        let wrongs =
            ["owner", "owner=vf", "slow=", "slow=0", "slow=2", "slow=nan", "ids", "ids=cx8", "order", "real"];
        for wrong in wrongs {
            assert_eq!(strict(wrong), Err(StrictError(wrong.into())));
        }
    }

    #[test]
    fn each_card_has_identifiers_of_its_own() {
        let ids = Card::ALL.map(|card| [card.device_id(0), card.device_id(1)]);
        let expected = [
            [0x1017, 0x1018],
            [0x1015, 0x1016],
            [0x101b, 0x101c],
            [0x101d, 0x101e],
            [0x1021, 0x101e],
            [0xa2d6, 0x101e],
        ];
        assert_eq!(ids, expected);
    }

    #[test]
    fn words_that_nobody_wrote_are_known() {
        for words in [[32, 0, 0], [0, TRUE_TIME + 1, 0], [0, 0, 6]] {
            assert_eq!(Strict::of_words(words), None);
        }
    }
}
