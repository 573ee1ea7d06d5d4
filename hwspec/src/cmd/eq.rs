//! Event queue commands.
use super::{CmdOut, Page};
use crate::context::eq::EqContext;

commands! {
    0x301 CreateEq
        in CreateEqIn: 0x110, uid {
            0x010         eq_context_entry: EqContext,
            0x058         event_bitmask: [u8; 0x20],
        } then pas: [Page]
        out CreateEqOut: 0x10 { 0x008 [ 7: 0] eq_number: u8 }

    0x303 QueryEq
        in QueryEqIn: 0x10 { 0x008 [ 7: 0] eq_number: u8 }
        out QueryEqOut: 0x110 {
            0x010         eq_context_entry: EqContext,
            0x058 [63: 0] event_bitmask: u64,
        } then pas: [Page]

    0x302 DestroyEq in DestroyEqIn: 0x10 { 0x008 [ 7: 0] eq_number: u8 } out CmdOut
}
