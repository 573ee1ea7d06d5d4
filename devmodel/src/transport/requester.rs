//! The requester (IBTA 9.7.3, 9.7.6, 9.7.7): what is under way, what answers acknowledge of it, what is sent again.

use super::{Congestion, Dcqcn, Event, Kind, Order, Outgoing, Request, Status, Timer, Timers};
use hwspec::{
    handle::Psn,
    wire::{NakCode, Syndrome, aeth},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// PSNs that may be under way: less than half the window in which they compare.
const WINDOW: u32 = 1 << 22;
/// RNR retries that never run out.
const INFINITE: u8 = 7;
const PS_PER_NS: u64 = 1000;

/// The requester's half of a connection.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Requester {
    /// Attributes: retry count, RNR retry (7 is infinite), ACK timeout exponent, log2 of READs and atomics allowed under way.
    pub retry_count: u8,
    /// See `retry_count`.
    pub rnr_retry: u8,
    /// See `retry_count`.
    pub ack_timeout: u8,
    /// See `retry_count`.
    pub log_reads: u8,
    /// Retries and RNR retries left.
    pub retries_left: u8,
    /// See `retries_left`.
    pub rnr_left: u8,
    /// A gap in the answers was noted (2), the rate is limited (4).
    pub flags: u8,
    /// READs and atomics under way.
    pub reads: u8,
    /// Requests under way: oldest and next to fill, free-running; places are the index modulo [`Request::PER_QP`].
    pub head: u32,
    /// See `head`.
    pub tail: u32,
    /// Request that is being transmitted (`head..=tail`), and how many of its packets went out.
    pub send: u32,
    /// See `send`.
    pub packet: u32,
    /// PSN of the next new request.
    pub psn: u32,
    /// Oldest PSN not acknowledged.
    pub una_psn: u32,
    /// Highest PSN ever sent plus one, to tell an ACK of something never sent.
    pub max_psn: u32,
    /// Packets sent since the last one that asked for an acknowledgement.
    pub unasked: u32,
    /// Its timers.
    pub timers: Timers,
}

impl Requester {
    /// A gap in the answers was noted and the requester went back; no further gap counts until there is progress.
    const GAP: u8 = 2;
    /// The peer notified of congestion, and the rate of before was not reached again since.
    const LIMITED: u8 = 4;

    /// Sends from `psn` on.
    pub(crate) fn begin(&mut self, psn: u32) {
        (self.psn, self.una_psn, self.max_psn) = (psn, psn, psn);
    }

    /// Both retry counters start anew (IBTA 9.9.2).
    #[inline(always)]
    pub(crate) fn reload(&mut self) {
        self.retries_left = self.retry_count;
        self.rnr_left = self.rnr_retry;
        self.flags &= !Self::GAP;
    }

    /// Nothing is under way any more: the connection has ended.
    pub(crate) fn stop(&mut self) {
        self.timers = Timers::default();
        self.reads = 0;
        self.forget();
    }

    /// A request that was sent counts as done, and one that was to be sent is not sent.
    pub(crate) fn forget(&mut self) {
        self.head = self.tail;
        self.send = self.tail;
        self.packet = 0;
    }

    /// True if an RNR NAK is waited out.
    #[inline(always)]
    pub(crate) fn waits_rnr(&self) -> bool {
        self.timers.runs(Timer::Rnr)
    }

    /// True if the oldest request was sent before and had no answer.
    #[inline(always)]
    pub(crate) fn is_repeating(&self) -> bool {
        self.retries_left < self.retry_count
    }

    /// True if congestion control limits the rate.
    #[inline(always)]
    pub(crate) fn is_limited(&self) -> bool {
        self.flags & Self::LIMITED != 0
    }

    /// Congestion control begins or ends to limit the rate.
    pub(crate) fn limit(&mut self, on: bool) {
        self.flags = if on { self.flags | Self::LIMITED } else { self.flags & !Self::LIMITED };
    }

