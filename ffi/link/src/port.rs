//! The port: routes outgoing frames to links and incoming frames to the node, and answers discovery requests for the node's addresses.

use super::bearer::{Bearer, Patience};
use ::sync::Eager;
use devmodel::{
    LinkLayer,
    engine::{Macs, faults::FaultWire},
    region::MAX_FRAME,
    wire::Faults,
};
use hwspec::wire::{Discovery, DiscoveryFrame};
use node::{AddressRequest, Frames, UplinkHold};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering::*},
    },
    time::Duration,
};

/// Maximum number of frames taken from a link or from the node at a time.
pub const BATCH: usize = 64;
/// Maximum number of batches of answers that a thread sends before it receives more.
const ANSWERS: usize = 4;
/// Interval at which an idle link is checked: a peer may have appeared, or a function may have got an address.
pub const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of learnt MACs; beyond it, all are discarded and learnt again.
const LEARNT: usize = 4096;

/// A link of a port.
pub struct PortLink {
    /// Its specification.
    pub spec: String,
    /// InfiniBand: the number of the only adapter behind it.
    pub peer: Option<u16>,
    bearer: Box<dyn Bearer>,
    faulty: bool,
    out: Mutex<FaultWire>,
    inward: Mutex<FaultWire>,
    patience: Patience,
    /// Frames sent.
    pub sent: AtomicU64,
    /// Frames received.
    pub received: AtomicU64,
    /// Frames dropped because the peer had no room or the link does not carry them.
    pub lost: AtomicU64,
}

