//! Maps IP addresses to MACs: ARP (RFC 826) and neighbour discovery (RFC 4861) of one function, as a state machine
//! without I/O or clock.
//!
//! Received frames go in through [`Neighbours::heard`], frames to send come out of [`Neighbours::frame`]; time is an
//! argument.

use crate::resolve::OwnAddress;
use hwspec::wire::{Discovery, DiscoveryFrame};
use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

/// Maximum number of neighbours; the most recent are kept.
const MOST: usize = 1024;
/// Age at which a MAC is requested again while it is still used.
const FRESH: Duration = Duration::from_secs(30);
/// Age after which a MAC must be confirmed before further use.
const OLD: Duration = Duration::from_secs(300);
/// Interval between requests for the same address.
const AGAIN: Duration = Duration::from_millis(250);
/// Number of requests for an address before it counts as silent.
pub const TRIES: u32 = 12;

/// Time after which an address without answers counts as silent.
pub const PATIENCE: Duration = Duration::from_millis(250 * TRIES as u64);

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The MAC.
    Known([u8; 6]),
    /// A request has been queued.
    Asked,
    /// [`TRIES`] requests got no answer. The next lookup starts over.
    Silent,
}

/// Another station uses one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub ip: IpAddr,
    /// The MAC of the other station.
    pub mac: [u8; 6],
}

struct Entry {
    mac: Option<[u8; 6]>,
    /// Time of the last frame from it; before the first, time of creation.
    heard: Instant,
    /// Number of requests sent since, and time of the last; one more than [`TRIES`] if silent. `None` if there is no
    /// request.
    asked: Option<(u32, Instant)>,
    /// Our address, the source of requests.
    from: IpAddr,
}

/// The state machine of one function.
pub struct Neighbours {
    mac: [u8; 6],
    /// Our addresses, each with the last station that claimed it.
    own: Vec<(OwnAddress, Option<[u8; 6]>)>,
    entries: HashMap<(IpAddr, Option<u16>), Entry>,
    out: VecDeque<DiscoveryFrame>,
}

impl Neighbours {
    /// Creates the state of a function with `mac` and these addresses, and queues their announcements.
    pub fn new(mac: [u8; 6], own: Vec<OwnAddress>) -> Self {
        let announce = |own: &OwnAddress| tagged(Discovery::announcement(mac, own.ip), own.vlan);
        let out = own.iter().map(announce).collect();
        let own = own.into_iter().map(|own| (own, None)).collect();
        Self { mac, own, entries: HashMap::new(), out }
    }

    /// Takes the next frame to send.
    pub fn frame(&mut self) -> Option<DiscoveryFrame> {
        self.out.pop_front()
    }

    /// Looks up the MAC of `ip`, on behalf of our address `from` and in its VLAN.
    pub fn lookup(&mut self, ip: IpAddr, from: OwnAddress, now: Instant) -> Lookup {
        let key = (ip, from.vlan);
        if !self.entries.contains_key(&key) {
            self.make_room();
        }
        let entry =
            self.entries.entry(key).or_insert(Entry { mac: None, heard: now, asked: None, from: from.ip });
        let age = now.saturating_duration_since(entry.heard);
        if age >= OLD {
            entry.mac = None;
        }
        entry.from = from.ip;
        match (entry.mac, entry.asked) {
            (Some(mac), None) if age < FRESH => return Lookup::Known(mac),
            (None, Some((tries, _))) if tries > TRIES => {
                self.entries.remove(&key);
                return Lookup::Silent;
            }
            (_, None) => self.ask(key, 1, now),
            _ => {}
        }
        let known = self.entries.get(&key).and_then(|entry| entry.mac);
        known.map_or(Lookup::Asked, Lookup::Known)
    }

    fn ask(&mut self, (ip, vlan): (IpAddr, Option<u16>), tries: u32, now: Instant) {
        let Some(entry) = self.entries.get_mut(&(ip, vlan)) else { return };
        entry.asked = Some((tries, now));
        if let Some(frame) = Discovery::request(self.mac, entry.from, ip) {
            self.out.push_back(tagged(frame, vlan));
        }
    }

    fn make_room(&mut self) {
        if self.entries.len() < MOST {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.heard).map(|(key, _)| *key);
        oldest.and_then(|key| self.entries.remove(&key));
    }

