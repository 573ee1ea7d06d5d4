//! Execution context of a stage: host, time, outputs.

use super::header_cache::{HeaderTemplate, TEMPLATES};
use crate::{
    config::Config,
    host::{Abort, Host, Iova, Move, Party, Rid, Source},
    region::{Memic, Piece, Region, memic},
    transport::Dcqcn,
};
use hwspec::{
    cmd::queue::CmdQueueEntry,
    handle::Psn,
    wqe::{MAX_WQE_BBS, WQE_BB},
};

/// A frame to be sent on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Bytes of `headers` in use: from Ethernet to the last extension header.
    pub header_len: u16,
    /// Number of packets that it represents. More than one form a train: full MIDDLEs of one message with consecutive PSNs, none of
    /// them with AckReq set. Their headers are those of the first except for the PSN, and the payload, by reference, is that of all.
    pub packets: u16,
    /// Headers.
    pub headers: [u8; 128],
    /// The payload after the headers.
    pub payload: Payload,
}

impl Frame {
    /// Creates a frame of one packet without headers.
    pub(crate) fn new(payload: Payload) -> Self {
        Self { header_len: 0, packets: 1, headers: [0; 128], payload }
    }

    /// The headers in use.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        &self.headers[..usize::from(self.header_len)]
    }

    /// Sets a payload by reference.
    #[inline(never)]
    pub(crate) fn refer(&mut self, payload: &Payload) {
        self.payload = *payload;
    }

    /// The packets of a train, each as its own frame.
    pub(crate) fn of_train(&self) -> impl Iterator<Item = Self> + '_ {
        let len = (self.payload.len() / usize::from(self.packets.max(1))) as u32;
        (0..u32::from(self.packets)).map(move |i| {
            let mut one = *self;
            one.packets = 1;
            one.payload = self.payload.part(i * len, len);
            // The BTH is the last header of a MIDDLE, and ends with the PSN.
            let end = usize::from(self.header_len);
            if let Some(psn) = one.headers.get_mut(..end).and_then(|headers| headers.last_chunk_mut()) {
                *psn = Psn::new(u32::from_be_bytes(*psn)).add(i).get().to_be_bytes();
            }
            one
        })
    }
}

/// Calls `each` with a single-packet frame for every packet in `frames`.
#[inline(always)]
pub(crate) fn singly(frames: &[Frame], mut each: impl FnMut(&Frame)) {
    for frame in frames {
        match frame.packets {
            0 | 1 => each(frame),
            _ => frame.of_train().for_each(|one| each(&one)),
        }
    }
}

/// Output frames of a step. Their memory is reused by the next step, because a frame is large.
#[derive(Default)]
pub(crate) struct Outbox {
    places: Vec<Frame>,
    len: usize,
    /// Packets of trains in addition to one per frame.
    behind: usize,
}

impl Outbox {
    fn with_capacity(frames: usize) -> Self {
        Self { places: Vec::with_capacity(frames), len: 0, behind: 0 }
    }

    /// Space for one more frame; it contains an old frame.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut Frame {
        if self.len == self.places.len() {
            self.grow();
        }
        &mut self.places[self.len]
    }

    #[cold]
    fn grow(&mut self) {
        self.places.push(Frame::new(Payload::Empty));
    }

    /// Number of frames.
    // Does not use the slice, to avoid its bounds check.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the frame that was built in [`room`](Self::room).
    #[inline]
    pub(crate) fn add(&mut self) {
        self.len = (self.len + 1).min(self.places.len());
    }

    pub(crate) fn push(&mut self, frame: Frame) {
        self.behind += usize::from(frame.packets.max(1)) - 1;
        *self.room() = frame;
        self.add();
    }

    /// Number of packets that the frames represent.
    #[inline(always)]
    pub(crate) fn packets(&self) -> usize {
        self.len + self.behind
    }

    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.behind = self.iter().map(|frame| usize::from(frame.packets.max(1)) - 1).sum();
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.len, self.behind) = (0, 0);
    }
}

impl std::ops::Deref for Outbox {
    type Target = [Frame];

    #[inline]
    fn deref(&self) -> &[Frame] {
        &self.places[..self.len]
    }
}

