//! The requester (IBTA 9.7.3, 9.7.6, 9.7.7): outstanding requests, their acknowledgement and retransmission.

use super::{Congestion, Dcqcn, Event, Kind, Order, Outgoing, Request, Status, Timer, Timers};
use hwspec::{
    handle::Psn,
    wire::{NakCode, Syndrome, aeth},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum number of outstanding PSNs: less than half of the space within which they can be compared.
const WINDOW: u32 = 1 << 22;
/// RNR retry count that means infinite retries.
const INFINITE: u8 = 7;
const PS_PER_NS: u64 = 1000;

/// The requester's half of a connection.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Requester {
    /// Attribute: retry count.
    pub retry_count: u8,
    /// Attribute: RNR retry count (7 is infinite).
    pub rnr_retry: u8,
    /// Attribute: ACK timeout exponent.
    pub ack_timeout: u8,
    /// Attribute: log2 of the number of outstanding READs and atomics allowed.
    pub log_reads: u8,
    /// Retries left.
    pub retries_left: u8,
    /// RNR retries left.
    pub rnr_left: u8,
    /// [`GAP`](Self::GAP), [`LIMITED`](Self::LIMITED).
    pub flags: u8,
    /// Outstanding READs and atomics.
    pub reads: u8,
    /// Oldest outstanding request, free-running; its place is the index modulo [`Request::PER_QP`].
    pub head: u32,
    /// Next place to fill, free-running like `head`.
    pub tail: u32,
    /// Request that is being transmitted (`head..=tail`).
    pub send: u32,
    /// Number of packets of that request that were sent.
    pub packet: u32,
    /// PSN of the next new request.
    pub psn: u32,
    /// Oldest unacknowledged PSN.
    pub una_psn: u32,
    /// Highest PSN ever sent plus one, to detect an ACK of a PSN that was never sent.
    pub max_psn: u32,
    /// Packets sent since the last one with AckReq.
    pub unasked: u32,
    /// Its timers.
    pub timers: Timers,
}

impl Requester {
    /// In `flags`: a gap in the responses was noticed and the requester went back; further gaps are ignored until there is progress.
    const GAP: u8 = 2;
    /// In `flags`: congestion control limits the rate, since a notification from the peer.
    const LIMITED: u8 = 4;

    /// Starts sending at `psn`.
    pub(crate) fn begin(&mut self, psn: u32) {
        (self.psn, self.una_psn, self.max_psn) = (psn, psn, psn);
    }

    /// Reloads both retry counters (IBTA 9.9.2).
    #[inline(always)]
    pub(crate) fn reload(&mut self) {
        self.retries_left = self.retry_count;
        self.rnr_left = self.rnr_retry;
        self.flags &= !Self::GAP;
    }

    /// Ends the connection: no request is outstanding any more.
    pub(crate) fn stop(&mut self) {
        self.timers = Timers::default();
        self.reads = 0;
        self.forget();
    }

    /// Treats all sent requests as done, and sends none of the others.
    pub(crate) fn forget(&mut self) {
        self.head = self.tail;
        self.send = self.tail;
        self.packet = 0;
    }

    /// True if the requester waits after an RNR NAK.
    #[inline(always)]
    pub(crate) fn waits_rnr(&self) -> bool {
        self.timers.runs(Timer::Rnr)
    }

    /// True if the oldest request was retransmitted without a response so far.
    #[inline(always)]
    pub(crate) fn is_repeating(&self) -> bool {
        self.retries_left < self.retry_count
    }

