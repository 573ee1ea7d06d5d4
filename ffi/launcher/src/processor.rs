//! What programs in virtual time read of their processor: some take the rate of its counter from there.

use std::fs;
use std::io;
use std::path::Path;

use super::LaunchError;
use super::cover::bind;
use node::timed::CYCLE;

const FILE: &str = "/proc/cpuinfo";
/// Its copy, in the node's directory.
const COPY: &str = "cpuinfo";

/// Lets the program read the rate of the counter that it has. The caller is in a mount namespace of its own.
///
/// # Errors
/// The file cannot be read, or put in the place of the kernel's.
pub fn show(node: &Path) -> Result<(), LaunchError> {
    let step = || -> io::Result<()> {
        let theirs = fs::read_to_string(FILE)?;
        let ours = at_rate(&theirs, 1e6 / CYCLE as f64);
        if ours == theirs {
            return Ok(());
        }
        // Others may be reading the last one.
        let aside = node.join(format!(".{COPY}.{}", std::process::id()));
        fs::write(&aside, ours)?;
        fs::rename(&aside, node.join(COPY))?;
        bind(&node.join(COPY), Path::new(FILE))
    };
    step().map_err(LaunchError::step(format!("put the counter's rate into {FILE}")))
}

/// The same text with another rate, in MHz, wherever there is one (proc_cpuinfo(5)).
fn at_rate(text: &str, mhz: f64) -> String {
    let other = |line: &str| {
        let (key, value) = line.split_once(':')?;
        match key.trim_end() {
            "cpu MHz" => Some(format!("{key}: {mhz:.3}")),
            // As Intel's: "... CPU @ 2.60GHz".
            "model name" => {
                value.split_once(" @ ").map(|(name, _)| format!("{key}:{name} @ {:.2}GHz", mhz / 1e3))
            }
            _ => None,
        }
    };
    text.lines().map(|line| other(line).unwrap_or_else(|| line.into()) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_stands_wherever_one_stood() {
        let text =
            "model name\t: Xeon CPU @ 2.60GHz\ncpu MHz\t\t: 2596.120\nflags\t\t: a b\n\nmodel name\t: EPYC\n";
        let told = "model name\t: Xeon CPU @ 10.00GHz\ncpu MHz\t\t: 10000.000\nflags\t\t: a b\n\nmodel name\t: EPYC\n";
        assert_eq!(at_rate(text, 1e4), told);
        assert_eq!(at_rate(told, 1e4), told);
    }
}
