//! The device: one opener's view of one function.

use super::{AtomicCap, DeviceAttr, LinkLayer, PortAttr};
use crate::{
    async_queue,
    blueflame::{Register, Registers},
    bringup::{self, Step, Watch},
    completions::{CompletionEvents, CompletionQueue, CompletionVectors},
    error::Error,
    events::Events,
    function::Function,
    inline::{Home, Shifted},
    options::OpenOptions,
    port::{self, Speed},
    records::RecordPool,
    registry::Registry,
    transport::{Bell, Interrupt, Transport},
    vectors::{Claim, common_interrupt},
    vport,
};
use hwspec::{
    cmd::{
        CmdIn, Opcode,
        adapter::{QuerySpecialContextsIn, QuerySpecialContextsOut},
        resource::*,
        uctx::*,
    },
    doorbell::UAR_SIZE,
    wqe::{MAX_DS, MAX_SGE_READ, WQE_BB, WQE_DS},
};
use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// Bytes of a send WQE before its data: control segment and remote address segment.
pub(crate) const SEND_OVERHEAD: usize = 2 * WQE_DS;
/// Header of an inline segment.
pub(crate) const INLINE_HEAD: usize = 4;

/// Low bytes of keys (`mkey_7_0`), which are chosen by the driver. They are unpredictable, and consecutive ones differ,
/// since the device may reuse the index of a destroyed key for the next one.
#[derive(Default)]
struct Variants {
    random: RandomState,
    /// The last variant in the low byte, and the number drawn so far above it.
    drawn: AtomicU64,
}

impl Variants {
    fn next(&self) -> u8 {
        let next = |drawn: u64| {
            let step = 1 + (self.random.hash_one(drawn) % 255) as u8;
            (drawn & !0xff).wrapping_add(0x100) | u64::from((drawn as u8).wrapping_add(step))
        };
        match self.drawn.fetch_update(Relaxed, Relaxed, |drawn| Some(next(drawn))) {
            Ok(before) | Err(before) => next(before) as u8,
        }
    }
}

/// One opener's view of one function.
pub struct Device {
    pub(crate) opener: Opener,
    pub(crate) function: Arc<Function>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) records: RecordPool,
    variants: Variants,
    pub(crate) shifted: Arc<Shifted>,
    in_cqes: AtomicBool,
    null_key: OnceLock<u32>,
    attr: DeviceAttr,
    events: Events,
    vectors: CompletionVectors,
}

/// The objects of the function that one opener holds. A field is `None` if there is nothing to free.
pub(crate) struct Opener {
    function: Arc<Function>,
    uid: Option<u16>,
    uar: Option<u32>,
    blueflame: Registers,
    transport_domain: Option<u32>,
    vector: Option<Claim>,
}

impl Opener {
    /// CREATE_UCTX, ALLOC_UAR, ALLOC_TRANSPORT_DOMAIN, and an interrupt vector.
    fn enter(function: Arc<Function>) -> Result<(Self, Interrupt), Error> {
        let mut this = Self {
            function,
            uid: None,
            uar: None,
            blueflame: Registers::default(),
            transport_domain: None,
            vector: None,
        };
        if this.function.caps.general.log_max_uctx() > 0 {
            let mut context = UserContext::zeroed();
            context.set().cap(this.function.caps.general.uctx_cap() & (RAW_TX | INTERNAL_DEV_RES));
            let mut input = CreateUctxIn::zeroed();
            input.set().uctx(context);
            let out: CreateUctxOut = this.function.call(Opcode::CreateUctx, 0, &input)?;
            this.uid = Some(out.uid());
        }
        let uid = this.uid();
        let out: AllocUarOut = this.function.call(Opcode::AllocUar, uid, &CmdIn::zeroed())?;
        this.uar = Some(out.uar());
        this.function.bar.reach_page(out.uar())?;
        let (vector, interrupt) = Claim::new(&this.function)?;
        this.vector = Some(vector);
        let out: AllocTransportDomainOut =
            this.function.call(Opcode::AllocTransportDomain, uid, &CmdIn::zeroed())?;
        this.transport_domain = Some(out.transport_domain());
        Ok((this, interrupt))
    }

    /// Our user context; 0 if the function has none.
    pub fn uid(&self) -> u16 {
        self.uid.unwrap_or(0)
    }

    /// Our transport domain.
    pub fn transport_domain(&self) -> u32 {
        self.transport_domain.unwrap_or(0)
    }

    /// Our doorbell page.
    pub fn uar(&self) -> u32 {
        self.uar.unwrap_or(0)
    }

    /// Takes a BlueFlame register for a queue pair, which then has to use its page. `None`: the queue pair uses our
    /// page.
    pub fn blueflame(&self) -> Option<Box<Register>> {
        self.blueflame.take(&self.function, self.uid())
    }

