//! Runs Debian's perftest programs in pairs, and parses their tables.

use std::env;
use std::path::Path;
use std::process::Command;

/// The command to run `program` on the adapter.
pub fn on_node(node: &Path, program: &str, args: &[String]) -> Result<Command, String> {
    let exe = env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
    let mut command = Command::new(exe);
    command.arg("run").arg("--adapter").arg(node).arg("--").arg(program).args(args);
    Ok(command)
}

/// The numbers in the last row of a perftest table.
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
    fn the_last_row_of_numbers_is_the_result() {
        let table = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n \
                     2       1000          1.61           9.38         1.65\n---------------\n";
        assert_eq!(last_row(table), Some(vec![2.0, 1000.0, 1.61, 9.38, 1.65]));
        assert_eq!(last_row("Couldn't connect to 127.0.0.2:18515\n"), None);
    }
}
