//! The steps of the harness, and its permissions.

use std::{net::IpAddr, time::Duration};

/// A step of the harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepName {
    /// Its name.
    pub name: &'static str,
    /// The document and section that it checks.
    pub source: &'static str,
    /// True if it changes any state of the function.
    pub writes: bool,
}

const fn reads(name: &'static str, source: &'static str) -> StepName {
    StepName { name, source, writes: false }
}

const fn writes(name: &'static str, source: &'static str) -> StepName {
    StepName { name, source, writes: true }
}

/// All steps, in order.
pub const STEPS: &[StepName] = &[
    reads("configuration space", "PCI Express 7.5, 7.7"),
    reads("initialization segment", "PRM: initialization segment"),
    reads("health", "PRM: health buffer"),
    writes("function level reset", "PCI Express 6.6.2"),
    writes("bus master and MSI-X", "PCI Express 7.5.1.1.3, 7.7.2"),
    writes("firmware ready", "PRM: initialization segment"),
    writes("command queue", "PRM: command interface, ENABLE_HCA"),
    writes("interface step", "PRM: QUERY_ISSI, SET_ISSI"),
    writes("boot pages", "PRM: QUERY_PAGES, MANAGE_PAGES"),
    writes("capabilities", "PRM: QUERY_HCA_CAP, SET_HCA_CAP"),
    writes("init pages", "PRM: QUERY_PAGES, MANAGE_PAGES"),
    writes("start", "PRM: INIT_HCA"),
    writes("identity", "PRM: QUERY_ADAPTER, QUERY_NIC_VPORT_CONTEXT"),
    writes("addresses", "PRM: MODIFY_NIC_VPORT_CONTEXT, SET_ROCE_ADDRESS"),
    writes("event queue", "PRM: CREATE_UCTX, ALLOC_UAR, CREATE_EQ"),
    writes("capability pages", "PRM: QUERY_HCA_CAP"),
    writes("vport context", "PRM: QUERY_NIC_VPORT_CONTEXT, QUERY_HCA_VPORT_CONTEXT"),
    writes("commands", "PRM: command interface"),
    writes("objects", "PRM: ALLOC_PD, CREATE_MKEY, CREATE_CQ, CREATE_QP; IBTA 10.3.1"),
    writes("loopback SEND", "IBTA 9.4.1"),
    writes("loopback WRITE", "IBTA 9.4.3"),
    writes("loopback READ", "IBTA 9.4.4"),
    writes("loopback ATOMIC", "IBTA 9.4.5"),
    writes("interrupt", "PRM: event queues; PCI Express 6.1.4"),
    writes("frame from outside", "RFC 826, RFC 4861; PRM: RQ, TIR, flow tables"),
    writes("refused commands", "PRM: command status"),
    writes("refused key", "IBTA 9.7.5.2.4, 10.3.1.7"),
    writes("teardown", "PRM: TEARDOWN_HCA, MANAGE_PAGES, DISABLE_HCA"),
    writes("reset and up again", "PCI Express 6.6.2"),
];

/// The permissions and limits of the harness.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Steps that change the function may run. Other users of the function lose it.
    pub write: bool,
    /// Timeout of one completion or interrupt.
    pub timeout: Duration,
    /// Timeout of one command.
    pub command_timeout: Duration,
    /// Timeout of firmware initialization.
    pub ready_timeout: Duration,
    /// The external host that is to answer.
    pub outside: Option<Outside>,
}

impl Plan {
    /// Sets all timeouts to `limit`.
    pub fn within(self, limit: Duration) -> Self {
        Self { timeout: limit, command_timeout: limit, ready_timeout: limit, ..self }
    }
}

/// The two addresses of an exchange over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Our address.
    pub own: IpAddr,
    /// The address of a host on the same network.
    pub peer: IpAddr,
}

impl Default for Plan {
    fn default() -> Self {
        let usual = crate::verbs::OpenOptions::default();
        Self {
            write: false,
            timeout: Duration::from_secs(5),
            command_timeout: usual.command_timeout,
            ready_timeout: usual.ready_timeout,
            outside: None,
        }
    }
}
