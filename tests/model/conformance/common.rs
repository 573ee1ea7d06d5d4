//! The code that the tests share.

pub use devmodel::Config;
use hwspec::wire::{NakCode, Syndrome};
pub use hwspec::{
    context::QpState,
    cqe::{CqeOpcode, CqeSyndrome},
    eqe::EventType,
    wire::BthOpcode,
};
pub use ironverbs_tests::bed::*;

/// The syndromes of the table.
pub const ACK: Syndrome = Syndrome::ACK;
/// NAK 0x60.
pub const NAK_SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequence);
/// NAK 0x61.
pub const NAK_INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
/// NAK 0x62.
pub const NAK_ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccess);
/// NAK 0x63.
pub const NAK_OPERATION: Syndrome = Syndrome::Nak(NakCode::RemoteOperational);

/// A path MTU small enough for messages of many packets.
pub const MTU: usize = 256;

/// The default path with that MTU.
pub fn path() -> Path {
    Path { mtu: MTU as u32, ..Path::default() }
}

/// A QP of function 1 with a foreign peer on that path, `len` bytes of its memory, and no event unread.
pub fn foreign(len: usize, access: Access) -> (Bed, Peer, Mr) {
    foreign_on(Config::default(), len, access)
}

/// As [`foreign`], on an adapter of that configuration.
fn foreign_on(config: Config, len: usize, access: Access) -> (Bed, Peer, Mr) {
    let mut bed = Bed::new(config);
    let peer = bed.foreign(1, path());
    let mr = bed.mr(1, len, access);
    bed.events(1);
    (bed, peer, mr)
}

/// As [`foreign`], on an adapter of that configuration and with four receives posted, so that a request that is to be
/// refused finds all that a good one needs.
pub fn judged(config: Config, len: usize) -> (Bed, Peer, Mr) {
    let (mut bed, peer, mr) = foreign_on(config, len, Access::ALL);
    for _ in 0..4 {
        bed.post_recv(peer.qp, &[mr.sge()]);
    }
    (bed, peer, mr)
}

/// QPs of functions 1 and 2 that are each other's peer, and `len` bytes of memory of each: the first has the local rights
/// alone, as a requester needs, the second has all.
pub fn ends(len: usize) -> (Bed, [Qp; 2], [Mr; 2]) {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(path());
    let mrs = [bed.mr(1, len, Access::LOCAL), bed.mr(2, len, Access::ALL)];
    (bed, [a, b], mrs)
}

/// A message as a foreign requester sends it: the opcodes by position, `payload` cut by the path MTU.
pub fn message(first: [BthOpcode; 4], psn: u32, payload: &[u8]) -> Vec<Pkt> {
    let [first, middle, last, only] = first;
    let chunks: Vec<&[u8]> = if payload.is_empty() { vec![&[]] } else { payload.chunks(MTU).collect() };
    let n = chunks.len();
    chunks
        .into_iter()
        .enumerate()
        .map(|(i, chunk)| {
            let opcode = match i {
                _ if n == 1 => only,
                0 => first,
                i if i + 1 == n => last,
                _ => middle,
            };
            let pkt = Pkt::new(opcode, psn + i as u32).payload(chunk);
            if i + 1 == n { pkt.ack_req() } else { pkt }
        })
        .collect()
}

/// Opcodes of a SEND by position.
pub const SEND: [BthOpcode; 4] =
    [BthOpcode::RcSendFirst, BthOpcode::RcSendMiddle, BthOpcode::RcSendLast, BthOpcode::RcSendOnly];
/// Opcodes of a WRITE by position.
pub const WRITE: [BthOpcode; 4] =
    [BthOpcode::RcWriteFirst, BthOpcode::RcWriteMiddle, BthOpcode::RcWriteLast, BthOpcode::RcWriteOnly];

/// (opcode, PSN) of frames.
pub fn brief(frames: &[Captured]) -> Vec<(BthOpcode, u32)> {
    frames.iter().map(|f| (f.opcode(), f.psn())).collect()
}

/// The one acknowledgement among `answers`: syndrome, PSN, MSN. A test that expects one fails on any other answer.
#[track_caller]
pub fn acknowledgement(answers: &[Captured]) -> (Syndrome, u32, u32) {
    assert_eq!(brief(answers).len(), 1, "answers: {:?}", brief(answers));
    let frame = &answers[0];
    assert_eq!(frame.opcode(), BthOpcode::RcAck, "answers: {:?}", brief(answers));
    (frame.syndrome().expect("an AETH"), frame.psn(), frame.msn().expect("an AETH"))
}

/// An acknowledge packet of a foreign responder.
pub fn ack(psn: u32, msn: u32) -> Pkt {
    Pkt::new(BthOpcode::RcAck, psn).aeth(ACK, msn)
}

/// A negative acknowledge of a foreign responder.
pub fn nak(syndrome: Syndrome, psn: u32, msn: u32) -> Pkt {
    Pkt::new(BthOpcode::RcAck, psn).aeth(syndrome, msn)
}

/// A WRITE of `sge` to memory that only a foreign peer has.
pub fn write_to_peer(sge: Sge) -> Wr {
    Wr::new(Op::Write { va: 0x10_0000, rkey: 0x1234 }, &[sge])
}

/// A READ of memory that only a foreign peer has.
pub fn read_from_peer(sge: Sge) -> Wr {
    Wr::new(Op::Read { va: 0x10_0000, rkey: 0x1234 }, &[sge])
}

/// A FETCH_ADD on memory that only a foreign peer has.
pub fn fetch_add_at_peer(sge: Sge, add: u64) -> Wr {
    Wr::new(Op::FetchAdd { va: 0x10_0000, rkey: 0x1234, add }, &[sge])
}

/// The acknowledgement timeout of exponent `t`, in picoseconds.
pub fn timeout(t: u8) -> u64 {
    (4096 * NS) << t
}

/// The QP failed as the table says of a responder that met a bad request: in ERR, with an event of `kind`.
#[track_caller]
pub fn assert_responder_failed(bed: &mut Bed, qp: Qp, kind: EventType) {
    assert_eq!(bed.qp_state(qp), QpState::Err);
    let events = bed.events(qp.fid);
    assert_eq!(Bed::qp_events(&events, qp, kind), 1, "events: {events:?}");
}

/// The requester's completion after `syndrome` from its peer.
#[track_caller]
pub fn assert_requester_failed(bed: &mut Bed, qp: Qp, error: CqeSyndrome) -> Wc {
    let wc = bed.one(qp.send_cq);
    assert_eq!((wc.opcode, wc.error), (CqeOpcode::ReqErr, Some(error)));
    assert_eq!(bed.qp_state(qp), QpState::Err);
    wc
}
