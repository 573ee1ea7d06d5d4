//! Multicast groups of an InfiniBand subnet: joined and left at its administrator, by MADs (IBTA 15.2.5.17).
//!
//! A port is in a group once, whichever of its programs joined: each program holds a lock while it is a member, and the last one leaves the
//! group.

use super::group::{Membership, SaQuery};
use super::manager::Manager;
use super::sockaddr::SockAddr;
use super::uapi::port_space;
use driver::Mad;
use hwspec::{
    layout::{Layout, prefix},
    wire::mad::{
        BASE_VERSION, MadAddress, MadHeader, Method, MgmtClass,
        sa::{CLASS_VERSION, McMemberRecord, SaAttribute, SaMad, join_state, member},
    },
};
use libc::c_int;
use node::{Hold, Matter, PortAt};
use std::time::Duration;

/// Response timeout of the administrator, and the number of tries.
const PATIENCE: Duration = Duration::from_millis(800);
const TRIES: u8 = 4;
/// The default partition, in which all ports are full members.
const PKEY: u16 = 0xffff;
/// Components that identify the member and the group, and those that describe a group to create.
const WHICH: u64 = member::MGID | member::PORT_GID | member::JOIN_STATE;
const LIKE: u64 = member::PKEY | member::QKEY | member::SL | member::FLOW_LABEL | member::TRAFFIC_CLASS;

