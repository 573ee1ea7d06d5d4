//! The Debian package that `scripts/deb.sh` makes from the build beside these tests: its files and their locations, that it works without
//! the source tree, and that nothing is left behind; also its manual pages and shell completion.
//!
//! `scripts/deb.sh check` does the same on bare Debians, with apt.

mod action;
mod chart;
mod yaml;

use ironverbs_tests::program::{Scratch, built};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the tree").into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a program, which must succeed, and returns its output.
fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}: {}{}", text(&stdout), text(&stderr));
    text(&stdout)
}

/// A private directory for a test, removed with the value.
fn scratch() -> Scratch {
    let scratch = Scratch::new();
    fs::create_dir(scratch.dir()).unwrap();
    scratch
}

/// Makes the package in `dir`, with one additional environment variable.
fn pack(dir: &Path, name: &str, value: &str) -> PathBuf {
    let mut script = Command::new("timeout");
    script.args(["120", "sh"]).arg(tree().join("scripts/deb.sh")).arg("pack").arg(dir);
    script.env("IRONVERBS_BUILT", built()).env_remove("SOURCE_DATE_EPOCH").env(name, value);
    // dpkg-deb's own setting: takes a third of the time.
    script.env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    PathBuf::from(said(&mut script).trim())
}

/// Returns mode, owner and path of everything in the package.
fn contents(package: &Path) -> Vec<(String, String, String)> {
    let list = said(Command::new("dpkg-deb").arg("-c").arg(package));
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), words[1].to_owned(), words[5].to_owned())
    };
    list.lines().map(entry).collect()
}

fn is_debian() -> bool {
    let there = Command::new("dpkg-deb").arg("--version").output().is_ok();
    if !there {
        println!("skipped: no dpkg-deb");
    }
    there
}

#[test]
fn the_package_has_its_files_in_their_places_and_is_the_same_whenever_it_is_made() {
    if !is_debian() {
        return;
    }
    let scratch = scratch();
    let package = pack(&scratch.dir().join("one"), "TZ", "UTC");
    let another = pack(&scratch.dir().join("another"), "TZ", "Asia/Kathmandu");
    assert_eq!(package.file_name(), another.file_name());
    assert!(fs::read(&package).unwrap() == fs::read(&another).unwrap(), "two packages differ");

    let contents = contents(&package);
    // Files of the source tree keep their modes.
    let is_program = |path: &str| match path.strip_prefix("./usr/share/ironverbs/") {
        Some(of_tree) => fs::metadata(tree().join(of_tree)).unwrap().permissions().mode() & 0o100 != 0,
        None => path == "./usr/bin/ironverbs",
    };
    // Anything in /etc would also affect programs outside of a run, in particular a .driver file of libibverbs.
    let files = [
        "./usr/bin/ironverbs",
        "./usr/lib/ironverbs/libironverbs_loader.so",
        "./usr/lib/ironverbs/libironverbs_provider.so",
        "./usr/lib/ironverbs/libironverbs_time.so",
        "./usr/share/bash-completion/completions/ironverbs",
        "./usr/share/fish/vendor_completions.d/ironverbs.fish",
        "./usr/share/zsh/vendor-completions/_ironverbs",
        "./usr/share/doc/ironverbs/NOTICES.gz",
        "./usr/share/doc/ironverbs/README.md",
        "./usr/share/doc/ironverbs/changelog.gz",
        "./usr/share/doc/ironverbs/copyright",
        "./usr/share/ironverbs/packaging/linux/README.md",
        "./usr/share/ironverbs/packaging/linux/config",
        "./usr/share/ironverbs/packaging/linux/uml.patch",
        "./usr/share/ironverbs/scripts/linux-kernel.sh",
    ];
    let many = [
        "./usr/share/doc/ironverbs/docs/",
        "./usr/share/man/man1/ironverbs",
        "./usr/share/ironverbs/packaging/chart/",
        "./usr/share/ironverbs/scripts/",
        "./usr/share/ironverbs/tests/places/linux/plugin-client/",
        "./usr/share/ironverbs/tests/places/linux/sriov-cni/",
    ];
    for (mode, owner, path) in &contents {
        let expected = match path {
            path if path.ends_with('/') => "drwxr-xr-x",
            path if is_program(path) => "-rwxr-xr-x",
            _ => "-rw-r--r--",
        };
        assert_eq!((mode.as_str(), owner.as_str()), (expected, "root/root"), "{path}");
        let placed = files.contains(&path.as_str()) || many.iter().any(|place| path.starts_with(place));
        assert!(placed || path.ends_with('/'), "{path} is in no place that was meant");
    }
    let missing: Vec<&&str> =
        files.iter().filter(|file| !contents.iter().any(|(_, _, path)| path == *file)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // No scripts run at installation, and there is nothing to configure.
    let control =
        said(Command::new("sh").args(["-c", "dpkg-deb --ctrl-tarfile \"$0\" | tar -t"]).arg(&package));
    let control: BTreeSet<&str> = control.lines().collect();
    assert_eq!(control, BTreeSet::from(["./", "./control", "./md5sums"]));

    let root = scratch.dir().join("root");
    said(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root));
    // The kernel of `ironverbs linux` and the Go programs are the same whether they are made from the sources or from the package.
    let share = root.join("usr/share/ironverbs");
    let made_by = |place: &Path, script: &str, words: &[&str]| {
        said(Command::new("sh").arg(place.join("scripts").join(script)).arg("path").args(words))
    };
    for (script, words) in
        [("linux-kernel.sh", &[][..]), ("go-programs.sh", &["cni"]), ("go-programs.sh", &["kubernetes"])]
    {
        assert_eq!(made_by(&share, script, words), made_by(&tree(), script, words), "{script} {words:?}");
    }
    // The files that the pages on clusters and their nodes name exist.
    for page in ["kubernetes", "linux"] {
        let page = fs::read_to_string(root.join(format!("usr/share/doc/ironverbs/docs/{page}.md"))).unwrap();
        let words = page.split(|c: char| !(c.is_ascii_alphanumeric() || "/.-".contains(c)));
        let named = words.filter(|word| word.starts_with("scripts/") || word.starts_with("packaging/"));
        for file in named.map(|word| word.trim_end_matches('.')) {
            assert!(share.join(file).exists(), "the package has no {file}");
        }
    }
    // So do the scripts that these run.
    for script in fs::read_dir(share.join("scripts")).unwrap().map(|entry| entry.unwrap().path()) {
        let text = fs::read_to_string(&script).unwrap_or_default();
        for beside in text.split("\"$HERE/scripts/").skip(1).filter_map(|rest| rest.split('"').next()) {
            let there = share.join("scripts").join(beside).exists() || beside == "nextest.sh";
            assert!(there, "{} runs {beside}, which the package does not have", script.display());
        }
    }
    let notices = said(Command::new("gzip").arg("-dc").arg(root.join("usr/share/doc/ironverbs/NOTICES.gz")));
    assert!(notices.contains("\nclap 4") && notices.contains("Permission is hereby granted"), "{notices}");
    for file in files.iter().filter(|file| file.starts_with("./usr/bin/") || file.ends_with(".so")) {
        let elf = said(Command::new("readelf").arg("-lSdW").arg(root.join(file)));
        assert!(
            elf.contains("GNU_RELRO") && elf.contains("BIND_NOW"),
            "{file} can be written where it need not"
        );
        assert!(!elf.contains(".debug_info") && !elf.contains(".symtab"), "{file} has debug information");
    }
}

