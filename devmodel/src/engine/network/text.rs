//! Files of numbers: words, and the lines they are in.

use std::str::FromStr;

/// What a line of a file says, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: expected {expected}, found {found}")]
pub struct TextError {
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// The words of a file, one after the other.
pub(crate) struct Words<'t> {
    file: &'t str,
    words: Box<dyn Iterator<Item = (usize, &'t str)> + 't>,
    /// Where the last word was.
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

    /// The next word, which is to be `what`.
    pub(crate) fn word(&mut self, what: &str) -> Result<&'t str, TextError> {
        match self.words.next() {
            Some((line, word)) => {
                self.line = line;
                Ok(word)
            }
            None => Err(self.wrong(what, "the end of the file")),
        }
    }

    /// The next word as a number, or as something else that is written in a word.
    pub(crate) fn next<T: FromStr>(&mut self, what: &str) -> Result<T, TextError> {
        let word = self.word(what)?;
        word.parse().map_err(|_| self.wrong(what, word))
    }

    /// The last word was not what it is to be.
    pub(crate) fn wrong(&self, expected: &str, found: impl ToString) -> TextError {
        TextError {
            file: self.file.into(),
            line: self.line,
            expected: expected.into(),
            found: found.to_string(),
        }
    }
}
