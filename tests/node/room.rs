//! Debian's programs on a node in a small tmpfs that fills up: they get errors and messages, not signals.
//!
//! Each run has its own tmpfs in a mount namespace, which requires root.

use ironverbs_tests::program::{built, free_port};
use std::{path::Path, process::Command};

/// The outcome of a pair of programs.
#[derive(Debug)]
struct Outcome {
    /// Exit codes of server, client, and of a final `ibv_devinfo`; 124 is that of `timeout`.
    codes: Vec<i32>,
    /// Their output.
    said: String,
}

/// Runs `ib_write_bw` with `options` between two VFs on a tmpfs of `size` MiB; at `when`, a file fills it up to the last `left` KiB.
/// Returns `None` if perftest or mount namespaces are unavailable.
fn pair(size: u32, when: &str, left: u32, lend: bool, options: &str) -> Option<Outcome> {
    const SCRIPT: &str = r#"
        mount -t tmpfs -o size="$SIZE"m none "$AT" || exit 77
        run="timeout -k 1 $LIMIT $BUILT/ironverbs run --node $AT/node --"
        fill() {
            [ "$WHEN" = "$1" ] || return 0
            free=$(df -k --output=avail "$AT" | tail -1)
            [ "$free" -le "$LEFT" ] || fallocate -l $((free - LEFT))K "$AT/ballast"
        }
        $run true || exit 77
        fill before
        $run ib_write_bw -d iron1 -x 1 -p $PORT $OPTIONS > "$AT.server" 2>&1 & server=$!
        # The server listens, or it has ended.
        heard=$(printf ':%04X [0-9A-F:]* 0A' "$PORT")
        for i in $(seq 200); do
            grep -q "$heard" /proc/net/tcp /proc/net/tcp6 && break
            kill -0 $server 2> /dev/null || break
            sleep 0.05
        done
        fill between
        $run ib_write_bw -d iron2 -x 1 -p $PORT $OPTIONS 127.0.0.2 > "$AT.client" 2>&1 & client=$!
        sleep "$DELAY"
        fill during
        wait $client; c=$?
        # Whoever never met a client waits for one.
        [ $c = 0 ] || { sleep 0.5; kill $server 2> /dev/null; }
        wait $server; s=$?
        $run ibv_devinfo -d iron3 > "$AT.info" 2>&1; i=$?
        echo "codes $s $c $i"
        cat "$AT.server" "$AT.client" "$AT.info"
    "#;
    if !Path::new("/usr/bin/ib_write_bw").exists() {
        println!("skipped: no perftest");
        return None;
    }
    let at = std::env::temp_dir().join(format!("ironverbs-room-{}", std::process::id()));
    std::fs::create_dir_all(&at).expect("a directory to mount on");
    let [delay, when] = match when.split_once(' ') {
        Some((when, delay)) => [delay, when],
        None => ["0.3", when],
    };
    let out = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", SCRIPT])
        .env("AT", &at)
        .env("BUILT", built())
        .env("SIZE", size.to_string())
        .env("WHEN", when)
        .env("DELAY", delay)
        .env("LEFT", left.to_string())
        .env("LIMIT", "15")
        .env("PORT", free_port().expect("a port").to_string())
        .env("OPTIONS", options)
        .env("IRONVERBS_LEND", if lend { "1" } else { "0" })
        .output();
    for end in ["server", "client", "info"] {
        let _ = std::fs::remove_file(at.with_extension(end));
    }
    let _ = std::fs::remove_dir(&at);
    let out = out.ok()?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let first = said.lines().find_map(|line| line.strip_prefix("codes "));
    let Some(first) = first else {
        println!("skipped: no tmpfs can be mounted here: {}", String::from_utf8_lossy(&out.stderr).trim());
        return None;
    };
    let codes = first.split(' ').map(|code| code.parse().expect("a number")).collect();
    Some(Outcome { codes, said })
}

/// Returns true if the exit code says that a signal ended the program (128 and more), except the SIGTERM of `kill` and `timeout`.
fn is_signal(code: i32) -> bool {
    code > 128 && code != 128 + 15
}

#[test]
fn a_tmpfs_that_fills_up_ends_programs_by_errors_and_not_by_signals() {
    let moments = ["before", "between", "during 0", "during 0.05", "during 0.2", "during 0.6"];
    for (size, left) in [(64, 0), (64, 300), (32, 4200), (64, 5000)] {
        for when in moments {
            let Some(outcome) = pair(size, when, left, true, "-q 4 -D 1") else { return };
            let case = format!("{size} MiB, {left} KiB left {when}: {outcome:?}");
            assert!(!outcome.codes.iter().any(|code| is_signal(*code)), "{case}");
            let info = *outcome.codes.last().expect("three codes");
            if left < 4096 && when == "before" {
                assert_ne!(info, 0, "{case}");
                assert!(outcome.said.contains("no room in shared memory"), "{case}");
            }
            if left >= 5000 && info != 0 {
                assert!(outcome.said.contains("no room"), "{case}");
            }
        }
    }
}

#[test]
fn programs_that_run_already_are_not_disturbed_by_a_tmpfs_that_is_full() {
    let Some(outcome) = pair(64, "during 2", 0, true, "-q 2 -D 3") else { return };
    assert_eq!(outcome.codes[..2], [0, 0], "{}", outcome.said);
}

#[test]
fn lending_takes_nothing_that_queues_need() {
    for lend in [false, true] {
        let Some(outcome) = pair(24, "never", 0, lend, "-q 8 -s 524288 -t 1024 -D 1") else { return };
        assert_eq!(outcome.codes, [0, 0, 0], "lending {lend}: {}", outcome.said);
    }
}
