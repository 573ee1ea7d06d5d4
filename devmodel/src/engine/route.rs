//! Says where frames go, and brings them there: directly to the next function, through receive rings, or over a wire with an
//! observer.
//!
//! A unicast frame for a function of this adapter goes to the function; a group frame goes to every function that takes such
//! frames, except its sender, and to the uplink; all other frames go to the uplink. No learning is needed, because the function
//! number is part of the address. If ports have other addresses than their initial ones, or if the PF's driver manages the
//! e-switch, [`eswitch`](super::eswitch) decides instead.

use super::runner::{Runner, Traced, trace};
use crate::{
    Adapter, LinkLayer,
    host::{Abort, Host, Rid},
    identity,
    mlx5::{
        Frame, Payload, rates,
        step::{Outbox, singly},
    },
    region::{
        Func, GROUP_ADDRESSES, GROUP_STRANGERS, Origin, Outlet, OutletRing, SlotPayload, Sync, WireRing,
        is_watched,
    },
    wire::pass,
};
use hwspec::wire::{
    Headers,
    eth::ip_offset,
    icrc::Icrc,
    lrh::{PERMISSIVE_LID, dlid, is_multicast, vcrc},
};
use std::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};
use sync::laboratory::{Site, step};

/// The adapter that a runner works on, the host that it works for, and the time.
pub(super) struct At<'a> {
    pub(super) adapter: &'a Adapter,
    pub(super) host: &'a mut dyn Host,
    pub(super) now: u64,
}

/// Frames passed directly from one function to the next without using the ring, because one runner works on both. The receiver
/// was locked before the sender was unlocked, so no other party can come in between.
#[derive(Default)]
pub(super) struct InlineFrames {
    pub(super) frames: Outbox,
    pub(super) staged: Vec<u8>,
    pub(super) from: u8,
    /// Frames taken so far, and frames taken by committed jobs.
    pub(super) next: usize,
    pub(super) committed: usize,
}

impl InlineFrames {
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

/// True if a frame's payload is still in its sender's memory.
#[inline]
fn is_by_reference(frame: &Frame) -> bool {
    matches!(frame.payload, Payload::Pieces(..))
}

impl At<'_> {
    /// True if a runner with a frame from `from` (`None`: from outside) for `to` may run `to`, because its party uses either of
    /// the two.
    #[inline]
    fn may_run(&mut self, from: Option<u8>, to: u8) -> bool {
        from.is_none_or(|from| self.host.serves(Rid(from))) || self.host.serves(Rid(to))
    }

    /// Puts a frame into the ring of `to`. Returns false, and counts it, if the ring is full.
    #[inline]
    pub(super) fn push(&mut self, to: u8, headers: &[u8], payload: SlotPayload<'_>, whole: bool) -> bool {
        let room = WireRing::of(self.adapter.region(), to).push(self.host, headers, payload, whole);
        if !room {
            self.adapter.count_ring_full(to);
        }
        room
    }

    /// [`push`](Self::push) for a whole frame. A malformed frame is split at an arbitrary place; the receiver counts it.
    pub(super) fn push_whole(&mut self, to: u8, whole: &[u8]) -> bool {
        let parsed = match self.adapter.config().link_layer {
            LinkLayer::Ethernet => Headers::parse(whole),
            LinkLayer::Infiniband => Headers::parse_route(whole, whole.len()),
        };
        let (headers, rest) = whole.split_at(parsed.map_or(64, |h| h.payload_start()).min(whole.len()));
        self.push(to, headers, SlotPayload::Bytes(rest), true)
    }

    /// [`push`](Self::push) for a note about a change that concerns `vport`. A ring recognizes it by its lack of headers, which
    /// every frame has.
    pub(super) fn push_note(&mut self, to: u8, vport: u8) -> bool {
        self.adapter.is_there(to) && self.push(to, &[], SlotPayload::Bytes(&[vport]), true)
    }

