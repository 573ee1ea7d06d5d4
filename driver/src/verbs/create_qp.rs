//! Creation of queue pairs.

use super::{
    Device, OF_FUNCTION, Pd, QpInit, QpState, RssInit, Service, XrcDomain,
    geometry::Geometry,
    qp::{Control, LOG_ACK_REQ_FREQ, Links, Qp},
    raw::RawQueues,
};
use crate::{
    blueflame::Register,
    dma::{BlockRing, DmaMem, DmaRing, page_list},
    error::Error,
    inline::Inbox,
    placeholders::Placeholders,
    poll::{QpQueues, RecvTracker, SendTracker},
    post::{RecvQueue, SendQueue},
    records::Record,
    transport::Scope,
};
use hwspec::{
    cmd::{Opcode, qp::*},
    context::{PathMigState, qp::*},
    doorbell::BF_OFFSET,
    wqe::WQE_DS,
};
use std::sync::{Arc, Mutex, atomic::AtomicU32};
use sync::BiasedMutex;

/// `qpc.cs_res`: received messages of up to 32 bytes arrive in the CQE.
const SCATTER_32: u8 = 1;

/// The user context that owns a QP: normally the opener's. Both sides of XRC and the driver's own queue for key changes
/// belong to the function, as in Linux, and may refer to objects of the function: XRC domains, keys of device memory.
fn user_context(device: &Device, service: Service) -> u16 {
    if service.is_xrc() || service == Service::Keys { OF_FUNCTION } else { device.opener.uid() }
}

impl Qp {
    /// Creates a queue pair in RESET.
    pub fn create(pd: &Arc<Pd>, init: &QpInit) -> Result<Arc<Qp>, Error> {
        let device = &pd.device;
        init.service.offered()?;
        let init = &init.without_unused_receives();
        for cq in [&init.send_cq, &init.recv_cq] {
            if !Arc::ptr_eq(cq.device(), device) {
                return Err(Error::invalid("CQ and protection domain belong to different devices"));
            }
        }
        let frames = init.service == Service::RawPacket;
        if frames && (init.srq.is_some() || !device.function.is_ethernet()) {
            return Err(Error::unsupported(
                "raw packets have receives of their own, and a port that is Ethernet",
            ));
        }
        if init.strip_vlan && !(frames && device.attr().raw_vlan_stripping) {
            return Err(Error::unsupported("VLAN tags are taken out of raw packets, where the device can"));
        }
        if let Some(srq) = &init.srq {
            if srq.is_xrc() || !init.service.receives() || !Arc::ptr_eq(srq.pd().device(), device) {
                return Err(Error::invalid("the QP cannot take receives from this SRQ"));
            }
        }
        let placeholders = match init.service.is_xrc() {
            true => Some(XrcDomain::placeholders(device)?),
            false => None,
        };
        let geometry = Geometry::of(init, device.attr())?;
        let function = &device.function;
        let mem = Arc::new(pd.queue_memory(geometry.room())?);
        let record = device.records.alloc(&function.transport)?;
        if init.service == Service::RawPacket {
            return Self::create_raw(pd, init, geometry, mem, record);
        }
        let (log_page_size, pages) = page_list(mem.iova(), geometry.bytes());
        let blueflame = match init.service {
            Service::Rc | Service::Uc | Service::Ud | Service::XrcIni if geometry.sq_blocks > 0 => {
                device.opener.blueflame()
            }
            _ => None,
        };
        // An SRQ that was created before receives of it may be copied to does not take data in CQEs.
        let shared_takes = init.srq.as_ref().is_none_or(|srq| srq.receives().takes_data_in_cqes());
        let in_cqes = init.service.is_connected() && device.takes_data_in_cqes() && shared_takes;
        let mut qpc = QpContext::zeroed();
        qpc.set()
            .st(init.service.context())
            .block_lb_mc(init.block_multicast_loopback)
            .pm_state(PathMigState::Migrated)
            .pd(pd.pdn)
            .uar_page(blueflame.as_ref().map_or(device.opener.uar(), |register| register.uar()))
            .log_page_size(log_page_size)
            .cqn_snd(init.send_cq.cqn())
            .cqn_rcv(init.recv_cq.cqn())
            .dbr_addr(record.iova())
            .log_ack_req_freq(LOG_ACK_REQ_FREQ)
            .cs_res(if in_cqes { SCATTER_32 } else { 0 })
            .user_index(NO_USER_INDEX);
        match geometry.sq_blocks {
            0 => qpc.set().no_sq(true),
            blocks => qpc.set().log_sq_size(blocks.trailing_zeros() as u8),
        };
        if let Some(Placeholders { cqn, xrcdn, .. }) = placeholders {
            qpc.set().cqn_rcv(cqn).xrcd(xrcdn);
        }
        let shared = init.srq.as_ref().map(|srq| srq.srqn()).or(placeholders.map(|s| s.srqn));
        match (geometry.rq_entries, shared) {
            (0, Some(srqn)) => qpc.set().rq_type(RQ_SHARED).srqn_rmpn_xrqn(srqn),
            (0, None) => qpc.set().rq_type(RQ_NONE),
            (entries, _) => qpc
                .set()
                .rq_type(RQ_OWN)
                .log_rq_size(entries.trailing_zeros() as u8)
                .log_rq_stride((geometry.rq_stride / WQE_DS).trailing_zeros() as u8),
        };
        let input = CreateQpIn::with(|s| s.qpc(qpc));
        let created =
            function.call_with(Opcode::CreateQp, user_context(device, init.service), &input, &pages);
        let (out, (mem, record)): (CreateQpOut, _) = Error::or_keep(created, (mem, record))?;
        let links = Links {
            send_cq: Some(init.send_cq.clone()),
            recv_cq: (!init.service.is_xrc()).then(|| init.recv_cq.clone()),
            srq: init.srq.clone(),
            ..Links::default()
        };
        let parts =
            Parts { geometry, record: Some(record), blueflame, ..Parts::new(init.service, mem, links) };
        Ok(parts.assemble(pd, out.qpn(), init.sq_sig_all, init.cookie))
    }

