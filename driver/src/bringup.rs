//! Bring-up in the order of the programming interface (PRM: initialization).

use crate::{
    abandoned,
    async_queue::AsyncQueues,
    cmd::{self, CommandQueue},
    config::Config,
    dma::DmaMem,
    error::Error,
    function::{Caps, Function, Identity, Vport},
    options::OpenOptions,
    pages::{self, Stage},
    ready,
    shared_area::{FunctionLock, FunctionState, Shared},
    transport::{Bar, Scope, Transport},
    vport,
};
use hwspec::{
    cmd::{CmdIn, Opcode, adapter::*, adapter_id::*, vport::*},
    context::{
        CapType,
        caps::{AtomicCaps, DeviceMemCap, EthernetOffloadCaps, HcaCap, RoceCap},
        vport::RoceAddr,
    },
    layout::{Layout, prefix},
    pcie::{self, VENDOR_ID},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Registers of the initialization segment.
pub const FW_REV: u32 = 0x00;
pub const CMDIF_REV: u32 = 0x04;
const CMDQ_HIGH: u32 = 0x10;
pub const CMDQ_LOW: u32 = 0x14;
/// Revision of the command interface that this driver implements.
pub const INTERFACE: u16 = 5;
/// Bit of `supported_issi_dw0`: ISSI 1.
const ISSI_1: u32 = 1 << 1;
/// RoCE v2 in a RoCE address.
const ROCE_V2: u8 = 2;
/// Network types in a RoCE address.
const L3_IPV4: u8 = 0;
const L3_IPV6: u8 = 1;
/// `op_mod` of `QUERY_HCA_CAP`: maximum or current.
const MAXIMUM: u16 = 0;
const CURRENT: u16 = 1;
/// `atomic_req_8b_endianness_mode`: operands and results are in host byte order.
const HOST_ENDIAN: u8 = 1;

/// A step of the bring-up, in this order. Attaching to a function that is already up takes only some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Configuration space: checks the device ID, enables DMA and interrupts.
    ConfigSpace,
    /// Initialization segment: waits for the firmware, and checks the revision of its command interface.
    InitSegment,
    /// Writes the command queue's address to the device, and executes `ENABLE_HCA`.
    CommandQueue,
    /// `QUERY_ISSI`, `SET_ISSI`.
    Issi,
    /// `QUERY_PAGES` (boot), `MANAGE_PAGES`.
    BootPages,
    /// `QUERY_HCA_CAP`, `SET_HCA_CAP`.
    SetCaps,
    /// `QUERY_PAGES` (init), `MANAGE_PAGES`.
    InitPages,
    /// `INIT_HCA`.
    InitHca,
    /// `QUERY_HCA_CAP`, `QUERY_ADAPTER`, `QUERY_NIC_VPORT_CONTEXT`.
    Describe,
    /// `MODIFY_NIC_VPORT_CONTEXT`, `SET_ROCE_ADDRESS`.
    Addresses,
    /// User context, doorbell page, interrupt vector, `CREATE_EQ`.
    EventQueue,
}

/// Observer of a bring-up.
pub trait Watch {
    /// `step` begins. All previous steps succeeded.
    fn step(&mut self, step: Step);
    /// A value was read or counted within the step.
    fn read(&mut self, what: &'static str, found: String);
}

/// Observes nothing.
impl Watch for () {
    fn step(&mut self, _: Step) {}
    fn read(&mut self, _: &'static str, _: String) {}
}

/// Takes the function's lock. An opener that brings the function up holds the lock for as long as the firmware needs.
fn lock<'a>(shared: &'a Shared, options: &OpenOptions) -> Result<FunctionLock<'a>, Error> {
    let begin = Instant::now();
    loop {
        match shared.lock(options.lock_timeout) {
            Err(_)
                if shared.state() == FunctionState::InChange && begin.elapsed() < options.ready_timeout => {}
            result => return result,
        }
    }
}