    /// The vector of our events.
    fn vector(&self) -> u16 {
        self.vector.as_ref().map_or(0, Claim::vector)
    }

    fn give_back(&mut self) -> Result<(), Error> {
        if crate::cmd::is_gone(&self.function.bar) {
            // In a child of fork all objects belong to the parent.
            (self.transport_domain, self.vector, self.uar, self.uid) = (None, None, None, None);
            return Ok(());
        }
        let uid = self.uid();
        let mut first = Ok(());
        if let Some(domain) = self.transport_domain.take() {
            first = first.and(self.function.destroy_object(Opcode::DeallocTransportDomain, uid, domain));
        }
        drop(self.vector.take());
        first = first.and(self.blueflame.give_back(&self.function, uid));
        if let Some(uar) = self.uar.take() {
            first = first.and(self.function.destroy_object(Opcode::DeallocUar, uid, uar));
        }
        if let Some(uid) = self.uid.take() {
            first = first.and(self.function.destroy_object(Opcode::DestroyUctx, 0, uid.into()));
        }
        first
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            tracing::warn!(%error, "closing the device left something behind");
        }
    }
}

impl Device {
    /// Brings the function up, or attaches to it if another opener already did.
    pub fn open(transport: Arc<dyn Transport>, options: OpenOptions) -> Result<Arc<Device>, Error> {
        Self::open_watched(transport, options, &mut ())
    }

    /// Like [`Device::open`], reporting each step to `watch`.
    pub fn open_watched(
        transport: Arc<dyn Transport>,
        options: OpenOptions,
        watch: &mut dyn Watch,
    ) -> Result<Arc<Device>, Error> {
        let function = Arc::new(bringup::open(transport, options, watch)?);
        watch.step(Step::EventQueue);
        let (opener, interrupt) = Opener::enter(function.clone())?;
        let registry = Arc::new(Registry::new(&function.shared));
        let queue =
            CompletionQueue::create(&function, (opener.uid(), opener.uar()), opener.vector(), &registry)?;
        // A function with a single vector uses it for everything.
        let common = match opener.vector() == async_queue::VECTOR {
            true => None,
            false => Some(common_interrupt(&function.transport)?),
        };
        let bell =
            Bell::new(interrupt, common).map_err(Error::io("cannot wait for two interrupts at once"))?;
        let events = Events::new(&function, bell, queue, &registry)?;
        let attr = attributes(&function);
        Ok(Arc::new(Device {
            opener,
            function,
            registry,
            records: RecordPool::default(),
            variants: Variants::default(),
            shifted: Arc::default(),
            in_cqes: AtomicBool::new(false),
            null_key: OnceLock::new(),
            attr,
            events,
            vectors: CompletionVectors::default(),
        }))
    }

    /// The variant (low byte) for a new key.
    pub(crate) fn key_variant(&self) -> u8 {
        self.variants.next()
    }

    /// The capabilities of the function.
    pub fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    /// True if this is a virtual function.
    pub fn is_virtual(&self) -> bool {
        self.function.is_virtual()
    }

