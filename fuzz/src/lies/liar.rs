//! The lying device: a function of the model behind a liar.

use super::{
    memory::Memory,
    told::{Kind, Lie, Told},
};
use driver::transport::{
    Access, Bar, Combining, DmaBlock, Interrupt, Iova, Registers, Scope, Transport, Width, forward,
};
use hwspec::{
    cmd::Opcode,
    cqe::{Cqe64, CqeFormat, CqeOpcode, CqeSyndrome},
    doorbell::{EQ_ARM, EQ_CI, UAR_SIZE},
    eqe::{Eqe, EventType, PagesEvent},
    handle::Qpn,
};
use std::{
    io,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tests::bed::Chaos;

/// Registers of the initialization segment.
const QUEUE_HIGH: u32 = 0x10;
const QUEUE_LOW: u32 = 0x14;
const DOORBELL: u32 = 0x18;
/// Offsets in a command queue entry: first input mailbox, inline output, first output mailbox, last word.
const INPUT: u64 = 0x08;
const INPUT_INLINE: u64 = 0x10;
const OUTPUT_INLINE: u64 = 0x20;
const OUTPUT: u64 = 0x30;
const LAST: u64 = 0x38;
/// Offset of the link to the next mailbox.
const NEXT: u64 = 0x230;
/// Offsets in the first mailbox of `CREATE_CQ` and `CREATE_EQ`: ring and record in the context, and the first page.
const RING: u64 = 0x08;
const RECORD: u64 = 0x38;
const FIRST_PAGE: u64 = 0x100;
/// Bytes of an entry of either queue.
const ENTRY: u64 = 64;
/// Maximum number of entries that one lie writes: more than a small ring holds.
const BURST: u64 = 80;
/// Maximum number of entries searched for one that the driver has taken.
const LOOKS: usize = 128;

/// A queue that the device writes.
struct Ring {
    base: u64,
    log: u32,
    from: Position,
}

/// How the device knows which entries the driver has taken.
#[derive(Clone, Copy)]
enum Position {
    /// By the doorbell record of a completion queue, at this address.
    Record(u64),
    /// By the last consumer index that the driver reported for event queue `number` to doorbell page `uar`.
    Reported { number: u32, uar: u32, taken: u32 },
}

/// The device's knowledge of the driver's memory.
pub struct State {
    told: Told,
    memory: Memory,
    /// Address of the command queue.
    queue: Iova,
    completions: Vec<Ring>,
    events: Vec<Ring>,
    /// Numbers of the known objects.
    numbers: Vec<u32>,
}

fn pick<T>(all: &[T], which: u64) -> Option<&T> {
    all.get(which as usize % all.len().max(1))
}

fn random(of: u64) -> Chaos {
    Chaos { seed: of.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, ..Chaos::default() }
}

fn bytes(random: &mut Chaos) -> [u8; ENTRY as usize] {
    let mut all = [0; ENTRY as usize];
    all.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random.draw().to_be_bytes()));
    all
}

impl State {
    fn read(&self, at: u64) -> Option<u64> {
        self.memory.read(at)
    }

    fn write(&self, at: u64, value: u64) {
        self.memory.write(at, value);
    }

    /// Writes an entry where the driver will look next, with the owner bit that it expects.
    fn append(&self, ring: &Ring, mut entry: [u8; ENTRY as usize]) {
        let (taken, unused) = match ring.from {
            // A CQE that was never written has the opcode 0xf.
            Position::Record(at) => (self.read(at).unwrap_or(0) >> 32, 0xf0),
            Position::Reported { taken, .. } => (u64::from(taken), 0x100),
        };
        let place = |index: u64| ring.base + (index & ((1 << ring.log) - 1)) * ENTRY;
        let written = |index: u64| {
            let last = self.read(place(index) + ENTRY - 8).unwrap_or(0) & 0xff;
            last & 1 == index >> ring.log & 1 && last & 0xf0 != unused
        };
        // Limits the search: in a large queue it would take longer than everything that the driver does.
        let index =
            (taken..taken + (1 << ring.log)).take(LOOKS).find(|index| !written(*index)).unwrap_or(taken);
        let last = &mut entry[ENTRY as usize - 1];
        *last = *last & !1 | (index >> ring.log & 1) as u8;
        for (word, part) in (0..).zip(entry.chunks_exact(8)) {
            self.write(place(index) + 8 * word, u64::from_be_bytes(hwspec::layout::prefix(part)));
        }
    }

