//! `ironverbs trace`: prints and compares recordings of what drivers sent.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use stream::lines::{self, collapsed};
use stream::text::Detail;
use stream::words::{Allowed, Words, aligned};

use crate::options::Trace;
use crate::say::fail;

/// Context lines of both streams around a difference.
const AROUND: usize = 2;

pub fn trace(command: &Trace) -> ExitCode {
    let done = match command {
        Trace::Show { file, function, raw, compact } => {
            let detail = match (raw, compact) {
                (true, _) => Detail::Raw,
                (_, true) => Detail::Compact,
                _ => Detail::Named,
            };
            show(file, *function, detail)
        }
        Trace::Diff { a, b, function, words: false, allow: None } => diff(a, b, *function),
        Trace::Diff { a, b, function, allow, .. } => words(a, b, *function, allow.as_deref()),
    };
    done.unwrap_or_else(|why| fail(1, why))
}

/// Prints lines. The reader may stop reading before the end.
fn print(lines: &[String]) {
    let mut out = std::io::stdout().lock();
    let _ = lines.iter().try_for_each(|line| writeln!(out, "{line}"));
}

fn show(path: &Path, function: Option<u8>, detail: Detail) -> Result<ExitCode, String> {
    let (records, cut) = stream::file::read(path)?;
    let found = lines::lines(&records, function, detail);
    if let (true, Some(one)) = (found.is_empty(), function) {
        return Err(format!("{}: nothing was sent to function {one}", path.display()));
    }
    if detail == Detail::Compact {
        print(&[lines::HEAD.into()]);
        print(&collapsed(&found));
    } else {
        print(&found);
    }
    if cut {
        eprintln!("ironverbs: {}: the last line is cut off and left out", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn diff(a: &Path, b: &Path, function: Option<u8>) -> Result<ExitCode, String> {
    let found = aligned(&lines::read(a, function)?, &lines::read(b, function)?, AROUND);
    print(&found);
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn words(a: &Path, b: &Path, function: Option<u8>, list: Option<&Path>) -> Result<ExitCode, String> {
    let allowed = match list {
        None => Allowed::default(),
        Some(path) => {
            let named = |why: String| format!("{}: {why}", path.display());
            let text = fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
            Allowed::parse(&text).map_err(named)?
        }
    };
    let [a, b] = [Words::of(&lines::read(a, function)?), Words::of(&lines::read(b, function)?)];
    let (refused, idle) = allowed.judge(&b.unlike(&a));
    print(&refused);
    print(&idle.iter().map(|line| format!("not needed: {line}")).collect::<Vec<_>>());
    Ok(if refused.is_empty() && idle.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
