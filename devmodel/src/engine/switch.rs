//! The destinations of a frame.
//!
//! A unicast frame for a function of this adapter goes to the function's receive ring; a group frame goes to every function
//! that takes such frames, except its sender, and to the uplink; all other frames go to the uplink. No learning is needed,
//! because the function number is part of the address. If ports have other addresses than their initial ones, or if the PF's
//! driver manages the e-switch, [`eswitch`](super::eswitch) decides instead.

use crate::{
    Adapter, LinkLayer, identity,
    region::{GROUP_ADDRESSES, GROUP_STRANGERS, Sync},
};
use hwspec::wire::lrh::{PERMISSIVE_LID, dlid, is_multicast};
use std::sync::atomic::Ordering::Relaxed;

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A function of this adapter.
    Function(u8),
    /// Functions that take group frames, and the uplink.
    Group,
    /// Outside the adapter.
    Uplink,
}

impl Adapter {
    /// The function that a unicast frame is for, by its destination MAC.
    #[inline]
    pub(crate) fn owner_of_mac(&self, frame: &[u8]) -> Option<u8> {
        let mac: [u8; 6] = *frame.first_chunk()?;
        identity::fid_of_mac(self.config().node_id, mac)
            .filter(|fid| *fid < self.region().functions() && self.region().is_present(*fid))
    }

    /// The function that a frame is for, if it is one of this adapter.
    #[inline]
    pub(crate) fn owner(&self, frame: &[u8]) -> Option<u8> {
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

    /// The destination of a frame.
    pub(crate) fn destination(&self, frame: &[u8]) -> Destination {
        if let Some(fid) = self.owner(frame) {
            return Destination::Function(fid);
        }
        let group = match self.config().link_layer {
            // IEEE 802.3, 3.2.3: the first bit on the wire, which is the lowest bit of the first byte.
            LinkLayer::Ethernet => frame.first().is_some_and(|first| first & 1 != 0),
            LinkLayer::Infiniband => dlid(frame).is_some_and(is_multicast),
        };
        if group { Destination::Group } else { Destination::Uplink }
    }

    /// The function that a frame is for, by its destination LID.
    #[cold]
    fn owner_of_lid(&self, frame: &[u8]) -> Option<u8> {
        let lid = dlid(frame)?;
        let fid = match lid {
            // The switch itself, also as the end of a directed route: its agents run with the PF.
            identity::SWITCH_LID | PERMISSIVE_LID => 0,
            _ => identity::fid_of_lid(lid)?,
        };
        (fid < self.region().functions() && self.region().is_present(fid)).then_some(fid)
    }

    /// The functions other than `from` that accept unicast frames for others.
    pub(crate) fn strangers(&self, from: Option<u8>) -> impl Iterator<Item = u8> + use<'_> {
        self.functions().filter(move |fid| Some(*fid) != from && self.group_bits(*fid) & GROUP_STRANGERS != 0)
    }

    /// The functions that take a group frame sent by `from`.
    pub(crate) fn group(&self, from: Option<u8>) -> impl Iterator<Item = u8> + use<'_> {
        self.functions()
            .filter(move |fid| Some(*fid) != from && self.group_bits(*fid) & !GROUP_ADDRESSES != 0)
    }

    fn group_bits(&self, fid: u8) -> u32 {
        self.region().sync(fid, Sync::Group).load(Relaxed)
    }
}
