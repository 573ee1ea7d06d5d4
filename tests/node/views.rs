//! Views that are already running when the devices of their node change, as seen by Debian's tools inside.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), and the packages iproute2, perftest, ibverbs-utils, infiniband-diags
//! and python3.

use ironverbs_tests::{
    program::{is_root, signal, users},
    stock::{Node, Running, ironverbs, is_heard, port},
};
use std::{fs, path::PathBuf, process::Command, time::Duration};
use testkit::until;

/// Shell functions of every test. `shown` prints all that is visible of the devices, `comes N` waits until libibverbs lists N of them,
/// `step N` reports its progress to the test and waits for it.
const WORDS: &str = r#"
shown() {
    echo "verbs $(ibv_devices | tail -n +3 | awk '{print $1}' | xargs)"
    echo "listed $(ls -U /sys/class/infiniband | xargs)"
    echo "links $(rdma link | awk '{print $2}' | xargs)"
    echo "files $(ls -v /dev/infiniband | xargs)"
    echo "functions $(ls /sys/bus/pci/devices | grep -c '^0000:c1:')"
    echo "numvfs $(cat /sys/bus/pci/devices/0000:c1:00.0/sriov_numvfs)"
    echo "virtfns $(ls -d /sys/bus/pci/devices/0000:c1:00.0/virtfn* 2>/dev/null | wc -l)"
    echo "nowhere $(find /sys/class/infiniband* /dev/infiniband /sys/bus/pci/devices/0000:c1* -xtype l | grep -v '/net/' | xargs)"
    echo "aside $(ls -A /sys/class /sys/class/infiniband* /sys/bus/pci/devices | grep ironverbs | xargs)"
}
comes() { for i in $(seq 200); do [ $(ibv_devices | tail -n +3 | wc -l) = $1 ] && return; sleep 0.05; done; echo "$1 never came"; }
step() { touch "$STEPS.$1"; for i in $(seq 600); do [ -e "$STEPS.$1.go" ] && return; sleep 0.05; done; echo "step $1 never came"; }
"#;

/// A shell that runs in a view, step by step.
struct Shell {
    running: Option<Running>,
    steps: PathBuf,
}

impl Shell {
    fn start(node: &Node, script: &str) -> Self {
        // Not in the node's directory, where any change of a file wakes supervisors.
        let name = format!("ironverbs-steps-{}", node.dir().file_name().unwrap().to_string_lossy());
        let steps = std::env::temp_dir().join(name);
        let script = format!("STEPS={}\n{WORDS}\n{script}", steps.display());
        Self { running: Some(node.start(&["sh", "-c", &script])), steps }
    }

    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("{}.{name}", self.steps.display()))
    }

    /// Waits until the shell has reached step `number`.
    fn reaches(&mut self, number: u32) {
        let file = self.file(&number.to_string());
        let running = self.running.as_mut().expect("it is under way");
        until(format_args!("step {number} is reached"), Duration::from_secs(60), || {
            let is_there = file.exists();
            assert!(is_there || !running.ended(), "step {number} is not reached");
            is_there
        });
    }

    /// Lets it continue from step `number`.
    fn goes_on(&self, number: u32) {
        fs::write(self.file(&format!("{number}.go")), "").expect("a file in the temporary directory");
    }

    /// Returns its output: the values after a word, one for each time.
    fn finish(mut self) -> Printed {
        Printed(self.running.take().expect("it is under way").finish())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for number in 1..=3 {
            let _ = fs::remove_file(self.file(&number.to_string()));
            let _ = fs::remove_file(self.file(&format!("{number}.go")));
        }
    }
}

struct Printed(String);

impl Printed {
    fn all(&self, word: &str) -> Vec<&str> {
        self.0.lines().filter_map(|line| line.strip_prefix(word)).map(str::trim).collect()
    }

