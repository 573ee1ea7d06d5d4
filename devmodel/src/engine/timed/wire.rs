//! Frames between cards: over the profile's wire or through links and switches, with faults applied on the way.

use super::{Ends, Happened, Task, Timed, What, qp_mask};
use crate::{
    Adapter, LinkLayer,
    engine::{
        card::{For, Made, Outgoing, Piece},
        faults::damage,
        network::{Fabric, Move, Packet, Pause, PortLoad, Settings, Topology},
        route::{At, payload_of, seal},
        runner::{Traced, trace},
        sched::Ps,
        spans::{Cause, Part},
    },
    mlx5::{Frame, Job, Payload},
    wire::pass,
};
use hwspec::wire::{BthOpcode, Headers, ICRC_SIZE, Operation, ip::mark_congested, lrh::VCRC_SIZE, pad};
use std::{borrow::Cow, collections::VecDeque};

/// A frame between two functions.
#[derive(Clone)]
pub(super) struct Flight {
    frame: Frame,
    bytes: Vec<u8>,
    from: u8,
    pub(super) cause: Cause,
    /// The whole frame, if its receiver gets it as bytes: it was corrupted on the way, or its address does not identify its receiver.
    whole: Option<Vec<u8>>,
    /// Its number in the timeline of a fault plan.
    number: Option<usize>,
}

impl Flight {
    /// A frame of `from`, which has left its port at `cause`.
    fn new(frame: Frame, bytes: Vec<u8>, from: u8, cause: Cause) -> Self {
        Self { frame, bytes, from, cause, whole: None, number: None }
    }

    /// A whole frame, which is nothing but bytes.
    fn of_bytes(whole: Vec<u8>, from: u8, cause: Cause) -> Self {
        Self { whole: Some(whole), ..Self::new(Frame::new(Payload::Empty), Vec::new(), from, cause) }
    }

    /// Its headers, if it belongs to the transport.
    fn transport(&self, link_layer: LinkLayer) -> Option<Headers<'_>> {
        headers_of(link_layer, self.frame.head(), self.frame.payload.len())
    }
}

/// A frame for a function, with its bytes on the wire.
pub(super) type Bound = (u8, u64, Box<Flight>);

/// Links and switches between the cards; each card is in its own host.
pub(super) struct Network {
    pub(super) fabric: Fabric<(u8, Box<Flight>)>,
    /// Bytes of payload received from each card.
    came: Vec<u64>,
    /// For each card, packets that have arrived and are not processed yet.
    inboxes: Vec<Inbox>,
}

/// Packets that have arrived at a card and are not processed yet.
#[derive(Clone, Default)]
struct Inbox {
    /// Processing time and bytes of each packet.
    waiting: VecDeque<(Ps, u64)>,
    bytes: u64,
    /// The card has paused its sender.
    pauses: bool,
}

impl Inbox {
    /// Bytes that wait at `now`.
    fn at(&mut self, now: Ps) -> u64 {
        while let Some((_, bytes)) = self.waiting.front().filter(|(until, _)| *until <= now) {
            self.bytes -= bytes;
            self.waiting.pop_front();
        }
        self.bytes
    }
}

