//! Frames on their way between an uplink and a link.

use std::io;

/// Frames in one buffer, one after the other. The buffer is reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Where each frame ends.
    ends: Vec<usize>,
}

impl Frames {
    /// Number of frames.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there is no frame.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all frames.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends the frame that consists of `parts`.
    pub fn push(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ends.push(self.bytes.len());
    }

    /// Appends a frame of at most `most` bytes, which `read` stores. `read` returns its length.
    pub fn read(&mut self, most: usize, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
        let start = self.bytes.len();
        self.bytes.resize(start + most, 0);
        let len = read(&mut self.bytes[start..]);
        self.bytes.truncate(start + len.as_ref().map_or(0, |len| (*len).min(most)));
        len.map(|_| self.ends.push(self.bytes.len()))
    }

    /// Appends the frame that `append` writes; none if it returns `None`.
    pub(super) fn append<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Option<T>) -> Option<T> {
        let result = append(&mut self.bytes);
        if result.is_some() {
            self.ends.push(self.bytes.len());
        }
        result
    }

    /// The frames, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[*start..*end])
    }
}
