//! Queue pair commands.
use crate::context::qp::QpContext;

cmd_in! {
    /// `CREATE_QP` input.
    pub struct CreateQpIn: 0x110, uid {
        0x008 [23: 0] input_qpn: u32,
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
        0x100 [63: 0] wq_umem_offset: u64,
        0x108 [31: 0] wq_umem_id: u32,
        0x10c [31:31] wq_umem_valid: bool,
    }
}

cmd_out! {
    /// `CREATE_QP` output.
    pub struct CreateQpOut: 0x10 {
        0x008 [23: 0] qpn: u32,
        0x00c [31: 0] ece: u32,
    }
}

cmd_in! {
    /// `QUERY_QP` input.
    pub struct QueryQpIn: 0x10, uid {
        0x008 [23: 0] qpn: u32,
    }
}

cmd_out! {
    /// `QUERY_QP` output.
    pub struct QueryQpOut: 0x110 {
        0x010 [31: 0] opt_param_mask: u32,
        0x014 [31: 0] ece: u32,
        0x018         qpc: QpContext,
    }
}

cmd_in! {
    /// `DESTROY_QP` input.
    pub struct DestroyQpIn: 0x10, uid {
        0x008 [23: 0] qpn: u32,
    }
}

cmd_out! {
    /// `DESTROY_QP` output.
    pub struct DestroyQpOut: 0x10 {}
}

/// A transition of a queue pair: its mask says which optional fields of the context are meant. Both ends agree on
/// enhanced connection establishment (`ece`) in some of them.
macro_rules! transition {
    ($name:literal: $In:ident, $Out:ident $(, $ece:ident)?) => {
        cmd_in! {
            #[doc = concat!("`", $name, "` input.")]
            pub struct $In: 0x110, uid {
                0x008 [23: 0] qpn: u32,
                0x010 [31: 0] opt_param_mask: u32,
                $( 0x014 [31: 0] $ece: u32, )?
                0x018         qpc: QpContext,
            }
        }
        cmd_out! {
            #[doc = concat!("`", $name, "` output.")]
            pub struct $Out: 0x10 {
                $( 0x00c [31: 0] $ece: u32, )?
            }
        }
    };
}

transition!("RST2INIT_QP": Rst2initQpIn, Rst2initQpOut, ece);
transition!("INIT2INIT_QP": Init2initQpIn, Init2initQpOut, ece);
transition!("INIT2RTR_QP": Init2rtrQpIn, Init2rtrQpOut, ece);
transition!("RTR2RTS_QP": Rtr2rtsQpIn, Rtr2rtsQpOut, ece);
transition!("RTS2RTS_QP": Rts2rtsQpIn, Rts2rtsQpOut, ece);
transition!("SQERR2RTS_QP": Sqerr2rtsQpIn, Sqerr2rtsQpOut);
transition!("SQD2RTS_QP": Sqd2rtsQpIn, Sqd2rtsQpOut);

cmd_in! {
    /// `QP_2ERR` input.
    pub struct Qp2errIn: 0x10, uid {
        0x008 [23: 0] qpn: u32,
    }
}

cmd_out! {
    /// `QP_2ERR` output.
    pub struct Qp2errOut: 0x10 {}
}

cmd_in! {
    /// `QP_2RST` input.
    pub struct Qp2rstIn: 0x10, uid {
        0x008 [23: 0] qpn: u32,
    }
}

cmd_out! {
    /// `QP_2RST` output.
    pub struct Qp2rstOut: 0x10 {}
}