/// Brings the function up, or attaches to it if another opener already did.
pub fn open(
    transport: Arc<dyn Transport>,
    options: OpenOptions,
    watch: &mut dyn Watch,
) -> Result<Function, Error> {
    let shared = Shared::open(&transport)?;
    let lock = lock(&shared, &options)?;

    watch.step(Step::ConfigSpace);
    let config = Config(&*transport);
    let (vendor, device, revision) = config.identity()?;
    let known = pcie::known(device).filter(|_| vendor == VENDOR_ID);
    let known = known.ok_or_else(|| unknown_device(vendor, device))?;
    watch.read("device", format!("{device:#06x}, {}", known.name));
    let fresh = shared.state() != FunctionState::Up;
    if shared.state() == FunctionState::InChange {
        tracing::info!("the opener that was bringing the function up or down has died: resetting it");
        transport.reset().map_err(Error::io("cannot reset the function"))?;
        pages::free_all(&transport, &shared, &Default::default());
        let (iova, len) = shared.command_memory();
        if iova != 0 {
            match DmaMem::attach(&transport, iova, len) {
                Ok(mem) => mem.free(),
                Err(error) => tracing::warn!(iova, %error, "the former command queue could not be freed"),
            }
        }
        lock.set_command_memory(0, 0);
        lock.set_state(FunctionState::Down);
    }
    config.enable_memory_and_bus_master()?;
    config.enable_msix()?;
    let identity = Identity {
        vendor,
        device,
        is_virtual: known.is_virtual,
        revision,
        msix_vectors: config.msix_vectors()?,
        ..Default::default()
    };
    let bar = transport.bar(0).map_err(Error::io("cannot map BAR0"))?;

    watch.step(Step::InitSegment);
    let (log_size, log_stride) = init_segment(&bar, &*transport, options.ready_timeout)?;
    let cmd_mem = match fresh {
        true => {
            lock.set_state(FunctionState::InChange);
            lock.clear_slots();
            lock.clear_xrc();
            lock.clear_event_queues();
            DmaMem::alloc(&transport, cmd::memory_len(log_size), Scope::Function)?
        }
        false => DmaMem::attach(&transport, shared.command_memory().0, cmd::memory_len(log_size))?,
    };
    let (iova, cmd_len) = (cmd_mem.iova(), cmd_mem.len());
    let cmd = CommandQueue::new(
        cmd_mem,
        bar.clone(),
        transport.clone(),
        shared.clone(),
        (log_size, log_stride),
        options.command_timeout,
    )?;
    let mut function = Function {
        transport: transport.clone(),
        bar,
        shared: shared.clone(),
        cmd: Some(cmd),
        own_blocks: Default::default(),
        events: None,
        options,
        identity,
        caps: Caps {
            general: HcaCap::zeroed(),
            atomic: AtomicCaps::zeroed(),
            roce: RoceCap::zeroed(),
            device_mem: DeviceMemCap::zeroed(),
            ethernet: EthernetOffloadCaps::zeroed(),
        },
        vport: Vport::default(),
        outcome: Arc::default(),
    };
    // From here on, dropping `function` undoes the bring-up. That takes the lock, so `lock` is declared after
    // `function` and dropped before it, even when a stage of a model panics.
    let lock = lock;
    lock.set_command_memory(iova, cmd_len);
    let result =
        lock.add_opener().and_then(|()| if fresh { start(&mut function, iova, watch) } else { Ok(()) });
    let result = result
        .and_then(|()| describe(&mut function, &lock, watch))
        .and_then(|()| if fresh { AsyncQueues::create(&function, &lock) } else { Ok(()) })
        .and_then(|()| function.attach_events())
        .and_then(|()| if fresh { addresses(&mut function, watch) } else { Ok(()) });
    if result.is_ok() {
        abandoned::sweep(&function, &lock);
        lock.set_state(FunctionState::Up);
    }
    drop(lock);
    result.map(|()| function)
}

/// The error for a function that is not of the ConnectX family.
pub fn unknown_device(vendor: u16, device: u16) -> Error {
    Error::device(
        format!(
            "an adapter of {VENDOR_ID:04x}, ConnectX-4 or later or BlueField, or a virtual function of one"
        ),
        format!("PCI device {vendor:04x}:{device:04x}"),
    )
}

/// Waits for the firmware. Returns log2 of the number of command queue entries, and log2 of their stride.
fn init_segment(bar: &Bar, transport: &dyn Transport, timeout: Duration) -> Result<(u8, u8), Error> {
    ready::wait(transport, bar, timeout)?;
    let revision = (bar.read32(CMDIF_REV) >> 16) as u16;
    if revision != INTERFACE {
        return Err(Error::device(format!("command interface revision {INTERFACE}"), revision.to_string()));
    }
    let geometry = bar.read32(CMDQ_LOW);
    Ok(((geometry >> 4) as u8 & 0xf, geometry as u8 & 0xf))
}

