//! The command line, as programs and people use it.

mod check;
mod docs;
mod looks;
mod misbehave;
mod run;
mod serve;
mod sim;
mod tap;
