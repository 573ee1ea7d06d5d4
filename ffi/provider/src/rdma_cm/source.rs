//! Selects the port from which an ID connects if the program specified no source address.
//!
//! Linux uses the routes of the caller's network namespace. They are used here too, as far as they apply: functions may have the addresses
//! of its interfaces, as in a pod with one function. Often they do not: a new node has loopback addresses, which belong to no particular
//! interface. Then the device that the program has open decides.

use super::manager::Manager;
use super::ports::{At, Port};
use super::sockaddr::SockAddr;
use crate::import;
use libc::c_int;
use node::gid::gid_of_ip;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// Every host has this address on its loopback interface, so it says nothing about functions.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The addresses of this thread's network namespace, and its route to a destination.
#[derive(Debug, Default)]
pub struct Namespace {
    /// Addresses of its interfaces.
    addresses: Vec<IpAddr>,
    /// The source address of the route to the destination; `None` if there is no route.
    route: Option<IpAddr>,
}

impl Namespace {
    /// Queries the kernel; sends no packet.
    pub fn towards(dst: &SockAddr) -> Self {
        Self { addresses: interface_addresses(), route: route_source(dst) }
    }

    fn has(&self, ip: IpAddr) -> bool {
        ip != LOOPBACK && self.addresses.contains(&ip)
    }
}

/// A port from which the destination might be reachable.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    at: At,
    ip: IpAddr,
    /// True if the program itself has opened its device.
    open: bool,
}

impl Manager {
    /// The port from which a program without a source address reaches `dst`. `there` is the port of this node with that address, if any.
    /// `None` if no port has an address of its family, or it is not a network address.
    pub fn source(&self, dst: &SockAddr, there: Option<At>) -> Option<At> {
        let ip = match dst.ip() {
            Some(ip) => ip.to_canonical(),
            None if dst.is_any() => Ipv6Addr::UNSPECIFIED.into(),
            None => return None,
        };
        let open = self.open_by_program();
        let candidate = |(index, port): (usize, &Port)| {
            let (gid, ip) = port.towards(ip)?;
            Some(Candidate { at: At { port: index, gid }, ip, open: open.contains(&index) })
        };
        let usable = self.ports.iter().enumerate().filter(|(_, port)| port.info.active && port.usable);
        let candidates: Vec<Candidate> = usable.filter_map(candidate).collect();
        choose(&candidates, ip, there.map(|there| there.port), &Namespace::towards(dst))
    }

    /// Records that an ID was given a device, which librdmacm will open: unless the program had opened it before, this does not count as
    /// the program's choice.
    pub fn announce(&mut self, port: usize) {
        if !self.open_by_program().contains(&port) {
            self.announced.insert(port);
        }
    }

    /// Ports with devices that the program itself has opened.
    fn open_by_program(&self) -> BTreeSet<usize> {
        let places = import::open_places();
        let open = |port: &Port| places.contains(&port.place);
        let all = self.ports.iter().enumerate().filter(|(_, port)| open(port)).map(|(index, _)| index);
        all.filter(|index| !self.announced.contains(index)).collect()
    }
}

/// Selects from `candidates` the port from which `dst` is reached. `there` is the port with that address, if known here.
fn choose(candidates: &[Candidate], dst: IpAddr, there: Option<usize>, namespace: &Namespace) -> Option<At> {
    let here: Vec<Candidate> = candidates.iter().copied().filter(|own| namespace.has(own.ip)).collect();
    let known = !here.is_empty();
    // In a namespace with functions' addresses, the other functions are elsewhere.
    let pool = if known { here.as_slice() } else { candidates };
    let mut open = pool.iter().filter(|own| own.open);
    let only_open = open.next().filter(|_| open.next().is_none());
    let itself = pool.iter().find(|own| Some(own.at.port) == there);
    if itself.is_some() || dst.is_unspecified() {
        // A host reaches its own addresses from themselves, unless the program uses another device.
        return only_open.or(itself).or(pool.first()).map(|own| own.at);
    }
    let routed = pool.iter().find(|own| known && namespace.route == Some(own.ip));
    // Without a route: the longest common prefix; of several, the one in use, and of those the first.
    let wanted = u128::from_be_bytes(gid_of_ip(dst));
    let common = |own: &Candidate| (u128::from_be_bytes(gid_of_ip(own.ip)) ^ wanted).leading_zeros();
    let nearest = || pool.iter().rev().max_by_key(|own| (common(own), own.open));
    routed.or_else(nearest).map(|own| own.at)
}

/// Addresses of the interfaces of this thread's network namespace; none if they cannot be listed.
fn interface_addresses() -> Vec<IpAddr> {
    let mut found = Vec::new();
    // SAFETY: the C library owns the list until it is freed; each address is null or a complete one of its family.
    unsafe {
        let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
        if libc::getifaddrs(&raw mut first) != 0 {
            return found;
        }
        let mut entry = first;
        while let Some(interface) = entry.as_ref() {
            if !interface.ifa_addr.is_null() {
                found.extend(read_ip(interface.ifa_addr));
            }
            entry = interface.ifa_next;
        }
        libc::freeifaddrs(first);
    }
    found
}

/// The source address that the kernel would use for `dst`.
fn route_source(dst: &SockAddr) -> Option<IpAddr> {
    /// Any port number will do.
    const DISCARD: u16 = 9;
    let (any, to): (IpAddr, SocketAddr) = match *dst {
        SockAddr::V4 { ip, .. } => (Ipv4Addr::UNSPECIFIED.into(), (ip, DISCARD).into()),
        SockAddr::V6 { ip, flow, scope, .. } => (
            Ipv6Addr::UNSPECIFIED.into(),
            SocketAddrV6::new(ip, DISCARD, u32::from_ne_bytes(flow), scope).into(),
        ),
        SockAddr::Ib { .. } => return None,
    };
    // Connecting a datagram socket sends nothing.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip().to_canonical())
}

