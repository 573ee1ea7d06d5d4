//! Linux guests that test the device model: QEMU under TCG with Debian's kernels and Debian's programs.
//!
//! [`images`] locates QEMU and the images that a guest boots from. [`machine`] boots a guest, runs commands in it and ends it. [`log`]
//! checks the guest's kernel log. [`server`] is the `ironverbs serve` process that provides the guests' functions. [`scenarios`] has the
//! tests; [`report`] runs them and counts the results. The program `guest` runs them (`make test-guest GUEST=boot`), and any other program
//! can:
//!
//! ```no_run
//! use guest::{Trouble, report, scenarios};
//!
//! for scenario in scenarios::all() {
//!     println!("{}: {}", scenario.name, scenario.about);
//! }
//! // Those whose name has one of the words; makes images that are missing, and takes minutes.
//! match report::run(&scenarios::all(), &["boot".into()]) {
//!     Ok(failed) => std::process::exit(failed.into()),
//!     Err(Trouble::Cannot(why)) => println!("skipped: {why}"),
//!     Err(failed) => panic!("{failed}"),
//! }
//! ```

pub mod images;
pub mod log;
pub mod machine;
mod portrait;
pub mod report;
pub mod scenarios;
pub mod server;

use std::path::PathBuf;
use std::process::Command;

/// Why a scenario or a step did not succeed.
#[derive(Debug)]
pub enum Trouble {
    /// The machine lacks something; the reason in one line. This is not a failure.
    Cannot(String),
    /// A failure: what was expected and what was found.
    Failed(String),
}

/// The result of a step of a scenario.
pub type Outcome<T = ()> = Result<T, Trouble>;

/// Returns a failure with this message.
pub fn failed<T>(words: impl Into<String>) -> Outcome<T> {
    Err(Trouble::Failed(words.into()))
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cannot(words) | Self::Failed(words) => f.write_str(words),
        }
    }
}

/// Root of the source tree that this program was built from.
pub fn tree() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap_or_default()
}

/// Directory with `ironverbs` and the provider: `IRONVERBS_BUILT`, or the directory of this program.
pub fn built() -> PathBuf {
    if let Some(dir) = std::env::var_os("IRONVERBS_BUILT") {
        return dir.into();
    }
    let exe = std::env::current_exe().ok();
    exe.and_then(|exe| exe.parent().map(PathBuf::from)).unwrap_or_else(|| tree().join("target/release"))
}

/// A command that is killed when the thread that starts it ends, for whatever reason.
pub fn bound_to_us(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}