    /// The link layer of its port.
    pub fn link_layer(&self) -> LinkLayer {
        if self.function.is_ethernet() { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }

    /// State of port 1.
    pub fn port(&self) -> Result<PortAttr, Error> {
        /// Port state 4: active (IBTA 14.2.5.6).
        const ACTIVE: u8 = 4;
        /// Bits of the capability mask: communication management, and IP-based GIDs.
        const COMMUNICATION: u32 = 1 << 16;
        const IP_GIDS: u32 = 1 << 26;
        let caps = &self.function.caps;
        let ethernet = self.function.is_ethernet();
        let (active, lid, sm_lid, mask) = match ethernet {
            true => (self.function.link_up()?, 0, 0, IP_GIDS),
            false => {
                let port = self.function.hca_vport()?;
                (port.port_state() == ACTIVE, port.lid(), port.sm_lid(), port.cap_mask1())
            }
        };
        let speed = match port::speed(&self.function) {
            Err(Error::Command { .. }) => Speed::UNREADABLE,
            speed => speed?,
        };
        Ok(PortAttr {
            active,
            link_layer: self.link_layer(),
            max_mtu: 4096,
            active_mtu: self.function.active_mtu(),
            gid_tbl_len: self.function.gid_table_len().into(),
            pkey_tbl_len: self.attr.max_pkeys,
            max_msg_sz: 1 << caps.general.log_max_msg().min(30),
            active_speed: speed.lane,
            active_width: speed.width,
            mac: self.function.vport.mac,
            lid,
            sm_lid,
            port_cap_flags: mask | COMMUNICATION,
            max_vl_num: 1,
        })
    }

    /// Entry `index` of the GID table; EINVAL past its end.
    pub fn gid(&self, index: u16) -> Result<[u8; 16], Error> {
        let len = self.function.gid_table_len();
        if index >= len {
            return Err(Error::invalid(format!("GID index {index} is past the table of {len}")));
        }
        if !self.function.is_ethernet() {
            return self.function.hca_vport_gid(index);
        }
        Ok(bringup::gid_of(&self.function.roce_address(index)?))
    }

    /// Writes entry `index` of the GID table as RoCE v2. `None` clears it.
    pub fn set_gid(&self, index: u16, gid: Option<&[u8; 16]>) -> Result<(), Error> {
        bringup::set_gid(&self.function, index, gid)?;
        match gid {
            Some(gid) => vport::hear_neighbours_of(&self.function, gid),
            None => Ok(()),
        }
    }

    /// Reads the device's clock, which also timestamps completions, in ticks of [`DeviceAttr::clock_khz`].
    pub fn clock(&self) -> Result<u64, Error> {
        /// The halves of the internal timer, after the registers of the initialization segment.
        const HIGH: u32 = 0x1000;
        const LOW: u32 = 0x1004;
        let bar = &self.function.bar;
        let mut high = bar.read32(HIGH);
        // The low half may wrap between the two reads, but not twice.
        for _ in 0..3 {
            let (low, again) = (bar.read32(LOW), bar.read32(HIGH));
            if again == high {
                return match (high, low) {
                    (u32::MAX, u32::MAX) => Err(Error::Gone),
                    _ => Ok(u64::from(high) << 32 | u64::from(low)),
                };
            }
            high = again;
        }
        Err(Error::device("a clock that runs forward", "one whose upper half changes at every look"))
    }

    /// Lets messages of up to 32 bytes arrive in the CQE, for connected queue pairs and SRQs that are created from now on: polling copies
    /// them to the receive's buffers. This saves the device a write.
    ///
    /// # Safety
    /// The memory that a receive names stays mapped until the receive has been polled, or its queue is gone.
    #[allow(unsafe_code)] // the guarantee about the caller's memory can only come from the caller
    pub unsafe fn receive_in_cqes(&self) {
        self.in_cqes.store(true, Relaxed);
    }

    pub(crate) fn takes_data_in_cqes(&self) -> bool {
        self.in_cqes.load(Relaxed)
    }

    /// The null key, for local use: writes to it are discarded, and reads return zeros (`ibv_alloc_null_mr`).
    /// EOPNOTSUPP if the device has none.
    pub fn null_key(&self) -> Result<u32, Error> {
        if let Some(key) = self.null_key.get() {
            return Ok(*key);
        }
        if !self.function.caps.general.null_mkey() {
            return Err(Error::unsupported("the device has no null key"));
        }
        let input = QuerySpecialContextsIn::zeroed();
        let out: QuerySpecialContextsOut = self.function.call(Opcode::QuerySpecialContexts, 0, &input)?;
        Ok(*self.null_key.get_or_init(|| {
            self.shifted.insert(out.null_mkey(), 0, u64::MAX, Home::Nowhere);
            out.null_mkey()
        }))
    }

    /// This opener's events.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The transport of this device.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.function.transport
    }

    /// Frees everything; the last opener tears the function down. EBUSY while the device has objects, which keep it
    /// open until the last of them is gone.
    pub fn close(self: Arc<Self>) -> Result<(), Error> {
        match Arc::into_inner(self) {
            None => Err(Error::busy("the device is in use")),
            Some(mut device) => {
                let eq = device.destroy_eq();
                eq.and(device.opener.give_back())
            }
        }
    }

    fn destroy_eq(&self) -> Result<(), Error> {
        let uid = self.opener.uid();
        let others = self.vectors.destroy(&self.function, uid);
        self.events.completions.destroy(&self.function, uid).and(others)
    }

    /// The events of completion vector `number`, created if necessary. `None`: they arrive through [`Device::events`],
    /// like those of vector 0, because the function has no interrupt left. EINVAL: `number` is not below
    /// [`DeviceAttr::num_comp_vectors`].
    pub fn completion_vector(&self, number: u32) -> Result<Option<Arc<CompletionEvents>>, Error> {
        if number >= self.attr.num_comp_vectors {
            let have = self.attr.num_comp_vectors;
            return Err(Error::invalid(format!("completion vector {number} of {have}")));
        }
        match number {
            0 => Ok(None),
            _ => {
                let opener = (self.opener.uid(), self.opener.uar());
                self.vectors.get(&self.function, opener, &self.registry, number as usize)
            }
        }
    }

    /// The event queue of a completion vector.
    pub(crate) fn eqn(&self, vector: u32) -> Result<u8, Error> {
        let further = self.completion_vector(vector)?;
        Ok(further.map_or(self.events.completions.eqn(), |events| events.eqn()))
    }

