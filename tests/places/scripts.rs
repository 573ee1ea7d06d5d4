//! The scripts on a machine without any of their results, with stubs in place of programs that take minutes.

use ironverbs_tests::program::Scratch;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Makes a directory of programs that precede the system's own in PATH.
fn programs(scratch: &Scratch, texts: &[(&str, &str)]) -> PathBuf {
    let bin = scratch.dir().join("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, text) in texts {
        fs::write(bin.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    bin
}

fn of_the_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Runs a script of the tree with `bin` before the system's programs. Returns its exit code and its output.
fn run(scratch: &Scratch, bin: &Path, script: &str, words: &[&str]) -> (Option<i32>, String) {
    run_with(&[], scratch, bin, script, words)
}

/// The same with variables.
fn run_with(
    variables: &[(&str, &str)],
    scratch: &Scratch,
    bin: &Path,
    script: &str,
    words: &[&str],
) -> (Option<i32>, String) {
    let script = of_the_tree(script);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["60", "sh"])
        .arg(script)
        .args(words)
        .envs(variables.iter().copied())
        .current_dir(scratch.dir())
        .env("XDG_CACHE_HOME", scratch.dir().join("cache"))
        .env("HOME", scratch.dir().join("home"))
        .env("CLUSTER", scratch.dir().join("none"))
        .env("CARGO_TARGET_DIR", scratch.dir().join("none"))
        .env_remove("CARGO")
        .env("PATH", path)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

fn userlands(scratch: &Scratch, bin: &Path, words: &[&str]) -> (bool, String) {
    let (code, said) = run(scratch, bin, "scripts/userlands.sh", words);
    (code == Some(0), said)
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Makes the folder given as an argument, and reports it.
const DEBOOTSTRAP: &str = r#"for folder; do case $folder in */ironverbs/*) mkdir -p "$folder/usr" && break ;; esac; done
echo made >>"$XDG_CACHE_HOME/made""#;

#[test]
fn folders_of_userlands_are_made_once_where_they_are_looked_for() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.dir().join("cache")).unwrap();
    let bin = programs(&scratch, &[("debootstrap", DEBOOTSTRAP), ("id", "echo 0")]);
    let before = entries(scratch.dir());
    for _ in 0..2 {
        let (succeeded, said) = userlands(&scratch, &bin, &["build"]);
        assert!(succeeded, "{said}");
        for suite in ["bookworm", "trixie", "sid"] {
            let (_, folder) = userlands(&scratch, &bin, &["path", suite]);
            assert!(Path::new(folder.trim()).join("usr").is_dir(), "{folder}");
        }
        assert_eq!(fs::read_to_string(scratch.dir().join("cache/made")).unwrap().lines().count(), 3);
    }
    assert_eq!(entries(scratch.dir()), before);
}

#[test]
fn a_mirror_that_fails_is_asked_three_times() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.dir().join("cache")).unwrap();
    let fails = r#"echo made >>"$XDG_CACHE_HOME/made"; echo "E: no answer"; exit 1"#;
    let bin = programs(&scratch, &[("debootstrap", fails), ("id", "echo 0"), ("sleep", "")]);
    let (succeeded, said) = userlands(&scratch, &bin, &["build"]);
    assert!(!succeeded && said.contains("debootstrap of bookworm failed"), "{said}");
    assert_eq!(fs::read_to_string(scratch.dir().join("cache/made")).unwrap().lines().count(), 3);
}