    /// Writes completions: arbitrary bytes, or an existing opcode and queue.
    fn complete(&self, lie: &Lie) {
        let Some(ring) = pick(&self.completions, u64::from(lie.shape >> 5)) else { return };
        let value = lie.value;
        for n in 0..u64::from(lie.count) % BURST + 1 {
            let mut random = random(value ^ n);
            let mut cqe = Cqe64::from_bytes(bytes(&mut random));
            if lie.shape & 1 == 0 {
                let number = |shift| pick(&self.numbers, value >> shift).copied().unwrap_or(0);
                cqe.set()
                    .opcode(CqeOpcode::from_raw((value & 0xf) as u8))
                    .cqe_format(CqeFormat::from_raw((value >> 4 & 3) as u8))
                    .qpn(Qpn(if value >> 6 & 3 == 3 { 0 } else { number(8) }))
                    .srqn_uidx(number(16))
                    .sop((value >> 24 & 0x1f) as u8)
                    .wqe_counter(((value >> 32 & 0x3f) + n) as u16);
                if lie.shape & 2 == 0 {
                    cqe.set().byte_cnt((value >> 40 & 0x7f) as u32);
                }
                let mut error = cqe.as_error();
                error.set().syndrome(CqeSyndrome::from_raw((value >> 48 & 0x2f) as u8));
                if matches!(cqe.opcode(), CqeOpcode::ReqErr | CqeOpcode::RespErr) {
                    cqe = Cqe64::from_bytes(*error.as_bytes());
                }
            }
            self.append(ring, *cqe.as_bytes());
        }
    }

    /// Writes events: any type about any object, or an existing type and object.
    fn raise(&self, lie: &Lie) {
        let Some(ring) = pick(&self.events, u64::from(lie.shape >> 5)) else { return };
        for n in 0..u64::from(lie.count) % BURST + 1 {
            let mut random = random(lie.value ^ n);
            let mut eqe = Eqe::from_bytes(bytes(&mut random));
            if lie.shape & 1 == 0 {
                let number = pick(&self.numbers, (lie.value >> 8) + n).copied().unwrap_or(0);
                let mut data = eqe.event_data();
                for at in [0, 0x18] {
                    data[at..at + 4].copy_from_slice(&number.to_be_bytes());
                }
                eqe.set().event_type(EventType::from_raw((lie.value & 0x1f) as u8)).event_data(data);
            }
            self.append(ring, *eqe.as_bytes());
        }
    }

    /// Writes page requests of any function, positive or negative.
    fn ask_pages(&self, lie: &Lie) {
        let Some(ring) = self.events.first() else { return };
        for n in 0..u64::from(lie.count) % BURST + 1 {
            let pages = match lie.shape & 7 {
                0 => lie.value as i32,
                1 => 10_000,
                2 => i32::MIN,
                3 => -50_000,
                4 => -((lie.value & 0x3ff) as i32),
                _ => (lie.value & 0x3ff) as i32,
            };
            let mut asked = PagesEvent::zeroed();
            let function = (lie.value >> 32) as u16 & if lie.shape & 8 == 0 { 0 } else { 0xffff };
            asked.set().function_id(function).num_pages((pages as u32).wrapping_add(n as u32));
            asked.set().ec_function(lie.shape & 16 != 0);
            self.append(ring, *Eqe::new(EventType::PageRequest, asked).as_bytes());
        }
    }

    /// Writes the entries that are due into the queues.
    fn speak(&mut self) {
        if let Some(lie) = self.told.due(Kind::Completion, !self.completions.is_empty()) {
            self.complete(&lie);
        }
        if let Some(lie) = self.told.due(Kind::Event, !self.events.is_empty()) {
            self.raise(&lie);
        }
        if let Some(lie) = self.told.due(Kind::Pages, !self.events.is_empty()) {
            self.ask_pages(&lie);
        }
    }

    /// Returns the queue that the command at `entry` creates, if it creates one.
    fn asked(&self, entry: u64) -> Option<(Opcode, Ring)> {
        let op = Opcode::from_raw((self.read(entry + INPUT_INLINE)? >> 48) as u16);
        let mailbox = self.read(entry + INPUT)? & !0x1ff;
        let ring = self.read(mailbox + RING)? as u32;
        let from = match op {
            Opcode::CreateCq => Position::Record(self.read(mailbox + RECORD)?),
            Opcode::CreateEq => Position::Reported { number: 0, uar: ring & 0xff_ffff, taken: 0 },
            _ => return None,
        };
        Some((op, Ring { base: self.read(mailbox + FIRST_PAGE)?, log: ring >> 24 & 0x1f, from }))
    }

