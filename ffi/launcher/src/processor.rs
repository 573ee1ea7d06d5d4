//! The description of their processor that programs in virtual time read: some take the rate of its counter from there.

use std::fs;

use super::LaunchError;
use node::timed::CYCLE;

/// The kernel's file.
pub const FILE: &str = "/proc/cpuinfo";

/// That file with the rate of the counter that the program has.
///
/// # Errors
/// The file cannot be read.
pub fn told() -> Result<String, LaunchError> {
    let theirs = fs::read_to_string(FILE).map_err(LaunchError::step(format!("read {FILE}")))?;
    Ok(at_rate(&theirs, 1e6 / CYCLE as f64))
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
