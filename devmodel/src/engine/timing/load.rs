//! Loads profiles from files.

use super::{
    super::text::{self, TextError},
    Card, Factor, HostCosts, Ns, Rate, Slot, TimingProfile, Wire,
};
use crate::LinkLayer;
use serde::{Deserialize, Deserializer, de::Error};
use std::{fs, ops::Range, path::Path};

/// Names of the built-in profiles.
pub const BUILT_IN: [&str; 6] =
    ["direct-x16", "direct-x8", "pods-switch", "switch-25g", "pods-slow-host", "edr-x16"];

/// Their files, and the card's.
const FILES: [(&str, &str); 7] = [
    ("direct-x16.toml", include_str!("../../../profiles/direct-x16.toml")),
    ("direct-x8.toml", include_str!("../../../profiles/direct-x8.toml")),
    ("pods-switch.toml", include_str!("../../../profiles/pods-switch.toml")),
    ("switch-25g.toml", include_str!("../../../profiles/switch-25g.toml")),
    ("pods-slow-host.toml", include_str!("../../../profiles/pods-slow-host.toml")),
    ("edr-x16.toml", include_str!("../../../profiles/edr-x16.toml")),
    ("connectx5.toml", include_str!("../../../profiles/connectx5.toml")),
];

/// Loading a profile failed.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// There is no profile of this name.
    #[error("expected a profile's file or one of {all}, found {name}", all = BUILT_IN.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A file cannot be read.
    #[error("{0}: {1}")]
    File(String, std::io::Error),
    /// A line of a file is invalid.
    #[error(transparent)]
    Line(#[from] TextError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    /// The card's file, in the same directory or built in.
    card: String,
    slot: Slot,
    wire: Wire,
    host: HostCosts,
}

impl TimingProfile {
    /// Name of the default built-in profile.
    pub fn usual(link_layer: LinkLayer) -> &'static str {
        match link_layer {
            LinkLayer::Ethernet => "direct-x16",
            LinkLayer::Infiniband => "edr-x16",
        }
    }

    /// Loads the profile with this name, or from this file.
    ///
    /// # Errors
    ///
    /// It does not exist, or a line is invalid: an unknown key, a negative or missing number.
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        let file = if BUILT_IN.contains(&name) { format!("{name}.toml") } else { name.to_owned() };
        let beside = Path::new(&file).parent().unwrap_or(Path::new(""));
        let text = text_of(&file).map_err(|e| match e {
            ProfileError::File(..) if !name.contains(['/', '.']) => {
                ProfileError::Unknown { name: name.into() }
            }
            e => e,
        })?;
        let Text { card, slot, wire, host } = text::toml(&file, &text)?;
        let card_file = match FILES.iter().any(|(name, _)| *name == card) {
            true => card,
            false => beside.join(card).display().to_string(),
        };
        let card: Card = text::toml(&card_file, &text_of(&card_file)?)?;
        let name = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let profile = Self { name, card, slot, wire, host };
        match profile.out_of_range() {
            Some(Bound { of_card, key, found, least, most }) => {
                let file = if of_card { card_file } else { file };
                let line = line_with(&text_of(&file)?, key);
                let what = format!("{key}: expected {least} to {most}, found {found}");
                Err(TextError { file, line, what }.into())
            }
            None => Ok(profile),
        }
    }

    /// The first parameter with which a run would never end or could not start.
    fn out_of_range(&self) -> Option<Bound> {
        let (card, slot) = (&self.card, &self.slot);
        let bound = |of_card, key, found: f64, least, most| Bound { of_card, key, found, least, most };
        let bounds = [
            bound(true, "contexts", card.contexts.into(), 1, 1 << 20),
            bound(true, "keys", card.keys.into(), 1, 1 << 20),
            bound(true, "translations", card.translations.into(), 1, 1 << 24),
            bound(true, "chunk", card.chunk.into(), 16, 65536),
            bound(true, "answers_at_once", card.answers_at_once.into(), 1, 65536),
            bound(true, "read_pace", card.read_pace.0, 0, 1000),
            bound(true, "read_pace_bytes", card.read_pace_bytes.into(), 1, u32::MAX),
            bound(true, "ack_every", card.ack_every.into(), 1, 65536),
            bound(true, "min_ack_timeout", card.min_ack_timeout.into(), 0, 31),
            bound(false, "lanes", slot.lanes.into(), 1, 64),
            bound(false, "max_payload", slot.max_payload.into(), 64, 4096),
        ];
        bounds.into_iter().find(|b| b.found < b.least.into() || b.found > b.most.into())
    }
}

