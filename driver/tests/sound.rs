//! Programs without `unsafe` that name memory by addresses alone: the driver neither reads nor writes there.
#![forbid(unsafe_code)]

#[path = "../examples/ends/mod.rs"]
mod ends;

use ends::{End, Scratch, connected};
use ironverbs_driver::{
    Completion, RecvWr, SendFlags, SendOp, SendWr, Sge, Target, WcStatus, dma::DmaMem, transport::Scope,
};

fn two() -> (Scratch, [End; 2]) {
    let (scratch, devices) = Scratch::devices().expect("two devices");
    (scratch, connected(devices).expect("connected ends"))
}

#[test]
fn inline_data_come_from_a_slice_and_not_from_an_address() {
    let (_scratch, [a, b]) = two();
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let wild = [Sge { addr: 8, length: 8, lkey: 0 }];
    let error = a.qp.post_send([SendWr { wr_id: 1, op: SendOp::Send, sge: &wild, flags }]).unwrap_err();
    assert_eq!(error.errno, libc::EINVAL);
    let sge = [b.sge(0, 64)];
    b.qp.post_recv([RecvWr { wr_id: 2, sge: &sge }]).expect("a receive");
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
    a.qp.post_inline(wr, &Target::Peer, b"hello").expect("posted");
    assert_eq!(b.completion().expect("received").byte_len, 5);
    let mut found = [0; 5];
    b.memory.copy_out(0, &mut found);
    assert_eq!(&found, b"hello");
}

#[test]
fn a_receive_at_a_wild_address_ends_in_an_error() {
    let (_scratch, [a, b]) = two();
    let sge = [Sge { addr: 8, length: 64, lkey: b.mr.lkey() }];
    b.qp.post_recv([RecvWr { wr_id: 2, sge: &sge }]).expect("a receive");
    a.memory.copy_in(0, b"hello");
    a.post(1, SendOp::Send, a.sge(0, 5)).expect("posted");
    assert_eq!(b.completion().expect("a completion").status, WcStatus::LocProtErr);
}

#[test]
fn what_is_polled_after_its_memory_was_freed_touches_no_new_owner() {
    let (_scratch, [a, b]) = two();
    let End { qp, cq, mr, memory, device } = b;
    let sge = [Sge { addr: memory.iova(), length: 64, lkey: mr.lkey() }];
    qp.post_recv([RecvWr { wr_id: 2, sge: &sge }]).expect("a receive");
    a.memory.copy_in(0, b"hello");
    a.post(1, SendOp::Send, a.sge(0, 5)).expect("posted");
    assert_eq!(a.completion().expect("sent").status, WcStatus::Success);
    drop((mr, memory));
    let others: Vec<_> = (0..4)
        .map(|_| DmaMem::alloc(device.transport(), 4096, Scope::Opener).expect("memory"))
        .inspect(|other| other.copy_in(0, &[0xaa; 16]))
        .collect();
    assert_eq!(cq.poll(&mut [Completion::default()]), 1);
    for other in others {
        let mut found = [0; 16];
        other.copy_out(0, &mut found);
        assert_eq!(found, [0xaa; 16]);
    }
}
