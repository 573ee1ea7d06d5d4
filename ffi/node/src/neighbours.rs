//! Neighbours: the MACs of IP addresses beyond the uplink, on other machines and guests. Programs request them before sending; the party
//! that holds the uplink resolves them.

use super::{core::Core, file::NeighbourSlot, locks::NodeLock, sys};
use crate::gid::{gid_of_ip, ip_of_gid};
use devmodel::region::Outlet;
use std::{net::IpAddr, sync::atomic::Ordering::*};

/// Time limit of a request (ps).
const PATIENCE: u64 = 1_500_000_000_000;
/// Age (ps) at which a MAC is requested again.
const FRESH: u64 = 300_000_000_000_000;
/// Time between two requests for the same address, ps.
const AGAIN: u64 = 200_000_000_000;
/// States of a slot.
const FREE: u32 = 0;
const ASKED: u32 = 1;
const KNOWN: u32 = 2;

impl NeighbourSlot {
    fn ip(&self) -> IpAddr {
        let [high, low] = self.address.each_ref().map(|word| u128::from(word.load(Relaxed)));
        ip_of_gid(&(high << 64 | low).to_be_bytes())
    }

    fn set(&self, state: u32, ip: IpAddr, now: u64) {
        let number = u128::from_be_bytes(gid_of_ip(ip));
        self.address[0].store((number >> 64) as u64, Relaxed);
        self.address[1].store(number as u64, Relaxed);
        self.at.store(now, Relaxed);
        self.state.store(state, Release);
    }

    fn mac(&self) -> [u8; 6] {
        let [_, _, mac @ ..] = self.mac.load(Relaxed).to_be_bytes();
        mac
    }
}

/// A request for a MAC, to be sent by ARP or neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRequest {
    /// The address to resolve.
    pub ip: IpAddr,
    /// The requesting function.
    pub asker: u8,
}

impl Core {
    /// Resolves the MAC of `ip`, which does not belong to a function of this node, for function `fid`. Waits for a reply if necessary.
    /// `None` if there is no reply, or if no party holds the uplink.
    pub fn neighbour(&self, fid: u8, ip: IpAddr) -> Option<[u8; 6]> {
        let deadline = self.now() + PATIENCE;
        loop {
            let changed = &self.map.header().neighbours_changed;
            let seen = changed.load(Acquire);
            if let Some(mac) = self.ask(fid, ip)? {
                return Some(mac);
            }
            self.outlet_filled(Outlet::Uplink);
            let left = deadline.saturating_sub(self.now());
            if left == 0 {
                break;
            }
            sys::futex_wait(changed, seen, Some(left / 1000));
        }
        let lock = self.locks.lock().ok()?;
        if let Some(slot) = self.slot_of(ip, &lock).filter(|slot| slot.state.load(Relaxed) == ASKED) {
            slot.state.store(FREE, Relaxed);
        }
        None
    }

    /// Returns the MAC of `ip` if known, else requests it. The outer `None` means that no party holds the uplink.
    fn ask(&self, fid: u8, ip: IpAddr) -> Option<Option<[u8; 6]>> {
        let lock = self.locks.lock().ok()?;
        self.holder(Outlet::Uplink)?;
        let now = self.now();
        if let Some(slot) = self.slot_of(ip, &lock) {
            let known = slot.state.load(Relaxed) == KNOWN;
            if known && now.saturating_sub(slot.at.load(Relaxed)) < FRESH {
                return Some(Some(slot.mac()));
            }
            if known {
                slot.asker.store(fid.into(), Relaxed);
                slot.set(ASKED, ip, 0);
            }
            return Some(None);
        }
        let slot = self.free_slot(&lock);
        slot.asker.store(fid.into(), Relaxed);
        slot.set(ASKED, ip, 0);
        Some(None)
    }

    fn slot_of(&self, ip: IpAddr, _lock: &NodeLock) -> Option<&NeighbourSlot> {
        self.map.neighbours().iter().find(|slot| slot.state.load(Relaxed) != FREE && slot.ip() == ip)
    }

    /// Returns a free slot, or the least recently heard one.
    fn free_slot(&self, _lock: &NodeLock) -> &NeighbourSlot {
        let slots = self.map.neighbours();
        let age = |slot: &&NeighbourSlot| match slot.state.load(Relaxed) {
            FREE => 0,
            _ => slot.at.load(Relaxed) + 1,
        };
        slots.iter().min_by_key(age).unwrap_or(&slots[0])
    }

    /// Returns the requests to send now, and when (ps) to call this again.
    pub fn address_requests(&self) -> (Vec<AddressRequest>, Option<u64>) {
        let now = self.now();
        let asked = |slot: &&NeighbourSlot| slot.state.load(Acquire) == ASKED;
        if !self.map.neighbours().iter().any(|slot| asked(&slot)) {
            return (Vec::new(), None);
        }
        let Ok(_lock) = self.locks.lock() else { return (Vec::new(), Some(now + AGAIN)) };
        let mut requests = Vec::new();
        for slot in self.map.neighbours().iter().filter(asked) {
            let last = slot.at.load(Relaxed);
            if last == 0 || now.saturating_sub(last) >= AGAIN {
                slot.at.store(now, Relaxed);
                requests.push(AddressRequest { ip: slot.ip(), asker: slot.asker.load(Relaxed) as u8 });
            }
        }
        (requests, Some(now + AGAIN))
    }

    /// Records that `ip` is at `mac`, if a program requested it or a different MAC was known.
    pub fn heard(&self, ip: IpAddr, mac: [u8; 6]) {
        let interesting = |slot: &NeighbourSlot| slot.state.load(Acquire) != FREE && slot.ip() == ip;
        if !self.map.neighbours().iter().any(interesting) {
            return;
        }
        let Ok(lock) = self.locks.lock() else { return };
        let Some(slot) = self.slot_of(ip, &lock) else { return };
        let [a, b, c, d, e, f] = mac;
        slot.mac.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Relaxed);
        slot.set(KNOWN, ip, self.now());
        drop(lock);
        let changed = &self.map.header().neighbours_changed;
        changed.fetch_add(1, Release);
        sys::futex_wake(changed);
    }

    /// Discards all neighbours, because another party takes the uplink.
    pub fn forget_neighbours(&self, _lock: &NodeLock) {
        self.map.neighbours().iter().for_each(|slot| slot.state.store(FREE, Release));
    }
}
