//! `ironverbs linux`, judged by what runs there: the stock mlx5 driver, iproute2, perftest and librdmacm on a kernel of their own.
//!
//! Skipped where no kernel was made (`scripts/linux-kernel.sh build`), but for what needs none.

mod cni;
mod sriov;
mod streams;
mod vf_settings;

use ironverbs_tests::program::{Scratch, built};
use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

/// Seconds for a guest that comes up, works and goes, on a machine that does other things as well.
const LIMIT: u64 = 240;

/// A place for a node and for what a guest leaves behind.
struct Place {
    scratch: Scratch,
    /// Seconds a command may take.
    limit: u64,
}

impl Place {
    /// `None`, with a word, where there is no kernel.
    fn new() -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/linux-kernel.sh");
        let path = Command::new("sh").args([script, "path"]).output().unwrap().stdout;
        let path = PathBuf::from(String::from_utf8(path).unwrap().trim());
        if !path.exists() {
            println!("skipped: no kernel at {}", path.display());
            return None;
        }
        Some(Self::without_kernel())
    }

    fn without_kernel() -> Self {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.dir().join("tmp")).unwrap();
        Self { scratch, limit: LIMIT }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.dir().join(name)
    }

    /// `ironverbs WORD --node ...`, all of whose files go below the scratch directory.
    fn command(&self, word: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "10", &self.limit.to_string()]).arg(built().join("ironverbs")).arg(word);
        command.arg("--node").arg(self.path("node"));
        command.env("TMPDIR", self.path("tmp")).stdin(Stdio::null());
        command
    }

    fn linux(&self, more: &[&str]) -> Output {
        self.command("linux").args(["--cpus", "2"]).args(more).output().unwrap()
    }

    /// Runs `script` in a guest, which must end with 0; what it printed.
    fn script(&self, options: &[&str], script: &str) -> String {
        let output = self.linux(&[options, &["--", "sh", "-ec", script]].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?}\n{said}\n{why}", output.status);
        said
    }

    /// Lists the files that guests which have ended left behind.
    fn left(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// Shell functions: `numvfs N` sets the number of VFs and prints it with the milliseconds that took; `vf N` moves VF N with its
/// RDMA device into namespace nN, where it has 10.9.0.N, with the names in $DN and $RN and the MAC in $MN.
const VFS: &str = r#"
pci=/sys/bus/pci/devices
now() { echo $(($(date +%s%N) / 1000000)); }
numvfs() {
    began=$(now)
    echo $1 >$pci/0000:00:00.0/sriov_numvfs
    echo "numvfs $(cat $pci/0000:00:00.0/sriov_numvfs) $(($(now) - began))"
}
vf() {
    net=$(ls $pci/0000:00:0$1.0/net)
    device=$(ls $pci/0000:00:0$1.0/infiniband)
    eval D$1=$net R$1=$device M$1=$(cat $pci/0000:00:0$1.0/net/$net/address)
    ip netns add n$1
    ip link set $net netns n$1
    rdma dev set $device netns n$1
    ip -n n$1 link set lo up
    ip -n n$1 addr add 10.9.0.$1/24 dev $net
    ip -n n$1 link set $net up
}
"#;

/// Prints what the kernel complained of; prepended to scripts that look for it.
const COMPLAINTS: &str = "complaints() { dmesg -l emerg,alert,crit,err,warn | sed 's/^/complaint: /'; }\n";

fn complaints(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("complaint: ")).collect()
}
