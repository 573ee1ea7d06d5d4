//! Delivers frames from a step's outbox to their destination functions: directly to the next function, through receive rings,
//! or over a wire with an observer.

use super::runner::{Runner, Traced, trace};
use crate::{
    Adapter, LinkLayer,
    host::{Abort, Host, Rid},
    mlx5::{
        Frame, Payload,
        step::{Outbox, singly},
    },
    region::{Func, Left, Outlet, OutletRing, SlotPayload, WireRing},
    wire::Verdict,
};
use hwspec::wire::{Headers, eth::ip_offset, icrc::Icrc, lrh::vcrc};
use std::sync::atomic::{Ordering::SeqCst, fence};
use sync::laboratory::{Site, step};

/// Frames passed directly from one function to the next without using the ring, because one runner works on both. The receiver
/// was locked before the sender was unlocked, so no other party can come in between.
#[derive(Default)]
pub(super) struct Hand {
    pub(super) frames: Outbox,
    pub(super) staged: Vec<u8>,
    pub(super) from: u8,
    /// Frames taken so far, and frames taken by committed jobs.
    pub(super) next: usize,
    pub(super) committed: usize,
}

impl Hand {
    /// Drops all frames.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.frames.clear();
        (self.next, self.committed) = (0, 0);
    }
}

/// Payload of a frame, as its receiver sees it.
#[inline]
pub(super) fn payload_of<'p>(frame: &'p Frame, from: u8, staged: &'p [u8]) -> SlotPayload<'p> {
    match &frame.payload {
        Payload::Empty => SlotPayload::Bytes(&[]),
        Payload::Staged(at, len) => {
            SlotPayload::Bytes(staged.get(*at as usize..(*at + *len) as usize).unwrap_or(&[]))
        }
        Payload::Pieces(n, pieces) => SlotPayload::Pieces(Rid(from), &pieces[..*n as usize]),
    }
}

/// True if a runner with a frame from `from` (`None`: from outside) for `to` may run `to`, because its party uses either of the two.
#[inline]
fn may_run(host: &mut dyn Host, from: Option<u8>, to: u8) -> bool {
    from.is_none_or(|from| host.uses(Rid(from))) || host.uses(Rid(to))
}

/// True if a frame's payload is still in its sender's memory.
#[inline]
fn is_by_reference(frame: &Frame) -> bool {
    matches!(frame.payload, Payload::Pieces(..))
}

impl Runner {
    /// The single destination of all frames of a step, if they stay in the region and nothing observes the wire.
    #[inline]
    pub(super) fn addressee(&self, adapter: &Adapter) -> Option<u8> {
        let (first, rest) = self.buffers.out.split_first()?;
        let to = adapter.owner(&first.headers)?;
        let at = adapter.address_in_frame();
        let others = rest.iter().any(|frame| frame.headers[at.clone()] != first.headers[at.clone()]);
        let watched = self.link.is_some() || adapter.config().sealed || adapter.is_captured();
        (!others && !watched).then_some(to)
    }