    /// True if congestion control limits the rate.
    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.flags & Self::LIMITED != 0
    }

    /// Turns the rate limit of congestion control on or off.
    pub(crate) fn limit(&mut self, on: bool) {
        self.flags = if on { self.flags | Self::LIMITED } else { self.flags & !Self::LIMITED };
    }

    /// True if an accepted request has unsent packets.
    #[inline(always)]
    pub(crate) fn has_unsent(&self) -> bool {
        self.send != self.tail
    }

    /// True if every packet ever sent is acknowledged.
    #[inline(always)]
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.una_psn == self.max_psn
    }

    #[inline(always)]
    fn una(&self) -> Psn {
        Psn::new(self.una_psn)
    }

    /// True if a response with `psn` can belong to an outstanding request: its PSN was sent and is not acknowledged yet (IBTA
    /// 9.7.5.1.1: ghost acknowledges).
    #[inline(always)]
    fn is_under_way(&self, psn: Psn) -> bool {
        psn.ahead_of(Psn::new(self.max_psn)) < 0 && psn.ahead_of(self.una()) >= 0
    }

    /// True if there is room for another request.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        (self.tail.wrapping_sub(self.head) as usize) < Request::PER_QP
    }

    /// True if a request of `packets` PSNs may start now; its kind is `None` if it sends nothing.
    #[inline(always)]
    pub(crate) fn admits(&self, kind: Option<Kind>, packets: u32, order: Order) -> bool {
        // IBTA 10.8.3.3: a fenced request waits for earlier READs and atomics.
        let waits = match order {
            Order::None => false,
            Order::Answers => self.reads > 0,
            Order::All => self.head != self.tail,
        };
        // IBTA 9.7.3.3.1: outstanding READs and atomics are limited to the peer's resources.
        let reads =
            kind.is_some_and(Kind::is_answered) && u32::from(self.reads) >= 1u32 << (self.log_reads & 7);
        if waits || reads {
            return false;
        }
        let under_way = Psn::new(self.psn).ahead_of(self.una()) as u32;
        under_way == 0 || under_way + packets <= WINDOW
    }

    /// Accepts the request at the tail.
    #[inline(always)]
    pub(crate) fn take(&mut self) {
        self.tail = self.tail.wrapping_add(1);
    }

    /// Assigns PSNs to the latest accepted request, which is to be sent.
    #[inline(always)]
    pub(crate) fn number(&mut self, request: &Request) {
        self.reads += u8::from(request.is_answered());
        self.psn = request.end().get();
    }

    /// The next packet of `request`, a SEND or WRITE. AckReq is set at least on every `ask_every`th packet, if the service has
    /// acknowledgements.
    #[inline(always)]
    pub(crate) fn next_packet(&mut self, request: &Request, mtu: u32, ask_every: Option<u32>) -> Outgoing {
        let i = self.packet;
        let last = i + 1 == request.packets;
        let from = i * mtu;
        self.unasked += 1;
        let ask = ask_every.is_some_and(|packets| last || self.unasked >= packets);
        if ask {
            self.unasked = 0;
        }
        Outgoing {
            psn: Psn::new(request.psn).add(i),
            packets: 1,
            first: i == 0,
            last,
            from,
            len: mtu.min(request.length.saturating_sub(from)),
            ask,
        }
    }

    /// Number of the next packets of `request` that are neither its first nor its last and do not have AckReq set.
    #[inline]
    pub(crate) fn alike_ahead(&self, request: &Request, ask_every: u32) -> u32 {
        let middle = if self.packet == 0 { 0 } else { request.packets.saturating_sub(self.packet + 1) };
        middle.min(ask_every.saturating_sub(self.unasked + 1))
    }

    /// The next `packets` of `request` as a train; they must be within [`alike_ahead`](Self::alike_ahead).
    #[inline]
    pub(crate) fn next_train(&mut self, request: &Request, mtu: u32, packets: u16) -> Outgoing {
        let (i, count) = (self.packet, u32::from(packets));
        self.unasked += count;
        Outgoing {
            psn: Psn::new(request.psn).add(i),
            packets,
            first: false,
            last: false,
            from: i * mtu,
            len: count * mtu,
            ask: false,
        }
    }

    /// Records that `packet` was sent. True if the caller must start the acknowledgement timer.
    #[inline(always)]
    pub(crate) fn sent(&mut self, packet: &Outgoing) -> bool {
        let packets = u32::from(packet.packets);
        self.reached(packet.psn.add(packets));
        if packet.last {
            self.next_request();
        } else {
            self.packet += packets;
        }
        !self.timers.runs(Timer::Ack)
    }

    /// PSN and byte offset at which `request`, a READ or atomic, starts or resumes.
    pub(crate) fn next_request_packet(&self, request: &Request, mtu: u32) -> (Psn, u32) {
        (Psn::new(request.psn).add(self.packet), self.packet * mtu)
    }

    /// Records that `request`, a READ or atomic, was sent. True if the caller must start the acknowledgement timer.
    pub(crate) fn asked(&mut self, request: &Request) -> bool {
        self.reached(request.end());
        self.next_request();
        !self.timers.runs(Timer::Ack)
    }

    #[inline(always)]
    fn reached(&mut self, end: Psn) {
        if end.ahead_of(Psn::new(self.max_psn)) > 0 {
            self.max_psn = end.get();
        }
    }

    /// Moves on to the next request.
    #[inline(always)]
    pub(crate) fn next_request(&mut self) {
        self.send = self.send.wrapping_add(1);
        self.packet = 0;
    }

    /// Ends the wait after an RNR NAK.
    pub(crate) fn rnr_timeout(&mut self) {
        self.timers.stop(Timer::Rnr);
    }
}