    /// True if a request taken has packets to be sent.
    #[inline(always)]
    pub(crate) fn has_unsent(&self) -> bool {
        self.send != self.tail
    }

    /// True if all that was ever sent is acknowledged.
    #[inline(always)]
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.una_psn == self.max_psn
    }

    #[inline(always)]
    fn una(&self) -> Psn {
        Psn::new(self.una_psn)
    }

    /// True if an answer with `psn` can be of something under way: not of a PSN never sent, nor long settled (IBTA 9.7.5.1.1:
    /// ghost acknowledges).
    #[inline(always)]
    fn is_under_way(&self, psn: Psn) -> bool {
        psn.ahead_of(Psn::new(self.max_psn)) < 0 && psn.ahead_of(self.una()) >= 0
    }

    /// True if there is a place for another request.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        (self.tail.wrapping_sub(self.head) as usize) < Request::PER_QP
    }

    /// True if a request of `packets` PSNs may begin now; of no kind if it sends nothing.
    #[inline(always)]
    pub(crate) fn admits(&self, kind: Option<Kind>, packets: u32, order: Order) -> bool {
        // IBTA 10.8.3.3: a fenced request waits for READs and atomics before it.
        let waits = match order {
            Order::None => false,
            Order::Answers => self.reads > 0,
            Order::All => self.head != self.tail,
        };
        // IBTA 9.7.3.3.1: no more READs and atomics under way than the peer has resources for.
        let reads =
            kind.is_some_and(Kind::is_answered) && u32::from(self.reads) >= 1u32 << (self.log_reads & 7);
        if waits || reads {
            return false;
        }
        let under_way = Psn::new(self.psn).ahead_of(self.una()) as u32;
        under_way == 0 || under_way + packets <= WINDOW
    }

    /// The request at the tail is taken.
    #[inline(always)]
    pub(crate) fn take(&mut self) {
        self.tail = self.tail.wrapping_add(1);
    }

    /// The request taken last is to be sent: PSNs are its own from here on.
    #[inline(always)]
    pub(crate) fn number(&mut self, request: &Request) {
        self.reads += u8::from(request.is_answered());
        self.psn = request.end().get();
    }

    /// The next packet of `request`, a SEND or WRITE. `ask_every`: how many packets at most go out between two that ask for
    /// an acknowledgement, if the service has any.
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

    /// How many of the next packets of `request` are neither its first nor its last nor ask for an acknowledgement.
    #[inline]
    pub(crate) fn alike_ahead(&self, request: &Request, ask_every: u32) -> u32 {
        let middle = if self.packet == 0 { 0 } else { request.packets.saturating_sub(self.packet + 1) };
        middle.min(ask_every.saturating_sub(self.unasked + 1))
    }

    /// The next `packets` of `request`, of those that are [`alike_ahead`](Self::alike_ahead), as a train.
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

    /// `packet` went out. True if the acknowledgement timer is to be started.
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

    /// Where `request`, a READ or atomic, is asked for: its PSN, and how many bytes of a READ are there already.
    pub(crate) fn next_request_packet(&self, request: &Request, mtu: u32) -> (Psn, u32) {
        (Psn::new(request.psn).add(self.packet), self.packet * mtu)
    }

    /// `request`, a READ or atomic, went out. True if the acknowledgement timer is to be started.
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

    /// Goes on to the next request.
    #[inline(always)]
    pub(crate) fn next_request(&mut self) {
        self.send = self.send.wrapping_add(1);
        self.packet = 0;
    }

    /// The RNR wait is over.
    pub(crate) fn rnr_timeout(&mut self) {
        self.timers.stop(Timer::Rnr);
    }
}

/// How an acknowledgement timeout becomes a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckTimer {
    /// The least exponent that counts.
    pub least: u8,
    /// Hundredths of the time that is named after which it has run out: the first time, the second, and all others without progress.
    pub hundredths: [u16; 3],
}

