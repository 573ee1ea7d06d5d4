//! Damaged nodes, and processes that are stopped while they hold something that a change of the node needs.
#![allow(unsafe_code)]

use super::bed::{Objects, OnNode, Other, Scratch, command, say, start, started, until_killed};
use crate::{NodeError, NodeTransport, Observer, file, node::Node, open_device};
use devmodel::region::{Func, Sync};
use driver::{
    Device, Pd,
    transport::{Transport, Width},
};
use hwspec::pcie::SRIOV_CAP;
use std::{
    fs::{File, OpenOptions},
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

pub fn holds_the_lock(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let _lock = node.core().locks.lock().unwrap();
    say("locked");
    until_killed()
}

const FID: &str = "IRONVERBS_TEST_FID";

/// Holds the function that the environment names without having it open, as a runner for its peer does.
pub fn holds_a_function(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let fid = std::env::var(FID).unwrap().parse().unwrap();
    let region = node.core().adapter.region();
    node.core().drive(node.core().now(), |_, host| std::mem::forget(Func::lock(region, fid, host)));
    say("locked");
    until_killed()
}

/// A process that is stopped while it holds function `fid`.
fn stopped_with(scratch: &Scratch, fid: u8) -> Other {
    let mut other = Other::start(command(scratch, "holds-function").env(FID, fid.to_string()));
    other.hear();
    signal(&other, libc::SIGSTOP);
    other
}

/// Opens a function, creates objects and takes their events.
fn objects(dir: &Path) -> Result<(Objects, Arc<Device>), Box<dyn std::error::Error>> {
    let device = open_device(dir, 1)?;
    let objects = Objects::flushed(&device)?;
    while device.events().next().is_some() {}
    Ok((objects, device))
}

/// Holds objects until it is killed.
pub fn stays(dir: &Path) {
    let _objects = objects(dir).unwrap();
    say("here");
    until_killed()
}

/// Does what every program does on a node, and reports the result.
pub fn visits(dir: &Path) {
    let visit = || -> Result<(), Box<dyn std::error::Error>> {
        drop(objects(dir)?);
        Observer::open(dir)?.status();
        Ok(())
    };
    match visit() {
        Ok(()) => say("ok"),
        Err(error) => say(format!("error {error}")),
    }
}

fn signal(other: &Other, number: i32) {
    // SAFETY: a child of this test.
    assert_eq!(unsafe { libc::kill(other.child.id() as libc::pid_t, number) }, 0);
}

#[test]
fn a_process_that_is_stopped_with_the_nodes_lock_is_named_within_a_second() {
    let (scratch, node) = Scratch::with_node();
    let transport = NodeTransport::open(&node, 1).unwrap();
    let blocks: Vec<_> =
        (0..20).map(|_| transport.dma_alloc(4096, driver::transport::Scope::Opener).unwrap()).collect();
    let mut other = started(&scratch, "holds-lock");
    signal(&other, libc::SIGSTOP);
    let begin = Instant::now();
    let said = NodeTransport::open(&node, 2).err().map(|e| e.to_string()).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}: {said}", begin.elapsed());
    let pid = format!("process {} (", other.child.id());
    assert!(said.contains(&pid) && said.contains("stopped by a signal") && !said.contains('\n'), "{said}");
    // The wait occurs only once, although closing acquires the lock many times.
    let begin = Instant::now();
    blocks.into_iter().for_each(|block| transport.dma_free(block));
    drop(transport);
    assert!(matches!(Node::open(&scratch.0), Err(NodeError::Held { .. })));
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?} to close", begin.elapsed());
    assert_eq!(Observer::open(&scratch.0).unwrap().status().parties.len(), 2, "looking needs no lock");
    // Once it continues, so do all others.
    signal(&other, libc::SIGCONT);
    other.kill();
    assert!(NodeTransport::open(&node, 2).is_ok());
}

