//! The ports on the subnet, and the records that describe them (IBTA 15.2.5.2, 15.2.5.3).

use super::{smp, switch};
use crate::{Config, identity, region::Region};
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

/// The switch's management port.
pub(super) fn switch(config: &Config) -> End {
    End { fid: None, lid: identity::SWITCH_LID, guid: identity::switch_guid(config.node_id) }
}

fn function(region: &Region, config: &Config, fid: u8) -> End {
    let [_, guid] = region.guids(config, fid);
    End { fid: Some(fid), lid: identity::lid(fid), guid }
}

/// All ports: the switch, then the functions that are there.
pub(super) fn ends(region: &Region, config: &Config) -> Vec<End> {
    let functions = (0..region.functions()).filter(|fid| region.is_present(*fid));
    std::iter::once(switch(config)).chain(functions.map(|fid| function(region, config, fid))).collect()
}

/// The port with this LID.
pub(super) fn by_lid(region: &Region, config: &Config, lid: u16) -> Option<End> {
    ends(region, config).into_iter().find(|end| end.lid == lid)
}

/// The port whose own GID this is.
pub(super) fn by_gid(region: &Region, config: &Config, gid: &[u8; 16]) -> Option<End> {
    let guid = gid.strip_prefix(&crate::state::DEFAULT_PREFIX)?;
    ends(region, config).into_iter().find(|end| end.guid == guid)
}

impl End {
    /// Its first GID.
    pub fn gid(&self) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&crate::state::DEFAULT_PREFIX);
        gid[8..].copy_from_slice(&self.guid);
        gid
    }
}

/// Components of the two records, by bit of the mask: LID, and port number.
const LID: u64 = 1 << 0;
const PORT_NUM: u64 = 1 << 1;

/// `NodeRecord`s that match.
pub(super) fn nodes(region: &Region, config: &Config, mask: u64, wanted: &NodeRecord) -> Vec<Vec<u8>> {
    let matching = ends(region, config).into_iter().filter(|end| mask & LID == 0 || end.lid == wanted.lid());
    matching
        .map(|end| {
            let mut record = NodeRecord::zeroed();
            let (info, description) = match end.fid {
                Some(fid) => {
                    (smp::node_info(config, fid, region.guids(config, fid)), super::mad::description(fid))
                }
                None => (switch::node_info(region, config), switch::description()),
            };
            record.set().lid(end.lid).node_info(info).node_description(description);
            record.bytes().to_vec()
        })
        .collect()
}

/// `PortInfoRecord`s that match.
pub(super) fn ports(region: &Region, config: &Config, mask: u64, wanted: &PortInfoRecord) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    for end in ends(region, config) {
        if mask & LID != 0 && end.lid != wanted.endport_lid() {
            continue;
        }
        let numbers = if end.fid.is_some() { 1..=1 } else { 0..=region.functions() };
        for number in numbers.filter(|n| mask & PORT_NUM == 0 || *n == wanted.port_num()) {
            let info = match end.fid {
                Some(fid) => smp::described(fid, &super::mad::port(fid, end.guid), true),
                None => switch::port_info(region, number),
            };
            let record = PortInfoRecord::with(|s| s.endport_lid(end.lid).port_num(number).port_info(info));
            records.push(record.bytes().to_vec());
        }
    }
    records
}