    /// Learns from an executed command which objects exist.
    fn learn(&mut self, entry: u64, asked: Option<(Opcode, Ring)>) {
        let Some(status) = self.read(entry + OUTPUT_INLINE) else { return };
        let number = self.read(entry + OUTPUT_INLINE + 8).unwrap_or(0) >> 32;
        if status >> 56 != 0 {
            return;
        }
        if number != 0 && !self.numbers.contains(&(number as u32)) {
            self.numbers.push(number as u32 & 0xff_ffff);
        }
        match asked {
            Some((Opcode::CreateCq, ring)) => self.completions.push(ring),
            Some((_, ring)) => {
                let from = match ring.from {
                    Position::Reported { uar, .. } => {
                        Position::Reported { number: number as u32 & 0xff, uar, taken: 0 }
                    }
                    record => record,
                };
                self.events.push(Ring { from, ..ring });
            }
            None => {}
        }
    }

    /// Falsifies the answer to the command at `entry`.
    fn answer(&self, entry: u64, lie: &Lie) {
        let change = |at: u64, mask: u64, value: u64| {
            self.write(at, self.read(at).unwrap_or(0) & !mask | value & mask);
        };
        let status = (entry + OUTPUT_INLINE, 0xff << 56);
        match lie.shape & 7 {
            1 => change(status.0, status.1, lie.value),
            2 => change(entry + LAST, 0xfe, lie.value),
            3 => change(entry + LAST, 0xff << 24, lie.value),
            4 => {
                (0..ENTRY / 8).for_each(|word| self.write(entry + 8 * word, random(lie.value ^ word).draw()))
            }
            // Status OK; one or all of the other words become arbitrary.
            shape => {
                let mut random = random(lie.value);
                let mut places = vec![entry + OUTPUT_INLINE + 8];
                let mut mailbox = self.read(entry + OUTPUT).unwrap_or(0) & !0x1ff;
                while let (Some(next), true) = (self.read(mailbox + NEXT), places.len() < 600) {
                    places.extend((0..64).map(|word| mailbox + 8 * word));
                    mailbox = next & !0x3ff;
                }
                change(status.0, status.1, 0);
                // Marks the command done, in case it was never executed.
                change(entry + LAST, 0xff, 0);
                // With this shape bit, MANAGE_PAGES returns addresses of the driver's own memory.
                let mut known = self.memory.places().cycle().skip((lie.value >> 32 & 0x3f) as usize);
                let chosen = lie.value as usize % places.len();
                for (n, place) in places.into_iter().enumerate() {
                    if shape & 1 == 0 || n == chosen {
                        let value = known.next().filter(|_| lie.shape & 32 != 0);
                        self.write(place, value.unwrap_or_else(|| random.draw()));
                    }
                }
            }
        }
    }
}

/// The lying device of this module: a transport around a function of the model.
pub struct Liar {
    inner: Arc<dyn Transport>,
    state: Arc<Mutex<State>>,
    at_once: bool,
}

impl Liar {
    /// Wraps `inner`. `at_once` is the answer to [`Transport::acts_at_once`]: whether the device never returns to work it left undone.
    pub fn new(inner: Arc<dyn Transport>, told: Told, at_once: bool) -> Self {
        let state = State {
            told,
            memory: Memory::default(),
            queue: 0,
            completions: Vec::new(),
            events: Vec::new(),
            numbers: Vec::new(),
        };
        Self { inner, state: Arc::new(Mutex::new(state)), at_once }
    }