    /// Copies a frame on the wire to the capture. Returns true if it was diverted, so that the capture's consumer forwards it.
    fn capture(&mut self, origin: Origin, whole: &[u8]) -> bool {
        let ring = OutletRing::of(self.adapter.region(), Outlet::Capture);
        let (pushed, diverted) = ring.offer(self.host, origin, whole);
        if pushed {
            self.host.outlet_waits(Outlet::Capture);
        }
        diverted
    }

    /// Charges `bytes` sent by `func` against the rate limit of its port.
    #[cold]
    fn keep_pace(&mut self, func: &mut Func<'_>, bytes: u64) {
        if func.region().is_switched() {
            rates::sent(func, self.now, bytes);
            func.commit(self.host);
        }
    }
}

impl Runner {
    /// Delivers the frames of a step of `func`, which is still locked: they enter the wire in the order in which the function
    /// made them, so before another party can run it. If all are for one other function, which the runner may run, they are
    /// passed directly, and that function is returned, locked.
    #[inline(always)]
    pub(super) fn deliver<'r>(
        &mut self,
        at: &mut At<'r>,
        func: &mut Func<'_>,
        direct: bool,
    ) -> Option<Func<'r>> {
        let fid = func.fid();
        if !self.buffers.raw.is_empty() || !self.buffers.notes.is_empty() {
            let bytes = self.deliver_raw(at, fid);
            at.keep_pace(func, bytes);
        }
        if self.buffers.out.is_empty() {
            self.buffers.delivered();
        } else if let Some(to) = self.addressee(at.adapter) {
            if direct && to != fid && self.polled != Some(to) && !at.host.is_polled(Rid(to)) {
                let handed = self.deliver_inline(at, fid, to);
                if handed.is_some() {
                    return handed;
                }
            }
            self.deliver_to(at, fid, to);
        } else {
            let bytes = self.scatter(at, fid);
            at.keep_pace(func, bytes);
        }
        None
    }

    /// True if something observes or changes the frames on the wire.
    #[inline]
    fn is_watched(&self, adapter: &Adapter) -> bool {
        self.link.is_some() || is_watched(adapter.region(), adapter.config())
    }

    /// The single destination of all frames of a step, if they stay in the region and nothing observes the wire.
    #[inline]
    fn addressee(&self, adapter: &Adapter) -> Option<u8> {
        let (first, rest) = self.buffers.out.split_first()?;
        let to = adapter.owner(&first.headers)?;
        let at = adapter.address_in_frame();
        let others = rest.iter().any(|frame| frame.headers[at.clone()] != first.headers[at.clone()]);
        (!others && !self.is_watched(adapter)).then_some(to)
    }

    /// Passes the frames of `from`, which is still locked, directly to `to`, their only destination, and locks it. The caller
    /// has checked that `to` is a different function without a poller. Returns `None` if the frames must go through the ring,
    /// because other frames wait there or another party runs `to` exclusively or has locked it.
    #[inline(never)]
    fn deliver_inline<'r>(&mut self, at: &mut At<'r>, from: u8, to: u8) -> Option<Func<'r>> {
        let region = at.adapter.region();
        if at.host.exclusive_runner(Rid(to)).is_some() || WireRing::of(region, to).waits() {
            return None;
        }
        if !at.may_run(Some(from), to) {
            return None;
        }
        let func = Func::try_lock(region, to, at.host).filter(|func| !func.has_frame())?;
        if self.buffers.out.iter().any(is_by_reference) {
            region.note_sender(to, from);
        }
        std::mem::swap(&mut self.inline.frames, &mut self.buffers.out);
        std::mem::swap(&mut self.inline.staged, &mut self.buffers.staged);
        (self.inline.from, self.inline.next, self.inline.committed) = (from, 0, 0);
        for frame in self.inline.frames.iter() {
            trace(&mut self.trace, at.now, from, Traced::Frame(frame.head(), frame.payload.len()));
        }
        self.buffers.delivered();
        Some(func)
    }

    /// Puts the remaining inline frames for `fid`, which is still locked, into its ring: another party must take them.
    #[cold]
    pub(super) fn requeue_inline(&mut self, at: &mut At<'_>, fid: u8) {
        let inline = std::mem::take(&mut self.inline);
        singly(&inline.frames[inline.next..], |frame| {
            self.enter(at, fid, inline.from, frame, &inline.staged)
        });
    }

    /// Delivers the frames of a step to `to`, their only destination as found by [`addressee`](Self::addressee).
    #[inline(always)]
    fn deliver_to(&mut self, at: &mut At<'_>, from: u8, to: u8) {
        let by_reference = self.buffers.out.iter().any(is_by_reference);
        if self.trace.is_some() || by_reference && !at.host.by_reference(Rid(from), Rid(to)) {
            self.scatter(at, from);
            return;
        }
        let mut room = false;
        match WireRing::of(at.adapter.region(), to).fill(at.host) {
            Some(mut ring) => {
                singly(&self.buffers.out, |frame| {
                    let payload = payload_of(frame, from, &self.buffers.staged);
                    match ring.push(frame.head(), payload, false) {
                        true => room = true,
                        false => at.adapter.count_ring_full(to),
                    }
                });
            }
            None => singly(&self.buffers.out, |_| at.adapter.count_ring_full(to)),
        }
        self.buffers.delivered();
        if room {
            self.arrived(at, Some(from), to);
        }
    }

    /// Delivers each frame of a step to its own destination. Returns the number of bytes.
    #[inline(never)]
    fn scatter(&mut self, at: &mut At<'_>, from: u8) -> u64 {
        let mut bytes = 0;
        let mut out = std::mem::take(&mut self.buffers.out);
        let staged = std::mem::take(&mut self.buffers.staged);
        singly(&out, |frame| {
            trace(&mut self.trace, at.now, from, Traced::Frame(frame.head(), frame.payload.len()));
            bytes += frame.head().len() + frame.payload.len();
            self.put(at, from, frame, &staged);
        });
        out.clear();
        (self.buffers.out, self.buffers.staged) = (out, staged);
        self.buffers.delivered();
        bytes as u64
    }

    #[inline(never)]
    fn put(&mut self, at: &mut At<'_>, from: u8, frame: &Frame, staged: &[u8]) {
        let (ethernet, watched) =
            (at.adapter.config().link_layer == LinkLayer::Ethernet, self.is_watched(at.adapter));
        match at.adapter.owner(frame.head()) {
            Some(to) if !watched => self.enter(at, to, from, frame, staged),
            None if !watched && ethernet && at.adapter.region().is_switched() => {
                self.put_switched(at, from, frame, staged);
            }
            None if !watched && ethernet && self.put_beside(at, from, frame, staged) => {}
            _ => self.with_whole(at, from, frame, staged, |runner, at, whole| {
                runner.transmit(at, from, whole);
            }),
        }
    }

    /// [`put`](Self::put) for frames to an adapter that a link joins directly to this one. Returns false if the uplink must take the frame.
    fn put_beside(&mut self, at: &mut At<'_>, from: u8, frame: &Frame, staged: &[u8]) -> bool {
        let Some(mac) = frame.head().first_chunk() else { return false };
        // Frames in the uplink must not be overtaken.
        let uplink = OutletRing::of(at.adapter.region(), Outlet::Uplink);
        if at.host.room_beside(*mac).is_none() || !uplink.is_idle() {
            return false;
        }
        self.sealed.clear();
        // A frame with unreadable data is lost; the sender's retries recover from that.
        fetch(at, from, frame, staged, &mut self.sealed).is_err()
            || at.host.deliver_beside(frame.head(), &self.sealed)
    }

    /// [`put`](Self::put) for frames that the e-switch forwards.
    #[cold]
    fn put_switched(&mut self, at: &mut At<'_>, from: u8, frame: &Frame, staged: &[u8]) {
        self.switch.refresh(at.adapter);
        let len = frame.head().len() + frame.payload.len();
        for (to, tags) in self.switch.route(at.adapter, Some(from), frame.head(), len) {
            let mut one = *frame;
            // A frame with headers that fill their space already has no room for another tag.
            if !tags.is_none() && !change_headers(&mut one, |head| tags.apply(head)) {
                continue;
            }
            match to {
                Some(to) => self.enter(at, to, from, &one, staged),
                None => self.with_whole(at, from, &one, staged, |runner, at, whole| {
                    let origin = Origin { from: Some(from), now: at.now };
                    runner.leave(at, origin, whole);
                }),
            }
        }
    }

    /// Calls `then` with the bytes of a frame on a wire, unless its data cannot be read: it is lost then, and the sender's
    /// retries recover from that.
    fn with_whole(
        &mut self,
        at: &mut At<'_>,
        from: u8,
        frame: &Frame,
        staged: &[u8],
        then: impl FnOnce(&mut Self, &mut At<'_>, &mut Vec<u8>),
    ) {
        let mut whole = std::mem::take(&mut self.sealed);
        whole.clear();
        if seal(at, from, frame, staged, &mut whole).is_ok() {
            then(self, at, &mut whole);
        }
        self.sealed = whole;
    }

    /// Notifies `to` of a change that concerns `vport`.
    pub(super) fn notify(&mut self, at: &mut At<'_>, from: Option<u8>, to: u8, vport: u8) {
        if at.push_note(to, vport) {
            self.arrived(at, from, to);
        }
    }

    /// Delivers the notes and raw frames of a step. Returns the number of bytes of the frames.
    #[cold]
    fn deliver_raw(&mut self, at: &mut At<'_>, from: u8) -> u64 {
        for (to, vport) in std::mem::take(&mut self.buffers.notes) {
            self.notify(at, Some(from), to, vport);
        }
        let mut bytes = 0;
        let mut raw = std::mem::take(&mut self.buffers.raw);
        let mut whole = std::mem::take(&mut self.sealed);
        for (start, len) in raw.drain(..) {
            whole.clear();
            let frame = self.buffers.staged.get(start as usize..(start + len) as usize);
            whole.extend_from_slice(frame.unwrap_or_default());
            bytes += whole.len();
            trace(&mut self.trace, at.now, from, Traced::Frame(&whole, 0));
            self.transmit(at, from, &mut whole);
        }
        (self.sealed, self.buffers.raw) = (whole, raw);
        bytes as u64
    }

    /// Puts a frame of `from` into the ring of `to`.
    #[inline]
    fn enter(&mut self, at: &mut At<'_>, to: u8, from: u8, frame: &Frame, staged: &[u8]) {
        let payload = payload_of(frame, from, staged);
        if matches!(payload, SlotPayload::Pieces(..)) && !at.host.by_reference(Rid(from), Rid(to)) {
            self.enter_by_value(at, to, from, frame, staged);
        } else if at.push(to, frame.head(), payload, false) {
            self.arrived(at, Some(from), to);
        }
    }

    /// [`enter`](Self::enter) for a receiver that cannot read the sender's memory.
    #[inline(never)]
    fn enter_by_value(&mut self, at: &mut At<'_>, to: u8, from: u8, frame: &Frame, staged: &[u8]) {
        self.sealed.clear();
        // A frame with unreadable data is lost; the sender's retries recover from that.
        let fetched = fetch(at, from, frame, staged, &mut self.sealed).is_ok();
        if fetched && at.push(to, frame.head(), SlotPayload::Bytes(&self.sealed), false) {
            self.arrived(at, Some(from), to);
        }
    }

    /// Schedules `to`, where a frame of `from` (`None`: from outside) waits, unless another party is about to run it anyway.
    #[inline(always)]
    fn arrived(&mut self, at: &mut At<'_>, from: Option<u8>, to: u8) {
        step(Site::Arrived);
        // The frame is stored before `is_polled` is read: a poller that stops first waits until all earlier stores of other
        // parties are visible, and then looks once more.
        if at.host.is_polled(Rid(to)) {
            self.polled = Some(to);
        } else {
            self.arrived_unpolled(at, from, to);
        }
    }

    /// [`arrived`](Self::arrived) for a function without a poller.
    #[inline(never)]
    fn arrived_unpolled(&mut self, at: &mut At<'_>, from: Option<u8>, to: u8) {
        self.polled = None;
        step(Site::Arrived);
        // The frame must also be stored before the lock of `to` is read.
        fence(SeqCst);
        if at.may_run(from, to) || !at.host.wake_users(Rid(to)) {
            self.due |= 1 << to;
        }
    }

    /// Sends a whole frame of `from` over the wire, past its observers.
    fn transmit(&mut self, at: &mut At<'_>, from: u8, whole: &mut Vec<u8>) {
        let origin = Origin { from: Some(from), now: at.now };
        if at.capture(origin, whole) {
            return;
        }
        for frame in pass(self.link.as_deref_mut(), from, whole) {
            self.carry(at, origin, &frame);
        }
    }

    /// Receives a whole frame from outside.
    pub(super) fn receive_external(&mut self, at: &mut At<'_>, whole: &[u8]) {
        let origin = Origin { from: None, now: at.now };
        if !at.capture(origin, whole) {
            self.carry(at, origin, whole);
        }
    }

    /// Delivers a whole frame to its destinations. A frame from outside is not sent back there.
    pub(super) fn carry(&mut self, at: &mut At<'_>, origin: Origin, whole: &[u8]) {
        for (to, tags) in self.switch.ways(at.adapter, origin.from, whole) {
            let changed = (!tags.is_none()).then(|| tags.changed(whole));
            let whole = changed.as_deref().unwrap_or(whole);
            match to {
                Some(to) if at.push_whole(to, whole) => self.arrived(at, origin.from, to),
                Some(_) => {}
                None => self.leave(at, origin, whole),
            }
        }
    }

    /// Takes a frame that the runner of an adapter [beside](crate::host::Parties::deliver_beside) this one has built, as if a function of
    /// this adapter had sent it. Its receiver is [due](Self::take_due) afterwards. Returns false if the frame must go over the link,
    /// because the address alone does not identify its receiver, or something observes the wire.
    pub fn accept(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        (headers, payload): (&[u8], &[u8]),
    ) -> bool {
        let Some(to) = adapter.owner(headers).filter(|_| !self.is_watched(adapter)) else { return false };
        let at = &mut At { adapter, host, now };
        if at.push(to, headers, SlotPayload::Bytes(payload), false) {
            self.arrived(at, None, to);
        }
        true
    }

    /// Sends a whole frame out of the adapter.
    fn leave(&mut self, at: &mut At<'_>, origin: Origin, whole: &[u8]) {
        if self.link.as_mut().is_some_and(|link| link.leave(whole)) {
            return;
        }
        if OutletRing::of(at.adapter.region(), Outlet::Uplink).push(at.host, origin, whole) {
            at.host.outlet_waits(Outlet::Uplink);
        }
    }
}