    /// Repeats due requests. A peer that does not answer the last one is forgotten, or marked silent if its MAC was
    /// never known.
    pub fn poll(&mut self, now: Instant) {
        let mut again = Vec::new();
        self.entries.retain(|key, entry| {
            let Some((tries, last)) = entry.asked else { return true };
            if tries > TRIES || now.saturating_duration_since(last) < AGAIN {
                return true;
            }
            match tries < TRIES {
                true => again.push((*key, tries + 1)),
                false => entry.asked = Some((TRIES + 1, last)),
            }
            // An entry that a caller waits for is kept, to be reported as silent.
            tries < TRIES || entry.mac.is_none()
        });
        again.into_iter().for_each(|(key, tries)| self.ask(key, tries, now));
    }

    /// Time of the next call to [`Neighbours::poll`].
    pub fn due(&self) -> Option<Instant> {
        let asked = self.entries.values().filter_map(|entry| entry.asked);
        asked.filter(|(tries, _)| *tries <= TRIES).map(|(_, last)| last + AGAIN).min()
    }

    /// Processes a received frame: answers requests for our addresses, and learns the sender's MAC. Reports each other
    /// station that uses one of our addresses once.
    pub fn heard(&mut self, frame: &[u8], now: Instant) -> Option<Conflict> {
        let (vlan, discovery) = Discovery::read_tagged(frame)?;
        let (ip, mac) = match discovery {
            Discovery::Request { from, .. } => from,
            Discovery::Answer { ip, mac } => (ip, mac),
        };
        // Multicast and zero MACs belong to no station; some switches return our own frames.
        if mac[0] & 1 != 0 || mac == [0; 6] || mac == self.mac {
            return None;
        }
        let ours = |ip: IpAddr| move |own: &&mut (OwnAddress, _)| own.0 == OwnAddress { ip, vlan };
        if let Some((_, claimed)) = self.own.iter_mut().find(ours(ip)) {
            let news = claimed.replace(mac) != Some(mac);
            return news.then_some(Conflict { ip, mac });
        }
        match discovery {
            Discovery::Request { from, target } if self.own.iter_mut().any(|own| ours(target)(&own)) => {
                // The sender will get an answer, and most likely further messages soon (RFC 826).
                self.learn((ip, vlan), mac, now, true);
                if let Some(answer) = Discovery::answer(self.mac, target, from) {
                    self.out.push_back(tagged(answer, vlan));
                }
            }
            _ => self.learn((ip, vlan), mac, now, false),
        }
        None
    }

    /// Records a MAC. Unknown neighbours are added only if `is_new`; otherwise any station could fill the table.
    fn learn(&mut self, key: (IpAddr, Option<u16>), mac: [u8; 6], now: Instant, is_new: bool) {
        if key.0.is_unspecified() {
            return;
        }
        if is_new && !self.entries.contains_key(&key) {
            self.make_room();
            let entry = Entry { mac: Some(mac), heard: now, asked: None, from: key.0 };
            self.entries.insert(key, entry);
            return;
        }
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if let Some(before) = entry.mac.replace(mac).filter(|before| *before != mac) {
            tracing::info!(ip = %key.0, ?before, ?mac, "a neighbour has another MAC address");
        }
        (entry.heard, entry.asked) = (now, None);
    }
}