/// The conversion of an acknowledgement timeout to a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckTimer {
    /// Minimum exponent.
    pub least: u8,
    /// Factors of the nominal timeout, in hundredths: for the first timeout, the second, and all later ones without progress.
    pub hundredths: [u16; 3],
}

/// The services that a requester needs from its environment.
pub(crate) trait Requests {
    /// The requester's row.
    fn requester(&self) -> &Requester;
    /// The requester's row, mutable.
    fn requester_mut(&mut self) -> &mut Requester;
    /// The request at a free-running index.
    fn request(&self, at: u32) -> Request;
    /// True if the state of the connection allows retransmission and responses: RTS or SQD.
    fn is_sending(&self) -> bool;
    /// True if the connection is in error.
    fn has_ended(&self) -> bool;
    /// The time in picoseconds.
    fn now(&self) -> u64;
    /// The conversion of timeouts to times.
    fn ack_timer(&self) -> AckTimer;
    /// The reaction point, which is valid only while the rate is limited, and its parameters.
    fn congestion(&mut self) -> (&mut Congestion, &Dcqcn);
    /// Completes the oldest request, at `at`; `answer` are the bytes of its response if its completion carries them. False if the
    /// completion could not be reported and the connection is in error.
    fn complete(&mut self, at: u32, answer: Option<&Answer>) -> bool;
    /// Fails the oldest request, at `at`, and with it the connection. Without a status, it failed before it was sent, for a reason
    /// recorded with it.
    fn fail(&mut self, at: u32, status: Option<Status>);
    /// Called when every packet sent is acknowledged.
    fn acknowledged(&mut self);
    /// Reports an event.
    fn note(&mut self, event: Event);
}

/// A short response that is carried in a completion.
pub(crate) type Answer = [u8; 32];

/// Restarts the acknowledgement timer (IBTA 9.7.6.1.3): 4.096 us x 2^T; T = 0 never expires.
#[inline]
pub(crate) fn start_timer<R: Requests>(r: &mut R) {
    let t = r.requester().ack_timeout & 0x1f;
    if t == 0 {
        return r.requester_mut().timers.stop(Timer::Ack);
    }
    let (timer, q) = (r.ack_timer(), r.requester());
    let retried = usize::from(q.retry_count.saturating_sub(q.retries_left)).min(2);
    let deadline = r.now() + (40_960u64 << t.max(timer.least)) * u64::from(timer.hundredths[retried]);
    r.requester_mut().timers.set(Timer::Ack, deadline);
}

