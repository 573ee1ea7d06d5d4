//! A worker that keeps traffic flowing to a peer until the peer is gone: `flow DIR FID`.
//!
//! For every connection it prints `card ...`, reads the card of its peer, prints `connected`, reads `go`, prints `flowing` when data has
//! moved both ways, and at the end `failed STATUS`. It exits when its standard input ends.

use driver::{Completion, SendOp, Sge, WcOpcode, WcStatus};
use ironverbs_tests::{
    end::{Card, End, Patience, Words, queue_pair},
    program::{hear, say},
};
use std::{error::Error, path::PathBuf, sync::Arc};

/// Layout of the memory: outgoing data, data written by the peer, received messages.
const WRITTEN: usize = 128 << 10;
const INBOX: usize = 256 << 10;
const LEN: usize = 512 << 10;
/// Bytes of a message, and number of posted receives.
const MESSAGE: usize = 1024;
const RECEIVES: usize = 32;
/// Outstanding requests.
const DEPTH: u64 = 16;
/// A short timeout, about 8 x 8 ms, but longer than a busy machine preempts a program that holds a lock.
const PATIENCE: Patience = Patience { timeout: 11, retry_cnt: 7 };

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: flow DIR FID";
    let dir = PathBuf::from(args.next().ok_or(usage)?);
    let fid: u8 = args.next().ok_or(usage)?.parse()?;
    let device = node::open_device(&dir, fid)?;
    let mut end = End::new(device, LEN)?;
    loop {
        say(format!("card {}", end.card()));
        let Some(line) = hear() else { return Ok(()) };
        let peer: Card = line.parse()?;
        end.connect(&peer, PATIENCE)?;
        say("connected");
        // The peer must be ready to receive before our timeout starts.
        let Some(_) = hear() else { return Ok(()) };
        let failure = flow(&end, &peer)?;
        say(format!("failed {failure:?}"));
        // A new QP for the next peer; the old one is destroyed together with its remaining completions in the CQ.
        let old = std::mem::replace(&mut end.qp, queue_pair(&end.pd, &end.cq)?);
        old.destroy()?;
    }
}

/// Keeps WRITEs, READs and SENDs outstanding until one fails, and checks the data that arrives.
fn flow(end: &End, peer: &Card) -> Result<WcStatus, Box<dyn Error>> {
    let qpn = end.qp.qpn();
    for i in 0..RECEIVES {
        end.receive(i as u64, INBOX + i * MESSAGE, MESSAGE);
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
                end.receive(wc.wr_id, at, MESSAGE);
            } else {
                done += 1;
            }
        }
        if !said && done > 2 * DEPTH && received > 2 {
            said = true;
            say("flowing");
        }
        if n == 0 {
            std::thread::yield_now();
        }
    }
}

/// Posts request `number`, with every kind and many sizes in turn. A SEND carries one word, repeated.
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
            end.post(number, SendOp::Send, &sge([MESSAGE, 64][number as usize % 2]));
        }
        2 => end.post(number, SendOp::Write { raddr, rkey }, &[end.sge(0, 65536)]),
        _ => end.post(number, SendOp::Read { raddr, rkey }, &[end.sge(at + 1024, 3000)]),
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