    /// Checks that each output of `shown` has the node with this number of VFs, and no intermediate state.
    fn shows(&self, vfs: &[u32]) {
        let names = |prefix: &str, suffix: &str| {
            let list =
                |vfs: &u32| (0..=*vfs).map(|i| format!("{prefix}{i}{suffix}")).collect::<Vec<_>>().join(" ");
            vfs.iter().map(list).collect::<Vec<_>>()
        };
        for word in ["verbs", "listed"] {
            assert_eq!(self.all(word), names("iron", ""), "{word}: {}", self.0);
        }
        assert_eq!(self.all("links"), names("iron", "/1"), "{}", self.0);
        for (word, more) in [("numvfs", 0), ("virtfns", 0), ("functions", 1)] {
            let numbers: Vec<_> = vfs.iter().map(|vfs| (vfs + more).to_string()).collect();
            assert_eq!(self.all(word), numbers, "{word}: {}", self.0);
        }
        for word in ["nowhere", "aside"] {
            assert!(self.all(word).iter().all(|found| found.is_empty()), "{word}: {}", self.0);
        }
    }
}

/// Runs a program on the node that only requests `vfs` VFs.
fn want(node: &Node, vfs: &str, more: &[&str]) {
    node.ironverbs(&["run"], &[&["--vfs", vfs], more, &["--", "true"]].concat()).finish();
}

