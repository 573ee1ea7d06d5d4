//! Recorded streams: their files, and the words that they are shown in.

mod files;
mod words;