/// Payload of an outgoing frame.
#[derive(Clone, Copy, Debug)]
pub enum Payload {
    /// None.
    Empty,
    /// In the step's staging buffer: offset and length.
    Staged(u32, u32),
    /// In the sender's memory: number of pieces, and the pieces.
    Pieces(u8, [Piece; 4]),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Staged(_, len) => *len as usize,
            Self::Pieces(n, pieces) => Piece::sum(&pieces[..*n as usize]),
        }
    }
    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `len` bytes from `skip` on, of a payload by reference.
    pub(crate) fn part(&self, skip: u32, len: u32) -> Self {
        let Self::Pieces(n, pieces) = self else { return *self };
        let (mut skip, mut left, mut count, mut part) = (skip, len, 0, [Piece::default(); 4]);
        for piece in &pieces[..usize::from(*n)] {
            let here = piece.len.saturating_sub(skip).min(left);
            if here > 0 {
                part[usize::from(count)] =
                    Piece { at: piece.at.wrapping_add(skip.into()), len: here, reserved: 0 };
                count += 1;
            }
            (skip, left) = (skip.saturating_sub(piece.len), left - here);
        }
        Self::Pieces(count, part)
    }
}

/// The pending completion of an executed command: its entry is still to be returned to the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandCompletion {
    pub slot: u32,
    pub at: Iova,
    pub entry: CmdQueueEntry,
    /// True if a command event queue existed when the command started.
    pub event: bool,
    /// Number of resets of the function at that time.
    pub resets: u32,
}

/// Buffers of a step, reused by the next step so that the data path allocates no memory.
pub(crate) struct Buffers {
    pub(crate) out: Outbox,
    /// Cached headers of recently used queue pairs.
    pub(crate) templates: [Option<HeaderTemplate>; TEMPLATES],
    pub(crate) moves: Vec<Move>,
    pub(crate) staged: Vec<u8>,
    /// The current send WQE.
    pub(crate) wqe: [u8; MAX_WQE_BBS * WQE_BB],
    /// The current receive WQE.
    pub(crate) receive: Vec<u8>,
    /// The current pieces.
    pub(crate) pieces: Vec<Piece>,
    /// Completions of executed commands that wait until transfers in flight have ended.
    pub(crate) held: Vec<CommandCompletion>,
    /// Raw frames, stored as bytes in `staged`: offset and length.
    pub(crate) raw: Vec<(u32, u32)>,
    /// Notes: the function that is told, and the vport that it is told about.
    pub(crate) notes: Vec<(u8, u8)>,
    /// Numbers of frames, staged bytes, raw frames and notes of committed jobs.
    committed: [usize; 4],
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            out: Outbox::with_capacity(256),
            templates: [const { None }; TEMPLATES],
            moves: Vec::with_capacity(1024),
            staged: Vec::with_capacity(64 << 10),
            wqe: [0; MAX_WQE_BBS * WQE_BB],
            receive: Vec::with_capacity(2048),
            pieces: Vec::with_capacity(256),
            held: Vec::new(),
            raw: Vec::with_capacity(64),
            notes: Vec::new(),
            committed: [0; 4],
        }
    }
}

impl Buffers {
    /// Keeps the output of the jobs so far, even if the next job is rolled back.
    pub(crate) fn committed(&mut self) {
        self.committed = [self.out.len(), self.staged.len(), self.raw.len(), self.notes.len()];
    }

    /// Discards the output of the jobs since the last commit.
    pub(crate) fn rollback(&mut self) {
        self.moves.clear();
        let [out, staged, raw, notes] = self.committed;
        self.out.truncate(out);
        self.staged.truncate(staged);
        self.raw.truncate(raw);
        self.notes.truncate(notes);
    }

    /// Total size in bytes of the frames waiting for delivery.
    pub(crate) fn bytes(&self) -> u64 {
        let frames = self.out.iter().map(|frame| frame.header_len as u64 + frame.payload.len() as u64);
        frames.sum::<u64>() + self.raw.iter().map(|(_, len)| u64::from(*len)).sum::<u64>()
    }

    /// Prepares for the next step after all frames were delivered.
    pub(crate) fn delivered(&mut self) {
        self.out.clear();
        self.staged.clear();
        self.raw.clear();
        self.notes.clear();
        self.committed = [0; 4];
    }
}

/// Execution context of a stage: host, time, outputs.
pub struct Step<'a> {
    /// The machine around the chip.
    pub host: &'a mut dyn Host,
    /// The time, in picoseconds of the runner's clock.
    pub now: u64,
    /// The adapter's memory.
    pub(crate) region: &'a Region,
    /// The adapter's behaviour.
    pub config: &'a Config,
    /// Makes each copy at once, so that a refusal is known where it happens. Otherwise copies are gathered and made before the step
    /// commits; if one is refused, the step is rolled back and repeated this way.
    pub(crate) careful: bool,
    /// A gathered copy was refused: the step will be rolled back.
    pub(crate) refused: bool,
    /// Set by a stage that must not continue before the frames sent so far have been delivered.
    pub yielded: bool,
    /// Set with [`yielded`](Self::yielded) if only a link that takes frames can let the work continue.
    pub paused: bool,
    /// Set by a stage with effects that the next job must see: commit after this job.
    pub settle: bool,
    /// Set by a stage that needs memory only this party can reach: the job is discarded and the party is woken.
    pub blocked: Option<Party>,
    /// The runner has more frames for this function.
    pub(crate) more_inline: bool,
    /// The send counter of the doorbell record at the time of the doorbell, if known. In virtual time a program may have written a
    /// later value, which the device must not see yet.
    pub(crate) posted: Option<u16>,
    /// Number of packets that a queue pair may send in its turn.
    pub(crate) quantum: u32,
    /// Requests wait for their queue pair's turn, regardless of the job.
    pub(crate) takes_turns: bool,
    /// Set when this step read payload from memory.
    pub(crate) reads: bool,
    /// A frame may represent a train of packets: the wire is not observed, and all packets are treated alike.
    pub(crate) trains: bool,
    pub(crate) buffers: &'a mut Buffers,
    /// Parameters of congestion control, once a job has requested them.
    dcqcn: Option<Dcqcn>,
}