    /// Passes the frames of `from`, which is still locked, directly to `to`, their only destination, and locks it. The caller
    /// has checked that `to` is a different function without a poller. Returns `None` if the frames must go through the ring,
    /// because other frames wait there or another party keeps or holds `to`.
    #[inline(never)]
    pub(super) fn hand_over<'r>(
        &mut self,
        adapter: &'r Adapter,
        host: &mut dyn Host,
        now: u64,
        from: u8,
        to: u8,
    ) -> Option<Func<'r>> {
        if host.keeper(Rid(to)).is_some() || WireRing::of(adapter.region(), to).waits() {
            return None;
        }
        if !may_run(host, Some(from), to) {
            return None;
        }
        let func = Func::try_lock(adapter.region(), to, host).filter(|func| !func.has_frame())?;
        if self.buffers.out.iter().any(is_by_reference) {
            adapter.region().note_sender(to, from);
        }
        std::mem::swap(&mut self.hand.frames, &mut self.buffers.out);
        std::mem::swap(&mut self.hand.staged, &mut self.buffers.staged);
        (self.hand.from, self.hand.next, self.hand.committed) = (from, 0, 0);
        for frame in self.hand.frames.iter() {
            let headers = &frame.headers[..frame.header_len as usize];
            trace(&mut self.trace, now, from, Traced::Frame(headers, frame.payload.len()));
        }
        self.buffers.delivered();
        Some(func)
    }

    /// Puts the remaining inline frames for `fid`, which is still locked, into its ring: another party must take them.
    #[cold]
    pub(super) fn lay_down(&mut self, adapter: &Adapter, host: &mut dyn Host, fid: u8) {
        let hand = std::mem::take(&mut self.hand);
        singly(&hand.frames[hand.next..], |frame| {
            self.enter(adapter, host, fid, hand.from, frame, &hand.staged);
        });
    }

    /// Delivers the frames of a step to `to`, their only destination as found by [`addressee`](Self::addressee).
    #[inline(always)]
    pub(super) fn deliver(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, from: u8, to: u8) {
        let by_reference = self.buffers.out.iter().any(is_by_reference);
        if self.trace.is_some() || by_reference && !host.by_reference(Rid(from), Rid(to)) {
            self.scatter(adapter, host, now, from);
            return;
        }
        let mut room = false;
        match WireRing::of(adapter.region(), to).fill(host) {
            Some(mut ring) => {
                singly(&self.buffers.out, |frame| {
                    let headers = &frame.headers[..frame.header_len as usize];
                    match ring.push(headers, payload_of(frame, from, &self.buffers.staged), false) {
                        true => room = true,
                        false => adapter.count_ring_full(to),
                    }
                });
            }
            None => singly(&self.buffers.out, |_| adapter.count_ring_full(to)),
        }
        self.buffers.delivered();
        if room {
            self.arrived(host, Some(from), to);
        }
    }

    /// Delivers each frame of a step to its own destination. Returns the number of bytes.
    #[inline(never)]
    pub(super) fn scatter(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, from: u8) -> u64 {
        let mut bytes = 0;
        let mut out = std::mem::take(&mut self.buffers.out);
        let staged = std::mem::take(&mut self.buffers.staged);
        singly(&out, |frame| {
            let headers = &frame.headers[..frame.header_len as usize];
            trace(&mut self.trace, now, from, Traced::Frame(headers, frame.payload.len()));
            bytes += headers.len() + frame.payload.len();
            self.put(adapter, host, now, from, frame, &staged);
        });
        out.clear();
        (self.buffers.out, self.buffers.staged) = (out, staged);
        self.buffers.delivered();
        bytes as u64
    }

    #[inline(never)]
    fn put(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        from: u8,
        frame: &Frame,
        staged: &[u8],
    ) {
        let headers = &frame.headers[..frame.header_len as usize];
        let to = adapter.owner(headers);
        if to.is_none() || self.link.is_some() || adapter.config().sealed || adapter.is_captured() {
            let ethernet = adapter.config().link_layer == LinkLayer::Ethernet;
            if ethernet && to.is_none() && self.link.is_none() && adapter.region().is_switched() {
                return self.put_switched(adapter, host, now, from, frame, staged);
            }
            let mut whole = std::mem::take(&mut self.sealed);
            whole.clear();
            let link_layer = adapter.config().link_layer;
            if seal(host, link_layer, from, frame, staged, &mut whole).is_ok() {
                self.transmit(adapter, host, now, from, &mut whole);
            }
            self.sealed = whole;
            return;
        }
        if let Some(to) = to {
            self.enter(adapter, host, to, from, frame, staged);
        }
    }

    /// Delivers the raw frames of a step. Returns the number of bytes.
    #[cold]
    pub(super) fn deliver_raw(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, from: u8) -> u64 {
        let mut bytes = 0;
        let raw = std::mem::take(&mut self.buffers.raw);
        let mut whole = std::mem::take(&mut self.sealed);
        for (at, len) in &raw {
            let (at, len) = (*at as usize, *len as usize);
            whole.clear();
            whole.extend_from_slice(self.buffers.staged.get(at..at + len).unwrap_or_default());
            // Two bytes are a note: a frame has at least an Ethernet header, because the transmitter drops shorter ones.
            if let [to, vport] = whole[..] {
                self.note(adapter, host, from, to, vport);
                continue;
            }
            bytes += whole.len();
            trace(&mut self.trace, now, from, Traced::Frame(&whole, 0));
            self.transmit(adapter, host, now, from, &mut whole);
        }
        self.sealed = whole;
        self.buffers.raw = raw;
        self.buffers.raw.clear();
        bytes as u64
    }

    /// Puts a frame of `from` into the ring of `to`.
    #[inline]
    pub(super) fn enter(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        to: u8,
        from: u8,
        frame: &Frame,
        staged: &[u8],
    ) {
        let headers = &frame.headers[..frame.header_len as usize];
        let payload = payload_of(frame, from, staged);
        if matches!(payload, SlotPayload::Pieces(..)) && !host.by_reference(Rid(from), Rid(to)) {
            return self.enter_by_value(adapter, host, to, from, frame, staged);
        }
        let room = WireRing::of(adapter.region(), to).push(host, headers, payload, false);
        self.entered(adapter, host, Some(from), to, room);
    }

    /// [`enter`](Self::enter) for a receiver that cannot read the sender's memory.
    #[inline(never)]
    fn enter_by_value(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        to: u8,
        from: u8,
        frame: &Frame,
        staged: &[u8],
    ) {
        self.sealed.clear();
        // A frame with unreadable data is lost; the sender's retries recover from that.
        if fetch(host, from, &frame.payload, staged, &mut self.sealed).is_err() {
            return;
        }
        let headers = &frame.headers[..frame.header_len as usize];
        let payload = SlotPayload::Bytes(&self.sealed);
        let room = WireRing::of(adapter.region(), to).push(host, headers, payload, false);
        self.entered(adapter, host, Some(from), to, room);
    }

    /// Handles the outcome of pushing a frame of `from` (`None`: from outside) into the ring of `to`; `room` is false if the
    /// ring was full.
    #[inline]
    pub(super) fn entered(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        from: Option<u8>,
        to: u8,
        room: bool,
    ) {
        if room {
            self.arrived(host, from, to);
        } else {
            adapter.count_ring_full(to);
        }
    }

    /// Schedules `to`, where a frame of `from` (`None`: from outside) waits, unless another party is about to run it anyway.
    #[inline(always)]
    fn arrived(&mut self, host: &mut dyn Host, from: Option<u8>, to: u8) {
        step(Site::Arrived);
        // The frame is stored before `is_tended` is read: a poller that stops first waits until all earlier stores of other
        // parties are visible, and then looks once more.
        if host.is_tended(Rid(to)) {
            self.tended = Some(to);
        } else {
            self.arrived_untended(host, from, to);
        }
    }

    /// [`arrived`](Self::arrived) for a function without a poller.
    #[inline(never)]
    fn arrived_untended(&mut self, host: &mut dyn Host, from: Option<u8>, to: u8) {
        self.tended = None;
        step(Site::Arrived);
        // The frame must also be stored before the lock of `to` is read.
        fence(SeqCst);
        if may_run(host, from, to) || !host.leave_to_users(Rid(to)) {
            self.due |= 1 << to;
        }
    }

    pub(super) fn transmit(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        from: u8,
        whole: &mut Vec<u8>,
    ) {
        let left = Left { from: Some(from), now };
        if adapter.capture(host, left, whole) {
            return;
        }
        let mut more = Vec::new();
        let verdict = match &mut self.link {
            Some(link) => link.transmit(from, whole, &mut more),
            None => Verdict::Deliver,
        };
        let times = match verdict {
            Verdict::Deliver => 1,
            Verdict::Drop => 0,
            Verdict::Duplicate => 2,
        };
        for _ in 0..times {
            self.carry(adapter, host, left, whole);
        }
        for frame in more {
            self.carry(adapter, host, left, &frame);
        }
    }

    /// Receives a whole frame from outside.
    pub(super) fn come_in(&mut self, adapter: &Adapter, host: &mut dyn Host, now: u64, whole: &[u8]) {
        let left = Left { from: None, now };
        if !adapter.capture(host, left, whole) {
            self.carry(adapter, host, left, whole);
        }
    }

    /// Delivers a whole frame to its destinations. A frame from outside is not sent back there.
    pub(super) fn carry(&mut self, adapter: &Adapter, host: &mut dyn Host, left: Left, whole: &[u8]) {
        for (to, tags) in self.switch.ways(adapter, left.from, whole) {
            let changed = (!tags.is_none()).then(|| tags.changed(whole));
            let whole = changed.as_deref().unwrap_or(whole);
            match to {
                Some(to) => self.hand_in(adapter, host, left.from, to, whole),
                None => self.leave(adapter, host, left, whole),
            }
        }
    }

    /// Sends a whole frame out of the adapter.
    pub(super) fn leave(&mut self, adapter: &Adapter, host: &mut dyn Host, left: Left, whole: &[u8]) {
        if self.link.as_mut().is_some_and(|link| link.leave(whole)) {
            return;
        }
        if OutletRing::of(adapter.region(), Outlet::Uplink).push(host, left, whole) {
            host.uplink_waits();
        }
    }

    /// Puts a whole frame of `from` (`None`: from outside) into the ring of `to`.
    pub(super) fn hand_in(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        from: Option<u8>,
        to: u8,
        whole: &[u8],
    ) {
        let (headers, rest) = whole.split_at(adapter.headers_in(whole));
        let room = WireRing::of(adapter.region(), to).push(host, headers, SlotPayload::Bytes(rest), true);
        self.entered(adapter, host, from, to, room);
    }
}

