//! The performance management agent of a function's port (IBTA 16.1).

use super::mad::{check_version, refuse, turned};
use crate::{
    region::Func,
    state::{COUNTERS, Counters},
};
use hwspec::{
    layout::{Layout, prefix},
    wire::mad::{ClassPortInfo, MAD_SIZE, MadHeader, Method, pma::*, status},
};

/// `port_select` of all ports.
const ALL_PORTS: u8 = 0xff;

/// Answers a performance management MAD.
pub(super) fn answer(func: &mut Func<'_>, request: &[u8; MAD_SIZE]) -> Option<[u8; MAD_SIZE]> {
    let header = MadHeader::from_bytes(prefix(request));
    if header.method() == Method::Set && may_be_done(request) {
        match header.attribute_id() {
            PORT_COUNTERS => clear(func, u32::from(PortCounters::read(&request[DATA..]).counter_select())),
            _ => clear_traffic(func, PortCountersExtended::read(&request[DATA..]).counter_select()),
        }
    }
    let f = func.function();
    reply(request, is_port(request), &f.counters, f.ib.link_downed)
}

/// True if a request to clear counters is one of a port that is there.
fn may_be_done(request: &[u8; MAD_SIZE]) -> bool {
    let header = MadHeader::from_bytes(prefix(request));
    check_version(&header, CLASS_VERSION).is_ok()
        && matches!(header.attribute_id(), PORT_COUNTERS | PORT_COUNTERS_EXTENDED)
        && is_port(request)
}

/// The port selected, which lies in the same place in both attributes.
pub(super) fn port_select(request: &[u8; MAD_SIZE]) -> u8 {
    request[DATA + 1]
}

/// True if the request selects a port of a function, which has one.
pub(super) fn is_port(request: &[u8; MAD_SIZE]) -> bool {
    matches!(port_select(request), 1 | ALL_PORTS)
}

/// The reply of these counters of the port selected to a performance management MAD, once those to be cleared are;
/// `known` says whether there is such a port.
pub(super) fn reply(
    request: &[u8; MAD_SIZE],
    known: bool,
    counters: &[u64; COUNTERS],
    link_downed: u8,
) -> Option<[u8; MAD_SIZE]> {
    let header = MadHeader::from_bytes(prefix(request));
    header.method().answer()?;
    let status = match (check_version(&header, CLASS_VERSION), header.method()) {
        (Err(status), _) => Some(status),
        (_, Method::Get | Method::Set) => None,
        _ => Some(status::BAD_METHOD),
    };
    if let Some(status) = status {
        return Some(refuse(request, status));
    }
    let port = port_select(request);
    let mut out = turned(request, 0);
    match header.attribute_id() {
        CLASS_PORT_INFO if header.method() == Method::Get => put(&mut out, &class_port_info()),
        PORT_COUNTERS | PORT_COUNTERS_EXTENDED if !known => {
            return Some(refuse(request, status::BAD_FIELD));
        }
        PORT_COUNTERS => {
            let mut counters = basic(counters, link_downed);
            counters.set().port_select(port);
            put(&mut out, &counters);
        }
        PORT_COUNTERS_EXTENDED => {
            let mut counters = extended(counters);
            counters.set().port_select(port);
            put(&mut out, &counters);
        }
        _ => return Some(refuse(request, status::BAD_ATTRIBUTE)),
    }
    Some(out)
}

fn put<T: Layout>(mad: &mut [u8; MAD_SIZE], attribute: &T) {
    mad[DATA..].fill(0);
    mad[DATA..DATA + T::SIZE].copy_from_slice(attribute.bytes());
}

fn class_port_info() -> ClassPortInfo {
    ClassPortInfo::with(|s| {
        s.base_version(hwspec::wire::mad::BASE_VERSION)
            .class_version(CLASS_VERSION)
            .capability_mask(EXTENDED_WIDTH)
            .resp_time_value(super::mad::RESPONSE_TIME)
    })
}

/// The counters of the switch's end of a link whose other end counts `of`: what one sends the other receives.
pub(super) fn other_end(of: &[u64; COUNTERS]) -> [u64; COUNTERS] {
    let mut out = [0; COUNTERS];
    for (sent, received) in [
        (Counters::TxPackets, Counters::RxPackets),
        (Counters::TxBytes, Counters::RxBytes),
        (Counters::IbTxMulticastPackets, Counters::IbRxMulticastPackets),
    ] {
        out[sent as usize] = of[received as usize];
        out[received as usize] = of[sent as usize];
    }
    out
}

