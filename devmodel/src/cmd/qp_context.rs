//! The QP context: the fields that each transition takes, and the context shown for a QP's row.

use super::{
    bind::{Bound, cast},
    call::Call,
    memory,
    refusal::{Done, Syndrome},
};
use crate::{
    LinkLayer,
    region::Func,
    state::{FunctionRow, PKEYS, QpFlags, QpRow},
    transport::{LOG_MAX_MESSAGE, Rights},
};
use hwspec::{
    context::{PathMigState, QpState, ServiceType, qp::*},
    layout::{Bits, prefix},
};

/// log2 of the maximum number of outstanding READs and atomics, in either role.
pub(super) const LOG_MAX_READS: u8 = 4;
/// First UDP source port of RoCE v2 (A17.9.2).
pub(super) const MIN_SOURCE_PORT: u16 = 0xc000;
/// `qpc.mtu` of the largest path MTU, 4096 bytes.
const MAX_MTU: u8 = 5;
bitflags::bitflags! {
    /// `opt_param_mask`: optional fields of the context, in addition to a transition's required ones.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct OptParam: u32 {
        const RRE = 1 << 1;
        const RAE = 1 << 2;
        const RWE = 1 << 3;
        const PKEY_INDEX = 1 << 4;
        const Q_KEY = 1 << 5;
        const RNR_TIMEOUT = 1 << 6;
        const PRIMARY_ADDRESS_PATH = 1 << 7;
        const SRA_MAX = 1 << 8;
        const RRA_MAX = 1 << 9;
        const PM_STATE = 1 << 10;
        const RETRY_COUNT = 1 << 12;
        const RNR_RETRY = 1 << 13;
        const ACK_TIMEOUT = 1 << 14;
        const PRIMARY_PORT = 1 << 16;
        const COUNTER_SET_ID = 1 << 25;
    }
}

/// Takes the fields selected by `which`.
pub(super) fn take(call: &Call<'_, '_, '_>, row: &mut QpRow, context: &QpContext, which: OptParam) -> Done {
    let path = context.primary_address_path();
    let has = |bit| which.contains(bit);
    if has(OptParam::PKEY_INDEX) {
        Syndrome::PkeyIndex.unless(usize::from(path.pkey_index()) < pkeys(call.step.config.link_layer))?;
        row.pkey_index = path.pkey_index();
    }
    if has(OptParam::PRIMARY_PORT) {
        Syndrome::Port.unless(path.vhca_port_num() <= 1)?;
    }
    if has(OptParam::PM_STATE) {
        // There is no alternate path: the QP counts as already migrated.
        Syndrome::OptParam.unless(context.pm_state() != PathMigState::Rearm)?;
    }
    select! { has:
        OptParam::RRE => row.responder.allow(Rights::READ, context.rre());
        OptParam::RWE => row.responder.allow(Rights::WRITE, context.rwe());
        OptParam::RAE => row.responder.allow(Rights::ATOMIC, context.rae());
        OptParam::Q_KEY => row.qkey = context.q_key();
        OptParam::COUNTER_SET_ID => row.counter_set = context.counter_set_id().into();
        OptParam::RNR_TIMEOUT => row.responder.min_rnr_nak = context.min_rnr_nak();
        OptParam::RETRY_COUNT => row.requester.retry_count = context.retry_count();
        OptParam::RETRY_COUNT => row.requester.retries_left = context.retry_count();
        OptParam::RNR_RETRY => row.requester.rnr_retry = context.rnr_retry();
        OptParam::RNR_RETRY => row.requester.rnr_left = context.rnr_retry();
        OptParam::ACK_TIMEOUT => row.requester.ack_timeout = path.ack_timeout();
    }
    if has(OptParam::PRIMARY_ADDRESS_PATH) {
        match call.step.config.link_layer {
            LinkLayer::Ethernet => take_path(call.func, row, &path)?,
            LinkLayer::Infiniband => take_route(call.func, row, &path)?,
        }
    }
    if has(OptParam::RRA_MAX) {
        Syndrome::ReadDepth.unless(context.log_rra_max() <= LOG_MAX_READS)?;
        row.responder.log_resources = context.log_rra_max();
    }
    if has(OptParam::SRA_MAX) {
        Syndrome::ReadDepth.unless(context.log_sra_max() <= LOG_MAX_READS)?;
        row.requester.log_reads = context.log_sra_max();
    }
    Ok(())
}

