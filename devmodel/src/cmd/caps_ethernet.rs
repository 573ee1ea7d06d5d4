//! Capabilities of the Ethernet side.

use super::{flow, rq, sq, tir};
use crate::{
    Config, LinkLayer,
    region::{Func, Table},
    state::{DESTINATIONS, ENTRY_COUNTERS, MULTICAST_LIST, UNICAST_LIST, VLAN_LIST},
};
use hwspec::{
    context::{
        caps::{EthernetOffloadCaps, HcaCap},
        eswitch::EswitchFlowTableCaps,
        flow::{FlowTableCaps, FlowTableProps, MatchFields},
    },
    wqe::WQE_BB_SHIFT,
};

/// log2 of the largest payload of a send that is segmented into frames.
const LOG_MAX_LSO: u8 = 18;
/// `wqe_inline_mode`: no headers need to be inline.
const INLINE_NOT_REQUIRED: u8 = 2;
/// `port_type`.
const PORT_ETHERNET: u8 = 1;
/// Frequency of the internal timer and of CQE timestamps, in kHz: they count nanoseconds.
const FREQUENCY: u32 = 1_000_000;

fn log2(n: usize) -> u8 {
    n.ilog2() as u8
}

/// The Ethernet fields of the general page.
pub(super) fn general(c: &mut HcaCap, func: &Func<'_>, link: LinkLayer) {
    c.set().device_frequency_khz(FREQUENCY);
    if link != LinkLayer::Ethernet {
        return;
    }
    let rows = |table: Table| log2(func.rows(table) as usize);
    c.set()
        .port_type(PORT_ETHERNET)
        .cc_query_allowed(true)
        // The PF owns the port.
        .cc_modify_allowed(func.fid() == 0)
        .eth_net_offloads(true)
        .nic_flow_table(true)
        .log_max_sq(rows(Table::Sq))
        .log_max_rq(rows(Table::Rq))
        .log_max_tis(rows(Table::Tis))
        .log_max_tir(rows(Table::Tir))
        .log_max_rqt(rows(Table::Rqt))
        .log_max_rqt_size(tir::LOG_MAX_RQT)
        .log_max_wq_sz(sq::LOG_MAX_SIZE)
        .basic_cyclic_rcv_wqe(true)
        .log_min_stride_sz_sq(WQE_BB_SHIFT as u8)
        .log_max_stride_sz_sq(WQE_BB_SHIFT as u8)
        .log_min_stride_sz_rq(rq::LOG_MIN_STRIDE)
        .log_max_stride_sz_rq(super::qp::LOG_MAX_RQ_STRIDE)
        .modify_rq_counter_set_id(true)
        .max_flow_counter_15_0(func.rows(Table::FlowCounter) as u16 - 1)
        .log_max_current_uc_list(log2(UNICAST_LIST))
        .log_max_current_mc_list(log2(MULTICAST_LIST))
        .log_max_vlan_list(log2(VLAN_LIST))
        .disable_local_lb_uc(true)
        .disable_local_lb_mc(true);
}

/// Offloads (capability type 1).
pub(super) fn offloads(link: LinkLayer) -> EthernetOffloadCaps {
    let mut c = EthernetOffloadCaps::zeroed();
    if link == LinkLayer::Ethernet {
        c.set()
            .csum_cap(true)
            .vlan_cap(true)
            .wqe_vlan_insert(true)
            .self_lb_en_modifiable(true)
            .max_lso_cap(LOG_MAX_LSO)
            .wqe_inline_mode(INLINE_NOT_REQUIRED)
            .rss_ind_tbl_cap(tir::LOG_MAX_RQT)
            .cqe_checksum_full(true);
    }
    c
}

/// Flow tables (capability type 7).
pub(super) fn flow_tables(func: &Func<'_>, link: LinkLayer) -> FlowTableCaps {
    let mut c = FlowTableCaps::zeroed();
    if link == LinkLayer::Ethernet {
        c.set().nic_rx_multi_path_tirs(true).flow_table_properties_nic_receive(tables(func));
    }
    c
}

/// Flow tables of the e-switch (capability type 8).
pub(super) fn eswitch_tables(func: &Func<'_>, config: &Config) -> EswitchFlowTableCaps {
    let mut fdb = tables(func);
    let mut fields = fdb.ft_field_support();
    fields.set().source_eswitch_port(true);
    // A multicast frame goes to all functions and to the uplink.
    let most = log2(usize::from(func.region().functions())) + 1;
    fdb.set().log_max_destination(most).ft_field_support(fields).ft_field_bitmask_support(fields);
    fdb.set().pop_vlan(true).push_vlan(true).pop_vlan_2(true).push_vlan_2(true);
    // If the tables of single vports can change tags, drivers use them instead of the vport context.
    let steers = config.strict.card.steers_tags();
    let mut acl = tables(func);
    acl.set().log_max_destination(0);
    acl.set().pop_vlan(steers).push_vlan(steers).pop_vlan_2(steers).push_vlan_2(steers);
    EswitchFlowTableCaps::with(|s| {
        s.fdb_multi_path_to_table(true)
            .flow_table_properties_nic_esw_fdb(fdb)
            .flow_table_properties_esw_acl_ingress(acl)
            .flow_table_properties_esw_acl_egress(acl)
    })
}

/// The capabilities of flow tables of each type.
fn tables(func: &Func<'_>) -> FlowTableProps {
    let fields = MatchFields::with(|s| {
        s.outer_dmac(true)
            .outer_smac(true)
            .outer_ether_type(true)
            .outer_ip_version(true)
            .outer_first_prio(true)
            .outer_first_cfi(true)
            .outer_first_vid(true)
            .outer_ipv4_ttl(true)
            .outer_sip(true)
            .outer_dip(true)
            .outer_frag(true)
            .outer_ip_protocol(true)
            .outer_ip_ecn(true)
            .outer_ip_dscp(true)
            .outer_udp_sport(true)
            .outer_udp_dport(true)
            .outer_tcp_sport(true)
            .outer_tcp_dport(true)
            .outer_tcp_flags(true)
    });
    FlowTableProps::with(|s| {
        s.ft_support(true)
            .flow_counter(true)
            .flow_modify_en(true)
            .modify_root(true)
            .identified_miss_table_mode(true)
            .flow_table_modify(true)
            .ignore_flow_level(true)
            .log_max_ft_size(flow::LOG_MAX_SIZE)
            .max_ft_level(flow::MAX_LEVEL)
            .log_max_ft_num(log2(func.rows(Table::FlowTable) as usize))
            .log_max_flow_counter(log2(ENTRY_COUNTERS))
            .log_max_destination(log2(DESTINATIONS))
            .log_max_flow(log2(func.rows(Table::FlowEntry) as usize))
            .ft_field_support(fields)
            .ft_field_bitmask_support(fields)
    })
}
