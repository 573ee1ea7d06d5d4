//! The commands of README and docs, pasted as a reader would: into a shell in a directory that looks like the tree after `make build`, as a
//! user without an adapter.

use ironverbs_tests::{
    program::{Scratch, built},
    stock::{Running, is_heard, until_rest},
};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use testkit::until;

/// Blocks that no test below runs: the page, the beginning of the block, and the reason.
const UNTRIED: &[(&str, &str, &str)] = &[
    ("README.md", "git clone", "scripts/fresh.sh does so"),
    ("README.md", "make test", "it is what runs this"),
    ("docs/bench.md", "make", "it measures the machine, for minutes"),
    ("docs/bringup.md", "ironverbs bringup", "it needs a card"),
    ("docs/cni.md", "CNI_PATH=", "make test-cni does so"),
    ("docs/containers.md", "ironverbs adapter create", "tests of containers do so, with an image of theirs"),
    ("docs/containers.md", "printf", "tests of containers do so, with an image of theirs"),
    ("docs/guests.md", "make", "make test-all does so"),
    ("docs/install.md", "make deb", "make test-deb does so"),
    ("docs/install.md", "cargo run", "tests of the package do so"),
    ("docs/install.md", "make image", "the test of the chart does so"),
    (
        "docs/kubernetes.md",
        "make build",
        "make deps-kubernetes is what the test of the page in kubernetes/ needs",
    ),
    ("docs/kubernetes.md", "scripts/kubernetes.sh up", "the test of the page in kubernetes/ does so"),
    ("docs/kubernetes.md", "k=", "the test of the page in kubernetes/ does so"),
    ("docs/kubernetes.md", "$k apply", "the test of the page in kubernetes/ does so"),
    ("docs/infiniband.md", "ironverbs adapter create", "linux/infiniband.rs joins two guests"),
    ("docs/kubernetes-infiniband.md", "export", "the test of the page in kubernetes/ does so"),
    ("docs/kubernetes-infiniband.md", "$k apply", "the test of the page in kubernetes/ does so"),
    ("docs/kubernetes-infiniband.md", "lid=", "the test of the page in kubernetes/ does so"),
    ("docs/kubernetes-infiniband.md", "CNI_PATH=", "the builds are the reader's"),
    ("docs/kubernetes.md", "NODES=0", "the test of the host's node does so"),
    ("docs/chart.md", "make image", "the test of the chart does so"),
    ("docs/chart.md", "helm install", "the test of the chart does so"),
    ("docs/chart.md", "for pod", "the test of the chart does so"),
    ("docs/adapter.md", "ironverbs run", "the adapters are the reader's"),
    ("docs/serve.md", "ironverbs serve", "it goes on for a guest, as tests of guests have it"),
    ("docs/stream.md", "ironverbs serve", "it goes on for a guest, as tests of guests have it"),
    ("docs/stream.md", "ironverbs trace", "the recordings are the reader's"),
    ("docs/stress.md", "make", "make test-all does so"),
    ("docs/testing.md", "make", "it takes minutes, from another seed each time"),
    ("docs/time.md", "ironverbs pcap check", "the capture is the reader's"),
    ("docs/time.md", "ironverbs sim send_lat", "tests of the command do so, and judge what it prints"),
    ("docs/time.md", "ironverbs run", "tests of time do so, for one size: all take a minute"),
    ("docs/time.md", "ironverbs sim network", "the topology is the reader's"),
    ("docs/time-inside.md", "make driver-costs", "it measures the machine, for minutes"),
    ("docs/twin.md", "ironverbs adapter create", "it goes on for a guest, as tests of guests have it"),
    ("docs/vfio.md", "ironverbs vf list", "it needs a card"),
    ("docs/wire.md", "ironverbs run --fault", "the program is the reader's"),
    (
        "docs/wire.md",
        "ironverbs adapter fault",
        "it goes on until it is interrupted, as tests of links have it",
    ),
    (
        "docs/wire.md",
        "ironverbs adapter capture",
        "it goes on until it is interrupted, as tests of links have it",
    ),
    ("docs/with-a-card.md", "./ironverbs", "it needs a card"),
    ("docs/with-a-card.md", "lspci", "it needs a card"),
];

