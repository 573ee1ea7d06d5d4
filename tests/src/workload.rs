//! Mixed traffic: programs of many kinds on one node at once, each with its own supervisor. They are killed or stopped one after the other,
//! at random instants derived from a seed.

use crate::{
    bed::Chaos,
    bystander::{Baseline, Rounds, SOON, UNDISTURBED},
    program::signal,
    stock::{self, LISTENING, Node, Running, address, is_heard, locks, port},
};
use node::Node as Runtime;
use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};
use testkit::until;

/// Pairs of programs that run at once: more programs than processors.
const AT_ONCE: usize = 3;
/// Functions of the workload; those of the bystander follow.
const FUNCTIONS: u64 = 6;
const VFS: u8 = 9;
/// The files in a node's directory.
const FILES: [&str; 4] = ["adapter", "parties", "ports", "userns"];
/// Time limit for a pair: some seconds of work, beside others and with occasional stops.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit for a client to detect that its server is dead: 8 timeouts of 67 to 270 ms, and as long again to end, on a busy machine.
const NOTICED: Duration = Duration::from_secs(30);
/// Grace period for a client that cannot detect its server's death, because it only waits for messages or has a timeout of minutes.
const GRACE: Duration = Duration::from_millis(800);
/// Time limit for a pair of datagram programs, which wait forever for lost messages.
const LOSSY: Duration = Duration::from_secs(5);
/// Longest stop: longer than the shortest transport timeout, 8 timeouts of 8 to 14 ms.
const LONG: u64 = 300_000;

/// The error of a program with a supervisor that ended before the program was ready.
const UNSUPERVISED: &str = "cannot start the supervisor: it ended";

/// How a client connects to its server.
#[derive(Clone, Copy, PartialEq)]
enum Meets {
    /// By a TCP port.
    Port,
    /// By the connection manager.
    Manager,
}

/// A kind of traffic. Placeholders in its commands: `{own}` and `{peer}` are the numbers of functions, `{at}` and `{to}` their addresses,
/// `{gid}` perftest's GID option, `{port}` a port.
struct Kind {
    server: &'static str,
    /// The arguments that the client's command adds to the server's, or the whole command.
    client: Result<&'static str, &'static str>,
    meets: Meets,
    /// True if the client detects that its server was killed, and ends.
    notices: bool,
    /// Datagrams, which may be lost: the pair need not complete.
    lossy: bool,
}

const fn perftest(server: &'static str) -> Kind {
    Kind { server, client: Ok(" {to}"), meets: Meets::Port, notices: true, lossy: false }
}

const fn managed(server: &'static str, client: &'static str) -> Kind {
    Kind { server, client: Err(client), meets: Meets::Manager, notices: true, lossy: false }
}

const KINDS: &[Kind] = &[
    perftest("ib_write_bw -q 64 -s 4096 -D 2 {gid}"),
    perftest("ib_read_bw -q 64 -s 8192 -D 2 {gid}"),
    perftest("ib_atomic_bw -q 64 -D 2 {gid}"),
    perftest("ib_send_bw -q 64 -s 2048 -D 2 {gid}"),
    perftest("ib_send_bw -q 4 -s 2048 -e -n 20000 {gid}"),
    perftest("ib_send_bw --use-srq -q 8 -s 4096 -D 2 {gid}"),
    perftest("ib_send_bw --use-srq -q 4 -e -s 4096 -n 20000 {gid}"),
    perftest("ib_send_bw -c XRC -q 4 -s 4096 -D 2 {gid}"),
    perftest("ib_send_bw -c XRC -q 2 -s 4096 -e -n 20000 {gid}"),
    perftest("ib_write_bw -c XRC -q 4 -s 65536 -D 2 {gid}"),
    // It only waits for a WRITE of its peer.
    Kind { notices: false, ..perftest("ib_write_lat -s 64 -n 20000 {gid}") },
    Kind { notices: false, ..perftest("ib_send_bw -c UC -q 8 -s 8192 -D 2 {gid}") },
    Kind { notices: false, lossy: true, ..perftest("ib_send_bw -c UD -q 4 -s 1024 -D 2 {gid}") },
    Kind { notices: false, lossy: true, ..perftest("ib_send_bw -c UD -s 1024 -e -n 100000 {gid}") },
    Kind {
        client: Err("{torture} {dir} {own} connect {port} {seed} 1500 seed=0"),
        ..perftest("{torture} {dir} {own} listen {port} {seed} 1500 seed=0")
    },
    // A QP connected by the manager waits at least 8 times 2 s for a response, as on Linux.
    Kind { notices: false, meets: Meets::Manager, ..perftest("ib_write_bw -R -q 8 -s 65536 -D 2 {gid}") },
    managed("rping -s -a {at} -p {port} -V -C 3000", "rping -c -a {to} -p {port} -V -C 3000"),
    // Its client waits for messages first, and only then for the manager's events.
    Kind {
        notices: false,
        ..managed("ucmatose -b {at} -p {port} -c 16 -C 300", "ucmatose -s {to} -p {port} -c 16 -C 300")
    },
    Kind {
        lossy: true,
        notices: false,
        ..managed("udaddy -b {at} -c 4 -C 50", "udaddy -b {at} -s {to} -c 4 -C 50")
    },
    Kind {
        lossy: true,
        notices: false,
        ..managed("mckey -m 239.1.1.1 -b {at} -C 1000", "mckey -m 239.1.1.1 -b {at} -s -C 1000")
    },
];

