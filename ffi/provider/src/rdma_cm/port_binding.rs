//! Port numbers: allocation and ownership.
//!
//! Between processes they are locks in the node's directory (`node::Ports`); within a process, they are the bindings of its IDs.

use super::id::{Id, PortBinding, State};
use super::manager::Manager;
use super::ports::At;
use super::sockaddr::SockAddr;
use super::uapi::port_space;
use libc::c_int;
use node::{Hold, Matter, PortAt};

/// Port numbers for programs that do not specify one (Linux' default `ip_local_port_range`).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;
/// Lower port numbers require privileges.
const PRIVILEGED: u16 = 1024;

/// Number of a port space in the lock file.
fn space_number(space: u16) -> u8 {
    match space {
        port_space::TCP => node::TCP,
        port_space::UDP => 1,
        port_space::IPOIB => 2,
        _ => 3,
    }
}

impl Manager {
    /// The nodes that a binding is held on, and its lock there.
    fn places(&self, binding: &PortBinding) -> Vec<(&'static node::Ports, PortAt)> {
        let at = |address| PortAt { space: space_number(binding.space), port: binding.port, address };
        if let Some(place) = binding.at {
            let port = self.ports.get(place.port);
            return port.map(|p| (p.ports, at(Some(p.address_number(place.gid))))).into_iter().collect();
        }
        let mut nodes: Vec<&'static node::Ports> = Vec::new();
        for port in &self.ports {
            if !nodes.iter().any(|known| std::ptr::eq(*known, port.ports)) {
                nodes.push(port.ports);
            }
        }
        nodes.into_iter().map(|ports| (ports, at(None))).collect()
    }

    fn take(&self, matter: Matter, binding: &PortBinding, hold: Hold) -> bool {
        let mut taken = Vec::new();
        for (ports, at) in self.places(binding) {
            if !ports.take(matter, at, hold).unwrap_or(false) {
                taken.into_iter().for_each(|(ports, at): (&node::Ports, _)| ports.release(matter, at));
                return false;
            }
            taken.push((ports, at));
        }
        true
    }

    /// Binds `number` to the port in its source address, or to a free one, which is stored there.
    ///
    /// # Errors
    /// EACCES, EADDRINUSE, EADDRNOTAVAIL and EPROTONOSUPPORT as for rdma_bind_addr(3).
    pub fn bind_port(&mut self, number: u32) -> Result<(), c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let src = id.src.ok_or(libc::EINVAL)?;
        let space = src.port_space(id.ps).ok_or(libc::EPROTONOSUPPORT)?;
        let binding = PortBinding { space, port: src.port(), at: id.at };
        let binding = if binding.port == 0 {
            self.any_port(binding)
        } else {
            self.this_port(number, id, &src, binding)
        }?;
        if let Some(id) = self.ids.get_mut(number) {
            id.src = Some(src.with_port(binding.port));
            id.binding = Some(binding);
        }
        Ok(())
    }

    fn any_port(&self, mut binding: PortBinding) -> Result<PortBinding, c_int> {
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let first = self.random() % count;
        for step in 0..count {
            binding.port = EPHEMERAL.start() + ((first + step) % count) as u16;
            let ours =
                self.ids.iter().any(|(_, id)| id.binding.is_some_and(|other| other.overlaps(&binding)));
            if !ours && self.take(Matter::Bound, &binding, Hold::Alone) {
                return Ok(binding);
            }
        }
        Err(libc::EADDRNOTAVAIL)
    }

    fn this_port(
        &self,
        number: u32,
        id: &Id,
        src: &SockAddr,
        binding: PortBinding,
    ) -> Result<PortBinding, c_int> {
        // SAFETY: only reads the user ID.
        if binding.port < PRIVILEGED && unsafe { libc::geteuid() } != 0 {
            return Err(libc::EACCES);
        }
        self.check_port(number, id, &binding, id.reuse)?;
        let hold = if id.reuse { Hold::Shared } else { Hold::Alone };
        let taken = if src.is_any() { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE };
        if self.take(Matter::Bound, &binding, hold) { Ok(binding) } else { Err(taken) }
    }

    /// Fails if another ID of this process conflicts.
    fn check_port(&self, number: u32, id: &Id, binding: &PortBinding, reuse: bool) -> Result<(), c_int> {
        for (other_number, other) in self.ids.iter() {
            let (Some(other_binding), Some(src)) = (other.binding, other.src) else { continue };
            if other_number == number || !other_binding.overlaps(binding) || (reuse && other.reuse) {
                continue;
            }
            let families = id.src.is_some_and(|own| !own.is_like(&src));
            if families && id.is_af_only() && other.is_af_only() {
                continue;
            }
            let wild = binding.at.is_none() || other_binding.at.is_none();
            return Err(if wild { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE });
        }
        Ok(())
    }

    /// Prepares `number` for listening: from now on its port must not be shared.
    ///
    /// # Errors
    /// As for [`Manager::bind_port`].
    pub fn bind_for_listening(&mut self, number: u32) -> Result<(), c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let Some(binding) = id.binding else { return Err(libc::EINVAL) };
        if id.reuse {
            self.check_port(number, id, &binding, false)?;
            if !self.take(Matter::Bound, &binding, Hold::Alone) {
                self.take(Matter::Bound, &binding, Hold::Shared);
                return Err(libc::EADDRINUSE);
            }
        }
        self.take(Matter::Listening, &binding, Hold::Shared);
        if let Some(id) = self.ids.get_mut(number) {
            id.reuse = false;
        }
        Ok(())
    }

    /// Releases the port of a destroyed ID.
    pub fn release_port(&self, binding: &PortBinding, listened: bool) {
        self.give_back(Matter::Bound, binding);
        if listened {
            self.give_back(Matter::Listening, binding);
        }
    }

    /// Releases one of the locks of a binding.
    pub fn give_back(&self, matter: Matter, binding: &PortBinding) {
        self.places(binding).into_iter().for_each(|(ports, at)| ports.release(matter, at));
        // A process holds a lock only once: takes it again for other IDs of this process that need it.
        for (_, id) in self.ids.iter() {
            let Some(other) = id.binding.filter(|other| other.overlaps(binding)) else { continue };
            if matter == Matter::Bound || id.state == State::Listen {
                let shared = id.reuse || matter == Matter::Listening;
                self.take(matter, &other, if shared { Hold::Shared } else { Hold::Alone });
            }
        }
    }

    /// True if a process of the node listens for `service_id` at `at`.
    pub fn is_listened_to(&self, at: At, service_id: u64) -> bool {
        let here = self.listening.keys().any(|(port, service)| *port == at.port && *service == service_id);
        here || self.is_listened_to_elsewhere(at, service_id)
    }

    /// True if another process of the node listens for `service_id` at `at`.
    pub fn is_listened_to_elsewhere(&self, at: At, service_id: u64) -> bool {
        let binding = PortBinding { space: (service_id >> 16) as u16, port: service_id as u16, at: Some(at) };
        self.places(&binding).into_iter().any(|(ports, at)| ports.held_elsewhere(Matter::Listening, at))
    }
}
