//! Modify QP: checks the attributes and builds the context. The legal transitions are in `transitions`.

use super::{
    AccessFlags, QpAttr, QpAttrMask as Mask, QpState, Service,
    path::{check_address, destination_mac, source_port},
    qp::{Control, LOG_ACK_REQ_FREQ, Qp},
    transitions::transition,
};
use crate::{error::Error, function::Function};
use hwspec::{
    cmd::{Opcode, qp::*},
    context::{
        PathMigState,
        qp::{AddressPath, QpContext},
    },
    layout::prefix,
};
use std::fmt::Debug;

bitflags::bitflags! {
    /// Optional parameters of a transition (`opt_param_mask`).
    #[derive(Clone, Copy)]
    struct OptPar: u32 {
        const RRE = 1 << 1;
        const RAE = 1 << 2;
        const RWE = 1 << 3;
        const PKEY_INDEX = 1 << 4;
        const Q_KEY = 1 << 5;
        const RNR_TIMEOUT = 1 << 6;
        const PRI_ADDR_PATH = 1 << 7;
        const SRA_MAX = 1 << 8;
        const RRA_MAX = 1 << 9;
        const RETRY_COUNT = 1 << 12;
        const RNR_RETRY = 1 << 13;
        const ACK_TIMEOUT = 1 << 14;
        const PRI_PORT = 1 << 16;
    }
}

/// `qpc.atomic_mode`: IBTA, 8 bytes.
const ATOMIC_IB: u8 = 1;

/// Checks the request, sends the command, and returns the new state and attributes. An error leaves the QP as it was.
pub(crate) fn apply(qp: &Qp, now: &Control, attr: &QpAttr, mask: Mask) -> Result<Control, Error> {
    let mask = mask - qp.service().of_other_side();
    let from = if mask.contains(Mask::CUR_STATE) { attr.cur_qp_state } else { now.state };
    if from != now.state
        && !matches!((now.state, from), (QpState::Rts, QpState::Sqe) | (QpState::Rtr, QpState::Rts))
    {
        return Err(Error::invalid(format!("the QP is in {:?}, the request says {from:?}", now.state)));
    }
    let to = if mask.contains(Mask::STATE) { attr.qp_state } else { from };
    if qp.service() == Service::RawPacket && mask.contains(Mask::RATE_LIMIT) {
        return Err(Error::unsupported("rates of raw packets are not limited here"));
    }
    let row = transition(qp.service(), from, to)
        .ok_or_else(|| Error::invalid(format!("a QP cannot be moved from {from:?} to {to:?}")))?;
    let given = mask - Mask::STATE;
    let missing = row.required - given;
    let excess = given - row.required - row.optional;
    if !missing.is_empty() || !excess.is_empty() {
        return Err(Error::invalid(format!(
            "{from:?} to {to:?} needs {:?} and may have {:?}; missing {missing:?}, not allowed {excess:?}",
            row.required, row.optional
        )));
    }
    let function = &qp.pd.device.function;
    check(function, qp, attr, mask)?;
    let mut merged = merge(&now.attr, attr, mask, to);
    if mask.contains(Mask::AV) && function.is_ethernet() {
        merged.ah.dmac = Some(destination_mac(function, &attr.ah)?);
    }
    if to == QpState::Sqd && now.state != QpState::Sqd {
        merged.en_sqd_async_notify = attr.en_sqd_async_notify;
        // Must precede the report by the device.
        qp.pd.device.registry.notify_of_drained(qp.qpn(), attr.en_sqd_async_notify);
    }
    let after = match to {
        QpState::Reset => Control::new(now.attr.cap),
        _ => Control { state: to, attr: merged },
    };
    if let Some(raw) = qp.raw() {
        raw.go(from, to)?;
        return Ok(after);
    }
    let send = |input: &[u8]| {
        let mut output = [0; 0x10];
        let mut input = input.to_vec();
        input[..2].copy_from_slice(&row.op.raw().to_be_bytes());
        input[2..4].copy_from_slice(&qp.uid.to_be_bytes());
        function.execute(row.op, &input, &mut output)
    };
    match to {
        // A QP in RESET is moved to RESET without a command.
        QpState::Reset if from == QpState::Reset => {}
        QpState::Reset | QpState::Err => {
            let input = Qp2errIn::with(|s| s.qpn(qp.qpn()));
            send(input.as_bytes())?;
        }
        _ => {
            // All transitions with a context have the same layout.
            let mut input = ModifyQpIn::zeroed();
            let optional = optional_parameters(row.op, mask);
            input.set().qpn(qp.qpn()).opt_param_mask(optional.bits()).qpc(context(qp, function, &after.attr));
            send(input.as_bytes())?;
        }
    }
    Ok(after)
}