impl Adapter {
    /// Length of the headers of a whole frame. A malformed frame is split at an arbitrary place; the receiver counts it.
    pub(super) fn headers_in(&self, whole: &[u8]) -> usize {
        let parsed = match self.config().link_layer {
            LinkLayer::Ethernet => Headers::parse(whole),
            LinkLayer::Infiniband => Headers::parse_route(whole, whole.len()),
        };
        parsed.map_or(64, |h| h.payload_start()).min(whole.len())
    }

    /// True if a party captures the wire.
    #[inline]
    pub(super) fn is_captured(&self) -> bool {
        OutletRing::of(self.region(), Outlet::Capture).is_open()
    }

    /// Copies a frame on the wire to the capture. Returns true if it was diverted, so that the capture's consumer forwards it.
    fn capture(&self, host: &mut dyn Host, left: Left, whole: &[u8]) -> bool {
        let (pushed, diverted) = OutletRing::of(self.region(), Outlet::Capture).offer(host, left, whole);
        if pushed {
            host.capture_waits();
        }
        diverted
    }
}

/// Appends the bytes of a payload.
fn fetch(
    host: &mut dyn Host,
    from: u8,
    payload: &Payload,
    staged: &[u8],
    bytes: &mut Vec<u8>,
) -> Result<(), Abort> {
    match payload {
        Payload::Empty => {}
        Payload::Staged(at, len) => {
            bytes.extend_from_slice(staged.get(*at as usize..(*at + *len) as usize).unwrap_or(&[]));
        }
        Payload::Pieces(n, pieces) => {
            for piece in &pieces[..*n as usize] {
                let start = bytes.len();
                bytes.resize(start + piece.len as usize, 0);
                host.read(Rid(from), piece.at, &mut bytes[start..])?;
            }
        }
    }
    Ok(())
}

/// Writes the frame as it would be on a real wire: headers, payload, pad and ICRC.
pub(super) fn seal(
    host: &mut dyn Host,
    link_layer: LinkLayer,
    from: u8,
    frame: &Frame,
    staged: &[u8],
    whole: &mut Vec<u8>,
) -> Result<(), Abort> {
    whole.extend_from_slice(&frame.headers[..frame.header_len as usize]);
    fetch(host, from, &frame.payload, staged, whole)?;
    let pad = (4 - frame.payload.len() % 4) % 4;
    whole.resize(whole.len() + pad, 0);
    match link_layer {
        LinkLayer::Ethernet => {
            let ip = ip_offset(whole);
            let icrc = Icrc::new(whole.get(ip..).unwrap_or_default()).finish();
            whole.extend_from_slice(&icrc);
        }
        LinkLayer::Infiniband => {
            whole.extend_from_slice(&Icrc::of_route(whole).finish());
            whole.extend_from_slice(&vcrc(whole));
        }
    }
    Ok(())
}
