//! The names and PCI addresses of a node's functions. The adapter itself does not know them, as a card does not know its slot.

use crate::devices::MAX_VFS;
use std::{fmt, str::FromStr};

/// Maximum length of a name's prefix. With the number it fits into the kernel's 64 bytes (IB_DEVICE_NAME_MAX).
const LONGEST: usize = 16;

/// The verbs name of the PF, such as `mlx5_0`; VFs have the following numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Padded with zeros.
    prefix: [u8; LONGEST],
    number: u16,
}

/// The PCI bus with the PF as its first function, followed by the VFs (SR-IOV offset 1, stride 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bus {
    domain: u16,
    bus: u8,
}

/// The names and addresses of a node's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The verbs names.
    pub name: Name,
    /// The PCI addresses.
    pub bus: Bus,
    /// The NUMA node that the adapter reports.
    pub numa: Option<u16>,
}

impl Default for Naming {
    fn default() -> Self {
        let mut prefix = [0; LONGEST];
        prefix[..4].copy_from_slice(b"iron");
        Self { name: Name { prefix, number: 0 }, bus: Bus { domain: 0, bus: 0xc1 }, numa: None }
    }
}

impl Name {
    /// The name of function `fid`.
    pub fn of(&self, fid: u8) -> String {
        let prefix: String =
            self.prefix.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
        format!("{prefix}{}", u32::from(self.number) + u32::from(fid))
    }

    /// True for a valid prefix: letters, digits and the kernel's separators, beginning with a letter and not ending in a digit.
    fn is_prefix(text: &[u8]) -> bool {
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        text.first().is_some_and(u8::is_ascii_alphabetic)
            && text.last().is_some_and(|last| !last.is_ascii_digit())
            && text.iter().all(inner)
            && text.len() <= LONGEST
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of(0))
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, digits) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        let number = digits.parse().ok().filter(|number: &u16| number.to_string() == digits);
        let number = number.filter(|_| Self::is_prefix(prefix.as_bytes())).ok_or_else(|| {
            format!(
                "expected letters and a number, such as mlx5_0, {LONGEST} letters at most, found '{text}'"
            )
        })?;
        let mut name = Self { prefix: [0; LONGEST], number };
        name.prefix[..prefix.len()].copy_from_slice(prefix.as_bytes());
        Ok(name)
    }
}

impl Bus {
    /// The address of function `fid`, `dddd:bb:dd.f`.
    pub fn of(&self, fid: u8) -> String {
        format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, fid >> 3, fid & 7)
    }
}

impl fmt::Display for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of(0))
    }
}

impl FromStr for Bus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hex = |digits: &str, len| {
            let whole = digits.len() == len && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            u16::from_str_radix(digits, 16).ok().filter(|_| whole)
        };
        let parse = || {
            let (domain, bus) = text.strip_suffix(":00.0")?.split_once(':')?;
            Some(Self { domain: hex(domain, 4)?, bus: hex(bus, 2)? as u8 })
        };
        parse().ok_or_else(|| {
            format!("expected the first address of a PCI bus, such as 0000:3b:00.0, found '{text}'")
        })
    }
}

impl Naming {
    /// The naming of the node after `count` others in one view, with this naming for the first: its names follow theirs, and each node has
    /// its own bus.
    #[must_use]
    pub fn behind(self, count: usize) -> Self {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        let functions = u16::from(MAX_VFS) + 1;
        let number = self.name.number.wrapping_add(functions.wrapping_mul(count));
        let bus = (u32::from(self.bus.domain) << 8 | u32::from(self.bus.bus)).wrapping_add(count.into());
        let bus = Bus { domain: (bus >> 8) as u16, bus: bus as u8 };
        Self { name: Name { number, ..self.name }, bus, ..self }
    }
}

/// Words of a naming in a node's file.
pub const WORDS: usize = 7;

impl Naming {
    /// Encodes it as words of a file.
    pub fn words(&self) -> [u32; WORDS] {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(self.name.prefix.chunks_exact(4)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        words[4] = self.name.number.into();
        words[5] = u32::from(self.bus.domain) << 8 | u32::from(self.bus.bus);
        words[6] = self.numa.map_or(0, |numa| u32::from(numa) + 1);
        words
    }

    /// Decodes words of a file; `None` if they are not a valid naming.
    pub fn of_words(words: [u32; WORDS]) -> Option<Self> {
        let [letters @ .., number, bus, numa] = words;
        let mut prefix = [0; LONGEST];
        for (bytes, word) in prefix.chunks_exact_mut(4).zip(letters) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let len = prefix.iter().position(|byte| *byte == 0).unwrap_or(LONGEST);
        if !Name::is_prefix(&prefix[..len]) || prefix[len..].iter().any(|byte| *byte != 0) {
            return None;
        }
        Some(Self {
            name: Name { prefix, number: number.try_into().ok()? },
            bus: Bus { domain: (bus >> 8).try_into().ok()?, bus: bus as u8 },
            numa: numa.checked_sub(1).map(u16::try_from).transpose().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_count_on_from_those_of_the_physical_function() {
        let name: Name = "mlx5_9".parse().unwrap();
        assert_eq!((name.of(0), name.of(127)), ("mlx5_9".into(), "mlx5_136".into()));
        let bus: Bus = "0000:5e:00.0".parse().unwrap();
        assert_eq!((bus.of(0), bus.of(127)), ("0000:5e:00.0".into(), "0000:5e:0f.7".into()));
        assert_eq!((name.to_string(), bus.to_string()), ("mlx5_9".into(), "0000:5e:00.0".into()));
    }

    #[test]
    fn nodes_of_one_view_have_names_and_addresses_of_their_own() {
        let first =
            Naming { name: "mlx5_9".parse().unwrap(), bus: "0000:ff:00.0".parse().unwrap(), numa: Some(1) };
        assert_eq!(first.behind(0), first);
        let third = first.behind(2);
        assert_eq!(
            (third.name.of(0), third.bus.of(0), third.numa),
            ("mlx5_265".into(), "0001:01:00.0".into(), Some(1))
        );
        assert_eq!(first.behind(1).name.of(0), "mlx5_137", "behind mlx5_136, the last of the first");
    }

    #[test]
    fn what_is_no_name_and_no_bus_is_refused() {
        for text in [
            "",
            "mlx5_",
            "0",
            "7iron0",
            "mlx5_01",
            "iron/0",
            "iron 0",
            "abcdefghijklmnopq0",
            "iron65536",
            "../x0",
        ] {
            assert!(text.parse::<Name>().unwrap_err().ends_with(&format!("found '{text}'")), "{text}");
        }
        for text in ["", "3b:00.0", "0000:3b:00.1", "0000:3b:01.0", "0:3b:00.0", "0000:+b:00.0", "0000:3b"] {
            assert!(text.parse::<Bus>().unwrap_err().ends_with(&format!("found '{text}'")), "{text}");
        }
    }

    #[test]
    fn a_file_has_what_was_written_to_it_and_nothing_else() {
        let named = Naming {
            name: "abcdefghijklmno_7".parse().unwrap(),
            bus: "ffff:ff:00.0".parse().unwrap(),
            numa: Some(u16::MAX),
        };
        for naming in [Naming::default(), named] {
            assert_eq!(Naming::of_words(naming.words()), Some(naming));
        }
        for (word, value) in [(0, 0), (0, 0x6e2f_7269), (2, 1), (4, 1 << 16), (5, 1 << 24), (6, 0x1_0001)] {
            let mut words = Naming::default().words();
            words[word] = value;
            assert_eq!(Naming::of_words(words), None, "word {word}: {value:x}");
        }
    }
}