impl<T> Timed<'_, T> {
    /// Connects the cards, in order, to the hosts of `topology`.
    pub(crate) fn join(&mut self, topology: &Topology, settings: Settings, seed: u64) {
        let (fabric, cards) = (Fabric::new(topology, settings, seed), self.cards.len());
        self.network = Some(Network { fabric, came: vec![0; cards], inboxes: vec![Inbox::default(); cards] });
    }

    /// The loads of the ports of hosts and switches, by node and port.
    pub(crate) fn ports(&self) -> Vec<(usize, usize, PortLoad)> {
        self.network.iter().flat_map(|network| network.fabric.loads()).collect()
    }

    /// Pauses of ports since the last call.
    pub(crate) fn pauses(&mut self) -> Vec<Pause> {
        self.network.as_mut().map(|network| std::mem::take(&mut network.fabric.pauses)).unwrap_or_default()
    }

    /// Bytes of payload received from each card.
    pub(crate) fn came(&self) -> &[u64] {
        self.network.as_ref().map_or(&[], |network| &network.came)
    }

    /// Sends the notes and frames of a step: fetches payload from memory, then uses the wire. Returns the time at which the last
    /// of them has left the port.
    pub(super) fn transmit(&mut self, at: &mut At<'_>, fid: u8, reads: bool, cause: Cause) -> Option<Cause> {
        for (to, vport) in std::mem::take(&mut self.buffers.notes) {
            if at.push_note(to, vport) {
                self.submit(cause, to, Job::Arrive);
            }
        }
        let mut last = None;
        for (start, len) in std::mem::take(&mut self.buffers.raw) {
            let whole = self.buffers.staged.get(start as usize..(start + len) as usize);
            let (mut whole, len) = (whole.unwrap_or_default().to_vec(), u64::from(len));
            let out = Outgoing { made: Made::Read, frame: len, data: len, piece: None };
            let sent = self.depart(at, fid, (&whole, 0), cause, out);
            last = Some(sent);
            if let Some(mirror) = &mut self.mirror {
                mirror.frame(sent.at, whole.clone());
            }
            let flight = Flight::of_bytes(Vec::new(), fid, sent);
            self.share(at, len, flight, &mut whole);
        }
        let mut out = std::mem::take(&mut self.buffers.out);
        for frame in out.iter() {
            let Some(out) = outgoing(at.adapter, (fid, frame), reads) else { continue };
            let sent = self.depart(at, fid, (frame.head(), frame.payload.len()), cause, out);
            last = Some(sent);
            let (to, mut whole) = (at.adapter.owner(frame.head()), Vec::new());
            let watched = self.mirror.is_some() || self.link.is_some();
            let sealed =
                (to.is_none() || watched) && seal(at, fid, frame, &self.buffers.staged, &mut whole).is_ok();
            if let Some(mirror) = self.mirror.as_mut().filter(|_| sealed) {
                mirror.frame(sent.at, whole.clone());
            }
            let (mut frame, mut staged) = (*frame, Vec::new());
            if let Payload::Staged(from, len) = frame.payload {
                let bytes = self.buffers.staged.get(from as usize..(from + len) as usize);
                staged = bytes.unwrap_or_default().to_vec();
                frame.payload = Payload::Staged(0, len);
            }
            let flight = Flight::new(frame, staged, fid, sent);
            match to {
                Some(to) if self.link.is_none() => self.send_off(at, (to, out.frame, Box::new(flight))),
                _ if sealed => self.share(at, out.frame, flight, &mut whole),
                _ => {}
            }
        }
        out.clear();
        self.buffers.out = out;
        self.buffers.delivered();
        last
    }

    /// The card of `fid` sends a frame with these headers and so many bytes of payload. Returns the time at which it has left.
    fn depart(
        &mut self,
        at: &At<'_>,
        fid: u8,
        (headers, payload): (&[u8], usize),
        cause: Cause,
        out: Outgoing,
    ) -> Cause {
        trace(&mut self.trace, at.now, fid, Traced::Frame(headers, payload));
        self.frames[0] += 1;
        self.frames[1] += u64::from(out.made == Made::Acknowledgement);
        if let Some(mirror) = &mut self.mirror {
            mirror.pass(at.now);
        }
        let here = self.place(fid);
        self.cards[here].send(&mut self.spans, cause, out)
    }

    /// Delivers a whole frame past the link to each of its destinations, with its tags changed for each. Only a link leads outside.
    #[cold]
    fn share(&mut self, at: &mut At<'_>, bytes: u64, flight: Flight, whole: &mut Vec<u8>) {
        for frame in pass(self.link.as_deref_mut(), flight.from, whole) {
            for (to, tags) in self.switch.ways(at.adapter, Some(flight.from), &frame) {
                let whole = tags.changed(&frame);
                match (to, &mut self.link) {
                    (Some(to), _) => {
                        let flight = match frame {
                            Cow::Borrowed(_) => flight.clone(),
                            // One that the link held back.
                            Cow::Owned(_) => Flight::of_bytes(Vec::new(), flight.from, flight.cause),
                        };
                        self.send_off(at, (to, bytes, Box::new(Flight { whole: Some(whole), ..flight })));
                    }
                    (None, Some(link)) => _ = link.leave(&whole),
                    (None, None) => {}
                }
            }
        }
    }

    /// Receives a whole frame from outside, now.
    pub fn receive_external(&mut self, adapter: &Adapter, whole: &[u8]) {
        let now = self.schedule.now();
        for (to, tags) in self.switch.ways(adapter, None, whole) {
            let Some(to) = to else { continue };
            let flight = Flight::of_bytes(tags.changed(whole), to, Cause::new(now));
            self.schedule.at(now, What::Frame(to, Box::new(flight)));
        }
    }

    /// Sends a frame that has left its card to its function, subject to the fault plan.
    fn send_off(&mut self, at: &mut At<'_>, bound: Bound) {
        match self.injector.is_some() {
            true => self.inject_faults(at, bound),
            false => self.enter_wire(bound),
        }
    }

    /// Puts a frame that has left its card on the wire.
    pub(super) fn enter_wire(&mut self, (to, bytes, mut flight): Bound) {
        let (here, there) = (self.place(flight.from), self.place(to));
        let sent = flight.cause;
        if self.network.is_some() {
            let packet = packet_of(self.profile.wire.link_layer, there, bytes, (to, flight));
            return self.schedule.at(sent.at, What::Net(Move::Left(here, packet)));
        }
        let Self { cards, profile, spans, .. } = self;
        let across = sent.at + profile.wire.across(bytes);
        let cable = spans.then(sent, here, Part::Cable, sent.at + profile.wire.propagation.ps());
        let across = spans.then(cable, here, Part::Switch, across);
        flight.cause = cards[there].receive(spans, across);
        self.schedule.at(flight.cause.at, What::Frame(to, flight));
    }

    /// [`send_off`](Self::send_off) with a fault plan. Faults apply to the transport's frames, so a frame without transport
    /// headers passes.
    #[cold]
    fn inject_faults(&mut self, at: &mut At<'_>, (to, bytes, mut flight): Bound) {
        let (now, fid) = (at.now, flight.from);
        let here = self.place(fid);
        let link_layer = at.adapter.config().link_layer;
        let (left, data) = (flight.cause.at, flight.frame.payload.len() as u32);
        let Some((injector, headers)) = self.injector.as_mut().zip(flight.transport(link_layer)) else {
            return self.enter_wire((to, bytes, flight));
        };
        let (number, effects) = injector.sent((now, left), (Some(fid), Some(to)), &headers, data);
        flight.number = number;
        if effects.pause > 0 {
            self.cards[here].pause(now + effects.pause);
        }
        if effects.mark && link_layer == LinkLayer::Ethernet {
            let len = usize::from(flight.frame.header_len);
            mark_congested(&mut flight.frame.headers[..len]);
            let _ = flight.whole.as_mut().map(|whole| mark_congested(whole));
        }
        if effects.corrupt && flight.whole.is_none() {
            let mut whole = Vec::new();
            if seal(at, fid, &flight.frame, &flight.bytes, &mut whole).is_ok() {
                flight.whole = Some(whole);
            }
        }
        if let Some(whole) = flight.whole.as_mut().filter(|_| effects.corrupt) {
            damage(link_layer, whole);
        }
        let Some(injector) = &mut self.injector else { return };
        let (frames, passed) = injector.apply(&effects, Some(fid), (to, bytes, flight));
        for mut one in frames {
            if effects.delay > 0 {
                one.2.cause = self.spans.then(one.2.cause, here, Part::Cable, left + effects.delay);
                self.schedule.at(left + effects.delay, What::Late(one));
            } else {
                self.enter_wire(one);
            }
        }
        for (to, bytes, mut late) in passed {
            late.cause = self.spans.then(late.cause, here, Part::Cable, left);
            self.enter_wire((to, bytes, late));
        }
    }

    /// Handles an event between the cards. Returns a frame that its receiver processes at once, with the receiver's number.
    pub(super) fn network_event(&mut self, what: Move<(u8, Box<Flight>)>) -> Option<(u8, Box<Flight>)> {
        let now = self.schedule.now();
        let Self { network, schedule, .. } = self;
        let fabric = &mut network.as_mut()?.fabric;
        let there = fabric.happen(now, what, &mut |at, what| schedule.at(at, What::Net(what)));
        for card in std::mem::take(&mut fabric.released) {
            self.call(card);
        }
        let packet = there?;
        let (to, mut flight) = packet.item;
        if packet.marked {
            let len = usize::from(flight.frame.header_len);
            mark_congested(&mut flight.frame.headers[..len]);
        }
        let from = self.place(flight.from);
        let Self { network, schedule, spans, cards, .. } = self;
        if let Some(network) = network {
            network.came[from] += flight.frame.payload.len() as u64;
        }
        let across = spans.then(flight.cause, packet.to, Part::Switch, now);
        flight.cause = cards[packet.to].receive(spans, across);
        let until = flight.cause.at;
        if until == now {
            return Some((to, flight));
        }
        schedule.at(until, What::Frame(to, flight));
        let inbox = &mut network.as_mut()?.inboxes[packet.to];
        inbox.waiting.push_back((until, packet.bytes));
        inbox.bytes += packet.bytes;
        if !inbox.pauses {
            self.watch_inbox(packet.to);
        }
        None
    }

    /// Pauses the sender to a card with a full receive buffer, as cards do by default, and resumes it when the buffer is
    /// three quarters full.
    pub(super) fn watch_inbox(&mut self, card: usize) {
        let Self { network, schedule, cards, profile, .. } = self;
        let Some(Network { fabric, inboxes, .. }) = network else { return };
        let (now, inbox) = (schedule.now(), &mut inboxes[card]);
        let full = profile.slot.time(profile.card.receive_buffer.into());
        let waits = cards[card].behind(now) + profile.slot.time(inbox.at(now));
        let left = waits.saturating_sub(full - full / 4);
        let on = if inbox.pauses { left > 0 } else { waits >= full };
        if on {
            // If nothing else arrives, this much is drained by then.
            schedule.at(now + left, What::Room(card));
        }
        if on != inbox.pauses {
            inbox.pauses = on;
            fabric.hold(now, card, on, &mut |at, what| schedule.at(at, What::Net(what)));
        }
    }

    /// Processes a received frame on its function.
    pub(super) fn receive(&mut self, at: &mut At<'_>, fid: u8, mut flight: Box<Flight>) -> Happened<T> {
        let bth = flight.transport(at.adapter.config().link_layer).map(|headers| headers.bth());
        let (mut ends, here) = (None, self.place(fid));
        if let Some(bth) = bth {
            let opcode = bth.opcode();
            let of = if opcode.is_response() { Ends::Answer } else { Ends::Message };
            ends = opcode.is_last().then_some(of);
            let qp = bth.dest_qp().0 & qp_mask(at.adapter);
            let queue = (fid, qp, For::Receiving);
            flight.cause = self.cards[here].context(&mut self.spans, queue, flight.cause);
        }
        let cause = self.arrive(at, fid, &flight);
        Happened::Function { fid, cause, ends }
    }

    /// Pushes a received frame into its receiver's ring and processes it. Returns the time and chain of spans of the resulting writes.
    fn arrive(&mut self, at: &mut At<'_>, to: u8, flight: &Flight) -> Cause {
        if let Some((injector, number)) = self.injector.as_mut().zip(flight.number) {
            injector.arrived(number, at.now);
        }
        let came = match &flight.whole {
            Some(whole) => at.push_whole(to, whole),
            None => {
                let payload = payload_of(&flight.frame, flight.from, &flight.bytes);
                at.push(to, flight.frame.head(), payload, false)
            }
        };
        match came {
            true => self.run_task(at, &Task::new(to, Job::Arrive, flight.cause)),
            false => flight.cause,
        }
    }
}

