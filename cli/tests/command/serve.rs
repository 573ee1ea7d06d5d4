//! `ironverbs serve` with programs on the same node: a client on a vfio-user socket and a program share one wire.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use devmodel::identity;
use driver::transport::VfioUserTransport;
use driver::{Device, OpenOptions, WcStatus};
use node::{Node, open_device_of};
use testkit::Held;
use tests::end::{End, every_operation, is_peer_gone};
use tests::program::Scratch;

pub const SOON: Duration = Duration::from_secs(20);
const LEN: usize = 1 << 20;

/// A node with VFs; a separate process serves function 1.
struct Served {
    process: Held,
    scratch: Scratch,
}

impl Served {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(more: &[&str]) -> Self {
        let scratch = Scratch::made();
        let process = start(&scratch, more);
        Self { scratch, process }
    }

    fn socket(&self) -> PathBuf {
        socket(&self.scratch)
    }

    fn node(&self) -> Arc<Node> {
        Node::open(&self.scratch.dir().join("node")).unwrap()
    }

    /// The driver as a guest would use it.
    fn guest(&self) -> End {
        guest(&self.socket(), 1)
    }

    fn program(&self, fid: u8) -> End {
        End::new(open_device_of(&self.node(), fid).unwrap(), LEN).unwrap()
    }

    fn pair(&self) -> (End, End) {
        let (guest, program) = (self.guest(), self.program(2));
        guest.join(&program);
        (guest, program)
    }