    /// Returns the number of lies told, by kind.
    pub fn told(&self) -> [u64; Kind::COUNT] {
        locked(&self.state).told.counts
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

struct LyingBar {
    inner: Bar,
    state: Arc<Mutex<State>>,
}

impl LyingBar {
    /// Executes the command of `slot`, or lies about it.
    fn command(&self, slot: u32) {
        let (entry, lie, asked) = {
            let mut state = locked(&self.state);
            let entry = state.queue + u64::from(slot) * ENTRY;
            (entry, state.told.due(Kind::Answer, true), state.asked(entry))
        };
        // These shapes do not execute the command; some answer it all the same.
        if !lie.as_ref().is_some_and(|lie| matches!(lie.shape & 15, 0 | 8 | 15)) {
            self.inner.write32(DOORBELL, 1 << slot);
        }
        let mut state = locked(&self.state);
        match lie {
            Some(lie) if lie.shape & 7 != 0 => {
                state.answer(entry, &lie);
                state.learn(entry, asked);
            }
            Some(_) => {}
            None => state.learn(entry, asked),
        }
        state.speak();
    }
}

impl Registers for LyingBar {
    fn read32(&self, offset: u32) -> u32 {
        let lie = locked(&self.state).told.due(Kind::Register, true);
        match lie {
            None => self.inner.read32(offset),
            Some(lie) => match lie.shape & 3 {
                0 => u32::MAX,
                1 => self.inner.read32(offset) ^ 1 << (lie.value & 31),
                _ => lie.value as u32,
            },
        }
    }

    fn write32(&self, offset: u32, value: u32) {
        {
            let mut state = locked(&self.state);
            if state.told.due(Kind::Lost, true).is_some() {
                return;
            }
            match offset {
                QUEUE_HIGH => state.queue = u64::from(value) << 32 | state.queue & 0xffff_ffff,
                QUEUE_LOW => state.queue = state.queue >> 32 << 32 | u64::from(value & !0xfff),
                _ if [EQ_ARM, EQ_CI].contains(&(offset as usize % UAR_SIZE)) => {
                    for ring in &mut state.events {
                        if let Position::Reported { number, uar, taken } = &mut ring.from {
                            if (*uar as usize, *number) == (offset as usize / UAR_SIZE, value >> 24) {
                                *taken = value & 0xff_ffff;
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        match offset {
            DOORBELL => {
                (0..32).filter(|slot| value >> slot & 1 != 0).for_each(|slot| self.command(slot));
            }
            _ => self.inner.write32(offset, value),
        }
    }

    fn write64(&self, offset: u32, value: u64) {
        if locked(&self.state).told.due(Kind::Lost, true).is_none() {
            self.inner.doorbell(offset, value);
        }
        locked(&self.state).speak();
    }
}

#[allow(unsafe_code)] // passes on the caller's promise
#[deny(clippy::missing_trait_methods)]
// SAFETY: memory is that of the transport within; lies are about registers, configuration and interrupts.
unsafe impl Transport for Liar {
    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32> {
        let lie = locked(&self.state).told.due(Kind::Config, true);
        match lie {
            Some(lie) => Ok(lie.value as u32),
            None => self.inner.config_read(offset, width),
        }
    }
    fn bar(&self, index: u8) -> io::Result<Bar> {
        Ok(Bar::Trapped(Arc::new(LyingBar { inner: self.inner.bar(index)?, state: self.state.clone() })))
    }
    /// Returns `None`, because doorbells in such pages would bypass the lies about registers.
    fn combining(&self) -> Option<Arc<dyn Combining>> {
        None
    }
    unsafe fn dma_map_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
        // SAFETY: the caller's guarantee is passed on unchanged.
        unsafe { self.inner.dma_map_paged(base, len) }
    }
    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        // SAFETY: the caller upholds the contract of `dma_map`.
        unsafe { self.inner.dma_map(base, len, access) }
    }
    fn dma_alloc(&self, len: usize, _: Scope) -> io::Result<DmaBlock> {
        let mut state = locked(&self.state);
        let ptr = state.memory.alloc(len)?;
        let len = state.memory.len(ptr.as_ptr() as u64).unwrap_or(len);
        // SAFETY: the block stays until `dma_free`, which ends the mapping first.
        let iova = unsafe { self.inner.dma_map(ptr.as_ptr(), len, Access::BOTH)? };
        assert_eq!(iova, ptr.as_ptr() as u64, "the machine's bus has its addresses");
        Ok(DmaBlock { ptr, iova, len })
    }
    fn dma_free(&self, block: DmaBlock) {
        let mut state = locked(&self.state);
        let len = state.memory.len(block.iova).expect("freed once");
        self.inner.dma_unmap(block.iova, len).expect("what was mapped");
        state.memory.free(block.iova);
        state.completions.retain(|ring| ring.base != block.iova);
        state.events.retain(|ring| ring.base != block.iova);
    }
    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        let there = locked(&self.state).memory.len(iova).filter(|there| len <= *there);
        let ptr = there.and_then(|_| NonNull::new(iova as *mut u8)).ok_or(io::ErrorKind::NotFound)?;
        Ok(DmaBlock { ptr, iova, len })
    }
    fn dma_detach(&self, _: DmaBlock) {}
    fn idle(&self) {
        self.inner.idle();
        locked(&self.state).speak();
    }
    fn empty_poll(&self) {
        self.idle();
    }
    fn nap(&self, _: Duration) {
        self.idle();
    }
    fn acts_at_once(&self) -> bool {
        self.at_once
    }
    forward! { self.inner:
        fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()>;
        fn page_size(&self) -> usize;
        fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()>;
        fn pages_on_demand(&self) -> bool;
        fn dma_unmap_paged(&self, iova: Iova, len: usize) -> io::Result<()>;
        fn populate(&self, base: *mut u8, len: usize, write: bool) -> io::Result<()>;
        fn interrupt(&self, vector: u16) -> io::Result<Interrupt>;
        fn shares_vectors(&self) -> bool;
        fn reset(&self) -> io::Result<()>;
        fn shared(&self) -> io::Result<DmaBlock>;
        fn opener(&self) -> u32;
        fn name(&self) -> Option<String>;
        fn alive(&self, opener: u32) -> bool;
        fn noticed(&self);
        fn is_gone(&self) -> bool;
        fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]>;
    }
}
