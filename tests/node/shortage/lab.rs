//! A node on which programs fail, and the checks after each of them.

use super::run::{KINDS, Outcome, Shim, Shortage};
use ironverbs_tests::{
    program::built,
    stock::{compiled, compiled_cm, compiled_library},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `ironverbs node create`, in a directory without a node.
    Create,
    /// `ironverbs node status`.
    Status,
    /// `ironverbs run` with `true`.
    True,
    /// `ibv_devinfo`.
    Devices,
    /// iproute2's `rdma`.
    Rdma,
    /// `tests/programs/objects.c`.
    Objects,
    /// `tests/programs/connects.c`.
    Connects,
    /// `ironverbs serve`, until its socket exists.
    Serve,
}

/// A program, its own node, and the library that makes its calls fail.
pub struct Lab {
    program: Program,
    shim: Shim,
    /// Holds the node and all files that programs make.
    dir: PathBuf,
    ironverbs: PathBuf,
    /// Arguments that launch the program on the node.
    words: Vec<String>,
    /// Output when nothing fails.
    says: String,
}

impl Lab {
    /// Sets up a node on which `program` can run. Returns `None` if it is not installed.
    pub fn new(program: Program) -> Option<Self> {
        let words = match program {
            Program::True => vec!["true".into()],
            Program::Devices => vec!["ibv_devinfo".into()],
            Program::Rdma => vec!["rdma".into(), "link".into()],
            Program::Objects => vec![compiled("objects"), "iron1".into(), "iron2".into()],
            Program::Connects => {
                let port = 20_000 + std::process::id() % 20_000;
                vec![compiled_cm("connects"), "127.0.0.2".into(), port.to_string()]
            }
            Program::Create | Program::Status | Program::Serve => Vec::new(),
        };
        let is_there = |name: &String| {
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
                .any(|dir| dir.join(name).exists())
        };
        if let Some(missing) = words.first().filter(|name| !is_there(name)) {
            println!("skipped: no {missing}");
            return None;
        }
        let name = format!("ironverbs-shortage-{}-{program:?}", std::process::id());
        let dir = Path::new("/dev/shm").join(&name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a directory in memory");
        let counts = std::env::temp_dir().join(name);
        let shim = Shim::new(compiled_library("shortage").into(), counts);
        Some(Self { program, shim, dir, ironverbs: built().join("ironverbs"), words, says: String::new() })
    }

    fn node(&self) -> PathBuf {
        self.dir.join("node")
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.ironverbs);
        command.args(words).arg("--node").arg(self.node());
        command
    }

    fn run(&self, shortage: Option<&Shortage>) -> Outcome {
        let mut command = match self.program {
            Program::Create => self.command(&["node", "create", "--vfs", "2"]),
            Program::Status => self.command(&["node", "status"]),
            Program::Serve => {
                let mut command = self.command(&["serve"]);
                command.arg("--plug").arg(format!("1={}", self.socket().display()));
                command
            }
            _ => {
                let mut command = self.command(&["run"]);
                command.arg("--").args(&self.words);
                command
            }
        };
        let mut running = self.shim.start(&mut command, shortage);
        if self.program == Program::Serve && !running.ended_before(&self.socket()) {
            running.terminate();
        }
        running.end()
    }

    /// Returns the number of calls of each kind in a run in which none fails.
    pub fn counts(&mut self) -> [u32; KINDS.len()] {
        self.fresh().expect("a node");
        let outcome = self.run(None);
        assert_eq!(outcome.judge(None), Ok(true), "{:?} when nothing fails:\n{}", self.program, outcome.said);
        self.shim.all_gone().expect("all processes end");
        let counts = self.shim.counts();
        self.as_before().expect("nothing left behind");
        self.says = outcome.out;
        counts
    }

    /// Runs the program with failing calls. Returns true if it succeeded, or an error if it ended in a wrong way or left something behind.
    pub fn attempt(&mut self, shortage: &Shortage) -> Result<bool, String> {
        let outcome = self.run(Some(shortage));
        let gone = self.shim.all_gone();
        let judged = outcome.judge(Some(shortage)).and_then(|succeeded| match succeeded {
            // A launched program must see the complete state.
            true if outcome.failed_in_ironverbs()
                && self.tells_what_it_sees()
                && outcome.out != self.says =>
            {
                Err(format!("{}: it says\n{}instead of\n{}", outcome.failed, outcome.out, self.says))
            }
            succeeded => Ok(succeeded),
        });
        let left = self.as_before();
        if left.is_err() {
            self.fresh().expect("a node");
        }
        let described = |why| format!("{}: {why}\n{}", outcome.failed, outcome.said);
        gone.and(left).map_err(described).and(judged)
    }

    /// Returns true if the output consists of the program's view of the node.
    fn tells_what_it_sees(&self) -> bool {
        matches!(self.program, Program::Devices | Program::Rdma)
    }

    /// Makes a new node, unless the program itself makes it.
    fn fresh(&self) -> Result<(), String> {
        let _ = fs::remove_dir_all(&self.dir);
        fs::create_dir(&self.dir).map_err(|e| e.to_string())?;
        if self.program == Program::Create {
            return Ok(());
        }
        // Some files are made by the first program.
        self.succeeds(&["run", "--vfs", "2"], &["true"]).map(drop)
    }

    /// Returns the output of a command in which nothing fails.
    fn succeeds(&self, words: &[&str], program: &[&str]) -> Result<String, String> {
        let mut command = self.command(words);
        if !program.is_empty() {
            command.arg("--").args(program);
        }
        let out = command.output().map_err(|e| e.to_string())?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match out.status.success() {
            true => Ok(said(&out.stdout)),
            false => Err(format!("afterwards {words:?} {program:?}: {}: {}", out.status, said(&out.stderr))),
        }
    }

    /// Checks that a program finds the node unchanged.
    fn as_before(&self) -> Result<(), String> {
        let files = |dir: &Path| -> BTreeSet<String> {
            let all = fs::read_dir(dir).into_iter().flatten().flatten();
            all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        let are = |dir: &Path, known: &[&str]| {
            let strange: Vec<String> =
                files(dir).into_iter().filter(|name| !known.contains(&name.as_str())).collect();
            if strange.is_empty() { Ok(()) } else { Err(format!("left in {}: {strange:?}", dir.display())) }
        };
        are(&self.dir, &["node"])?;
        let node = ["adapter", "parties", "ports", "userns"];
        are(&self.node(), &node)?;
        match self.program {
            Program::Create => drop(self.succeeds(&["node", "create", "--vfs", "2"], &[])?),
            _ => drop(self.succeeds(&["run"], &["ibv_devinfo", "-d", "iron2"])?),
        }
        let status = self.succeeds(&["node", "status"], &[])?;
        let is_clean = status.contains("iron0 and 2 VFs") && status.contains("(0 KiB of it drivers'");
        let in_use = ["program ", "served", "held by", "captured by", " open", "qp ", "cq ", "mr "];
        if let Some(what) = in_use.iter().find(|what| status.lines().any(|line| line.contains(*what))) {
            return Err(format!("afterwards {what:?} in the status:\n{status}"));
        }
        if !is_clean {
            return Err(format!("afterwards the status is\n{status}"));
        }
        if self.program == Program::Create {
            fs::remove_dir_all(self.node()).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
        self.shim.forget();
    }
}
