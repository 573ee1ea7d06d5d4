//! Commands of send and receive queues without a queue pair.
use super::{CmdOut, Page};
use crate::context::rq_sq::{RqContext, SqContext};

/// `modify_bitmask` of `MODIFY_RQ`: VLAN stripping.
pub const VSD: u64 = 1 << 1;

commands! {
    0x904 CreateSq
        in CreateSqIn: 0x110, uid { 0x020 ctx: SqContext } then pas: [Page]
        out CreateSqOut: 0x10 { 0x008 [23: 0] sqn: u32 }

    0x905 ModifySq
        in ModifySqIn: 0x110, uid {
            0x008 [31:28] sq_state: u8,
            0x008 [23: 0] sqn: u32,
            0x010 [63: 0] modify_bitmask: u64,
            0x020         ctx: SqContext,
        }
        out CmdOut

    0x907 QuerySq
        in QuerySqIn: 0x10, uid { 0x008 [23: 0] sqn: u32 }
        out QuerySqOut: 0x110 { 0x020 sq_context: SqContext } then pas: [Page]

    0x906 DestroySq in DestroySqIn: 0x10, uid { 0x008 [23: 0] sqn: u32 } out CmdOut

    0x908 CreateRq
        in CreateRqIn: 0x110, uid { 0x020 ctx: RqContext } then pas: [Page]
        out CreateRqOut: 0x10 { 0x008 [23: 0] rqn: u32 }

    0x909 ModifyRq
        in ModifyRqIn: 0x110, uid {
            0x008 [31:28] rq_state: u8,
            0x008 [23: 0] rqn: u32,
            0x010 [63: 0] modify_bitmask: u64,
            0x020         ctx: RqContext,
        }
        out CmdOut

    0x90b QueryRq
        in QueryRqIn: 0x10, uid { 0x008 [23: 0] rqn: u32 }
        out QueryRqOut: 0x110 { 0x020 rq_context: RqContext } then pas: [Page]

    0x90a DestroyRq in DestroyRqIn: 0x10, uid { 0x008 [23: 0] rqn: u32 } out CmdOut
}
