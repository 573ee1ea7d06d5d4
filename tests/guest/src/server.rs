//! A temporary node with functions that an `ironverbs serve` process offers to guests.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::machine::Guest;
use crate::{Outcome, bound_to_us, built, failed, log};

/// Maximum time until all sockets exist.
const START: Duration = Duration::from_secs(30);

/// How strict an adapter is, unless the environment variable [`STRICT`] overrides it. If the adapter refuses a command of a stock driver in
/// a guest, the adapter is wrong.
#[derive(Clone, Copy, Debug, Default)]
pub enum Strict {
    /// Like a card with MACs assigned to its VFs.
    #[default]
    Twin,
    /// Like a card with VFs that have no MACs and GUIDs yet. For scenarios without rdma_cm, which finds devices by their node GUIDs.
    Bare,
    /// Refuses what a card refuses, and answers at once: streams have each command with its answer.
    Prompt,
    /// As lenient as possible: more garbage passes the first checks.
    Kind,
}

impl Strict {
    fn switches(self) -> &'static str {
        match self {
            Self::Twin => "pages=real,events=strict,uid=strict,reserved=zero,slow=0.01",
            Self::Bare => "owner=pf,pages=real,events=strict,uid=strict,reserved=zero,slow=0.01",
            Self::Prompt => "events=strict,uid=strict,reserved=zero",
            Self::Kind => "none",
        }
    }
}

/// Name of the environment variable that overrides [`Strict`].
const STRICT: &str = "IRONVERBS_GUEST_STRICT";

/// The functions to serve and their configuration.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Function numbers: 0 is the PF.
    pub functions: Vec<u16>,
    /// InfiniBand instead of Ethernet.
    pub infiniband: bool,
    /// How strict the adapter is.
    pub strict: Strict,
    /// Additional arguments to `ironverbs serve`.
    pub arguments: Vec<String>,
    /// Additional sockets that exist once it serves.
    pub more: Vec<PathBuf>,
}

/// A serving process and its node; dropping it ends both.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    process: Child,
}

impl Server {
    /// Serves functions of a new node.
    pub fn start(plan: &Plan) -> Outcome<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/dev/shm/ivg-{}-node{n}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let mut command = bound_to_us(built().join("ironverbs"));
        command.arg("serve").arg("--node").arg(dir.join("node"));
        if plan.infiniband {
            command.args(["--link-layer", "infiniband"]);
        }
        for function in &plan.functions {
            command.arg("--plug").arg(format!("{function}={}", socket(&dir, *function).display()));
        }
        command.args(&plan.arguments);
        let switches = std::env::var_os(STRICT).unwrap_or_else(|| plan.strict.switches().into());
        command.arg("--strict").arg(switches);
        let log = std::fs::File::create(dir.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut server = Self { dir, process: command.spawn()? };
        let until = Instant::now() + START;
        let mut sockets: Vec<PathBuf> = plan.functions.iter().map(|f| server.socket(*f)).collect();
        sockets.extend(plan.more.iter().cloned());
        while !sockets.iter().all(|socket| socket.exists()) {
            if let Some(status) = server.process.try_wait()? {
                return failed(format!("ironverbs serve ended with {status}: {}", server.log()));
            }
            if Instant::now() > until {
                return failed(format!(
                    "expected the sockets of ironverbs serve, found none: {}",
                    server.log()
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// The vfio-user socket of a function.
    pub fn socket(&self, function: u16) -> PathBuf {
        socket(&self.dir, function)
    }

    /// The node's directory.
    pub fn node(&self) -> PathBuf {
        self.dir.join("node")
    }

    /// The output of the process.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default().trim().into()
    }

    /// Checks that the process still serves.
    pub fn check(&mut self) -> Outcome {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => failed(format!("ironverbs serve ended with {status}: {}", self.log())),
        }
    }

    /// Powers guests off whose logs report no problem, and checks that the process still serves.
    pub fn end(&mut self, guests: impl IntoIterator<Item = Guest>) -> Outcome {
        let mut guests: Vec<_> = guests.into_iter().collect();
        guests.iter_mut().try_for_each(log::clean)?;
        guests.into_iter().try_for_each(Guest::power_off)?;
        self.check()
    }
}

fn socket(dir: &Path, function: u16) -> PathBuf {
    dir.join(format!("f{function}"))
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
