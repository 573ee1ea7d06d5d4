//! Commands: headers, opcodes, status, and one file of inputs and outputs per kind of object.
//!
//! A command is a big-endian input and output; the first 16 bytes of each lie in the command queue entry, the rest in
//! a chain of mailboxes ([`queue`]).

/// Declares a command's input: the header that every input begins with ([`CmdIn`]), then rows of its own, as in
/// [`hw_layout!`](crate::hw_layout). `uid` stands where Linux's headers name the field, and in what DEVX sends (`devx.c`), which
/// sets it in every command by the header that all have in common (`general_obj_in_cmd_hdr`).
macro_rules! cmd_in {
    ($(#[$m:meta])* pub struct $S:ident: $size:literal, uid { $($rows:tt)* }) => {
        $crate::hw_layout! {
            $(#[$m])*
            pub struct $S: $size {
                0x000 [31:16] opcode: $crate::cmd::Opcode,
                /// User context the object belongs to; 0 is the function's own driver.
                0x000 [15: 0] uid: u16,
                0x004 [15: 0] op_mod: u16,
                $($rows)*
            }
        }
    };
    ($(#[$m:meta])* pub struct $S:ident: $size:literal { $($rows:tt)* }) => {
        $crate::hw_layout! {
            $(#[$m])*
            pub struct $S: $size {
                0x000 [31:16] opcode: $crate::cmd::Opcode,
                0x004 [15: 0] op_mod: u16,
                $($rows)*
            }
        }
    };
}

/// Declares a command's output: the header that every output begins with ([`CmdOut`]), then rows of its own.
macro_rules! cmd_out {
    ($(#[$m:meta])* pub struct $S:ident: $size:literal { $($rows:tt)* }) => {
        $crate::hw_layout! {
            $(#[$m])*
            pub struct $S: $size {
                0x000 [31:24] status: $crate::cmd::Status,
                0x004 [31: 0] syndrome: u32,
                $($rows)*
            }
        }
    };
}

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

use crate::hw_enum;

hw_enum! {
    /// Command opcode: the first 16 bits of every input.
    pub enum Opcode: u16, 16 bits {
        QueryHcaCap = 0x100,
        QueryAdapter = 0x101,
        InitHca = 0x102,
        TeardownHca = 0x103,
        EnableHca = 0x104,
        DisableHca = 0x105,
        QueryPages = 0x107,
        ManagePages = 0x108,
        SetHcaCap = 0x109,
        QueryIssi = 0x10a,
        SetIssi = 0x10b,
        SetDriverVersion = 0x10d,
        CreateMkey = 0x200,
        QueryMkey = 0x201,
        DestroyMkey = 0x202,
        QuerySpecialContexts = 0x203,
        AllocMemic = 0x205,
        DeallocMemic = 0x206,
        CreateEq = 0x301,
        DestroyEq = 0x302,
        QueryEq = 0x303,
        CreateCq = 0x400,
        DestroyCq = 0x401,
        QueryCq = 0x402,
        ModifyCq = 0x403,
        CreateQp = 0x500,
        DestroyQp = 0x501,
        Rst2initQp = 0x502,
        Init2rtrQp = 0x503,
        Rtr2rtsQp = 0x504,
        Rts2rtsQp = 0x505,
        Sqerr2rtsQp = 0x506,
        Qp2Err = 0x507,
        Rts2sqdQp = 0x508,
        Qp2Rst = 0x50a,
        QueryQp = 0x50b,
        SqdRtsQp = 0x50c,
        MadIfc = 0x50d,
        Init2initQp = 0x50e,
        Sqd2sqdQp = 0x511,
        CreateSrq = 0x700,
        DestroySrq = 0x701,
        QuerySrq = 0x702,
        ArmRq = 0x703,
        CreateXrcSrq = 0x705,
        DestroyXrcSrq = 0x706,
        QueryXrcSrq = 0x707,
        ArmXrcSrq = 0x708,
        QueryEswFunctions = 0x740,
        QueryVportState = 0x750,
        ModifyVportState = 0x751,
        QueryEswVportContext = 0x752,
        ModifyEswVportContext = 0x753,
        QueryNicVportContext = 0x754,
        ModifyNicVportContext = 0x755,
        QueryRoceAddress = 0x760,
        SetRoceAddress = 0x761,
        QueryHcaVportContext = 0x762,
        ModifyHcaVportContext = 0x763,
        QueryHcaVportGid = 0x764,
        QueryHcaVportPkey = 0x765,
        QueryVportCounter = 0x770,
        AllocQCounter = 0x771,
        DeallocQCounter = 0x772,
        QueryQCounter = 0x773,
        CreateSchedulingElement = 0x782,
        DestroySchedulingElement = 0x783,
        QuerySchedulingElement = 0x784,
        ModifySchedulingElement = 0x785,
        AllocPd = 0x800,
        DeallocPd = 0x801,
        AllocUar = 0x802,
        DeallocUar = 0x803,
        AccessReg = 0x805,
        AttachToMcg = 0x806,
        DetachFromMcg = 0x807,
        Nop = 0x80d,
        AllocXrcd = 0x80e,
        DeallocXrcd = 0x80f,
        AllocTransportDomain = 0x816,
        DeallocTransportDomain = 0x817,
        QueryCongStatus = 0x822,
        ModifyCongStatus = 0x823,
        QueryCongParams = 0x824,
        ModifyCongParams = 0x825,
        QueryCongStatistics = 0x826,
        SetL2TableEntry = 0x829,
        QueryL2TableEntry = 0x82a,
        DeleteL2TableEntry = 0x82b,
        CreateTir = 0x900,
        ModifyTir = 0x901,
        DestroyTir = 0x902,
        QueryTir = 0x903,
        CreateSq = 0x904,
        ModifySq = 0x905,
        DestroySq = 0x906,
        QuerySq = 0x907,
        CreateRq = 0x908,
        ModifyRq = 0x909,
        DestroyRq = 0x90a,
        QueryRq = 0x90b,
        CreateRmp = 0x90c,
        ModifyRmp = 0x90d,
        DestroyRmp = 0x90e,
        QueryRmp = 0x90f,
        CreateTis = 0x912,
        ModifyTis = 0x913,
        DestroyTis = 0x914,
        QueryTis = 0x915,
        CreateRqt = 0x916,
        ModifyRqt = 0x917,
        DestroyRqt = 0x918,
        QueryRqt = 0x919,
        SetFlowTableRoot = 0x92f,
        CreateFlowTable = 0x930,
        DestroyFlowTable = 0x931,
        QueryFlowTable = 0x932,
        CreateFlowGroup = 0x933,
        DestroyFlowGroup = 0x934,
        QueryFlowGroup = 0x935,
        SetFlowTableEntry = 0x936,
        QueryFlowTableEntry = 0x937,
        DeleteFlowTableEntry = 0x938,
        AllocFlowCounter = 0x939,
        DeallocFlowCounter = 0x93a,
        QueryFlowCounter = 0x93b,
        ModifyFlowTable = 0x93c,
        CreateUctx = 0xa04,
        DestroyUctx = 0xa06,
        CreateUmem = 0xa08,
        DestroyUmem = 0xa0a,
    }
}

cmd_in! {
    /// First bytes of every command input.
    pub struct CmdIn: 0x10, uid {}
}

cmd_out! {
    /// First bytes of every command output.
    pub struct CmdOut: 0x10 {}
}

hw_enum! {
    /// Command status: why a command was refused (PRM: command return status).
    pub enum Status: u8, 8 bits {
        Ok = 0x00,
        /// Internal error of the device.
        InternalErr = 0x01,
        /// Unknown or unsupported opcode.
        BadOp = 0x02,
        /// A parameter is out of its range.
        BadParam = 0x03,
        /// The device is not in the state the command needs.
        BadSysState = 0x04,
        /// The resource does not exist or belongs to another user context.
        BadResource = 0x05,
        /// The resource is held by another.
        ResBusy = 0x06,
        /// A limit is exceeded or pages are missing.
        Lim = 0x08,
        /// The resource is not in the state the command needs.
        BadResState = 0x09,
        /// Index out of range.
        BadIndex = 0x0a,
        NoResources = 0x0f,
        /// Input shorter or longer than the command.
        BadInputLen = 0x50,
        /// Output too short for the answer.
        BadOutputLen = 0x51,
        /// The QP is not in a state that allows it.
        BadQpState = 0x10,
        BadPkt = 0x30,
        BadSizeOutsCqes = 0x40,
    }
}

hw_enum! {
    /// Delivery status in the command queue entry: whether the command reached the firmware at all.
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
