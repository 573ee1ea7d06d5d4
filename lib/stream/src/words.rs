//! Comparison of two streams by words: the commands and requests, their fields, and the order of their first
//! appearance; and a list of reviewed differences.

use crate::{
    normal::is_chance,
    text::{UNANSWERED, is_reserved},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A difference between one stream and another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// It contains a word that the other lacks.
    Sends(String),
    /// It sets a field that the other never sets in this word.
    Sets(String, String),
    /// It sets bits outside all fields that the other never sets.
    Reserved(String, String),
    /// The word appears first at another position among the common words.
    Order(String),
    /// It lacks a word that the other contains.
    Lacks(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sends(word) => write!(f, "sends {word}"),
            Self::Sets(word, field) => write!(f, "sets {word} {field}"),
            Self::Reserved(word, field) => write!(f, "reserved {word} {field}"),
            Self::Order(word) => write!(f, "order {word}"),
            Self::Lacks(word) => write!(f, "lacks {word}"),
        }
    }
}

/// The words of a stream in order of first appearance, and the fields of each.
#[derive(Default)]
pub struct Words {
    order: Vec<String>,
    fields: BTreeMap<String, BTreeSet<String>>,
    /// Words and fields of commands without an answer in the file. The commands may have been refused, which would make
    /// them meaningless, so these only prevent words and fields from being reported as missing.
    perhaps: BTreeMap<String, BTreeSet<String>>,
}

impl Words {
    /// The words of a stream's lines. Refused commands are ignored.
    pub fn of(lines: &[String]) -> Self {
        let mut words = Self::default();
        for line in lines {
            words.add(line);
        }
        words
    }

    /// Adds a line.
    pub fn add(&mut self, line: &str) {
        let (sent, answer) = line.split_once(" ->").unwrap_or((line, ""));
        let first = answer.trim_start().split(' ').next().unwrap_or_default();
        // A refusal starts with the status, or reports that the delivery failed.
        let known = first != UNANSWERED;
        if known && (!first.is_empty() && !first.contains('=') || first.starts_with("delivery=")) {
            return;
        }
        let mut parts = sent.split(' ').filter(|part| !part.is_empty()).peekable();
        // Skip the function number.
        parts.next_if(|part| part.strip_prefix('f').is_some_and(|n| n.parse::<u8>().is_ok()));
        let Some(word) = parts.next() else { return };
        if known && !self.fields.contains_key(word) {
            self.order.push(word.into());
        }
        let said = if known { &mut self.fields } else { &mut self.perhaps };
        let fields = said.entry(word.into()).or_default();
        let names = parts.filter_map(|part| part.split_once('=')).map(|(name, _)| name);
        let told = names.filter(|name| name.rsplit('.').next().is_none_or(|last| !is_chance(last)));
        fields.extend(told.map(ToString::to_string));
    }

    /// Differences of this stream from `other`.
    pub fn unlike(&self, other: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        for word in &self.order {
            let theirs = [other.fields.get(word), other.perhaps.get(word)];
            if theirs == [None; 2] {
                found.push(Difference::Sends(word.clone()));
                continue;
            }
            let has = |field: &&String| theirs.iter().flatten().any(|fields| fields.contains(*field));
            for field in self.fields[word].iter().filter(|field| !has(field)) {
                found.push(match is_reserved(field) {
                    true => Difference::Reserved(word.clone(), field.clone()),
                    false => Difference::Sets(word.clone(), field.clone()),
                });
            }
        }
        // A word that only one stream has tells nothing about the order.
        let common = |mine: &Self, theirs: &Self| -> Vec<String> {
            mine.order.iter().filter(|word| theirs.fields.contains_key(*word)).cloned().collect()
        };
        let (ours, theirs) = (common(self, other), common(other, self));
        let kept = longest_common(&ours, &theirs);
        let mut kept = kept.iter().map(|(i, _)| *i).peekable();
        for (i, word) in ours.into_iter().enumerate() {
            if kept.next_if_eq(&i).is_none() {
                found.push(Difference::Order(word));
            }
        }
        let has = |word: &&String| self.fields.contains_key(*word) || self.perhaps.contains_key(*word);
        let lacking = other.order.iter().filter(|word| !has(word));
        found.extend(lacking.cloned().map(Difference::Lacks));
        found
    }
}

