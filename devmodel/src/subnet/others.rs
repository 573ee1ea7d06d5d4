//! The other adapters of the subnet: their ports and groups, which the link reports to each administrator.

use super::{Subnet, groups};
use crate::{
    Adapter, Config,
    host::{Host, Party},
    region::{Func, FunctionSet},
    state::{Head, SUBNET_PORTS, SubnetGroupRow, SubnetPortRow},
};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// A note to a function, in place of a vport: its groups have changed, and it must join them again.
pub(crate) const REREGISTER: u8 = 0xff;

/// The ports of an adapter and the groups that they keep alive, as announced to the other adapters of the subnet.
#[derive(Clone, Debug, Default)]
pub struct Announcement {
    node_id: u16,
    ports: Vec<SubnetPortRow>,
    groups: Vec<SubnetGroupRow>,
}

impl PartialEq for Announcement {
    fn eq(&self, other: &Self) -> bool {
        self.node_id == other.node_id
            && self.ports.as_bytes() == other.ports.as_bytes()
            && self.groups.as_bytes() == other.groups.as_bytes()
    }
}

/// A group without its local members. Values of a damaged row are cut to the size of their fields in records.
fn as_such(row: &SubnetGroupRow) -> SubnetGroupRow {
    let none = [0; 2];
    SubnetGroupRow {
        head: Head::default(),
        full: none,
        send_only: none,
        non: none,
        elsewhere: 0,
        flow_label: row.flow_label & 0xf_ffff,
        sl: row.sl & 15,
        mtu: row.mtu & 63,
        rate: row.rate & 63,
        life_time: row.life_time & 63,
        ..*row
    }
}

impl Adapter {
    /// The current ports and groups of this adapter on InfiniBand. Takes no lock.
    pub fn announce(&self) -> Announcement {
        let subnet = Subnet { region: self.region(), config: self.config() };
        let kept = groups::all(self.region()).filter(|(_, row)| groups::has_members(row));
        Announcement {
            node_id: self.config().node_id,
            ports: subnet.ends_here(),
            groups: kept.map(|(_, row)| as_such(&row)).collect(),
        }
    }
}

/// Updates the PF's records from the announcements of `others`, all other adapters of the subnet. Returns the functions in groups that have
/// changed since they joined. Commits on the way.
pub(crate) fn learn(
    func: &mut Func<'_>,
    host: &mut dyn Host,
    config: &Config,
    others: &[Announcement],
) -> FunctionSet {
    learn_ports(func, host, others);
    learn_groups(func, host, config, others)
}

fn learn_ports(func: &mut Func<'_>, host: &mut dyn Host, others: &[Announcement]) {
    let ports = others.iter().flat_map(|other| &other.ports).take(SUBNET_PORTS);
    let mut there: BTreeMap<u16, &SubnetPortRow> = ports.map(|port| (port.lid, port)).collect();
    for index in func.live::<SubnetPortRow>() {
        let Some(row) = func.row_mut::<SubnetPortRow>(index) else { continue };
        match there.remove(&row.lid) {
            Some(port) => *row = SubnetPortRow { head: row.head, ..*port },
            None => func.free::<SubnetPortRow>(index),
        }
        func.commit(host);
    }
    for port in there.into_values() {
        let Ok(index) = func.alloc::<SubnetPortRow>(0, Party(0)) else { return };
        if let Some(row) = func.row_mut::<SubnetPortRow>(index) {
            *row = SubnetPortRow { head: row.head, ..*port };
        }
        func.commit(host);
    }
}

/// Updates the groups. If several adapters created a group before they were connected, it has the properties that it has on the adapter
/// with the lowest number.
fn learn_groups(
    func: &mut Func<'_>,
    host: &mut dyn Host,
    config: &Config,
    others: &[Announcement],
) -> FunctionSet {
    let mut there: BTreeMap<[u8; 16], (u16, &SubnetGroupRow)> = BTreeMap::new();
    for other in others {
        for group in &other.groups {
            let first = there.entry(group.mgid).or_insert((other.node_id, group));
            if other.node_id < first.0 {
                *first = (other.node_id, group);
            }
        }
    }
    let mut changed = 0;
    for index in func.live::<SubnetGroupRow>() {
        let Some(row) = func.row_mut::<SubnetGroupRow>(index) else { continue };
        match there.remove(&row.mgid) {
            Some((id, group)) => {
                if id < config.node_id || !groups::has_members(row) {
                    if as_such(row).as_bytes() != group.as_bytes() {
                        changed |= groups::members(row);
                    }
                    let SubnetGroupRow { head, full, send_only, non, .. } = *row;
                    *row = SubnetGroupRow { head, full, send_only, non, ..*group };
                }
                row.elsewhere = 1;
            }
            None => {
                row.elsewhere = 0;
                groups::end_if_empty(func, index);
            }
        }
        func.commit(host);
    }
    for (_, group) in there.into_values() {
        let Ok(index) = func.alloc::<SubnetGroupRow>(0, Party(0)) else { break };
        if let Some(row) = func.row_mut::<SubnetGroupRow>(index) {
            *row = SubnetGroupRow { head: row.head, elsewhere: 1, ..*group };
        }
        func.commit(host);
    }
    changed
}