/// VFs added by another run appear completely in a view that is already running: its programs use and count them. Work in progress there
/// continues.
#[test]
fn vfs_that_another_run_brings_are_seen_and_used_in_views_that_run_already() {
    let node = Node::new("views-more", 2);
    let script = r#"
        shown; cd /sys/class/infiniband
        pair() { # DEVICE DEVICE PORT OPTIONS
            a=$1 b=$2 p=$3; shift 3
            ib_write_bw -d $b -x 1 -p $p $* >/dev/null 2>&1 & sleep 1; ib_write_bw -d $a -x 1 -p $p $* 127.0.0.$((${b#iron} + 1)); wait
        }
        under_way=$STEPS.traffic; pair iron0 iron0 18601 -D 8 >$under_way 2>&1 &
        for i in $(seq 200); do [ $(rdma resource show qp | grep -c 'state RTS') = 2 ] && break; sleep 0.05; done
        rdma resource show qp | grep -q 'state RTS' || echo no traffic
        step 1; comes 13; shown; echo here $(ls -U)
        pair iron11 iron12 18600 -m 4096 -n 100 >/dev/null 2>&1; sleep 0.3
        echo sent $(cat iron11/ports/1/counters/port_xmit_packets)
        echo uverbs $(cat /sys/class/infiniband_verbs/uverbs12/ibdev) $(stat -c %F /dev/infiniband/uverbs12)
        echo parent $(readlink iron12/device/physfn)
        wait; echo rows $(grep -c '^ 65536' $under_way); rm $under_way"#;
    let mut shell = Shell::start(&node, script);
    shell.reaches(1);
    want(&node, "12", &[]);
    shell.goes_on(1);
    let printed = shell.finish();
    printed.shows(&[2, 12]);
    // A shell with this working directory is still in it.
    assert_eq!(printed.all("here")[0], printed.all("listed")[1], "{}", printed.0);
    let files = |kind| (0..=12).map(|i| format!(" {kind}{i}")).collect::<String>();
    assert_eq!(printed.all("files")[1], format!("rdma_cm{}{}", files("umad"), files("uverbs")));
    assert_eq!(printed.all("uverbs")[0], "iron12 character special file");
    assert_eq!(printed.all("parent"), ["../0000:c1:00.0"]);
    let sent: u64 = printed.all("sent")[0].parse().expect("a counter");
    assert!(sent >= 1600, "{sent} packets: {}", printed.0);
    assert_eq!(printed.all("rows"), ["1"], "{}", printed.0);
}

/// Two changes at once, and a node that replaces another, with fewer VFs and InfiniBand.
#[test]
fn a_view_follows_quick_changes_and_a_node_that_was_made_anew() {
    let node = Node::new("views-anew", 2);
    let port = "echo layer $(cat /sys/class/infiniband/iron1/ports/1/link_layer) $(ls /sys/class/infiniband_mad | grep -c umad)";
    let script = format!(
        "shown; {port}; step 1; comes 10; shown; {port}; step 2; comes 4; shown; {port}; smpquery -C iron3 nodedesc -D 0"
    );
    let mut shell = Shell::start(&node, &script);
    shell.reaches(1);
    want(&node, "4", &[]);
    want(&node, "9", &[]);
    shell.goes_on(1);
    shell.reaches(2);
    node.ironverbs(&["node", "reset"], &[]).finish();
    want(&node, "3", &["--link-layer", "infiniband"]);
    shell.goes_on(2);
    let printed = shell.finish();
    printed.shows(&[2, 9, 3]);
    assert_eq!(printed.all("layer"), ["Ethernet 3", "Ethernet 10", "InfiniBand 4"], "{}", printed.0);
    assert_eq!(printed.all("files")[2], "rdma_cm umad0 umad1 umad2 umad3 uverbs0 uverbs1 uverbs2 uverbs3");
    assert!(printed.0.contains("ironverbs iron3"), "{}", printed.0);
}

/// A run inside a view that requests more VFs waits for the view to show them, and keeps its supervisor. The same with a user namespace,
/// for users other than root.
#[test]
fn a_run_inside_a_view_brings_its_vfs_to_the_view() {
    for (name, user) in ["views-inside", "views-nobody"].into_iter().zip(users()) {
        let node = Node::new(name, 2).under(user).installed();
        let script = format!(
            "shown; {0} run --vfs 7 -- rdma link | grep -c iron; comes 8; shown; {0} doctor | grep shell",
            node.binary().display()
        );
        let printed = Shell::start(&node, &script).finish();
        printed.shows(&[2, 7]);
        assert!(printed.0.lines().any(|line| line == "8"), "{}", printed.0);
        assert!(printed.0.contains("programs see the adapter in"), "{}", printed.0);
    }
}

/// A node of root's shared with a group: programs of root and of a member reach each other, whichever opened the node first; other users
/// are refused.
#[test]
fn users_of_a_group_share_roots_node() {
    const GROUP: &str = "4321";
    if !is_root() {
        println!("skipped: only root can share an adapter");
        return;
    }
    let node = Node::new("views-group", 2).installed();
    let as_other = |groups: &str, program: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4322", "--regid=4322", groups]).arg(node.binary());
        command.arg("run").arg("--node").arg(node.dir()).args(["--vfs", "2", "--"]).args(program);
        command
    };
    node.ironverbs(&["node", "create"], &["--vfs", "2", "--group", GROUP]).finish();
    let member = format!("--groups={GROUP}");
    let stranger = as_other("--clear-groups", &["ibv_devinfo"]).output().expect("setpriv");
    let said = String::from_utf8_lossy(&stranger.stderr);
    assert!(
        stranger.status.code() == Some(125)
            && said.contains("shared with group 4321, which is none of yours"),
        "{said}"
    );
    for round in 0..2 {
        let port = port();
        let words =
            |device| ["ib_write_bw", "-d", device, "-x", "1", "-F", "-n", "1000", "-p", &port, "-s", "65536"];
        let root_serves = round == 0;
        let (server, client) = (words("iron1"), [&words("iron2")[..], &["127.0.0.1"]].concat());
        let start = |program: &[&str], root: bool| match root {
            true => node.start(program),
            false => Running::start(&mut as_other(&member, program), "a member's program"),
        };
        let server = start(&server, root_serves);
        until("the server listens", Duration::from_secs(20), || is_heard(&port));
        let said = start(&client, !root_serves).finish();
        assert!(said.contains("65536      1000"), "{said}");
        server.finish();
        // The next round begins on a node made by its first program, a member's.
        node.ironverbs(&["node", "reset"], &[]).finish();
    }
}

/// If a supervisor is killed, the view stays as it was: nothing waits, and `ironverbs doctor` reports what is missing. A new run sees
/// everything.
#[test]
fn a_view_without_its_supervisor_stays_as_it_was_and_nothing_waits() {
    let node = Node::new("views-killed", 2);
    let ironverbs = ironverbs();
    let script = format!(
        "echo verbs $(ibv_devices | grep -c iron); step 1; sleep 1; echo verbs $(timeout 5 ibv_devices | grep -c iron); \
         timeout 5 ls -d /sys/class/infiniband/*; {0} doctor | grep shell; echo inside $(timeout 20 {0} run -- ibv_devices | grep -c iron)",
        ironverbs.display()
    );
    let mut shell = Shell::start(&node, &script);
    shell.reaches(1);
    let supervisors = node.supervisors();
    assert!(!supervisors.is_empty(), "nobody supervises");
    supervisors.into_iter().for_each(|supervisor| assert!(signal("KILL", supervisor)));
    want(&node, "6", &[]);
    shell.goes_on(1);
    let printed = shell.finish();
    assert_eq!((printed.all("verbs"), printed.all("inside")), (vec!["3", "3"], vec!["7"]), "{}", printed.0);
    assert!(printed.0.contains("see 3 of the 7 functions"), "{}", printed.0);
}

/// If a device file cannot be created, for example because mounting is refused, nothing of the new VFs is shown, and `ironverbs doctor`
/// reports it. The next change is followed again.
#[test]
fn a_view_in_which_a_device_file_cannot_be_made_stays_whole() {
    let node = Node::new("views-refused", 2);
    let script = format!(
        "echo own >/dev/infiniband/uverbs5; shown; step 1; sleep 1; shown; {0} doctor | grep shell; \
         cat /dev/infiniband/uverbs5; rm /dev/infiniband/uverbs5; step 2; comes 9; shown",
        ironverbs().display()
    );
    let mut shell = Shell::start(&node, &script);
    shell.reaches(1);
    want(&node, "7", &[]);
    shell.goes_on(1);
    shell.reaches(2);
    want(&node, "8", &[]);
    shell.goes_on(2);
    let printed = shell.finish();
    printed.shows(&[2, 2, 8]);
    let files = "rdma_cm umad0 umad1 umad2 uverbs0 uverbs1 uverbs2 uverbs5";
    assert_eq!(printed.all("files")[..2], [files, files], "{}", printed.0);
    assert!(printed.0.contains("see 3 of the 8 functions") && printed.0.contains("own\n"), "{}", printed.0);
}

/// A device list from before the change remains valid: its devices can be opened, and a new list has all devices.
#[test]
fn a_program_that_holds_a_list_of_devices_keeps_it() {
    let node = Node::new("views-held", 2);
    let mut shell = Shell::start(&node, &format!("exec /usr/bin/python3 -c '{HOLDS_A_LIST}' $STEPS"));
    shell.reaches(1);
    want(&node, "6", &[]);
    shell.goes_on(1);
    let printed = shell.finish();
    assert_eq!(printed.all("devices"), ["3", "7"], "{}", printed.0);
    assert_eq!(printed.all("opened"), ["iron0 iron1 iron2", "iron6"], "{}", printed.0);
}

/// Lists the devices, waits for a step, then opens the devices of the old list and the last VF of a new one.
const HOLDS_A_LIST: &str = r#"
import ctypes, os, sys, time
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = verbs.ibv_open_device.argtypes = verbs.ibv_close_device.argtypes = [ctypes.c_void_p]
verbs.ibv_open_device.restype = ctypes.c_void_p
def devices():
    count = ctypes.c_int()
    found = verbs.ibv_get_device_list(ctypes.byref(count))
    return [found[i] for i in range(count.value)]
def opened(devices):
    for device in devices:
        context = verbs.ibv_open_device(device)
        assert context, "not opened"
        verbs.ibv_close_device(context)
    print("opened", *(verbs.ibv_get_device_name(device).decode() for device in devices))
held = devices()
print("devices", len(held))
open(sys.argv[1] + ".1", "w").close()
end = time.monotonic() + 30
while not os.path.exists(sys.argv[1] + ".1.go") and time.monotonic() < end: time.sleep(0.05)
while len(devices()) == len(held) and time.monotonic() < end: time.sleep(0.05)
now = devices()
print("devices", len(now))
opened(held)
opened([device for device in now if verbs.ibv_get_device_name(device) == b"iron6"])
"#;
