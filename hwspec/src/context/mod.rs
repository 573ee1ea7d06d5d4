//! Contexts: the state that the device keeps of an object, as written and read by the driver.

pub mod caps;
pub mod congestion;
pub mod cq;
pub mod eq;
pub mod eswitch;
pub mod flow;
pub mod mkey;
pub mod port;
pub mod qp;
pub mod rq_sq;
pub mod srq;
pub mod tir;
pub mod vport;
pub mod wq;

use crate::hw_layout;

hw_layout! {
    /// QP state (`qpc.state`).
    pub enum QpState: u8, 4 bits { Reset = 0, Init = 1, Rtr = 2, Rts = 3, SqErr = 4, SqDrained = 5, Err = 6, SqDraining = 7, }
    /// Transport service type (`qpc.st`).
    pub enum ServiceType: u8, 8 bits {
        Rc = 0, Uc = 1, Ud = 2, Xrc = 3, Dci = 5, Qp0 = 7, Qp1 = 8, RawEth = 9, RegUmr = 0xc,
    }
    /// Path migration state (`qpc.pm_state`).
    pub enum PathMigState: u8, 2 bits { Armed = 0, Rearm = 1, Migrated = 3, }
    /// Translation mode of an mkey (`mkc.access_mode_1_0` and `access_mode_4_2`).
    pub enum AccessMode: u8, 5 bits { Pa = 0, Mtt = 1, Klm = 2, Ksm = 3, Memic = 5, }
    /// Capability page of `QUERY_HCA_CAP` (bits 15:1 of `op_mod`; bit 0 selects maximum or current).
    pub enum CapType: u8, 8 bits {
        General = 0x0, EthernetOffloads = 0x1, Odp = 0x2, Atomic = 0x3, Roce = 0x4, IpoibOffloads = 0x5,
        IpoibEnhanced = 0x6, FlowTable = 0x7, EswitchFlowTable = 0x8, Eswitch = 0x9, Debug = 0xd, Qos = 0xc,
        VectorCalc = 0xb, DeviceMem = 0xf, General2 = 0x20,
    }
    /// CQ state (`cqc.status`).
    pub enum CqStatus: u8, 4 bits { Ok = 0, Overflow = 9, WriteFail = 0xa, }
    /// CQ and EQ arming state (`cqc.st`, `eqc.st`).
    pub enum ArmState: u8, 4 bits { SolicitedArmed = 6, Armed = 9, Fired = 0xa, }
}
