//! Multicast groups: membership of datagram queue pairs (IBTA 10.5.2).

use super::{Qp, Service};
use crate::error::Error;
use hwspec::cmd::{Opcode, mcg::*};

/// LIDs of groups, except the permissive LID (IBTA 4.1.3).
const GROUP_LIDS: std::ops::Range<u16> = 0xc000..0xffff;

/// True if a GID is a multicast address: IPv6, or IPv4-mapped.
fn is_group(gid: &[u8; 16]) -> bool {
    gid[0] == 0xff || gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] && gid[12] >> 4 == 0xe
}

impl Qp {
    /// Attaches the queue pair to group `gid` (and `lid` on InfiniBand), unless it is already attached. EINVAL: not a
    /// datagram queue pair, or not a group.
    pub fn attach_mcast(&self, gid: &[u8; 16], lid: u16) -> Result<(), Error> {
        let function = &self.pd.device.function;
        if self.service() != Service::Ud || !is_group(gid) {
            return Err(Error::invalid("only datagram queue pairs, and only groups"));
        }
        if !function.is_ethernet() && !GROUP_LIDS.contains(&lid) {
            return Err(Error::invalid(format!("{lid:#x} is not the LID of a group")));
        }
        let mut groups = self.groups();
        if groups.contains(&(*gid, lid)) {
            return Ok(());
        }
        // The device identifies groups by GID alone.
        if !groups.iter().any(|(joined, _)| joined == gid) {
            let input = AttachToMcgIn::with(|s| s.qpn(self.qpn()).multicast_gid(*gid));
            if let Some(group) = super::path::group_mac(gid) {
                crate::vport::hear(function, &group)?;
            }
            function.order(Opcode::AttachToMcg, self.pd.device.opener.uid(), &input)?;
        }
        groups.push((*gid, lid));
        Ok(())
    }

    /// Detaches the queue pair from the group. EINVAL: it is not a member.
    pub fn detach_mcast(&self, gid: &[u8; 16], lid: u16) -> Result<(), Error> {
        let mut groups = self.groups();
        let at = groups.iter().position(|joined| *joined == (*gid, lid));
        let at = at.ok_or_else(|| Error::invalid("the queue pair is not a member of the group"))?;
        if groups.iter().filter(|(joined, _)| joined == gid).count() == 1 {
            let input = DetachFromMcgIn::with(|s| s.qpn(self.qpn()).multicast_gid(*gid));
            let device = &self.pd.device;
            device.function.order(Opcode::DetachFromMcg, device.opener.uid(), &input)?;
        }
        groups.swap_remove(at);
        Ok(())
    }

    /// True if the queue pair is a member of any group, so that programs may not destroy it yet.
    pub fn is_member(&self) -> bool {
        !self.groups().is_empty()
    }
}