/// Asserts that VFs 1 to `vfs` exist and work, and no others.
fn has_vfs(node: &Arc<Node>, vfs: u8) {
    let there: Vec<u8> = (1..8).filter(|fid| node.adapter().region().is_present(*fid)).collect();
    assert_eq!((there, node.vfs()), ((1..=vfs).collect(), vfs));
    (1..=vfs).for_each(|fid| drop(NodeTransport::open(node, fid).unwrap()));
}

/// Asserts that once `other` is killed, the node has its three VFs and can have five.
fn five_vfs_come_when_killed(node: &Arc<Node>, mut other: Other) {
    other.kill();
    node.core().reap().unwrap();
    has_vfs(node, 3);
    node.core().want_vfs(5, &node.core().locks.lock().unwrap()).unwrap();
    has_vfs(node, 5);
}

/// Is killed after it has removed two of three VFs in order to replace them.
pub fn changes_vfs(dir: &Path) {
    let node = Node::open(dir).unwrap();
    let _lock = node.core().locks.lock().unwrap();
    let region = node.core().adapter.region();
    for fid in [3, 2] {
        region.sync(fid, Sync::Present).store(0, std::sync::atomic::Ordering::Release);
    }
    say("taken away");
    until_killed()
}

#[test]
fn vfs_that_a_killed_program_was_changing_come_back() {
    let (scratch, node) = Scratch::with_node();
    five_vfs_come_when_killed(&node, started(&scratch, "changes-vfs"));
}

#[test]
fn vfs_are_not_changed_while_a_program_that_is_stopped_holds_one() {
    let (scratch, node) = Scratch::with_node();
    let other = stopped_with(&scratch, 2);
    let (asked, theirs) = (Arc::clone(&node), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let core = asked.core();
        theirs.0.send(core.locks.lock().and_then(|lock| core.want_vfs(5, &lock)))
    });
    let said = theirs.1.recv_timeout(Duration::from_secs(10)).expect("it waits for who is stopped");
    let said = said.unwrap_err().to_string();
    let pid = format!("process {} (", other.child.id());
    assert!(said.contains(&pid) && said.contains("stopped by a signal") && !said.contains('\n'), "{said}");
    let there: Vec<u8> = (1..8).filter(|fid| node.adapter().region().is_present(*fid)).collect();
    assert_eq!((there, node.vfs()), (vec![1, 2, 3], 3));
    five_vfs_come_when_killed(&node, other);
}

#[test]
fn the_last_program_is_cleaned_up_after_when_the_holder_of_the_pf_continues() {
    let (scratch, node) = Scratch::with_node();
    let pf = NodeTransport::open(&node, 0).unwrap();
    pf.shared().unwrap();
    let mut last = started(&scratch, "stay");
    drop(pf);
    let mut other = stopped_with(&scratch, 0);
    last.kill();
    let is_shared = || node.core().map.functions()[0].shared.load(std::sync::atomic::Ordering::Acquire) != 0;
    assert_eq!((node.core().reap().unwrap(), is_shared()), (0, true), "the PF is not reset yet");
    has_vfs(&node, 3);
    other.kill();
    assert_eq!((node.core().reap().unwrap(), is_shared()), (2, false));
    has_vfs(&node, 3);
}

#[test]
fn a_lock_that_is_handed_on_is_waited_for() {
    let (scratch, node) = Scratch::with_node();
    let mut other = started(&scratch, "holds-lock");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| node.core().locks.lock().map(drop));
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!waiting.is_finished(), "its holder runs");
        other.kill();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_panic_with_the_nodes_lock_gives_it_back() {
    let (scratch, node) = Scratch::with_node();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _lock = node.core().locks.lock().unwrap();
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    drop(node.core().locks.lock().unwrap());
    let mut other = start(&scratch, "holds-lock");
    assert_eq!(other.hear(), "locked");
}

/// A used node with all its bytes: file offsets and contents.
struct Copy(Vec<(u64, Vec<u8>)>);

