//! Location of the rings of a function's queues, from the commands that created them, and the requests posted to
//! them.

use crate::{event::Event, tap::Memory};
use hwspec::{
    cmd::{
        CmdIn, Opcode,
        qp::{CreateQpIn, CreateQpOut},
        rq_sq::{CreateRqIn, CreateSqIn},
        srq::{CreateRmpIn, CreateSrqIn, CreateXrcSrqIn},
        umem::CreateUmemIn,
    },
    context::{ServiceType, wq::WorkQueue},
    decode::wqe::Queue,
    doorbell::{RCV_DBR, SND_DBR},
    layout::{Layout, load, prefix},
    wqe::{CtrlSeg, NextSeg, WQE_BB, WQE_BB_SHIFT, WQE_DS},
};
use std::{collections::BTreeMap, sync::Arc};

/// log2 of the unit of page sizes in contexts.
const LOG_PAGE: u32 = 12;
/// log2 of the number of page offset units per page.
const LOG_OFFSETS: u32 = 6;
/// `wq_type`: a linked list of entries.
const LINKED: [u8; 2] = [0, 2];
/// `rq_type`: the queue pair has its own receive queue.
const REGULAR: u8 = 0;
/// Maximum number of requests read from one ring at a time.
const MOST: u16 = 1 << 15;

/// Memory that is contiguous from the queue's point of view.
#[derive(Clone, Debug, Default)]
struct Pages {
    list: Arc<[u64]>,
    log_size: u32,
    /// Offset of the queue in the first page.
    offset: u64,
}

impl Pages {
    fn at(&self, offset: u64) -> Option<u64> {
        let at = self.offset.checked_add(offset)?;
        let page = self.list.get(usize::try_from(at >> self.log_size).ok()?)?;
        Some(page + (at & ((1 << self.log_size) - 1)))
    }

    /// Reads within one page: posted requests are naturally aligned.
    fn read(&self, memory: &dyn Memory, offset: u64, into: &mut [u8]) -> bool {
        self.at(offset).is_some_and(|at| memory.read(at, into))
    }
}

#[derive(Debug)]
struct Ring {
    queue: Queue,
    pages: Pages,
    log_stride: u32,
    log_count: u32,
    /// Address of its counter.
    counter: u64,
    /// Position up to which the ring has been read.
    seen: u16,
    /// Next entry of a linked list.
    head: Option<u16>,
}

/// The kind of a ring, part of its key: objects of different kinds may have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Send,
    QpReceive,
    Rq,
    Srq,
    XrcSrq,
    Rmp,
}

/// All rings of a function.
#[derive(Default)]
pub struct Rings {
    rings: BTreeMap<(Kind, u32), Ring>,
    umems: BTreeMap<u32, Pages>,
}

/// The page list after a fixed part.
fn list(input: &[u8], from: usize) -> Arc<[u64]> {
    let entries = input.get(from..).unwrap_or_default().chunks_exact(8);
    entries.map(|entry| u64::from_be_bytes(prefix(entry)) & !0xfff).collect()
}

