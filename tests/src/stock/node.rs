//! A test's own node, and programs started on it by `ironverbs run`.

use super::Running;
use crate::program::built;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard},
};

/// For machines with two cores: one pair at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Cargo's target directory, above the calling test.
pub(super) fn target() -> PathBuf {
    let me = std::env::current_exe().expect("the test's own path");
    me.ancestors().nth(3).expect("target/<profile>/deps/<test>").into()
}

/// The `ironverbs` command: `IRONVERBS_BIN`, or the one built beside this test.
pub fn ironverbs() -> PathBuf {
    std::env::var_os("IRONVERBS_BIN").map_or_else(|| built().join("ironverbs"), PathBuf::from)
}

/// The command and the provider in a temporary directory, removed when dropped.
struct Installed(PathBuf);

impl Installed {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("ironverbs-test-{}-installed", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a directory to install to");
        let from = ironverbs();
        let objects = ["libironverbs_loader.so", "libironverbs_provider.so", "libironverbs_time.so"];
        for name in [&["ironverbs"][..], &objects].concat() {
            fs::copy(from.with_file_name(name), dir.join(name)).expect("a copy of what was built");
        }
        Self(dir)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A node that is removed when the test ends.
pub struct Node {
    dir: PathBuf,
    vfs: u8,
    env: Vec<(&'static str, &'static str)>,
    options: Vec<String>,
    prefix: Vec<String>,
    installed: Option<Installed>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Node {
    /// Makes a node with `vfs` VFs; tests of one process have one at a time.
    pub fn new(name: &str, vfs: u8) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let dir = Path::new("/dev/shm").join(format!("ironverbs-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self {
            dir,
            vfs,
            env: Vec::new(),
            options: Vec::new(),
            prefix: Vec::new(),
            installed: None,
            _turn: Some(turn),
        }
    }

    /// Makes another node for the same test, with its own number.
    pub fn beside(&self, id: u16) -> Self {
        let dir = self.dir.with_extension(id.to_string());
        let _ = fs::remove_dir_all(&dir);
        let options = ["--node-id".into(), id.to_string()].to_vec();
        Self {
            dir,
            vfs: self.vfs,
            env: self.env.clone(),
            options,
            prefix: Vec::new(),
            installed: None,
            _turn: None,
        }
    }

    /// Starts a command of `ironverbs` itself, such as `serve`, on the node.
    pub fn ironverbs(&self, command: &[&str], args: &[&str]) -> Running {
        let child = Command::new(ironverbs())
            .args(command)
            .arg("--node")
            .arg(&self.dir)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start ironverbs");
        Running::of(child, format!("{} {}", command.join(" "), args.join(" ")))
    }

    /// Sets the link layer to InfiniBand.
    pub fn on_infiniband(mut self) -> Self {
        self.options.extend(["--link-layer".into(), "infiniband".into()]);
        self
    }

    /// True if programs find an adapter with InfiniBand.
    pub fn is_infiniband(&self) -> bool {
        self.options.iter().any(|option| option == "infiniband")
    }

    /// Runs programs in virtual time.
    pub fn timed(mut self) -> Self {
        self.options.extend(["--clock".into(), "timed".into()]);
        self
    }

    /// Runs programs in virtual time with the fault plan in the file `plan`; the events are written to `timeline`.
    pub fn with_faults(self, plan: &Path, timeline: &Path) -> Self {
        let mut node = self.timed();
        let paths = [("--faults", plan), ("--timeline", timeline)];
        node.options.extend(paths.map(|(name, path)| format!("{name}={}", path.display())));
        node
    }

    /// Lets programs see the devices of `other` too.
    pub fn and_adapter(mut self, other: &Self) -> Self {
        self.options.extend(["--adapter".into(), other.dir.display().to_string()]);
        self
    }

    /// Makes the adapter as strict as `switches` say.
    pub fn strict(mut self, switches: &str) -> Self {
        self.options.extend(["--strict".into(), switches.into()]);
        self
    }

    /// Lets programs register more memory than they may lock.
    pub fn without_memlock(mut self) -> Self {
        self.options.push("--no-memlock".into());
        self
    }

    /// Starts programs through the command `prefix`.
    pub fn under(mut self, prefix: &[&str]) -> Self {
        self.prefix = prefix.iter().map(|word| (*word).into()).collect();
        self
    }

    /// Uses a copy of the command that every user can read: a checkout below `/root` is readable only by root.
    pub fn installed(mut self) -> Self {
        self.installed = Some(Installed::new());
        self
    }

    /// Returns the command that runs programs.
    pub fn binary(&self) -> PathBuf {
        self.installed.as_ref().map_or_else(ironverbs, |installed| installed.0.join("ironverbs"))
    }

    /// Sets an environment variable for all programs.
    pub fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.push((name, value));
        self
    }

    /// The node's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn command(&self, program: &[&str]) -> Command {
        let mut words = self.prefix.iter().map(OsString::from).chain([self.binary().into()]);
        let mut command = Command::new(words.next().expect("ironverbs at least"));
        command
            .args(words)
            .arg("run")
            .arg("--node")
            .arg(&self.dir)
            .arg("--vfs")
            .arg(self.vfs.to_string())
            .args(&self.options)
            .arg("--")
            .args(program);
        command.envs(self.env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns the processes that supervise programs of the node.
    pub fn supervisors(&self) -> Vec<u32> {
        let dir = self.dir.display().to_string();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let read =
            |pid: &u32, file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        pids.filter(|pid| read(pid, "comm").trim() == "ironverbs-super")
            .filter(|pid| read(pid, "cmdline").split('\0').any(|word| word == dir))
            .collect()
    }

    /// Starts a program.
    pub fn start(&self, program: &[&str]) -> Running {
        let child = self.command(program).spawn().expect("start ironverbs run");
        Running::of(child, program.join(" "))
    }

    /// Runs a program to completion and returns its output.
    pub fn run(&self, program: &[&str]) -> String {
        self.start(program).finish()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
