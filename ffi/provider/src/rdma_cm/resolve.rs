//! Address resolution: bind, resolve, listen.

use super::commands::Step;
use super::id::State;
use super::ip_header::sock_addr;
use super::manager::{Manager, Shared};
use super::ports::{self, At};
use super::sockaddr::SockAddr;
use super::source::has_interface;
use super::uapi::event;
use crate::guard::guard;
use cm::Path;
use libc::c_int;
use node::Matter;

/// `IB_RATE_PORT_CURRENT`: the port's current rate.
const RATE_OF_PORT: u8 = 0;
/// Hop limit of packets, with or without IP addresses.
const HOPS: u8 = 64;

impl Manager {
    /// The port of the fabric that has an address.
    fn find(&mut self, address: &SockAddr) -> Option<At> {
        let find = |manager: &Self| match address.ip() {
            Some(ip) => ports::with_ip(&manager.ports, ip),
            None => ports::with_gid(&manager.ports, &address.gid()),
        };
        find(self).or_else(|| {
            // A function may have got the address since the last check; ports in use keep their numbers.
            let fresh = ports::visible(&self.ports);
            if fresh.len() == self.ports.len() {
                self.ports = fresh;
            }
            find(self)
        })
    }

    /// True if an address only means "here": the wildcard, or a loopback address of the host that no port has, which Linux also treats as
    /// the wildcard (`cma_any_addr`). libfabric binds an ID to localhost to list the devices.
    fn names_no_port(&mut self, address: &SockAddr) -> bool {
        address.is_any() || address.is_loopback() && self.find(address).is_none()
    }

