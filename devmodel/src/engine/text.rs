//! Parsing of text files with line numbers: TOML, and files of words and numbers.

use serde::de::DeserializeOwned;
use std::str::FromStr;

/// An error in a line of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct TextError {
    /// The file.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// The expected text and the text found.
    pub what: String,
}

impl TextError {
    /// An error for unexpected text in a line.
    pub(crate) fn expected(file: &str, line: usize, expected: &str, found: impl std::fmt::Display) -> Self {
        Self { file: file.into(), line, what: format!("expected {expected}, found {found}") }
    }
}

/// Parses the TOML `text`; `file` is its name, for errors.
///
/// # Errors
///
/// A line does not match `T`.
pub(crate) fn toml<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, TextError> {
    toml::from_str(text).map_err(|e: toml::de::Error| {
        let before = text.get(..e.span().unwrap_or_default().start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        TextError { file: file.into(), line, what: e.message().replace('\n', " ") }
    })
}

/// The words of a file, in order.
pub(crate) struct Words<'t> {
    file: &'t str,
    words: Box<dyn Iterator<Item = (usize, &'t str)> + 't>,
    /// Line of the last word.
    line: usize,
}

impl<'t> Words<'t> {
    pub(crate) fn of(file: &'t str, text: &'t str) -> Self {
        let words = text
            .lines()
            .enumerate()
            .flat_map(|(at, line)| line.split_whitespace().map(move |word| (at + 1, word)));
        Self { file, words: Box::new(words), line: 1 }
    }

    /// The next word; `what` describes the expected one.
    pub(crate) fn word(&mut self, what: &str) -> Result<&'t str, TextError> {
        match self.words.next() {
            Some((line, word)) => {
                self.line = line;
                Ok(word)
            }
            None => Err(self.wrong(what, "the end of the file")),
        }
    }

    /// Parses the next word.
    pub(crate) fn next<T: FromStr>(&mut self, what: &str) -> Result<T, TextError> {
        let word = self.word(what)?;
        word.parse().map_err(|_| self.wrong(what, word))
    }

    /// An error for valid words with an invalid combined meaning.
    pub(crate) fn refused(&self, why: impl ToString) -> TextError {
        TextError { file: self.file.into(), line: self.line, what: why.to_string() }
    }

    /// An error for the last word, which is invalid.
    pub(crate) fn wrong(&self, expected: &str, found: impl ToString) -> TextError {
        TextError::expected(self.file, self.line, expected, found.to_string())
    }
}
