//! Tests in a process of their own.

use std::{
    fs::{self, File},
    io::{self, Read, Seek},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};

/// Default timeout of a test.
pub const LIMIT: Duration = Duration::from_secs(100);

/// Environment variable with the name of the test that a process was started for.
const VARIABLE: &str = "IRONVERBS_TEST_ALONE";

/// Runs the test that begins with this in its own process, with a timeout in seconds (default 100), under any runner.
///
/// Some tests change state shared by all threads of a process: memory mappings, the fork count, the credit for lent
/// memory. nextest gives every test a process, but `cargo test` runs all tests of a binary in one. So the test starts
/// its own binary again for itself alone, and waits for it. It fails if that process fails, does not report that it ran
/// the test, or does not end in time.
///
/// ```no_run
/// #[test]
/// fn memory_moves() {
///     testkit::alone!();
///     // From here on nothing else runs in this process.
/// }
/// ```
#[macro_export]
macro_rules! alone {
    () => {
        $crate::alone!($crate::alone::LIMIT.as_secs())
    };
    ($seconds:expr) => {
        fn here() {}
        let limit = std::time::Duration::from_secs($seconds);
        if $crate::alone::ran_elsewhere(std::any::type_name_of_val(&here), limit) {
            return;
        }
    };
}

/// Returns true if the test around the function `here` just ran in another process; if false, this process is that one.
///
/// # Panics
///
/// If the test failed there, or did not end within `limit`.
pub fn ran_elsewhere(here: &str, limit: Duration) -> bool {
    let name = test_name(here);
    if std::env::var(VARIABLE).is_ok_and(|mine| mine == name) {
        println!("{}", runs(name));
        return false;
    }
    match attempt(&mut command(name), name, limit) {
        Ok(said) => print!("{said}"),
        Err(why) => panic!("{why}"),
    }
    true
}

/// The test harness's name for the function around `here`: its path without the crate.
fn test_name(here: &str) -> &str {
    let (_, path) = here.split_once("::").expect("a path begins with its crate");
    path.strip_suffix("::here").expect("the macro's function")
}

/// The line printed by a process that runs the test. It is needed because a nonexistent test name succeeds, with no
/// test run.
fn runs(name: &str) -> String {
    format!("{name} has a process of its own")
}

/// A command that starts this binary for one test.
fn command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    command.args(["--exact", "--nocapture", "--include-ignored", name]).env(VARIABLE, name);
    command
}

/// Runs `command`, which is for the test `name`. Returns its output, or the reason of its failure.
fn attempt(command: &mut Command, name: &str, limit: Duration) -> Result<String, String> {
    let broken = |what: &str, error: io::Error| format!("{name} in a process of its own: {what}: {error}");
    // A file rather than a pipe: a process left behind by the command would keep a pipe open, and block a reader that
    // waits for its end.
    let mut output = unnamed_file().map_err(|e| broken("no file for its output", e))?;
    let ends = [output.try_clone(), output.try_clone()];
    let [Ok(out), Ok(err)] = ends else { return Err(format!("{name}: no descriptors for its output")) };
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let ended = wait(command.spawn().map_err(|e| broken("it does not start", e))?, limit)
        .map_err(|e| broken("its end", e))?;
    let mut said = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut said)).map_err(|e| broken("its output", e))?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let why = match ended {
        Some(status) if !status.success() => format!("failed ({status})"),
        Some(_) if said.contains(&runs(name)) => return Ok(said),
        Some(_) => "did not run: the harness knows no such test".into(),
        None => format!("did not end within {limit:?}"),
    };
    Err(format!("{name}, in a process of its own, {why}; it printed\n{said}"))
}

/// A file that is deleted with its last descriptor.
fn unnamed_file() -> io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ironverbs-alone-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = File::options().create_new(true).read(true).append(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// Returns the exit status, `None` if the process had to be killed after `limit`.
fn wait(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "IRONVERBS_TESTKIT_ROLE";
    const NAME: &str = "alone::tests::role";

    /// Not a test of its own: run by the others in a process.
    #[test]
    fn role() {
        let Ok(role) = std::env::var(ROLE) else { return };
        crate::alone!();
        match &*role {
            "passes" => println!("and passed"),
            "fails" => panic!("on purpose"),
            "hangs" => loop {
                sleep(Duration::from_secs(1));
            },
            "leaves" => drop(Command::new("sleep").arg("20").spawn().expect("sleep")),
            other => panic!("no role {other}"),
        }
    }

    fn play(role: &str, limit: Duration) -> Result<String, String> {
        attempt(command(NAME).env(ROLE, role), NAME, limit)
    }

    #[test]
    fn a_test_runs_once_in_a_process_of_its_own_and_what_it_says_is_handed_on() {
        // As started by a test runner: only the process started by this one is told to run the test.
        let said = attempt(command(NAME).env_remove(VARIABLE).env(ROLE, "passes"), NAME, LIMIT);
        let said = said.expect("it passes");
        assert_eq!(said.matches("and passed").count(), 1, "{said}");
    }

    #[test]
    fn a_test_that_fails_there_says_why_here() {
        let why = play("fails", LIMIT).expect_err("it fails");
        assert!(why.contains("failed (exit status: 101)") && why.contains("on purpose"), "{why}");
    }

    #[test]
    fn a_test_that_hangs_is_ended() {
        let begun = Instant::now();
        let why = play("hangs", Duration::from_secs(1)).expect_err("it hangs");
        assert!(why.contains("did not end within 1s") && why.contains(&runs(NAME)), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_test_that_nobody_knows_has_not_passed() {
        let unknown = "alone::tests::unknown";
        let why = attempt(&mut command(unknown), unknown, LIMIT).expect_err("there is none");
        assert!(why.contains("did not run"), "{why}");
    }

    #[test]
    fn what_a_test_leaves_behind_is_not_waited_for() {
        let begun = Instant::now();
        play("leaves", LIMIT).expect("it passes");
        assert!(begun.elapsed() < Duration::from_secs(15));
    }
}