/// Installs, uses and purges the package in `$AT/root`, where the source tree and cargo's target directory are not visible. dpkg's database
/// is beside it.
const INSTALLED: &str = r#"
    set -e
    mount -t tmpfs none "$TREE" || exit 77
    [ ! -e "$TARGET" ] || mount -t tmpfs none "$TARGET"
    books=$AT/books
    mkdir -p "$AT/root" "$books/info" "$books/updates"
    touch "$books/status" "$books/available"
    PATH=$PATH:/usr/sbin:/sbin
    install() { dpkg --root="$AT/root" --admindir="$books" --log=/dev/null --force-depends --force-not-root "$@" </dev/null; }
    install -i "$PACKAGE" >"$AT/said" 2>&1
    ironverbs=$AT/root/usr/bin/ironverbs
    "$ironverbs" --version
    "$ironverbs" doctor --adapter "$AT/node" | grep ' provider '
    timeout -k 1 30 "$ironverbs" demo --adapter "$AT/node"
    "$ironverbs" node reset --adapter "$AT/node"
    install -P ironverbs >>"$AT/said" 2>&1
    echo "left: $(ls -A "$AT/root") $(ls -A "$books/info" | grep ironverbs || true)"
"#;

#[test]
fn what_is_installed_runs_without_the_tree_and_goes_without_a_trace() {
    if !is_debian() {
        return;
    }
    let scratch = scratch();
    let package = pack(scratch.dir(), "TZ", "UTC");
    let version = said(Command::new(built().join("ironverbs")).arg("--version"));
    let target = built().parent().expect("target/release").to_owned();
    let me = said(Command::new("id").arg("-u"));
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private"]);
    if me.trim() != "0" {
        unshare.arg("--map-root-user");
    }
    unshare.args(["timeout", "-k", "1", "60", "sh", "-c", INSTALLED]).current_dir("/");
    unshare.env_remove("IRONVERBS_NODE").env("AT", scratch.dir()).env("PACKAGE", &package);
    let out = unshare.env("TREE", tree()).env("TARGET", target).output().unwrap();
    if out.status.code() == Some(77) || !out.status.success() && text(&out.stderr).starts_with("unshare:") {
        return println!("skipped: no mount namespaces here: {}", text(&out.stderr).trim());
    }
    let all = format!("{}{}", text(&out.stdout), text(&out.stderr));
    let dpkg = fs::read_to_string(scratch.dir().join("said")).unwrap_or_default();
    assert!(out.status.success(), "{}: {all}{dpkg}", out.status);
    assert!(all.starts_with(&version), "expected {version}, found {all}");
    let provider = scratch.dir().join("root/usr/lib/ironverbs/libironverbs_provider.so");
    assert!(all.contains(provider.to_str().unwrap()), "{all}");
    let row = |line: &str| line.split_whitespace().take(2).eq(["2", "1000"]);
    assert!(all.lines().any(row), "expected the table of ib_read_lat: {all}");
    let left = all.lines().find_map(|line| line.strip_prefix("left:")).expect(&all);
    // dpkg leaves none of the directories that it created.
    assert_eq!(left.trim(), "", "{dpkg}");
}