    /// Creates a raw packet QP, which consists of two queues on the device. Its number is that of the send queue, which
    /// always exists.
    fn create_raw(
        pd: &Arc<Pd>,
        init: &QpInit,
        geometry: Geometry,
        mem: Arc<DmaMem>,
        record: Record,
    ) -> Result<Arc<Qp>, Error> {
        let created = RawQueues::create(pd, init, &geometry, &mem, record.iova());
        let (raw, (mem, record)) = Error::or_keep(created, (mem, record))?;
        let links = Links {
            send_cq: Some(init.send_cq.clone()),
            recv_cq: Some(init.recv_cq.clone()),
            ..Links::default()
        };
        let (qpn, service) = (raw.sqn, init.service);
        let parts =
            Parts { geometry, record: Some(record), raw: Some(raw), ..Parts::new(service, mem, links) };
        Ok(parts.assemble(pd, qpn, init.sq_sig_all, init.cookie))
    }

    /// Creates a receive-only raw packet QP that spreads frames over the work queues of a table. It can have flows, but
    /// no queues, states or number. EINVAL: fields that cannot be hashed together, no fields for a table of several
    /// entries, or a table of another device.
    pub fn create_rss(pd: &Arc<Pd>, init: &RssInit) -> Result<Arc<Qp>, Error> {
        if !Arc::ptr_eq(&init.table.device, pd.device()) {
            return Err(Error::invalid("table and protection domain belong to different devices"));
        }
        if init.hash.fields.is_empty() && init.table.wqs.len() > 1 {
            return Err(Error::invalid("no field is hashed, and the table has several entries"));
        }
        Self::of_table(pd, init)
    }

    /// A QP that spreads frames over the work queues of a table. It has no number, since neither packets nor
    /// completions refer to it.
    fn of_table(pd: &Arc<Pd>, init: &RssInit) -> Result<Arc<Qp>, Error> {
        let mem = Arc::new(DmaMem::alloc(&pd.device.function.transport, 0, Scope::Opener)?);
        let raw = RawQueues::spread(pd, &init.table, &init.hash, init.block_multicast_loopback)?;
        let links = Links { table: Some(init.table.clone()), ..Links::default() };
        let parts = Parts { raw: Some(raw), ..Parts::new(Service::RawPacket, mem, links) };
        Ok(parts.assemble(pd, 0, false, 0))
    }

    /// Creates an XRC target QP in RESET. Its events contain `cookie`.
    pub fn create_target(domain: &Arc<XrcDomain>, cookie: u64) -> Result<Arc<Qp>, Error> {
        let qpn = domain.create_target()?;
        Self::of_target(domain, qpn, cookie)
    }

