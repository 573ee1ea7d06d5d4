//! Queue pair commands.
use super::{CmdOut, Page};
use crate::context::qp::QpContext;

commands! {
    0x500 CreateQp
        in CreateQpIn: 0x110, uid {
            0x008 [23: 0] input_qpn: u32,
            0x010 [31: 0] opt_param_mask: u32,
            0x014 [31: 0] ece: u32,
            0x018         qpc: QpContext,
            0x100 [63: 0] wq_umem_offset: u64,
            0x108 [31: 0] wq_umem_id: u32,
            0x10c [31:31] wq_umem_valid: bool,
        } then pas: [Page]
        out CreateQpOut: 0x10 {
            0x008 [23: 0] qpn: u32,
            0x00c [31: 0] ece: u32,
        }

    0x50b QueryQp
        in QueryQpIn: 0x10, uid { 0x008 [23: 0] qpn: u32 }
        out QueryQpOut: 0x110 {
            0x010 [31: 0] opt_param_mask: u32,
            0x014 [31: 0] ece: u32,
            0x018         qpc: QpContext,
        } then pas: [Page]

    0x501 DestroyQp in DestroyQpIn: 0x10, uid { 0x008 [23: 0] qpn: u32 } out CmdOut
    0x507 Qp2Err in Qp2errIn: 0x10, uid { 0x008 [23: 0] qpn: u32 } out CmdOut
    0x50a Qp2Rst in Qp2rstIn: 0x10, uid { 0x008 [23: 0] qpn: u32 } out CmdOut

    // A transition's mask selects the optional fields of the context. In some transitions both ends negotiate
    // enhanced connection establishment (`ece`).
    0x502 Rst2initQp
        in ModifyQpIn: 0x110, uid {
            0x008 [23: 0] qpn: u32,
            0x010 [31: 0] opt_param_mask: u32,
            0x014 [31: 0] ece: u32,
            0x018         qpc: QpContext,
        }
        out ModifyQpOut: 0x10 { 0x00c [31: 0] ece: u32 }

    0x50e Init2initQp in ModifyQpIn out ModifyQpOut
    0x503 Init2rtrQp in ModifyQpIn out ModifyQpOut
    0x504 Rtr2rtsQp in ModifyQpIn out ModifyQpOut
    0x505 Rts2rtsQp in ModifyQpIn out ModifyQpOut

    0x506 Sqerr2rtsQp
        in Sqd2rtsQpIn: 0x110, uid {
            0x008 [23: 0] qpn: u32,
            0x010 [31: 0] opt_param_mask: u32,
            0x018         qpc: QpContext,
        }
        out CmdOut

    0x50c SqdRtsQp in Sqd2rtsQpIn out CmdOut
    // The header has no structures for these two; they are laid out like the other transitions.
    0x508 Rts2sqdQp in Sqd2rtsQpIn out CmdOut
    0x511 Sqd2sqdQp in Sqd2rtsQpIn out CmdOut
}
