//! The output of a command. A reader that has read enough, such as `head`, or a full log must not stop the command.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Like `print!`; a closed standard output is ignored, any other error goes to standard error.
macro_rules! say {
    ($($what:tt)*) => { $crate::say::out(format_args!($($what)*)) };
}

/// Like `println!`, as [`say!`].
macro_rules! say_line {
    () => { $crate::say::out(format_args!("\n")) };
    ($($what:tt)*) => { $crate::say::out(format_args!("{}\n", format_args!($($what)*))) };
}

pub(crate) use {say, say_line};

pub(crate) fn out(what: Arguments<'_>) {
    match std::io::stdout().write_fmt(what) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "ironverbs: cannot write to standard output: {e}");
        }
        _ => {}
    }
}

/// Prints the reason of a failure on stderr, in one line.
pub(crate) fn fail(code: u8, why: impl std::fmt::Display) -> ExitCode {
    eprintln!("ironverbs: {why}");
    ExitCode::from(code)
}
