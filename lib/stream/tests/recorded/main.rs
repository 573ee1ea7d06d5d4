//! Recorded streams: their files, and the words that they are shown in.

mod files;
mod tap;
mod words;
