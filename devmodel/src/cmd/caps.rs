//! HCA capabilities: the advertised values are the enforced ones; unsupported features read 0.

use super::{
    call::Call,
    caps_ethernet, caps_infiniband, cq, eq, eswitch, memic, mkey, qp, qp_context,
    refusal::{Done, Syndrome},
    srq,
    vport::{manages, vport},
};
use crate::region::{Func, Table};
use crate::state::{FunctionRow, GroupRow, ROCE_ADDRESSES};
use crate::transport::LOG_MAX_MESSAGE;
use crate::{Config, LinkLayer};
use hwspec::{
    cmd::{
        CmdOut,
        adapter::*,
        uctx::{INTERNAL_DEV_RES, RAW_TX},
    },
    context::{CapType, caps::*},
    layout::{Bits, Layout, prefix},
    wire::ROCE_PORT,
};

/// Bytes of a capability page.
const PAGE: usize = 0x1000;
/// Rights that can be granted to a user context.
pub(super) const USER_RIGHTS: u32 = RAW_TX | INTERNAL_DEV_RES;
/// RoCE v2 in `roce_version`.
const ROCE_V2: u8 = 1 << 2;
/// IPv4 and IPv6 in `l3_type`.
const L3_TYPES: u8 = 1 << 1 | 1 << 2;
/// Compare-and-swap and fetch-and-add in `atomic_operations`.
const ATOMICS: u16 = 0b11;
/// 8 bytes in `atomic_size_qp`.
const ATOMIC_SIZE: u16 = 8;

/// The capability pages that this device supports.
const PAGES: [CapType; 11] = [
    CapType::General,
    CapType::EthernetOffloads,
    CapType::Odp,
    CapType::Atomic,
    CapType::Roce,
    CapType::FlowTable,
    CapType::EswitchFlowTable,
    CapType::Eswitch,
    CapType::Qos,
    CapType::DeviceMem,
    CapType::General2,
];
/// `op_mod` of `SET_HCA_CAP`: the page, above bit 0.
pub(super) const SET: &[u16] = &{
    let mut all = [0; PAGES.len()];
    let mut i = 0;
    while i < PAGES.len() {
        all[i] = (PAGES[i].raw() as u16) << 1;
        i += 1;
    }
    all
};
/// `op_mod` of `QUERY_HCA_CAP`: the page, with current values if bit 0 is set, otherwise the maximum.
pub(super) const QUERY: &[u16] = &{
    let mut all = [0; 2 * PAGES.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = SET[i / 2] | (i % 2) as u16;
        i += 1;
    }
    all
};

/// True if operands and results of atomics are in the host's byte order (`atomic_req_8b_endianness_mode` 1).
fn atomic_host_endian(func: &Func<'_>) -> bool {
    func.function().caps_set[FunctionRow::SET_ATOMIC_ENDIANNESS] != 0
}

fn log_rows(func: &Func<'_>, table: Table) -> u8 {
    func.rows(table).trailing_zeros() as u8
}