#[test]
fn the_whole_run_says_at_its_end_why_it_failed_and_waits_for_nobody() {
    let scratch = Scratch::new();
    let fails = "echo begun; echo '        FAIL [   1.0s] a test'; echo 'test result: ok. 3 passed; 0 failed'; exit 2";
    let (code, said) = run(&scratch, &programs(&scratch, &[("make", fails)]), ".ci/run", &[]);
    let (all, why) = said.split_once("ci: ended with 2").expect(&said);
    assert!(code == Some(2) && all.contains("begun"), "{code:?}: {said}");
    assert!(why.contains("FAIL [   1.0s] a test") && !why.contains("0 failed"), "{said}");
    // A process remains that has the run's output open.
    let stays = "sleep 30 & echo make $*";
    let begun = std::time::Instant::now();
    let (code, said) = run(&scratch, &programs(&scratch, &[("make", stays)]), ".ci/run", &[]);
    assert_eq!((code, said.as_str()), (Some(0), "make test lint\nmake test-all\n"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
}

/// A runner that prints what it is told to run.
const RUNNER: &str = r#"case "$*" in *--version) echo "cargo-nextest VERSION (of a test)" ;; *) echo "ours: $* by $CARGO" ;; esac"#;

/// A cargo that installs `RUNNER` in the requested place and version, and counts the installations. Its own `nextest` subcommand, another
/// version installed for other projects, is the wrong one.
const CARGO: &str = r#"
case $1 in
install)
    echo made >>"$XDG_CACHE_HOME/made"
    while [ $# -gt 0 ]; do
        case $1 in --root) root=$2 ;; --version) version=${2#=} ;; esac
        shift
    done
    mkdir -p "$root/bin"
    sed "s/VERSION/$version/" "${0%/*}/runner" >"$root/bin/cargo-nextest"
    chmod +x "$root/bin/cargo-nextest"
    ;;
nextest) echo "another nextest: $*" ;;
*) echo "cargo $*" ;;
esac"#;

/// Runs `scripts/nextest.sh` and its callers in a scratch directory, with a stub for cargo.
struct Nextest {
    scratch: Scratch,
    bin: PathBuf,
}

impl Nextest {
    fn with(cargo: &str) -> Self {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.dir().join("cache")).unwrap();
        let bin = programs(&scratch, &[("cargo", cargo), ("runner", RUNNER), ("cargo-nextest", CARGO)]);
        Self { scratch, bin }
    }

    fn run(&self, script: &str, words: &[&str]) -> (Option<i32>, String) {
        run(&self.scratch, &self.bin, script, words)
    }

    fn path(&self) -> PathBuf {
        let (_, path) = self.run("scripts/nextest.sh", &["path"]);
        PathBuf::from(path.trim())
    }

    fn installs(&self) {
        let (code, said) = self.run("scripts/nextest.sh", &["install"]);
        assert_eq!(code, Some(0), "{said}");
    }

    /// Returns the number of builds.
    fn made(&self) -> usize {
        fs::read_to_string(self.scratch.dir().join("cache/made")).map_or(0, |lines| lines.lines().count())
    }
}

#[test]
fn the_runner_of_tests_is_made_once_outside_the_tree() {
    let nextest = Nextest::with(CARGO);
    for _ in 0..2 {
        nextest.installs();
        assert_eq!(nextest.made(), 1);
    }
    let path = nextest.path();
    assert!(path.starts_with(nextest.scratch.dir().join("cache/ironverbs/tools")), "{}", path.display());
    assert!(path.is_file());
    // No build files remain, and nothing is installed in cargo's shared directory.
    let tools = entries(&nextest.scratch.dir().join("cache/ironverbs/tools"));
    assert!(tools.iter().all(|name| !name.contains("part")), "{tools:?}");
    assert_eq!(entries(nextest.scratch.dir()), ["bin", "cache"]);
}

#[test]
fn a_second_installation_waits_for_the_first() {
    let slow = CARGO.replacen("install)", "install) sleep 1", 1);
    let nextest = Nextest::with(&slow);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| nextest.installs());
        }
    });
    assert_eq!(nextest.made(), 1);
}

#[test]
fn a_runner_that_does_not_start_is_made_again() {
    let nextest = Nextest::with(CARGO);
    nextest.installs();
    for broken in ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho cargo-nextest 0.1.0\n"] {
        let before = nextest.made();
        fs::write(nextest.path(), broken).unwrap();
        nextest.installs();
        assert_eq!(nextest.made(), before + 1, "{broken}");
    }
}