impl Copy {
    fn of(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let mut parts = Vec::new();
        let mut at = 0;
        // SAFETY: changes the offset of this function's descriptor.
        let seek = |from: i64, what| unsafe { libc::lseek(file.as_raw_fd(), from, what) };
        loop {
            let start = seek(at, libc::SEEK_DATA);
            if start < 0 {
                return Self(parts);
            }
            at = seek(start, libc::SEEK_HOLE);
            let mut bytes = vec![0; (at - start) as usize];
            file.read_exact_at(&mut bytes, start as u64).unwrap();
            parts.push((start as u64, bytes));
        }
    }

    /// Writes the copy to `path`, with `wrong` bytes at random places changed.
    fn write(&self, path: &Path, random: &mut Random, wrong: usize) {
        let file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
        file.set_len(file::file_len() as u64).unwrap();
        self.0.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        for _ in 0..wrong {
            // Heavily used tables are as likely as others.
            let (at, bytes) = &self.0[random.below(self.0.len() as u64) as usize];
            let at = at + random.below(bytes.len() as u64 - 3) / 4 * 4;
            // Small, large and arbitrary words.
            let word = match random.below(4) {
                0 => random.below(20) as u32,
                1 => u32::MAX - random.below(20) as u32,
                2 => 1 << random.below(32),
                _ => random.below(1 << 32) as u32,
            };
            let len = [1, 2, 4][random.below(3) as usize];
            file.write_all_at(&word.to_ne_bytes()[..len], at).unwrap();
        }
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

/// Time limit for refusing a damaged node, or serving on it.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A process that visits the node in `dir`: its report, or what went wrong.
fn visit(scratch: &Scratch) -> Result<String, String> {
    const LIMIT: Duration = Duration::from_secs(20);
    let mut child = command(scratch, "visit").stderr(std::process::Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begin.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                return Err(format!("it hung for {LIMIT:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let output = child.wait_with_output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !status.success() || errors.contains("panicked") || said.contains("panicked") {
        return Err(format!("{status}: {said}{errors}"));
    }
    let word = said.split_once(">>").map(|(_, word)| word.lines().next().unwrap_or("").trim().to_owned());
    word.ok_or_else(|| format!("it said nothing: {said}{errors}"))
}

#[test]
fn random_bytes_in_a_node_are_an_error_or_nothing_to_anybody() {
    let rounds = std::env::var("IRONVERBS_DAMAGE").ok().and_then(|n| n.parse().ok()).unwrap_or(100u64);
    let first = std::env::var("IRONVERBS_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1u64);
    let scratch = Scratch::new();
    let path = scratch.0.join("adapter");
    drop(scratch.node());
    assert_eq!(visit(&scratch).unwrap(), "ok");
    let clean = Copy::of(&path);
    // The node of a killed program: the next one works on its state.
    let mut killed = started(&scratch, "stay");
    killed.kill();
    let copies = [clean, Copy::of(&path)];
    assert!(copies.iter().all(|copy| copy.0.len() > 10));
    let (mut refused, mut longest, mut wrong) = (0, Duration::ZERO, Vec::new());
    for seed in first..first + rounds {
        let damaged = || {
            std::fs::remove_file(&path).unwrap();
            let mut random = Random(seed);
            let count = [1, 8, 64, 512, 4096][random.below(5) as usize];
            copies[random.below(2) as usize].write(&path, &mut random, count);
            let begin = Instant::now();
            (visit(&scratch), begin.elapsed())
        };
        let (mut outcome, mut took) = damaged();
        if took >= AT_ONCE {
            // A busy machine delays any visit, whereas a damaged node delays every visit that meets the same bytes.
            (outcome, took) = damaged();
        }
        longest = longest.max(took);
        match outcome {
            Ok(said) if took < AT_ONCE => {
                assert!(said == "ok" || said.starts_with("error "), "seed {seed}: {said}");
                refused += usize::from(said != "ok");
            }
            Ok(what) | Err(what) => wrong.push(format!("seed {seed}, {took:?}: {what}")),
        }
    }
    println!("{rounds} damaged nodes, {refused} of them refused; the longest visit took {longest:?}");
    assert!(wrong.is_empty(), "{} of {rounds}:\n{}", wrong.len(), wrong.join("\n"));
}

/// A function with registers that do not respond, and one without memory access (bus mastering), which executes no command: requests to it
/// fail at once, even more of them than there are command slots, and so does closing it.
#[test]
fn a_function_that_carries_nothing_out_is_not_waited_for() {
    const COMMAND: u16 = 4;
    const MEMORY_SPACE: u32 = 1 << 1;
    const SRIOV_CONTROL: u16 = SRIOV_CAP as u16 + 8;
    const VF_MEMORY_SPACE: u32 = 1 << 3;
    let (scratch, node) = Scratch::with_node();
    let begin = Instant::now();
    let pf = NodeTransport::open(&node, 0).unwrap();
    let control = pf.config_read(SRIOV_CONTROL, Width::B2).unwrap();
    pf.config_write(SRIOV_CONTROL, Width::B2, control & !VF_MEMORY_SPACE).unwrap();
    let said = open_device(&scratch.0, 1).err().unwrap().to_string();
    assert!(said.starts_with("iron1: ") && said.contains("all ones") && !said.contains('\n'), "{said}");
    pf.config_write(SRIOV_CONTROL, Width::B2, control).unwrap();
    let vf = Arc::new(NodeTransport::open(&node, 1).unwrap());
    let device = Device::open(vf.clone(), driver::OpenOptions::default()).unwrap();
    vf.config_write(COMMAND, Width::B2, MEMORY_SPACE).unwrap();
    for _ in 0..20 {
        let said = Pd::alloc(&device).err().unwrap().to_string();
        assert_eq!(said, "AllocPd was never carried out");
    }
    drop((device, vf));
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    assert!(open_device(&scratch.0, 1).is_ok());
}

#[test]
fn a_node_whose_first_words_are_wrong_is_refused_in_one_line() {
    let scratch = Scratch::new();
    drop(scratch.node());
    let path = scratch.0.join("adapter");
    let write = |at: u64, bytes: &[u8]| {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let mut before = vec![0; bytes.len()];
        File::open(&path).unwrap().read_exact_at(&mut before, at).unwrap();
        file.write_all_at(bytes, at).unwrap();
        before
    };
    let epoch = std::mem::offset_of!(file::Header, epoch) as u64;
    let vfs = std::mem::offset_of!(file::Header, vfs) as u64;
    let fresh = std::mem::offset_of!(file::Header, arena_fresh) as u64;
    let used = std::mem::offset_of!(file::Header, arena_used) as u64;
    let geometry = file::REGION_AT as u64 + 8;
    for (at, bytes) in [
        (0, &[1][..]),
        (epoch, &[255; 8]),
        (vfs, &[200]),
        (fresh, &[255; 4]),
        (used, &[255; 8]),
        (geometry, &[7, 9]),
        (geometry + 1, &[77]),
        (geometry - 8, &[0]),
    ] {
        let before = write(at, bytes);
        for said in [Node::open(&scratch.0).err(), Observer::open(&scratch.0).err()] {
            let said = said.map(|e| e.to_string()).unwrap_or_default();
            assert!(said.contains("adapter delete") && !said.contains('\n'), "{at:#x}: {said:?}");
        }
        write(at, &before);
    }
    assert!(Node::open(&scratch.0).is_ok());
    for len in [0, 100, 5000, file::file_len() as u64 - 1] {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        assert!(matches!(Node::open(&scratch.0), Err(NodeError::Version { .. })), "{len} bytes");
        assert!(matches!(Observer::open(&scratch.0), Err(NodeError::Version { .. })), "{len} bytes");
    }
}