/// Brings an uninitialized function to the point where it accepts all commands.
fn start(function: &mut Function, cmdq: u64, watch: &mut dyn Watch) -> Result<(), Error> {
    watch.step(Step::CommandQueue);
    // Initialization segment, cmdq_phy_addr.
    function.bar.write32(CMDQ_HIGH, (cmdq >> 32) as u32);
    function.bar.write32(CMDQ_LOW, cmdq as u32);
    init_segment(&function.bar, &*function.transport, function.options.ready_timeout)?;

    watch.read("address", format!("{cmdq:#x}"));
    function.call::<_, EnableHcaOut>(Opcode::EnableHca, 0, &EnableHcaIn::zeroed())?;

    // Interface step sequence 1.
    watch.step(Step::Issi);
    let issi: QueryIssiOut = function.call(Opcode::QueryIssi, 0, &CmdIn::zeroed())?;
    watch.read("supported", format!("{:#x}", issi.supported_issi_dw0()));
    if issi.supported_issi_dw0() & ISSI_1 != 0 {
        let input = SetIssiIn::with(|s| s.current_issi(1));
        function.order(Opcode::SetIssi, 0, &input)?;
    }

    watch.step(Step::BootPages);
    watch.read("pages", function.pages()?.satisfy(Stage::Boot)?.to_string());

    watch.step(Step::SetCaps);
    set_caps(function)?;

    watch.step(Step::InitPages);
    watch.read("pages", function.pages()?.satisfy(Stage::Init)?.to_string());

    watch.step(Step::InitHca);
    function.order(Opcode::InitHca, 0, &InitHcaIn::zeroed())?;
    Ok(())
}

fn query_caps(function: &Function, kind: CapType, which: u16) -> Result<[u8; 0x1000], Error> {
    let input = QueryHcaCapIn::with(|s| s.op_mod(u16::from(kind.raw()) << 1 | which));
    let out: QueryHcaCapOut = function.call(Opcode::QueryHcaCap, 0, &input)?;
    Ok(out.capability())
}

/// Sets capability page `kind` to the result of `change`, which is given the current and the maximum page.
fn change_caps<C: Layout>(
    function: &Function,
    kind: CapType,
    change: impl FnOnce(&C, &mut C),
) -> Result<(), Error> {
    let max = C::read(&query_caps(function, kind, MAXIMUM)?);
    let mut page = query_caps(function, kind, CURRENT)?;
    let before = C::read(&page);
    let mut now = before;
    change(&max, &mut now);
    if now.bytes() == before.bytes() {
        return Ok(());
    }
    page[..C::SIZE].copy_from_slice(now.bytes());
    let input = SetHcaCapIn::with(|s| s.op_mod(u16::from(kind.raw()) << 1).capability(page));
    function.order(Opcode::SetHcaCap, 0, &input)
}

fn set_caps(function: &Function) -> Result<(), Error> {
    change_caps::<HcaCap>(function, CapType::General, |max, now| {
        // No checksums in the command interface; UAR pages of 4 KiB, one per 4 KiB.
        now.set().cmdif_checksum(0).log_uar_page_sz(0).uar_4k(max.uar_4k());
    })?;
    let max = HcaCap::read(&query_caps(function, CapType::General, MAXIMUM)?);
    if max.atomic() {
        change_caps::<AtomicCaps>(function, CapType::Atomic, |max, now| {
            if max.supported_atomic_req_8b_endianness_mode_1() {
                now.set().atomic_req_8b_endianness_mode(HOST_ENDIAN);
            }
        })?;
    }
    if max.roce() {
        change_caps::<RoceCap>(function, CapType::Roce, |max, now| {
            now.set().sw_r_roce_src_udp_port(max.sw_r_roce_src_udp_port());
        })?;
    }
    Ok(())
}