#[test]
fn tests_are_run_by_our_runner_whatever_else_is_installed() {
    let nextest = Nextest::with(CARGO);
    nextest.installs();
    let (code, said) = nextest.run("scripts/test-rust.sh", &["-p", "one"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.starts_with("ours: nextest run --cargo-profile quick --locked") && said.ends_with("by cargo\n"),
        "{said}"
    );
    assert!(said.contains("-p one") && said.lines().count() == 1, "{said}");
}

#[test]
fn without_its_runner_no_test_is_run_in_another_way() {
    let nextest = Nextest::with(CARGO);
    let (code, said) = nextest.run("scripts/test-rust.sh", &["one"]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(nextest.path().to_str().unwrap()) && said.contains("nextest.sh install"), "{said}");
}

#[test]
fn where_crates_io_is_out_of_reach_it_is_said_what_is_missing() {
    let nextest = Nextest::with("echo 'error: could not resolve host: index.crates.io' >&2; exit 101");
    let (code, said) = nextest.run("scripts/nextest.sh", &["install"]);
    assert_eq!(code, Some(1), "{said}");
    for words in ["could not resolve host", "is missing", nextest.path().to_str().unwrap(), "crates.io once"]
    {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    assert!(!nextest.path().exists());
    let tools = entries(&nextest.scratch.dir().join("cache/ironverbs/tools"));
    assert!(tools.iter().all(|name| !name.contains("part")), "{tools:?}");
    // An existing nextest is used without running cargo.
    let there = Nextest::with(CARGO);
    there.installs();
    fs::write(there.bin.join("cargo"), "#!/bin/sh\nexit 101\n").unwrap();
    there.installs();
}

#[test]
fn the_settings_of_tests_ask_for_the_runner_that_is_installed() {
    let nextest = Nextest::with(CARGO);
    let path = nextest.path();
    let folder = path.ancestors().nth(2).and_then(Path::file_name).and_then(|name| name.to_str()).unwrap();
    let version = folder.strip_prefix("nextest-").unwrap();
    let settings = fs::read_to_string(of_the_tree(".config/nextest.toml")).unwrap();
    assert!(
        settings.lines().any(|line| line == format!("nextest-version = \"{version}\"")),
        "{version}: {settings}"
    );
}

/// Only the runner is missing.
#[test]
fn what_tests_need_comes_with_their_runner_and_what_the_demonstration_needs_does_not() {
    let nextest = Nextest::with(CARGO);
    programs(
        &nextest.scratch,
        &[
            ("dpkg-query", "echo installed"),
            ("apt-get", "echo apt-get; exit 1"),
            ("rustc", "echo rustc 1.85.0"),
            ("ls", ""),
        ],
    );
    let (code, said) = nextest.run("scripts/install-deps.sh", &["demo"]);
    assert_eq!((code, said.as_str(), nextest.made()), (Some(0), "", 0));
    let (code, said) = nextest.run("scripts/install-deps.sh", &["test"]);
    assert_eq!((code, nextest.made()), (Some(0), 1), "{said}");
    assert!(nextest.path().is_file());
}

#[test]
fn a_fresh_debian_shows_the_demonstration_and_then_runs_the_tests() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.dir().join("cache")).unwrap();
    // Replaces the mounts: prints the command and the folder.
    let inside = r#"while [ "$1" != sh ] || [ "$2" = -c ]; do shift; done
echo "in ${2##*/}"; [ -z "$5" ] || echo "with $(ls "$5")"; shift 5; "$@""#;
    let make = r#"echo "make $*"; [ "$*" != "$FAILS" ]"#;
    let bin = programs(
        &scratch,
        &[("debootstrap", DEBOOTSTRAP), ("id", "echo 0"), ("unshare", inside), ("make", make)],
    );
    let fresh = |words: &[&str]| run(&scratch, &bin, "scripts/fresh.sh", words);
    let lines = |said: &str| -> Vec<String> {
        said.lines().filter(|line| !line.starts_with("fresh:")).map(String::from).collect()
    };
    let (code, said) = fresh(&[]);
    assert_eq!(code, Some(0), "{said}");
    let both = ["make demo", "make test"];
    assert_eq!(lines(&said), [&["in bookworm"], &both[..], &["in trixie"], &both[..]].concat(), "{said}");
    let (code, said) = fresh(&["trixie", "--", "make", "other"]);
    assert_eq!((code, lines(&said)), (Some(0), vec!["in trixie".into(), "make other".into()]), "{said}");
    // A folder in place of the tree.
    let (code, said) = fresh(&["--with", bin.to_str().unwrap(), "bookworm", "--", "make", "other"]);
    let with_it = ["in bookworm", "with debootstrap", "id", "make", "unshare", "make other"];
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(lines(&said), with_it, "{said}");
    // A failing command ends the run with the suite's name, and leaves nothing behind.
    programs(&scratch, &[("make", &make.replace("$FAILS", "demo"))]);
    let (code, said) = fresh(&["bookworm"]);
    assert_eq!((code, lines(&said)), (Some(1), vec!["in bookworm".into(), "make demo".into()]), "{said}");
    assert!(said.contains("fresh: bookworm: ") && said.contains("ended with 1"), "{said}");
    let kept = entries(&scratch.dir().join("cache/ironverbs/fresh"));
    assert_eq!(kept, ["bookworm", "bookworm.log", "trixie", "trixie.log"]);
}