pub(super) fn general(func: &Func<'_>, config: &Config, current: bool) -> HcaCap {
    let (link, later) = (config.link_layer, config.strict.card.has_later_features());
    let set = &func.function().caps_set;
    let chosen_qp = set[FunctionRow::SET_LOG_MAX_QP] as u8;
    let log_qp = log_rows(func, Table::Qp);
    let log_pd = log_rows(func, Table::Pd);
    let log_srq = log_rows(func, Table::Srq);
    let mut c = HcaCap::zeroed();
    c.set()
        .vhca_id(func.fid().into())
        // Only the PF manages firmware.
        .mcam_reg(func.fid() == 0)
        .log_max_qp(if current && chosen_qp != 0 { chosen_qp } else { log_qp })
        .log_max_qp_sz(qp::LOG_MAX_SIZE)
        .log_max_srq(log_srq)
        .log_max_srq_sz(srq::LOG_MAX_SIZE)
        .log_max_cq(log_rows(func, Table::Cq))
        .log_max_cq_sz(cq::LOG_MAX_SIZE)
        .log_max_eq(eq::LOG_NUMBERS)
        .log_max_eq_sz(eq::LOG_MAX_SIZE)
        .log_max_mkey(log_rows(func, Table::Mkey))
        .log_max_mrw_sz(mkey::LOG_MAX_LEN)
        .log_max_pd(log_pd)
        .log_max_transport_domain(log_pd)
        .log_max_xrcd(log_pd)
        .log_max_rmp(log_srq)
        .log_max_uctx(log_rows(func, Table::Uctx))
        .log_max_umem(log_rows(func, Table::Umem))
        .umem_uid_0(true)
        .uctx_cap(USER_RIGHTS)
        .log_max_ra_req_qp(qp_context::LOG_MAX_READS)
        .log_max_ra_res_qp(qp_context::LOG_MAX_READS)
        .log_max_msg(LOG_MAX_MESSAGE)
        .log_max_wq_sz(srq::LOG_MAX_SIZE)
        .max_wqe_sz_sq(1024)
        .max_wqe_sz_rq(1 << qp::LOG_MAX_RQ_STRIDE)
        .max_qp_cnt(func.rows(Table::Counter).min(0x3ff) as u16 - 1)
        .num_ports(1)
        .native_port_num(1)
        .cqe_version(1)
        .log_pg_sz(12)
        .uar_sz(5)
        .log_bf_reg_size(9)
        .uar_4k(!current || set[FunctionRow::SET_UAR_4K] != 0)
        .compact_address_vector(true)
        .umr_extended_translation_offset(true)
        .umr_ptr_rlky(true)
        .null_mkey(true)
        .relaxed_ordering_write(later)
        .relaxed_ordering_read(later)
        .relaxed_ordering_write_umr(later)
        .relaxed_ordering_read_umr(later)
        .device_memory(later)
        .log_max_klm_list_size(mkey::LOG_MAX_LIST)
        .max_indirection(1)
        .cq_resize(true)
        .cq_oi(true)
        .cq_moderation(true)
        .rc(true)
        .uc(true)
        .ud(true)
        .xrc(true)
        .set_deth_sqpn(true)
        .block_lb_mc(true)
        .log_max_mcg(log_srq)
        .max_qp_mcg(func.rows(Table::Group).min(GroupRow::MAX_MEMBERS as u32))
        .rts2rts_qp_counters_set_id(true)
        .roce(true)
        .atomic(true)
        .driver_version(true)
        .vport_counters(true)
        .out_of_seq_cnt(true)
        .retransmission_q_counters(true)
        .enhanced_error_q_counters(true)
        .local_ca_ack_delay(15);
    caps_ethernet::general(&mut c, func, link);
    caps_infiniband::general(&mut c, link);
    c.set().vport_group_manager(manages(func));
    if manages(func) && link == LinkLayer::Ethernet {
        c.set()
            .eswitch_manager(true)
            .nic_vport_change_event(true)
            .log_max_l2_table(log_rows(func, Table::L2))
            .qos(true);
    }
    c
}

fn atomic(func: &Func<'_>, current: bool) -> AtomicCaps {
    AtomicCaps::with(|s| {
        s.atomic_req_8b_endianness_mode((!current || atomic_host_endian(func)).into())
            .supported_atomic_req_8b_endianness_mode_1(true)
            .atomic_operations(ATOMICS)
            .atomic_size_qp(ATOMIC_SIZE)
    })
}

fn roce(func: &Func<'_>, current: bool) -> RoceCap {
    RoceCap::with(|s| {
        s.sw_r_roce_src_udp_port(!current || qp_context::source_port(func))
            .l3_type(L3_TYPES)
            .roce_version(ROCE_V2)
            .r_roce_dest_udp_port(ROCE_PORT)
            .r_roce_max_src_udp_port(u16::MAX)
            .r_roce_min_src_udp_port(qp_context::MIN_SOURCE_PORT)
            .roce_address_table_size(ROCE_ADDRESSES as u16)
    })
}

/// A page that starts with `bytes`.
fn whole(bytes: &[u8]) -> [u8; PAGE] {
    prefix(bytes)
}

fn page(func: &Func<'_>, config: &Config, kind: CapType, current: bool) -> [u8; PAGE] {
    let link = config.link_layer;
    let switches = manages(func) && link == LinkLayer::Ethernet;
    match kind {
        CapType::General => whole(general(func, config, current).as_bytes()),
        CapType::Atomic => whole(atomic(func, current).as_bytes()),
        CapType::Roce if link == LinkLayer::Ethernet => whole(roce(func, current).as_bytes()),
        CapType::DeviceMem if config.strict.card.has_later_features() => whole(memic::caps().as_bytes()),
        CapType::EthernetOffloads => whole(caps_ethernet::offloads(link).as_bytes()),
        CapType::FlowTable => whole(caps_ethernet::flow_tables(func, link).as_bytes()),
        CapType::EswitchFlowTable if switches => {
            whole(caps_ethernet::eswitch_tables(func, config).as_bytes())
        }
        CapType::Eswitch if switches => whole(eswitch::caps().as_bytes()),
        CapType::Qos if switches => whole(eswitch::qos().as_bytes()),
        // Known pages without any supported feature.
        _ => [0; PAGE],
    }
}