    /// Opens a target QP of the domain that another opener created (`ibv_open_qp`). EINVAL if there is none.
    pub fn open_target(domain: &Arc<XrcDomain>, qpn: u32, cookie: u64) -> Result<Arc<Qp>, Error> {
        domain.hold_target(qpn)?;
        Self::of_target(domain, qpn, cookie)
    }

    /// A handle of XRC target QP `qpn`.
    fn of_target(domain: &Arc<XrcDomain>, qpn: u32, cookie: u64) -> Result<Arc<Qp>, Error> {
        let transport = &domain.device().function.transport;
        let mem = match DmaMem::alloc(transport, 0, Scope::Opener) {
            Ok(mem) => Arc::new(mem),
            Err(error) => {
                domain.drop_target(qpn)?;
                return Err(error);
            }
        };
        let links = Links { domain: Some(domain.clone()), ..Links::default() };
        Ok(Parts::new(Service::XrcTgt, mem, links).assemble(&domain.pd(), qpn, false, cookie))
    }
}

/// The memory and objects of a queue pair.
struct Parts {
    service: Service,
    geometry: Geometry,
    mem: Arc<DmaMem>,
    record: Option<Record>,
    links: Links,
    raw: Option<RawQueues>,
    blueflame: Option<Box<Register>>,
}

impl Parts {
    /// The parts of a queue pair without queues, to be extended by the caller.
    fn new(service: Service, mem: Arc<DmaMem>, links: Links) -> Self {
        let geometry = Geometry { rq_stride: WQE_DS, ..Geometry::default() };
        Self { service, geometry, mem, record: None, links, raw: None, blueflame: None }
    }

    /// Assembles the queue pair in RESET, and makes it known to its CQs and events.
    fn assemble(self, pd: &Arc<Pd>, qpn: u32, signal_all: bool, cookie: u64) -> Arc<Qp> {
        let Self { service, geometry, mem, record, links, raw, blueflame } = self;
        let device = &pd.device;
        let queues = Arc::new(QpQueues {
            qpn,
            extended: service.is_datagram() || service == Service::RawPacket,
            raw: service == Service::RawPacket,
            sq: SendTracker::new(geometry.sq_blocks),
            rq: RecvTracker::new(geometry.rq_entries),
            inbox: (geometry.rq_entries > 0 && device.takes_data_in_cqes()).then(|| Inbox {
                ring: DmaRing::new(mem.clone(), 0, geometry.rq_entries, geometry.rq_stride),
                first: 0,
                segments: geometry.rq_stride / WQE_DS,
                shifted: device.shifted.clone(),
            }),
            srq: links.srq.as_ref().map(|srq| srq.receives().clone()),
        });
        links.cqs().for_each(|cq| cq.attach(queues.clone()));
        if links.table.is_none() {
            device.registry.add_qp(qpn, cookie);
        }
        let cap = geometry.cap;
        Arc::new(Qp {
            sq: BiasedMutex::new(SendQueue {
                ring: BlockRing::new(mem.clone(), geometry.sq_offset, geometry.sq_blocks.max(1)),
                blueflame,
                qpn,
                service,
                block: 0,
                number: 0,
                max_wr: cap.max_send_wr,
                max_sge: cap.max_send_sge as usize,
                max_inline: cap.max_inline as usize,
                signal_all,
                small_fence: false,
                plain: 0,
                scratch: SendQueue::scratch(cap.max_inline as usize),
            }),
            rq: BiasedMutex::new(RecvQueue {
                ring: DmaRing::new(mem.clone(), 0, geometry.rq_entries.max(1), geometry.rq_stride),
                number: 0,
                max_wr: cap.max_recv_wr,
                max_sge: cap.max_recv_sge as usize,
                segments: geometry.rq_stride / WQE_DS,
            }),
            queues,
            bar: device.function.bar.clone(),
            doorbell: device.uar_register(BF_OFFSET),
            record,
            state: AtomicU32::new(QpState::Reset as u32),
            control: Mutex::new(Control::new(cap)),
            groups: Mutex::default(),
            cap,
            service,
            pd: pd.clone(),
            uid: user_context(device, service),
            cookie,
            links,
            raw,
            mem,
            live: true,
        })
    }
}
