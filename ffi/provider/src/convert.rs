//! Converts QP attributes between the C structures and the driver's.

use crate::abi::public::{self as abi, Gid, ibv_ah_attr, ibv_global_route, ibv_qp_attr, ibv_qp_cap};
use driver::{AccessFlags, AddressHandle, QpAttr, QpAttrMask, QpCap, QpState, SendFlags, Service};
use libc::{c_int, c_uint};

/// Returns the errno of a failed create verb. A device that is out of resources fails commands with EAGAIN, which programs see as ENOMEM.
pub fn not_made(error: driver::Error) -> c_int {
    match error.errno() {
        libc::EAGAIN => libc::ENOMEM,
        errno => errno,
    }
}

/// Converts the send flags that all services support.
#[inline]
pub fn common_flags(flags: u32) -> Option<SendFlags> {
    (flags & !SendFlags::COMMON.bits() == 0).then_some(SendFlags::from_bits_truncate(flags))
}

/// Converts a path MTU code (IBTA: 1 is 256 bytes, 5 is 4096) to bytes.
pub fn mtu_bytes(code: c_uint) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// Converts bytes to a path MTU code, rounding down.
pub fn mtu_code(bytes: u32) -> c_uint {
    (1..=5).rev().find(|code| 128 << code <= bytes).unwrap_or(1)
}

/// Converts a QP type. Fails with EOPNOTSUPP for types that are not supported and EINVAL for unknown ones.
pub fn service_from_c(kind: c_uint) -> Result<Service, c_int> {
    Ok(match kind {
        abi::IBV_QPT_RC => Service::Rc,
        abi::IBV_QPT_UC => Service::Uc,
        abi::IBV_QPT_UD => Service::Ud,
        abi::IBV_QPT_RAW_PACKET => Service::RawPacket,
        abi::IBV_QPT_XRC_SEND => Service::XrcIni,
        abi::IBV_QPT_XRC_RECV => Service::XrcTgt,
        abi::IBV_QPT_DRIVER => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    })
}

/// Converts work queue sizes.
pub fn caps_to_c(cap: QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline,
    }
}

