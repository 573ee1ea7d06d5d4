//! `ironverbs link tap:`, tested against this host's kernel in a separate network namespace.

use super::serve::{SOON, processor_time};
use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use testkit::{Held, until};
use tests::program::Scratch;

/// A node with a TAP device as its wire, in the network namespace of its server, where it has the address 10.0.0.9.
struct Wire {
    server: Held,
    _scratch: Scratch,
}

impl Wire {
    /// `None`, with a message, if this process may not create a network namespace.
    fn new() -> Option<Self> {
        let allowed = Command::new("unshare").args(["-n", "test", "-e", "/dev/net/tun"]).output();
        if !allowed.is_ok_and(|done| done.status.success()) {
            println!("skipped: no network namespaces for who is not root, or no /dev/net/tun");
            return None;
        }
        let scratch = Scratch::made();
        let node = scratch.dir().join("node").display().to_string();
        let ironverbs = env!("CARGO_BIN_EXE_ironverbs");
        let made =
            Command::new(ironverbs).args(["adapter", "create", "--vfs", "2", "--adapter", &node]).output();
        assert!(made.unwrap().status.success());
        let address = ["adapter", "address", "--adapter", &node, "iron1", "10.0.0.1/24"];
        assert!(Command::new(ironverbs).args(address).status().unwrap().success());
        let server = Command::new("unshare")
            .args(["-n", ironverbs, "link", "--adapter", &node, "tap:wire0"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let wire = Self { server: Held(server), _scratch: scratch };
        until("the device", SOON, || wire.ip("link show wire0").is_some());
        for words in ["addr add 10.0.0.9/24 dev wire0", "link set wire0 up"] {
            wire.ip(words).expect("what root may");
        }
        Some(wire)
    }

    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.server.id().to_string(), "-n", program]);
        command
    }

    /// Runs `ip` in the server's namespace. Returns its output if it succeeded.
    fn ip(&self, words: &str) -> Option<String> {
        let done = self.inside("ip").args(words.split(' ')).output().expect("nsenter");
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

#[test]
fn the_hosts_kernel_finds_a_function_by_arp() {
    let Some(wire) = Wire::new() else { return };
    until("an answer to ARP", SOON, || {
        let asks = "echo hello >/dev/udp/10.0.0.1/9";
        let _ = wire.inside("bash").args(["-c", asks]).stderr(Stdio::null()).status();
        wire.ip("neigh show 10.0.0.1").unwrap().contains("lladdr 02:1b:56:00:00:01")
    });
}

#[test]
fn a_device_that_is_deleted_takes_no_processor() {
    let Some(wire) = Wire::new() else { return };
    wire.ip("link del wire0").expect("what root may");
    let before = processor_time(&wire.server);
    thread::sleep(Duration::from_secs(1));
    let took = processor_time(&wire.server) - before;
    assert!(took < Duration::from_millis(300), "{took:?}");
}
