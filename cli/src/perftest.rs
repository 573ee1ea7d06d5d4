//! Debian's perftest: how a pair of its programs is called and its tables are read.

use std::env;
use std::path::Path;
use std::process::Command;

/// The last perftest interface version that posts work requests to any device without asking the mlx5 library for
/// that device first; later ones must be told to use the plain verbs.
const LAST_PLAIN: (u32, u32) = (6, 6);

/// Arguments a perftest program needs on this host to run RC tests on a device that is not the mlx5 library's.
pub fn compat_args() -> Vec<&'static str> {
    let output = Command::new("ib_read_lat").arg("--version").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    if version(&text).is_some_and(|v| v > LAST_PLAIN) { vec!["--use_old_post_send"] } else { Vec::new() }
}

/// The interface version out of `Version: 6.24`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_whitespace().last()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// This command, asked to run `program` on the node.
pub fn on_node(node: &Path, program: &str, args: &[String]) -> Result<Command, String> {
    let exe = env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
    let mut command = Command::new(exe);
    command.arg("run").arg("--node").arg(node).arg("--").arg(program).args(args);
    Ok(command)
}

/// The numbers of the last row of a perftest table.
pub fn last_row(output: &str) -> Option<Vec<f64>> {
    output.lines().rev().find_map(|line| {
        let row: Option<Vec<f64>> = line.split_whitespace().map(|w| w.parse().ok()).collect();
        row.filter(|r| r.len() >= 5)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number() {
        assert_eq!(version("Version: 6.06\n"), Some((6, 6)));
        assert!(version("Version: 6.24").unwrap() > LAST_PLAIN);
        assert_eq!(version("ib_read_lat: not found"), None);
    }

    #[test]
    fn the_last_row_of_numbers_is_the_result() {
        let table = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n \
                     2       1000          1.61           9.38         1.65\n---------------\n";
        assert_eq!(last_row(table), Some(vec![2.0, 1000.0, 1.61, 9.38, 1.65]));
        assert_eq!(last_row("Couldn't connect to 127.0.0.2:18515\n"), None);
    }
}