/// A packet for the fabric. Connections are distinguished by their queue pairs; a real switch would use the UDP port derived from them.
fn packet_of(
    link_layer: LinkLayer,
    to: usize,
    bytes: u64,
    item: (u8, Box<Flight>),
) -> Packet<(u8, Box<Flight>)> {
    let mut packet = Packet::new(to, 0, bytes, item);
    if let Some(headers) = packet.item.1.transport(link_layer) {
        let bth = headers.bth();
        let (urgent, may_mark) =
            (bth.opcode() == BthOpcode::Cnp, matches!(headers.traffic_class() & 3, 1 | 2));
        // Spreads neighbouring numbers over different paths (Knuth's multiplicative hash).
        let hash = (bth.dest_qp().0 ^ u32::from(packet.item.1.from) << 16).wrapping_mul(0x9e37_79b1) >> 8;
        (packet.urgent, packet.may_mark, packet.hash) = (urgent, may_mark, hash);
    }
    packet
}

/// The headers of a frame built by the model, with `payload` bytes of payload.
fn headers_of(link_layer: LinkLayer, head: &[u8], payload: usize) -> Option<Headers<'_>> {
    let size = head.len() + payload + pad(payload) + ICRC_SIZE;
    match link_layer {
        LinkLayer::Ethernet => Headers::of_built(head, size).ok(),
        LinkLayer::Infiniband => Headers::parse_route(head, size + VCRC_SIZE).ok(),
    }
}

