//! Commands of transport interfaces and receive queue tables.
use super::CmdOut;
use crate::context::tir::{RqNum, RqtContext, TirContext, TisContext};

commands! {
    0x912 CreateTis
        in CreateTisIn: 0xc0, uid { 0x020 ctx: TisContext }
        out CreateTisOut: 0x10 { 0x008 [23: 0] tisn: u32 }

    0x913 ModifyTis
        in ModifyTisIn: 0xc0, uid {
            0x008 [23: 0] tisn: u32,
            0x010 [63: 0] bitmask: u64,
            0x020         ctx: TisContext,
        }
        out CmdOut

    0x915 QueryTis
        in QueryTisIn: 0x10, uid { 0x008 [23: 0] tisn: u32 }
        out QueryTisOut: 0xb0 { 0x010 tis_context: TisContext }

    0x914 DestroyTis in DestroyTisIn: 0x10, uid { 0x008 [23: 0] tisn: u32 } out CmdOut

    0x900 CreateTir
        in CreateTirIn: 0x110, uid { 0x020 ctx: TirContext }
        out CreateTirOut: 0x10 {
            0x000 [23: 0] icm_address_63_40: u32,
            0x008 [31:24] icm_address_39_32: u8,
            0x008 [23: 0] tirn: u32,
            0x00c [31: 0] icm_address_31_0: u32,
        }

    0x901 ModifyTir
        in ModifyTirIn: 0x110, uid {
            0x008 [23: 0] tirn: u32,
            0x010 [63: 0] bitmask: u64,
            0x020         ctx: TirContext,
        }
        out CmdOut

    0x903 QueryTir
        in QueryTirIn: 0x10, uid { 0x008 [23: 0] tirn: u32 }
        out QueryTirOut: 0x110 { 0x020 tir_context: TirContext }

    0x902 DestroyTir in DestroyTirIn: 0x10, uid { 0x008 [23: 0] tirn: u32 } out CmdOut

    0x916 CreateRqt
        in CreateRqtIn: 0x110, uid { 0x020 rqt_context: RqtContext } then rq_num: [RqNum]
        out CreateRqtOut: 0x10 { 0x008 [23: 0] rqtn: u32 }

    0x917 ModifyRqt
        in ModifyRqtIn: 0x110, uid {
            0x008 [23: 0] rqtn: u32,
            0x010 [63: 0] bitmask: u64,
            0x020         ctx: RqtContext,
        } then rq_num: [RqNum]
        out CmdOut

    0x919 QueryRqt
        in QueryRqtIn: 0x10, uid { 0x008 [23: 0] rqtn: u32 }
        out QueryRqtOut: 0x110 { 0x020 rqt_context: RqtContext } then rq_num: [RqNum]

    0x918 DestroyRqt in DestroyRqtIn: 0x10, uid { 0x008 [23: 0] rqtn: u32 } out CmdOut
}
