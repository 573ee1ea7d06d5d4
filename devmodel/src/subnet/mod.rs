//! The InfiniBand subnet of an adapter: every function's port hangs on one switch, whose administrator knows them all.
//!
//! There is no subnet manager: ports come up active, with the LIDs of [`identity`]. What a manager could
//! change of a port (`smp`) and read of it (`pma`) is there all the same, through `MAD_IFC` and by packets. The
//! administrator (`sa`, `paths`, `groups`) answers queries that come as packets to the switch's LID; the PF's state holds
//! what it knows, and whoever runs the PF runs it (`agent`).

mod agent;
mod groups;
mod paths;
mod pma;
mod records;
mod sa;
mod smp;
mod switch;
mod view;

pub(crate) use agent::{arrive, group_port_gone};
pub(crate) use groups::is_in_a_group;
pub(crate) use pma::port_counters;
pub(crate) use smp::set_link;

use crate::{
    Config, identity,
    region::Func,
    state::{DEFAULT_PREFIX, IbPort, PKEYS},
};
use hwspec::wire::mad::{self, MAD_SIZE, MadHeader, Method, MgmtClass};
use zerocopy::FromZeros;

/// P_Key of the default partition, full member (IBTA 10.9.1.2).
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
/// Rate of a 4x EDR link: 100 Gb/s (IBTA 15.2.5.16).
const RATE_100G: u8 = 16;
/// Time a packet may take, as an exponent: 67 ms.
const LIFE_TIME: u8 = 14;
/// Time an agent may take to answer, as an exponent: 67 ms.
const RESPONSE_TIME: u8 = 14;
/// Capability mask of a port: an extended speed, system image GUID, more capability bits.
pub const PORT_CAPABILITIES: u32 = 1 << 14 | 1 << 11 | 1 << 15;
/// `capability_mask`: bits that software sets to tell what runs on the port: subnet manager, SNMP, device management,
/// vendor class, communication management.
pub(crate) const SOFT_CAPABILITIES: u32 = 1 << 1 | 1 << 17 | 1 << 19 | 1 << 20 | 1 << 16;

/// A port as it comes up after a reset.
pub(crate) fn port(config: &Config, fid: u8) -> IbPort {
    let mut port = IbPort {
        node_description: [0; 64],
        pkeys: [0; PKEYS],
        gid_prefix: DEFAULT_PREFIX,
        capability_mask: PORT_CAPABILITIES,
        subnet_timeout: 18,
        ..IbPort::new_zeroed()
    };
    port.node_description = description(fid);
    port.pkeys[0] = DEFAULT_PKEY;
    port.guids[0] = identity::guid(config.node_id, fid);
    for table in &mut port.arbitration {
        table[0] = [0, 64];
    }
    port
}

/// `NodeDescription` until the driver sets one.
fn description(fid: u8) -> [u8; 64] {
    let mut description = [0; 64];
    let name = format!("ironverbs iron{fid}");
    description[..name.len()].copy_from_slice(name.as_bytes());
    description
}

/// Why a MAD is answered with a bad status.
type Answer<T> = Result<T, u16>;

/// The management agents of a function's own port: what `MAD_IFC` asks, and packets to QP0. `None` is no answer.
pub(crate) fn local(
    func: &mut Func<'_>,
    config: &Config,
    request: &[u8; MAD_SIZE],
    keys_checked: bool,
) -> Option<[u8; MAD_SIZE]> {
    let header = MadHeader::from_bytes(hwspec::layout::prefix(request));
    match header.mgmt_class() {
        MgmtClass::SubnLid | MgmtClass::SubnDirected => smp::answer(func, config, request, keys_checked),
        MgmtClass::Perf => pma::answer(func, request),
        _ => {
            header.method().answer()?;
            Some(refuse(request, mad::status::BAD_VERSION))
        }
    }
}

/// `request` turned into an answer: method and status.
fn turned(request: &[u8; MAD_SIZE], status: u16) -> [u8; MAD_SIZE] {
    let mut out = *request;
    let mut header = MadHeader::from_bytes(hwspec::layout::prefix(request));
    let method = header.method().answer().unwrap_or(Method::GetResp);
    let directed = header.mgmt_class() == MgmtClass::SubnDirected;
    header.set().method(method).status(if directed { status | mad::status::DIRECTION } else { status });
    out[..MadHeader::SIZE].copy_from_slice(header.as_bytes());
    out
}

/// An answer that says why there is none.
fn refuse(request: &[u8; MAD_SIZE], status: u16) -> [u8; MAD_SIZE] {
    turned(request, status)
}

/// Whether the header is one this agent understands (IBTA 13.4.7): which status if not.
fn check_version(header: &MadHeader, class_version: u8) -> Answer<()> {
    let known = header.base_version() == mad::BASE_VERSION && header.class_version() == class_version;
    if known { Ok(()) } else { Err(mad::status::BAD_VERSION) }
}
