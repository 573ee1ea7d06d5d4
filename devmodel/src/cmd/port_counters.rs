//! Vport and port statistics: `QUERY_VPORT_COUNTER` and the groups of the PPCNT register.
//!
//! RDMA and other Ethernet frames are counted separately; the port's counters are their sum. Groups without any count in
//! this device read zero.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
    vport::{books, vport},
};
use crate::{
    region::Func,
    state::{
        COUNTERS,
        Counters::{self, *},
    },
};
use hwspec::{
    cmd::vport::*,
    context::{
        port::{Ieee8023Counters, Ppcnt, PriorityCounters, Rfc2819Counters, Rfc2863Counters},
        vport::TrafficCounter,
    },
    layout::{Field, Layout, store},
};

/// `grp` of `PPCNT`.
const IEEE_802_3: u8 = 0x00;
const RFC_2863: u8 = 0x01;
const RFC_2819: u8 = 0x02;
const RFC_3635: u8 = 0x03;
const PER_PRIORITY: u8 = 0x10;
const PER_TRAFFIC_CLASS: u8 = 0x11;
const PHYSICAL: u8 = 0x12;
const PHYSICAL_STATISTICS: u8 = 0x16;

/// All counters of a vport: the first and last of each run of them.
const VPORT: [(Counters, Counters); 3] = [
    (TxPackets, RxBytes),
    (EthTxUnicastPackets, EthRxBroadcastBytes),
    (IbTxMulticastPackets, IbRxMulticastBytes),
];

pub(super) fn query_vport(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryVportCounterIn = call.input()?;
    let fid = vport(call)?;
    Syndrome::Port.unless(input.port_num() <= 1)?;
    // Only the owner may clear them.
    Syndrome::FunctionId.unless(!input.clear() || fid == call.func.fid())?;
    let counters = books(call, fid).counters;
    let pair = |packets: Counters, octets: Counters| {
        TrafficCounter::with(|s| s.packets(counters[packets as usize]).octets(counters[octets as usize]))
    };
    // RDMA multicast packets, which the counters of all RDMA packets include.
    let received = pair(IbRxMulticastPackets, IbRxMulticastBytes);
    let sent = pair(IbTxMulticastPackets, IbTxMulticastBytes);
    let but = |all: TrafficCounter, some: TrafficCounter| {
        TrafficCounter::with(|s| {
            s.packets(all.packets().saturating_sub(some.packets()))
                .octets(all.octets().saturating_sub(some.octets()))
        })
    };
    let mut errors = TrafficCounter::zeroed();
    errors.set().packets(counters[EthRxTooLong as usize] + counters[RxMalformed as usize]);
    let mut out = QueryVportCounterOut::zeroed();
    out.set()
        .received_errors(errors)
        .received_ib_unicast(but(pair(RxPackets, RxBytes), received))
        .transmitted_ib_unicast(but(pair(TxPackets, TxBytes), sent))
        .received_ib_multicast(received)
        .transmitted_ib_multicast(sent)
        .received_eth_broadcast(pair(EthRxBroadcastPackets, EthRxBroadcastBytes))
        .transmitted_eth_broadcast(pair(EthTxBroadcastPackets, EthTxBroadcastBytes))
        .received_eth_unicast(pair(EthRxUnicastPackets, EthRxUnicastBytes))
        .transmitted_eth_unicast(pair(EthTxUnicastPackets, EthTxUnicastBytes))
        .received_eth_multicast(pair(EthRxMulticastPackets, EthRxMulticastBytes))
        .transmitted_eth_multicast(pair(EthTxMulticastPackets, EthTxMulticastBytes));
    if input.clear() {
        clear(call.func);
    }
    call.answer(&out)
}

fn clear(func: &mut Func<'_>) {
    let counters = func.function_mut(|f| &mut f.counters);
    VPORT.iter().for_each(|(first, last)| counters[*first as usize..=*last as usize].fill(0));
}

/// Sums over the port.
struct Sums<'a>(&'a [u64; COUNTERS]);

impl Sums<'_> {
    fn of(&self, counters: &[Counters]) -> u64 {
        counters.iter().fold(0, |sum, c| sum.wrapping_add(self.0[*c as usize]))
    }
    fn sent(&self) -> u64 {
        self.of(&[TxPackets, EthTxUnicastPackets, EthTxMulticastPackets, EthTxBroadcastPackets])
    }
    fn sent_bytes(&self) -> u64 {
        self.of(&[TxBytes, EthTxUnicastBytes, EthTxMulticastBytes, EthTxBroadcastBytes])
    }
    fn received(&self) -> u64 {
        self.of(&[RxPackets, EthRxUnicastPackets, EthRxMulticastPackets, EthRxBroadcastPackets])
    }
    fn received_bytes(&self) -> u64 {
        self.of(&[RxBytes, EthRxUnicastBytes, EthRxMulticastBytes, EthRxBroadcastBytes])
    }
    fn discards(&self) -> u64 {
        self.of(&[EthRxDiscards, RxRingFull])
    }
}

