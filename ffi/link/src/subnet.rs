//! InfiniBand over links: routing of frames by LID, and the sweep that reports the other adapters to each administrator, as a subnet
//! manager would find them.

use super::{
    port::{LOOK, Port},
    sockets,
};
use devmodel::{Announcement, identity};
use hwspec::wire::{Lrh, lrh};
use std::{
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Acquire},
    },
};

impl Port {
    /// Returns true if a frame that came over `link` enters the adapter. Passes it on if it is for other adapters, too.
    pub(super) fn let_in_routed(&self, link: usize, frame: &[u8]) -> bool {
        let source = frame.first_chunk::<{ Lrh::SIZE }>().map(|head| Lrh::from_bytes(*head).slid());
        // An adapter behind a link speaks for itself alone.
        let Some(source) = source.and_then(identity::node_of_lid) else { return false };
        if self.links()[link].peer.is_some_and(|peer| peer != source) {
            return false;
        }
        let adapter = self.hold().node().adapter();
        let to = lrh::dlid(frame).and_then(identity::node_of_lid);
        if to != Some(adapter.config().node_id) && self.links().len() > 1 {
            self.pass_on(link, frame);
        }
        adapter.admits(frame)
    }

    /// The link to the adapter with the destination LID of `frame`, if a single one leads there.
    pub(super) fn link_to(&self, frame: &[u8]) -> Option<usize> {
        let to = lrh::dlid(frame).and_then(identity::node_of_lid)?;
        self.links().iter().position(|link| link.peer == Some(to))
    }
}

/// Reports the ports and groups of all other adapters to the administrator of each port's adapter whenever they change, until `stop`; then
/// reports that they are gone.
pub fn sweep(ports: &[Arc<Port>], stop: &AtomicBool, ended: &UnixStream) {
    let mut told: Vec<Vec<Announcement>> = vec![Vec::new(); ports.len()];
    while !stop.load(Acquire) {
        let all: Vec<_> = ports.iter().map(|port| port.hold().node().adapter().announce()).collect();
        for (own, (port, told)) in ports.iter().zip(&mut told).enumerate() {
            let others = [&all[..own], &all[own + 1..]].concat();
            if *told != others && port.hold().learn(&others) {
                *told = others;
            }
        }
        sockets::wait(&[ended.as_raw_fd()], None, Some(LOOK));
    }
    ports.iter().for_each(|port| _ = port.hold().learn(&[]));
}
