//! A worker that keeps traffic flowing to a peer until the peer is gone: `flow DIR FID`.
//!
//! For every connection it says `card ...`, reads the card of its peer, says `connected`, reads `go`, says `flowing`
//! when data have gone both ways, and at the end `failed STATUS`. It ends with its standard input.

use driver::{Completion, SendOp, Sge, WcOpcode, WcStatus};
use ironverbs_tests::end::{Card, End, Patience, Words, queue_pair};
use std::{error::Error, io::Write, path::PathBuf, sync::Arc};

/// Layout of the memory: what is sent, where the peer writes, where messages arrive.
const WRITTEN: usize = 128 << 10;
const INBOX: usize = 256 << 10;
const LEN: usize = 512 << 10;
/// Bytes of a message, and messages received at once.
const MESSAGE: usize = 1024;
const RECEIVES: usize = 32;
/// Requests under way.
const DEPTH: u64 = 16;
/// A short patience, 8 x 8 ms or so, but longer than a busy machine keeps a program that holds a lock from running.
const PATIENCE: Patience = Patience { timeout: 11, retry_cnt: 7 };

fn say(line: impl std::fmt::Display) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn hear() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).ok()? > 0).then(|| line.trim().to_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: flow DIR FID";
    let dir = PathBuf::from(args.next().ok_or(usage)?);
    let fid: u8 = args.next().ok_or(usage)?.parse()?;
    let device = node::open_device(&dir, fid)?;
    let mut end = End::new(device, LEN)?;
    loop {
        say(format!("card {}", end.card()?))?;
        let Some(line) = hear() else { return Ok(()) };
        let peer: Card = line.parse()?;
        end.connect(&peer, PATIENCE)?;
        say("connected")?;
        // The peer must be ready to receive before our patience begins to run.
        let Some(_) = hear() else { return Ok(()) };
        let failure = flow(&end, &peer)?;
        say(format!("failed {failure:?}"))?;
        // A new QP for the next peer; the old one goes, with whatever is left of it in the CQ.
        let old = std::mem::replace(&mut end.qp, queue_pair(&end.pd, &end.cq)?);
        old.destroy()?;
    }
}

/// Keeps WRITEs, READs and SENDs under way until one fails; checks what arrives.
fn flow(end: &End, peer: &Card) -> Result<WcStatus, Box<dyn Error>> {
    let qpn = end.qp.qpn();
    for i in 0..RECEIVES {
        end.receive(i as u64, INBOX + i * MESSAGE, MESSAGE)?;
    }
    let (mut posted, mut done, mut received) = (0u64, 0u64, 0u64);
    let mut out = [Completion::default(); 32];
    let mut said = false;
    loop {
        while posted - done < DEPTH {
            post(end, peer, posted)?;
            posted += 1;
        }
        let n = end.cq.poll(&mut out);
        for wc in out[..n].iter().filter(|wc| wc.qpn == qpn) {
            if wc.status != WcStatus::Success {
                return Ok(wc.status);
            }
            if wc.opcode == WcOpcode::Recv {
                received += 1;
                let at = INBOX + wc.wr_id as usize * MESSAGE;
                check(&end.words, at, wc.byte_len as usize)?;
                end.receive(wc.wr_id, at, MESSAGE)?;
            } else {
                done += 1;
            }
        }
        if !said && done > 2 * DEPTH && received > 2 {
            said = true;
            say("flowing")?;
        }
        if n == 0 {
            std::thread::yield_now();
        }
    }
}

/// Request `number`: of every kind and many sizes in turn. A SEND carries one word, repeated.
fn post(end: &End, peer: &Card, number: u64) -> Result<(), Box<dyn Error>> {
    let slot = number % DEPTH;
    let at = slot as usize * 4096;
    let sge = |len| -> [Sge; 1] { [end.sge(at, len)] };
    let raddr = peer.addr + (WRITTEN + at) as u64;
    let rkey = peer.rkey;
    match number % 4 {
        0 | 1 => {
            for i in (0..MESSAGE).step_by(8) {
                end.words.set_word(at + i, number);
            }
            end.post(number, SendOp::Send, &sge([MESSAGE, 64][number as usize % 2]))?;
        }
        2 => end.post(number, SendOp::Write { raddr, rkey }, &[end.sge(0, 65536)])?,
        _ => end.post(number, SendOp::Read { raddr, rkey }, &[end.sge(at + 1024, 3000)])?,
    }
    Ok(())
}

fn check(words: &Arc<Words>, at: usize, len: usize) -> Result<(), String> {
    let first = words.word(at);
    match (8..len).step_by(8).map(|i| words.word(at + i)).find(|word| *word != first) {
        None => Ok(()),
        Some(other) => Err(format!("a message of {len} bytes: expected {first} throughout, found {other}")),
    }
}