/// Returns the manual pages and the completion in the package.
fn manual(share: &Path) -> Vec<(String, String)> {
    let made = said(Command::new(built().join("examples/manual")).arg(share).arg("2001-02-03"));
    assert_eq!(made, "");
    let pages = fs::read_dir(share.join("man/man1")).unwrap().map(|entry| entry.unwrap().path());
    let page = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).unwrap())
    };
    let mut pages: Vec<(String, String)> = pages.map(page).collect();
    pages.sort();
    pages
}

/// Returns the help of a command, by the name of its page.
fn help(page: &str) -> String {
    said(Command::new(built().join("ironverbs")).args(page.split('-').skip(1)).arg("--help"))
}

/// Returns the commands listed in a help text.
fn commands(help: &str) -> impl Iterator<Item = &str> {
    let list = help.split_once("Commands:\n").map_or("", |(_, list)| list);
    let words = list
        .lines()
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next());
    words.filter(|word| *word != "help")
}

#[test]
fn every_command_has_a_page_that_says_all_its_help_says() {
    let scratch = scratch();
    let pages = manual(scratch.dir());
    let names: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains("ironverbs") && names.contains("ironverbs-vf-create"), "{names:?}");
    let documents = tree().join("docs");
    for (name, page) in &pages {
        let help = help(name);
        let below: Vec<String> = commands(&help).map(|command| format!("{name}-{command}")).collect();
        assert!(below.iter().all(|page| names.contains(page.as_str())), "{below:?} of {names:?}");
        let plain = page.replace("\\-", "-");
        let options = help
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .filter(|word| word.starts_with("--"));
        for option in options.filter(|option| option.len() > 2) {
            assert!(plain.contains(option), "{option} of `{name}` is not in its page");
        }
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let order =
            ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SUBCOMMANDS", "\"EXIT STATUS\"", "ENVIRONMENT"];
        let order = [&order[..], &["FILES", "EXAMPLES", "\"SEE ALSO\""]].concat();
        assert!(sections.iter().all(|section| order.contains(section)), "{name}: {sections:?}");
        let ordered: Vec<&str> = order.iter().copied().filter(|section| sections.contains(section)).collect();
        assert_eq!(sections, ordered, "{name}");
        for always in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(sections.contains(&always), "{name} has no section {always}");
        }
        for document in plain.split("/usr/share/doc/ironverbs/docs/").skip(1) {
            let document = document.split_inclusive(".md").next().unwrap();
            assert!(documents.join(document).is_file(), "{name} refers to {document}");
        }
        for other in plain.split("\\fB").filter_map(|piece| piece.split_once("\\fR(1)")) {
            assert!(
                !other.0.starts_with("ironverbs") || names.contains(other.0),
                "{name} refers to {}",
                other.0
            );
        }
    }
}

#[test]
fn formatters_have_nothing_to_say_of_the_pages() {
    let scratch = scratch();
    for (name, _) in manual(scratch.dir()) {
        let page = scratch.dir().join(format!("man/man1/{name}.1"));
        let out = Command::new("mandoc").args(["-Tlint", "-Wwarning"]).arg(&page).output();
        let Ok(out) = out else { return println!("skipped: no mandoc") };
        assert!(out.status.success(), "{}", text(&[out.stdout, out.stderr].concat()));
    }
}

/// Prints bash's completions for the words of each line.
const TAB: &str = r#"
    . "$0"
    while read -r -a COMP_WORDS; do
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        [ "${COMP_WORDS[COMP_CWORD]}" != . ] || COMP_WORDS[COMP_CWORD]=
        COMPREPLY=()
        _ironverbs ironverbs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        echo "${COMPREPLY[*]}"
    done <<<"$LINES_TO_COMPLETE"
"#;

#[test]
fn bash_completes_commands_options_and_values() {
    let scratch = scratch();
    manual(scratch.dir());
    let script = scratch.dir().join("bash-completion/completions/ironverbs");
    let lines =
        ["ironverbs do", "ironverbs adapter .", "ironverbs run --link-layer .", "ironverbs bringup --vfio-"];
    let mut bash = Command::new("bash");
    bash.args(["-c", TAB]).arg(script).env("LINES_TO_COMPLETE", lines.join("\n"));
    let offered = said(&mut bash);
    let offered: Vec<&str> = offered.lines().collect();
    assert_eq!(offered[0], "doctor");
    assert!(offered[1].contains("status") && offered[1].contains("capture"), "{offered:?}");
    assert_eq!(offered[2..], ["ethernet infiniband", "--vfio-user"]);
}
