//! Flow rules, which steer packets to a raw packet QP.

use crate::abi::public::{self as abi, ibv_flow, ibv_flow_attr, ibv_qp};
use crate::guard::verb;
use crate::ours::{Destroy, Of, ours};
use crate::rights;
use crate::users::Use;
use driver::{FlowAttr, FlowKind, FlowSpec};
use libc::c_int;

/// Maximum number of specs in a rule, and the maximum size of one in bytes.
const MAX_SPECS: u8 = 16;
const MAX_SPEC: usize = 256;
/// Length of the header of a spec: its type and size.
const HEAD: usize = 6;

/// The provider's flow. Programs see its first member.
#[repr(C)]
pub struct IronFlow {
    public: ibv_flow,
    _inner: driver::Flow,
    _qp: Use,
}

ours!(IronFlow: ibv_flow);

/// `ibv_create_flow`.
///
/// # Safety
/// Called by programs with an attribute structure that is followed by its specs (V4), or null.
pub unsafe extern "C" fn create_flow(qp: Of<ibv_qp>, attr: *const ibv_flow_attr) -> Option<Of<ibv_flow>> {
    verb(qp, || {
        rights::raw_packets()?;
        // SAFETY: guaranteed by the caller.
        let inner = driver::Flow::create(&qp.inner, &unsafe { read(attr) }?)?;
        let public = ibv_flow { comp_mask: 0, context: qp.context().raw(), handle: 0 };
        Ok(Of::made(IronFlow { public, _inner: inner, _qp: qp.flows.hold() }))
    })
}

/// `ibv_destroy_flow`.
impl Destroy for ibv_flow {}

/// Reads a program's flow rule. Fails with EINVAL for invalid sizes and EOPNOTSUPP for types, flags and specs that are not supported.
///
/// # Safety
/// As for [`create_flow`].
unsafe fn read(attr: *const ibv_flow_attr) -> Result<FlowAttr, c_int> {
    // SAFETY: guaranteed by the caller: null, or V4 for the structure.
    let head = unsafe { attr.as_ref() }.ok_or(libc::EINVAL)?;
    let kind = match head.kind {
        abi::IBV_FLOW_ATTR_NORMAL => FlowKind::Normal,
        abi::IBV_FLOW_ATTR_ALL_DEFAULT => FlowKind::AllDefault,
        abi::IBV_FLOW_ATTR_MC_DEFAULT => FlowKind::McDefault,
        _ => return Err(libc::EOPNOTSUPP),
    };
    if head.comp_mask != 0 || head.port != 1 || head.num_of_specs > MAX_SPECS {
        return Err(libc::EINVAL);
    }
    if head.flags != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut specs = Vec::with_capacity(head.num_of_specs.into());
    let mut at = size_of::<ibv_flow_attr>();
    for _ in 0..head.num_of_specs {
        // SAFETY: guaranteed by the caller: a spec begins here with its type and size, and is as long as its size says (V4).
        let bytes = unsafe {
            let start = attr.cast::<u8>().add(at);
            let size = usize::from(start.add(4).cast::<u16>().read_unaligned());
            if !(HEAD..=MAX_SPEC).contains(&size) {
                return Err(libc::EINVAL);
            }
            std::slice::from_raw_parts(start, size)
        };
        part(bytes, &mut specs)?;
        at += bytes.len();
    }
    Ok(FlowAttr { kind, priority: head.priority, specs })
}

/// Reads `N` bytes at offset `at` of a spec.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], c_int> {
    let found = bytes.get(at..at + N).and_then(|found| found.try_into().ok());
    found.ok_or(libc::EINVAL)
}

/// Reads a value and its mask, `step` bytes apart.
fn both<const N: usize>(bytes: &[u8], at: usize, step: usize) -> Result<[[u8; N]; 2], c_int> {
    Ok([field(bytes, at)?, field(bytes, at + step)?])
}

/// [`both`] for a 16-bit number in network order.
fn number(bytes: &[u8], at: usize, step: usize) -> Result<[u16; 2], c_int> {
    Ok(both::<2>(bytes, at, step)?.map(u16::from_be_bytes))
}

/// The fields of an IP header other than version and addresses.
fn more(version: u8, fields: [[[u8; 1]; 2]; 3]) -> FlowSpec {
    let [proto, class, ttl] = fields.map(|pair| pair.map(|[byte]| byte));
    FlowSpec::IpMore { version, proto, class, ttl }
}