    fn signal(&mut self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

/// The processor time of a process so far.
pub fn processor_time(process: &Held) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// The driver on function `fid`, behind a socket.
fn guest(socket: &Path, fid: u8) -> End {
    let peers = [1, 2, 3].map(|fid| (v4(fid), identity::mac(0, fid)));
    let options = OpenOptions {
        link_local: true,
        gids: vec![v4(fid)],
        neighbours: peers.to_vec(),
        ..OpenOptions::default()
    };
    let transport = VfioUserTransport::open(socket).unwrap();
    End::new(Device::open(transport, options).unwrap(), LEN).unwrap()
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.dir().join("f1")
}

/// The default address of function `fid`.
fn v4(fid: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, fid + 1]
}

fn command(scratch: &Scratch, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironverbs"));
    command.arg("serve").arg("--adapter").arg(scratch.dir().join("node"));
    command.arg("--plug").arg(format!("1={}", socket(scratch).display())).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(scratch: &Scratch, more: &[&str]) -> Held {
    let mut process = Held(command(scratch, more).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("iron1 at "), "{line}");
    process
}

#[track_caller]
fn done(end: &End) {
    let completion = end.next(SOON).expect("a completion");
    assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
}

#[test]
fn a_guest_and_a_program_of_the_node_talk_both_ways() {
    let served = Served::new();
    let (guest, program) = served.pair();
    for (a, b) in [(&guest, &program), (&program, &guest)] {
        every_operation(a, b, &[8, 100, 4096, 300_000]);
    }
}

#[test]
fn guests_of_two_servers_talk() {
    let served = Served::new();
    let there = served.scratch.dir().join("f3");
    let mut other = Command::new(env!("CARGO_BIN_EXE_ironverbs"));
    other.arg("serve").arg("--adapter").arg(served.scratch.dir().join("node"));
    other.arg("--plug").arg(format!("3={}", there.display())).stdin(Stdio::null()).stdout(Stdio::piped());
    let process = Held(other.spawn().unwrap());
    let mut other = Served { scratch: Scratch::new(), process };
    let mut line = String::new();
    BufReader::new(other.process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (a, b) = (served.guest(), guest(&there, 3));
    a.join(&b);
    for (from, to) in [(&a, &b), (&b, &a)] {
        every_operation(from, to, &[5000, 200_000]);
    }
}

#[test]
fn what_is_served_is_busy_and_what_is_busy_is_not_served() {
    let served = Served::new();
    let node = served.node();
    let refused = open_device_of(&node, 1).err().expect("a refusal");
    assert_eq!(refused.errno(), libc_ebusy());
    let pid = served.process.id().to_string();
    assert!(refused.to_string().contains(&pid), "{refused}");
    let _open = open_device_of(&node, 2).unwrap();
    let other = served.scratch.dir().join("f2");
    let plug = format!("2={}", other.display());
    let mut second = Command::new(env!("CARGO_BIN_EXE_ironverbs"));
    second.arg("serve").arg("--adapter").arg(served.scratch.dir().join("node")).arg("--plug").arg(plug);
    let said = second.output().unwrap();
    assert!(!said.status.success());
    let why = String::from_utf8_lossy(&said.stderr);
    assert!(why.contains("iron2 is in use") && why.lines().count() == 1, "{why}");
    assert!(!other.exists());
}

fn libc_ebusy() -> i32 {
    16
}

#[test]
fn it_ends_by_a_signal_and_leaves_nothing() {
    for signal in ["TERM", "INT"] {
        let mut served = Served::new();
        let (guest, _program) = served.pair();
        served.signal(signal);
        let status = served.process.wait().unwrap();
        assert!(status.success(), "{signal}: {status}");
        assert!(!served.socket().exists());
        assert!(guest.device.port().is_err());
        // The function is free again.
        drop(open_device_of(&served.node(), 1).unwrap());
    }
}

#[test]
fn a_server_that_was_killed_is_followed_by_the_next() {
    let mut served = Served::new();
    let (guest, program) = served.pair();
    served.process.kill().unwrap();
    served.process.wait().unwrap();
    assert!(served.socket().exists(), "nobody could remove it");
    // A program that was connected to the guest gets an error, and does not hang.
    program.post(1, guest.to_write(0), &[program.sge(0, 8)]);
    let completion = program.next(SOON).expect("a completion");
    assert!(is_peer_gone(completion.status), "{completion:?}");
    drop((guest, program));
    served.process = start(&served.scratch, &[]);
    let (guest, program) = served.pair();
    guest.post(1, program.to_write(0), &[guest.sge(0, 8)]);
    done(&guest);
}

#[test]
fn a_socket_that_another_server_has_is_left_alone() {
    let scratch = Scratch::made();
    let _theirs = UnixListener::bind(socket(&scratch)).unwrap();
    let said = command(&scratch, &[]).output().unwrap();
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("f1"), "{said:?}");
    assert!(socket(&scratch).exists());
}

#[test]
fn nobody_asks_nothing_runs() {
    let served = Served::new();
    let (_guest, _program) = served.pair();
    std::thread::sleep(Duration::from_millis(300));
    let before = processor_time(&served.process);
    std::thread::sleep(Duration::from_secs(2));
    let used = processor_time(&served.process) - before;
    assert!(used <= Duration::from_millis(20), "{used:?} in two idle seconds");
}

#[test]
fn a_silent_client_holds_nobody_up() {
    let served = Served::with(&["--plug", &format!("3=/dev/shm/ironverbs-silent-{}", std::process::id())]);
    let silent = PathBuf::from(format!("/dev/shm/ironverbs-silent-{}", std::process::id()));
    let mut stream = UnixStream::connect(&silent).unwrap();
    // Half a header and nothing more.
    stream.write_all(&[1, 0, 1]).unwrap();
    let (guest, program) = served.pair();
    let begun = Instant::now();
    for _ in 0..100 {
        guest.post(1, program.to_write(0), &[guest.sge(0, 64)]);
        done(&guest);
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    // It is disconnected in the end.
    stream.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    drop(served);
    let _ = fs::remove_file(silent);
}

#[test]
fn a_server_goes_on_when_nobody_reads_what_it_says() {
    let scratch = Scratch::made();
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    let process = Held(command(&scratch, &[]).stdout(OwnedFd::from(theirs)).spawn().unwrap());
    let mut served = Served { scratch, process };
    testkit::until("a socket", SOON, || served.socket().exists());
    served.guest();
    served.signal("TERM");
    let status = served.process.wait().unwrap();
    let mut why = String::new();
    served.process.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert!(status.success() && why.is_empty(), "{status}: {why}");
}

/// Fields of `/proc/PID/status` of all threads of a process and of its children.
fn threads(pid: u32) -> Vec<(String, String)> {
    let field = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_string()).unwrap()
    };
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().path();
        let status = fs::read_to_string(task.join("status")).unwrap();
        found.push((field(&status, "Name:"), field(&status, "Seccomp:")));
        for child in fs::read_to_string(task.join("children")).unwrap().split_whitespace() {
            found.extend(threads(child.parse().unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn all_threads_are_in_jail_and_its_asker_goes_with_the_server() {
    let link = Scratch::new();
    fs::create_dir_all(link.dir()).unwrap();
    let link = format!("dgram:{0}/a,{0}/b", link.dir().display());
    let mut served = Served::with(&["--link", &link]);
    let (_guest, _program) = served.pair();
    let found = threads(served.process.id());
    let expected =
        ["ironverbs", "ironverbs", "ironverbs-asker", "ironverbs-link", "ironverbs-link", "vfio-user"];
    assert_eq!(found, expected.map(|name| (name.to_string(), "2".to_string())));
    served.signal("TERM");
    assert!(served.process.wait().unwrap().success());
    // The server holds the other end of this pipe.
    let mut why = String::new();
    served.process.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert_eq!(why, "");
}

#[test]
fn a_vhost_user_socket_is_served_in_jail() {
    let scratch = Scratch::made();
    let socket = scratch.dir().join("f2");
    let mut served = Served::with(&["--plug-virtio", &format!("2={}", socket.display())]);
    let mut client = UnixStream::connect(&socket).unwrap();
    // GET_FEATURES: virtio 1, protocol features.
    client.write_all(&[1, 1, 0].map(u32::to_ne_bytes).concat()).unwrap();
    let mut answer = [0; 20];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..], [1, 5, 8, 1 << 30, 1].map(u32::to_ne_bytes).concat());
    assert!(threads(served.process.id()).contains(&("vhost-user".into(), "2".into())));
    served.signal("TERM");
    assert!(served.process.wait().unwrap().success());
    let mut why = String::new();
    served.process.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert_eq!(why, "");
    assert!(!socket.exists());
}

#[test]
fn a_server_that_is_to_be_debugged_is_not_in_jail() {
    let served = Served::with(&["--no-jail"]);
    let (_guest, _program) = served.pair();
    let found = threads(served.process.id());
    assert!(found.iter().all(|(_, filters)| filters == "0"), "{found:?}");
}

/// Makes the main thread of a process, which sleeps in a system call, exec a program next, as an exploit would.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn break_out(pid: u32) {
    let pid = pid as libc::pid_t;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: a child process of the test; its registers are plain integers.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_ATTACH, pid, none, none), 0);
        assert_eq!(libc::waitpid(pid, none.cast(), 0), pid);
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, pid, none, &raw mut registers), 0);
        // Repeats the system call instruction, which is two bytes long.
        registers.rip -= 2;
        registers.rax = libc::SYS_execve as u64;
        registers.orig_rax = u64::MAX;
        assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, pid, none, &raw const registers), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, pid, none, none), 0);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_server_that_breaks_out_ends_and_its_neighbours_go_on() {
    let mut served = Served::new();
    let (guest, program) = served.pair();
    break_out(served.process.id());
    let status = served.process.wait().unwrap();
    let mut why = String::new();
    served.process.stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert_eq!(status.code(), Some(159), "{status}: {why}");
    assert!(why.contains("the main thread refuses system call 59") && why.lines().count() == 1, "{why}");
    let to = guest.to_write(0);
    program.post(1, to, &[program.sge(0, 8)]);
    let completion = program.next(SOON).expect("a completion");
    assert!(is_peer_gone(completion.status), "{completion:?}");
    drop((guest, program));
    served.process = start(&served.scratch, &[]);
    let (guest, program) = served.pair();
    let to = program.to_write(0);
    guest.post(1, to, &[guest.sge(0, 8)]);
    done(&guest);
}

