//! SEND and receive: a message goes back and forth between two virtual functions of a node.
//!
//! `cargo run --release -p ironverbs-driver --example pingpong`

mod ends;

use ends::{End, Outcome, Scratch, connected};
use ironverbs_driver::{RecvWr, SendOp, WcOpcode, WcStatus};
use std::time::Instant;

const ROUNDS: u32 = 1000;
const MESSAGE: &[u8] = b"ping 0000";
/// Offsets in an end's memory: the message to send, and the receive buffer.
const OUT: u64 = 0;
const IN: u64 = 2048;

fn main() -> Outcome {
    let (_scratch, devices) = Scratch::devices()?;
    let [client, server] = connected(devices)?;

    let begin = Instant::now();
    for round in 0..ROUNDS {
        let text = format!("ping {round:04}");
        // Post the receive before its message can arrive. Otherwise the sender gets an RNR NAK and retries after a
        // delay.
        receive(&server)?;
        receive(&client)?;
        send(&client, text.as_bytes())?;

        let heard = hear(&server)?;
        send(&server, &heard)?;
        let echo = hear(&client)?;
        if echo != text.as_bytes() {
            return Err(format!("sent {text:?}, heard {:?}", String::from_utf8_lossy(&echo)).into());
        }
    }
    let each = begin.elapsed() / ROUNDS;
    println!("{ROUNDS} messages of {} bytes went to and fro, {each:?} each", MESSAGE.len());
    Ok(())
}

/// Posts a receive for the next message.
fn receive(end: &End) -> Outcome {
    let sge = [end.sge(IN, MESSAGE.len() as u32)];
    Ok(end.qp.post_recv([RecvWr { wr_id: IN, sge: &sge }])?)
}

/// Sends `text`. The memory belongs to the device until the request completes.
fn send(end: &End, text: &[u8]) -> Outcome {
    end.memory.copy_in(OUT as usize, text);
    end.post(OUT, SendOp::Send, end.sge(OUT, text.len() as u32))
}

/// Waits for a message. Sends and receives share a completion queue here, so the completion of a send may come first.
fn hear(end: &End) -> Outcome<Vec<u8>> {
    loop {
        let wc = end.completion()?;
        if wc.status != WcStatus::Success {
            return Err(format!("work request {} ended with {:?}", wc.wr_id, wc.status).into());
        }
        if wc.opcode == WcOpcode::Recv {
            let mut text = vec![0; wc.byte_len as usize];
            end.memory.copy_out(IN as usize, &mut text);
            return Ok(text);
        }
    }
}
