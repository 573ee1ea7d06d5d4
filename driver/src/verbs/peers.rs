//! Queue pair 1's cache of paths to its peers, with expiry.

use hwspec::wire::mad::MadAddress;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Maximum number of cached peers; a full cache is emptied.
const PEERS: usize = 256;
/// Age at which a peer's MAC is resolved again.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Time for which a silent peer is not asked again, since waiting for it delays messages to others.
const SILENT_FOR: Duration = Duration::from_secs(3);

/// Address handles of peers, `None` for those that could not be resolved, with the time of the result.
pub struct Peers<W>(HashMap<MadAddress, (Option<W>, Instant)>);

/// The cached state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known<W> {
    /// The path to the peer.
    Way(W),
    /// The peer did not answer a recent resolution.
    Silent,
    /// No entry, or one that has expired.
    Nothing,
}

impl<W> Default for Peers<W> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<W: Clone> Peers<W> {
    /// The state at `now`.
    pub fn known(&self, to: &MadAddress, now: Instant) -> Known<W> {
        let Some((way, since)) = self.0.get(to) else { return Known::Nothing };
        let age = now.saturating_duration_since(*since);
        match way {
            Some(way) if age < KNOWN_FOR => Known::Way(way.clone()),
            None if age < SILENT_FOR => Known::Silent,
            _ => Known::Nothing,
        }
    }

    /// Records the result of a resolution at `now`.
    pub fn note(&mut self, to: MadAddress, way: Option<W>, now: Instant) {
        if self.0.len() >= PEERS && !self.0.contains_key(&to) {
            self.0.clear();
        }
        self.0.insert(to, (way, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(lid: u16) -> MadAddress {
        MadAddress { remote_lid: lid, ..MadAddress::default() }
    }

    #[test]
    fn a_way_is_believed_for_a_time_and_then_asked_for_again() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        assert_eq!(peers.known(&peer(1), start), Known::Nothing);
        peers.note(peer(1), Some("old MAC"), start);
        let just_before = start + KNOWN_FOR - Duration::from_millis(1);
        assert_eq!(peers.known(&peer(1), just_before), Known::Way("old MAC"));
        assert_eq!(peers.known(&peer(1), start + KNOWN_FOR), Known::Nothing);
        peers.note(peer(1), Some("new MAC"), start + KNOWN_FOR);
        assert_eq!(peers.known(&peer(1), start + KNOWN_FOR), Known::Way("new MAC"));
    }

    #[test]
    fn who_does_not_answer_is_left_alone_for_a_time_and_others_are_not() {
        let (mut peers, start) = (Peers::<u8>::default(), Instant::now());
        peers.note(peer(1), None, start);
        assert_eq!(peers.known(&peer(1), start + SILENT_FOR - Duration::from_millis(1)), Known::Silent);
        assert_eq!(peers.known(&peer(2), start), Known::Nothing);
        assert_eq!(peers.known(&peer(1), start + SILENT_FOR), Known::Nothing);
        peers.note(peer(1), Some(7), start + SILENT_FOR);
        assert_eq!(peers.known(&peer(1), start + SILENT_FOR), Known::Way(7));
    }

    #[test]
    fn a_flood_of_peers_takes_no_more_room() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        for lid in 0..2000 {
            peers.note(peer(lid), Some(lid), start);
            assert!(peers.0.len() <= PEERS && peers.known(&peer(lid), start) == Known::Way(lid));
        }
    }
}
