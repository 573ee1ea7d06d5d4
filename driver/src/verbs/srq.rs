//! Shared receive queues: one queue of receives used by several QPs (IBTA 10.2.9), and XRC SRQs, which requests name by
//! number (annex A14).

use super::{Cq, OF_FUNCTION, Pd, RecvWr, Sge, XrcDomain, ends::ends};
use crate::{
    dma::{DmaMem, DmaRing, page_list},
    error::{Error, PostError},
    inline::Inbox,
    post::{data_segment, in_order},
    records::Record,
    shared_receive::SharedReceives,
};
use hwspec::{
    cmd::{CmdIn, Opcode, adapter::*, srq::*},
    context::{qp::NO_USER_INDEX, srq::*, wq::WorkQueue},
    doorbell::RCV_DBR,
    wqe::*,
};
use std::sync::Arc;

/// Largest message (IBTA 9.7.6.1.4.1).
const MAX_MESSAGE: u32 = 1 << 31;

/// The attributes of a new shared receive queue.
#[derive(Clone)]
pub struct SrqInit {
    /// Minimum number of outstanding receives.
    pub max_wr: u32,
    /// SGEs per receive.
    pub max_sge: u32,
    /// For XRC: the domain with the target QPs that may use it, and the CQ of its receives.
    pub xrc: Option<(Arc<XrcDomain>, Arc<Cq>)>,
    /// Returned in its events.
    pub cookie: u64,
}

/// Attributes of a shared receive queue (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttr {
    /// Maximum number of outstanding receives.
    pub max_wr: u32,
    /// SGEs per receive.
    pub max_sge: u32,
    /// When fewer receives than this are left, the limit event is raised once; 0: not armed.
    pub limit: u32,
}

/// The kind of object on the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Before ISSI 1.
    Srq,
    /// From ISSI 1 on.
    Rmp,
    Xrc,
}

/// A shared receive queue.
pub struct Srq {
    receives: Arc<SharedReceives>,
    record: Option<Record>,
    kind: Kind,
    max_wr: u32,
    max_sge: u32,
    pd: Arc<Pd>,
    xrc: Option<(Arc<XrcDomain>, Arc<Cq>)>,
    mem: Arc<DmaMem>,
    live: bool,
}

/// The location of its entries.
struct Place {
    log_entries: u8,
    /// log2 of the entry size in 16-byte units.
    log_stride: u8,
    log_page_size: u8,
    record: u64,
}

impl Srq {
    /// Creates an SRQ with at least the capacity in `init`. EINVAL: more than the device supports; EOPNOTSUPP: the
    /// device has no XRC.
    pub fn create(pd: &Arc<Pd>, init: &SrqInit) -> Result<Arc<Srq>, Error> {
        let device = &pd.device;
        let (attr, function) = (device.attr(), &device.function);
        if init.max_wr > attr.max_srq_wr || init.max_sge > attr.max_srq_sge {
            return Err(Error::invalid(format!(
                "an SRQ of {} receives of {} pieces was asked for, up to {} of at most {} can be had",
                init.max_wr, init.max_sge, attr.max_srq_wr, attr.max_srq_sge
            )));
        }
        if let Some((domain, cq)) = &init.xrc {
            if !Arc::ptr_eq(domain.device(), device) || !Arc::ptr_eq(cq.device(), device) {
                return Err(Error::invalid(
                    "XRC domain, CQ and protection domain belong to different devices",
                ));
            }
        }
        // One entry is never posted, so that the successor of the last posted one is known when it is taken.
        let entries = (init.max_wr.max(1) + 1).next_power_of_two();
        let stride = (NextSeg::SIZE + init.max_sge.max(1) as usize * WQE_DS).next_power_of_two();
        let bytes = entries as usize * stride;
        let mem = Arc::new(pd.queue_memory(bytes)?);
        let record = device.records.alloc(&function.transport)?;
        let ring = DmaRing::new(mem.clone(), 0, entries, stride);
        let (log_page_size, pages) = page_list(mem.iova(), bytes);
        let place = Place {
            log_entries: entries.trailing_zeros() as u8,
            log_stride: (stride / WQE_DS).trailing_zeros() as u8,
            log_page_size,
            record: record.iova(),
        };
        let segments = stride / WQE_DS - 1;
        let inbox = Inbox { ring, first: 1, segments, shifted: device.shifted.clone() };
        let pending = SharedReceives::new(inbox, entries, device.takes_data_in_cqes());
        let created = make(pd, init, &place, &pages);
        let ((kind, srqn), (mem, record)) = Error::or_keep(created, (mem, record))?;
        let receives = Arc::new(pending.numbered(srqn));
        if let Some((_, cq)) = &init.xrc {
            cq.attach_srq(receives.clone());
        }
        device.registry.srqs.add(srqn, init.cookie);
        Ok(Arc::new(Srq {
            receives,
            record: Some(record),
            kind,
            max_wr: entries - 1,
            max_sge: (segments as u32).min(attr.max_srq_sge),
            pd: pd.clone(),
            xrc: init.xrc.clone(),
            mem,
            live: true,
        }))
    }