fn optional_parameters(op: Opcode, mask: Mask) -> OptPar {
    let mut optional = OptPar::empty();
    if op == Opcode::Rst2initQp {
        return optional;
    }
    if mask.contains(Mask::ACCESS_FLAGS) {
        optional |= OptPar::RRE | OptPar::RWE | OptPar::RAE;
    }
    if mask.contains(Mask::PKEY_INDEX) {
        optional |= OptPar::PKEY_INDEX;
    }
    if mask.contains(Mask::QKEY) {
        optional |= OptPar::Q_KEY;
    }
    if matches!(op, Opcode::Init2initQp | Opcode::Sqd2sqdQp) && mask.contains(Mask::PORT) {
        optional |= OptPar::PRI_PORT;
    }
    if op == Opcode::Sqd2sqdQp {
        // Attributes that are mandatory in other transitions are optional here.
        let more = [
            (Mask::AV, OptPar::PRI_ADDR_PATH),
            (Mask::MAX_QP_RD_ATOMIC, OptPar::SRA_MAX),
            (Mask::MAX_DEST_RD_ATOMIC, OptPar::RRA_MAX),
            (Mask::RETRY_CNT, OptPar::RETRY_COUNT),
            (Mask::RNR_RETRY, OptPar::RNR_RETRY),
            (Mask::TIMEOUT, OptPar::ACK_TIMEOUT),
        ];
        more.into_iter().filter(|(given, _)| mask.contains(*given)).for_each(|(_, bit)| optional |= bit);
    }
    if op != Opcode::Init2rtrQp && mask.contains(Mask::MIN_RNR_TIMER) {
        optional |= OptPar::RNR_TIMEOUT;
    }
    optional
}

/// Checks that the device supports all values selected by the mask.
fn check(function: &Function, qp: &Qp, attr: &QpAttr, mask: Mask) -> Result<(), Error> {
    fn within<T: PartialOrd + Debug>(given: bool, name: &str, value: T, most: T) -> Result<(), Error> {
        match given && value > most {
            true => Err(Error::invalid(format!("{name} {value:?} was given, {most:?} is the most"))),
            false => Ok(()),
        }
    }
    let limits = qp.pd.device.attr();
    let on = |flag| mask.contains(flag);
    within(on(Mask::PKEY_INDEX), "pkey_index", attr.pkey_index, limits.max_pkeys.saturating_sub(1))?;
    within(on(Mask::PORT), "port_num", attr.port_num, limits.phys_port_cnt)?;
    within(on(Mask::TIMEOUT), "timeout", attr.timeout, 31)?;
    within(on(Mask::RETRY_CNT), "retry_cnt", attr.retry_cnt, 7)?;
    within(on(Mask::RNR_RETRY), "rnr_retry", attr.rnr_retry, 7)?;
    within(on(Mask::MIN_RNR_TIMER), "min_rnr_timer", attr.min_rnr_timer, 31)?;
    within(on(Mask::DEST_QPN), "dest_qp_num", attr.dest_qp_num, 0xff_ffff)?;
    let (init, dest) = (limits.max_qp_init_rd_atom, limits.max_qp_rd_atom);
    within(on(Mask::MAX_QP_RD_ATOMIC), "max_rd_atomic", u32::from(attr.max_rd_atomic), init)?;
    within(on(Mask::MAX_DEST_RD_ATOMIC), "max_dest_rd_atomic", u32::from(attr.max_dest_rd_atomic), dest)?;
    if on(Mask::PORT) && attr.port_num == 0 {
        return Err(Error::invalid("ports are numbered from 1"));
    }
    if on(Mask::PATH_MTU) && !(256..=4096).contains(&attr.path_mtu)
        || on(Mask::PATH_MTU) && !attr.path_mtu.is_power_of_two()
    {
        let found = attr.path_mtu;
        return Err(Error::invalid(format!(
            "a path MTU of 256 to 4096, a power of two, was expected; {found} found"
        )));
    }
    if on(Mask::AV) {
        check_address(function, &attr.ah)?;
    }
    if on(Mask::ALT_PATH) || on(Mask::PATH_MIG_STATE) && attr.migrates {
        return Err(Error::unsupported("there is no other path to migrate to"));
    }
    Ok(())
}