/// Takes the path to the peer for RoCE v2.
fn take_path(func: &Func<'_>, row: &mut QpRow, path: &AddressPath) -> Done {
    let source = func.function().roce.get(usize::from(path.src_addr_index()));
    Syndrome::SourceAddress.unless(source.is_some_and(|address| address.valid != 0))?;
    row.path.sgid_index = path.src_addr_index();
    row.path.hop_limit = path.hop_limit();
    // DSCP may be in its own field; ECN is set by the network.
    row.path.tclass = if path.tclass() != 0 { path.tclass() } else { path.dscp() << 2 | path.ecn() };
    row.path.flow_label = path.flow_label();
    row.path.sl = path.eth_prio();
    row.path.grh = 1;
    row.path.dgid = path.rgid_rip();
    row.path.dmac = prefix(&path.as_bytes()[0x26..]);
    let asked = if source_port(func) { path.udp_sport() } else { 0 };
    row.path.udp_sport = asked;
    Ok(())
}

/// Size of the P_Key table: Ethernet has only one partition.
fn pkeys(link: LinkLayer) -> usize {
    if link == LinkLayer::Infiniband { PKEYS } else { 1 }
}

/// Takes the path to the peer on InfiniBand: a LID, and optionally a global route.
fn take_route(func: &Func<'_>, row: &mut QpRow, path: &AddressPath) -> Done {
    let source = func.function().ib.gid(path.src_addr_index().into());
    Syndrome::SourceAddress.unless(!path.grh() || source.is_some())?;
    row.path.rlid = path.rlid();
    row.path.path_bits = path.mlid();
    row.path.sl = path.sl();
    row.path.grh = path.grh().into();
    row.path.sgid_index = path.src_addr_index();
    row.path.hop_limit = path.hop_limit();
    row.path.tclass = path.tclass();
    row.path.flow_label = path.flow_label();
    row.path.dgid = path.rgid_rip();
    Ok(())
}

/// Takes the required fields of `INIT2RTR`.
pub(super) fn take_receive(call: &Call<'_, '_, '_>, row: &mut QpRow, context: &QpContext, qpn: u32) -> Done {
    if row.service == ServiceType::RegUmr.raw() {
        // It has no peer.
        return Ok(());
    }
    Syndrome::PathMtu.unless((1..=MAX_MTU).contains(&context.mtu()))?;
    Syndrome::MessageSize.unless(context.log_msg_max() <= LOG_MAX_MESSAGE)?;
    row.mtu = 128 << context.mtu();
    row.log_msg_max = context.log_msg_max();
    if row.is_datagram() {
        return Ok(());
    }
    row.remote_qpn = context.remote_qpn();
    let mut must = OptParam::PRIMARY_ADDRESS_PATH;
    if row.service != ServiceType::Uc.raw() {
        must |= OptParam::RRA_MAX | OptParam::RNR_TIMEOUT;
    }
    take(call, row, context, must)?;
    if row.path.udp_sport == 0 {
        // One port per flow, in the dynamic range, so that switches can distribute flows (A17.9.2).
        row.path.udp_sport = MIN_SOURCE_PORT | ((qpn ^ row.remote_qpn) & 0x3fff) as u16;
    }
    row.responder.begin(context.next_rcv_psn());
    Ok(())
}

/// Takes the required fields of `RTR2RTS`.
pub(super) fn take_send(call: &Call<'_, '_, '_>, row: &mut QpRow, context: &QpContext) -> Done {
    let reliable = matches!(ServiceType::from_raw(row.service), ServiceType::Rc | ServiceType::Xrc);
    if reliable {
        let must = OptParam::SRA_MAX | OptParam::RETRY_COUNT | OptParam::RNR_RETRY | OptParam::ACK_TIMEOUT;
        take(call, row, context, must)?;
    }
    row.requester.begin(context.next_send_psn());
    Ok(())
}