/// Reads capabilities, adapter and vport after `INIT_HCA`.
fn describe(function: &mut Function, lock: &FunctionLock<'_>, watch: &mut dyn Watch) -> Result<(), Error> {
    watch.step(Step::Describe);
    let major_minor = function.bar.read32(FW_REV);
    let sub = function.bar.read32(CMDIF_REV) as u16;
    function.identity.firmware = (major_minor as u16, (major_minor >> 16) as u16, sub);

    // QUERY_HCA_CAP, current.
    function.caps.general = HcaCap::read(&query_caps(function, CapType::General, CURRENT)?);
    if function.caps.general.atomic() {
        function.caps.atomic = AtomicCaps::read(&query_caps(function, CapType::Atomic, CURRENT)?);
    }
    if function.caps.general.roce() {
        function.caps.roce = RoceCap::read(&query_caps(function, CapType::Roce, CURRENT)?);
    }
    if function.caps.general.device_memory() {
        function.caps.device_mem = DeviceMemCap::read(&query_caps(function, CapType::DeviceMem, CURRENT)?);
    }
    if function.is_ethernet() && function.caps.general.eth_net_offloads() {
        let page = query_caps(function, CapType::EthernetOffloads, CURRENT)?;
        function.caps.ethernet = EthernetOffloadCaps::read(&page);
    }

    // QUERY_ADAPTER
    let adapter: QueryAdapterOut = function.call(Opcode::QueryAdapter, 0, &CmdIn::zeroed())?;
    let adapter = adapter.query_adapter_struct();
    let psid = adapter.vsd_contd_psid();
    let end = psid.iter().position(|b| *b == 0).unwrap_or(psid.len());
    function.identity.ieee_vendor = adapter.ieee_vendor_id();
    function.identity.psid = String::from_utf8_lossy(&psid[..end]).into_owned();
    watch.read("board", function.identity.psid.clone());
    let caps = &function.caps.general;
    watch.read("QPs", format!("2^{}", caps.log_max_qp()));
    watch.read("CQs", format!("2^{}", caps.log_max_cq()));
    watch.read("keys", format!("2^{}", caps.log_max_mkey()));
    watch.read("link layer", if function.is_ethernet() { "Ethernet" } else { "InfiniBand" }.into());

    if function.is_ethernet() {
        vport::describe(function, lock, watch)?;
    } else {
        // QUERY_HCA_VPORT_CONTEXT
        let context = function.hca_vport()?;
        function.vport = Vport {
            node_guid: context.node_guid(),
            system_image_guid: context.system_image_guid(),
            ..Vport::default()
        };
        watch.read("port GUID", format!("{:016x}", context.port_guid()));
        watch.read("LID", context.lid().to_string());
    }
    Ok(())
}

/// Announces the function to the switch, and programs the GIDs (`SET_ROCE_ADDRESS`).
fn addresses(function: &mut Function, watch: &mut dyn Watch) -> Result<(), Error> {
    watch.step(Step::Addresses);
    if !function.is_ethernet() {
        return Ok(());
    }
    let gids = vport::gids(function);
    vport::announce(function, &gids, watch)?;
    if !function.caps.general.roce() {
        return Ok(());
    }
    let room = usize::from(function.caps.roce.roce_address_table_size());
    if gids.len() > room {
        return Err(Error::invalid(format!(
            "{} GIDs were asked for, the table of the device holds {room}",
            gids.len()
        )));
    }
    for (index, gid) in gids.iter().enumerate() {
        set_gid(function, index as u16, Some(gid))?;
    }
    Ok(())
}

/// The link-local address with the modified EUI-64 of a MAC (RFC 4291, appendix A).
pub fn link_local(mac: &[u8; 6]) -> [u8; 16] {
    let [a, b, c, d, e, f] = *mac;
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// Writes an entry of the RoCE address table. `None` clears it.
pub fn set_gid(function: &Function, index: u16, gid: Option<&[u8; 16]>) -> Result<(), Error> {
    let mut address = RoceAddr::zeroed();
    if let Some(gid) = gid {
        let mac = function.vport.mac;
        let mapped = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        address
            .set()
            .source_l3_address(*gid)
            .source_mac_47_32(u16::from_be_bytes(prefix(&mac)))
            .source_mac_31_0(u32::from_be_bytes(prefix(&mac[2..])))
            .roce_version(ROCE_V2)
            .roce_l3_type(if mapped { L3_IPV4 } else { L3_IPV6 });
        if let Some(vlan) = function.options.vlan {
            address.set().vlan_valid(true).vlan_id(vlan & 0xfff);
        }
    }
    let input = SetRoceAddressIn::with(|s| s.roce_address_index(index).roce_address(address));
    function.order(Opcode::SetRoceAddress, 0, &input)
}

/// Returns the GID of an entry of the RoCE address table, all zeros if it is empty. The device may return an IPv4
/// address without its mapping prefix, which is restored here.
pub fn gid_of(address: &RoceAddr) -> [u8; 16] {
    let mut gid = address.source_l3_address();
    if address.roce_version() == ROCE_V2 && address.roce_l3_type() == L3_IPV4 && gid != [0; 16] {
        gid[..10].fill(0);
        gid[10..12].fill(0xff);
    }
    gid
}