/// A parameter of a profile, `of_card` if it is the card's, and its valid range.
struct Bound {
    of_card: bool,
    key: &'static str,
    found: f64,
    least: u32,
    most: u32,
}

fn text_of(file: &str) -> Result<String, ProfileError> {
    match FILES.iter().find(|(name, _)| *name == file) {
        Some((_, text)) => Ok((*text).into()),
        None => fs::read_to_string(file).map_err(|e| ProfileError::File(file.into(), e)),
    }
}

fn line_with(text: &str, key: &str) -> usize {
    let is = |line: &str| line.split('=').next().is_some_and(|name| name.trim() == key);
    text.lines().position(is).map_or(1, |at| at + 1)
}

fn number<'de, D: Deserializer<'de>>(
    from: D,
    unit: &str,
    range: Range<f64>,
    least: &str,
) -> Result<f64, D::Error> {
    let number = f64::deserialize(from)?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(D::Error::custom(format!("expected {unit}, {least}, found {number}"))),
    }
}

impl<'de> Deserialize<'de> for Ns {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // No unit takes more than a millisecond.
        number(from, "ns", 0.0..1e6, "0 to 1000000").map(Self)
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        number(from, "times", 0.01..600.0, "0.01 to 600").map(Self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        number(from, "Gb/s", 1e-3..1e6, "0.001 to 1000000").map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_come_with_the_model_are_whole_and_share_a_card() {
        let profiles = BUILT_IN.map(|name| TimingProfile::load(name).unwrap());
        assert!(profiles.iter().all(|profile| profile.card == profiles[0].card));
        assert!(profiles.iter().zip(BUILT_IN).all(|(profile, name)| profile.name == name));
    }

    #[test]
    fn what_a_file_lacks_or_has_too_much_is_said_with_its_line() {
        let room = testkit::Scratch::new();
        fs::create_dir_all(&room.0).unwrap();
        let file = room.0.join("mine.toml");
        let good = FILES[0].1;
        let said = |text: &str| {
            fs::write(&file, text).unwrap();
            match TimingProfile::load(file.to_str().unwrap()) {
                Ok(_) => "taken".to_owned(),
                Err(e) => e.to_string().replace(&file.display().to_string(), "mine.toml"),
            }
        };
        assert_eq!(said(good), "taken");
        let line = |key: &str| line_with(good, key);
        let changed = |key: &str, to: &str| {
            let name = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
            let lines = good.lines().map(|line| if name(line) == key { to } else { line });
            lines.collect::<Vec<_>>().join("\n")
        };
        let at = line("pio");
        assert_eq!(
            said(&changed("pio", "pio = -3")),
            format!("mine.toml:{at}: expected ns, 0 to 1000000, found -3")
        );
        let unknown = said(&changed("pio", "piu = 3"));
        assert!(
            unknown.starts_with(&format!("mine.toml:{at}: unknown field `piu`, expected one of ")),
            "{unknown}"
        );
        let missing = said(&changed("pio", ""));
        assert!(missing.contains("missing field `pio`"), "{missing}");
        let words = said(&changed("pio", "pio = \"fast\""));
        assert!(words.starts_with(&format!("mine.toml:{at}: invalid type: string \"fast\"")), "{words}");
        let at = line("lanes");
        assert_eq!(
            said(&changed("lanes", "lanes = 0")),
            format!("mine.toml:{at}: lanes: expected 1 to 64, found 0")
        );
        let falling = said(&changed("spread_cq", "spread_cq = [5, 3, 1]"));
        assert!(falling.contains("expected three rising numbers"), "{falling}");
        let none = TimingProfile::load("direct-x4").unwrap_err().to_string();
        assert!(
            none.starts_with("expected a profile's file or one of direct-x16, ")
                && none.ends_with("found direct-x4"),
            "{none}"
        );
        let gone = said(&good.replace("connectx5.toml", "none.toml"));
        assert!(gone.contains("none.toml: No such file"), "{gone}");
    }
}