impl PortLink {
    /// A link over `bearer`; `which` makes the fault sequences of several links differ.
    pub fn new(spec: String, bearer: Box<dyn Bearer>, faults: Faults, which: u32) -> Self {
        Self {
            spec,
            peer: None,
            bearer,
            faulty: !faults.is_none(),
            out: Mutex::new(FaultWire::by_chance(&faults, which * 2)),
            inward: Mutex::new(FaultWire::by_chance(&faults, which * 2 + 1)),
            patience: Patience::default(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Number of faults applied to its frames.
    pub fn hits(&self) -> u64 {
        lock(&self.out).hits() + lock(&self.inward).hits()
    }

    /// The bearer of its frames.
    pub fn bearer(&self) -> &dyn Bearer {
        &*self.bearer
    }

    /// Sends a frame, subject to faults.
    fn emit(&self, now: u64, frame: &[u8]) {
        if !self.faulty {
            return self.send(frame);
        }
        lock(&self.out).enter_any(now, frame.to_vec());
        self.send_late(now);
    }

    /// Sends the frames that have left the wire with its faults. Returns when the next will.
    fn send_late(&self, now: u64) -> Option<u64> {
        let (through, next) = leave(&self.out, now);
        through.iter().for_each(|frame| self.send(frame));
        next
    }

    /// Sends a frame.
    fn send(&self, frame: &[u8]) {
        match self.patience.send(self.bearer.outgoing(), || self.bearer.send(frame)) {
            Ok(()) => self.sent.fetch_add(1, Relaxed),
            Err(error) => {
                tracing::debug!(link = %self.spec, %error, "a frame is lost");
                self.lost.fetch_add(1, Relaxed)
            }
        };
    }

    /// Sends the gathered frames.
    fn flush(&self) {
        let lost = self.bearer.flush();
        self.sent.fetch_sub(lost, Relaxed);
        self.lost.fetch_add(lost, Relaxed);
    }
}

/// The port of a node.
pub struct Port {
    hold: UplinkHold,
    links: Vec<PortLink>,
    /// Frames taken from the uplink. One thread at a time takes them, so that they stay in order.
    carries: Mutex<Frames>,
    /// The link behind which each MAC is.
    learnt: Mutex<BTreeMap<[u8; 6], usize>>,
    /// The functions' MACs other than their permanent ones.
    macs: Mutex<Macs>,
    /// True once a frame with one of the node's addresses as source has come from outside and was reported.
    doubled: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames that have left a wire by `now`, and the time at which the next will.
fn leave(wire: &Mutex<FaultWire>, now: u64) -> (Vec<Vec<u8>>, Option<u64>) {
    let mut wire = lock(wire);
    let through = wire.leave(now).into_iter().map(|(_, frame)| frame).collect();
    (through, wire.next())
}

fn mac_at(frame: &[u8], at: usize) -> [u8; 6] {
    frame.get(at..).and_then(|f| f.first_chunk()).copied().unwrap_or_default()
}

impl Port {
    /// Creates a port with its links.
    pub fn new(hold: UplinkHold, links: Vec<PortLink>) -> Self {
        Self {
            hold,
            links,
            carries: Mutex::default(),
            learnt: Mutex::default(),
            macs: Mutex::default(),
            doubled: AtomicBool::new(false),
        }
    }

    /// The node's end of it.
    pub fn hold(&self) -> &UplinkHold {
        &self.hold
    }

    /// The links.
    pub fn links(&self) -> &[PortLink] {
        &self.links
    }

    fn is_ethernet(&self) -> bool {
        self.hold.node().adapter().config().link_layer == LinkLayer::Ethernet
    }

    /// Handles a frame of the node to an outside or a group address.
    pub fn leave(&self, frame: &[u8]) {
        if self.is_ethernet() {
            if let Some(discovery) = Discovery::read(frame) {
                if let Some(answer) = self.discover(discovery) {
                    return self.take_in(&[&answer], false);
                }
            }
        }
        self.emit(None, frame);
    }

    /// Handles frames that came over `link`. With `quiet`, the caller [sends](Self::answer) the answers.
    pub fn arrive(&self, link: usize, frames: &Frames, quiet: bool) {
        let Some(this) = self.links.get(link) else { return };
        this.received.fetch_add(frames.len() as u64, Relaxed);
        if !this.faulty {
            return self.let_in(link, frames.iter(), quiet);
        }
        let (now, mut wire) = (self.hold.now(), lock(&this.inward));
        frames.iter().for_each(|frame| wire.enter_any(now, frame.to_vec()));
        drop(wire);
        self.arrive_late(link);
    }

    /// Delivers delayed frames of `link` that are due. Returns when the next will be due.
    pub fn arrive_late(&self, link: usize) -> Option<u64> {
        let (through, next) = leave(&self.links.get(link)?.inward, self.hold.now());
        self.let_in(link, through.iter().map(Vec::as_slice), false);
        next
    }

    fn let_in<'f>(&self, link: usize, frames: impl Iterator<Item = &'f [u8]>, quiet: bool) {
        let mut for_us = Vec::new();
        // Others are longer than any valid frame.
        for frame in frames.filter(|frame| frame.len() <= MAX_FRAME) {
            if !self.is_ethernet() {
                if self.let_in_routed(link, frame) {
                    for_us.push(frame);
                }
                continue;
            }
            let (dst, src) = (mac_at(frame, 0), mac_at(frame, 6));
            self.learn(src, link);
            if let Some(discovery) = Discovery::read(frame) {
                if let Some(answer) = self.discover(discovery) {
                    self.emit(Some(link), &answer);
                    continue;
                }
            }
            let (ours, enters) = self.look_up(dst);
            if !ours && self.links.len() > 1 {
                self.pass_on(link, frame);
            }
            if enters {
                for_us.push(frame);
            }
        }
        self.flush();
        self.take_in(&for_us, quiet);
    }

    /// Delivers frames to the node.
    fn take_in(&self, frames: &[&[u8]], quiet: bool) {
        if !frames.is_empty() {
            self.hold.receive(frames, quiet);
        }
    }

    /// Returns whether `mac` belongs to a function here, and whether frames to it enter the node. A guest or a PF's driver may have given a
    /// function another MAC, or have it receive frames for others.
    fn look_up(&self, mac: [u8; 6]) -> (bool, bool) {
        if mac[0] & 1 != 0 {
            return (false, true);
        }
        if self.is_born_here(mac) {
            return (true, true);
        }
        let mut macs = lock(&self.macs);
        macs.refresh(self.hold.node().adapter());
        let ours = macs.has(mac);
        (ours, ours || macs.takes_strangers())
    }

    /// True if `mac` is the permanent MAC of a function of the node.
    fn is_born_here(&self, mac: [u8; 6]) -> bool {
        devmodel::identity::fid_of_mac(self.hold.node().adapter().config().node_id, mac).is_some()
    }

    fn learn(&self, mac: [u8; 6], link: usize) {
        if self.is_born_here(mac) {
            if !self.doubled.swap(true, Relaxed) {
                let spec = &self.links[link].spec;
                tracing::warn!(
                    "a frame with an address of this adapter came over {spec}: another adapter with the same id?"
                );
            }
            return;
        }
        if self.links.len() < 2 || mac[0] & 1 != 0 {
            return;
        }
        let mut learnt = lock(&self.learnt);
        if learnt.len() >= LEARNT {
            learnt.clear();
        }
        learnt.insert(mac, link);
    }

    /// Sends a frame over `only`, or else over the link to its destination, or over all links if that is not known.
    fn emit(&self, only: Option<usize>, frame: &[u8]) {
        let known = match only {
            Some(_) => only,
            None if self.links.len() > 1 => self.known(frame),
            None => None,
        };
        let now = self.hold.now();
        for (i, link) in self.links.iter().enumerate() {
            if known.is_none_or(|known| known == i) {
                link.emit(now, frame);
            }
        }
    }

    /// Sends delayed frames that are due. Returns when the next will be due.
    pub fn emit_late(&self) -> Option<u64> {
        let now = self.hold.now();
        self.links.iter().filter_map(|link| link.send_late(now)).min()
    }

    /// The link to the destination of a frame, if known.
    fn known(&self, frame: &[u8]) -> Option<usize> {
        match self.is_ethernet() {
            true => lock(&self.learnt).get(&mac_at(frame, 0)).copied(),
            false => self.link_to(frame),
        }
    }

    /// Forwards a frame from one link to the others, like a switch.
    pub(super) fn pass_on(&self, from: usize, frame: &[u8]) {
        let known = self.known(frame);
        for (i, link) in self.links.iter().enumerate() {
            if i != from && known.is_none_or(|known| known == i) {
                link.send(frame);
            }
        }
    }

    /// Learns the addresses in a discovery frame. Returns the reply if it asks for one of the node's addresses.
    fn discover(&self, discovery: Discovery) -> Option<DiscoveryFrame> {
        match discovery {
            Discovery::Answer { ip, mac } => {
                self.hold.heard(ip, mac);
                None
            }
            Discovery::Request { from, target } => {
                if !from.0.is_unspecified() {
                    self.hold.heard(from.0, from.1);
                }
                let device = self.hold.driven_here(target)?;
                Discovery::answer(device.mac, target, from).filter(|_| device.mac != from.1)
            }
        }
    }

    /// Sends the discovery requests of the node's programs. Returns when (ps) to check again.
    pub fn ask(&self) -> Option<u64> {
        let (requests, again) = self.hold.address_requests();
        for AddressRequest { ip, asker } in requests {
            let device = self.hold.device(asker);
            for (i, link) in self.links.iter().enumerate() {
                if let Some(mac) = link.bearer.neighbour(device.ip, ip) {
                    lock(&self.learnt).insert(mac, i);
                    self.hold.heard(ip, mac);
                }
            }
            let own = match (ip, device.ip) {
                (IpAddr::V6(_), IpAddr::V4(_)) => node::gid::ip_of_gid(&device.gids[0]),
                (_, own) => own,
            };
            if let Some(frame) = Discovery::request(device.mac, own, ip) {
                // Guests of this node may have the address as well.
                self.take_in(&[&frame], false);
                self.emit(None, &frame);
            }
        }
        again
    }

    fn flush(&self) {
        self.links.iter().for_each(PortLink::flush);
    }

    /// Takes the frames that wait in the uplink, at most `most` batches. Returns the number of batches.
    fn carry(&self, frames: &mut Frames, most: usize) -> usize {
        for round in 0..most {
            frames.clear();
            self.hold.pop(frames, BATCH);
            if frames.is_empty() {
                return round;
            }
            frames.iter().for_each(|frame| self.leave(frame));
            self.flush();
        }
        most
    }

    /// Sends the answers to what [arrived](Self::arrive) quietly. The thread that [runs](Self::run) does it if it is at work, or if there
    /// are many.
    pub fn answer(&self) {
        let carries = match self.carries.try_lock() {
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            result => result.ok(),
        };
        if carries.is_none_or(|mut frames| self.carry(&mut frames, ANSWERS) == ANSWERS) {
            self.hold.wake();
        }
    }

    /// Takes frames from the uplink until `stop`.
    pub fn run(&self, stop: &AtomicBool) {
        let mut eager = Eager::default();
        while !stop.load(Acquire) {
            let seen = self.hold.wake_count();
            if self.carry(&mut lock(&self.carries), usize::MAX) != 0 {
                eager.end();
            }
            let until = [self.emit_late(), self.ask()].into_iter().flatten().min();
            self.flush();
            // Late frames and requests have deadlines, which eager polling could miss.
            let came =
                until.is_none() && eager.look(|| (self.hold.wake_count() != seen).then_some(())).is_some();
            if !came && !stop.load(Acquire) {
                self.hold.sleep(seen, until);
            }
        }
    }
}