    /// The user context that owns the SRQ.
    fn uid(&self) -> u16 {
        if self.is_xrc() { OF_FUNCTION } else { self.pd.device.opener.uid() }
    }

    /// Its number.
    pub fn srqn(&self) -> u32 {
        self.receives.srqn
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// True for an XRC SRQ: requests name it, and no QP is created on it.
    pub fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }

    /// Maximum number of outstanding receives, and SGEs per receive.
    pub fn size(&self) -> (u32, u32) {
        (self.max_wr, self.max_sge)
    }

    pub(crate) fn receives(&self) -> &Arc<SharedReceives> {
        &self.receives
    }

    /// Arms one event for when fewer than `limit` receives are left; 0 disarms it. EINVAL: more than the queue holds.
    pub fn arm(&self, limit: u32) -> Result<(), Error> {
        let Some(lwm) = u16::try_from(limit).ok().filter(|_| limit <= self.max_wr) else {
            return Err(Error::invalid(format!(
                "an event at fewer than {limit} receives was asked for, {} fit",
                self.max_wr
            )));
        };
        let (function, uid) = (&self.pd.device.function, self.uid());
        match self.kind {
            Kind::Srq => {
                let input = ArmRqIn::with(|s| s.op_mod(ARM).srq_number(self.srqn()).lwm(lwm));
                function.order(Opcode::ArmRq, uid, &input)
            }
            Kind::Xrc => {
                let input = ArmXrcSrqIn::with(|s| s.op_mod(ARM).xrc_srqn(self.srqn()).lwm(lwm));
                function.order(Opcode::ArmXrcSrq, uid, &input)
            }
            Kind::Rmp => {
                let wq = WorkQueue::with(|s| s.lwm(lwm));
                let context = RmpContext::with(|s| s.state(RMP_READY).wq(wq));
                let input = ModifyRmpIn::with(|s| {
                    s.rmp_state(RMP_READY).rmpn(self.srqn()).bitmask(RMP_LIMIT.to_be_bytes()).ctx(context)
                });
                function.order(Opcode::ModifyRmp, uid, &input)
            }
        }
    }

    /// Queries the device.
    pub fn query(&self) -> Result<SrqAttr, Error> {
        let (function, uid) = (&self.pd.device.function, self.uid());
        let input = QuerySrqIn::with(|s| s.srqn(self.srqn()));
        let limit = match self.kind {
            Kind::Srq => {
                let out: QuerySrqOut = function.call(Opcode::QuerySrq, uid, &input)?;
                out.srq_context_entry().lwm()
            }
            Kind::Xrc => {
                let out: QueryXrcSrqOut = function.call(Opcode::QueryXrcSrq, uid, &input)?;
                out.xrc_srq_context_entry().lwm()
            }
            Kind::Rmp => {
                let out: QueryRmpOut = function.call(Opcode::QueryRmp, uid, &input)?;
                out.rmp_context().wq().lwm()
            }
        };
        Ok(SrqAttr { max_wr: self.max_wr, max_sge: self.max_sge, limit: limit.into() })
    }