/// Handles a response with `psn`; `take` processes its contents. True if requests may be sent after it.
#[inline(always)]
pub(crate) fn answer<R: Requests>(r: &mut R, psn: Psn, take: impl FnOnce(&mut R)) -> bool {
    if !r.is_sending() || !r.requester().is_under_way(psn) {
        return false;
    }
    let before = r.requester().una_psn;
    take(r);
    let q = r.requester();
    let waits = q.is_acknowledged() || q.waits_rnr();
    let ended = r.has_ended();
    if r.requester().una_psn != before && !ended && !waits {
        start_timer(r);
    }
    !ended && !r.requester().waits_rnr()
}

/// Handles an acknowledge packet (IBTA 9.7.5.1).
#[inline(always)]
pub(crate) fn acknowledge<R: Requests>(r: &mut R, psn: Psn, syndrome: Syndrome) {
    // A NAK acknowledges all earlier PSNs (IBTA 9.7.5.1.2).
    let upto = match syndrome {
        Syndrome::Ack(_) => psn.add(1),
        Syndrome::RnrNak(_) | Syndrome::Nak(_) => psn,
        Syndrome::Reserved(_) => return,
    };
    let reached = advance(r, upto);
    settle(r, None);
    if r.has_ended() {
        return;
    }
    if !reached {
        // Acknowledges a PSN after a READ or atomic without a response: implied NAK (IBTA 9.7.5.1.1).
        return gap(r);
    }
    if !matches!(syndrome, Syndrome::Ack(_)) {
        refused(r, syndrome);
    }
}

/// Handles a NAK of the request that is now the oldest.
#[cold]
fn refused<R: Requests>(r: &mut R, syndrome: Syndrome) {
    match syndrome {
        Syndrome::Ack(_) | Syndrome::Reserved(_) => {}
        // All packets will be retransmitted after the wait. A NAK that requests this earlier was sent before the RNR NAK, or is a
        // copy of it (row 65 of the conformance table).
        Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequence) if r.requester().waits_rnr() => {}
        Syndrome::RnrNak(code) => not_ready(r, code),
        Syndrome::Nak(NakCode::PsnSequence) => {
            r.note(Event::SequenceNak);
            go_back(r);
        }
        Syndrome::Nak(NakCode::InvalidRequest) => fail(r, Some(Status::RemoteInvalidRequest)),
        Syndrome::Nak(NakCode::RemoteAccess) => fail(r, Some(Status::RemoteAccess)),
        // The codes that IBTA reserves tell only that the responder ended the connection.
        Syndrome::Nak(_) => fail(r, Some(Status::RemoteOperation)),
    }
}

/// Acknowledges all PSNs before `upto`, up to the first READ or atomic without a response. False if one was found.
///
/// Acknowledging an outstanding request restores both retry counters; the rest of the response is charged to the restored counters.
/// An RNR NAK acknowledges only PSNs before its own, so by itself it does not restore the transport retry counter (row 64 of the
/// conformance table).
#[inline(always)]
fn advance<R: Requests>(r: &mut R, upto: Psn) -> bool {
    let before = r.requester().una_psn;
    let reached = acknowledge_until(r, upto);
    if r.requester().una_psn != before {
        r.requester_mut().reload();
    }
    reached
}

/// [`advance`] without the retry counters.
#[inline(always)]
fn acknowledge_until<R: Requests>(r: &mut R, upto: Psn) -> bool {
    let mut at = r.requester().head;
    while at != r.requester().tail {
        let request = r.request(at);
        let first = Psn::new(request.psn);
        if request.failed != 0 || upto.ahead_of(first) <= 0 {
            break;
        }
        let answered = request.is_answered();
        let end = if answered { first } else { request.end() };
        let reached = if upto.ahead_of(end) < 0 { upto } else { end };
        if reached.ahead_of(r.requester().una()) > 0 {
            r.requester_mut().una_psn = reached.get();
        }
        if answered {
            return false;
        }
        at = at.wrapping_add(1);
    }
    true
}

/// Implied NAK: retransmits from the oldest unacknowledged PSN, once until progress is made. During an RNR wait everything will be
/// retransmitted anyway.
#[cold]
fn gap<R: Requests>(r: &mut R) {
    if r.requester().flags & Requester::GAP != 0 || r.requester().waits_rnr() {
        return;
    }
    r.requester_mut().flags |= Requester::GAP;
    r.note(Event::ImpliedNak);
    go_back(r);
}

