//! Two programs on a node, and the data between them.

use driver::{SendOp, WcOpcode, WcStatus};
use ironverbs_tests::{
    end::{Card, End, Patience},
    program::Scratch,
};
use node::{NodeOptions, open_device, open_device_of};
use std::time::{Duration, Instant};
use testkit::{Other, listen, say};

const LEN: usize = 256 << 10;
/// Bytes of a message, and where it is received.
const MESSAGE: usize = 3000;
const INBOX: usize = 128 << 10;

/// Answers `rounds` messages by SENDs of the same data.
fn echo(end: &End, rounds: usize) {
    for _ in 0..rounds {
        while end.succeeded().opcode != WcOpcode::Recv {}
        let message = end.words.bytes(INBOX, MESSAGE);
        end.words.put(0, &message);
        end.receive(2, INBOX, MESSAGE);
        end.post(1, SendOp::Send, &[end.sge(0, MESSAGE)]);
    }
}

/// Not a test itself: the other program, which executes the commands it reads. It answers each with a word of its memory.
#[test]
fn other_program() {
    let Some((fid, dir)) = testkit::role() else { return };
    let device = open_device(&dir, fid.parse().expect("a function")).expect("a device");
    let end = End::new(device, LEN).expect("an end");
    say(end.card());
    loop {
        let line = listen();
        let (order, rest) = line.split_once(' ').expect("a command");
        let number = rest.parse().unwrap_or_default();
        if order == "connect" {
            end.connect(&rest.parse().expect("a card"), Patience::default()).expect("connected");
            end.receive(2, INBOX, MESSAGE);
        }
        if order == "fill" {
            end.words.put(0, &[number as u8; LEN]);
        }
        say(end.words.word(if order == "word" { number } else { 0 }));
        if order == "echo" {
            echo(&end, number);
        }
    }
}

/// Makes a node, an end on its VF 1, and another program with an end on VF `fid`, connected to each other.
fn connected(fid: u8, no_direct_copies: bool) -> (Scratch, End, Other, Card) {
    let scratch = Scratch::new();
    let node = scratch.node_with(&NodeOptions { vfs: Some(2), no_direct_copies, ..NodeOptions::default() });
    // The other program starts first, and brings up a function that both open.
    let command = &mut Other::command("programs::other_program", &fid.to_string(), scratch.dir());
    let mut other = Other::start(command);
    let card: Card = other.hear().parse().expect("a card");
    let end = End::new(open_device_of(&node, 1).expect("a device"), LEN).expect("an end");
    end.connect(&card, Patience::default()).expect("connected");
    ask(&mut other, &format!("connect {}", end.card()));
    let status = node.status().expect("status");
    assert_eq!(status.parties.len(), 2);
    assert_eq!(status.functions[1].parties.len(), if fid == 1 { 2 } else { 1 });
    (scratch, end, other, card)
}

fn ask(other: &mut Other, what: &str) -> u64 {
    other.tell(what);
    other.hear_number()
}

/// On two functions and on one. Where direct copies are forbidden, the programs' parked threads do them.
#[test]
fn programs_write_read_send_and_add() {
    for (fid, apart) in [(2, false), (2, true), (1, false), (1, true)] {
        let (_scratch, end, mut other, Card { addr: raddr, rkey, .. }) = connected(fid, apart);
        let word = |byte: u8| u64::from_ne_bytes([byte; 8]);
        end.words.put(0, &[7; LEN]);
        end.post(1, SendOp::Write { raddr, rkey }, &[end.sge(0, 100_000)]);
        end.good(WcOpcode::RdmaWrite);
        assert_eq!([99_992, 100_000].map(|at| ask(&mut other, &format!("word {at}"))), [word(7), 0]);
        ask(&mut other, "fill 9");
        end.post(1, SendOp::Read { raddr, rkey }, &[end.sge(0, 200_000)]);
        end.good(WcOpcode::RdmaRead);
        assert!(end.words.bytes(0, 200_000).iter().all(|byte| *byte == 9));
        assert_eq!(end.words.word(200_000), word(7));
        ask(&mut other, "echo 1");
        end.receive(2, INBOX, MESSAGE);
        end.post(1, SendOp::Send, &[end.sge(200_000, MESSAGE)]);
        let mut got = [end.succeeded(), end.succeeded()];
        got.sort_by_key(|wc| wc.wr_id);
        assert_eq!((got[1].opcode, got[1].byte_len as usize), (WcOpcode::Recv, MESSAGE));
        assert_eq!(end.words.bytes(INBOX, MESSAGE), [7; MESSAGE]);
        end.post(1, SendOp::FetchAdd { raddr: raddr + 8192, rkey, add: 5 }, &[end.sge(0, 8)]);
        end.good(WcOpcode::FetchAdd);
        assert_eq!((end.words.word(0), ask(&mut other, "word 8192")), (word(9), word(9) + 5));
        assert_eq!(end.next(Duration::ZERO), None);
    }
}

#[test]
fn messages_are_echoed_quickly() {
    const ROUNDS: u32 = 2000;
    let (_scratch, end, mut other, _) = connected(2, false);
    ask(&mut other, &format!("echo {ROUNDS}"));
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        end.receive(2, INBOX, MESSAGE);
        end.post(1, SendOp::Send, &[end.sge(0, MESSAGE)]);
        while end.succeeded().opcode != WcOpcode::Recv {}
    }
    let each = begin.elapsed() / ROUNDS;
    assert!(each < Duration::from_millis(2), "{each:?} a round");
}

/// The peer does not exist: after eight timeouts of 67 ms there is an event, although no program polls.
#[test]
fn timers_and_events_need_no_poller() {
    let (_scratch, node) = Scratch::with_node(2);
    let end = End::new(open_device_of(&node, 1).expect("a device"), LEN).expect("an end");
    end.connect(&Card { qpn: 0x1_ff00, ..end.card() }, Patience::default()).expect("connected");
    end.drain();
    end.cq.arm(false);
    end.post(1, end.to_write(0), &[end.sge(0, 8)]);
    let begin = Instant::now();
    assert!(matches!(end.event(Duration::from_secs(5)), Some(driver::Event::Cq { .. })));
    assert!(begin.elapsed() > Duration::from_millis(300), "eight timeouts of 67 ms: {:?}", begin.elapsed());
    assert_eq!(end.wait().status, WcStatus::RetryExcErr);
}
