//! Paths to peers: checks of their attributes, and MAC address and UDP source port for RoCE.

use super::{AddressHandle, Device};
use crate::{
    error::Error,
    function::Function,
    resolve::{OwnAddress, ip_of},
};

/// Checks that the port supports all attributes of a path.
pub(super) fn check_address(function: &Function, ah: &AddressHandle) -> Result<(), Error> {
    let within = |name: &str, value: u32, most: u32| match value > most {
        true => Err(Error::invalid(format!("{name} {value} was given, {most} is the most"))),
        false => Ok(()),
    };
    within("sl", ah.sl.into(), 15)?;
    if ah.is_global || function.is_ethernet() {
        let table = function.gid_table_len().saturating_sub(1);
        within("sgid_index", ah.sgid_index.into(), table.into())?;
    }
    if function.is_ethernet() && own_address(function, ah.sgid_index.into())?.is_none() {
        return Err(Error::refused(libc::ENODATA, format!("GID {} of this port is empty", ah.sgid_index)));
    }
    if function.is_ethernet() && !ah.is_global {
        return Err(Error::invalid("a path over Ethernet needs a global address (is_global, dgid)"));
    }
    Ok(())
}

/// UDP source port for RoCE v2: entropy for the fabric, from the flow label, or from the QP numbers if there is none
/// (IBTA annex A17.9.2: 0xC000 to 0xFFFF).
pub(super) fn source_port(flow_label: u32, local: u32, remote: u32) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => {
            let product = u64::from(local) * u64::from(remote);
            let folded = product ^ product >> 20;
            (folded ^ folded >> 40) as u32 & 0xf_ffff
        }
        label => label,
    };
    ((label ^ label >> 14) & 0x3fff) as u16 | 0xc000
}

impl Device {
    /// Resolves the MAC of the port with GID `dgid`, for a path from entry `sgid_index` of our table. Waits for an
    /// answer of that port if the MAC is not known otherwise. EHOSTUNREACH: no answer.
    pub fn resolve(&self, sgid_index: u8, dgid: &[u8; 16]) -> Result<[u8; 6], Error> {
        destination_mac(
            &self.function,
            &AddressHandle { dgid: *dgid, sgid_index, ..AddressHandle::default() },
        )
    }
}

/// Returns the MAC for a destination GID: given with it, from the opener's list, from the transport, our own, contained
/// in it (link-local), or requested on the wire.
pub(super) fn destination_mac(function: &Function, ah: &AddressHandle) -> Result<[u8; 6], Error> {
    if let Some(mac) = group_mac(&ah.dgid) {
        return Ok(mac);
    }
    let given = ah.dmac.filter(|mac| *mac != [0; 6]);
    let configured = || {
        let of = |(gid, _): &&([u8; 16], [u8; 6])| *gid == ah.dgid;
        function.options.neighbours.iter().find(of).map(|(_, mac)| *mac)
    };
    let ours = || function.options.gids.contains(&ah.dgid).then_some(function.vport.mac);
    let found = given
        .or_else(configured)
        .or_else(|| function.transport.resolve(&ah.dgid))
        .or_else(ours)
        .or_else(|| link_local_mac(&ah.dgid));
    found.map_or_else(|| ask(function, ah), Ok)
}

/// Requests the MAC of a destination on the wire, if the function supports that.
fn ask(function: &Function, ah: &AddressHandle) -> Result<[u8; 6], Error> {
    let ip = ip_of(&ah.dgid);
    let unreachable =
        |why: String| Error::refused(libc::EHOSTUNREACH, format!("no MAC address is known for {ip}{why}"));
    let resolver = function.options.resolver.as_ref().ok_or_else(|| unreachable(String::new()))?;
    let from = own_address(function, ah.sgid_index.into())?;
    let from = from.ok_or_else(|| unreachable(format!(": GID {} is empty", ah.sgid_index)))?;
    resolver.resolve(ip, from).map_err(unreachable)
}

/// The address in entry `index` of the GID table, `None` if the entry is empty.
pub(super) fn own_address(function: &Function, index: u16) -> Result<Option<OwnAddress>, Error> {
    let entry = function.roce_address(index)?;
    let gid = crate::bringup::gid_of(&entry);
    let vlan = entry.vlan_valid().then_some(entry.vlan_id()).filter(|vid| *vid != 0);
    Ok((gid != [0; 16]).then(|| OwnAddress { ip: ip_of(&gid), vlan }))
}

/// The MAC of a multicast group: IPv6 (RFC 2464, section 7), or IPv4-mapped (RFC 1112, section 6.4).
pub(super) fn group_mac(gid: &[u8; 16]) -> Option<[u8; 6]> {
    if gid[0] == 0xff {
        return Some([0x33, 0x33, gid[12], gid[13], gid[14], gid[15]]);
    }
    let mapped = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    (mapped && gid[12] >> 4 == 0xe).then(|| [0x01, 0x00, 0x5e, gid[13] & 0x7f, gid[14], gid[15]])
}

/// The MAC in the EUI-64 of a link-local address (RFC 4291, appendix A).
fn link_local_mac(gid: &[u8; 16]) -> Option<[u8; 6]> {
    let made_of_mac = gid[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] && gid[11..13] == [0xff, 0xfe];
    made_of_mac.then(|| [gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_lie_in_the_dynamic_range_and_follow_the_label() {
        assert_eq!(source_port(1, 5, 6), 0xc001);
        assert_eq!(source_port(0x4000, 5, 6), 0xc001);
        assert_ne!(source_port(0, 5, 6), source_port(0, 5, 7));
    }

    #[test]
    fn link_local_gid_gives_its_mac() {
        let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x1b, 0x56, 0xff, 0xfe, 0, 0, 3];
        assert_eq!(link_local_mac(&gid), Some([0x02, 0x1b, 0x56, 0, 0, 3]));
        assert_eq!(link_local_mac(&[0; 16]), None);
    }

    #[test]
    fn groups_have_the_addresses_the_rfcs_say() {
        let v6 = "ff0e::1:2:3".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(group_mac(&v6), Some([0x33, 0x33, 0, 2, 0, 3]));
        let v4 = "::ffff:239.129.2.3".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(group_mac(&v4), Some([1, 0, 0x5e, 1, 2, 3]));
        let host = "::ffff:10.0.0.1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        assert_eq!(group_mac(&host), None);
    }
}