/// Packets and bytes, as the port counts them.
struct Traffic {
    xmit: u64,
    rcv: u64,
    xmit_bytes: u64,
    rcv_bytes: u64,
    multicast_xmit: u64,
    multicast_rcv: u64,
}

fn traffic(counters: &[u64; COUNTERS]) -> Traffic {
    let count = |c: Counters| counters[c as usize];
    Traffic {
        xmit: count(Counters::TxPackets),
        rcv: count(Counters::RxPackets),
        xmit_bytes: count(Counters::TxBytes),
        rcv_bytes: count(Counters::RxBytes),
        multicast_xmit: count(Counters::IbTxMulticastPackets),
        multicast_rcv: count(Counters::IbRxMulticastPackets),
    }
}

/// Errors of the link's packets: those that could not be understood, or whose CRC was wrong.
fn receive_errors(counters: &[u64; COUNTERS]) -> u64 {
    counters[Counters::RxIcrcErrors as usize].saturating_add(counters[Counters::RxMalformed as usize])
}

/// `PortCounters` of a function's port. Data are counted in words.
pub(crate) fn port_counters(func: &Func<'_>) -> PortCounters {
    let f = func.function();
    basic(&f.counters, f.ib.link_downed)
}

fn basic(of: &[u64; COUNTERS], link_downed: u8) -> PortCounters {
    let t = traffic(of);
    let most = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    PortCounters::with(|s| {
        s.rcv_errors(u16::try_from(receive_errors(of)).unwrap_or(u16::MAX))
            .link_downed(link_downed)
            .xmit_data(most(t.xmit_bytes / 4))
            .rcv_data(most(t.rcv_bytes / 4))
            .xmit_pkts(most(t.xmit))
            .rcv_pkts(most(t.rcv))
    })
}

fn extended(of: &[u64; COUNTERS]) -> PortCountersExtended {
    let t = traffic(of);
    PortCountersExtended::with(|s| {
        s.xmit_data(t.xmit_bytes / 4)
            .rcv_data(t.rcv_bytes / 4)
            .xmit_pkts(t.xmit)
            .rcv_pkts(t.rcv)
            .unicast_xmit_pkts(t.xmit.saturating_sub(t.multicast_xmit))
            .unicast_rcv_pkts(t.rcv.saturating_sub(t.multicast_rcv))
            .multicast_xmit_pkts(t.multicast_xmit)
            .multicast_rcv_pkts(t.multicast_rcv)
    })
}

/// Clears what `select` of `PortCounters` names.
fn clear(func: &mut Func<'_>, select: u32) {
    const LINK_DOWNED: u32 = 1 << 2;
    const RCV_ERRORS: u32 = 1 << 3;
    if select & LINK_DOWNED != 0 {
        *func.function_mut(|f| &mut f.ib.link_downed) = 0;
    }
    let counters = func.function_mut(|f| &mut f.counters);
    if select & RCV_ERRORS != 0 {
        counters[Counters::RxIcrcErrors as usize] = 0;
        counters[Counters::RxMalformed as usize] = 0;
    }
    // Bits 12 to 15: data and packets, sent and received.
    zero(counters, select >> 12);
}

/// Clears what `select` of `PortCountersExtended` names.
fn clear_traffic(func: &mut Func<'_>, select: u16) {
    let counters = func.function_mut(|f| &mut f.counters);
    zero(counters, select.into());
    // Bits 6 and 7: multicast packets.
    if select & 1 << 6 != 0 {
        counters[Counters::IbTxMulticastPackets as usize] = 0;
    }
    if select & 1 << 7 != 0 {
        counters[Counters::IbRxMulticastPackets as usize] = 0;
    }
}

fn zero(counters: &mut [u64; COUNTERS], bits: u32) {
    let order = [Counters::TxBytes, Counters::RxBytes, Counters::TxPackets, Counters::RxPackets];
    for (i, counter) in order.into_iter().enumerate() {
        if bits & 1 << i != 0 {
            counters[counter as usize] = 0;
        }
    }
}