impl Rings {
    /// Handles an executed command.
    pub fn command(&mut self, input: &[u8], output: &[u8]) {
        let number = load(&prefix::<16>(output), 8, 23, 0) as u32;
        let named = load(&prefix::<16>(input), 8, 23, 0) as u32;
        match CmdIn::read(input).opcode() {
            Opcode::CreateQp => self.qp(input, output),
            Opcode::CreateSq => {
                let queue = Queue::Send(ServiceType::RawEth);
                self.work_queue((Kind::Send, number), queue, &CreateSqIn::read(input).ctx().wq(), input);
            }
            Opcode::CreateRq => {
                let context = CreateRqIn::read(input).ctx();
                // A queue on a memory pool has no ring of its own.
                if context.mem_rq_type() == 0 {
                    self.work_queue((Kind::Rq, number), Queue::Receive, &context.wq(), input);
                }
            }
            Opcode::CreateRmp => {
                let wq = CreateRmpIn::read(input).ctx().wq();
                self.work_queue((Kind::Rmp, number), Queue::Receive, &wq, input);
            }
            Opcode::CreateSrq => {
                let c = CreateSrqIn::read(input).srq_context_entry();
                let (log_count, log_stride) = (c.log_srq_size().into(), 4 + u32::from(c.log_rq_stride()));
                let log_page = u32::from(c.log_page_size()) + LOG_PAGE;
                self.shared(
                    (Kind::Srq, number),
                    input,
                    (log_count, log_stride),
                    log_page,
                    c.page_offset(),
                    c.dbr_addr(),
                );
            }
            Opcode::CreateXrcSrq => {
                let c = CreateXrcSrqIn::read(input).xrc_srq_context_entry();
                let (log_count, log_stride) = (c.log_xrc_srq_size().into(), 4 + u32::from(c.log_rq_stride()));
                let record = u64::from(c.db_record_addr_h()) << 32 | u64::from(c.db_record_addr_l()) << 2;
                let log_page = u32::from(c.log_page_size()) + LOG_PAGE;
                self.shared(
                    (Kind::XrcSrq, number),
                    input,
                    (log_count, log_stride),
                    log_page,
                    c.page_offset(),
                    record,
                );
            }
            Opcode::CreateUmem => {
                let umem = CreateUmemIn::read(input).umem();
                let log_size = u32::from(umem.log_page_size()) + LOG_PAGE;
                let pages = Pages {
                    list: list(input, CreateUmemIn::SIZE),
                    log_size: log_size.min(60),
                    offset: umem.page_offset().into(),
                };
                self.umems.insert(number, pages);
            }
            // The queue is reset.
            Opcode::Qp2Rst => {
                for kind in [Kind::Send, Kind::QpReceive] {
                    if let Some(ring) = self.rings.get_mut(&(kind, named)) {
                        ring.seen = 0;
                    }
                }
            }
            Opcode::DestroyQp => {
                self.rings.remove(&(Kind::Send, named));
                self.rings.remove(&(Kind::QpReceive, named));
            }
            Opcode::DestroySq => drop(self.rings.remove(&(Kind::Send, named))),
            Opcode::DestroyRq => drop(self.rings.remove(&(Kind::Rq, named))),
            Opcode::DestroyRmp => drop(self.rings.remove(&(Kind::Rmp, named))),
            Opcode::DestroySrq => drop(self.rings.remove(&(Kind::Srq, named))),
            Opcode::DestroyXrcSrq => drop(self.rings.remove(&(Kind::XrcSrq, named))),
            Opcode::DestroyUmem => drop(self.umems.remove(&named)),
            Opcode::TeardownHca => *self = Self::default(),
            _ => {}
        }
    }

    fn qp(&mut self, input: &[u8], output: &[u8]) {
        let create = CreateQpIn::read(input);
        let (number, c) = (CreateQpOut::read(output).qpn(), create.qpc());
        let log_size = u32::from(c.log_page_size()) + LOG_PAGE;
        let mut pages = Pages {
            list: list(input, CreateQpIn::SIZE),
            log_size: log_size.min(60),
            offset: u64::from(c.page_offset()) << (log_size - LOG_OFFSETS).min(60),
        };
        if create.wq_umem_valid() {
            pages = self.umems.get(&create.wq_umem_id()).cloned().unwrap_or_default();
            pages.offset = pages.offset.wrapping_add(create.wq_umem_offset());
        }
        let record = match c.dbr_umem_valid() {
            true => self.umems.get(&c.dbr_umem_id()).and_then(|umem| umem.at(c.dbr_addr())).unwrap_or(0),
            false => c.dbr_addr(),
        };
        let mut behind = 0;
        if c.rq_type() == REGULAR {
            let (log_count, log_stride) = (c.log_rq_size().into(), 4 + u32::from(c.log_rq_stride()));
            behind = 1u64 << (log_count + log_stride);
            let ring = Ring {
                queue: Queue::Receive,
                pages: pages.clone(),
                log_stride,
                log_count,
                counter: record.wrapping_add(4 * RCV_DBR as u64),
                seen: 0,
                head: None,
            };
            self.rings.insert((Kind::QpReceive, number), ring);
        }
        if !c.no_sq() {
            pages.offset = pages.offset.wrapping_add(behind);
            let ring = Ring {
                queue: Queue::Send(c.st()),
                pages,
                log_stride: WQE_BB_SHIFT,
                log_count: c.log_sq_size().into(),
                counter: record.wrapping_add(4 * SND_DBR as u64),
                seen: 0,
                head: None,
            };
            self.rings.insert((Kind::Send, number), ring);
        }
    }

