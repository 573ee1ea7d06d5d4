//! Code shared by the tests.

pub use devmodel::Config;
use hwspec::wire::{NakCode, Syndrome};
pub use hwspec::{
    context::{AccessMode, QpState, mkey::MkeyContext},
    cqe::{CqeOpcode, CqeSyndrome},
    eqe::EventType,
    wire::BthOpcode,
    wqe::MkeyMask,
};
pub use ironverbs_tests::bed::*;

/// ACK.
pub const ACK: Syndrome = Syndrome::ACK;
/// NAK 0x60.
pub const NAK_SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequence);
/// NAK 0x61.
pub const NAK_INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
/// NAK 0x62.
pub const NAK_ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccess);
/// NAK 0x63.
pub const NAK_OPERATION: Syndrome = Syndrome::Nak(NakCode::RemoteOperational);

/// Raw value of `check_free`.
pub const MUST_BE_FREE: u8 = 1;

/// A path MTU small enough for messages of many packets.
pub const MTU: usize = 256;

/// The default path with that MTU.
pub fn path() -> Path {
    Path { mtu: MTU as u32, ..Path::default() }
}

/// Returns a QP of function 1 that is connected to a foreign peer on that path, with `len` bytes of memory and no unread events.
pub fn foreign(len: usize, access: Access) -> (Bed, Peer, Mr) {
    foreign_by(path(), len, access)
}

/// Like [`foreign`], on another path.
pub fn foreign_by(path: Path, len: usize, access: Access) -> (Bed, Peer, Mr) {
    foreign_on(Config::default(), path, len, access)
}

/// Like [`foreign_by`], with an adapter configuration.
pub fn foreign_on(config: Config, path: Path, len: usize, access: Access) -> (Bed, Peer, Mr) {
    let mut bed = Bed::new(config);
    let peer = bed.foreign(1, path);
    let mr = bed.mr(1, len, access);
    bed.events(1);
    (bed, peer, mr)
}

/// Like [`foreign`], with an adapter configuration and four posted receives, so that a request that must be refused finds everything that a
/// good one needs.
pub fn judged(config: Config, len: usize) -> (Bed, Peer, Mr) {
    let (mut bed, peer, mr) = foreign_on(config, path(), len, Access::ALL);
    bed.post_recvs(peer.qp, 4, &[mr.sge()]);
    (bed, peer, mr)
}

/// Returns connected QPs of functions 1 and 2, with `len` bytes of memory each: the first has only local access, which a requester needs;
/// the second has full access.
pub fn ends(len: usize) -> (Bed, [Qp; 2], [Mr; 2]) {
    ends_on(path(), len)
}

/// Like [`ends`], on another path.
pub fn ends_on(path: Path, len: usize) -> (Bed, [Qp; 2], [Mr; 2]) {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(path);
    let mrs = [bed.mr(1, len, Access::LOCAL), bed.mr(2, len, Access::ALL)];
    (bed, [a, b], mrs)
}

/// Builds a message as a foreign requester sends it: opcodes by position, `payload` split by the path MTU.
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
const WRITE: [BthOpcode; 4] =
    [BthOpcode::RcWriteFirst, BthOpcode::RcWriteMiddle, BthOpcode::RcWriteLast, BthOpcode::RcWriteOnly];

/// Opcodes of a WRITE with immediate data by position.
const WRITE_IMM: [BthOpcode; 4] =
    [BthOpcode::RcWriteFirst, BthOpcode::RcWriteMiddle, BthOpcode::RcWriteLastImm, BthOpcode::RcWriteOnlyImm];

/// Builds a WRITE to the start of `to`.
pub fn write_message(to: Mr, psn: u32, payload: &[u8]) -> Vec<Pkt> {
    written(WRITE, to, psn, payload)
}

/// Builds a WRITE with immediate data `imm`.
pub fn write_imm_message(to: Mr, psn: u32, payload: &[u8], imm: u32) -> Vec<Pkt> {
    let mut packets = written(WRITE_IMM, to, psn, payload);
    let last = packets.pop().map(|last| last.imm(imm));
    packets.extend(last);
    packets
}