/// Maximum number of cells in the table of [`longest_common`]: 64 MB.
const CELLS: usize = 16 << 20;

/// A longest common subsequence as pairs of indices. For lists too long for the table, only common prefixes and
/// suffixes are compared.
pub fn longest_common<T: PartialEq>(a: &[T], b: &[T]) -> Vec<(usize, usize)> {
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let room = a.len().min(b.len()) - head;
    let tail = a.iter().rev().zip(b.iter().rev()).take(room).take_while(|(x, y)| x == y).count();
    let mut pairs: Vec<_> = (0..head).map(|i| (i, i)).collect();
    let (x, y) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    if x.len().saturating_mul(y.len()) <= CELLS {
        // `table[i][j]`: the longest length for the suffixes that start at i and j.
        let width = y.len() + 1;
        let mut table = vec![0u32; (x.len() + 1) * width];
        for i in (0..x.len()).rev() {
            for j in (0..y.len()).rev() {
                table[i * width + j] = match x[i] == y[j] {
                    true => table[(i + 1) * width + j + 1] + 1,
                    false => table[(i + 1) * width + j].max(table[i * width + j + 1]),
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < x.len() && j < y.len() {
            if x[i] == y[j] {
                pairs.push((head + i, head + j));
                (i, j) = (i + 1, j + 1);
            } else if table[(i + 1) * width + j] >= table[i * width + j + 1] {
                i += 1;
            } else {
                j += 1;
            }
        }
    }
    pairs.extend((0..tail).rev().map(|k| (a.len() - 1 - k, b.len() - 1 - k)));
    pairs
}

/// A diff of two lists of lines: lines only in the first with `-`, lines only in the second with `+`, and up to
/// `around` common lines around these.
pub fn aligned(a: &[String], b: &[String], around: usize) -> Vec<String> {
    let mut all: Vec<(char, &String)> = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (x, y) in longest_common(a, b).into_iter().chain([(a.len(), b.len())]) {
        all.extend(a[i..x].iter().map(|line| ('-', line)));
        all.extend(b[j..y].iter().map(|line| ('+', line)));
        all.extend(a.get(x).map(|line| (' ', line)));
        (i, j) = (x + 1, y + 1);
    }
    let mut shown = vec![false; all.len()];
    for (at, _) in all.iter().enumerate().filter(|(_, (sign, _))| *sign != ' ') {
        let near = at.saturating_sub(around)..(at + around + 1).min(all.len());
        shown[near].fill(true);
    }
    let mut out = Vec::new();
    let mut skipped = false;
    for ((sign, line), shown) in all.into_iter().zip(shown) {
        if shown {
            if std::mem::take(&mut skipped) && !out.is_empty() {
                out.push("...".into());
            }
            out.push(format!("{sign} {line}"));
        }
        skipped |= !shown;
    }
    out
}

/// Differences that have been reviewed, each with a reason.
#[derive(Debug, Default)]
pub struct Allowed(BTreeMap<String, String>);

impl Allowed {
    /// Parses a list with one line per difference: the difference as printed, ` - ` and the reason. Empty lines and
    /// lines starting with `#` are ignored. A difference that ends with `*` is a prefix match.
    ///
    /// # Errors
    /// The first line with a wrong format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
            let wrong = |what: &str| format!("line {}: {what}, found {line:?}", number + 1);
            let (what, reason) =
                line.split_once(" - ").ok_or_else(|| wrong("expected a difference, ' - ' and a reason"))?;
            if reason.trim().is_empty() {
                return Err(wrong("expected a reason"));
            }
            if all.insert(what.trim().to_string(), reason.trim().to_string()).is_some() {
                return Err(wrong("expected each difference once"));
            }
        }
        Ok(Self(all))
    }

    /// Number of reviewed differences.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the elements of `found` that are not allowed by any line, and the lines that match none of them.
    pub fn judge(&self, found: &[Difference]) -> (Vec<String>, Vec<String>) {
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        let fits = |what: &str, text: &str| match what.strip_suffix('*') {
            Some(begin) => text.starts_with(begin),
            None => text == what,
        };
        let refused =
            texts.iter().filter(|text| !self.0.keys().any(|what| fits(what, text))).cloned().collect();
        let idle = self.0.keys().filter(|what| !texts.iter().any(|text| fits(what, text))).cloned().collect();
        (refused, idle)
    }
}