    /// Sets an ID's source address, and its port number.
    ///
    /// # Errors
    /// EINVAL: it already has one, or a link-local address lacks a scope; ENODEV: no interface has its scope; EADDRNOTAVAIL: no port has
    /// the address; those of [`Manager::bind_port`].
    pub fn bind(&mut self, number: u32, address: SockAddr) -> Result<Step, c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        if id.state != State::Idle {
            return Err(libc::EINVAL);
        }
        // As in the kernel (cma_check_linklocal, rdma_translate_ip), although functions are not on an interface.
        match address.link_scope() {
            Some(0) => return Err(libc::EINVAL),
            Some(scope) if !has_interface(scope) => return Err(libc::ENODEV),
            _ => {}
        }
        let at = match self.names_no_port(&address) {
            true => None,
            false => Some(self.find(&address).ok_or(libc::EADDRNOTAVAIL)?),
        };
        if let Some(at) = at {
            self.announce(at.port);
            self.line(at.port)?;
        }
        if let Some(id) = self.ids.get_mut(number) {
            (id.src, id.at) = (Some(address), at);
        }
        let claimed = self.bind_port(number);
        if let Some(id) = self.ids.get_mut(number) {
            match claimed {
                Ok(()) => id.state = State::Bound,
                Err(_) => (id.src, id.at) = (None, None),
            }
        }
        claimed.map(|()| Step::Done)
    }

    /// Resolves a destination; the result is reported as an event.
    ///
    /// # Errors
    /// EINVAL: wrong state, or the address families differ; those of [`Manager::bind`].
    pub fn resolve_addr(&mut self, number: u32, src: Option<SockAddr>, dst: SockAddr) -> Result<Step, c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        if id.state == State::Idle {
            self.bind(number, src.unwrap_or(dst.wildcard()))?;
        }
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        if id.state != State::Bound || !id.src.is_some_and(|src| src.is_like(&dst)) {
            return Err(libc::EINVAL);
        }
        id.state = State::AddrQuery;
        id.dst = Some(dst);
        match self.destination(number, dst) {
            Ok(Found::Here(at, gid)) => self.resolved(number, Ok((at, gid))),
            Ok(Found::Beyond(at, gid)) => self.ask(number, at, gid),
            Err(errno) => self.resolved(number, Err(errno)),
        }
        Ok(Step::Done)
    }

    fn destination(&mut self, number: u32, dst: SockAddr) -> Result<Found, c_int> {
        let bound = self.ids.get(number).and_then(|id| id.at);
        if self.names_no_port(&dst) {
            // Loopback of the bound port, or of the program's own.
            let at = bound.or_else(|| self.source(&dst.wildcard(), None)).ok_or(libc::ENODEV)?;
            return Ok(Found::Here(at, self.ports[at.port].gid(at.gid)));
        }
        if let Some(there) = self.find(&dst) {
            let to = self.ports[there.port].gid(there.gid);
            // AF_IB addresses, which no network namespace knows, are reached from themselves.
            let from = bound.or_else(|| self.source(&dst, Some(there))).unwrap_or(there);
            return Ok(Found::Here(from, to));
        }
        let from = match dst.ip() {
            Some(_) => bound.or_else(|| self.source(&dst, None)),
            None => bound.or_else(|| (!self.ports.is_empty()).then_some(At { port: 0, gid: 0 })),
        };
        let from = from.ok_or(libc::ENETUNREACH)?;
        if dst.is_multicast() && !self.ports[from.port].is_ethernet() {
            let ps = self.ids.get(number).map_or(0, |id| id.ps);
            return Ok(Found::Here(from, super::subnet::group_of(&dst, ps)));
        }
        // Beyond the node, LIDs come from the InfiniBand subnet administrator, and IP addresses from IPoIB.
        if !self.ports[from.port].is_ethernet() {
            return Err(libc::ENETUNREACH);
        }
        // Group addresses need no resolution.
        if dst.is_multicast() {
            return Ok(Found::Here(from, dst.gid()));
        }
        Ok(Found::Beyond(from, dst.gid()))
    }

    /// Resolves a destination over the wire, which takes time.
    fn ask(&mut self, number: u32, at: At, gid: [u8; 16]) {
        let Ok(device) = self.line(at.port).map(|line| line.device().clone()) else {
            return self.resolved(number, Err(libc::ENODEV));
        };
        let search = self.search_begins(number);
        let ask = move || {
            guard((), || {
                let found = device.resolve(at.gid, &gid).map(|_| (at, gid)).map_err(|_| libc::ETIMEDOUT);
                drop(device);
                Shared::here().lock().search_ends(number, search, found);
            });
        };
        if node::timed::spawn_apart("ironverbs-resolve", 256 << 10, ask).is_err() {
            self.resolved(number, Err(libc::EAGAIN));
        }
    }

    /// Numbers the resolution for `number`, so that it can be distinguished from later ones.
    pub fn search_begins(&mut self, number: u32) -> u64 {
        self.searches += 1;
        if let Some(id) = self.ids.get_mut(number) {
            id.search = self.searches;
        }
        self.searches
    }

    /// Handles the end of a resolution: its result applies if the ID still waits for this one.
    pub fn search_ends(&mut self, number: u32, search: u64, found: Result<(At, [u8; 16]), c_int>) {
        let waits = |id: &super::id::Id| id.search == search && id.state == State::AddrQuery;
        if self.ids.get(number).is_some_and(waits) {
            self.resolved(number, found);
        }
    }

    /// Handles the resolved destination.
    fn resolved(&mut self, number: u32, found: Result<(At, [u8; 16]), c_int>) {
        let opened = found.and_then(|(at, gid)| self.line(at.port).map(|_| (at, gid)));
        if let Ok((at, _)) = &opened {
            self.announce(at.port);
        }
        let own = opened
            .as_ref()
            .ok()
            .map(|(at, _)| (self.ports[at.port].gid(at.gid), self.ports[at.port].address(at.gid)));
        let asked = self.ids.get(number).and_then(|id| id.dst);
        let itself = asked.is_some_and(|dst| self.names_no_port(&dst));
        let Some(id) = self.ids.get_mut(number) else { return };
        let (Ok((at, remote)), Some((gid, ip))) = (opened, own) else {
            id.state = State::Bound;
            return self.report(
                number,
                event::ADDR_ERROR,
                -opened.err().unwrap_or(libc::ENODEV),
                &[],
                (0, 0),
            );
        };
        id.state = State::AddrResolved;
        let bound = id.at.replace(at).is_some();
        id.remote_gid = remote;
        if let Some(src) = id.src.filter(|_| !bound) {
            // On InfiniBand, IP addresses are not derived from GIDs.
            id.src = Some(match src {
                SockAddr::V4 { port, .. } => sock_addr(ip, port, 0),
                _ => src.with_gid(gid),
            });
        }
        if itself {
            let port = id.dst.map_or(0, |dst| dst.port());
            id.dst = id.src.map(|src| src.with_port(port));
        }
        self.report(number, event::ADDR_RESOLVED, 0, &[], (0, 0));
    }

    /// Resolves the path to the destination; the result is reported as an event.
    ///
    /// # Errors
    /// EINVAL: the destination is not known.
    pub fn resolve_route(&mut self, number: u32) -> Result<Step, c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let (Some(at), State::AddrResolved) = (id.at, id.state) else { return Err(libc::EINVAL) };
        let path = self.path(at, id.remote_gid, id.tos, id.timeout)?;
        if let Some(id) = self.ids.get_mut(number) {
            (id.path, id.state) = (Some(path), State::RouteResolved);
        }
        self.report(number, event::ROUTE_RESOLVED, 0, &[], (0, 0));
        Ok(Step::Done)
    }

    /// The path between a local port and a GID.
    fn path(&mut self, at: At, remote: [u8; 16], tos: u8, timeout: Option<u8>) -> Result<Path, c_int> {
        let mtu = ports::mtu_code(self.line(at.port)?.device());
        let port = self.ports.get(at.port).ok_or(libc::ENODEV)?;
        let base = Path {
            local_gid: port.gid(at.gid),
            remote_gid: remote,
            mtu,
            rate: RATE_OF_PORT,
            ..Path::default()
        };
        if port.is_ethernet() {
            let life_time = timeout.filter(|t| *t != 0).map_or(base.packet_life_time, |t| (t - 1) & 0x1f);
            return Ok(Path { traffic_class: tos, hop_limit: HOPS, packet_life_time: life_time, ..base });
        }
        let there = self.ports.iter().find(|port| port.gid(0) == remote).ok_or(libc::ENETUNREACH)?;
        /// 4.096 us x 2^14, 67 ms; OpenSM's default is 18.
        const LIFE_TIME: u8 = 14;
        Ok(Path {
            local_lid: port.info.lid,
            remote_lid: there.info.lid,
            grh: false,
            hop_limit: 0,
            packet_life_time: LIFE_TIME,
            ..base
        })
    }

    /// Sets the path that the program supplies (`RDMA_OPTION_IB_PATH`).
    ///
    /// # Errors
    /// EINVAL: no primary path in `value`, or the destination is not known.
    pub fn set_ib_path(&mut self, number: u32, value: &[u8]) -> Result<Step, c_int> {
        let given = super::route::read_path_data(value)?;
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        if id.at.is_none() || id.state != State::AddrResolved {
            return Err(libc::EINVAL);
        }
        (id.path, id.remote_gid, id.state) = (Some(given), given.remote_gid, State::RouteResolved);
        self.report(number, event::ROUTE_RESOLVED, 0, &[], (0, 0));
        Ok(Step::Done)
    }

    /// Starts to listen; an ID without an address listens on all ports.
    ///
    /// # Errors
    /// Those of [`Manager::bind`].
    pub fn listen(&mut self, number: u32) -> Result<Step, c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        match id.state {
            State::Bound => {}
            State::Idle => {
                let any = SockAddr::V4 { ip: std::net::Ipv4Addr::UNSPECIFIED, port: 0 };
                self.bind(number, any)?;
            }
            _ => return Err(libc::EINVAL),
        }
        self.bind_for_listening(number)?;
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        id.state = State::Listen;
        let (at, src) = (id.at, id.src.ok_or(libc::EINVAL)?);
        let service = id.service_id(&src);
        let ports = at.map_or(0..self.ports.len(), |at| at.port..at.port + 1);
        let mut listened = Err(libc::ENODEV);
        for port in ports {
            match self.listen_at(port, service, number) {
                Ok(()) => listened = Ok(Step::Done),
                // With several ports, some may be taken by others.
                Err(_) if at.is_none() => {}
                Err(errno) => listened = Err(errno),
            }
        }
        if listened.is_err() {
            self.stop_listening(number);
            let binding = self.ids.get_mut(number).and_then(|id| {
                id.state = State::Bound;
                id.binding
            });
            // Later requests for the service are rejected.
            binding.iter().for_each(|binding| self.give_back(Matter::Listening, binding));
        }
        listened
    }
}

/// The port of a destination, as far as known.
enum Found {
    /// A port of this node: the source, and the destination's GID.
    Here(At, [u8; 16]),
    /// Outside this node: the source, and the GID to resolve.
    Beyond(At, [u8; 16]),
}