/// A signal to a program at a random instant.
#[derive(Clone, Copy, PartialEq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT some milliseconds later.
    Stop,
}

/// A server and its client.
struct Pair {
    kind: &'static Kind,
    what: String,
    client_words: String,
    port: String,
    /// Locks of listeners that existed before.
    listeners: usize,
    sides: [Option<Running>; 2],
    begun: Instant,
    /// The side that was killed, and when.
    killed: Option<(usize, Instant)>,
}

/// All pairs of a run.
struct Traffic<'a> {
    node: &'a Node,
    /// The program `torture`.
    torture: &'a str,
    infiniband: bool,
    random: Chaos,
    pairs: Vec<Pair>,
    /// Number of pairs that completed, and of those that lost a side.
    ended: [usize; 2],
    /// Number of supervisors killed; each may have cost a program that was just starting.
    unsupervised: usize,
}

impl Traffic<'_> {
    fn draw(&mut self, below: u64) -> u64 {
        (self.random.draw() >> 20) % below
    }

    /// Starts a pair of a random kind on two random functions, or on one.
    fn start(&mut self) {
        let kinds: Vec<&'static Kind> =
            KINDS.iter().filter(|kind| !self.infiniband || kind.meets == Meets::Port).collect();
        let kind = kinds[self.draw(kinds.len() as u64) as usize];
        let (own, peer) = (1 + self.draw(FUNCTIONS), 1 + self.draw(FUNCTIONS));
        // A client whose server was killed may be looking for it still, and would meet the next server at that port.
        let port = std::iter::repeat_with(port).find(|port| self.pairs.iter().all(|pair| pair.port != *port));
        let port = port.expect("more ports than pairs");
        let seed = self.draw(1 << 30).to_string();
        let dir = self.node.dir().display().to_string();
        let gid =
            if self.infiniband { "-F -d iron{own} -p {port}" } else { "-F -x 1 -d iron{own} -p {port}" };
        let filled = |words: &str, own: u64, peer: u64| {
            words
                .replace("{gid}", gid)
                .replace("{torture}", self.torture)
                .replace("{dir}", &dir)
                .replace("{own}", &own.to_string())
                .replace("{at}", &address(&format!("iron{own}")))
                .replace("{to}", &address(&format!("iron{peer}")))
                .replace("{port}", &port)
                .replace("{seed}", &seed)
        };
        let server = filled(kind.server, own, peer);
        let client = match kind.client {
            Ok(more) => filled(&format!("{}{more}", kind.server), peer, own),
            Err(words) => filled(words, peer, own),
        };
        let listeners = locks(self.node, LISTENING);
        let first = self.node.start(&server.split_whitespace().collect::<Vec<_>>());
        let what = format!("{server} and {client}");
        let begun = Instant::now();
        let sides = [Some(first), None];
        self.pairs.push(Pair {
            kind,
            what,
            client_words: client,
            port,
            listeners,
            sides,
            begun,
            killed: None,
        });
    }

    /// Starts pairs up to the limit, and checks those that have ended.
    fn go_on(&mut self) -> Result<(), String> {
        while self.pairs.len() < AT_ONCE {
            self.start();
        }
        self.look()
    }

    /// Checks the pairs that have ended.
    fn look(&mut self) -> Result<(), String> {
        let mut i = 0;
        while i < self.pairs.len() {
            match self.pairs[i].go_on(self.node)? {
                true => i += 1,
                false => self.end(i)?,
            }
        }
        Ok(())
    }

    /// Checks how pair `i` ended.
    fn end(&mut self, i: usize) -> Result<(), String> {
        let mut pair = self.pairs.swap_remove(i);
        let mut lost = pair.killed.is_some();
        if pair.is_late() {
            pair.kill_all();
        }
        let sides = pair.sides.map(|side| side.map(Running::ends));
        // Its supervisor was killed before it started, so its peer never finds it.
        if sides.iter().flatten().any(|(_, said)| said.contains(UNSUPERVISED)) && self.unsupervised > 0 {
            self.unsupervised -= 1;
            lost = true;
        }
        self.ended[usize::from(lost)] += 1;
        let fails =
            |side: &Option<(bool, String)>| side.as_ref().is_none_or(|side| !(side.0 || pair.kind.lossy));
        if lost || !sides.iter().any(fails) {
            return Ok(());
        }
        let mut what = format!("{}, {:?} after it began", pair.what, pair.begun.elapsed());
        for (side, ended) in ["server", "client"].iter().zip(sides) {
            what += &match ended {
                None => format!("\n--- the {side} never began"),
                Some((true, said)) => format!("\n--- the {side} came to its end; it printed\n{said}"),
                Some((false, said)) => format!("\n--- the {side} failed; it printed\n{said}"),
            };
        }
        Err(what)
    }

    /// Chooses a living process of any pair, or a supervisor of any program. Returns its pid, and pair and side if it belongs to one.
    fn victim(&mut self) -> Option<(u32, Option<(usize, usize)>)> {
        if self.draw(5) == 0 {
            let all = self.node.supervisors();
            let which = self.draw(all.len().max(1) as u64) as usize;
            return Some((*all.get(which)?, None));
        }
        let mut alive = Vec::new();
        for (i, pair) in self.pairs.iter_mut().enumerate().filter(|(_, pair)| pair.killed.is_none()) {
            for (side, running) in pair.sides.iter_mut().enumerate() {
                let Some(running) = running else { continue };
                if !running.ended() {
                    alive.push((running.pid(), Some((i, side))));
                }
            }
        }
        let which = self.draw(alive.len().max(1) as u64) as usize;
        alive.get(which).copied()
    }

    /// Lets all pairs complete.
    fn finish(&mut self) -> Result<(), String> {
        while !self.pairs.is_empty() {
            self.look()?;
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Pair {
    /// Returns true if it is still running. Fails if it should have ended.
    fn go_on(&mut self, node: &Node) -> Result<bool, String> {
        let now = Instant::now();
        let ended = self.sides.each_mut().map(|side| side.as_mut().is_none_or(Running::ended));
        if let Some((side, when)) = self.killed {
            let other = 1 - side;
            if ended[other] {
                return Ok(false);
            }
            let since = now - when;
            let notices = self.kind.notices && side == 0;
            if notices && since > NOTICED {
                let what = &self.what;
                return Err(format!("{what}: the client goes on {NOTICED:?} after its server was killed"));
            }
            if !notices && since > GRACE {
                self.kill_all();
            }
            return Ok(true);
        }
        if self.sides[1].is_none() {
            let ready = match self.kind.meets {
                Meets::Port => is_heard(&self.port),
                // Other pairs may start or stop listening meanwhile.
                Meets::Manager => {
                    locks(node, LISTENING) > self.listeners || now - self.begun > Duration::from_secs(3)
                }
            };
            if ready {
                self.sides[1] = Some(node.start(&self.client_words.split_whitespace().collect::<Vec<_>>()));
            }
            return Ok(!ended[0] && !self.is_late());
        }
        if self.kind.lossy && now - self.begun > LOSSY {
            self.kill_all();
            return Ok(false);
        }
        Ok(ended != [true, true] && !self.is_late())
    }

    fn is_late(&self) -> bool {
        self.begun.elapsed() > LIMIT
    }

    fn kill_all(&mut self) {
        self.sides.iter_mut().flatten().for_each(Running::kill);
    }
}

/// Returns the names of the files in a node's directory.
fn files(node: &Node) -> Vec<String> {
    let entries = fs::read_dir(node.dir()).expect("the node's directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Sends signals of a kind to `count` programs of mixed traffic, and prints how that affected others. IRONVERBS_SEED
/// determines which programs and when; `torture` is the path of that program.
pub fn run(kind: Signal, count: usize, infiniband: bool, torture: &str) {
    let seed = crate::program::seed();
    println!("IRONVERBS_SEED={seed}");
    let name = if kind == Signal::Kill { "KILL" } else { "STOP" };
    let node = Node::new(&format!("mixed-{name}"), VFS);
    let node = if infiniband { node.on_infiniband() } else { node };
    node.run(&["ibv_devinfo"]);
    let runtime = Runtime::open(node.dir()).expect("the node");
    let before = (Baseline::of(&runtime), locks(&node, 0..u64::MAX));
    let bystander = Rounds::start(&runtime, [VFS - 2, VFS - 1, VFS]);
    let mut took = [Vec::new(), Vec::new()];
    // Any nonzero state will do.
    let random = Chaos { seed: seed.wrapping_mul(2).wrapping_add(1), ..Chaos::default() };
    let mut traffic = Traffic {
        node: &node,
        torture,
        infiniband,
        random,
        pairs: Vec::new(),
        ended: [0; 2],
        unsupervised: 0,
    };
    let (begin, mut met, mut watched, mut locked) = (Instant::now(), 0, 0, 0);
    let mut next = Instant::now();
    while met < count {
        traffic.go_on().unwrap_or_else(|what| panic!("IRONVERBS_SEED={seed}, after {met}: {what}"));
        if Instant::now() < next {
            sleep(Duration::from_millis(3));
            continue;
        }
        next = Instant::now() + Duration::from_micros(traffic.draw(400_000));
        let Some((pid, of)) = traffic.victim() else { continue };
        took[0].push(bystander.one("with nobody stopped"));
        if !signal(name, pid) {
            continue;
        }
        met += 1;
        watched += usize::from(of.is_none());
        let when = format!("IRONVERBS_SEED={seed}, {met}: SIG{name} of {pid}");
        match (kind, of) {
            (Signal::Kill, of) => {
                traffic.unsupervised += usize::from(of.is_none());
                took[1].push(bystander.one(&when));
                if let Some((pair, side)) = of {
                    traffic.pairs[pair].killed = Some((side, Instant::now()));
                }
            }
            (Signal::Stop, _) => {
                let (round, locked_out) = bystander.beside(pid, &when);
                took[1].push(round);
                let longer = traffic.draw(LONG);
                if !locked_out {
                    sleep(Duration::from_micros(longer));
                }
                signal("CONT", pid);
                if locked_out {
                    // Other programs that opened or closed a device at this time failed for the same reason.
                    locked += 1;
                    traffic.pairs.drain(..).for_each(|mut pair| pair.kill_all());
                    bystander.one(&format!("{when}, which goes on"));
                }
            }
        }
    }
    traffic.finish().unwrap_or_else(|what| panic!("IRONVERBS_SEED={seed}, at the end: {what}"));
    let [whole, parted] = traffic.ended;
    bystander.end();
    // A new pair on functions of killed programs.
    let gid: &[&str] = if infiniband { &[] } else { &["-x", "1"] };
    let options = [gid, &["-F", "-q", "8", "-n", "200"]].concat();
    stock::Pair::plain(&node, "ib_write_bw", "iron1", "iron2", &options).has_figures("a fresh pair");
    let status = runtime.status().expect("status");
    // Supervisors end together with their programs, and not before.
    until("all supervisors are gone", SOON, || node.supervisors().is_empty());
    let after = (Baseline::of(&runtime), locks(&node, 0..u64::MAX));
    assert_eq!(after, before, "IRONVERBS_SEED={seed}");
    let strange: Vec<_> = files(&node).into_iter().filter(|name| !FILES.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "IRONVERBS_SEED={seed}: left in the node's directory: {strange:?}");
    for times in &mut took {
        times.sort();
    }
    println!(
        "{met} programs met SIG{name} in {:?}, {watched} of them supervisors; {whole} pairs came to their end, {parted} lost one; \
         {locked} of the programs had the node's lock; a bystander's round took {:?} (median), {:?} (slowest), before it {:?}, {:?}; {} were cleaned up after",
        begin.elapsed(),
        took[1][met / 2],
        took[1][met - 1],
        took[0][took[0].len() / 2],
        took[0][took[0].len() - 1],
        status.reaped,
    );
    assert!(took[1][met - 1] < UNDISTURBED, "{:?}", took[1][met - 1]);
}
