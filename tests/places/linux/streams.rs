//! The command's streams, exit status and files, and that nothing is left behind.

use ironverbs_tests::linux::Place;
use ironverbs_tests::program::built;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

#[test]
fn a_command_has_its_streams_and_its_status() {
    let Some(place) = Place::new() else { return };
    let input: Vec<u8> = (0..3_000_001_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut command = place.command("linux");
    command.args(["--", "sh", "-c", "cat; echo 'two words' >&2; exit 7"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let given = input.clone();
    let giver = std::thread::spawn(move || stdin.write_all(&given));
    let output = child.wait_with_output().unwrap();
    let given = giver.join().unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    let back = output.stdout.len();
    assert_eq!(
        (output.status.code(), why.as_str()),
        (Some(7), "two words\n"),
        "{back} bytes back, {given:?}"
    );
    assert!(output.stdout == input, "{back} bytes of {} came back", input.len());
    assert_eq!(place.left(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn the_root_is_the_guest_s_own_and_a_share_is_everybody_s() {
    let Some(place) = Place::new() else { return };
    let share = place.path("a share, with signs");
    fs::create_dir(&share).unwrap();
    fs::write(share.join("in"), "from outside").unwrap();
    let script = format!(
        "cd '{}'; cat in; echo from inside >out; echo gone >/etc/ironverbs-was-here; cat /etc/ironverbs-was-here; uname -r; nproc",
        share.display()
    );
    let said = place.script(&["--share", share.to_str().unwrap()], &script);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("from outsidegone"));
    assert!(lines.next().is_some_and(|release| release.ends_with("-ironverbs")), "{said}");
    assert_eq!(lines.next(), Some("2"));
    assert_eq!(fs::read_to_string(share.join("out")).unwrap(), "from inside\n");
    assert!(!fs::exists("/etc/ironverbs-was-here").unwrap());
}

#[test]
fn a_guest_that_is_asked_to_stop_ends_its_command_first() {
    let Some(place) = Place::new() else { return };
    let mut command = place.command("linux");
    command.args(["--", "sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    // `timeout` forwards the signal.
    let pid = i32::try_from(child.id()).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: a signal to a process that we started and have not waited for.
    unsafe {
        libc::kill(pid, libc::SIGTERM);
    }
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye\n");
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGTERM));
    assert_eq!(place.left(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_launcher_that_is_killed_takes_its_guest_and_its_server_along() {
    let Some(place) = Place::new() else { return };
    let mut command = place.command("linux");
    // A guest that keeps its processors busy, because such a kernel does not always end when asked to.
    let busy = "for one in 1 2 3 4; do while :; do /bin/true; done & done; echo up; sleep 1000";
    command.args(["--cpus", "2", "--", "sh", "-c", busy]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    let ours = place.path("tmp").display().to_string();
    // Processes with our folder in the command line: the kernel, its helpers and the server.
    let there = || {
        let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path().join("cmdline"));
        processes
            .filter_map(|path| fs::read(path).ok())
            .filter(|line| line.windows(ours.len()).any(|w| w == ours.as_bytes()))
            .count()
    };
    assert!(there() >= 2);
    let launcher = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: a signal to the only child of a process that we started, which waits for it.
    unsafe {
        libc::kill(launcher.trim().parse().unwrap(), libc::SIGKILL);
    }
    child.wait().unwrap();
    let began = Instant::now();
    while there() > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "{} processes are left", there());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Its folder is removed when the next guest starts.
    assert_eq!(place.left().len(), 1);
    place.script(&[], "true");
    assert_eq!(place.left(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_cannot_be_started_is_said_in_a_line() {
    let place = Place::without_kernel();
    let [folder, twin] = ["tmp", "twin"].map(|name| place.path(name).display().to_string());
    let made =
        Command::new(built().join("ironverbs")).args(["node", "create", "--node", &twin]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // Little memory, in case the machine has no room left in /dev/shm.
    let kernel = ["--memory", "256M", "--kernel", "/bin/true"];
    for (words, wanted) in [
        (vec!["--kernel", "/nowhere/vmlinux"], "cannot read the kernel /nowhere/vmlinux"),
        (vec!["--memory", "100M"], "expected 256M to 3840M"),
        (vec!["--vfs", "128"], "128 is not in 0..=127"),
        (vec!["--functions", "0-3"], "expected VFs of the adapter, such as 4 or 4-6, found '0-3'"),
        (
            [&kernel[..], &["--adapter", &twin]].concat(),
            "expected adapters with numbers of their own, found 0 for both",
        ),
        (vec!["--functions", "8-9"], "expected 9 VFs, found 8 in the adapter"),
        (vec!["--cpus", "0"], "0 is not in 1..=8"),
        ([&kernel[..], &["--root", &folder]].concat(), "expected a root of Linux with a /bin/sh"),
        ([&kernel[..], &["--share", "/nowhere"]].concat(), "/nowhere: No such file"),
        ([&kernel[..], &["--share", "/bin/sh"]].concat(), "expected a folder, found a file"),
        (kernel.to_vec(), "the kernel ended by itself"),
    ] {
        let output = place.command("linux").args(&words).args(["--", "true"]).output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(why.starts_with("ironverbs: ") && why.contains(wanted), "{words:?}: {why}");
        assert!(!output.status.success() && output.stdout.is_empty(), "{words:?}");
        assert_eq!(place.left(), Vec::<std::path::PathBuf>::new(), "{words:?}");
    }
}

#[test]
fn a_new_node_has_as_many_vfs_as_a_guest_asks_for() {
    let place = Place::without_kernel();
    for (vfs, memory) in [("31", "448M"), ("4", "256M")] {
        let mut command = place.command("linux");
        command.args(["--memory", memory, "--kernel", "/bin/true", "--vfs", vfs, "--", "true"]);
        let why = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert!(why.contains("the kernel ended by itself"), "{vfs}: {why}");
    }
}
