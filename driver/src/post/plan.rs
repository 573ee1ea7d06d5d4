//! Mapping of operations to WQEs.

use crate::verbs::{SendOp, Service};
use hwspec::wqe::WqeOpcode;

/// The parts of a WQE that depend on the operation: opcode, immediate field of the control segment, remote address and
/// operands.
pub struct Plan {
    pub opcode: WqeOpcode,
    pub imm: u32,
    pub remote: Option<(u64, u32)>,
    pub atomic: Option<(u64, u64)>,
}

impl Plan {
    #[inline(always)]
    pub fn of(op: &SendOp) -> Self {
        match *op {
            SendOp::Send => Self::plain(WqeOpcode::Send, 0),
            SendOp::Write { raddr, rkey } => Self::rdma(WqeOpcode::RdmaWrite, 0, raddr, rkey),
            _ => Self::of_uncommon(op),
        }
    }

    #[inline(always)]
    fn plain(opcode: WqeOpcode, imm: u32) -> Self {
        Self { opcode, imm, remote: None, atomic: None }
    }

    #[inline(always)]
    fn rdma(opcode: WqeOpcode, imm: u32, raddr: u64, rkey: u32) -> Self {
        Self { opcode, imm, remote: Some((raddr, rkey)), atomic: None }
    }

    /// Like [`of`](Self::of), out of line for less common operations.
    #[inline(never)]
    fn of_uncommon(op: &SendOp) -> Self {
        let (plain, rdma) = (Self::plain, Self::rdma);
        match *op {
            SendOp::Send | SendOp::Write { .. } => Self::of(op),
            SendOp::SendImm(imm) => plain(WqeOpcode::SendImm, imm),
            SendOp::SendInv(rkey) => plain(WqeOpcode::SendInval, rkey),
            SendOp::WriteImm { raddr, rkey, imm } => rdma(WqeOpcode::RdmaWriteImm, imm, raddr, rkey),
            SendOp::Read { raddr, rkey } => rdma(WqeOpcode::RdmaRead, 0, raddr, rkey),
            SendOp::CmpSwap { raddr, rkey, compare, swap } => {
                Self { atomic: Some((swap, compare)), ..rdma(WqeOpcode::AtomicCs, 0, raddr, rkey) }
            }
            SendOp::FetchAdd { raddr, rkey, add } => {
                Self { atomic: Some((add, 0)), ..rdma(WqeOpcode::AtomicFa, 0, raddr, rkey) }
            }
            SendOp::LocalInv(key) | SendOp::BindMw { mw: key, .. } => plain(WqeOpcode::Umr, key),
        }
    }

    /// True if a service supports this operation (IBTA table 46).
    pub fn fits(&self, service: Service) -> bool {
        let sends = matches!(self.opcode, WqeOpcode::Send | WqeOpcode::SendImm);
        let writes = matches!(self.opcode, WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm);
        match service {
            Service::Rc | Service::XrcIni => true,
            Service::Uc => sends || writes || self.opcode == WqeOpcode::Umr,
            Service::Ud | Service::Gsi => sends,
            Service::RawPacket => self.opcode == WqeOpcode::Send,
            Service::Keys => self.opcode == WqeOpcode::Umr,
            Service::XrcTgt => false,
        }
    }

    /// True if the data may be inline.
    #[inline(always)]
    pub fn takes_inline(&self) -> bool {
        !matches!(self.opcode, WqeOpcode::RdmaRead | WqeOpcode::Umr) && self.atomic.is_none()
    }
}
