//! Capabilities of a port on InfiniBand.

use crate::LinkLayer;
use hwspec::context::caps::HcaCap;

/// `port_type`.
const INFINIBAND: u8 = 0;
/// `gid_table_size` of 8 entries; each step doubles them.
const GIDS_8: u16 = 0;
/// `pkey_table_size` of 128 entries; each step doubles them.
const PKEYS_128: u16 = 0;

/// Adapts the general page to an InfiniBand port, if the link is InfiniBand.
pub(super) fn general(c: &mut HcaCap, link: LinkLayer) {
    if link == LinkLayer::Infiniband {
        c.set()
            .port_type(INFINIBAND)
            .ib_virt(true)
            .gid_table_size(GIDS_8)
            .pkey_table_size(PKEYS_128)
            .pkv(true)
            .qkv(true)
            .roce(false);
    }
}
