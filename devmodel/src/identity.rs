//! The identities of the functions: addresses derived only from the adapter's number and the function's number.

/// The first three bytes of every MAC: locally administered.
const PREFIX: [u8; 3] = [0x02, 0x1b, 0x56];

/// MAC of function `fid` of the adapter of node `node_id`.
pub const fn mac(node_id: u16, fid: u8) -> [u8; 6] {
    let [hi, lo] = node_id.to_be_bytes();
    [PREFIX[0], PREFIX[1], PREFIX[2], hi, lo, fid]
}

/// The function of node `node_id` with this MAC.
#[inline]
pub const fn fid_of_mac(node_id: u16, mac: [u8; 6]) -> Option<u8> {
    match mac {
        [0x02, 0x1b, 0x56, hi, lo, fid] if u16::from_be_bytes([hi, lo]) == node_id => Some(fid),
        _ => None,
    }
}

/// Node and port GUID of function `fid`: its MAC, split by 0xfffe. Cards and Linux keep the MAC's locally administered bit as it is,
/// and programs rely on that to find the net device of a GUID.
pub const fn guid(node_id: u16, fid: u8) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac(node_id, fid);
    [a, b, c, 0xff, 0xfe, d, e, f]
}

/// GID of function `fid` on Ethernet that is the link-local IPv6 address of its MAC, with the locally administered bit inverted (RFC
/// 4291, appendix A).
pub const fn link_local_gid(node_id: u16, fid: u8) -> [u8; 16] {
    let [a, b, c, d, e, f] = mac(node_id, fid);
    in_default_subnet([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Default GID of function `fid` on InfiniBand: the default subnet prefix and its port GUID (InfiniBand Architecture, 4.1.1).
pub const fn port_gid(node_id: u16, fid: u8) -> [u8; 16] {
    in_default_subnet(guid(node_id, fid))
}

const fn in_default_subnet(g: [u8; 8]) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]]
}

/// IPv4 address of function `fid` until one is configured: 127.0.0.(fid+1) on node 0.
pub const fn loopback(node_id: u16, fid: u8) -> [u8; 4] {
    let [hi, lo] = node_id.to_be_bytes();
    [127, hi, lo, fid.wrapping_add(1)]
}

/// Highest number of an InfiniBand adapter: the switch of every other one has a port for it beside those of 128 functions.
pub const MAX_SUBNET_ID: u16 = 125;

/// Number of LIDs of an adapter.
const LIDS: u16 = 256;

/// LID of function `fid` of node `node_id` on InfiniBand.
pub const fn lid(node_id: u16, fid: u8) -> u16 {
    node_id.wrapping_mul(LIDS).wrapping_add(fid as u16 + 1)
}

/// The function of node `node_id` with this LID.
#[inline]
pub const fn fid_of_lid(node_id: u16, lid: u16) -> Option<u8> {
    match lid.wrapping_sub(node_id.wrapping_mul(LIDS)) {
        at @ 1..=128 => Some((at - 1) as u8),
        _ => None,
    }
}

/// LID of the switch that the functions of node `node_id` are attached to, and of the administrator in it: 0x200 on node 0. No function
/// has such a LID.
pub const fn switch_lid(node_id: u16) -> u16 {
    node_id.wrapping_add(2).wrapping_mul(LIDS)
}

/// The node whose switch, or one of whose functions, has this LID.
pub const fn node_of_lid(lid: u16) -> Option<u16> {
    let node_id = match lid % LIDS {
        0 => (lid / LIDS).wrapping_sub(2),
        1..=128 => lid / LIDS,
        _ => return None,
    };
    if node_id <= MAX_SUBNET_ID { Some(node_id) } else { None }
}

/// GUID of the switch of node `node_id`.
pub const fn switch_guid(node_id: u16) -> [u8; 8] {
    guid(node_id, 0xff)
}

/// Bytes of BAR0.
pub const BAR0_SIZE: u64 = 32 << 20;