#[test]
fn it_says_whether_it_is_in_jail() {
    for (more, expected) in
        [(&[][..], "jailed: 4 threads and an asker"), (&["--no-jail"], "not jailed: as asked")]
    {
        let scratch = Scratch::made();
        let mut process = Held(command(&scratch, more).spawn().unwrap());
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let said: Vec<String> = lines.take(2).map(Result::unwrap).collect();
        assert_eq!(said.get(1).map(String::as_str), Some(expected));
    }
}

#[test]
fn wrong_words_are_one_line() {
    for words in [
        &["--misbehave", "nonsense"][..],
        &["--plug", "x"],
        &["--plug", "300=/tmp/x"],
        &["--plug", "200=/tmp/x"],
        // A PF with only its second VF.
        &["--plug-virtio", "0=/tmp/x", "--plug-virtio", "2=/tmp/y"],
    ] {
        let scratch = Scratch::new();
        let said = command(&scratch, words).output().unwrap();
        let why = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success() && why.lines().count() == 1, "{words:?}: {why}");
        assert!(!socket(&scratch).exists());
    }
}

#[test]
fn what_is_recorded_on_either_side_is_the_same_and_can_be_printed_and_compared() {
    let scratch = Scratch::made();
    let [device, driver] = ["device", "driver"].map(|name| scratch.dir().join(name).display().to_string());
    let process = start(&scratch, &["--record", &device]);
    let run = |words: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_ironverbs")).args(words).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let socket = socket(&scratch).display().to_string();
    let (status, said, why) = run(&["bringup", "--vfio-user", &socket, "--write", "--record", &driver]);
    assert_eq!((status, why), (Some(0), String::new()), "{said}");
    drop(process);

    assert_eq!(run(&["trace", "diff", "--words", &device, &driver]), (Some(0), String::new(), String::new()));
    let (_, all, _) = run(&["trace", "show", &device]);
    let position = |begin: &str| all.lines().position(|line| line.starts_with(begin)).expect(begin);
    let order =
        ["ENABLE_HCA", "INIT_HCA", "CREATE_EQ uid=uid#1", "CREATE_QP", "post:Rc:Send", "TEARDOWN_HCA"];
    assert!(order.map(position).is_sorted(), "{all}");

    // `diff` also accepts the output of `show`, and a list permits the differences in it.
    let (_, compact, _) = run(&["trace", "show", "--compact", &device]);
    let kept = scratch.dir().join("kept");
    fs::write(&kept, compact.replace("ENABLE_HCA", "NOP x=1")).unwrap();
    let kept = kept.display().to_string();
    let (status, said, _) = run(&["trace", "diff", "--words", &kept, &driver]);
    assert_eq!((status, said.as_str()), (Some(1), "sends ENABLE_HCA\nlacks NOP\n"));
    let list = scratch.dir().join("list");
    fs::write(&list, "sends ENABLE_HCA - it must\nlacks NOP - it need not\n").unwrap();
    let list = list.display().to_string();
    assert_eq!(run(&["trace", "diff", "--allow", &list, &kept, &driver]).0, Some(0));
    let (status, said, _) = run(&["trace", "diff", "--allow", &list, &device, &driver]);
    assert_eq!((status, said.lines().next()), (Some(1), Some("not needed: lacks NOP")));
    let (status, said, _) = run(&["trace", "diff", &kept, &driver]);
    assert!(status == Some(1) && said.contains("\n- NOP x=1\n+ ENABLE_HCA\n"), "{said}");

    // Invalid files, and unwritable paths.
    for (words, expected) in [
        (vec!["trace", "show", &list], "line 1: expected a stream"),
        (vec!["trace", "show", "--function", "9", &device], "nothing was sent to function 9"),
        (
            vec!["trace", "diff", "--allow", &kept, &device, &driver],
            "expected a difference, ' - ' and a reason",
        ),
        (vec!["bringup", "--vfio-user", &socket, "--record", "/nowhere/file"], "/nowhere/file"),
    ] {
        let (status, _, why) = run(&words);
        assert!(status == Some(1) && why.contains(expected) && why.lines().count() == 1, "{words:?}: {why}");
    }
}
