//! Event queue elements.
//!
//! An EQE is ready for software when its `owner` bit equals the wrap parity of the consumer index
//! (`ci >> log_eq_size & 1`); software sets the bit in every entry of a new queue.

use crate::handle::{Cqn, Qpn};
use crate::hw_layout;

/// Offset of the byte with the owner bit; written last.
pub const OWNER: usize = 0x3f;

hw_layout! {
    /// Event type (`eqe.event_type`), and its bit number in the event mask of `CREATE_EQ`.
    pub enum EventType: u8, 8 bits {
        Comp = 0x00,
        PathMig = 0x01,
        CommEst = 0x02,
        SqDrained = 0x03,
        CqError = 0x04,
        WqCatasError = 0x05,
        PathMigFailed = 0x07,
        InternalError = 0x08,
        PortChange = 0x09,
        Cmd = 0x0a,
        PageRequest = 0x0b,
        PageFault = 0x0c,
        NicVportChange = 0x0d,
        EswFunctionsChanged = 0x0e,
        VhcaStateChange = 0x0f,
        WqInvalReqError = 0x10,
        WqAccessError = 0x11,
        SrqCatasError = 0x12,
        SrqLastWqe = 0x13,
        SrqRqLimit = 0x14,
        GpioEvent = 0x15,
        PortModuleEvent = 0x16,
        TempWarnEvent = 0x17,
        XrqError = 0x18,
        RemoteConfig = 0x19,
        DbBfCongestion = 0x1a,
        StallEvent = 0x1b,
        DctDrained = 0x1c,
        DctKeyViolation = 0x1d,
        FpgaError = 0x20,
        FpgaQpError = 0x21,
        GeneralEvent = 0x22,
        MonitorCounter = 0x24,
        PpsEvent = 0x25,
        DeviceTracer = 0x26,
        ObjectChange = 0x27,
    }
}

impl EventType {
    /// The asynchronous events supported by every device of the family, except command and page events
    /// (Linux: MLX5_ASYNC_EVENT_MASK).
    pub const OF_ALL: [Self; 12] = [
        Self::PathMig,
        Self::CommEst,
        Self::SqDrained,
        Self::CqError,
        Self::WqCatasError,
        Self::PathMigFailed,
        Self::PortChange,
        Self::WqInvalReqError,
        Self::WqAccessError,
        Self::SrqCatasError,
        Self::SrqLastWqe,
        Self::SrqRqLimit,
    ];
}

hw_layout! {
    /// The change of a port (`eqe.event_sub_type` of a port change).
    pub enum PortChange: u8, 8 bits {
        Down = 1, Active = 4, Initialized = 5, Lid = 6, Pkey = 7, Guid = 8, ClientRereg = 9,
    }

    /// Cause of a CQ error (`cq_error.syndrome`).
    pub enum CqErrorSyndrome: u8, 8 bits { Overrun = 1, AccessViolation = 2, }

    /// Kind of the queue named in an event (`qp_events.type`).
    pub enum QueueKind: u8, 8 bits { Qp = 0, Rq = 1, Sq = 2, Dct = 6, }

    /// Event queue element.
    pub struct Eqe: 0x40 {
        0x00 [23:16] event_type: EventType,
        0x00 [ 7: 0] event_sub_type: u8,
        0x20         event_data: [u8; 0x1c],
        0x3c [15: 8] signature: u8,
        0x3c [ 0: 0] owner: bool,
    }
}

impl Eqe {
    /// An event of type `kind` with `data`; the owner bit is clear.
    #[inline]
    pub fn new<D: EventData>(kind: EventType, data: D) -> Self {
        let mut eqe = Self::zeroed();
        eqe.set().event_type(kind).event_data(data.to_data());
        eqe
    }
    /// The data, in the layout of the event type.
    #[inline]
    pub fn data<D: EventData>(&self) -> D {
        D::read(&self.as_bytes()[0x20..0x3c])
    }
}

/// One of the layouts of the 28 bytes of event data.
pub trait EventData: crate::layout::Layout {
    /// The data as the bytes in an EQE.
    #[inline]
    fn to_data(&self) -> [u8; 0x1c] {
        crate::layout::prefix(self.bytes())
    }
}

macro_rules! event_data { ($($T:ident)*) => { $( impl EventData for $T {} )* } }
event_data!(CompEvent QpEvent CqErrorEvent CmdEvent PagesEvent PortEvent VportEvent DctEvent);

hw_layout! {
    /// Completion event, with the CQ number.
    pub struct CompEvent: 0x1c {
        0x18 [23: 0] cq_number: Cqn,
    }

    /// Event of a QP, SRQ or work queue.
    pub struct QpEvent: 0x1c {
        0x14 [31:24] kind: QueueKind,
        0x18 [23: 0] qpn_rqn_sqn: Qpn,
    }

    /// CQ error.
    pub struct CqErrorEvent: 0x1c {
        0x00 [23: 0] cqn: Cqn,
        0x08 [ 7: 0] syndrome: CqErrorSyndrome,
    }

    /// Command completion: one bit per completed command queue entry.
    pub struct CmdEvent: 0x1c {
        0x00 [31: 0] command_completion_vector: u32,
    }

    /// Page request. `num_pages` is signed; if negative, the driver is to reclaim pages.
    pub struct PagesEvent: 0x1c {
        /// The function belongs to the embedded CPU.
        0x00 [31:31] ec_function: bool,
        0x00 [15: 0] function_id: u16,
        0x04 [31: 0] num_pages: u32,
    }

    /// Port state change; the sub-type of the EQE is a [`PortChange`].
    pub struct PortEvent: 0x1c {
        0x08 [31:28] port_num: u8,
    }

    /// A vport's context changed.
    pub struct VportEvent: 0x1c {
        0x00 [15: 0] vport_num: u16,
    }

    /// Event of a DC target.
    pub struct DctEvent: 0x1c {
        0x18 [23: 0] dct_number: u32,
    }
}
