//! Memberships in multicast groups.
//!
//! On Ethernet a group exists while it has members: joining tells the program the GID for its datagrams. On InfiniBand the subnet
//! administrator adds the port to the group and returns the group's properties ([`super::subnet`]). In either case the QP becomes a member
//! by `ibv_attach_mcast`, which librdmacm calls.

use super::commands::{Answer, Step};
use super::file::Pending;
use super::group::{Group, Membership};
use super::id::State;
use super::manager::{Manager, response};
use super::ports::PORT;
use super::sockaddr::SockAddr;
use super::subnet::group_of;
use super::uapi::{AhAttr, Plain, UdParam, event};
use hwspec::wire::mad::sa::McMemberRecord;
use libc::c_int;
use std::os::fd::RawFd;

/// The destination QP number of multicast packets.
const MULTICAST_QP: u32 = 0xff_ffff;
/// Hop limit of IP groups, as in Linux.
const HOPS: u8 = 64;
/// `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`, the last known flag; 0 is a member that sends and receives.
const SEND_ONLY: u16 = 1;

impl Manager {
    /// Joins a group; completion is reported as an event.
    ///
    /// # Errors
    /// EINVAL: the ID is not for datagrams or is in another state, or the address is not a group; on InfiniBand those of opening the
    /// function.
    pub fn join(
        &mut self,
        number: u32,
        uid: u64,
        address: SockAddr,
        flags: u16,
        answer: Answer,
    ) -> Result<Step, c_int> {
        answer.holds(4)?;
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        let ready = matches!(id.state, State::Bound | State::AddrResolved) && id.is_datagram();
        let at = id.at.filter(|_| ready && flags <= SEND_ONLY).ok_or(libc::EINVAL)?;
        if address.is_any() {
            return Err(libc::EINVAL);
        }
        let (qkey, id_ps) = (id.q_key(), id.ps);
        let ethernet = self.ports.get(at.port).is_some_and(|port| port.is_ethernet());
        let membership = (!ethernet).then(|| Membership {
            port: at.port,
            mgid: group_of(&address, id_ps),
            send_only: flags == SEND_ONLY,
        });
        let group = self.groups.insert(Group { id: number, uid, gid: at.gid, membership, reported: 0 });
        if let Err(errno) = answer.put(&group.to_ne_bytes()) {
            self.groups.remove(group);
            return Err(errno);
        }
        if let Some(membership) = membership {
            if let Err(errno) = self.ask_to_join(group, membership, qkey) {
                self.groups.remove(group);
                return Err(errno);
            }
        }
        if let Some(id) = self.ids.get_mut(number) {
            id.groups.push(group);
        }
        if !ethernet {
            return Ok(Step::Done);
        }
        let ah_attr = AhAttr {
            dgid: address.gid(),
            sgid_index: at.gid,
            hop_limit: HOPS,
            is_global: 1,
            port_num: PORT,
            ..AhAttr::zero()
        };
        let param = UdParam { qp_num: MULTICAST_QP, qkey, ah_attr, ..UdParam::zero() };
        self.group_event(group, event::MULTICAST_JOIN, 0, &param);
        Ok(Step::Done)
    }

    /// Handles the administrator's response to a join.
    pub fn joined(&mut self, group: u32, said: Result<McMemberRecord, c_int>) {
        let Some(sgid_index) = self.groups.get(group).map(|group| group.gid) else { return };
        match said {
            Ok(record) => {
                let ah_attr = AhAttr {
                    dgid: record.mgid(),
                    flow_label: record.flow_label(),
                    sgid_index,
                    hop_limit: record.hop_limit(),
                    traffic_class: record.traffic_class(),
                    dlid: record.mlid(),
                    sl: record.sl(),
                    static_rate: record.rate(),
                    is_global: 1,
                    port_num: PORT,
                    ..AhAttr::zero()
                };
                let param = UdParam { qp_num: MULTICAST_QP, qkey: record.qkey(), ah_attr, ..UdParam::zero() };
                self.group_event(group, event::MULTICAST_JOIN, 0, &param);
            }
            Err(errno) => self.group_event(group, event::MULTICAST_ERROR, -errno, &UdParam::zero()),
        }
    }

    fn group_event(&mut self, group: u32, event: u32, status: i32, param: &UdParam) {
        let Some((number, uid)) = self.groups.get(group).map(|group| (group.id, group.uid)) else { return };
        let Some(file) = self.ids.get(number).map(|id| id.file) else { return };
        let response = response(uid, group, event, status, param.bytes(), (0, 0));
        self.deliver(file, Pending { about: number, child: None, group: Some(group), response });
    }

    /// Leaves a group. Returns the number of its events that the program has fetched.
    ///
    /// # Errors
    /// ENOENT: no such membership; EINVAL: it belongs to another channel.
    pub fn leave(&mut self, fd: RawFd, group: u32) -> Result<u32, c_int> {
        let number = self.groups.get(group).ok_or(libc::ENOENT)?.id;
        self.id(fd, number)?.groups.retain(|other| *other != group);
        self.file(fd)?.withdraw(|event| event.group == Some(group));
        Ok(self.end_group(group).map_or(0, |group| group.reported))
    }

    fn end_group(&mut self, group: u32) -> Option<Group> {
        self.sa_queries.retain(|query| query.group != group);
        let ended = self.groups.remove(group)?;
        if let Some(membership) = ended.membership {
            self.ask_to_leave(membership);
        }
        Some(ended)
    }

    /// Removes an ID that is being destroyed from all its groups.
    pub fn leave_all(&mut self, number: u32) {
        let groups = self.ids.get_mut(number).map(|id| std::mem::take(&mut id.groups)).unwrap_or_default();
        for group in groups {
            self.end_group(group);
        }
    }
}