/// The surroundings that a requester needs.
pub(crate) trait Requests {
    /// Its row.
    fn requester(&self) -> &Requester;
    /// Its row, to change.
    fn requester_mut(&mut self) -> &mut Requester;
    /// The request at a free-running index.
    fn request(&self, at: u32) -> Request;
    /// True if the state of the connection lets requests be sent again and answers be taken: RTS or SQD.
    fn is_sending(&self) -> bool;
    /// True if the connection is in error.
    fn has_ended(&self) -> bool;
    /// The time in picoseconds.
    fn now(&self) -> u64;
    /// How timeouts become times.
    fn ack_timer(&self) -> AckTimer;
    /// Its reaction point, which counts only while the rate is limited, and what that goes by.
    fn congestion(&mut self) -> (&mut Congestion, &Dcqcn);
    /// The request at `at`, the oldest, is done; `answer` are the bytes of its answer if its completion takes them along.
    /// False if its completion could not be reported and the connection is in error.
    fn complete(&mut self, at: u32, answer: Option<&Answer>) -> bool;
    /// The request at `at`, the oldest, has failed and with it the connection; without a status if it failed before it was
    /// sent, for a reason kept with it.
    fn fail(&mut self, at: u32, status: Option<Status>);
    /// All that was sent is acknowledged.
    fn acknowledged(&mut self);
    /// Something happened.
    fn note(&mut self, event: Event);
}

/// A short answer that a completion takes along.
pub(crate) type Answer = [u8; 32];

/// Starts the acknowledgement timer anew (IBTA 9.7.6.1.3): 4.096 us x 2^T; T = 0 never runs out.
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

/// An answer with `psn` came; `take` sees to what it brings. True if requests may go out behind it.
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

/// An acknowledge packet (IBTA 9.7.5.1).
#[inline(always)]
pub(crate) fn acknowledge<R: Requests>(r: &mut R, psn: Psn, syndrome: Syndrome) {
    // A NAK acknowledges all before it (IBTA 9.7.5.1.2).
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
        // An acknowledgement past a READ or atomic without its answer: implied NAK (IBTA 9.7.5.1.1).
        return gap(r);
    }
    if !matches!(syndrome, Syndrome::Ack(_)) {
        refused(r, syndrome);
    }
}

/// The responder did not execute what is now the oldest request.
#[cold]
fn refused<R: Requests>(r: &mut R, syndrome: Syndrome) {
    match syndrome {
        Syndrome::Ack(_) | Syndrome::Reserved(_) => {}
        // Everything will be sent again when the wait is over. A NAK that asks for it earlier was sent before the RNR NAK, or
        // is a copy of it (row 65 of the conformance table).
        Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PsnSequence) if r.requester().waits_rnr() => {}
        Syndrome::RnrNak(code) => not_ready(r, code),
        Syndrome::Nak(NakCode::PsnSequence) => {
            r.note(Event::SequenceNak);
            go_back(r);
        }
        Syndrome::Nak(NakCode::InvalidRequest) => fail(r, Some(Status::RemoteInvalidRequest)),
        Syndrome::Nak(NakCode::RemoteAccess) => fail(r, Some(Status::RemoteAccess)),
        // Of the codes that IBTA reserves it is known only that the responder ended the connection.
        Syndrome::Nak(_) => fail(r, Some(Status::RemoteOperation)),
    }
}

/// Acknowledges all before `upto`, as far as READs and atomics without an answer allow. False if one stands in the way.
///
/// An outstanding request that is acknowledged restores both retry counters. The rest of the answer is charged to the
/// counters after that. An RNR NAK acknowledges nothing but what was sent before its PSN, so by itself it does not restore the
/// transport's counter (row 64 of the conformance table).
#[inline(always)]
fn advance<R: Requests>(r: &mut R, upto: Psn) -> bool {
    let before = r.requester().una_psn;
    let reached = acknowledge_until(r, upto);
    if r.requester().una_psn != before {
        r.requester_mut().reload();
    }
    reached
}

