//! A process of a test's own.

use std::{
    fs::{self, File},
    io::{self, Read, Seek},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a test may take that says nothing else.
pub const LIMIT: Duration = Duration::from_secs(100);

/// Names the test that a process was started for.
const VARIABLE: &str = "IRONVERBS_TEST_ALONE";

/// Gives the test that begins with this a process of its own, and so many seconds (100, if it names none), under any
/// runner.
///
/// Some tests change what all threads of a process share: their memory's mappings, what is known of fork, the credit by
/// which memory is lent. nextest gives every test a process, but `cargo test` runs all tests of a binary in one. So the
/// test starts its own binary again for itself alone, and waits for that. It fails if that process fails, says nothing of
/// having run the test, or does not end in time.
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

/// True if the test in which the function `here` lies ran in another process just now; if not, this process is its own.
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

/// The name by which the test harness knows the function around `here`: its path without the crate.
fn test_name(here: &str) -> &str {
    let (_, path) = here.split_once("::").expect("a path begins with its crate");
    path.strip_suffix("::here").expect("the macro's function")
}

/// The line of a process that runs the test: a name that no test has would end well, with no test run.
fn runs(name: &str) -> String {
    format!("{name} has a process of its own")
}

/// This binary again, for one test.
fn command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    command.args(["--exact", "--nocapture", "--include-ignored", name]).env(VARIABLE, name);
    command
}

/// Runs `command`, which is for the test `name`: what it printed, or why it is not well.
fn attempt(command: &mut Command, name: &str, limit: Duration) -> Result<String, String> {
    let broken = |what: &str, error: io::Error| format!("{name} in a process of its own: {what}: {error}");
    // A file and not a pipe: a process that it leaves behind would hold a pipe open, and who reads to its end would wait.
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

/// A file that is gone with its last descriptor.
fn unnamed_file() -> io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ironverbs-alone-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = File::options().create_new(true).read(true).append(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// How it ended; `None` if it had to be killed after `limit`.
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

    /// Not a test of its own: what the others run in a process.
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
        // As a runner starts it: only the process that this one starts is told to run the test.
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
