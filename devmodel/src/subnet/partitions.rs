//! Partitions, as the administrator sees them: the P_Keys that ports have in common (IBTA 10.9, 15.2.5.16).

use super::{Subnet, mad::DEFAULT_PKEY, records::End};
use crate::state::{FunctionRow, IbPort};

/// P_Keys without the bit of full members.
const PARTITION: u16 = 0x7fff;

impl Subnet<'_> {
    /// P_Keys of a port. The switch is in the default partition.
    fn pkeys(&self, end: &End) -> Vec<u16> {
        match end.fid {
            Some(fid) => self.region.look::<FunctionRow>(fid, 0).map_or(Vec::new(), |f| f.ib.pkeys.to_vec()),
            None => vec![DEFAULT_PKEY],
        }
    }

    /// True if a port is in the partition of `pkey`.
    pub fn is_member(&self, end: &End, pkey: u16) -> bool {
        pkey & PARTITION != 0 && self.pkeys(end).iter().any(|own| own & PARTITION == pkey & PARTITION)
    }

    /// The P_Key by which `from` reaches `to`: of the partition of `wanted`, or else the first that lets them.
    pub fn pkey_between(&self, from: &End, to: &End, wanted: Option<u16>) -> Option<u16> {
        let there = self.pkeys(to);
        self.pkeys(from)
            .into_iter()
            .filter(|own| wanted.is_none_or(|wanted| own & PARTITION == wanted & PARTITION))
            .find(|own| there.iter().any(|other| IbPort::is_same_partition(*own, *other)))
    }
}
