//! What scripts do on a machine that has nothing yet, with programs in place of those that take minutes.

use ironverbs_tests::program::Scratch;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A directory with programs that come before the system's own.
fn programs(scratch: &Scratch, texts: &[(&str, &str)]) -> PathBuf {
    let bin = scratch.dir().join("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, text) in texts {
        fs::write(bin.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    bin
}

/// A script of the tree, run with `bin` before the system's programs: how it ended, and what it printed.
fn run(scratch: &Scratch, bin: &Path, script: &str, words: &[&str]) -> (Option<i32>, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(script);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["60", "sh"])
        .arg(script)
        .args(words)
        .current_dir(scratch.dir())
        .env("XDG_CACHE_HOME", scratch.dir().join("cache"))
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

/// Makes the folder it is told of, and says so.
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
    let (all, why) = said.split_once("ci: make test ended with 2").expect(&said);
    assert!(code == Some(2) && all.contains("begun"), "{code:?}: {said}");
    assert!(why.contains("FAIL [   1.0s] a test") && !why.contains("0 failed"), "{said}");
    // Something stays behind with the run's output open.
    let stays = "sleep 30 & echo done";
    let begun = std::time::Instant::now();
    let (code, said) = run(&scratch, &programs(&scratch, &[("make", stays)]), ".ci/run", &[]);
    assert_eq!((code, said.as_str()), (Some(0), "done\n"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
}