impl Adapter {
    /// True if something observes or changes the frames on its wire.
    pub fn is_watched(&self) -> bool {
        is_watched(self.region(), self.config())
    }

    /// The function that a unicast frame is for, by its destination MAC.
    #[inline]
    fn owner_of_mac(&self, frame: &[u8]) -> Option<u8> {
        let mac: [u8; 6] = *frame.first_chunk()?;
        identity::fid_of_mac(self.config().node_id, mac).filter(|fid| self.is_there(*fid))
    }

    /// The function that a frame is for, by its destination LID.
    #[cold]
    fn owner_of_lid(&self, frame: &[u8]) -> Option<u8> {
        let node_id = self.config().node_id;
        let fid = match dlid(frame)? {
            // The switch itself, also as the end of a directed route: its agents run with the PF.
            lid if lid == PERMISSIVE_LID || lid == identity::switch_lid(node_id) => 0,
            lid => identity::fid_of_lid(node_id, lid)?,
        };
        self.is_there(fid).then_some(fid)
    }

    /// The function that a frame is for, if it is one of this adapter.
    #[inline]
    pub fn owner(&self, frame: &[u8]) -> Option<u8> {
        match self.config().link_layer {
            // Without e-switch settings the address identifies the function.
            LinkLayer::Ethernet if self.region().is_switched() => None,
            LinkLayer::Ethernet => self.owner_of_mac(frame),
            LinkLayer::Infiniband => self.owner_of_lid(frame),
        }
    }