/// The GID of the group for an address: the IPoIB mapping (RFC 4391, 4), with a different signature for rdma_cm datagrams.
pub fn group_of(address: &SockAddr, ps: u16) -> [u8; 16] {
    let signature = if ps == port_space::UDP { 0x01 } else { 0x1b };
    let [high, low] = PKEY.to_be_bytes();
    match address {
        SockAddr::V4 { ip, .. } => {
            let [a, b, c, d] = ip.octets();
            [0xff, 0x12, 0x40, signature, high, low, 0, 0, 0, 0, 0, 0, a & 0x0f, b, c, d]
        }
        SockAddr::V6 { ip, .. } => match ip.octets() {
            // The administrator's own groups.
            own @ [0xff, flags, 0xa0, 0x1b, ..] if flags & 0xf0 == 0x10 => own,
            octets => {
                let mut gid = [0xff, 0x12, 0x60, signature, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                gid[6..].copy_from_slice(&octets[6..]);
                gid
            }
        },
        SockAddr::Ib { gid, .. } => *gid,
    }
}

impl Membership {
    fn state(&self) -> u8 {
        if self.send_only { join_state::SEND_ONLY_FULL } else { join_state::FULL }
    }

    fn mad(&self, method: Method, mask: u64, port_gid: [u8; 16], qkey: u32, transaction: u64) -> Mad {
        let mut header = MadHeader::zeroed();
        header
            .set()
            .base_version(BASE_VERSION)
            .mgmt_class(MgmtClass::SubnAdm)
            .class_version(CLASS_VERSION)
            .method(method)
            .transaction_id(transaction)
            .attribute_id(SaAttribute::McMemberRecord.raw());
        let mut record = McMemberRecord::zeroed();
        record.set().mgid(self.mgid).port_gid(port_gid).qkey(qkey).pkey(PKEY).join_state(self.state());
        let mut mad = SaMad::zeroed();
        mad.set().header(header).component_mask(mask).data(prefix(record.as_bytes()));
        *mad.as_bytes()
    }

    /// The lock of a membership. Two groups with the same lock number are left together.
    fn place(&self, fid: u8) -> PortAt {
        let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        let hash = self.mgid.iter().chain(&[self.state()]).fold(0x811c_9dc5, mix);
        PortAt { space: (hash >> 24) as u8, port: (hash ^ hash >> 8) as u16, address: Some(fid) }
    }
}

impl Manager {
    /// Requests that the administrator add a port to a group. The response is reported as an event of `group`.
    ///
    /// # Errors
    /// Those of opening the function; EBUSY: others keep leaving it.
    pub fn ask_to_join(&mut self, group: u32, membership: Membership, qkey: u32) -> Result<(), c_int> {
        self.line(membership.port)?;
        let port = self.ports.get(membership.port).ok_or(libc::ENODEV)?;
        let at = membership.place(port.info.fid);
        let binding = || port.ports.take(Matter::Group, at, Hold::Shared).unwrap_or(false);
        // A leaving member holds the lock for the time of one message.
        let claimed = (0..20).any(|_| {
            binding() || {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        });
        if !claimed {
            return Err(libc::EBUSY);
        }
        let transaction = u64::from(self.random()) << 32 | u64::from(self.random());
        let mad = membership.mad(Method::Set, WHICH | LIKE, port.gid(0), qkey, transaction);
        let again = self.now() + PATIENCE;
        let query =
            SaQuery { group, port: membership.port, transaction, mad: Box::new(mad), left: TRIES - 1, again };
        self.tell_administrator(membership.port, &query.mad);
        self.sa_queries.push(query);
        self.wake();
        Ok(())
    }

    /// Removes a port from a group, unless other programs of the port are members.
    pub fn ask_to_leave(&mut self, membership: Membership) {
        if self.groups.iter().any(|(_, group)| group.membership == Some(membership)) {
            return;
        }
        let Some(port) = self.ports.get(membership.port) else { return };
        let (ports, at) = (port.ports, membership.place(port.info.fid));
        // Released first: of two programs that leave at once, the one that releases last gets the exclusive lock.
        ports.release(Matter::Group, at);
        if ports.take(Matter::Group, at, Hold::Alone).unwrap_or(false) {
            let transaction = u64::from(self.random()) << 32;
            let mad = membership.mad(Method::Delete, WHICH, port.gid(0), 0, transaction);
            self.tell_administrator(membership.port, &mad);
            ports.release(Matter::Group, at);
        }
    }

    fn tell_administrator(&self, port: usize, mad: &Mad) {
        let (Some(line), Some(port)) = (self.lines.get(&port), self.ports.get(port)) else { return };
        let to = MadAddress {
            local_lid: port.info.lid,
            remote_lid: port.info.sm_lid(),
            remote_qpn: 1,
            pkey: PKEY,
            ..MadAddress::default()
        };
        if let Err(error) = line.send(&to, mad) {
            tracing::debug!(%error, "the subnet's administrator was not asked");
        }
    }

    /// Repeats requests without a response, and gives up after the last try.
    pub fn ask_again(&mut self) {
        let now = self.now();
        let (due, rest) = std::mem::take(&mut self.sa_queries).into_iter().partition(|q| q.again <= now);
        self.sa_queries = rest;
        for mut query in due {
            match query.left.checked_sub(1) {
                Some(left) => {
                    (query.left, query.again) = (left, now + PATIENCE);
                    self.tell_administrator(query.port, &query.mad);
                    self.sa_queries.push(query);
                }
                None => self.joined(query.group, Err(libc::ETIMEDOUT)),
            }
        }
    }

    /// Handles a MAD of the administrator's class that arrived at a port.
    pub fn administrator_says(&mut self, port: usize, mad: &Mad) {
        let answer = SaMad::read(mad);
        let header = answer.header();
        let ours = |q: &SaQuery| q.port == port && q.transaction == header.transaction_id();
        let Some(at) = self.sa_queries.iter().position(ours).filter(|_| header.method() == Method::GetResp)
        else {
            return;
        };
        let query = self.sa_queries.swap_remove(at);
        let record = McMemberRecord::read(&answer.data());
        self.joined(query.group, if header.status() == 0 { Ok(record) } else { Err(libc::EINVAL) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_linux_names_them() {
        let gid = |text: &str, ps| {
            let address = match text.parse().expect("an address") {
                std::net::IpAddr::V4(ip) => SockAddr::V4 { ip, port: 0 },
                std::net::IpAddr::V6(ip) => SockAddr::V6 { ip, port: 0, flow: [0; 4], scope: 0 },
            };
            std::net::Ipv6Addr::from(group_of(&address, ps)).to_string()
        };
        assert_eq!(gid("239.255.1.2", port_space::UDP), "ff12:4001:ffff::fff:102");
        assert_eq!(gid("239.255.1.2", port_space::IPOIB), "ff12:401b:ffff::fff:102");
        assert_eq!(gid("ff05::7:8", port_space::UDP), "ff12:6001:ffff::7:8");
        assert_eq!(gid("ff1e:a01b::9", port_space::UDP), "ff1e:a01b::9");
    }
}