    /// Offset of a register of our doorbell page in BAR0.
    pub(crate) fn uar_register(&self, register: usize) -> u32 {
        (self.opener.uar() as usize * UAR_SIZE + register) as u32
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(error) = self.destroy_eq() {
            tracing::warn!(%error, "the event queue could not be destroyed");
        }
    }
}

fn attributes(function: &Function) -> DeviceAttr {
    let (caps, atomic) = (&function.caps.general, &function.caps.atomic);
    let memic = &function.caps.device_mem;
    let pow = |log: u8| 1u32 << log.min(31);
    let ethernet = function.is_ethernet() && caps.eth_net_offloads();
    let send_wqe = usize::from(caps.max_wqe_sz_sq()).clamp(WQE_BB, MAX_DS * WQE_DS);
    let recv_sge = u32::from(caps.max_wqe_sz_rq()) / WQE_DS as u32;
    let send_sge = (send_wqe - SEND_OVERHEAD) / WQE_DS;
    /// `atomic_operations`: compare and swap, fetch and add; `atomic_size_qp`: 8 bytes.
    const OPERATIONS: u16 = 0b11;
    const EIGHT_BYTES: u16 = 1 << 3;
    let atomics = caps.atomic()
        && atomic.atomic_operations() & OPERATIONS == OPERATIONS
        && atomic.atomic_size_qp() & EIGHT_BYTES != 0;
    DeviceAttr {
        fw_ver: function.identity.firmware,
        node_guid: function.vport.node_guid.to_be_bytes(),
        sys_image_guid: function.vport.system_image_guid.to_be_bytes(),
        vendor_id: function.identity.vendor.into(),
        vendor_part_id: function.identity.device.into(),
        hw_ver: function.identity.revision.into(),
        ieee_vendor_id: function.identity.ieee_vendor,
        psid: function.identity.psid.clone(),
        max_mr_size: u64::MAX,
        page_size_cap: u64::MAX << 12,
        max_qp: pow(caps.log_max_qp()),
        max_qp_wr: pow(caps.log_max_qp_sz()),
        max_sge: recv_sge.min(send_sge as u32),
        max_sge_rd: MAX_SGE_READ as u32,
        max_cq: pow(caps.log_max_cq()),
        max_cqe: pow(caps.log_max_cq_sz()) - 1,
        max_mr: pow(caps.log_max_mkey()),
        on_demand: function.transport.pages_on_demand(),
        raw_checksums: function.caps.ethernet.csum_cap(),
        raw_vlan_stripping: function.caps.ethernet.vlan_cap(),
        max_wq: if ethernet { pow(caps.log_max_rq()) } else { 0 },
        max_wq_wr: if ethernet { pow(caps.log_max_wq_sz()) } else { 0 },
        max_rwq_tables: if ethernet { pow(caps.log_max_rqt()) } else { 0 },
        max_rwq_table_size: if ethernet { pow(caps.log_max_rqt_size()) } else { 0 },
        max_dm_size: if memic.memic() { memic.max_memic_size().into() } else { 0 },
        max_pd: pow(caps.log_max_pd()),
        max_qp_rd_atom: pow(caps.log_max_ra_req_qp()),
        max_res_rd_atom: pow(caps.log_max_ra_req_qp()).saturating_mul(pow(caps.log_max_qp())),
        max_qp_init_rd_atom: pow(caps.log_max_ra_res_qp()),
        atomic_cap: if atomics { AtomicCap::Hca } else { AtomicCap::None },
        max_srq: pow(caps.log_max_srq()),
        max_srq_wr: pow(caps.log_max_srq_sz()) - 1,
        max_srq_sge: recv_sge.saturating_sub(1),
        max_mcast_grp: if caps.max_qp_mcg() > 0 { pow(caps.log_max_mcg()) } else { 0 },
        max_mcast_qp_attach: caps.max_qp_mcg(),
        xrc: caps.xrc(),
        max_pkeys: if function.is_ethernet() {
            1
        } else {
            128u16.checked_shl(caps.pkey_table_size().into()).unwrap_or(128)
        },
        local_ca_ack_delay: caps.local_ca_ack_delay(),
        phys_port_cnt: caps.num_ports().max(1),
        max_inline: (send_wqe - SEND_OVERHEAD - INLINE_HEAD) as u32,
        log_max_msg: caps.log_max_msg(),
        num_comp_vectors: CompletionVectors::count(function),
        clock_khz: caps.device_frequency_khz(),
        // `cq_max_count` has 16 bits, `cq_period` 12.
        max_cq_count: if caps.cq_moderation() { u16::MAX } else { 0 },
        max_cq_period: if caps.cq_moderation() { 0xfff } else { 0 },
    }
}