/// Converts one spec: type, size, values, masks.
fn part(bytes: &[u8], specs: &mut Vec<FlowSpec>) -> Result<(), c_int> {
    let spec = match u32::from_ne_bytes(field(bytes, 0)?) {
        abi::IBV_FLOW_SPEC_ETH => FlowSpec::Eth {
            dst: both(bytes, HEAD, 16)?,
            src: both(bytes, HEAD + 6, 16)?,
            ether_type: number(bytes, HEAD + 12, 16)?,
            vlan: number(bytes, HEAD + 14, 16)?,
        },
        abi::IBV_FLOW_SPEC_IPV4 => FlowSpec::Ipv4 { src: both(bytes, 8, 8)?, dst: both(bytes, 12, 8)? },
        abi::IBV_FLOW_SPEC_IPV4_EXT => {
            let [proto, tos, ttl, flags] = std::array::from_fn(|i| both::<1>(bytes, 16 + i, 12));
            if flags?[1] != [0] {
                return Err(libc::EOPNOTSUPP);
            }
            specs.push(more(4, [proto?, tos?, ttl?]));
            FlowSpec::Ipv4 { src: both(bytes, 8, 12)?, dst: both(bytes, 12, 12)? }
        }
        abi::IBV_FLOW_SPEC_IPV6 => {
            // Flow labels cannot be matched.
            if field::<4>(bytes, 8 + 40 + 32)? != [0; 4] {
                return Err(libc::EOPNOTSUPP);
            }
            let [next, class, hops] = std::array::from_fn(|i| both::<1>(bytes, 8 + 36 + i, 40));
            specs.push(more(6, [next?, class?, hops?]));
            FlowSpec::Ipv6 { src: both(bytes, 8, 40)?, dst: both(bytes, 24, 40)? }
        }
        abi::IBV_FLOW_SPEC_TCP => {
            FlowSpec::Tcp { dst_port: number(bytes, HEAD, 4)?, src_port: number(bytes, HEAD + 2, 4)? }
        }
        abi::IBV_FLOW_SPEC_UDP => {
            FlowSpec::Udp { dst_port: number(bytes, HEAD, 4)?, src_port: number(bytes, HEAD + 2, 4)? }
        }
        abi::IBV_FLOW_SPEC_ACTION_DROP => FlowSpec::Drop,
        _ => return Err(libc::EOPNOTSUPP),
    };
    specs.push(spec);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part_of(kind: u32, size: usize, fill: impl FnOnce(&mut [u8])) -> Result<Vec<FlowSpec>, c_int> {
        let mut bytes = vec![0; size];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
        fill(&mut bytes);
        let mut specs = Vec::new();
        part(&bytes, &mut specs).map(|()| specs)
    }

    #[test]
    fn a_part_shorter_than_its_kind_is_invalid() {
        for (kind, size) in [(0x20, 38), (0x30, 24), (0x31, 88), (0x32, 32), (0x40, 14), (0x41, 14)] {
            assert!(part_of(kind, size, |_| {}).is_ok(), "{kind:#x}");
            assert_eq!(part_of(kind, size - 8, |_| {}).err(), Some(libc::EINVAL), "{kind:#x}");
        }
    }

    #[test]
    fn what_is_not_compared_is_refused_and_not_left_out() {
        assert_eq!(part_of(0x31, 88, |bytes| bytes[8 + 40 + 33] = 1).err(), Some(libc::EOPNOTSUPP));
        assert_eq!(part_of(0x32, 32, |bytes| bytes[31] = 1).err(), Some(libc::EOPNOTSUPP));
        assert_eq!(part_of(0x50, 16, |_| {}).err(), Some(libc::EOPNOTSUPP));
        assert_eq!(part_of(0x1001, 8, |_| {}), Ok(vec![FlowSpec::Drop]));
    }

    #[test]
    fn next_header_traffic_class_and_hop_limit_are_where_the_header_has_them() {
        // struct ibv_flow_ipv6_filter: addresses, flow_label, next_hdr, traffic_class, hop_limit; first the value, then the mask.
        let found = part_of(0x31, 88, |bytes| {
            bytes[8 + 36..8 + 39].copy_from_slice(&[17, 0xb8, 64]);
            bytes[48 + 36..48 + 39].copy_from_slice(&[0xff, 0xfc, 0x7f]);
        });
        let more = FlowSpec::IpMore { version: 6, proto: [17, 0xff], class: [0xb8, 0xfc], ttl: [64, 0x7f] };
        assert_eq!(found, Ok(vec![more, FlowSpec::Ipv6 { src: [[0; 16]; 2], dst: [[0; 16]; 2] }]));
    }

    #[test]
    fn numbers_are_in_network_order() {
        let found =
            part_of(0x41, 16, |bytes| bytes[6..14].copy_from_slice(&[0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0]));
        let udp = FlowSpec::Udp { dst_port: [0x1234, 0xffff], src_port: [0, 0] };
        assert_eq!(found, Ok(vec![udp]));
    }
}
