//! Linux nodes (`ironverbs linux`) started by tests, and code shared by their scripts.

use crate::program::{Program, Scratch, built};
use std::{
    panic,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// Time limit in seconds for a guest to boot, work and shut down on a busy machine.
pub const LIMIT: u64 = 240;

/// A place for a node and for files that a guest leaves behind.
pub struct Place {
    /// The directory that holds everything.
    pub scratch: Scratch,
    /// Time limit for a command in seconds.
    pub limit: u64,
}

impl Place {
    /// Returns `None` with a message if there is no kernel.
    pub fn new() -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/linux-kernel.sh");
        let path = Command::new("sh").args([script, "path"]).output().unwrap().stdout;
        let path = PathBuf::from(String::from_utf8(path).unwrap().trim());
        if !path.exists() {
            println!("skipped: no kernel at {}", path.display());
            return None;
        }
        Some(Self::without_kernel())
    }

    /// The same for tests that need no kernel.
    pub fn without_kernel() -> Self {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.dir().join("tmp")).unwrap();
        Self { scratch, limit: LIMIT }
    }

    /// Returns a path in the scratch directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.dir().join(name)
    }

    /// Returns the command `ironverbs WORD --node ...`, with all its files below the scratch directory.
    pub fn command(&self, word: &str) -> Command {
        self.command_on("node", word)
    }

    /// The same on another node, which is called `node` here.
    pub fn command_on(&self, node: &str, word: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "10", &self.limit.to_string()]).arg(built().join("ironverbs")).arg(word);
        command.arg("--node").arg(self.path(node));
        command.env("TMPDIR", self.path("tmp")).stdin(Stdio::null());
        command
    }

    /// Runs `script` in a guest, which must exit with 0. Returns its output.
    pub fn script(&self, options: &[&str], script: &str) -> String {
        self.script_on("node", options, script)
    }

    /// Like [`script`](Self::script), of a script with [`COMPLAINTS`], which must find none.
    #[track_caller]
    pub fn quiet_script(&self, options: &[&str], script: &str) -> String {
        let said = self.script(options, script);
        assert_eq!(complaints(&said), Vec::<&str>::new());
        said
    }

    /// The same as [`script`](Self::script) on the node `node`.
    pub fn script_on(&self, node: &str, options: &[&str], script: &str) -> String {
        let mut command = self.command_on(node, "linux");
        command.args(["--cpus", "2"]).args(options).args(["--", "sh", "-ec", script]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{node}: {:?}\n{said}\n{why}", output.status);
        said
    }

    /// Runs a script in a guest of each node at once and returns their output. They share the folder `$share`, in which `say NAME` and
    /// `await NAME` synchronize them.
    pub fn scripts(&self, guests: &[(&str, &[&str], &str)]) -> Vec<String> {
        let share = self.path("share");
        std::fs::create_dir_all(&share).unwrap();
        let share = share.display().to_string();
        let meeting = format!(
            "share={share}
            say() {{ touch $share/$1; }}
            await() {{ for try in $(seq 300); do [ ! -e $share/$1 ] || return 0; sleep 0.2; done; echo no $1 >&2; return 1; }}\n"
        );
        thread::scope(|scope| {
            let running = guests.iter().map(|(node, options, script)| {
                let (options, script) =
                    ([*options, &["--share", &share]].concat(), format!("{meeting}{script}"));
                scope.spawn(move || self.script_on(node, &options, &script))
            });
            let running: Vec<_> = running.collect();
            running
                .into_iter()
                .map(|guest| guest.join().unwrap_or_else(|why| panic::resume_unwind(why)))
                .collect()
        })
    }

    /// Makes nodes with different numbers, the same `options`, and one wire. The wire exists as long as the returned program.
    pub fn wire(&self, nodes: &[&str], options: &[&str]) -> Program {
        let path = |name: &str| self.path(name).display().to_string();
        for (number, node) in nodes.iter().enumerate() {
            let mut create = Command::new(built().join("ironverbs"));
            create.args(["node", "create", "--node", &path(node), "--node-id", &number.to_string()]);
            let output = create.args(options).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        // The last node has links to all others, and switches between them.
        let (last, others) = nodes.split_last().unwrap();
        let links: Vec<_> = others.iter().map(|node| format!("node:{}", path(node))).collect();
        let mut words = vec!["serve".to_owned(), "--node".into(), path(last)];
        words.extend(links.iter().flat_map(|link| ["--link".into(), link.clone()]));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut wire = Program::start(&built().join("ironverbs"), &words).unwrap();
        for _ in &links {
            wire.expect("linked by", Duration::from_secs(60)).unwrap();
        }
        wire
    }

    /// Lists the files that ended guests left behind.
    pub fn left(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// Shell functions: `numvfs N` sets the number of VFs and prints it with the duration in milliseconds; `vf N` moves VF N with its RDMA
/// device into namespace nN, with address 10.9.0.N, and puts the names into $DN and $RN and the MAC into $MN.
pub const VFS: &str = r#"
pci=/sys/bus/pci/devices
now() { echo $(($(date +%s%N) / 1000000)); }
numvfs() {
    began=$(now)
    echo $1 >$pci/0000:00:00.0/sriov_numvfs
    echo "numvfs $(cat $pci/0000:00:00.0/sriov_numvfs) $(($(now) - began))"
}
vf() {
    at=$pci/0000:00:${2:-00.$1}
    net=$(ls $at/net)
    device=$(ls $at/infiniband)
    eval D$1=$net R$1=$device M$1=$(cat $at/net/$net/address)
    ip netns add n$1
    ip link set $net netns n$1
    rdma dev set $device netns n$1
    ip -n n$1 link set lo up
    ip -n n$1 addr add 10.9.0.$1/24 dev $net
    ip -n n$1 link set $net up
}
"#;

/// Prints the problems that the kernel reported; prepended to scripts that check for them.
pub const COMPLAINTS: &str =
    "complaints() { dmesg -l emerg,alert,crit,err,warn | sed 's/^/complaint: /'; }\n";

/// Shell functions. `is FOUND EXPECTED` and `until_so COMMAND`, which waits for success, end the script on failure; `part NAME COMMAND...`
/// prints the output of the command for [`part`].
pub const CHECKS: &str = r#"
until_so() {
    for try in $(seq 50); do ! "$@" || return 0; sleep 0.1; done
    echo "not so: $*" >&2
    return 1
}
is() { [ "$1" = "$2" ] || { echo "expected $2, found $1" >&2; return 1; }; }
listens() { [ -n "$(ip netns exec n$1 ss -Hltn)" ]; }
# `connects SERVER CLIENT ADDRESS`: programs in two namespaces connect by rdma_cm to the server's address and exchange messages. Not
# perftest's `-R`: in Debian 12 its server tells the client to connect a second time before it listens for that.
connects() {
    ip netns exec $1 timeout 60 ucmatose -c 4 -S 4096 >/run/server 2>&1 & until_so cm_listens 7471 $1
    ip netns exec $2 timeout 60 ucmatose -s $3 -c 4 -S 4096
    wait
}
cm_listens() { ${2:+ip netns exec $2} rdma resource show cm_id | grep LISTEN | grep -q ":$1\>"; }
part() {
    echo "begin $1"
    end="end $1"
    shift
    "$@"
    echo "$end"
}
"#;

/// Returns the text of `said` between the lines `begin NAME` and `end NAME`.
pub fn part<'s>(said: &'s str, name: &str) -> &'s str {
    let (begin, end) = (format!("begin {name}\n"), format!("end {name}\n"));
    let rest = said.split_once(&begin).unwrap_or_else(|| panic!("no {name}: {said}")).1;
    rest.split_once(&end).unwrap_or_else(|| panic!("no end of {name}: {said}")).0
}

/// Returns the lines of `said` that [`COMPLAINTS`] printed.
pub fn complaints(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("complaint: ")).collect()
}
