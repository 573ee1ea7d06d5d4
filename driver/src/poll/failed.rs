//! The operation of a completion, and the reason of a failure.

use crate::verbs::{Completion, WcOpcode, WcStatus};
use hwspec::{
    cqe::{Cqe64, CqeOpcode, CqeSyndrome},
    wqe::WqeOpcode,
};

/// Adds the id of the work request. A completion without a posted request is a device error, and is reported as a
/// general error.
fn with_id(mut wc: Completion, wr_id: Option<u64>) -> Completion {
    match wr_id {
        Some(wr_id) => wc.wr_id = wr_id,
        None => wc.status = WcStatus::GeneralErr,
    }
    wc
}

/// The operation of a send with a completion that needs only the fields of its CQE.
#[inline(always)]
pub(super) fn plain(sop: u8) -> Option<WcOpcode> {
    PLAIN[usize::from(sop)]
}

/// Lookup table of [`plain`].
static PLAIN: [Option<WcOpcode>; 256] = {
    let mut all = [None; 256];
    let mut sop = 0;
    while sop < all.len() {
        all[sop] = match send_opcode(sop as u8) {
            opcode @ (WcOpcode::Send | WcOpcode::RdmaWrite | WcOpcode::RdmaRead) => Some(opcode),
            _ => None,
        };
        sop += 1;
    }
    all
};

pub(super) const fn send_opcode(sop: u8) -> WcOpcode {
    match WqeOpcode::from_raw(sop) {
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => WcOpcode::RdmaWrite,
        WqeOpcode::RdmaRead => WcOpcode::RdmaRead,
        WqeOpcode::AtomicCs | WqeOpcode::AtomicMaskedCs => WcOpcode::CompSwap,
        WqeOpcode::AtomicFa | WqeOpcode::AtomicMaskedFa => WcOpcode::FetchAdd,
        WqeOpcode::Umr | WqeOpcode::LocalInval => WcOpcode::LocalInv,
        WqeOpcode::BindMw => WcOpcode::BindMw,
        _ => WcOpcode::Send,
    }
}

#[cold]
#[inline(never)]
pub(super) fn failed(cqe: &Cqe64, wr_id: Option<u64>) -> Completion {
    let error = cqe.as_error();
    let sent = cqe.opcode() == CqeOpcode::ReqErr;
    let status = match error.syndrome() {
        CqeSyndrome::LocalLengthErr => WcStatus::LocLenErr,
        CqeSyndrome::LocalQpOpErr => WcStatus::LocQpOpErr,
        CqeSyndrome::LocalProtErr => WcStatus::LocProtErr,
        CqeSyndrome::WrFlushErr => WcStatus::WrFlushErr,
        CqeSyndrome::MwBindErr => WcStatus::MwBindErr,
        CqeSyndrome::BadRespErr => WcStatus::BadRespErr,
        CqeSyndrome::LocalAccessErr => WcStatus::LocAccessErr,
        CqeSyndrome::RemoteInvalReqErr => WcStatus::RemInvReqErr,
        CqeSyndrome::RemoteAccessErr => WcStatus::RemAccessErr,
        CqeSyndrome::RemoteOpErr => WcStatus::RemOpErr,
        CqeSyndrome::TransportRetryExcErr => WcStatus::RetryExcErr,
        CqeSyndrome::RnrRetryExcErr => WcStatus::RnrRetryExcErr,
        CqeSyndrome::RemoteAbortedErr => WcStatus::RemAbortErr,
        _ => WcStatus::GeneralErr,
    };
    let wc = Completion {
        status,
        opcode: if sent { send_opcode(error.s_wqe_opcode()) } else { WcOpcode::Recv },
        vendor_err: error.vendor_err_synd().into(),
        qpn: cqe.qpn().0,
        ..Completion::default()
    };
    with_id(wc, wr_id)
}