/// First words of commands on our pages. Lines of displayed output and files begin with others.
const COMMANDS: &[&str] = &[
    "$k",
    "./ironverbs",
    "cargo",
    "cat",
    "export",
    "for",
    "git",
    "helm",
    "ironverbs",
    "lspci",
    "make",
    "podman",
    "printf",
    "scripts/install-deps.sh",
    "scripts/kubernetes.sh",
    "target/release/ironverbs",
];

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the command blocks of a page: indented paragraphs, together with the empty lines between them.
fn blocks(page: &str) -> Vec<String> {
    let text = fs::read_to_string(tree().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
    let (mut all, mut block, mut apart) = (vec![], String::new(), true);
    for line in text.lines().chain([".", "."]) {
        match line.strip_prefix("    ") {
            Some(line) if apart || !block.is_empty() => block += &format!("{line}\n"),
            _ if line.is_empty() && !block.is_empty() => block += "\n",
            _ => all.extend(Some(std::mem::take(&mut block)).filter(|block| !block.is_empty())),
        }
        apart = line.is_empty();
    }
    // In a list it is indented further.
    let indented = |block: String| {
        let more = block.len() - block.trim_start().len();
        let line = |line: &str| format!("{}\n", line.get(more..).unwrap_or_default());
        block.trim_end().lines().map(line).collect::<String>()
    };
    let all = all.into_iter().map(indented);
    all.filter(|block| {
        let first = block.split_whitespace().next().unwrap_or_default();
        COMMANDS.contains(&first) || first.contains('=')
    })
    .collect()
}

/// Returns the command block of a page with this beginning.
pub fn block_of(page: &str, begins: &str) -> String {
    let block = blocks(page).into_iter().find(|block| block.starts_with(begins));
    block.unwrap_or_else(|| panic!("{page} has no block that begins with {begins:?}"))
}

/// A reader's working directory, and the places outside it that a block creates.
pub struct Desk {
    /// In memory.
    scratch: Scratch,
    /// On disk, like most source trees: guests have a /dev/shm of their own.
    tree: PathBuf,
    others: Vec<PathBuf>,
}

impl Desk {
    /// Returns `None` with a message if a program or a place that the block needs is unavailable.
    pub fn new(block: &str, needs: &[&str]) -> Option<Self> {
        let there = |program: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(program).exists())
        };
        if let Some(program) = needs.iter().find(|program| !there(program)) {
            println!("skipped: no {program} here");
            return None;
        }
        let others: Vec<_> = block
            .split_whitespace()
            .filter(|word| word.starts_with("/dev/shm/"))
            .map(PathBuf::from)
            .collect();
        if let Some(other) = others.iter().find(|other| other.exists()) {
            println!("skipped: {} is there already", other.display());
            return None;
        }
        let scratch = Scratch::new();
        let tree_here = Path::new(env!("CARGO_TARGET_TMPDIR")).join(scratch.dir().file_name().unwrap());
        let this = Self { scratch, tree: tree_here, others };
        fs::create_dir_all(this.path("run")).unwrap();
        fs::create_dir_all(this.tree.join("target")).unwrap();
        for entry in fs::read_dir(tree()).unwrap().flatten().filter(|entry| entry.file_name() != "target") {
            symlink(fs::canonicalize(entry.path()).unwrap(), this.tree.join(entry.file_name())).unwrap();
        }
        symlink(built(), this.tree.join("target/release")).unwrap();
        // The reader's own program, for commands that run one.
        let program = this.tree.join("program");
        fs::write(&program, "#!/bin/sh\nibv_devices\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Some(this)
    }

    /// Returns a path of the reader's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.dir().join(name)
    }

    /// Returns a command of the reader's.
    pub fn command(&self, program: &str, words: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(program);
        command.args(words).current_dir(&self.tree);
        command.env("PATH", format!("{}:{path}", built().display()));
        command.env("XDG_RUNTIME_DIR", self.path("run")).env_remove("IRONVERBS_NODE");
        // Open MPI otherwise refuses to run as root.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.others.iter().chain([&self.tree]).for_each(|place| drop(fs::remove_dir_all(place)));
    }
}

/// Pastes a block into a shell. It must succeed and print these texts.
fn pasted(page: &str, begins: &str, needs: &[&str], prints: &[&str]) {
    let block = block_of(page, begins);
    let Some(desk) = Desk::new(&block, needs) else { return };
    let whole = format!("{block}\nwait");
    let said =
        Running::start(&mut desk.command("timeout", &["-k", "2", "85", "sh", "-ec", &whole]), page).finish();
    prints
        .iter()
        .for_each(|words| assert!(said.contains(words), "{page}: expected {words:?} of\n{block}in\n{said}"));
}

/// True for a command that goes on until it is interrupted.
fn serves(line: &str) -> bool {
    [" serve ", " link "].iter().any(|command| line.contains(command))
}

