//! Fires interrupt vectors, and passes on those that other processes fired ([`super::interrupts`]).

use super::{
    core::Core,
    file::{FUNCTIONS, VECTORS},
    interrupts::{Line, Listener},
    locks::NodeLock,
    scratch::bits,
};
use ::sync::Kept;
use std::{
    io,
    sync::atomic::{AtomicU32, Ordering::*},
};

impl Core {
    /// Signals `fd` whenever `vector` of `fid` fires. A listener has one descriptor per vector; an earlier one is closed.
    pub fn listen(&self, fid: u8, vector: u16, who: Listener, fd: Kept, _lock: &NodeLock) -> io::Result<()> {
        if !self.map.back_listeners(fid, vector) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let function = &self.map.functions()[usize::from(fid)];
        let fired = function.fired.0[usize::from(vector)].load(Acquire);
        {
            let mut lines = self.interrupts.write();
            let new = || Line { seen: AtomicU32::new(fired), fds: Vec::new() };
            let line = lines.entry((fid, vector)).or_insert_with(new);
            line.fds.retain(|(other, _)| *other != who);
            line.fds.push((who, fd));
        }
        self.map.listeners(fid, vector).insert(self.me.slot);
        function.vectors.fetch_or(1 << vector, AcqRel);
        Ok(())
    }

    /// Closes a listener's descriptors for vectors of `fid`. Without the lock, other processes continue to wake this one for these vectors.
    pub fn stop_listening(&self, fid: u8, who: Listener, lock: Option<&NodeLock>) {
        let mut unheard = Vec::new();
        self.interrupts.write().retain(|(of, vector), line| {
            if *of == fid {
                line.fds.retain(|(other, _)| *other != who);
            }
            if line.fds.is_empty() {
                unheard.push((*of, *vector));
            }
            !line.fds.is_empty()
        });
        if lock.is_some() {
            unheard.iter().for_each(|(fid, vector)| self.leave_vector(self.me.slot, *fid, *vector));
        }
    }

    /// Removes party `slot` from the listeners to all vectors of `fid`.
    pub fn leave_vectors(&self, slot: u16, fid: u8, _lock: &NodeLock) {
        let used = self.map.functions()[usize::from(fid)].vectors.load(Acquire);
        bits(used.into()).for_each(|vector| self.leave_vector(slot, fid, vector.into()));
    }

    fn leave_vector(&self, slot: u16, fid: u8, vector: u16) {
        let listeners = self.map.listeners(fid, vector);
        listeners.remove(slot);
        if listeners.is_empty() {
            self.map.functions()[usize::from(fid)].vectors.fetch_and(!(1 << vector), AcqRel);
        }
    }

    /// Fires a vector.
    pub fn fire(&self, fid: u8, vector: u16) {
        let Some(function) = self.map.functions().get(usize::from(fid)) else { return };
        let Some(fired) = function.fired.0.get(usize::from(vector)) else { return };
        if function.vectors.load(Acquire) & 1 << vector == 0 {
            return;
        }
        let before = fired.fetch_add(1, SeqCst);
        for slot in self.map.listeners(fid, vector).iter() {
            match slot == self.me.slot {
                true => self.signal(fid, vector, before),
                false => self.wake(slot),
            }
        }
    }

    /// Fires all vectors of `fid` that have listeners.
    pub fn fire_all(&self, fid: u8) {
        let used = self.map.functions()[usize::from(fid)].vectors.load(Acquire);
        bits(used.into()).for_each(|vector| self.fire(fid, vector.into()));
    }

    /// Signals this process's eventfds of a vector with the earlier fire count `before`.
    fn signal(&self, fid: u8, vector: u16, before: u32) {
        if let Some(line) = self.interrupts.read().get(&(fid, vector)) {
            // If another process fired it meanwhile, the parked thread checks again.
            let _ = line.seen.compare_exchange(before, before.wrapping_add(1), AcqRel, Relaxed);
            line.signal();
        }
    }

    /// Signals all eventfds of this process: threads that sleep on one then check for events.
    pub fn signal_all(&self) {
        self.interrupts.read().values().for_each(Line::signal);
    }

    /// Signals this process's eventfds of vectors that other processes fired.
    pub fn deliver_interrupts(&self) {
        for ((fid, vector), line) in self.interrupts.read().iter() {
            let (fid, vector) = (usize::from(*fid) % FUNCTIONS, usize::from(*vector) % VECTORS);
            let fired = self.map.functions()[fid].fired.0[vector].load(SeqCst);
            if line.seen.load(Relaxed) != fired && line.seen.swap(fired, AcqRel) != fired {
                line.signal();
            }
        }
    }
}
