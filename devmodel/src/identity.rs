//! Who the functions are: addresses that follow from a function's number alone.

/// MAC of function `fid`.
pub const fn mac(fid: u8) -> [u8; 6] {
    [0x02, 0x1b, 0x56, 0, 0, fid]
}

/// The function with this MAC.
#[inline]
pub const fn fid_of_mac(mac: [u8; 6]) -> Option<u8> {
    match mac {
        [0x02, 0x1b, 0x56, 0, 0, fid] => Some(fid),
        _ => None,
    }
}

/// EUI-64 of function `fid`: its node and port GUID.
pub const fn guid(fid: u8) -> [u8; 8] {
    let m = mac(fid);
    [m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]]
}

/// Link-local GID of function `fid`.
pub const fn link_local_gid(fid: u8) -> [u8; 16] {
    let g = guid(fid);
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7]]
}

/// Bytes of BAR0.
pub const BAR0_SIZE: u64 = 32 << 20;