impl<'a> Step<'a> {
    /// Creates a step with gathered copies.
    #[inline(always)]
    pub(crate) fn new(
        host: &'a mut dyn Host,
        now: u64,
        (region, config): (&'a Region, &'a Config),
        buffers: &'a mut Buffers,
    ) -> Self {
        Self {
            host,
            now,
            posted: None,
            quantum: u32::MAX,
            takes_turns: false,
            region,
            config,
            careful: false,
            refused: false,
            yielded: false,
            paused: false,
            settle: false,
            blocked: None,
            more_inline: false,
            reads: false,
            trains: false,
            buffers,
            dcqcn: None,
        }
    }
}

impl Step<'_> {
    /// Starts another job: resets the flags that a stage sets for one job.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        (self.refused, self.yielded, self.paused, self.settle) = (false, false, false, false);
        (self.blocked, self.more_inline, self.reads) = (None, false, false);
        self.dcqcn = None;
    }

    /// True if the memory of `party` can be reached. If not, the job is discarded and the party is woken.
    #[inline(always)]
    pub(crate) fn reaches(&mut self, party: u16) -> bool {
        let party = Party(party);
        let reached = self.host.reaches(party);
        if !reached {
            self.blocked = Some(party);
        }
        reached
    }

    /// The current parameters of congestion control.
    #[cold]
    pub(crate) fn dcqcn(&mut self) -> &Dcqcn {
        let (region, config) = (self.region, self.config);
        self.dcqcn.get_or_insert_with(|| region.dcqcn(config))
    }

    /// Sends a frame on the wire when the step commits.
    #[inline]
    pub fn send(&mut self, frame: Frame) {
        self.buffers.out.push(frame);
    }

    /// Completes a committed command only when no earlier transfer can still access the function's memory.
    pub(crate) fn hold(&mut self, completion: CommandCompletion) {
        self.buffers.held.push(completion);
    }

    /// Number of packets sent in this step so far.
    #[inline]
    pub fn sent(&self) -> usize {
        self.buffers.out.packets()
    }

    /// Keeps `bytes` until the step commits; returns their offset for a [`Payload`] or a move.
    #[inline]
    pub fn stage(&mut self, bytes: &[u8]) -> u32 {
        let at = self.buffers.staged.len() as u32;
        self.buffers.staged.extend_from_slice(bytes);
        at
    }

    /// Sends the last frame in the staging buffer, which begins at `at`, when the step commits.
    pub(crate) fn send_raw(&mut self, at: u32) {
        let len = self.buffers.staged.len() as u32 - at;
        self.buffers.raw.push((at, len));
    }

    /// Notifies function `to` of a change that concerns `vport`; [`noted`](super::eswitch::noted) handles it.
    pub(crate) fn tell(&mut self, to: u8, vport: u8) {
        self.buffers.notes.push((to, vport));
    }

    /// Writes staged bytes to memory before the step commits.
    pub(crate) fn write_staged(&mut self, dst: (Rid, Iova), at: u32, len: u32) -> Result<(), Abort> {
        self.moving(Move { src: Source::Staged(at), dst_rid: dst.0, dst: dst.1, len })
    }

    /// Reads `len` bytes at `at` into the staging buffer and returns their offset.
    pub fn stage_from(&mut self, rid: Rid, at: Iova, len: usize) -> Result<u32, Abort> {
        let start = self.buffers.staged.len();
        self.buffers.staged.resize(start + len, 0);
        self.reads = true;
        if memic::is_within(at) {
            Memic::of(self.region, rid.0).read(at, &mut self.buffers.staged[start..])?;
        } else {
            self.host.read(rid, at, &mut self.buffers.staged[start..])?;
        }
        Ok(start as u32)
    }

    /// Reads `into.len()` bytes at `at` from the host's memory or the adapter's.
    pub(crate) fn read(&mut self, rid: Rid, at: Iova, into: &mut [u8]) -> Result<(), Abort> {
        match memic::is_within(at) {
            true => Memic::of(self.region, rid.0).read(at, into),
            false => self.host.read(rid, at, into),
        }
    }

    /// Makes a copy to or from the adapter's own memory, at once.
    #[cold]
    fn move_within(&mut self, one: Move) -> Result<(), Abort> {
        let len = one.len as usize;
        let at = match one.src {
            Source::Staged(at) => at,
            Source::Bus(rid, at) => {
                // Gathered writes to that address must be made first.
                if !self.flush() {
                    return Err(Abort::Source);
                }
                self.stage_from(rid, at, len)?
            }
        };
        if !memic::is_within(one.dst) {
            return self.write_staged((one.dst_rid, one.dst), at, one.len);
        }
        let bytes = self.buffers.staged.get(at as usize..).and_then(|bytes| bytes.get(..len));
        Memic::of(self.region, one.dst_rid.0).write(one.dst, bytes.ok_or(Abort::Source)?)
    }

    /// The `len` bytes staged at `at`.
    pub fn staged(&self, at: u32, len: u32) -> &[u8] {
        self.buffers.staged.get(at as usize..(at + len) as usize).unwrap_or(&[])
    }

    /// Copies from memory to memory before the step commits.
    #[inline]
    pub fn copy(&mut self, src: (Rid, Iova), dst: (Rid, Iova), len: u32) -> Result<(), Abort> {
        self.moving(Move { src: Source::Bus(src.0, src.1), dst_rid: dst.0, dst: dst.1, len })
    }

    /// Writes `bytes` to memory before the step commits.
    #[inline]
    pub fn write(&mut self, dst: (Rid, Iova), bytes: &[u8]) -> Result<(), Abort> {
        let at = self.stage(bytes);
        self.moving(Move { src: Source::Staged(at), dst_rid: dst.0, dst: dst.1, len: bytes.len() as u32 })
    }

    #[inline]
    fn moving(&mut self, one: Move) -> Result<(), Abort> {
        if one.len == 0 {
            return Ok(());
        }
        if memic::is_within(one.dst) || matches!(one.src, Source::Bus(_, at) if memic::is_within(at)) {
            return self.move_within(one);
        }
        if self.careful {
            return self.host.copy(&self.buffers.staged, &[one]);
        }
        if let Some(last) = self.buffers.moves.last_mut() {
            if joins(last, &one) {
                last.len += one.len;
                return Ok(());
            }
        }
        self.buffers.moves.push(one);
        Ok(())
    }

    /// Makes the copies gathered so far, so that later reads see them. If one is refused, the whole step is rolled back and repeated
    /// carefully: a stage that gets `false` returns at once, in whatever state.
    #[must_use]
    pub fn flush(&mut self) -> bool {
        if self.buffers.moves.is_empty() {
            return true;
        }
        let done = self.host.copy(&self.buffers.staged, &self.buffers.moves);
        self.buffers.moves.clear();
        self.refused |= done.is_err();
        done.is_ok()
    }
}

