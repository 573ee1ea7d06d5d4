//! A typical verbs program in Rust: the bindings that rdma-sys generates from the installed headers, the stock libibverbs, and two devices
//! with a pair of RC QPs between them.
//!
//! `ironverbs-client-rdma-sys iron1 iron2` prints a line for each check that passes, then the bytes it moved; it exits with 1 at the first
//! check that fails.

mod side;

use rdma_sys::{ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};
use side::{LEN, Side, Try};
use std::process::ExitCode;

/// Message lengths: none, odd, one packet, one packet and a byte, many packets.
const LENGTHS: [usize; 5] = [0, 7, 1024, 1025, 65_549];
/// Offset of a message in the sender's memory, and in the receiver's.
const FROM: usize = 3;
const TO: usize = LEN / 2 + 5;
/// Immediate data.
const IMMEDIATE: u32 = 0x1234_5678;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [one, other] = &names[..] else {
        eprintln!("expected two names of devices");
        return ExitCode::FAILURE;
    };
    match run(one, other) {
        Ok(moved) => {
            println!("{moved} bytes");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("FAILED {why}");
            ExitCode::FAILURE
        }
    }
}

fn kept(promise: &str, holds: bool) -> Try<()> {
    if !holds {
        return Err(promise.into());
    }
    println!("{promise} ok");
    Ok(())
}

/// Returns bytes that no other message has.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// The bytes around a received message, which must stay unchanged.
const MARGIN: usize = 8;

/// Returns true if exactly `message` arrived at [`TO`].
fn arrived(at: &Side, message: &[u8]) -> bool {
    let found = at.bytes(TO - MARGIN, message.len() + 2 * MARGIN);
    let (before, rest) = found.split_at(MARGIN);
    let (body, behind) = rest.split_at(message.len());
    body == message && before.iter().chain(behind).all(|byte| *byte == 0)
}

fn run(one: &str, other: &str) -> Try<usize> {
    let (a, b) = (Side::open(one)?, Side::open(other)?);
    a.connect(&b)?;
    b.connect(&a)?;
    kept("two devices are open and a pair of queue pairs is ready to send", a.is_ready()? && b.is_ready()?)?;
    let moved = messages(&a, &b)?;
    atomics(&a, &b)?;
    errors(&a, &b)?;
    a.close()?;
    b.close()?;
    kept("all is given back", true)?;
    Ok(moved)
}

/// SEND, WRITE and READ of all lengths, one after the other.
fn messages(a: &Side, b: &Side) -> Try<usize> {
    let (mut moved, mut sends, mut writes, mut reads) = (0, true, true, true);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let message = pattern(3 * n, len);
        a.put(FROM, &message);
        b.clear();
        b.receive(1, TO, len)?;
        a.post(2, ibv_wr_opcode::IBV_WR_SEND, (FROM, len), None)?;
        let (sent, got) = (a.completion()?, b.completion()?);
        sends &= sent.wr_id == 2 && sent.opcode == ibv_wc_opcode::IBV_WC_SEND;
        sends &= got.wr_id == 1 && got.opcode == ibv_wc_opcode::IBV_WC_RECV && got.byte_len as usize == len;
        sends &= got.qp_num == b.qp_num() && sent.qp_num == a.qp_num() && arrived(b, &message);

        let message = pattern(3 * n + 1, len);
        a.put(FROM, &message);
        b.clear();
        a.post(3, ibv_wr_opcode::IBV_WR_RDMA_WRITE, (FROM, len), Some(b.place(TO)))?;
        let written = a.completion()?;
        writes &=
            written.wr_id == 3 && written.opcode == ibv_wc_opcode::IBV_WC_RDMA_WRITE && arrived(b, &message);

        let message = pattern(3 * n + 2, len);
        b.put(FROM, &message);
        a.clear();
        a.post(4, ibv_wr_opcode::IBV_WR_RDMA_READ, (TO, len), Some(b.place(FROM)))?;
        let read = a.completion()?;
        reads &= read.wr_id == 4 && read.opcode == ibv_wc_opcode::IBV_WC_RDMA_READ && arrived(a, &message);
        moved += 3 * len;
    }
    kept("SENDs arrive whole, in the receive that was posted, and nowhere else", sends)?;
    kept("WRITEs arrive whole and nowhere else", writes)?;
    kept("READs bring what is there and nothing else", reads)?;
    let message = pattern(100, 100);
    a.put(FROM, &message);
    b.clear();
    b.receive(5, 0, 0)?;
    a.post(6, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, (FROM, 100), Some(b.place(TO)))?;
    let (_, got) = (a.completion()?, b.completion()?);
    // SAFETY: both members are integers; this operation delivers immediate data.
    let immediate = unsafe { got.imm_data_invalidated_rkey_union.imm_data };
    let whole = got.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM && got.byte_len == 100;
    kept(
        "a WRITE with immediate data takes a receive",
        whole && immediate == IMMEDIATE.to_be() && arrived(b, &message),
    )?;
    Ok(moved + message.len())
}

/// Atomics on one word.
fn atomics(a: &Side, b: &Side) -> Try<()> {
    const AT: usize = 4096;
    let word = |side: &Side, at| u64::from_ne_bytes(side.bytes(at, 8).try_into().unwrap_or_default());
    b.put(AT, &40u64.to_ne_bytes());
    a.post_atomic(7, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 0, b.place(AT), (2, 0))?;
    let added = a.completion()?;
    kept(
        "FETCH_ADD adds once and brings what was there",
        added.wr_id == 7 && (word(a, 0), word(b, AT)) == (40, 42),
    )?;
    a.post_atomic(8, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 0, b.place(AT), (42, 99))?;
    a.completion()?;
    a.post_atomic(9, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 8, b.place(AT), (42, 1))?;
    a.completion()?;
    let kept_once = (word(a, 0), word(a, 8), word(b, AT)) == (42, 99, 99);
    kept("CMP_SWAP swaps what is equal and nothing else", kept_once)
}

/// Errors that break a connection.
fn errors(a: &Side, b: &Side) -> Try<()> {
    b.clear();
    let (address, key) = b.place(TO);
    a.put(FROM, &pattern(200, 64));
    a.post(10, ibv_wr_opcode::IBV_WR_RDMA_WRITE, (FROM, 64), Some((address, key ^ 0x100)))?;
    a.post(11, ibv_wr_opcode::IBV_WR_RDMA_WRITE, (FROM, 64), Some((address, key)))?;
    let (refused, flushed) = (a.any_completion()?, a.any_completion()?);
    let statuses = refused.status == ibv_wc_status::IBV_WC_REM_ACCESS_ERR
        && flushed.status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    kept(
        "a key that nobody gave is refused, and what follows is flushed",
        statuses && (refused.wr_id, flushed.wr_id) == (10, 11),
    )?;
    kept(
        "nothing of that was written, and the queue pair is in error",
        b.bytes(0, LEN).iter().all(|byte| *byte == 0) && a.has_failed()?,
    )
}
