//! Parses an input as a list of lies, each with a kind and a time.

use crate::bytes::Bytes;
use std::collections::VecDeque;

/// The subject of a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A wrong value read from configuration space.
    Config,
    /// A wrong value read from a register.
    Register,
    /// A register write that is lost.
    Lost,
    /// A wrong answer to a command.
    Answer,
    /// Spurious completions.
    Completion,
    /// Spurious events.
    Event,
    /// Requests for pages.
    Pages,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 7;
}

/// A lie.
#[derive(Clone, Debug)]
pub struct Lie {
    /// Number of occasions to let pass first.
    after: u32,
    /// Variant of the lie.
    pub shape: u8,
    /// Number of repetitions.
    pub count: u8,
    /// The false value.
    pub value: u64,
}

/// The lies of an input not told yet, by kind, and the number of those told.
pub struct Told {
    lies: [VecDeque<Lie>; Kind::COUNT],
    /// Starts over when all lies have been told.
    endless: bool,
    /// Occasions since the last lie of the kind.
    passed: [u32; Kind::COUNT],
    /// The lie to repeat at the next occasion, and how many times.
    again: [Option<(Lie, u8)>; Kind::COUNT],
    /// Lies told.
    pub counts: [u64; Kind::COUNT],
}

impl Told {
    /// Parses the lies of `input`.
    pub fn new(mut input: Bytes<'_>, endless: bool) -> Self {
        let mut lies: [VecDeque<Lie>; Kind::COUNT] = Default::default();
        while !input.is_empty() {
            let kind = usize::from(input.u8()) % Kind::COUNT;
            let after = match input.u8() {
                few @ 0..0x80 => u32::from(few),
                many => u32::from(many - 0x7c) * 32,
            };
            lies[kind].push_back(Lie { after, shape: input.u8(), count: input.u8(), value: input.u64() });
        }
        Self { lies, endless, passed: [0; Kind::COUNT], again: Default::default(), counts: [0; Kind::COUNT] }
    }

    /// Returns the lie of `kind` that is due at this occasion. `any` is false if there is no object to lie about.
    pub fn due(&mut self, kind: Kind, any: bool) -> Option<Lie> {
        let at = kind as usize;
        if !any {
            return None;
        }
        if let Some((lie, left)) = self.again[at].take() {
            self.again[at] = (left > 1).then(|| (lie.clone(), left - 1));
            return Some(lie);
        }
        self.passed[at] += 1;
        self.lies[at].front().filter(|lie| lie.after < self.passed[at])?;
        let lie = self.lies[at].pop_front()?;
        self.passed[at] = 0;
        self.counts[at] += 1;
        if self.endless {
            self.lies[at].push_back(lie.clone());
        }
        // For queue entries, the count is the number of entries instead.
        let repeats = matches!(kind, Kind::Config | Kind::Register | Kind::Lost | Kind::Answer);
        self.again[at] = (repeats && lie.count % 8 > 0).then(|| (lie.clone(), lie.count % 8));
        Some(lie)
    }
}