/// Types each line of a block into its own terminal, once the program of the previous line waits for others. The last must end and print
/// these texts; then the servers are interrupted, and the others must end too.
fn in_terminals(page: &str, begins: &str, needs: &[&str], prints: &[&str]) {
    let block = block_of(page, begins);
    let Some(desk) = Desk::new(&block, needs) else { return };
    let lines: Vec<_> = block.lines().collect();
    let (last, others) = lines.split_last().unwrap();
    // Replaces the shell, so that it ends with this test.
    let typed = |line: &str| Running::start(&mut desk.command("sh", &["-c", &format!("exec {line}")]), line);
    let others: Vec<_> = others
        .iter()
        .map(|line| {
            let running = typed(line);
            match serves(line) {
                true => until_rest(running.pid(), line),
                // perftest's port.
                false => until(format_args!("{line} listens"), Duration::from_secs(30), || is_heard("18515")),
            }
            (line, running)
        })
        .collect();
    let said = typed(last).finish();
    prints.iter().for_each(|words| assert!(said.contains(words), "{page}: expected {words:?} in\n{said}"));
    for (line, running) in others.into_iter().rev() {
        match serves(line) {
            true => running.signal("TERM"),
            false => drop(running.finish()),
        }
    }
}

#[test]
fn every_block_of_commands_is_tried_or_it_is_said_why_not() {
    let docs = fs::read_dir(tree().join("docs")).unwrap().flatten();
    let docs = docs.map(|entry| format!("docs/{}", entry.file_name().to_str().unwrap()));
    let pages: Vec<_> = docs.filter(|page| page.ends_with(".md")).chain(["README.md".into()]).collect();
    let is_known = |page: &str, block: &str| {
        let mut known = UNTRIED
            .iter()
            .map(|(of, begins, _)| (of, begins))
            .chain(TRIED.iter().map(|(of, begins)| (of, begins)));
        known.any(|(of, begins)| *of == page && block.starts_with(begins))
    };
    let unknown: Vec<_> = pages
        .iter()
        .flat_map(|page| blocks(page).into_iter().map(move |block| (page, block)))
        .filter(|(page, block)| !is_known(page, block))
        .collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    for (page, begins, _) in UNTRIED {
        block_of(page, begins);
    }
}

/// The tests, and the blocks that they run.
macro_rules! tried {
    ($($name:ident: $how:ident($page:literal, $begins:literal, needs $needs:expr, prints $prints:expr);)*) => {
        const TRIED: &[(&str, &str)] = &[$(($page, $begins)),*];
        $(#[test]
        fn $name() {
            $how($page, $begins, &$needs, &$prints);
        })*
    };
}

tried! {
    readme_shows_perftest_in_two_terminals:
        in_terminals("README.md", "target/release/ironverbs run", needs ["ib_write_bw"], prints ["RDMA_Write BW Test", " 65536 "]);
    readme_shows_what_can_stand_behind_run:
        pasted("README.md", "ironverbs run -- ibv_devinfo", needs ["rping", "rdma", "mpirun"],
            prints ["hca_id:\tiron8", "1000 iters in", "ping data: rdma-ping-9"]);
    the_page_of_time_shows_a_plan_of_faults:
        pasted("docs/time.md", "cat >plan.toml", needs [], prints ["drop           RcWriteMiddle"]);
    the_page_of_adapters_shows_names_of_a_cards_own:
        pasted("docs/adapter.md", "ironverbs adapter create", needs [], prints ["adapter in "]);
    the_page_of_vfio_shows_driver_and_model_apart:
        in_terminals("docs/vfio.md", "ironverbs serve", needs ["ib_send_bw"], prints ["Send BW Test", " 65536 "]);
    the_page_of_the_wire_shows_an_address:
        pasted("docs/wire.md", "ironverbs adapter create", needs [], prints ["10.0.0.5"]);
    the_page_of_the_wire_shows_two_adapters:
        in_terminals("docs/wire.md", "ironverbs link", needs ["ib_write_bw"], prints ["RDMA_Write BW Test", " 65536 "]);
    the_page_of_linux_guests_shows_one:
        pasted("docs/linux.md", "scripts/install-deps.sh", needs ["flex"], prints ["link mlx5_1/1 state ACTIVE"]);
    the_page_of_plugins_shows_a_pod_with_a_vf:
        pasted("docs/cni.md", "plugins=", needs ["flex", "go"], prints ["netdev eth0"]);
}
