//! Frames whose address does not say whose they are: to groups, by the e-switch, and those that are none of the transport's.

use super::{Timed, wire::Flight};
use crate::{
    Adapter,
    engine::{
        card::{Made, Outgoing},
        runner::{TraceEvent, Traced},
        spans::Cause,
    },
    host::Host,
    mlx5::{Frame, Job, Payload},
    region::{SlotPayload, WireRing},
};

impl<T> Timed<'_, T> {
    /// Brings all bytes of a frame to whoever takes it, each with its tags as it gets them. Nobody is outside.
    #[cold]
    pub(super) fn share(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        bytes: u64,
        flight: Box<Flight>,
        whole: &[u8],
    ) {
        let ways = self.switch.ways(adapter, Some(flight.from()), whole);
        for (to, tags) in ways.into_iter().filter_map(|(to, tags)| Some((to?, tags))) {
            let mut one = flight.clone();
            one.whole = Some(tags.changed(whole));
            self.send_off(adapter, host, (to, bytes, one));
        }
    }

    /// Sends what a step has made that is none of the transport's: frames of programs, and notes between functions. Returns when the last
    /// frame has left the port.
    pub(super) fn transmit_raw(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        fid: u8,
        cause: Cause,
    ) -> Option<Cause> {
        if self.buffers.raw.is_empty() {
            return None;
        }
        let mut last = None;
        for (at, len) in std::mem::take(&mut self.buffers.raw) {
            let frame = self.buffers.staged.get(at as usize..(at + len) as usize);
            let Some(whole) = frame.map(<[u8]>::to_vec) else { continue };
            if let [to, vport] = whole[..] {
                self.note(adapter, host, cause, to, vport);
            } else {
                last = Some(self.transmit_whole(adapter, host, fid, cause, whole));
            }
        }
        last
    }

    #[cold]
    fn transmit_whole(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        fid: u8,
        cause: Cause,
        whole: Vec<u8>,
    ) -> Cause {
        let now = self.schedule.now();
        if let Some(watch) = &mut self.trace {
            watch(&TraceEvent { now, fid, what: Traced::Frame(&whole, 0) });
        }
        self.frames[0] += 1;
        let (here, len) = (self.place(fid), whole.len() as u64);
        let Self { cards, profile, spans, mirror, .. } = self;
        let sent = cards[here].send(
            profile,
            spans,
            here,
            cause,
            Outgoing { made: Made::Read, frame: len, data: len },
        );
        if let Some(mirror) = mirror {
            mirror.pass(now);
            mirror.frame(sent.at, whole.clone());
        }
        let flight = Flight::new(Frame::new(Payload::Empty), Vec::new(), fid, sent);
        self.share(adapter, host, len, Box::new(flight), &whole);
        sent
    }

    /// A function is told of something that another one did.
    #[cold]
    fn note(&mut self, adapter: &Adapter, host: &mut dyn Host, cause: Cause, to: u8, vport: u8) {
        let ring = WireRing::of(adapter.region(), to);
        if adapter.is_there(to) && ring.push(host, &[], SlotPayload::Bytes(&[vport]), true) {
            self.submit(cause, to, Job::Arrive);
        }
    }
}
