//! The performance management agent of a function's port (IBTA 16.1).

use super::mad::{self, turned};
use crate::{
    region::Func,
    state::{COUNTERS, Counters},
};
use hwspec::{
    layout::Layout,
    wire::mad::{Mad, MadHeader, Method, pma::*, status},
};

/// `port_select` of all ports.
const ALL_PORTS: u8 = 0xff;

/// Counters of a port, and how often its link went down.
pub(super) type Counted = ([u64; COUNTERS], u8);

/// Answers a performance management MAD.
pub(super) fn answer(func: &mut Func<'_>, request: &Mad) -> Option<Mad> {
    reply(request, is_port(request), |header| {
        match (header.method(), header.attribute_id()) {
            (Method::Set, PORT_COUNTERS) => {
                clear(func, u32::from(PortCounters::read(&request[DATA..]).counter_select()));
            }
            (Method::Set, _) => {
                clear_traffic(func, PortCountersExtended::read(&request[DATA..]).counter_select());
            }
            _ => {}
        }
        let f = func.function();
        (f.counters, f.ib.link_downed)
    })
}

/// The selected port; both attributes have it in the same place.
pub(super) fn port_select(request: &Mad) -> u8 {
    request[DATA + 1]
}

/// True if the request selects the only port of a function.
pub(super) fn is_port(request: &Mad) -> bool {
    matches!(port_select(request), 1 | ALL_PORTS)
}

/// The reply to a performance management MAD. `known` tells if the selected port exists. `counted` returns the counters, and clears those
/// that the request selects.
pub(super) fn reply(request: &Mad, known: bool, counted: impl FnOnce(&MadHeader) -> Counted) -> Option<Mad> {
    mad::answer(request, CLASS_VERSION, |header| {
        if !matches!(header.method(), Method::Get | Method::Set) {
            return Err(status::BAD_METHOD);
        }
        let port = port_select(request);
        let mut out = turned(request, 0);
        match header.attribute_id() {
            CLASS_PORT_INFO if header.method() == Method::Get => {
                put(&mut out, &mad::class_port_info(CLASS_VERSION, EXTENDED_WIDTH, 0));
            }
            PORT_COUNTERS | PORT_COUNTERS_EXTENDED if !known => return Err(status::BAD_FIELD),
            PORT_COUNTERS => {
                let mut counters = basic(&counted(header));
                counters.set().port_select(port);
                put(&mut out, &counters);
            }
            PORT_COUNTERS_EXTENDED => {
                let mut counters = extended(&counted(header).0);
                counters.set().port_select(port);
                put(&mut out, &counters);
            }
            _ => return Err(status::BAD_ATTRIBUTE),
        }
        Ok(Some(out))
    })
}

fn put<T: Layout>(mad: &mut Mad, attribute: &T) {
    mad[DATA..].fill(0);
    mad[DATA..DATA + T::SIZE].copy_from_slice(attribute.bytes());
}

/// The counters of the switch's end of a link whose other end has the counters `of`: each end receives what the other sends.
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

/// `PortCounters` of a function's port. Data are counted in words.
pub(crate) fn port_counters(func: &Func<'_>) -> PortCounters {
    let f = func.function();
    basic(&(f.counters, f.ib.link_downed))
}

fn basic((counters, link_downed): &Counted) -> PortCounters {
    let of = |counter: Counters| counters[counter as usize];
    let most = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    // Errors of the link's packets: malformed ones, and those with a wrong CRC.
    let errors = of(Counters::RxIcrcErrors).saturating_add(of(Counters::RxMalformed));
    PortCounters::with(|s| {
        s.rcv_errors(u16::try_from(errors).unwrap_or(u16::MAX))
            .link_downed(*link_downed)
            .xmit_data(most(of(Counters::TxBytes) / 4))
            .rcv_data(most(of(Counters::RxBytes) / 4))
            .xmit_pkts(most(of(Counters::TxPackets)))
            .rcv_pkts(most(of(Counters::RxPackets)))
    })
}

fn extended(counters: &[u64; COUNTERS]) -> PortCountersExtended {
    let of = |counter: Counters| counters[counter as usize];
    let (xmit, multicast_xmit) = (of(Counters::TxPackets), of(Counters::IbTxMulticastPackets));
    let (rcv, multicast_rcv) = (of(Counters::RxPackets), of(Counters::IbRxMulticastPackets));
    PortCountersExtended::with(|s| {
        s.xmit_data(of(Counters::TxBytes) / 4)
            .rcv_data(of(Counters::RxBytes) / 4)
            .xmit_pkts(xmit)
            .rcv_pkts(rcv)
            .unicast_xmit_pkts(xmit.saturating_sub(multicast_xmit))
            .unicast_rcv_pkts(rcv.saturating_sub(multicast_rcv))
            .multicast_xmit_pkts(multicast_xmit)
            .multicast_rcv_pkts(multicast_rcv)
    })
}

/// Clears the counters that `select` of `PortCounters` names.
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

/// Clears the counters that `select` of `PortCountersExtended` names.
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