fn tagged(frame: DiscoveryFrame, vlan: Option<u16>) -> DiscoveryFrame {
    vlan.map_or(frame, |vid| frame.in_vlan(vid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 3];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn own(text: &str, vlan: Option<u16>) -> OwnAddress {
        OwnAddress { ip: ip(text), vlan }
    }

    /// Pairs of our address and a peer's used by the tests.
    const PAIRS: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];

    /// A function with its announcements already sent.
    fn announced(addresses: &[OwnAddress]) -> Neighbours {
        let mut neighbours = Neighbours::new(US, addresses.to_vec());
        assert_eq!(frames(&mut neighbours).len(), addresses.len());
        neighbours
    }

    fn frames(neighbours: &mut Neighbours) -> Vec<DiscoveryFrame> {
        std::iter::from_fn(|| neighbours.frame()).collect()
    }

    /// A peer's answer to our request.
    fn answer(peer: &str, mac: [u8; 6], us: &str) -> DiscoveryFrame {
        Discovery::answer(mac, ip(peer), (ip(us), US)).unwrap()
    }

    #[test]
    fn our_addresses_are_announced_in_their_vlans() {
        let mut neighbours =
            Neighbours::new(US, vec![own("10.0.0.1", None), own("fd00::1", None), own("10.5.0.1", Some(5))]);
        let out = frames(&mut neighbours);
        let read: Vec<_> = out.iter().map(|frame| Discovery::read_tagged(frame).unwrap()).collect();
        let arp = |text| Discovery::Request { from: (ip(text), US), target: ip(text) };
        assert_eq!(read[0], (None, arp("10.0.0.1")));
        assert_eq!(read[1], (None, Discovery::Answer { ip: ip("fd00::1"), mac: US }));
        assert_eq!(read[2], (Some(5), arp("10.5.0.1")));
    }

    #[test]
    fn who_asks_for_our_address_is_answered_and_known() {
        for (us, peer) in PAIRS {
            let (mut neighbours, now) = (announced(&[own(us, None)]), Instant::now());
            let request = Discovery::request(PEER, ip(peer), ip(us)).unwrap();
            assert_eq!(neighbours.heard(&request, now), None);
            let out = frames(&mut neighbours);
            assert_eq!(out.len(), 1);
            assert_eq!(out[0][..6], PEER);
            assert_eq!(Discovery::read(&out[0]), Some(Discovery::Answer { ip: ip(us), mac: US }));
            assert_eq!(neighbours.lookup(ip(peer), own(us, None), now), Lookup::Known(PEER));
            assert_eq!(frames(&mut neighbours), [], "nothing is asked");
        }
    }

    #[test]
    fn requests_for_others_are_left_to_them() {
        for (us, peer) in PAIRS {
            let (mut neighbours, now) = (announced(&[own(us, None)]), Instant::now());
            let third = if us.contains(':') { "fd00::3" } else { "10.0.0.3" };
            neighbours.heard(&Discovery::request(PEER, ip(peer), ip(third)).unwrap(), now);
            neighbours.heard(&answer(peer, PEER, us), now);
            assert_eq!(frames(&mut neighbours), []);
            assert_eq!(neighbours.lookup(ip(peer), own(us, None), now), Lookup::Asked, "it was not noted");
        }
    }

    #[test]
    fn a_peer_is_asked_for_until_it_answers() {
        for (us, peer) in PAIRS {
            let (mut neighbours, start) = (announced(&[own(us, None)]), Instant::now());
            assert_eq!(neighbours.lookup(ip(peer), own(us, None), start), Lookup::Asked);
            let wanted = Discovery::Request { from: (ip(us), US), target: ip(peer) };
            assert_eq!(
                frames(&mut neighbours).iter().map(|f| Discovery::read(f)).collect::<Vec<_>>(),
                [Some(wanted)]
            );
            assert_eq!(neighbours.due(), Some(start + AGAIN));
            neighbours.poll(start + AGAIN / 2);
            assert_eq!(frames(&mut neighbours), [], "too early");
            neighbours.poll(start + AGAIN);
            assert_eq!(frames(&mut neighbours).len(), 1, "again");
            neighbours.heard(&answer(peer, PEER, us), start + AGAIN);
            assert_eq!(neighbours.lookup(ip(peer), own(us, None), start + AGAIN), Lookup::Known(PEER));
            assert_eq!((neighbours.due(), frames(&mut neighbours)), (None, vec![]));
        }
    }

    #[test]
    fn one_that_never_answers_is_found_silent_in_time_and_may_be_asked_anew() {
        let (mut neighbours, start) = (announced(&[own("10.0.0.1", None)]), Instant::now());
        let us = own("10.0.0.1", None);
        let (mut now, mut asked) = (start, 0);
        let found = loop {
            neighbours.poll(now);
            let found = neighbours.lookup(ip("10.0.0.9"), us, now);
            asked += frames(&mut neighbours).len();
            if found != Lookup::Asked {
                break found;
            }
            now += AGAIN;
        };
        assert_eq!((found, asked), (Lookup::Silent, TRIES as usize));
        assert!(now <= start + PATIENCE, "{:?}", now - start);
        assert_eq!(neighbours.due(), None);
        assert_eq!(neighbours.lookup(ip("10.0.0.9"), us, now), Lookup::Asked);
        assert_eq!(frames(&mut neighbours).len(), 1);
    }

    #[test]
    fn a_mac_ages_is_asked_for_while_it_is_used_and_then_forgotten() {
        let (mut neighbours, start) = (announced(&[own("10.0.0.1", None)]), Instant::now());
        let (us, peer) = (own("10.0.0.1", None), ip("10.0.0.2"));
        neighbours.lookup(peer, us, start);
        neighbours.heard(&answer("10.0.0.2", PEER, "10.0.0.1"), start);
        frames(&mut neighbours);
        let stale = start + FRESH;
        assert_eq!(neighbours.lookup(peer, us, stale), Lookup::Known(PEER));
        assert_eq!(frames(&mut neighbours).len(), 1, "it is asked whether it is still there");
        neighbours.heard(&answer("10.0.0.2", PEER, "10.0.0.1"), stale);
        assert_eq!(neighbours.due(), None);
        // The neighbour is gone by the time of the next request.
        let mut now = stale + FRESH;
        neighbours.lookup(peer, us, now);
        while let Some(due) = neighbours.due() {
            now = due;
            neighbours.poll(now);
        }
        assert_eq!(neighbours.lookup(peer, us, now), Lookup::Asked, "forgotten");
        neighbours.heard(&answer("10.0.0.2", PEER, "10.0.0.1"), now);
        assert_eq!(neighbours.lookup(peer, us, now + OLD), Lookup::Asked, "not believed before it answers");
    }

    #[test]
    fn a_change_is_noticed_from_an_announcement() {
        for (us, peer) in PAIRS {
            let (mut neighbours, now) = (announced(&[own(us, None)]), Instant::now());
            neighbours.lookup(ip(peer), own(us, None), now);
            neighbours.heard(&answer(peer, PEER, us), now);
            neighbours.heard(&Discovery::announcement(OTHER, ip(peer)), now);
            assert_eq!(neighbours.lookup(ip(peer), own(us, None), now), Lookup::Known(OTHER));
        }
    }

    #[test]
    fn vlans_are_worlds_of_their_own() {
        let (mut neighbours, now) = (announced(&[own("10.0.0.1", Some(7))]), Instant::now());
        let us = own("10.0.0.1", Some(7));
        assert_eq!(neighbours.lookup(ip("10.0.0.2"), us, now), Lookup::Asked);
        let asked = frames(&mut neighbours);
        assert_eq!(Discovery::read_tagged(&asked[0]).map(|(vlan, _)| vlan), Some(Some(7)));
        let said = answer("10.0.0.2", PEER, "10.0.0.1");
        neighbours.heard(&said, now);
        assert_eq!(
            neighbours.lookup(ip("10.0.0.2"), us, now),
            Lookup::Asked,
            "an answer from outside the VLAN"
        );
        neighbours.heard(&said.in_vlan(7), now);
        assert_eq!(neighbours.lookup(ip("10.0.0.2"), us, now), Lookup::Known(PEER));
        let request = Discovery::request(OTHER, ip("10.0.0.3"), ip("10.0.0.1")).unwrap();
        neighbours.heard(&request, now);
        assert_eq!(frames(&mut neighbours), [], "untagged we have no address");
        neighbours.heard(&request.in_vlan(7), now);
        let out = frames(&mut neighbours);
        let answered = (Some(7), Discovery::Answer { ip: ip("10.0.0.1"), mac: US });
        assert_eq!(Discovery::read_tagged(&out[0]), Some(answered));
    }

    #[test]
    fn another_station_with_our_address_is_told_once() {
        for (us, _) in PAIRS {
            let (mut neighbours, now) = (announced(&[own(us, None)]), Instant::now());
            let claim = Discovery::announcement(OTHER, ip(us));
            assert_eq!(neighbours.heard(&claim, now), Some(Conflict { ip: ip(us), mac: OTHER }));
            assert_eq!(neighbours.heard(&claim, now), None);
            assert_eq!(
                neighbours.heard(&Discovery::announcement(US, ip(us)), now),
                None,
                "our own, come back"
            );
            let probe =
                Discovery::request(OTHER, ip(if us.contains(':') { "::" } else { "0.0.0.0" }), ip(us));
            neighbours.heard(&probe.unwrap(), now);
            assert_eq!(frames(&mut neighbours).len(), 1, "who asks whether it is free is answered");
        }
    }

    #[test]
    fn nonsense_teaches_nothing_and_a_flood_takes_no_more_room() {
        let (mut neighbours, now) = (announced(&[own("10.0.0.1", None)]), Instant::now());
        let us = own("10.0.0.1", None);
        neighbours.lookup(ip("10.0.0.2"), us, now);
        frames(&mut neighbours);
        for mac in [[1, 0, 0x5e, 0, 0, 1], [0xff; 6], [0; 6]] {
            neighbours.heard(&answer("10.0.0.2", mac, "10.0.0.1"), now);
        }
        let whole = answer("10.0.0.2", PEER, "10.0.0.1");
        (0..42).for_each(|len| assert_eq!(neighbours.heard(&whole[..len], now), None));
        assert_eq!(neighbours.lookup(ip("10.0.0.2"), us, now), Lookup::Asked);
        for n in 0..5000u32 {
            let from = IpAddr::from((0x0b00_0000 + n).to_be_bytes());
            let request = Discovery::request(PEER, from, ip("10.0.0.1")).unwrap();
            neighbours.heard(&request, now + Duration::from_millis(n.into()));
            assert!(neighbours.entries.len() <= MOST && frames(&mut neighbours).len() == 1);
        }
        assert_eq!(neighbours.entries.len(), MOST);
    }
}