fn written(opcodes: [BthOpcode; 4], to: Mr, psn: u32, payload: &[u8]) -> Vec<Pkt> {
    let mut packets = message(opcodes, psn, payload);
    packets[0] = packets[0].clone().reth(to.va, to.key, payload.len() as u32);
    packets
}

/// Builds a WRITE of eight bytes to the start of `to`.
pub fn write_of(to: Mr, psn: u32, byte: u8) -> Pkt {
    Pkt::new(BthOpcode::RcWriteOnly, psn).reth(to.va, to.key, 8).payload(&[byte; 8]).ack_req()
}

/// Builds a request to READ `len` bytes from byte `at` of `from`.
pub fn read_of(from: Mr, psn: u32, at: usize, len: usize) -> Pkt {
    Pkt::new(BthOpcode::RcReadRequest, psn).reth(from.va + at as u64, from.key, len as u32)
}

/// Builds a READ response with an AETH and a full payload.
pub fn read_response(opcode: BthOpcode, psn: u32, byte: u8) -> Pkt {
    Pkt::new(opcode, psn).aeth(ACK, 1).payload(&[byte; MTU])
}

/// Returns the number of completion events that function `fid` received since the last call.
pub fn completion_events(bed: &mut Bed, fid: u8) -> usize {
    bed.events(fid).iter().filter(|e| e.event_type() == EventType::Comp).count()
}

/// Returns (opcode, PSN) of frames.
pub fn brief(frames: &[Captured]) -> Vec<(BthOpcode, u32)> {
    frames.iter().map(|f| (f.opcode(), f.psn())).collect()
}

/// Returns the only acknowledgement among `answers`: syndrome, PSN, MSN. Fails on any other answer.
#[track_caller]
pub fn acknowledgement(answers: &[Captured]) -> (Syndrome, u32, u32) {
    assert_eq!(brief(answers).len(), 1, "answers: {:?}", brief(answers));
    let frame = &answers[0];
    assert_eq!(frame.opcode(), BthOpcode::RcAck, "answers: {:?}", brief(answers));
    (frame.syndrome().expect("an AETH"), frame.psn(), frame.msn().expect("an AETH"))
}

/// Builds an ACK of a foreign responder.
pub fn ack(psn: u32, msn: u32) -> Pkt {
    Pkt::new(BthOpcode::RcAck, psn).aeth(ACK, msn)
}

/// Builds a NAK of a foreign responder.
pub fn nak(syndrome: Syndrome, psn: u32, msn: u32) -> Pkt {
    Pkt::new(BthOpcode::RcAck, psn).aeth(syndrome, msn)
}

/// A WRITE of `sge` to memory of a foreign peer.
pub fn write_to_peer(sge: Sge) -> Wr {
    Wr::new(Op::Write { va: 0x10_0000, rkey: 0x1234 }, &[sge])
}

/// A READ of memory of a foreign peer.
pub fn read_from_peer(sge: Sge) -> Wr {
    Wr::new(Op::Read { va: 0x10_0000, rkey: 0x1234 }, &[sge])
}

/// A FETCH_ADD on memory of a foreign peer.
pub fn fetch_add_at_peer(sge: Sge, add: u64) -> Wr {
    Wr::new(Op::FetchAdd { va: 0x10_0000, rkey: 0x1234, add }, &[sge])
}

/// Returns the ACK timeout of exponent `t` in picoseconds.
pub fn timeout(t: u8) -> u64 {
    (4096 * NS) << t
}

/// Checks that the QP failed as the table requires of a responder after a bad request: in ERR, with an event of `kind`.
#[track_caller]
pub fn assert_responder_failed(bed: &mut Bed, qp: Qp, kind: EventType) {
    assert_eq!(bed.qp_state(qp), QpState::Err);
    let events = bed.events(qp.fid);
    assert_eq!(Bed::qp_events(&events, qp, kind), 1, "events: {events:?}");
}

/// Checks the requester's completion after `syndrome` from its peer.
#[track_caller]
pub fn assert_requester_failed(bed: &mut Bed, qp: Qp, error: CqeSyndrome) -> Wc {
    let wc = bed.one(qp.send_cq);
    assert_eq!((wc.opcode, wc.error), (CqeOpcode::ReqErr, Some(error)));
    assert_eq!(bed.qp_state(qp), QpState::Err);
    wc
}
