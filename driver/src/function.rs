//! A function that is up: the base of all objects of one opener.

use crate::{
    async_queue::{AsyncQueues, Server},
    cmd::CommandQueue,
    error::Error,
    options::OpenOptions,
    pages::{OwnBlocks, PageSupply},
    shared_area::{FunctionLock, Shared},
    transport::{Bar, Transport},
};
use hwspec::{
    cmd::{CmdOut, Opcode, vport::*},
    context::{
        caps::{AtomicCaps, DeviceMemCap, EthernetOffloadCaps, HcaCap, RoceCap},
        vport::HcaVportContext,
    },
    layout::{Layout, prefix},
};
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

/// Bytes of layer 2 included in the MTU of a vport and of a port: header, VLAN tag, checksum.
pub const LAYER_2: u16 = 14 + 4 + 4;

/// Identity of the function, from configuration space, initialization segment and `QUERY_ADAPTER`.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    pub vendor: u16,
    pub device: u16,
    /// True if it is a virtual function.
    pub is_virtual: bool,
    pub revision: u8,
    pub firmware: (u16, u16, u16),
    pub ieee_vendor: u32,
    pub psid: String,
    pub msix_vectors: u16,
}

/// Current capabilities.
#[derive(Clone)]
pub struct Caps {
    pub general: HcaCap,
    pub atomic: AtomicCaps,
    pub roce: RoceCap,
    pub device_mem: DeviceMemCap,
    pub ethernet: EthernetOffloadCaps,
}

/// Values from the vport context.
#[derive(Clone, Debug, Default)]
pub struct Vport {
    pub mac: [u8; 6],
    /// MTU in bytes, layer 2 included.
    pub mtu: u16,
    pub node_guid: u64,
    pub system_image_guid: u64,
}

/// A function that is up.
pub struct Function {
    pub transport: Arc<dyn Transport>,
    pub bar: Bar,
    pub shared: Shared,
    /// `None` only during teardown.
    pub(crate) cmd: Option<CommandQueue>,
    pub(crate) own_blocks: Arc<OwnBlocks>,
    /// The queues of asynchronous events; `None` only during bring-up.
    pub(crate) events: Option<Arc<AsyncQueues>>,
    pub options: OpenOptions,
    pub identity: Identity,
    pub caps: Caps,
    pub vport: Vport,
    /// The result of the teardown, if this opener was the last one.
    pub outcome: Arc<OnceLock<Result<(), Error>>>,
}

impl Function {
    /// Executes a command through [`CommandQueue::call`].
    pub fn call<I: Layout, O: Layout>(&self, op: Opcode, uid: u16, input: &I) -> Result<O, Error> {
        self.cmd()?.call(op, uid, input)
    }

    /// Executes a command with a list after its input.
    pub fn call_with<I: Layout, O: Layout>(
        &self,
        op: Opcode,
        uid: u16,
        input: &I,
        list: &[u64],
    ) -> Result<O, Error> {
        self.cmd()?.call_with(op, uid, input, list)
    }

    /// Executes a command that returns only a status.
    pub fn order<I: Layout>(&self, op: Opcode, uid: u16, input: &I) -> Result<(), Error> {
        self.call::<I, CmdOut>(op, uid, input).map(drop)
    }

    /// Executes a command from its complete input.
    pub fn execute(&self, op: Opcode, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.cmd()?.execute(op, input, output)
    }

    /// Queries the vport context and the list after it, up to the length of `output`.
    pub fn query_list(&self, input: &QueryNicVportContextIn, output: &mut [u8]) -> Result<(), Error> {
        self.cmd()?.call_raw(Opcode::QueryNicVportContext, 0, input, &[], output)
    }

    /// Destroys object `number` of a user context (0: of the function itself). All destroy commands share one
    /// layout.
    pub fn destroy_object(&self, op: Opcode, uid: u16, number: u32) -> Result<(), Error> {
        let mut input = [0; 0x10];
        input[..2].copy_from_slice(&op.raw().to_be_bytes());
        input[2..4].copy_from_slice(&uid.to_be_bytes());
        input[8..12].copy_from_slice(&number.to_be_bytes());
        self.execute(op, &input, &mut [0; 0x10])
    }

    fn cmd(&self) -> Result<&CommandQueue, Error> {
        self.cmd.as_ref().ok_or_else(|| Error::refused(libc::ENODEV, "the function is down"))
    }