/// Retransmits from the oldest unacknowledged PSN; costs a retry (IBTA 9.7.6.1.1).
fn go_back<R: Requests>(r: &mut R) {
    if r.requester().retries_left == 0 {
        return fail(r, Some(Status::RetryExceeded));
    }
    r.requester_mut().retries_left -= 1;
    rewind(r);
    start_timer(r);
}

/// Sets the next PSN to send to the oldest unacknowledged one.
fn rewind<R: Requests>(r: &mut R) {
    let packet = oldest(r).unwrap_or(0);
    let q = r.requester_mut();
    q.send = q.head;
    q.packet = packet;
    q.unasked = 0;
}

/// Number of acknowledged packets of the oldest request, if one is outstanding.
#[inline(always)]
fn oldest<R: Requests>(r: &R) -> Option<u32> {
    let q = r.requester();
    (q.head != q.tail).then(|| q.una().ahead_of(Psn::new(r.request(q.head).psn)).max(0) as u32)
}

/// RNR NAK: waits at least the time it names, then retransmits from its PSN (IBTA 9.7.5.2.8).
fn not_ready<R: Requests>(r: &mut R, code: u8) {
    let q = r.requester_mut();
    if q.rnr_retry != INFINITE {
        if q.rnr_left == 0 {
            return fail(r, Some(Status::RnrRetryExceeded));
        }
        q.rnr_left -= 1;
    }
    r.note(Event::RnrNak);
    rewind(r);
    let deadline = r.now() + aeth::rnr_ns(code) * PS_PER_NS;
    let q = r.requester_mut();
    q.timers.stop(Timer::Ack);
    q.timers.set(Timer::Rnr, deadline);
}

/// Handles a congestion notification from the peer.
pub(crate) fn congestion_notified<R: Requests>(r: &mut R) {
    let (now, is_new) = (r.now(), !r.requester().is_limited());
    let (congestion, parameters) = r.congestion();
    if is_new {
        *congestion = Congestion::default();
    }
    congestion.on_cnp(now, parameters);
    r.requester_mut().limit(true);
    r.note(Event::Notified);
}

/// Handles an expired acknowledgement timer (IBTA 9.7.6.1.3). `is_held_up` tells if the peer cannot respond for another reason than
/// loss; then neither a retry nor room at the peer is spent. True if requests may be sent afterwards.
pub(crate) fn acknowledgement_timeout<R: Requests>(
    r: &mut R,
    is_held_up: impl FnOnce(&mut R) -> bool,
) -> bool {
    r.requester_mut().timers.stop(Timer::Ack);
    if !r.is_sending() || r.requester().is_acknowledged() {
        return false;
    }
    if is_held_up(r) {
        start_timer(r);
        return false;
    }
    r.note(Event::AckTimeout);
    r.requester_mut().flags &= !Requester::GAP;
    go_back(r);
    true
}

/// The READ or atomic, with its index, that a response with `psn` belongs to; it is the oldest request once the requests that it
/// acknowledges are done. `None` if it matches no request, or an earlier response is missing.
pub(crate) fn answered<R: Requests>(r: &mut R, psn: Psn, read: bool) -> Option<(u32, Request)> {
    let mut at = r.requester().head;
    let request = loop {
        if at == r.requester().tail {
            return None;
        }
        let request = r.request(at);
        let ahead = psn.ahead_of(Psn::new(request.psn));
        if request.packets != 0 && ahead >= 0 && (ahead as u32) < request.packets {
            break request;
        }
        at = at.wrapping_add(1);
    };
    let fits = match request.kind() {
        Kind::Read => read,
        Kind::CompareSwap | Kind::FetchAdd => !read,
        Kind::Send | Kind::SendImm | Kind::SendInvalidate | Kind::Write | Kind::WriteImm => false,
    };
    if !fits || request.failed != 0 {
        return None;
    }
    let reached = advance_to(r, &request);
    if !reached || psn.ahead_of(r.requester().una()) > 0 {
        settle(r, None);
        if !r.has_ended() {
            gap(r);
        }
        return None;
    }
    settle(r, None);
    (!r.has_ended() && psn == r.requester().una()).then_some((at, request))
}