    /// Posts receives in order. On an error, the earlier ones are posted. EINVAL: too many SGEs, or one too long;
    /// ENOMEM: the queue is full.
    pub fn post_recv<'w>(&self, wrs: impl IntoIterator<Item = RecvWr<'w>>) -> Result<(), PostError> {
        let mut free = self.receives.lock();
        let begin = free.posted();
        let result = in_order(wrs, |wr| {
            self.check(wr.sge)?;
            let entry = free.next().ok_or(libc::ENOMEM)?;
            self.write(entry, wr.sge);
            free.post(wr.wr_id);
            Ok(())
        });
        if free.posted() != begin {
            if let Some(record) = &self.record {
                record.set(RCV_DBR, free.posted() & 0xffff);
            }
        }
        result
    }

    fn check(&self, list: &[Sge]) -> Result<(), i32> {
        let fits = list.len() <= self.max_sge as usize && list.iter().all(|sge| sge.length <= MAX_MESSAGE);
        if fits { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// Writes the data segments after the entry's next segment, which was written when the entry was freed.
    fn write(&self, entry: u32, list: &[Sge]) {
        let inbox = self.receives.inbox();
        let mut segment = inbox.first;
        for sge in list.iter().filter(|sge| sge.length != 0) {
            inbox.ring.put_segment(entry, segment, data_segment(sge).as_bytes());
            segment += 1;
        }
        if segment < inbox.first + inbox.segments {
            let end = DataSeg::with(|s| s.lkey(INVALID_LKEY));
            inbox.ring.put_segment(entry, segment, end.as_bytes());
        }
    }

    fn release(&mut self) -> Result<(), Error> {
        let op = match self.kind {
            Kind::Srq => Opcode::DestroySrq,
            Kind::Rmp => Opcode::DestroyRmp,
            Kind::Xrc => Opcode::DestroyXrcSrq,
        };
        let device = &self.pd.device;
        let result = device.function.destroy_object(op, self.uid(), self.srqn());
        if let Some((_, cq)) = &self.xrc {
            cq.detach_srq(self.srqn());
        }
        device.registry.srqs.remove(self.srqn());
        // The device may still read its memory, which is therefore kept forever.
        result.inspect_err(|_| std::mem::forget((self.mem.clone(), self.record.take())))
    }
}

ends! {
    /// Destroys the SRQ. EBUSY while QPs use it (it then lives until the last of them is gone). Dropping the last
    /// reference does the same without reporting errors.
    Srq.destroy: "the SRQ is in use", "an SRQ could not be destroyed", srqn = srqn
}

/// Creates the object on the device. Returns its kind and number.
fn make(pd: &Arc<Pd>, init: &SrqInit, place: &Place, pages: &[u64]) -> Result<(Kind, u32), Error> {
    let device = &pd.device;
    let (function, uid) = (&device.function, device.opener.uid());
    if let Some((domain, cq)) = &init.xrc {
        let context = XrcSrqContext::with(|s| {
            s.log_xrc_srq_size(place.log_entries)
                .log_rq_stride(place.log_stride)
                .xrcd(domain.xrcdn())
                .cqn(cq.cqn())
                .log_page_size(place.log_page_size)
                .user_index(NO_USER_INDEX)
                .pd(pd.pdn)
                .db_record_addr_h((place.record >> 32) as u32)
                .db_record_addr_l(place.record as u32 >> 2)
        });
        let input = CreateXrcSrqIn::with(|s| s.xrc_srq_context_entry(context));
        let out: CreateXrcSrqOut = function.call_with(Opcode::CreateXrcSrq, OF_FUNCTION, &input, pages)?;
        return Ok((Kind::Xrc, out.xrc_srqn()));
    }
    let issi: QueryIssiOut = function.call(Opcode::QueryIssi, 0, &CmdIn::zeroed())?;
    if issi.current_issi() == 0 {
        let context = SrqContext::with(|s| {
            s.log_srq_size(place.log_entries)
                .log_rq_stride(place.log_stride)
                .log_page_size(place.log_page_size)
                .pd(pd.pdn)
                .dbr_addr(place.record)
        });
        let input = CreateSrqIn::with(|s| s.srq_context_entry(context));
        let out: CreateSrqOut = function.call_with(Opcode::CreateSrq, uid, &input, pages)?;
        return Ok((Kind::Srq, out.srqn()));
    }
    let wq = WorkQueue::with(|s| {
        s.pd(pd.pdn)
            .dbr_addr(place.record)
            .log_wq_stride(place.log_stride + WQE_DS.trailing_zeros() as u8)
            .log_wq_pg_sz(place.log_page_size)
            .log_wq_sz(place.log_entries)
    });
    let context = RmpContext::with(|s| s.state(RMP_READY).wq(wq));
    let input = CreateRmpIn::with(|s| s.ctx(context));
    let out: CreateRmpOut = function.call_with(Opcode::CreateRmp, uid, &input, pages)?;
    Ok((Kind::Rmp, out.rmpn()))
}
