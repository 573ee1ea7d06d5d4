//! The ports on the subnet, and the records that describe them (IBTA 15.2.5.2, 15.2.5.3).

use super::{Asked, Subnet, mad, smp, switch};
use crate::{identity, state::DEFAULT_PREFIX};
use hwspec::{
    layout::Layout,
    wire::mad::sa::{NodeRecord, PortInfoRecord},
};

/// A port of the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Its function; `None` is the switch.
    pub fid: Option<u8>,
    pub lid: u16,
    pub guid: [u8; 8],
}

impl End {
    /// Its first GID.
    pub fn gid(&self) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&DEFAULT_PREFIX);
        gid[8..].copy_from_slice(&self.guid);
        gid
    }
}

/// Components of the two records, by bit of the mask: LID, and port number.
const LID: u64 = 1 << 0;
const PORT_NUM: u64 = 1 << 1;

impl Subnet<'_> {
    /// All ports: the switch, then the functions that are there.
    pub fn ends(&self) -> Vec<End> {
        let guid = identity::switch_guid(self.config.node_id);
        let switch = End { fid: None, lid: identity::SWITCH_LID, guid };
        let functions = (0..self.region.functions()).filter(|fid| self.region.is_present(*fid));
        let functions = functions.map(|fid| {
            let [_, guid] = self.region.guids(self.config, fid);
            End { fid: Some(fid), lid: identity::lid(fid), guid }
        });
        std::iter::once(switch).chain(functions).collect()
    }

    /// The port with this LID.
    pub fn by_lid(&self, lid: u16) -> Option<End> {
        self.ends().into_iter().find(|end| end.lid == lid)
    }

    /// The port whose own GID this is.
    pub fn by_gid(&self, gid: &[u8; 16]) -> Option<End> {
        let guid = gid.strip_prefix(&DEFAULT_PREFIX)?;
        self.ends().into_iter().find(|end| end.guid == guid)
    }

    /// `NodeRecord`s that match.
    pub fn nodes(&self, asked: &Asked<NodeRecord>) -> Vec<Vec<u8>> {
        let matching = self.ends().into_iter().filter(|end| !asked.has(LID) || end.lid == asked.want.lid());
        matching
            .map(|end| {
                let (info, description) = match end.fid {
                    Some(fid) => {
                        let guids = self.region.guids(self.config, fid);
                        (smp::node_info(self.config, fid, guids), mad::description(fid))
                    }
                    None => (self.switch_node(), switch::description()),
                };
                NodeRecord::with(|s| s.lid(end.lid).node_info(info).node_description(description))
                    .bytes()
                    .to_vec()
            })
            .collect()
    }

    /// `PortInfoRecord`s that match.
    pub fn ports(&self, asked: &Asked<PortInfoRecord>) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for end in self.ends() {
            if asked.has(LID) && end.lid != asked.want.endport_lid() {
                continue;
            }
            let numbers = if end.fid.is_some() { 1..=1 } else { 0..=self.region.functions() };
            for number in numbers.filter(|n| !asked.has(PORT_NUM) || *n == asked.want.port_num()) {
                let info = match end.fid {
                    Some(fid) => smp::described(fid, &mad::port(fid, end.guid), true),
                    None => self.switch_port(number),
                };
                let record =
                    PortInfoRecord::with(|s| s.endport_lid(end.lid).port_num(number).port_info(info));
                records.push(record.bytes().to_vec());
            }
        }
        records
    }
}