/// Converts the attributes that `mask` selects.
pub fn attr_from_c(attr: &ibv_qp_attr, mask: c_uint) -> Result<(QpAttr, QpAttrMask), c_int> {
    let mask = QpAttrMask::from_bits(mask).ok_or(libc::EINVAL)?;
    let has = |bit| mask.contains(bit);
    let mut out = QpAttr::default();
    if has(QpAttrMask::STATE) {
        out.qp_state = QpState::from_raw(attr.qp_state).ok_or(libc::EINVAL)?;
    }
    if has(QpAttrMask::CUR_STATE) {
        out.cur_qp_state = QpState::from_raw(attr.cur_qp_state).ok_or(libc::EINVAL)?;
    }
    if has(QpAttrMask::PATH_MTU) {
        out.path_mtu = mtu_bytes(attr.path_mtu).ok_or(libc::EINVAL)?;
    }
    if has(QpAttrMask::ACCESS_FLAGS) {
        // Access flags for operations that this device does not support are granted without effect, as in the kernel.
        out.qp_access_flags = AccessFlags::from_bits_truncate(attr.qp_access_flags);
    }
    if has(QpAttrMask::AV) {
        out.ah = ah_from_c(&attr.ah_attr);
    }
    if has(QpAttrMask::CAP) {
        out.cap = QpCap {
            max_send_wr: attr.cap.max_send_wr,
            max_recv_wr: attr.cap.max_recv_wr,
            max_send_sge: attr.cap.max_send_sge,
            max_recv_sge: attr.cap.max_recv_sge,
            max_inline: attr.cap.max_inline_data,
        };
    }
    let numbers = [
        (QpAttrMask::QKEY, &mut out.qkey, attr.qkey),
        (QpAttrMask::RQ_PSN, &mut out.rq_psn, attr.rq_psn),
        (QpAttrMask::SQ_PSN, &mut out.sq_psn, attr.sq_psn),
        (QpAttrMask::DEST_QPN, &mut out.dest_qp_num, attr.dest_qp_num),
    ];
    numbers.into_iter().filter(|(bit, ..)| has(*bit)).for_each(|(_, field, value)| *field = value);
    let bytes = [
        (QpAttrMask::PORT, &mut out.port_num, attr.port_num),
        (QpAttrMask::TIMEOUT, &mut out.timeout, attr.timeout),
        (QpAttrMask::RETRY_CNT, &mut out.retry_cnt, attr.retry_cnt),
        (QpAttrMask::RNR_RETRY, &mut out.rnr_retry, attr.rnr_retry),
        (QpAttrMask::MAX_QP_RD_ATOMIC, &mut out.max_rd_atomic, attr.max_rd_atomic),
        (QpAttrMask::MAX_DEST_RD_ATOMIC, &mut out.max_dest_rd_atomic, attr.max_dest_rd_atomic),
        (QpAttrMask::MIN_RNR_TIMER, &mut out.min_rnr_timer, attr.min_rnr_timer),
    ];
    bytes.into_iter().filter(|(bit, ..)| has(*bit)).for_each(|(_, field, value)| *field = value);
    if has(QpAttrMask::PKEY_INDEX) {
        out.pkey_index = attr.pkey_index;
    }
    out.migrates = has(QpAttrMask::PATH_MIG_STATE) && attr.path_mig_state != abi::IBV_MIG_MIGRATED;
    out.en_sqd_async_notify = has(QpAttrMask::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify != 0;
    Ok((out, mask))
}

/// Converts a path, or the attributes of an address handle.
pub fn ah_from_c(ah: &ibv_ah_attr) -> AddressHandle {
    AddressHandle {
        dgid: ah.grh.dgid.0,
        flow_label: ah.grh.flow_label,
        sgid_index: ah.grh.sgid_index,
        hop_limit: ah.grh.hop_limit,
        traffic_class: ah.grh.traffic_class,
        dlid: ah.dlid,
        sl: ah.sl,
        src_path_bits: ah.src_path_bits,
        static_rate: ah.static_rate,
        is_global: ah.is_global != 0,
        port_num: ah.port_num,
        dmac: None,
    }
}

fn ah_to_c(ah: &AddressHandle) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: Gid(ah.dgid),
            flow_label: ah.flow_label,
            sgid_index: ah.sgid_index,
            hop_limit: ah.hop_limit,
            traffic_class: ah.traffic_class,
        },
        dlid: ah.dlid,
        sl: ah.sl,
        src_path_bits: ah.src_path_bits,
        static_rate: ah.static_rate,
        is_global: u8::from(ah.is_global),
        port_num: ah.port_num,
    }
}

/// Converts queried attributes. Path migration is not supported; its state is reported as migrated.
pub fn attr_to_c(attr: &QpAttr, cap: ibv_qp_cap) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state as c_uint,
        cur_qp_state: attr.qp_state as c_uint,
        path_mtu: mtu_code(attr.path_mtu),
        path_mig_state: abi::IBV_MIG_MIGRATED,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags.bits(),
        cap,
        ah_attr: ah_to_c(&attr.ah),
        alt_ah_attr: ah_to_c(&AddressHandle::default()),
        pkey_index: attr.pkey_index,
        alt_pkey_index: 0,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> ibv_qp_attr {
        attr_to_c(&QpAttr { path_mtu: 1024, ..QpAttr::default() }, caps_to_c(QpCap::default()))
    }

    #[test]
    fn fields_outside_the_mask_are_not_looked_at() {
        let mut attr = attr();
        (attr.qp_state, attr.path_mtu, attr.rq_psn) = (99, 99, 7);
        let (out, mask) = attr_from_c(&attr, abi::IBV_QP_RQ_PSN).expect("only the PSN counts");
        assert_eq!((out.rq_psn, mask), (7, QpAttrMask::RQ_PSN));
        assert_eq!(QpAttr { rq_psn: 0, ..out }, QpAttr::default());
    }

    #[test]
    fn unknown_values_are_invalid() {
        let mut attr = attr();
        (attr.qp_state, attr.path_mtu) = (7, 6);
        for mask in [abi::IBV_QP_STATE, abi::IBV_QP_PATH_MTU, 1 << 22, 1 << 31] {
            assert_eq!(attr_from_c(&attr, mask).err(), Some(libc::EINVAL), "mask {mask:#x}");
        }
    }

    #[test]
    fn path_mtu_codes_are_powers_of_two_from_256_to_4096() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!((mtu_bytes(code), mtu_code(bytes)), (Some(bytes), code));
        }
        assert_eq!((mtu_bytes(0), mtu_bytes(6), mtu_code(1500)), (None, None, 3));
    }
}
