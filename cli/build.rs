//! Passes the commit it is built from to the command, if it is built in a git checkout.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let version = env!("CARGO_PKG_VERSION");
    let version = match commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version.into(),
    };
    println!("cargo:rustc-env=IRONVERBS_VERSION={version}");
}

/// The abbreviated commit that is checked out; `None` without git, and for sources that are merely inside another repository.
fn commit() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    if Path::new(&top).canonicalize().ok()? != ours.canonicalize().ok()? {
        return None;
    }
    // A commit writes to the log of HEAD, or to the branch if there is no log; a checkout writes to HEAD. Files that do not exist are
    // skipped: cargo would rebuild every time.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for file in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", file]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// The output of a git command, if it succeeds.
fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    let text = String::from_utf8(out.stdout).ok().filter(|_| out.status.success())?;
    Some(text.trim().to_owned())
}