    /// The supply of pages.
    pub fn pages(&self) -> Result<PageSupply<'_>, Error> {
        Ok(PageSupply {
            transport: &self.transport,
            shared: &self.shared,
            cmd: self.cmd()?,
            own: &self.own_blocks,
            began: Instant::now(),
        })
    }

    /// Attaches to the queues of asynchronous events, and serves page requests from now on.
    pub(crate) fn attach_events(&mut self) -> Result<(), Error> {
        let queues = AsyncQueues::attach(&self.transport, &self.bar, &self.shared)?;
        self.cmd()?.set_attendant(Box::new(Server {
            queues: queues.clone(),
            transport: self.transport.clone(),
            own: self.own_blocks.clone(),
        }));
        self.events = Some(queues);
        Ok(())
    }

    /// Takes asynchronous events from the device, and serves its page requests.
    pub(crate) fn attend(&self) {
        if let Ok(cmd) = self.cmd() {
            cmd.attend();
        }
    }

    /// Locks the data that all openers share.
    pub(crate) fn lock(&self) -> Result<FunctionLock<'_>, Error> {
        self.shared.lock(self.options.lock_timeout)
    }

    /// True if this is a virtual function.
    pub fn is_virtual(&self) -> bool {
        self.identity.is_virtual
    }

    /// True if the port is Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.caps.general.port_type() == 1
    }

    /// Entry `index` of the RoCE address table (`QUERY_ROCE_ADDRESS`).
    pub fn roce_address(&self, index: u16) -> Result<hwspec::context::vport::RoceAddr, Error> {
        let input = QueryRoceAddressIn::with(|s| s.roce_address_index(index));
        let out: QueryRoceAddressOut = self.call(Opcode::QueryRoceAddress, 0, &input)?;
        Ok(out.roce_address())
    }

    /// The context of an InfiniBand port (`QUERY_HCA_VPORT_CONTEXT`).
    pub fn hca_vport(&self) -> Result<HcaVportContext, Error> {
        let input = QueryHcaVportContextIn::with(|s| s.port_num(1));
        let out: QueryHcaVportContextOut = self.call(Opcode::QueryHcaVportContext, 0, &input)?;
        Ok(out.hca_vport_context())
    }

    /// Entry `index` of the GID table of an InfiniBand port (`QUERY_HCA_VPORT_GID`).
    pub fn hca_vport_gid(&self, index: u16) -> Result<[u8; 16], Error> {
        let input = QueryHcaVportGidIn::with(|s| s.port_num(1).gid_index(index));
        let mut output = [0; QueryHcaVportGidOut::SIZE + 16];
        self.cmd()?.call_raw(Opcode::QueryHcaVportGid, 0, &input, &[], &mut output)?;
        Ok(prefix(&output[QueryHcaVportGidOut::SIZE..]))
    }

    /// Number of entries of the port's GID table: RoCE addresses, or on InfiniBand 8 times a power of two.
    pub fn gid_table_len(&self) -> u16 {
        match self.is_ethernet() {
            true => self.caps.roce.roce_address_table_size(),
            false => 8u16.checked_shl(self.caps.general.gid_table_size().into()).unwrap_or(8),
        }
    }

    /// Active path MTU of the port in bytes: the largest with packets that fit.
    pub fn active_mtu(&self) -> u32 {
        match self.is_ethernet() {
            true => mtu_behind_headers(self.vport.mtu.saturating_sub(LAYER_2)),
            false => 4096,
        }
    }

    /// True if the vport is up (`QUERY_VPORT_STATE`).
    pub fn link_up(&self) -> Result<bool, Error> {
        let out: QueryVportStateOut = self.call(Opcode::QueryVportState, 0, &QueryVportStateIn::zeroed())?;
        Ok(out.state() == 1)
    }
}

/// Returns the largest path MTU with packets, including RoCE v2 headers over IPv6, that fit into `mtu` bytes.
fn mtu_behind_headers(mtu: u16) -> u32 {
    /// IPv6, UDP, BTH, XRC and atomic extensions, ICRC.
    const HEADERS: u32 = 40 + 8 + 12 + 4 + 28 + 4;
    let room = u32::from(mtu).saturating_sub(HEADERS);
    [4096, 2048, 1024, 512].into_iter().find(|size| *size <= room).unwrap_or(256)
}