/// The packet to send for a frame of function `fid`; `None` if its headers cannot be parsed, which no stage produces. `reads`:
/// its data was copied from host memory.
fn outgoing(adapter: &Adapter, (fid, frame): (u8, &Frame), reads: bool) -> Option<Outgoing> {
    let (head, data) = (frame.head(), frame.payload.len());
    let bth = headers_of(adapter.config().link_layer, head, data)?.bth();
    let opcode = bth.opcode();
    let made = match opcode.operation() {
        Some(Operation::ReadResponse) => Made::ReadAnswer,
        Some(Operation::AtomicAck) => Made::AtomicAnswer,
        Some(Operation::Ack) => Made::Acknowledgement,
        _ if data > 0 && (reads || matches!(frame.payload, Payload::Pieces(..))) => Made::Read,
        _ => Made::Inline,
    };
    let (begins, ends) = (opcode.is_first(), opcode.is_last());
    let piece = (!begins || !ends).then(|| {
        let (mut to, address) = ([0; 6], &head[adapter.address_in_frame()]);
        to[..address.len()].copy_from_slice(address);
        Piece { flow: (fid, opcode.is_response(), bth.dest_qp().0, to), begins, ends }
    });
    let frame = (head.len() + data + pad(data) + ICRC_SIZE) as u64;
    Some(Outgoing { made, frame, data: data as u64, piece })
}
