//! From addresses to ports of the fabric: bind, resolve, listen.

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

/// `IB_RATE_PORT_CURRENT`: as fast as the port is.
const RATE_OF_PORT: u8 = 0;
/// Hop limit of packets between IP addresses, and where there are none.
const HOPS: u8 = 64;

impl Manager {
    /// The port of the fabric that has an address.
    fn find(&mut self, address: &SockAddr) -> Option<At> {
        let find = |manager: &Self| match address.ip() {
            Some(ip) => ports::with_ip(&manager.ports, ip),
            None => ports::with_gid(&manager.ports, &address.gid()),
        };
        find(self).or_else(|| {
            // A function may have got the address since we looked; those that speak keep their numbers.
            let fresh = ports::visible(&self.ports);
            if fresh.len() == self.ports.len() {
                self.ports = fresh;
            }
            find(self)
        })
    }

    /// True if an address says no more than "here": the wildcard, or one of the host's for itself that no port has, which
    /// Linux takes for the wildcard too (`cma_any_addr`). libfabric binds an id to localhost to learn what devices there are.
    fn names_no_port(&mut self, address: &SockAddr) -> bool {
        address.is_any() || address.is_loopback() && self.find(address).is_none()
    }

    /// Gives an id its source address, and a port number.
    ///
    /// # Errors
    /// EINVAL: it has one, or a link-local address has no scope; ENODEV: no interface has its scope; EADDRNOTAVAIL: the address is no
    /// port's; those of [`Manager::bind_port`].
    pub fn bind(&mut self, number: u32, address: SockAddr) -> Result<Step, c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        if id.state != State::Idle {
            return Err(libc::EINVAL);
        }
        // As the kernel does (cma_check_linklocal, rdma_translate_ip), though a function is at no interface.
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

    /// Looks for a destination; what was found is an event.
    ///
    /// # Errors
    /// EINVAL: not in this state, or the families of the addresses differ; those of [`Manager::bind`].
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
            // The loopback of the port that is bound, or of the program's own.
            let at = bound.or_else(|| self.source(&dst.wildcard(), None)).ok_or(libc::ENODEV)?;
            return Ok(Found::Here(at, self.ports[at.port].gid(at.gid)));
        }
        if let Some(there) = self.find(&dst) {
            let to = self.ports[there.port].gid(there.gid);
            // Addresses of AF_IB, which no namespace knows, are reached from themselves.
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
        // Beyond the node InfiniBand's LIDs are the subnet administrator's to tell, and IP addresses IPoIB's.
        if !self.ports[from.port].is_ethernet() {
            return Err(libc::ENETUNREACH);
        }
        // Groups have addresses by themselves.
        if dst.is_multicast() {
            return Ok(Found::Here(from, dst.gid()));
        }
        Ok(Found::Beyond(from, dst.gid()))
    }

    /// Asks the wire for a destination, which takes its time.
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
        if super::thread::spawn("resolve", ask).is_err() {
            self.resolved(number, Err(libc::EAGAIN));
        }
    }

    /// Numbers a search for the destination of `number`, which others may be looked for under later.
    pub fn search_begins(&mut self, number: u32) -> u64 {
        self.searches += 1;
        if let Some(id) = self.ids.get_mut(number) {
            id.search = self.searches;
        }
        self.searches
    }

    /// A search has ended: what it found is for the id it was for, if that still waits.
    pub fn search_ends(&mut self, number: u32, search: u64, found: Result<(At, [u8; 16]), c_int>) {
        let waits = |id: &super::id::Id| id.search == search && id.state == State::AddrQuery;
        if self.ids.get(number).is_some_and(waits) {
            self.resolved(number, found);
        }
    }

    /// The search for a destination has ended.
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
            // On InfiniBand IP addresses are not made of GIDs.
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

    /// Finds the path to the destination; what was found is an event.
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

    /// The path between a port of ours and a GID.
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
        /// 4.096 us x 2^14, 67 ms: what OpenSM gives by default is 18.
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

    /// The program gives the path itself (`RDMA_OPTION_IB_PATH`).
    ///
    /// # Errors
    /// EINVAL: no primary path among those given, or the destination is not known.
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

    /// Waits for requests from now on; an id without an address at all of them.
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
                // One port of many may be in other hands.
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
            // Later requests for the service are told that nobody has it.
            binding.iter().for_each(|binding| self.give_back(Matter::Listening, binding));
        }
        listened
    }
}

/// The port of a destination, as far as it is known.
enum Found {
    /// A port of this node: from where, and its GID.
    Here(At, [u8; 16]),
    /// On another: from where, and the GID to ask for.
    Beyond(At, [u8; 16]),
}
