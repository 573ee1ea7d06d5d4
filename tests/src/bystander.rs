//! A program that shares nothing with the programs that are killed and stopped, and must not be affected by them.

use crate::end::{End, pair};
use devmodel::state::{GroupRow, SubnetGroupRow};
use driver::WcStatus;
use node::{Node, open_device_of};
use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// Time limit for an operation that is not held up.
pub const SOON: Duration = Duration::from_secs(20);
/// Time limit for one round of a bystander on a busy machine: hundreds of times the usual duration.
pub const UNDISTURBED: Duration = Duration::from_secs(2);
/// Bytes of each WRITE of a bystander.
const PIECE: usize = 4096;

/// State of a node that must be the same before and after.
#[derive(Debug, PartialEq)]
pub struct Baseline {
    parties: usize,
    /// Of each function: true if it is up, and its objects.
    functions: Vec<(bool, Vec<(&'static str, u32)>)>,
    /// Memberships in multicast groups, and groups of the subnet.
    groups: [u32; 2],
    driver_memory: u64,
}

impl Baseline {
    /// Returns the state of `node` after cleaning up after dead programs: its programs and their objects.
    pub fn of(node: &Node) -> Self {
        let status = node.status().expect("status");
        let region = node.adapter().region();
        let memberships = status.functions.iter().map(|f| region.used::<GroupRow>(f.fid)).sum();
        Self {
            parties: status.parties.len(),
            functions: status.functions.iter().map(|f| (f.up, f.objects.clone())).collect(),
            groups: [memberships, region.used::<SubnetGroupRow>(0)],
            driver_memory: status.driver_memory,
        }
    }
}

/// Traffic on two functions, and a third one that is opened, used and closed.
struct Bystander {
    node: Arc<Node>,
    ends: (End, End),
    third: u8,
    round: u64,
}

impl Bystander {
    fn round(&mut self) -> Result<(), String> {
        let (a, b) = &self.ends;
        for i in 0..8 {
            self.round += 1;
            for at in (0..PIECE).step_by(8) {
                a.words.set_word(at, self.round << 16 | at as u64);
            }
            a.post(i, b.to_write(0), &[a.sge(0, PIECE)]);
            let done = a.next(SOON).ok_or("no completion")?;
            if done.status != WcStatus::Success {
                return Err(format!("{:?}", done.status));
            }
            if let Some(at) = (0..PIECE).step_by(8).find(|at| b.words.word(*at) != a.words.word(*at)) {
                let (expected, found) = (a.words.word(at), b.words.word(at));
                return Err(format!("byte {at}: expected {expected:#x}, found {found:#x}"));
            }
        }
        let device = open_device_of(&self.node, self.third).map_err(|e| e.to_string())?;
        End::new(device, 64 << 10).map(drop).map_err(|e| e.to_string())
    }
}

/// A bystander in its own thread, so that a round that hangs is detected and does not hang the test.
pub struct Rounds {
    ask: mpsc::Sender<()>,
    answers: mpsc::Receiver<(Result<(), String>, Duration)>,
}

impl Rounds {
    /// Starts a bystander on functions `fids` of `node`, which no other program uses.
    pub fn start(node: &Arc<Node>, fids: [u8; 3]) -> Self {
        let ends = pair(node, fids[0], fids[1], 64 << 10);
        let mut bystander = Bystander { node: node.clone(), ends, third: fids[2], round: 0 };
        let (ask, asked) = mpsc::channel::<()>();
        let (answer, answers) = mpsc::channel();
        std::thread::spawn(move || {
            while asked.recv().is_ok() {
                let begin = Instant::now();
                let outcome = bystander.round();
                if answer.send((outcome, begin.elapsed())).is_err() {
                    return;
                }
            }
        });
        Self { ask, answers }
    }

    /// Runs a round. Returns its duration.
    pub fn one(&self, when: &str) -> Duration {
        let (outcome, took) = self.ask(when);
        outcome.unwrap_or_else(|e| panic!("{when}: the bystander: {e}"));
        took
    }

    /// Runs a round while process `pid` is stopped. Returns its duration, and true if it could not open a device because this process holds
    /// the node's lock.
    pub fn beside(&self, pid: u32, when: &str) -> (Duration, bool) {
        let (outcome, took) = self.ask(when);
        let says_so = |error: &String| error.contains(&format!("is locked by process {pid} "));
        match outcome {
            Err(error) if !says_so(&error) => panic!("{when}: the bystander: {error}"),
            outcome => (took, outcome.is_err()),
        }
    }

    fn ask(&self, when: &str) -> (Result<(), String>, Duration) {
        self.ask.send(()).expect("the bystander lives");
        self.answers.recv_timeout(SOON).unwrap_or_else(|_| panic!("{when}: the bystander hangs"))
    }

    /// Ends the bystander.
    pub fn end(self) {
        drop(self.ask);
        // The thread drops its sender once it has closed everything.
        assert!(self.answers.recv_timeout(SOON).is_err(), "an answer nobody asked for");
    }
}