/// The attributes after the transition.
fn merge(now: &QpAttr, attr: &QpAttr, mask: Mask, to: QpState) -> QpAttr {
    let mut out = *now;
    let on = |flag| mask.contains(flag);
    macro_rules! take { ($($flag:ident: $field:ident),*) => { $( if on(Mask::$flag) { out.$field = attr.$field; } )* } }
    take!(ACCESS_FLAGS: qp_access_flags, PKEY_INDEX: pkey_index, PORT: port_num, QKEY: qkey, AV: ah,
        PATH_MTU: path_mtu, TIMEOUT: timeout, RETRY_CNT: retry_cnt, RNR_RETRY: rnr_retry,
        MAX_QP_RD_ATOMIC: max_rd_atomic, MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
        MIN_RNR_TIMER: min_rnr_timer, DEST_QPN: dest_qp_num);
    if on(Mask::RQ_PSN) {
        out.rq_psn = attr.rq_psn & 0xff_ffff;
    }
    if on(Mask::SQ_PSN) {
        out.sq_psn = attr.sq_psn & 0xff_ffff;
    }
    (out.qp_state, out.cur_qp_state) = (to, to);
    out
}

/// Builds the complete context. The device uses the fields that belong to the transition.
fn context(qp: &Qp, function: &Function, attr: &QpAttr) -> QpContext {
    let access = attr.qp_access_flags;
    // A datagram is a single packet, so messages are limited by the port's MTU.
    let (mtu, message) = match qp.service().is_datagram() {
        true => (function.active_mtu(), function.active_mtu()),
        false => (attr.path_mtu, 1 << function.caps.general.log_max_msg()),
    };
    let mut qpc = QpContext::zeroed();
    qpc.set()
        .st(qp.service().context())
        .pm_state(PathMigState::Migrated)
        .pd(qp.pd.pdn)
        .log_msg_max(message.trailing_zeros() as u8)
        .mtu(mtu_code(mtu))
        .q_key(attr.qkey)
        .remote_qpn(attr.dest_qp_num)
        .log_ack_req_freq(LOG_ACK_REQ_FREQ)
        .retry_count(attr.retry_cnt)
        .rnr_retry(attr.rnr_retry)
        .next_send_psn(attr.sq_psn)
        .next_rcv_psn(attr.rq_psn)
        .min_rnr_nak(attr.min_rnr_timer)
        .log_sra_max(log_ceil(attr.max_rd_atomic))
        .log_rra_max(log_ceil(attr.max_dest_rd_atomic))
        .rre(access.contains(AccessFlags::REMOTE_READ))
        .rwe(access.contains(AccessFlags::REMOTE_WRITE))
        .rae(access.contains(AccessFlags::REMOTE_ATOMIC))
        .atomic_mode(ATOMIC_IB)
        .primary_address_path(path(qp, function, attr));
    qpc
}

fn mtu_code(bytes: u32) -> u8 {
    match bytes {
        0 => 0,
        bytes => (bytes.trailing_zeros() as u8).saturating_sub(7),
    }
}

fn log_ceil(count: u8) -> u8 {
    u32::from(count.max(1)).next_power_of_two().trailing_zeros() as u8
}

fn path(qp: &Qp, function: &Function, attr: &QpAttr) -> AddressPath {
    let ah = &attr.ah;
    let mut path = AddressPath::zeroed();
    path.set()
        .pkey_index(attr.pkey_index)
        .vhca_port_num(attr.port_num)
        .ack_timeout(attr.timeout)
        .stat_rate(ah.static_rate & 0xf)
        .hop_limit(if function.is_ethernet() && ah.is_global { ah.hops_over_ip() } else { ah.hop_limit })
        .tclass(ah.traffic_class)
        .flow_label(ah.flow_label & 0xf_ffff)
        .src_addr_index(ah.sgid_index)
        .grh(ah.is_global)
        .rgid_rip(ah.dgid)
        .sl(ah.sl);
    if !function.is_ethernet() {
        path.set().rlid(ah.dlid).mlid(ah.src_path_bits & 0x7f);
        return path;
    }
    path.set().eth_prio(ah.sl & 7).dscp(ah.traffic_class >> 2).udp_sport(source_port(
        ah.flow_label,
        qp.qpn(),
        attr.dest_qp_num,
    ));
    if let Some(mac) = ah.dmac {
        path.set()
            .rmac_47_32(u16::from_be_bytes(prefix(&mac)))
            .rmac_31_0(u32::from_be_bytes(prefix(&mac[2..])));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu_code), [1, 2, 3, 4, 5]);
        assert_eq!([0, 1, 2, 3, 16].map(log_ceil), [0, 0, 1, 2, 4]);
    }
}