/// Handles a READ response packet with `psn` and `len` bytes. `last` tells if its opcode is that of a last packet, `whole` if
/// payload and pad are whole words. Returns the index of the READ and the offset of the bytes in it if the packet is accepted.
pub(crate) fn read_response<R: Requests>(
    r: &mut R,
    psn: Psn,
    mtu: u32,
    (len, last, whole): (u32, bool, bool),
) -> Option<(u32, u32)> {
    let (at, request) = answered(r, psn, true)?;
    let i = psn.ahead_of(Psn::new(request.psn)) as u32;
    let from = i * mtu;
    let expected = mtu.min(request.length.saturating_sub(from));
    if len != expected || last != (i + 1 == request.packets) || !whole {
        fail(r, Some(Status::BadResponse));
        return None;
    }
    Some((at, from))
}

/// The READ's index, and the offset in it, of a train of `packets` MIDDLE responses with `psn`. `None` unless the train is exactly
/// what is expected next.
pub(crate) fn read_responses<R: Requests>(r: &R, psn: Psn, mtu: u32, packets: u32) -> Option<(u32, u32)> {
    let q = r.requester();
    let request = (q.head != q.tail).then(|| r.request(q.head))?;
    let next = request.packets != 0 && request.kind() == Kind::Read && request.failed == 0 && psn == q.una();
    let i = u32::try_from(psn.ahead_of(Psn::new(request.psn))).ok().filter(|i| *i > 0)?;
    (next && i + packets < request.packets).then_some((q.head, i * mtu))
}

/// Acknowledges all PSNs before `request`.
#[inline(never)]
fn advance_to<R: Requests>(r: &mut R, request: &Request) -> bool {
    advance(r, Psn::new(request.psn))
}

/// Records that the response with `psn` was delivered to its request.
pub(crate) fn deliver<R: Requests>(r: &mut R, psn: Psn, answer: Option<&Answer>) {
    let q = r.requester_mut();
    q.una_psn = psn.add(1).get();
    q.reload();
    settle(r, answer);
}

/// Completes finished requests at the head in order (IBTA 10.8.5.1). `answer` is the response of the one just answered, if its
/// completion carries it.
pub(crate) fn settle<R: Requests>(r: &mut R, answer: Option<&Answer>) {
    loop {
        let q = r.requester();
        let (at, una) = (q.head, q.una());
        if at == q.tail {
            break;
        }
        let request = r.request(at);
        if request.failed != 0 {
            return fail(r, None);
        }
        if request.packets != 0 && una.ahead_of(request.end()) < 0 {
            break;
        }
        let answered = request.is_answered();
        let q = r.requester_mut();
        q.head = at.wrapping_add(1);
        q.reads -= u8::from(answered && q.reads > 0);
        if !r.complete(at, answer.filter(|_| answered)) {
            return;
        }
    }
    // Acknowledged packets need not be retransmitted.
    let q = r.requester_mut();
    if (q.send.wrapping_sub(q.head) as i32) < 0 {
        q.send = q.head;
        q.packet = 0;
    }
    if q.send == q.head {
        if let Some(done) = oldest(r) {
            let q = r.requester_mut();
            q.packet = q.packet.max(done);
        }
    }
    if r.requester().is_acknowledged() {
        r.requester_mut().timers.stop(Timer::Ack);
        r.acknowledged();
    }
}

/// Fails the oldest request, and with it the connection (IBTA 10.3.1.5).
fn fail<R: Requests>(r: &mut R, status: Option<Status>) {
    let q = r.requester_mut();
    let at = q.head;
    if at != q.tail {
        q.head = at.wrapping_add(1);
        r.fail(at, status);
    }
}
