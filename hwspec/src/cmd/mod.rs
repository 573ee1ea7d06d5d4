//! Commands: headers, status, and one file per kind of object that declares its commands.
//!
//! A command is a big-endian input and output. The first 16 bytes of each are in the command queue entry, the rest in
//! a chain of mailboxes ([`queue`]).

#[macro_use]
mod table;

pub mod adapter;
pub mod adapter_id;
pub mod congestion;
pub mod cq;
pub mod eq;
pub mod eswitch;
pub mod flow;
pub mod mcg;
pub mod memic;
pub mod mkey;
pub mod qp;
pub mod queue;
pub mod resource;
pub mod rq_sq;
pub mod srq;
pub mod tir;
pub mod uctx;
pub mod umem;
pub mod vport;

pub use table::Visitor;
pub(crate) use table::{Half, Tail, find};

use crate::{hw_enum, hw_layout};

/// Combines the files that declare commands.
macro_rules! files { ($($file:ident)*) => {
    const FILES: &[&[table::Command]] = &[ $( $file::COMMANDS ),* ];

    /// Passes every command to `visitor`, file by file.
    pub fn visit(visitor: &mut impl Visitor) {
        $( $file::visit(visitor); )*
    }
} }

files! {
    adapter adapter_id congestion cq eq eswitch flow mcg memic mkey qp resource rq_sq srq tir uctx umem vport
}

hw_enum! {
    /// Command opcode: the first 16 bits of every input. Named values come from the declarations of commands.
    pub enum Opcode: u16, 16 bits, named by table::NAMES
}

hw_layout! {
    /// First bytes of every command input.
    pub struct CmdIn: 0x10 {
        0x000 [31:16] opcode: Opcode,
        /// User context that owns the object; 0 is the function's own driver.
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
    }

    /// First bytes of every command output.
    pub struct CmdOut: 0x10 {
        0x000 [31:24] status: Status,
        0x004 [31: 0] syndrome: u32,
    }

    /// An entry of a page list: the address of a 4 KiB page.
    pub struct Page: 0x8 {
        0x000 [63:12] pa: u64,
    }

    /// Command status: the reason of a refusal (PRM: command return status).
    pub enum Status: u8, 8 bits {
        Ok = 0x00,
        /// Internal error of the device.
        InternalErr = 0x01,
        /// Unknown or unsupported opcode.
        BadOp = 0x02,
        /// A parameter is out of range.
        BadParam = 0x03,
        /// The device is not in the state required by the command.
        BadSysState = 0x04,
        /// The resource does not exist or belongs to another user context.
        BadResource = 0x05,
        /// The resource is in use.
        ResBusy = 0x06,
        /// A limit is exceeded or pages are missing.
        Lim = 0x08,
        /// The resource is not in the state required by the command.
        BadResState = 0x09,
        /// Index out of range.
        BadIndex = 0x0a,
        NoResources = 0x0f,
        /// The input is shorter or longer than the command.
        BadInputLen = 0x50,
        /// The output is too short for the answer.
        BadOutputLen = 0x51,
        /// The QP is not in a state that allows the command.
        BadQpState = 0x10,
        BadPkt = 0x30,
        BadSizeOutsCqes = 0x40,
    }

    /// Delivery status in the command queue entry: tells if the command reached the firmware at all.
    pub enum DeliveryStatus: u8, 7 bits {
        Ok = 0x0,
        SignatureErr = 0x1,
        TokenErr = 0x2,
        BadBlockNumber = 0x3,
        /// Output pointer not aligned.
        BadOutputPointer = 0x4,
        BadInputPointer = 0x5,
        InternalErr = 0x6,
        InputLenErr = 0x7,
        OutputLenErr = 0x8,
        /// Reserved field not zero.
        ReservedNotZero = 0x9,
        BadCommandType = 0x10,
    }
}
