//! Shared receive queue commands.
use super::{CmdOut, Page};
use crate::context::srq::{RmpContext, SrqContext, XrcSrqContext};

/// `op_mod` of `ARM_RQ` and `ARM_XRC_SRQ`.
pub const ARM: u16 = 1;
/// `bitmask` of `MODIFY_RMP`: the limit.
pub const RMP_LIMIT: u64 = 1;

commands! {
    0x700 CreateSrq
        in CreateSrqIn: 0x110, uid { 0x010 srq_context_entry: SrqContext } then pas: [Page]
        out CreateSrqOut: 0x10 { 0x008 [23: 0] srqn: u32 }

    0x702 QuerySrq
        in QuerySrqIn: 0x10, uid { 0x008 [23: 0] srqn: u32 }
        out QuerySrqOut: 0x110 { 0x010 srq_context_entry: SrqContext } then pas: [Page]

    0x701 DestroySrq in DestroySrqIn: 0x10, uid { 0x008 [23: 0] srqn: u32 } out CmdOut

    0x703 ArmRq
        in ArmRqIn: 0x10, uid {
            0x008 [23: 0] srq_number: u32,
            0x00c [15: 0] lwm: u16,
        }
        out CmdOut

    0x705 CreateXrcSrq
        in CreateXrcSrqIn: 0x110, uid {
            0x010         xrc_srq_context_entry: XrcSrqContext,
            0x05c [31:31] xrc_srq_umem_valid: bool,
        } then pas: [Page]
        out CreateXrcSrqOut: 0x10 { 0x008 [23: 0] xrc_srqn: u32 }

    0x707 QueryXrcSrq
        in QueryXrcSrqIn: 0x10, uid { 0x008 [23: 0] xrc_srqn: u32 }
        out QueryXrcSrqOut: 0x110 { 0x010 xrc_srq_context_entry: XrcSrqContext } then pas: [Page]

    0x706 DestroyXrcSrq in DestroyXrcSrqIn: 0x10, uid { 0x008 [23: 0] xrc_srqn: u32 } out CmdOut

    0x708 ArmXrcSrq
        in ArmXrcSrqIn: 0x10, uid {
            0x008 [23: 0] xrc_srqn: u32,
            0x00c [15: 0] lwm: u16,
        }
        out CmdOut

    0x90c CreateRmp
        in CreateRmpIn: 0x110, uid { 0x020 ctx: RmpContext } then pas: [Page]
        out CreateRmpOut: 0x10 { 0x008 [23: 0] rmpn: u32 }

    0x90d ModifyRmp
        in ModifyRmpIn: 0x110, uid {
            0x008 [31:28] rmp_state: u8,
            0x008 [23: 0] rmpn: u32,
            0x010         bitmask: [u8; 0x8],
            0x020         ctx: RmpContext,
        } then pas: [Page]
        out CmdOut

    0x90f QueryRmp
        in QueryRmpIn: 0x10, uid { 0x008 [23: 0] rmpn: u32 }
        out QueryRmpOut: 0x110 { 0x020 rmp_context: RmpContext } then pas: [Page]

    0x90e DestroyRmp in DestroyRmpIn: 0x10, uid { 0x008 [23: 0] rmpn: u32 } out CmdOut
}
