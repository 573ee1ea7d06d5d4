//! The parts that all agents have in common: the initial state of a port, and the form of answers.

use crate::state::{DEFAULT_PREFIX, IbPort, PKEYS};
use hwspec::{
    layout::prefix,
    wire::mad::{self, ClassPortInfo, Mad, MadHeader, Method, MgmtClass, status},
};
use zerocopy::FromZeros;

/// P_Key of the default partition, full member (IBTA 10.9.1.2).
pub(super) const DEFAULT_PKEY: u16 = 0xffff;
/// Rate of a 4x EDR link: 100 Gb/s (IBTA 15.2.5.16).
pub(super) const RATE_100G: u8 = 16;
/// Time a packet may take, as an exponent: 67 ms.
pub(super) const PACKET_LIFE: u8 = 14;
/// Time an agent may take to answer, as an exponent: 67 ms.
pub(super) const RESPONSE_TIME: u8 = 14;
/// Capability mask of a port: an extended speed, system image GUID, more capability bits.
pub const PORT_CAPABILITIES: u32 = 1 << 14 | 1 << 11 | 1 << 15;
/// `capability_mask`: bits that software sets to tell what runs on the port: subnet manager, SNMP, device management,
/// vendor class, communication management.
pub(crate) const SOFT_CAPABILITIES: u32 = 1 << 1 | 1 << 17 | 1 << 19 | 1 << 20 | 1 << 16;

/// The initial state of a port after a reset, with its GUID.
pub(crate) fn port(node_id: u16, fid: u8, guid: [u8; 8]) -> IbPort {
    let mut port = IbPort {
        node_description: [0; 64],
        pkeys: [0; PKEYS],
        gid_prefix: DEFAULT_PREFIX,
        capability_mask: PORT_CAPABILITIES,
        subnet_timeout: 18,
        ..IbPort::new_zeroed()
    };
    port.node_description = description(node_id, fid);
    port.pkeys[0] = DEFAULT_PKEY;
    port.guids[0] = guid;
    for table in &mut port.arbitration {
        table[0] = [0, 64];
    }
    port
}

/// `NodeDescription` until the driver sets one.
pub(super) fn description(node_id: u16, fid: u8) -> [u8; 64] {
    let mut description = [0; 64];
    let name = match node_id {
        0 => format!("ironverbs iron{fid}"),
        id => format!("ironverbs iron{fid} of adapter {id}"),
    };
    description[..name.len()].copy_from_slice(name.as_bytes());
    description
}

/// The answer to a MAD, or the status of a refusal.
pub(super) type Answer<T> = Result<T, u16>;

/// Answers a request for an agent of this class version (IBTA 13.4.7) with the result of `make`, or with its status. `None` is no answer,
/// as to a MAD that is no request.
pub(super) fn answer<T: From<Mad>>(
    request: &Mad,
    class_version: u8,
    make: impl FnOnce(&MadHeader) -> Answer<Option<T>>,
) -> Option<T> {
    let header = MadHeader::from_bytes(prefix(request));
    header.method().answer()?;
    if header.base_version() != mad::BASE_VERSION || header.class_version() != class_version {
        return Some(turned(request, status::BAD_VERSION).into());
    }
    make(&header).unwrap_or_else(|status| Some(turned(request, status).into()))
}

/// The capabilities of an agent of this class version (IBTA 13.4.8.1).
pub(super) fn class_port_info(class_version: u8, mask: u16, mask2: u32) -> ClassPortInfo {
    ClassPortInfo::with(|s| {
        s.base_version(mad::BASE_VERSION)
            .class_version(class_version)
            .capability_mask(mask)
            .capability_mask2(mask2)
            .resp_time_value(RESPONSE_TIME)
    })
}

/// Turns `request` into an answer with this status.
pub(super) fn turned(request: &Mad, status: u16) -> Mad {
    let mut out = *request;
    let mut header = MadHeader::from_bytes(prefix(request));
    let method = header.method().answer().unwrap_or(Method::GetResp);
    let directed = header.mgmt_class() == MgmtClass::SubnDirected;
    header.set().method(method).status(if directed { status | status::DIRECTION } else { status });
    out[..MadHeader::SIZE].copy_from_slice(header.as_bytes());
    out
}