    fn work_queue(&mut self, key: (Kind, u32), queue: Queue, wq: &WorkQueue, input: &[u8]) {
        let log_size = u32::from(wq.log_wq_pg_sz()) + LOG_PAGE;
        let linked = LINKED.contains(&wq.wq_type());
        let index = if matches!(queue, Queue::Send(_)) { SND_DBR } else { RCV_DBR };
        let ring = Ring {
            queue: if linked { Queue::Shared } else { queue },
            pages: Pages {
                list: list(input, CreateSqIn::SIZE),
                log_size,
                offset: u64::from(wq.page_offset()) << (log_size - LOG_OFFSETS),
            },
            log_stride: wq.log_wq_stride().into(),
            log_count: wq.log_wq_sz().into(),
            counter: wq.dbr_addr().wrapping_add(4 * index as u64),
            seen: 0,
            head: linked.then_some(0),
        };
        self.rings.insert(key, ring);
    }

    fn shared(
        &mut self,
        key: (Kind, u32),
        input: &[u8],
        (log_count, log_stride): (u32, u32),
        log_page: u32,
        page_offset: u8,
        counter: u64,
    ) {
        let pages = Pages {
            list: list(input, CreateSrqIn::SIZE),
            log_size: log_page.min(60),
            offset: u64::from(page_offset) << (log_page - LOG_OFFSETS).min(60),
        };
        let ring =
            Ring { queue: Queue::Shared, pages, log_stride, log_count, counter, seen: 0, head: Some(0) };
        self.rings.insert(key, ring);
    }
}

/// Number of new requests in a ring. `None` if the counter cannot be read or is implausible; in the latter case
/// the requests are skipped.
fn fresh(ring: &mut Ring, memory: &dyn Memory) -> Option<u16> {
    let mut word = [0; 4];
    if !memory.read(ring.counter, &mut word) {
        return None;
    }
    let counter = u32::from_be_bytes(word) as u16;
    let count = counter.wrapping_sub(ring.seen);
    if count > MOST || u32::from(count) > 1 << ring.log_count.min(16) {
        ring.seen = counter;
        return None;
    }
    Some(count)
}

/// The requests posted to receive queues since the last call.
pub fn posted(rings: &mut Rings, memory: &dyn Memory) -> Vec<Event> {
    let mut found = Vec::new();
    for ((kind, number), ring) in &mut rings.rings {
        if *kind == Kind::Send {
            continue;
        }
        let Some(count) = fresh(ring, memory) else { continue };
        for _ in 0..count {
            let index = ring.head.unwrap_or(ring.seen);
            let slot = u64::from(index) & ((1 << ring.log_count.min(16)) - 1);
            let mut bytes = vec![0; 1 << ring.log_stride.min(12)];
            if !ring.pages.read(memory, slot << ring.log_stride.min(12), &mut bytes) {
                break;
            }
            if ring.head.is_some() {
                ring.head = Some(NextSeg::read(&bytes).next_wqe_index());
            }
            ring.seen = ring.seen.wrapping_add(1);
            found.push(Event::Request { queue: ring.queue, number: *number, index: index.into(), bytes });
        }
    }
    found
}

/// The requests posted to send queue `number`, called when its doorbell rings.
pub fn sent(rings: &mut Rings, memory: &dyn Memory, number: u32) -> Vec<Event> {
    let Some(ring) = rings.rings.get_mut(&(Kind::Send, number)) else { return Vec::new() };
    let Some(mut left) = fresh(ring, memory) else { return Vec::new() };
    let mut found = Vec::new();
    while left > 0 {
        let block = |index: u16| (u64::from(index) & ((1 << ring.log_count.min(16)) - 1)) << WQE_BB_SHIFT;
        let index = ring.seen;
        let mut bytes = vec![0; WQE_BB];
        if !ring.pages.read(memory, block(index), &mut bytes) {
            break;
        }
        let len = usize::from(CtrlSeg::read(&bytes).ds().max(1)) * WQE_DS;
        let blocks = (len.div_ceil(WQE_BB) as u16).min(left);
        for next in 1..blocks {
            let mut more = [0; WQE_BB];
            ring.pages.read(memory, block(index.wrapping_add(next)), &mut more);
            bytes.extend_from_slice(&more);
        }
        bytes.truncate(len);
        ring.seen = index.wrapping_add(blocks);
        left -= blocks;
        found.push(Event::Request { queue: ring.queue, number, index: index.into(), bytes });
    }
    found
}
