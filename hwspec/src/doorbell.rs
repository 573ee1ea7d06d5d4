//! Doorbells: registers in a UAR page, and their records in host memory.
//!
//! The order is: WQE, record, register. The device takes the counters from the record; a register write only signals
//! that it changed. The exception are the EQ registers, which have no record.

use crate::handle::{Cqn, Eqn, Qpn};
use crate::hw_layout;
use crate::wqe::WqeOpcode;

/// Size of a UAR page in bytes, independent of the host's page size.
pub const UAR_SIZE: usize = 0x1000;
/// log2 of [`UAR_SIZE`].
pub const UAR_SHIFT: u32 = 12;
/// CQ arm register in a UAR page: [`CqArm`], 8 bytes.
pub const CQ_DOORBELL: usize = 0x20;
/// EQ register that sets the consumer index and arms: [`EqDoorbell`], 4 bytes.
pub const EQ_ARM: usize = 0x40;
/// EQ register that only sets the consumer index: [`EqDoorbell`], 4 bytes.
pub const EQ_CI: usize = 0x48;
/// First BlueFlame register: an 8-byte write rings the send queue; a whole WQE is executed directly.
pub const BF_OFFSET: usize = 0x800;
/// Distance between BlueFlame registers; each has two buffers of half that, used in turn.
pub const BF_REG_SIZE: usize = 0x200;
/// Bytes of one BlueFlame buffer.
pub const BF_BUF_SIZE: usize = BF_REG_SIZE / 2;
/// BlueFlame registers in a UAR page.
pub const BF_REGS_PER_UAR: usize = 4;
/// Size of a doorbell record in bytes, and its alignment.
pub const RECORD_SIZE: usize = 8;
/// Index of the receive counter in a QP's record, in 32-bit words.
pub const RCV_DBR: usize = 0;
/// Index of the send counter in a QP's record, in 32-bit words.
pub const SND_DBR: usize = 1;

/// The register addressed by a write to a UAR page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UarRegister {
    /// [`CQ_DOORBELL`]
    CqArm,
    /// [`EQ_ARM`]
    EqArm,
    /// [`EQ_CI`]
    EqCi,
    /// A BlueFlame buffer, with the offset into it.
    BlueFlame(usize),
    /// No register.
    Other,
}

impl UarRegister {
    /// The register at byte `offset` of a UAR page (taken modulo its size).
    #[inline]
    pub const fn at(offset: usize) -> Self {
        match offset % UAR_SIZE {
            CQ_DOORBELL => Self::CqArm,
            EQ_ARM => Self::EqArm,
            EQ_CI => Self::EqCi,
            bf if bf >= BF_OFFSET => Self::BlueFlame(bf % BF_BUF_SIZE),
            _ => Self::Other,
        }
    }
}

hw_layout! {
    /// Send doorbell: the first 8 bytes of the control segment of the last WQE posted.
    pub struct SqDoorbell: 0x8 {
        0x00 [31:24] opmod: u8,
        0x00 [23: 8] wqe_idx: u16,
        0x00 [ 7: 0] opcode: WqeOpcode,
        0x04 [31: 8] qpn: Qpn,
        0x04 [ 5: 0] ds: u8,
    }

    /// CQ arm register.
    pub struct CqArm: 0x8 {
        /// Sequence number of the request; incremented with every event taken.
        0x00 [29:28] cmd_sn: u8,
        /// Only solicited completions and errors count.
        0x00 [24:24] solicited: bool,
        0x00 [23: 0] ci: u32,
        0x04 [23: 0] cqn: Cqn,
    }

    /// CQ doorbell record: consumer index and last arm request.
    pub struct CqRecord: 0x8 {
        0x00 [23: 0] ci: u32,
        0x04 [29:28] arm_sn: u8,
        0x04 [24:24] arm_solicited: bool,
        0x04 [23: 0] arm_ci: u32,
    }

    /// EQ register, 32 bits.
    pub struct EqDoorbell: 0x4 {
        0x00 [31:24] eqn: Eqn,
        0x00 [23: 0] ci: u32,
    }

    /// QP doorbell record: posted receive WQEs and send basic blocks, modulo 2^16. A shared receive queue uses the
    /// first half.
    pub struct QpRecord: 0x8 {
        0x00 [15: 0] rcv_counter: u16,
        0x04 [15: 0] snd_counter: u16,
    }
}