    /// Location of the destination address in a frame: frames with equal bytes there have the same destination.
    #[inline]
    pub(crate) fn address_in_frame(&self) -> std::ops::Range<usize> {
        match self.config().link_layer {
            LinkLayer::Ethernet => 0..6,
            LinkLayer::Infiniband => 2..4,
        }
    }

    /// True if the destination of a frame is a group.
    pub(super) fn is_for_group(&self, frame: &[u8]) -> bool {
        match self.config().link_layer {
            // IEEE 802.3, 3.2.3: the first bit on the wire, which is the lowest bit of the first byte.
            LinkLayer::Ethernet => frame.first().is_some_and(|first| first & 1 != 0),
            LinkLayer::Infiniband => dlid(frame).is_some_and(is_multicast),
        }
    }

    /// The functions other than `from` that take frames for groups, or else unicast frames for others.
    pub(super) fn takers(&self, from: Option<u8>, group: bool) -> impl Iterator<Item = u8> + use<'_> {
        let bits = if group { !GROUP_ADDRESSES } else { GROUP_STRANGERS };
        let takes = move |fid| self.region().sync(fid, Sync::Group).load(Relaxed) & bits != 0;
        self.functions().filter(move |fid| Some(*fid) != from && takes(*fid))
    }
}

/// Changes the headers of a frame. Returns false without changing anything if the result does not fit.
fn change_headers(frame: &mut Frame, change: impl FnOnce(&mut Vec<u8>)) -> bool {
    let mut headers = frame.head().to_vec();
    change(&mut headers);
    let Some(room) = frame.headers.get_mut(..headers.len()) else { return false };
    room.copy_from_slice(&headers);
    frame.header_len = headers.len() as u16;
    true
}

/// Appends the bytes of a frame's payload.
fn fetch(at: &mut At<'_>, from: u8, frame: &Frame, staged: &[u8], bytes: &mut Vec<u8>) -> Result<(), Abort> {
    match payload_of(frame, from, staged) {
        SlotPayload::Bytes(payload) => bytes.extend_from_slice(payload),
        SlotPayload::Pieces(rid, pieces) => {
            for piece in pieces {
                let start = bytes.len();
                bytes.resize(start + piece.len as usize, 0);
                at.host.read(rid, piece.at, &mut bytes[start..])?;
            }
        }
    }
    Ok(())
}

/// Writes the frame as it would be on a real wire: headers, payload, pad and ICRC.
pub(super) fn seal(
    at: &mut At<'_>,
    from: u8,
    frame: &Frame,
    staged: &[u8],
    whole: &mut Vec<u8>,
) -> Result<(), Abort> {
    whole.extend_from_slice(frame.head());
    fetch(at, from, frame, staged, whole)?;
    let pad = (4 - frame.payload.len() % 4) % 4;
    whole.resize(whole.len() + pad, 0);
    match at.adapter.config().link_layer {
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
