//! A sleeping target: one-sided operations need no thread of it where the host allows direct copies, and otherwise only its parked thread.

use devmodel::state::Counters;
use ironverbs_tests::{
    program::signal,
    stock::{Node, Pair, Running, until_rest},
};
use node::{Node as Runtime, NodeStatus};
use std::{
    process::Command,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use testkit::until;

/// The target's function, and that of the program that accesses it.
const TARGET: u8 = 1;

struct Watch(Arc<Runtime>);

impl Watch {
    fn status(&self) -> NodeStatus {
        self.0.status().expect("status")
    }

    /// Returns the number of frames that have arrived at the target.
    fn arrived(&self) -> u64 {
        self.status().functions[usize::from(TARGET)].counters[Counters::RxPackets as usize]
    }

    /// Returns the process id of the target and the number of wakeups of its parked thread.
    fn target(&self) -> Option<(u32, u64)> {
        let status = self.status();
        let party = status.parties.iter().find(|p| p.functions == [TARGET])?;
        Some((party.pid, party.wakes))
    }

    /// Waits until `enough` frames have arrived. Returns the number.
    fn wait(&self, enough: u64) -> u64 {
        let start = Instant::now();
        while self.arrived() < enough && start.elapsed() < Duration::from_secs(20) {
            sleep(Duration::from_millis(10));
        }
        self.arrived()
    }
}

fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
}

/// Starts a bandwidth tool. Its server sleeps in a read from its socket while its memory is accessed.
fn under_way(node: &Node, tool: &str) -> (Running, Running, Watch) {
    // An ACK timeout of at least 1 s, so that a short delay of the target does not end the connection.
    let (server, client) =
        Pair::perftest_under_way(node, tool, "iron1", "iron2", &["-D", "4", "-s", "4096", "-u", "18"]);
    let mut found = None;
    until("a node", Duration::from_secs(20), || {
        found = Runtime::open(node.dir()).ok();
        found.is_some()
    });
    let watch = Watch(found.expect("it was waited for"));
    assert!(watch.wait(1000) >= 1000, "{tool}: nothing arrives at the target");
    (server, client, watch)
}

/// Stops process `target` of a running pair, and checks that frames for it are still processed and that its parked thread is not woken.
fn is_worked_on_while_stopped(tool: &str, watch: &Watch, target: u32) {
    until_rest(target, tool);
    // From here on no thread of it runs, not even the parked one.
    assert!(signal("STOP", target));
    sleep(Duration::from_millis(100));
    let (_, wakes) = watch.target().expect("the target");
    assert_eq!(state(target), 'T', "{tool}");
    let before = watch.arrived();
    let after = watch.wait(before + 5000);
    let (_, wakes_after) = watch.target().expect("the target");
    assert_eq!(state(target), 'T', "{tool}");
    assert!(signal("CONT", target));
    assert!(after >= before + 5000, "{tool}: {before} frames before, {after} while stopped");
    assert_eq!(wakes_after, wakes, "{tool}: the parked thread");
    println!("{tool}: {} frames while the target was stopped, its parked thread never woken", after - before);
}

#[test]
fn a_stopped_target_is_read_and_written() {
    for tool in ["ib_write_bw", "ib_read_bw"] {
        let node = Node::new("passive", 2);
        let (server, client, watch) = under_way(&node, tool);
        is_worked_on_while_stopped(tool, &watch, server.pid());
        client.finish();
        server.finish();
    }
}

/// The kernel cannot copy between programs that do not know each other's process ids, as in containers. Memory lent to the node needs no
/// such copy.
#[test]
fn a_stopped_target_in_another_pid_namespace_is_read_and_written() {
    let apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let can = Command::new(apart[0]).args(&apart[1..]).arg("true").output().expect("unshare, of util-linux");
    if !can.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&can.stderr).trim());
        return;
    }
    for tool in ["ib_write_bw", "ib_read_bw"] {
        let node = Node::new("hidden", 2).under(&apart);
        let (server, client, watch) = under_way(&node, tool);
        let (pid, _) = watch.target().expect("the target");
        assert_ne!(pid, server.pid(), "the target is a child of unshare's");
        is_worked_on_while_stopped(tool, &watch, pid);
        client.finish();
        server.finish();
    }
}

#[test]
fn where_copies_are_forbidden_the_parked_thread_does_them() {
    for tool in ["ib_write_bw", "ib_read_bw"] {
        let node = Node::new("parked", 2).with("IRONVERBS_NO_DIRECT_COPY", "1");
        let (server, client, watch) = under_way(&node, tool);
        let (pid, wakes) = watch.target().expect("the target");
        let before = watch.arrived();
        let after = watch.wait(before + 200);
        let (_, wakes_after) = watch.target().expect("the target");
        assert!(after >= before + 200, "{tool}: {before} frames, then {after}");
        assert!(wakes_after > wakes, "{tool}: the parked thread was not woken");
        // Stopped for a moment, shorter than the sender's timeout, it processes no frames.
        assert!(signal("STOP", pid));
        sleep(Duration::from_millis(100));
        assert_eq!(state(pid), 'T', "{tool}");
        let stopped = watch.arrived();
        sleep(Duration::from_millis(200));
        let still = watch.arrived();
        assert!(signal("CONT", pid));
        assert_eq!(still, stopped, "{tool}: frames were taken while the target was stopped");
        client.finish();
        server.finish();
        println!("{tool}: {} frames, parked thread woken {} times", after - before, wakes_after - wakes);
    }
}