/// [`advance`], but for the counters.
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

/// Something is missing among the answers: goes back once, until there is progress. While an RNR NAK is waited out
/// everything is to be sent again anyway.
#[cold]
fn gap<R: Requests>(r: &mut R) {
    if r.requester().flags & Requester::GAP != 0 || r.requester().waits_rnr() {
        return;
    }
    r.requester_mut().flags |= Requester::GAP;
    r.note(Event::ImpliedNak);
    go_back(r);
}

/// Goes back to the oldest PSN not acknowledged; costs a retry (IBTA 9.7.6.1.1).
fn go_back<R: Requests>(r: &mut R) {
    if r.requester().retries_left == 0 {
        return fail(r, Some(Status::RetryExceeded));
    }
    r.requester_mut().retries_left -= 1;
    rewind(r);
    start_timer(r);
}

/// The next PSN to send is the oldest one not acknowledged.
fn rewind<R: Requests>(r: &mut R) {
    let packet = oldest(r).unwrap_or(0);
    let q = r.requester_mut();
    q.send = q.head;
    q.packet = packet;
    q.unasked = 0;
}

/// How many packets of the oldest request are acknowledged, if there is one under way.
#[inline(always)]
fn oldest<R: Requests>(r: &R) -> Option<u32> {
    let q = r.requester();
    (q.head != q.tail).then(|| q.una().ahead_of(Psn::new(r.request(q.head).psn)).max(0) as u32)
}

/// RNR NAK: waits at least the time it names, then sends from there again (IBTA 9.7.5.2.8).
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

/// The peer notified of congestion.
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

/// The acknowledgement timer ran out (IBTA 9.7.6.1.3). `is_held_up` says whether the peer cannot answer for a reason that is no
/// loss: then neither a retry nor room at the peer is spent. True if requests may go out behind it.
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

/// The READ or atomic that an answer with `psn` belongs to, by its index: it is the oldest request once what it acknowledges is
/// done. `None` if it answers nothing, or an earlier answer is missing.
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

/// A READ response with `psn` that brings `len` bytes; `whole` says whether pad and payload are whole words, `last` whether it
/// calls itself the last one. Returns the index of the READ and where in it the bytes belong, if they do.
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

/// Where a train of `packets` MIDDLE responses with `psn` belongs: the READ's index, and where in it. `None` unless they are just
/// what comes next.
pub(crate) fn read_responses<R: Requests>(r: &R, psn: Psn, mtu: u32, packets: u32) -> Option<(u32, u32)> {
    let q = r.requester();
    let request = (q.head != q.tail).then(|| r.request(q.head))?;
    let next = request.packets != 0 && request.kind() == Kind::Read && request.failed == 0 && psn == q.una();
    let i = u32::try_from(psn.ahead_of(Psn::new(request.psn))).ok().filter(|i| *i > 0)?;
    (next && i + packets < request.packets).then_some((q.head, i * mtu))
}

/// Acknowledges all before `request`.
#[inline(never)]
fn advance_to<R: Requests>(r: &mut R, request: &Request) -> bool {
    advance(r, Psn::new(request.psn))
}

/// The answer with `psn` is where its request wants it.
pub(crate) fn deliver<R: Requests>(r: &mut R, psn: Psn, answer: Option<&Answer>) {
    let q = r.requester_mut();
    q.una_psn = psn.add(1).get();
    q.reload();
    settle(r, answer);
}

/// Completes the requests at the head that are done, in order (IBTA 10.8.5.1). `answer` is that of the one just answered, if its
/// completion takes it along.
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
    // Packets that are acknowledged need not be sent again.
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

/// The oldest request fails, and with it the connection (IBTA 10.3.1.5).
fn fail<R: Requests>(r: &mut R, status: Option<Status>) {
    let q = r.requester_mut();
    let at = q.head;
    if at != q.tail {
        q.head = at.wrapping_add(1);
        r.fail(at, status);
    }
}