bind! { QpContext <-> QpRow {
    log_rq_size <-> log_rq,
    log_sq_size <-> log_sq,
    user_index <-> user_index,
    counter_set_id <-> counter_set,
    cqn_snd <-> cqn_snd,
    cqn_rcv <-> cqn_rcv,
} shows row {
    state = if row.has(QpFlags::DRAINING) { QpState::SqDraining } else { state_of(row) },
    st = Bits::from_bits(row.service.into()),
    pm_state = PathMigState::Migrated,
    pd = row.pd & 0xff_ffff,
    mtu = row.mtu.checked_ilog2().map_or(0, |log| (log as u8).saturating_sub(7)),
    log_msg_max = row.log_msg_max,
    log_rq_stride = row.log_rq_stride.saturating_sub(4),
    no_sq = row.has(QpFlags::NO_SQ),
    rlky = row.has(QpFlags::RESERVED_LKEY),
    uar_page = row.uar & 0xff_ffff,
    log_page_size = memory::log_page_size(&row.memory),
    remote_qpn = row.remote_qpn,
    primary_address_path = path(row),
    log_sra_max = row.requester.log_reads,
    retry_count = row.requester.retry_count,
    rnr_retry = row.requester.rnr_retry,
    cur_rnr_retry = row.requester.rnr_left,
    cur_retry_count = row.requester.retries_left,
    next_send_psn = row.requester.psn & 0xff_ffff,
    deth_sqpn = row.deth_sqpn,
    last_acked_psn = row.requester.una_psn.wrapping_sub(1) & 0xff_ffff,
    log_rra_max = row.responder.log_resources,
    rre = row.responder.allows(Rights::READ),
    rwe = row.responder.allows(Rights::WRITE),
    rae = row.responder.allows(Rights::ATOMIC),
    page_offset = memory::page_offset(&row.memory),
    min_rnr_nak = row.responder.min_rnr_nak,
    next_rcv_psn = row.responder.psn & 0xff_ffff,
    xrcd = row.xrcd,
    dbr_addr = row.dbr,
    q_key = row.qkey,
    rq_type = match (row.has(QpFlags::HAS_SRQ), row.has(QpFlags::NO_RQ)) {
        (true, _) => RQ_SHARED,
        (_, true) => RQ_NONE,
        _ => RQ_OWN,
    },
    srqn_rmpn_xrqn = row.srqn,
    rmsn = row.responder.msn & 0xff_ffff,
    hw_sq_wqebb_counter = row.sq_next,
    sw_sq_wqebb_counter = row.sq_pi,
    hw_rq_counter = row.rq_ci.into(),
    sw_rq_counter = row.rq_pi.into(),
} }

/// The path to the peer, as shown for a row.
fn path(row: &QpRow) -> AddressPath {
    AddressPath::with(|s| {
        s.pkey_index(row.pkey_index)
            .grh(row.path.grh != 0)
            .ack_timeout(row.requester.ack_timeout)
            .src_addr_index(row.path.sgid_index)
            .rlid(row.path.rlid)
            .mlid(row.path.path_bits & 0x7f)
            .sl(row.path.sl & 15)
            .eth_prio(row.path.sl & 7)
            .hop_limit(row.path.hop_limit)
            .tclass(row.path.tclass)
            .flow_label(row.path.flow_label)
            .rgid_rip(row.path.dgid)
            .dscp(row.path.tclass >> 2)
            .ecn(row.path.tclass & 3)
            .udp_sport(row.path.udp_sport)
            .vhca_port_num(1)
            .rmac_47_32(u16::from_be_bytes(prefix(&row.path.dmac)))
            .rmac_31_0(u32::from_be_bytes(prefix(&row.path.dmac[2..])))
    })
}

/// True if the driver selects UDP source ports (`sw_r_roce_src_udp_port`).
pub(super) fn source_port(func: &Func<'_>) -> bool {
    func.function().caps_set[FunctionRow::SET_SOURCE_PORT] != 0
}

/// The QP state of a row.
pub(super) fn state_of(row: &QpRow) -> QpState {
    QpState::from_bits(row.state.into())
}