/// Writes the 64-bit counter; `name` is the field of its upper half.
fn put(set: &mut [u8], fields: &[Field], name: &str, value: u64) {
    if let Some(field) = fields.iter().find(|f| f.name == name) {
        store(set, field.offset / 8, 63, 0, value);
    }
}

/// The PPCNT register, read.
pub(super) fn ppcnt(func: &mut Func<'_>, register: &mut [u8]) -> Done {
    let asked = Ppcnt::read(register);
    let counters = func.function().counters;
    let sums = Sums(&counters);
    let mut set = [0; 0xf8];
    let (fields, values): (&[Field], Vec<(&str, u64)>) = match asked.grp() {
        IEEE_802_3 => (
            Ieee8023Counters::FIELDS,
            vec![
                ("a_frames_transmitted_ok_high", sums.sent()),
                ("a_frames_received_ok_high", sums.received()),
                ("a_octets_transmitted_ok_high", sums.sent_bytes()),
                ("a_octets_received_ok_high", sums.received_bytes()),
                ("a_multicast_frames_xmitted_ok_high", sums.of(&[EthTxMulticastPackets])),
                ("a_broadcast_frames_xmitted_ok_high", sums.of(&[EthTxBroadcastPackets])),
                ("a_multicast_frames_received_ok_high", sums.of(&[EthRxMulticastPackets])),
                ("a_broadcast_frames_received_ok_high", sums.of(&[EthRxBroadcastPackets])),
                ("a_frame_too_long_errors_high", sums.of(&[EthRxTooLong])),
            ],
        ),
        RFC_2863 => (
            Rfc2863Counters::FIELDS,
            vec![
                ("if_in_octets_high", sums.received_bytes()),
                ("if_in_ucast_pkts_high", sums.of(&[RxPackets, EthRxUnicastPackets])),
                ("if_in_discards_high", sums.discards()),
                ("if_in_errors_high", sums.of(&[EthRxTooLong, RxMalformed])),
                ("if_out_octets_high", sums.sent_bytes()),
                ("if_out_ucast_pkts_high", sums.of(&[TxPackets, EthTxUnicastPackets])),
                ("if_in_multicast_pkts_high", sums.of(&[EthRxMulticastPackets])),
                ("if_in_broadcast_pkts_high", sums.of(&[EthRxBroadcastPackets])),
                ("if_out_multicast_pkts_high", sums.of(&[EthTxMulticastPackets])),
                ("if_out_broadcast_pkts_high", sums.of(&[EthTxBroadcastPackets])),
            ],
        ),
        RFC_2819 => (
            Rfc2819Counters::FIELDS,
            vec![
                ("ether_stats_drop_events_high", sums.discards()),
                ("ether_stats_octets_high", sums.received_bytes()),
                ("ether_stats_pkts_high", sums.received()),
                ("ether_stats_broadcast_pkts_high", sums.of(&[EthRxBroadcastPackets])),
                ("ether_stats_multicast_pkts_high", sums.of(&[EthRxMulticastPackets])),
                ("ether_stats_oversize_pkts_high", sums.of(&[EthRxTooLong])),
            ],
        ),
        // All traffic has priority 0.
        PER_PRIORITY if asked.prio_tc() == 0 => (
            PriorityCounters::FIELDS,
            vec![
                ("rx_octets_high", sums.received_bytes()),
                ("rx_frames_high", sums.received()),
                ("tx_octets_high", sums.sent_bytes()),
                ("tx_frames_high", sums.sent()),
            ],
        ),
        PER_PRIORITY | PER_TRAFFIC_CLASS | RFC_3635 | PHYSICAL | PHYSICAL_STATISTICS => (&[], Vec::new()),
        _ => return Syndrome::CounterGroup.refuse(),
    };
    values.into_iter().for_each(|(name, value)| put(&mut set, fields, name, value));
    let behind = register.len().min(8);
    let room = register.len() - behind;
    register[behind..].copy_from_slice(&set[..room.min(set.len())]);
    if asked.clr() {
        clear(func);
    }
    Ok(())
}