#[test]
fn go_programs_that_cannot_be_had_or_are_not_what_they_were_are_named() {
    let scratch = Scratch::new();
    let go = r#"[ "$1" = mod ] || { echo "go: no compiler" >&2; exit 1; }
case $4 in
*plugins@*) printf '{\n\t"Error": "not found"\n}\n'; exit 1 ;;
*) printf '{\n\t"Dir": "%s",\n\t"Sum": "h1:other="\n}\n' "$HOME" ;;
esac"#;
    let bin = programs(&scratch, &[("go", go)]);
    let (code, said) = run(&scratch, &bin, "scripts/go-programs.sh", &["build", "cni"]);
    assert_eq!(code, Some(3), "{said}");
    let cni = "go-programs: github.com/containernetworking/cni@v1.3.1: expected h1:gnHlU";
    assert!(said.contains(cni) && said.contains(", found h1:other=\n"), "{said}");
    assert!(said.contains("plugins@v1.9.1 cannot be had: not found"), "{said}");
    assert!(said.contains("go-programs: plugin-client cannot be built: go: no compiler\n"), "{said}");
    // The folder is not marked as complete, and the next run tries again.
    let folder = scratch.dir().join("cache/ironverbs/go");
    assert_eq!(entries(&folder).iter().filter(|name| name.starts_with("work-")).count(), 0);
    let (_, path) = run(&scratch, &bin, "scripts/go-programs.sh", &["path", "cni"]);
    assert!(!Path::new(path.trim()).join(".made").exists());
}

#[test]
fn images_that_cannot_be_made_are_refused_in_a_line() {
    let scratch = Scratch::new();
    let bin = programs(&scratch, &[("busybox", "echo static")]);
    let image = |words: &[&str]| run(&scratch, &bin, "scripts/container-image.sh", words);
    let refused = |said: &str| (Some(1), format!("container-image: {said}\n"));
    assert_eq!(image(&["one.tar"]), refused("expected a file and a name, found: one.tar"));
    assert_eq!(image(&["one.tar", "one:1", "no-such-program"]), refused("no no-such-program here"));
    let built = |words: &[&str]| run(&scratch, &bin, "scripts/image.sh", words);
    let refused = |said: &str| (Some(1), format!("image: {said}\n"));
    assert_eq!(built(&[]), refused("expected a file, and perhaps a name, found: "));
    programs(&scratch, &[("podman", "")]);
    let (code, said) = built(&["one.tar"]);
    assert!(
        code == Some(1) && said.starts_with("image: no package at ") && said.ends_with(": make deb\n"),
        "{said}"
    );
    assert!(!scratch.dir().join("one.tar").exists());
}