/// # Safety
/// `address` points to a complete socket address of its family.
unsafe fn read_ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: guaranteed by the caller; only bytes of the family's structure are read.
    unsafe {
        let length = match c_int::from((*address).sa_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => return None,
        };
        Some(SockAddr::read(std::slice::from_raw_parts(address.cast(), length))?.ip()?.to_canonical())
    }
}

/// True if the host has an interface with this index.
pub fn has_interface(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the length that the call expects.
    unsafe { !libc::if_indextoname(index, name.as_mut_ptr()).is_null() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Ports with these addresses; those in `open` are open.
    fn ports(addresses: &[&str], open: &[usize]) -> Vec<Candidate> {
        let port = |(port, text): (usize, &&str)| Candidate {
            at: At { port, gid: 1 },
            ip: ip(text),
            open: open.contains(&port),
        };
        addresses.iter().enumerate().map(port).collect()
    }

    fn namespace(addresses: &[&str], route: Option<&str>) -> Namespace {
        Namespace { addresses: addresses.iter().map(|text| ip(text)).collect(), route: route.map(ip) }
    }

    /// The port chosen for an address that `there` has.
    fn chosen(
        candidates: &[Candidate],
        to: &str,
        there: Option<usize>,
        namespace: &Namespace,
    ) -> Option<usize> {
        choose(candidates, ip(to), there, namespace).map(|at| at.port)
    }

    const NODE: [&str; 3] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];

    #[test]
    fn on_a_host_that_knows_no_function_an_address_is_reached_from_itself() {
        let host = namespace(&["127.0.0.1", "192.0.2.7"], Some("127.0.0.1"));
        assert_eq!(chosen(&ports(&NODE, &[]), "127.0.0.2", Some(1), &host), Some(1));
        assert_eq!(chosen(&ports(&NODE, &[]), "0.0.0.0", None, &host), Some(0));
    }

    #[test]
    fn the_only_device_a_program_has_open_is_the_one_it_connects_from() {
        let host = namespace(&["127.0.0.1"], Some("127.0.0.1"));
        assert_eq!(chosen(&ports(&NODE, &[2]), "127.0.0.2", Some(1), &host), Some(2));
        assert_eq!(chosen(&ports(&NODE, &[2]), "0.0.0.0", None, &host), Some(2));
        // Of several open ones, none takes precedence.
        assert_eq!(chosen(&ports(&NODE, &[0, 2]), "127.0.0.2", Some(1), &host), Some(1));
        // Another node, equally near to all ports.
        assert_eq!(chosen(&ports(&NODE, &[2]), "127.1.1.2", None, &host), Some(2));
        assert_eq!(chosen(&ports(&NODE, &[]), "127.1.1.2", None, &host), Some(0));
    }

    #[test]
    fn in_a_namespace_with_the_address_of_one_function_that_one_connects() {
        let functions = ports(&["127.0.0.1", "10.9.0.1", "10.9.0.2"], &[]);
        let pod = namespace(&["127.0.0.1", "10.9.0.2"], Some("10.9.0.2"));
        assert_eq!(chosen(&functions, "10.9.0.1", Some(1), &pod), Some(2));
        assert_eq!(chosen(&functions, "10.9.0.2", Some(2), &pod), Some(2));
        assert_eq!(chosen(&functions, "0.0.0.0", None, &pod), Some(2));
        // There is no route, as for an address that is only on the loopback interface.
        let alone = namespace(&["127.0.0.1", "10.9.0.2"], None);
        assert_eq!(chosen(&functions, "10.9.0.1", Some(1), &alone), Some(2));
        // The other function that the program has open is not in this namespace.
        let functions = ports(&["127.0.0.1", "10.9.0.1", "10.9.0.2"], &[1]);
        assert_eq!(chosen(&functions, "10.9.0.1", Some(1), &pod), Some(2));
    }

    #[test]
    fn of_several_addresses_of_the_namespace_the_route_decides_before_likeness() {
        let functions = ports(&["10.9.0.1", "10.8.0.1", "10.7.0.1"], &[]);
        let known = ["10.9.0.1", "10.8.0.1"];
        let seen = |route| namespace(&known, route);
        assert_eq!(chosen(&functions, "10.9.0.77", None, &seen(Some("10.8.0.1"))), Some(1));
        assert_eq!(chosen(&functions, "10.9.0.77", None, &seen(Some("192.0.2.7"))), Some(0));
        assert_eq!(chosen(&functions, "10.7.0.1", Some(2), &seen(Some("10.9.0.1"))), Some(0));
        assert_eq!(chosen(&[], "10.7.0.1", None, &seen(None)), None);
    }

    #[test]
    fn the_kernel_is_asked_for_addresses_and_routes() {
        let seen = Namespace::towards(&SockAddr::V4 { ip: Ipv4Addr::LOCALHOST, port: 0 });
        // In a sandbox the loopback interface may be down; then neither is present.
        assert_eq!(seen.addresses.contains(&LOOPBACK), seen.route == Some(LOOPBACK), "{seen:?}");
        assert!(!seen.has(LOOPBACK));
        let any_family = SockAddr::Ib { gid: [0; 16], pkey: 0, sid: 0, mask: 0 };
        assert_eq!(Namespace::towards(&any_family).route, None);
    }
}