/// A VF's page of maximum values, as seen by its manager. All functions have tables of the same size.
fn page_of_vf(func: &Func<'_>, config: &Config, fid: u8, kind: CapType) -> [u8; PAGE] {
    match kind {
        CapType::General => {
            let mut c = general(func, config, false);
            c.set().vhca_id(fid.into()).vport_group_manager(false).eswitch_manager(false).qos(false);
            c.set().nic_vport_change_event(false).log_max_l2_table(0);
            whole(c.as_bytes())
        }
        CapType::EswitchFlowTable | CapType::Eswitch | CapType::Qos => [0; PAGE],
        _ => page(func, config, kind, false),
    }
}

/// The page from `op_mod`; true if it asks for current values.
fn which(op_mod: u16) -> (CapType, bool) {
    (CapType::from_bits((op_mod >> 1).into()), op_mod & 1 != 0)
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    call.input::<QueryHcaCapIn>()?;
    let fid = vport(call)?;
    let (kind, current) = which(call.op_mod);
    let config = call.step.config;
    let page = match fid == call.func.fid() {
        true => page(call.func, config, kind, current),
        false => page_of_vf(call.func, config, fid, kind),
    };
    let out = QueryHcaCapOut::with(|s| s.capability(page));
    // A driver with a shorter definition of the page reads only that part.
    let room = call.output.len().clamp(CmdOut::SIZE, QueryHcaCapOut::SIZE);
    call.answer_bytes(&out.as_bytes()[..room])
}

pub(super) fn set(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetHcaCapIn = call.input()?;
    Syndrome::FunctionId.unless(!input.other_function() && input.function_id() == 0)?;
    let (kind, _) = which(call.op_mod);
    let given = input.capability();
    let config = call.step.config;
    let mut chosen = call.func.function().caps_set;
    // The page as it would read with only the changeable values taken from the input.
    let mut allowed = page(call.func, config, kind, true);
    match kind {
        CapType::General => {
            let (want, max) = (HcaCap::read(&given), general(call.func, config, false));
            Syndrome::CapValue.unless((1..=max.log_max_qp()).contains(&want.log_max_qp()))?;
            chosen[FunctionRow::SET_LOG_MAX_QP] = want.log_max_qp().into();
            chosen[FunctionRow::SET_UAR_4K] = want.uar_4k().into();
            let mut c = HcaCap::read(&allowed);
            c.set().log_max_qp(want.log_max_qp()).uar_4k(want.uar_4k());
            allowed = whole(c.as_bytes());
        }
        CapType::Atomic => {
            let want = AtomicCaps::read(&given);
            Syndrome::CapValue.unless(want.atomic_req_8b_endianness_mode() <= 1)?;
            chosen[FunctionRow::SET_ATOMIC_ENDIANNESS] = want.atomic_req_8b_endianness_mode().into();
            let mut c = AtomicCaps::read(&allowed);
            c.set().atomic_req_8b_endianness_mode(want.atomic_req_8b_endianness_mode());
            allowed = whole(c.as_bytes());
            // The rest of this page may be omitted, as Linux does.
            let mut alone = AtomicCaps::zeroed();
            alone.set().atomic_req_8b_endianness_mode(want.atomic_req_8b_endianness_mode());
            if given == whole(alone.as_bytes()) {
                allowed = given;
            }
        }
        CapType::Roce => {
            let want = RoceCap::read(&given);
            chosen[FunctionRow::SET_SOURCE_PORT] = want.sw_r_roce_src_udp_port().into();
            let mut c = RoceCap::read(&allowed);
            c.set().sw_r_roce_src_udp_port(want.sw_r_roce_src_udp_port());
            allowed = whole(c.as_bytes());
        }
        _ => {}
    }
    Syndrome::CapValue.unless(given == allowed)?;
    *call.func.function_mut(|f| &mut f.caps_set) = chosen;
    Ok(())
}
