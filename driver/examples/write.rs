//! RDMA WRITE: one end writes to the memory of the other, without any action of its program.
//!
//! `cargo run --release -p ironverbs-driver --example write`

mod ends;

use ends::{Outcome, Scratch, connected};
use ironverbs_driver::{SendOp, WcStatus};

const TEXT: &[u8] = b"written from afar";
/// Offset in the peer's memory.
const THERE: u64 = 1024;

fn main() -> Outcome {
    let (_scratch, devices) = Scratch::devices()?;
    let [writer, owner] = connected(devices)?;

    // The writer needs the address and rkey of the memory. Programs exchange them the same way as queue pair numbers.
    let (raddr, rkey) = (owner.memory.iova() + THERE, owner.mr.rkey());
    writer.memory.copy_in(0, TEXT);
    writer.post(1, SendOp::Write { raddr, rkey }, writer.sge(0, TEXT.len() as u32))?;

    // The writer gets a completion. The peer gets none, since it has posted nothing.
    let wc = writer.completion()?;
    if wc.status != WcStatus::Success {
        return Err(format!("the WRITE ended with {:?}", wc.status).into());
    }
    let mut found = vec![0; TEXT.len()];
    owner.memory.copy_out(THERE as usize, &mut found);
    println!("in the peer's memory: {}", String::from_utf8_lossy(&found));

    // The write ends one byte past the region: the responder refuses it, and both queue pairs go to the error state.
    let raddr = owner.memory.iova() + owner.memory.len() as u64;
    writer.post(2, SendOp::Write { raddr, rkey }, writer.sge(0, 1))?;
    let wc = writer.completion()?;
    println!("past its end: {:?}, and the queue pair is in {:?}", wc.status, writer.qp.query()?.qp_state);
    Ok(())
}
