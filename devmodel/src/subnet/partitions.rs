//! Partitions, as the administrator sees them: the P_Keys that ports have in common (IBTA 10.9, 15.2.5.16).

use crate::state::{IbPort, SubnetPortRow};

/// P_Keys without the bit of full members.
const PARTITION: u16 = 0x7fff;

impl SubnetPortRow {
    /// True if the port is in the partition of `pkey`.
    pub(super) fn is_member(&self, pkey: u16) -> bool {
        pkey & PARTITION != 0 && self.pkeys.iter().any(|own| own & PARTITION == pkey & PARTITION)
    }

    /// The P_Key by which the port reaches `to`: that of partition `wanted` or, without one, the first common one.
    pub(super) fn pkey_to(&self, to: &Self, wanted: Option<u16>) -> Option<u16> {
        self.pkeys
            .into_iter()
            .filter(|own| wanted.is_none_or(|wanted| own & PARTITION == wanted & PARTITION))
            .find(|own| to.pkeys.iter().any(|other| IbPort::is_same_partition(*own, *other)))
    }
}
