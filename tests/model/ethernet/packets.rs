//! Frames, built and checked byte by byte, without code that the model uses.

pub const BROADCAST: [u8; 6] = [0xff; 6];

/// MAC of function `fid`.
pub fn mac(fid: u8) -> [u8; 6] {
    [0x02, 0x1b, 0x56, 0, 0, fid]
}

/// A frame of type `ethertype`.
pub fn frame(dst: [u8; 6], src: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&dst[..], &src[..], &ethertype.to_be_bytes(), payload].concat()
}

/// `frame` with an 802.1Q tag.
pub fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tci.to_be_bytes(), &frame[12..]].concat()
}

/// Ones' complement sum of big-endian words.
pub fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// An IPv4 packet with a correct header checksum.
pub fn ipv4(src: [u8; 4], dst: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0];
    ip.extend_from_slice(&src);
    ip.extend_from_slice(&dst);
    let total = (20 + payload.len()) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let check = !sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    [&ip[..], payload].concat()
}

/// An IPv6 packet.
pub fn ipv6(src: [u8; 16], dst: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0];
    ip.extend_from_slice(&(payload.len() as u16).to_be_bytes());
    ip.extend_from_slice(&[next, 64]);
    [&ip[..], &src, &dst, payload].concat()
}

fn pseudo4(src: [u8; 4], dst: [u8; 4], protocol: u8, len: usize) -> Vec<u8> {
    [&src[..], &dst, &[0, protocol], &(len as u16).to_be_bytes()].concat()
}

/// UDP over IPv4 with correct checksums.
pub fn udp4(src: ([u8; 4], u16), dst: ([u8; 4], u16), data: &[u8]) -> Vec<u8> {
    let len = (8 + data.len()) as u16;
    let head = [src.1.to_be_bytes(), dst.1.to_be_bytes(), len.to_be_bytes(), [0, 0]].concat();
    let mut udp = [&head[..], data].concat();
    let check = !sum(&[&pseudo4(src.0, dst.0, 17, udp.len())[..], &udp].concat());
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    ipv4(src.0, dst.0, 17, &udp)
}

/// TCP over IPv4 with correct checksums; `flags` as in byte 13.
pub fn tcp4(src: ([u8; 4], u16), dst: ([u8; 4], u16), seq: u32, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut tcp =
        [&src.1.to_be_bytes()[..], &dst.1.to_be_bytes(), &seq.to_be_bytes(), &7u32.to_be_bytes()].concat();
    tcp.extend_from_slice(&[5 << 4, flags, 0x20, 0, 0, 0, 0, 0]);
    tcp.extend_from_slice(data);
    let check = !sum(&[&pseudo4(src.0, dst.0, 6, tcp.len())[..], &tcp].concat());
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    ipv4(src.0, dst.0, 6, &tcp)
}

/// Returns true if IP header and TCP or UDP checksum of an untagged IPv4 frame are correct.
pub fn is_right(frame: &[u8]) -> bool {
    let ip = &frame[14..];
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let (src, dst) = (ip[12..16].try_into().unwrap(), ip[16..20].try_into().unwrap());
    let transport = &ip[20..total];
    let whole = [&pseudo4(src, dst, ip[9], transport.len())[..], transport].concat();
    sum(&ip[..20]) == 0xffff && sum(&whole) == 0xffff
}
