//! An input as a list of lies: of which kind each is, and when it is told.

use crate::bytes::Bytes;
use std::collections::VecDeque;

/// The subject of a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value that configuration space reads as.
    Config,
    /// The value that a register reads as.
    Register,
    /// A write to a register, which gets lost.
    Lost,
    /// The answer to a command.
    Answer,
    /// Completions that nothing has caused.
    Completion,
    /// Events that nothing has caused.
    Event,
    /// Requests for pages.
    Pages,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 7;
}

/// A lie.
#[derive(Clone, Debug)]
pub struct Lie {
    /// Occasions to tell it that pass before.
    after: u32,
    /// How it is told.
    pub shape: u8,
    /// How often, beyond once.
    pub count: u8,
    /// The value that is told.
    pub value: u64,
}

/// The lies of an input that have not been told yet, by kind, and how many have been.
pub struct Told {
    lies: [VecDeque<Lie>; Kind::COUNT],
    /// Lies are told again when all have been.
    endless: bool,
    /// Occasions since the last lie of the kind.
    passed: [u32; Kind::COUNT],
    /// The lie that is told again at the next occasion, and how often.
    again: [Option<(Lie, u8)>; Kind::COUNT],
    /// Lies told.
    pub counts: [u64; Kind::COUNT],
}

impl Told {
    /// The lies that `input` says.
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

    /// The lie of `kind` that is due at an occasion for one, unless there is nothing to tell it of.
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
        // The count of what is written into queues is that of entries.
        let repeats = matches!(kind, Kind::Config | Kind::Register | Kind::Lost | Kind::Answer);
        self.again[at] = (repeats && lie.count % 8 > 0).then(|| (lie.clone(), lie.count % 8));
        Some(lie)
    }
}
