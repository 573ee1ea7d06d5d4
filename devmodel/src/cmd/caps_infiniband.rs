//! Capabilities of a port on InfiniBand.

use crate::LinkLayer;
use hwspec::context::caps::HcaCap;

/// `port_type`.
const INFINIBAND: u8 = 0;
/// `gid_table_size`: 8 entries; `pkey_table_size`: 128 entries. Each step doubles them.
const GIDS_8: u16 = 0;
/// See [`GIDS_8`].
const PKEYS_128: u16 = 0;

/// Turns the general page into that of an InfiniBand port, if it is one.
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