#[test]
fn a_node_answers_pulls_of_images_that_it_has_and_of_no_others() {
    let scratch = Scratch::new();
    let ctr = r#"case "$*" in
"-n k8s.io images ls name==docker.io/mellanox/rping-test:latest") printf 'REF TYPE DIGEST SIZE\ndocker.io/a:b a/manifest sha256:12 2.0 MiB\n' ;;
"-n k8s.io content get sha256:12") printf 12345 ;;
*) echo REF TYPE DIGEST SIZE ;;
esac"#;
    let bin = programs(&scratch, &[("ctr", ctr), ("busybox", r#"echo "$3""#)]);
    let pull = |path: &str| {
        let request = [("PATH_INFO", path), ("QUERY_STRING", "ns=docker.io")];
        run_with(&request, &scratch, &bin, "scripts/kubernetes/registry.sh", &[])
    };
    let there = "Content-Type: a/manifest\r\nDocker-Content-Digest: sha256:12\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(pull("/mellanox/rping-test/manifests/latest"), (Some(0), there.into()));
    let none = "Status: 404 Not Found\r\n\r\n";
    assert_eq!(pull("/mellanox/rping-test/manifests/other"), (Some(0), none.into()));
}

#[test]
fn clusters_that_are_not_there_and_commands_that_are_none_are_named() {
    let scratch = Scratch::new();
    let bin = programs(&scratch, &[]);
    let cluster = |words: &[&str]| run(&scratch, &bin, "scripts/kubernetes.sh", words);
    let (code, said) = cluster(&["ap"]);
    assert_eq!(
        (code, said.contains("unknown command 'ap'; up, load, kubectl, on, kill or down")),
        (Some(1), true)
    );
    for words in [
        &["down"][..],
        &["kubectl", "get", "nodes"],
        &["on", "1", "true"],
        &["load", "x.tar"],
        &["kill", "1"],
    ] {
        let (code, said) = cluster(words);
        let expected = format!("no cluster in {}", scratch.dir().join("none").display());
        assert!(code == Some(1) && said.contains(&expected), "{words:?}: {said}");
    }
    // A directory without nodes.
    fs::create_dir_all(scratch.dir().join("none/run")).unwrap();
    for words in [&["on", "3", "true"][..], &["kill", "3"]] {
        let (code, said) = cluster(words);
        assert!(
            code == Some(1) && said.contains("expected a node that runs, found '3'"),
            "{words:?}: {said}"
        );
    }
}

/// A report of four tests, one of which was skipped and one of which needed a second try, and the output of a part that keeps no report.
#[test]
fn the_last_line_of_the_tests_counts_what_passed_failed_was_skipped_and_tried_again() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.dir().join("results")).unwrap();
    let case = |name: &str, inside: &str| {
        format!(r#"<testcase name="{name}" classname="a-binary" time="1.5">{inside}</testcase>"#)
    };
    let cases = [
        case("well", ""),
        case("lacks", "<system-out>running\nskipped: no tshark here\n</system-out>"),
        case("late", r#"<flakyFailure message="x" type="test failure"/>"#),
        case("wrong", r#"<failure type="test failure"/>"#),
    ];
    let report = format!("<testsuites><testsuite>{}</testsuite></testsuites>", cases.concat());
    fs::write(scratch.dir().join("results/tests.xml"), report).unwrap();
    let said =
        "test result: ok. 3 passed; 0 failed; 0 ignored\nskipped: no model checker\nsecond try: trixie one\n";
    fs::write(scratch.dir().join("results/loom.txt"), said).unwrap();
    let count = |failed: &[&str]| {
        let mut python = Command::new("python3");
        python.arg(of_the_tree("scripts/results.py")).arg(scratch.dir().join("results"));
        let out = python.args(["--times", "tests=61", "loom=2", "--failed"]).args(failed).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.code(), said.lines().last().unwrap_or_default().to_owned(), said)
    };
    let (code, last, said) = count(&["tests"]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(last, "5 passed, 1 failed, 2 skipped, 2 retried (loom: trixie one, a-binary late)", "{said}");
    assert!(said.contains("tests 61 s, loom 2 s; 1 min 3 s in all"), "{said}");
    assert!(said.contains("a-binary lacks: skipped: no tshark here"), "{said}");
    // A part that failed without a failing test also counts as a failure.
    let (code, last, said) = count(&["tests", "loom", "build"]);
    assert_eq!((code, last.starts_with("5 passed, 3 failed, ")), (Some(1), true), "{said}");
}
