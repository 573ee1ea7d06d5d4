//! Queue pair commands.
use crate::context::qp::QpContext;
use crate::hw_layout;

hw_layout! {
    /// `CREATE_QP` input.
    pub struct CreateQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] input_qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
        0x100 [63: 0] wq_umem_offset: u64,
        0x108 [31: 0] wq_umem_id: u32,
        0x10c [31:31] wq_umem_valid: bool,
    }
}

hw_layout! {
    /// `CREATE_QP` output.
    pub struct CreateQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] qpn: u32,
        0x00c [31: 0] ece: u32,
    }
}

hw_layout! {
    /// `QUERY_QP` input.
    pub struct QueryQpIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
    }
}

hw_layout! {
    /// `QUERY_QP` output.
    pub struct QueryQpOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `DESTROY_QP` input.
    pub struct DestroyQpIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
    }
}

hw_layout! {
    /// `DESTROY_QP` output.
    pub struct DestroyQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `RST2INIT_QP` input.
    pub struct Rst2initQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `RST2INIT_QP` output.
    pub struct Rst2initQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x00c [31: 0] ece: u32,
    }
}

hw_layout! {
    /// `INIT2INIT_QP` input.
    pub struct Init2initQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `INIT2INIT_QP` output.
    pub struct Init2initQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x00c [31: 0] ece: u32,
    }
}

hw_layout! {
    /// `INIT2RTR_QP` input.
    pub struct Init2rtrQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `INIT2RTR_QP` output.
    pub struct Init2rtrQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x00c [31: 0] ece: u32,
    }
}

hw_layout! {
    /// `RTR2RTS_QP` input.
    pub struct Rtr2rtsQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `RTR2RTS_QP` output.
    pub struct Rtr2rtsQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x00c [31: 0] ece: u32,
    }
}

hw_layout! {
    /// `RTS2RTS_QP` input.
    pub struct Rts2rtsQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `RTS2RTS_QP` output.
    pub struct Rts2rtsQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x00c [31: 0] ece: u32,
    }
}

hw_layout! {
    /// `SQERR2RTS_QP` input.
    pub struct Sqerr2rtsQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `SQERR2RTS_QP` output.
    pub struct Sqerr2rtsQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `SQD2RTS_QP` input.
    pub struct Sqd2rtsQpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x018         qpc: QpContext,
    }
}

hw_layout! {
    /// `SQD2RTS_QP` output.
    pub struct Sqd2rtsQpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QP_2ERR` input.
    pub struct Qp2errIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
    }
}

hw_layout! {
    /// `QP_2ERR` output.
    pub struct Qp2errOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QP_2RST` input.
    pub struct Qp2rstIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
    }
}

hw_layout! {
    /// `QP_2RST` output.
    pub struct Qp2rstOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