/// True if `next` continues where `last` ends, in source and destination, so that one move is sufficient.
#[inline]
fn joins(last: &Move, next: &Move) -> bool {
    let end = u64::from(last.len);
    let source = match (last.src, next.src) {
        (Source::Bus(a, at), Source::Bus(b, then)) => a == b && at.wrapping_add(end) == then,
        (Source::Staged(at), Source::Staged(then)) => u64::from(at) + end == u64::from(then),
        _ => false,
    };
    source
        && last.dst_rid == next.dst_rid
        && last.dst.wrapping_add(end) == next.dst
        && last.len.checked_add(next.len).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_join_only_where_both_ends_go_on() {
        let one = Move { src: Source::Bus(Rid(1), 0x1000), dst_rid: Rid(2), dst: 0x9000, len: 0x100 };
        let next = Move { src: Source::Bus(Rid(1), 0x1100), dst: 0x9100, ..one };
        assert!(joins(&one, &next));
        assert!(!joins(&one, &Move { dst: 0x9101, ..next }));
        assert!(!joins(&one, &Move { dst_rid: Rid(3), ..next }));
        assert!(!joins(&one, &Move { src: Source::Bus(Rid(2), 0x1100), ..next }));
        assert!(!joins(&one, &Move { src: Source::Staged(0x1100), ..next }));
        assert!(!joins(&one, &Move { len: u32::MAX, ..next }), "a length has 32 bits");
        let staged = Move { src: Source::Staged(16), ..one };
        assert!(joins(&staged, &Move { src: Source::Staged(0x110), ..next }));
    }
}
