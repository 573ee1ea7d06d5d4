//! Recorded streams: their files, and their display as words.

mod files;
mod tap;
mod words;
