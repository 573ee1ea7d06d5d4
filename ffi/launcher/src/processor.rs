//! The processor description for programs in virtual time, some of which read the counter's rate from it.

use std::fs;

use super::LaunchError;
use node::timed::CYCLE;

/// The kernel's file.
pub const FILE: &str = "/proc/cpuinfo";

/// Returns that file with the rate of the program's counter.
///
/// # Errors
/// The file cannot be read.
pub fn told() -> Result<String, LaunchError> {
    let theirs = fs::read_to_string(FILE).map_err(LaunchError::step(format!("read {FILE}")))?;
    Ok(at_rate(&theirs, 1e6 / CYCLE as f64))
}

/// Replaces the rate, in MHz, wherever the text states one (proc_cpuinfo(5)).
fn at_rate(text: &str, mhz: f64) -> String {
    let other = |line: &str| {
        let (key, value) = line.split_once(':')?;
        match key.trim_end() {
            "cpu MHz" => Some(format!("{key}: {mhz:.3}")),
            // Intel's format: "... CPU @ 2.60GHz".
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
