//! A scripted device in memory, for tests: it answers commands, or misbehaves as requested.

mod doorbells;
mod firmware;

pub use firmware::NicVport;

use super::*;
use crate::dma::PAGE_SIZE;
use hwspec::{
    cmd::{
        Opcode, Status,
        eq::CreateEqIn,
        queue::{CmdMailbox, CmdQueueEntry},
    },
    context::caps::HcaCap,
    eqe::{Eqe, EventType, PagesEvent},
    layout::Layout,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::*},
    },
};

#[repr(align(4096))]
struct Page([AtomicU64; PAGE_SIZE / 8]);

/// A misbehaviour of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// The command never completes.
    Silent(Opcode),
    /// The completion has a wrong token.
    BadToken(Opcode),
    /// The command is refused.
    Refuse(Opcode, Status, u32),
    /// The command is not delivered.
    Undelivered(Opcode, u8),
}

#[derive(Default)]
pub struct State {
    blocks: BTreeMap<Iova, Arc<Vec<Page>>>,
    next_iova: Iova,
    registers: HashMap<u32, u32>,
    config: HashMap<u16, u32>,
    pub log: Vec<Opcode>,
    pub inputs: Vec<(Opcode, Vec<u8>)>,
    pub doorbells: Vec<(u32, u64)>,
    pub lie: Option<Lie>,
    pub pages: Vec<u64>,
    /// Function, `op_mod` and number of pages of every `MANAGE_PAGES` command.
    pub managed: Vec<(u16, u16, usize)>,
    pub resets: u32,
    /// Address of allocated device memory, if the device has any.
    pub memory: Option<u64>,
    /// The device has write-combining doorbell pages.
    pub combines: bool,
    /// None of these pages can be mapped.
    pub unmapped: bool,
    /// A word of memory, to be sampled at each doorbell.
    pub watched: Option<Iova>,
    pub seen: Vec<u64>,
    /// Registers read as all ones, writes have no effect.
    pub gone: bool,
    pub dead: HashSet<u32>,
    pub busy_vectors: HashSet<u16>,
    /// Commands are answered before the doorbell write returns, or never.
    pub acts_at_once: bool,
    /// Vectors may be connected more than once.
    pub shares_vectors: bool,
    pub mapped: Vec<(Iova, usize)>,
    gids: HashMap<u16, [u8; 0x20]>,
    /// General capabilities.
    pub general: HcaCap,
    pub vport: NicVport,
    pub name: Option<String>,
    numbers: u32,
    /// Commands that are answered only once the device has been given this many more pages for these functions.
    pub hungry: Vec<(Opcode, Vec<(u16, i32)>)>,
    /// A command that waits for pages, and the number of pages required.
    held: Option<(u32, usize)>,
    /// Number of reclaim requests answered with zero pages.
    pub stingy: u32,
    /// Each `MANAGE_PAGES` is answered with a request for one more page.
    pub insatiable: bool,
    /// The driver cannot allocate memory.
    pub exhausted: bool,
    /// Number of events written to each queue, by its address.
    raised: HashMap<u64, u64>,
    /// Added to IOVAs of user memory, so that they differ from virtual addresses.
    pub skew: u64,
}

/// The device; its openers are [`Fake`]s.
pub struct Chip {
    state: Mutex<State>,
    shared: Arc<Vec<Page>>,
}

pub struct Fake {
    pub chip: Arc<Chip>,
    opener: u32,
}

fn pages(count: usize) -> Arc<Vec<Page>> {
    Arc::new((0..count).map(|_| Page([const { AtomicU64::new(0) }; PAGE_SIZE / 8])).collect())
}

fn block(pages: &Arc<Vec<Page>>, iova: Iova) -> DmaBlock {
    let ptr = NonNull::from(&pages[0]).cast();
    DmaBlock { ptr, iova, len: pages.len() * PAGE_SIZE }
}

pub const MAC: [u8; 6] = [0x02, 0x1b, 0x56, 0, 0, 3];

impl Chip {
    pub fn new() -> Arc<Self> {
        let mut state = State { next_iova: 0x10_0000_0000, general: firmware::general(), ..State::default() };
        state.config.insert(0, 0x1018_15b3);
        state.config.insert(0x34, 0x9c);
        state.config.insert(0x9c, 0x003f_0011);
        state.registers.insert(0x00, 26 << 16 | 16);
        state.registers.insert(0x04, 5 << 16 | 7);
        state.registers.insert(0x14, 5 << 4 | 6);
        Arc::new(Self { state: Mutex::new(state), shared: pages(16) })
    }

    pub fn opener(self: &Arc<Self>, opener: u32) -> Arc<Fake> {
        Arc::new(Fake { chip: self.clone(), opener })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn config(&self, offset: u16, value: u32) {
        self.state().config.insert(offset, value);
    }

    pub fn blocks(&self) -> usize {
        self.state().blocks.len()
    }

    /// The last input of `op`.
    pub fn last<T: Layout>(&self, op: Opcode) -> T {
        T::read(&self.state().inputs.iter().rev().find(|(o, _)| *o == op).expect("never sent").1)
    }
}

impl State {
    fn word(&self, at: Iova) -> &AtomicU64 {
        let (base, pages) = self.blocks.range(..=at).next_back().expect("DMA outside of any block");
        let offset = (at - base) as usize;
        &pages[offset / PAGE_SIZE].0[offset % PAGE_SIZE / 8]
    }

    pub fn read(&self, at: Iova, out: &mut [u8]) {
        for (word, bytes) in out.chunks_mut(8).enumerate() {
            bytes
                .copy_from_slice(&self.word(at + word as u64 * 8).load(Acquire).to_ne_bytes()[..bytes.len()]);
        }
    }

    pub fn write(&self, at: Iova, data: &[u8]) {
        for (word, bytes) in data.chunks(8).enumerate() {
            let mut whole = self.word(at + word as u64 * 8).load(Relaxed).to_ne_bytes();
            whole[..bytes.len()].copy_from_slice(bytes);
            self.word(at + word as u64 * 8).store(u64::from_ne_bytes(whole), Release);
        }
    }

    /// Writes an event: a completion event to the most recent queue, a page request to the queue for these, any other
    /// to the function's queue.
    pub fn raise(&mut self, mut eqe: Eqe) {
        let mut queues = self.inputs.iter().filter(|(op, _)| *op == Opcode::CreateEq);
        let queue = match eqe.event_type() {
            EventType::Comp => queues.next_back(),
            EventType::PageRequest => queues.nth(1),
            _ => queues.next(),
        };
        let input = &queue.expect("no event queue").1;
        let ring = u64::from_be_bytes(hwspec::layout::prefix(&input[0x110..]));
        let entries = 1u64 << CreateEqIn::read(input).eq_context_entry().log_eq_size();
        let raised = self.raised.entry(ring).or_default();
        let index = *raised;
        *raised += 1;
        eqe.set().owner(index / entries % 2 == 1);
        self.write(ring + index % entries * 64, eqe.as_bytes());
    }

    fn chain(&self, mut at: u64, len: usize, token: u8) -> Vec<u64> {
        let mut boxes = Vec::new();
        for number in 0..len.div_ceil(0x200) {
            let mut bytes = [0; CmdMailbox::SIZE];
            self.read(at, &mut bytes);
            let mailbox = CmdMailbox::from_bytes(bytes);
            assert_eq!((mailbox.block_number(), mailbox.token()), (number as u32, token));
            boxes.push(at);
            at =
                u64::from(mailbox.next_pointer_63_32()) << 32 | u64::from(mailbox.next_pointer_31_10()) << 10;
        }
        assert_eq!(at, 0, "the chain ends with its data");
        boxes
    }

    fn command(&mut self, slot: u32) {
        let queue = u64::from(self.registers[&0x10]) << 32 | u64::from(self.registers[&0x14] & !0xfff);
        let at = queue + u64::from(slot) * 64;
        let mut bytes = [0; CmdQueueEntry::SIZE];
        self.read(at, &mut bytes);
        let mut entry = CmdQueueEntry::from_bytes(bytes);
        assert!(entry.ownership() && entry.kind() == 7);
        let pointer = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low) << 9;
        let (in_len, out_len) = (entry.input_length() as usize, entry.output_length() as usize);
        let at_in = pointer(entry.input_mailbox_pointer_63_32(), entry.input_mailbox_pointer_31_9());
        let at_out = pointer(entry.output_mailbox_pointer_63_32(), entry.output_mailbox_pointer_31_9());
        let mut input = entry.command_input_inline_data()[..in_len.min(16)].to_vec();
        for (number, mailbox) in
            self.chain(at_in, in_len.saturating_sub(16), entry.token()).iter().enumerate()
        {
            let mut part = vec![0; (in_len - 16 - number * 0x200).min(0x200)];
            self.read(*mailbox, &mut part);
            input.extend(part);
        }
        let op = Opcode::from_raw(u16::from_be_bytes([input[0], input[1]]));
        self.log.push(op);
        self.inputs.push((op, input.clone()));
        if self.lie == Some(Lie::Silent(op)) {
            return;
        }
        if let Some(at) = self.hungry.iter().position(|(hungry, _)| *hungry == op) {
            let (_, requests) = self.hungry.swap_remove(at);
            let more: i32 = requests.iter().map(|(_, pages)| pages).sum();
            self.held = Some((slot, (self.pages.len() as i32 + more) as usize));
            for (function, pages) in requests {
                self.ask_pages(function, pages);
            }
            return;
        }
        let mut output = vec![0; out_len];
        match self.lie {
            Some(Lie::Refuse(o, status, syndrome)) if o == op => {
                output[0] = status.raw();
                output[4..8].copy_from_slice(&syndrome.to_be_bytes());
            }
            _ => self.answer(op, &input, &mut output),
        }
        let boxes = self.chain(at_out, out_len.saturating_sub(16), entry.token());
        for (number, mailbox) in boxes.iter().enumerate() {
            let from = 16 + number * 0x200;
            self.write(*mailbox, &output[from..out_len.min(from + 0x200)]);
        }
        entry.set().command_output_inline_data(hwspec::layout::prefix(&output)).ownership(false);
        match self.lie {
            Some(Lie::BadToken(o)) if o == op => {
                let wrong = entry.token() ^ 0x55;
                entry.set().token(wrong);
            }
            Some(Lie::Undelivered(o, status)) if o == op => {
                entry.set().status(status);
            }
            _ => {}
        }
        self.write(at, entry.as_bytes());
        if self.insatiable && op == Opcode::ManagePages {
            self.ask_pages(0, 1);
        }
    }

    /// Requests pages, or the reclaim of some if negative.
    pub fn ask_pages(&mut self, function: u16, pages: i32) {
        let request = PagesEvent::with(|s| s.function_id(function).num_pages(pages as u32));
        self.raise(Eqe::new(EventType::PageRequest, request));
    }
}

impl Registers for Chip {
    fn read32(&self, offset: u32) -> u32 {
        let state = self.state();
        if state.gone {
            return u32::MAX;
        }
        state.registers.get(&offset).copied().unwrap_or(0)
    }

    fn write32(&self, offset: u32, value: u32) {
        let mut state = self.state();
        match offset {
            _ if state.gone => {}
            0x18 => (0..32).filter(|slot| value >> slot & 1 != 0).for_each(|slot| state.command(slot)),
            0x14 => {
                let geometry = state.registers[&0x14] & 0xff;
                state.registers.insert(0x14, value & !0xfff | geometry);
            }
            _ => {
                state.registers.insert(offset, value);
            }
        }
    }

    fn write64(&self, offset: u32, value: u64) {
        let mut state = self.state();
        let seen = state.watched.map(|at| state.word(at).load(Acquire));
        state.seen.extend(seen);
        state.doorbells.push((offset, value));
    }
}

// SAFETY: blocks lie in the chip's memory, which it never frees.
unsafe impl Transport for Fake {
    fn config_read(&self, offset: u16, _: Width) -> io::Result<u32> {
        Ok(self.chip.state().config.get(&offset).copied().unwrap_or(0))
    }

    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()> {
        let mut state = self.chip.state();
        let old = state.config.get(&(offset & !3)).copied().unwrap_or(0);
        let new = match (width, offset & 2) {
            (Width::B2, 0) => old & 0xffff_0000 | value,
            (Width::B2, _) => old & 0xffff | value << 16,
            _ => value,
        };
        state.config.insert(offset & !3, new);
        Ok(())
    }

    fn bar(&self, _: u8) -> io::Result<Bar> {
        Ok(Bar::Trapped(self.chip.clone()))
    }

    fn combining(&self) -> Option<Arc<dyn Combining>> {
        let pages = doorbells::Pages(self.chip.clone());
        self.chip.state().combines.then(|| Arc::new(pages) as Arc<dyn Combining>)
    }

    unsafe fn dma_map(&self, base: *mut u8, len: usize, _: Access) -> io::Result<Iova> {
        assert!(base as usize % PAGE_SIZE == 0 && len % PAGE_SIZE == 0);
        let mut state = self.chip.state();
        let iova = base as u64 + state.skew;
        state.mapped.push((iova, len));
        Ok(iova)
    }

    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        let mut state = self.chip.state();
        let at = state.mapped.iter().position(|m| *m == (iova, len)).expect("never mapped");
        state.mapped.swap_remove(at);
        Ok(())
    }

    fn dma_alloc(&self, len: usize, _: Scope) -> io::Result<DmaBlock> {
        let mut state = self.chip.state();
        if state.exhausted {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let iova = state.next_iova;
        state.next_iova += len as u64 + 0x1000;
        let pages = pages(len.div_ceil(PAGE_SIZE));
        let view = block(&pages, iova);
        state.blocks.insert(iova, pages);
        Ok(view)
    }

    fn dma_free(&self, block: DmaBlock) {
        assert!(self.chip.state().blocks.remove(&block.iova).is_some(), "freed twice");
    }

    fn dma_attach(&self, iova: Iova, _: usize) -> io::Result<DmaBlock> {
        let state = self.chip.state();
        state.blocks.get(&iova).map(|pages| block(pages, iova)).ok_or(io::ErrorKind::NotFound.into())
    }

    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        if self.chip.state().busy_vectors.contains(&vector) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Interrupt::new()
    }

    fn acts_at_once(&self) -> bool {
        self.chip.state().acts_at_once
    }

    fn shares_vectors(&self) -> bool {
        self.chip.state().shares_vectors
    }

    fn reset(&self) -> io::Result<()> {
        let mut state = self.chip.state();
        state.resets += 1;
        state.pages.clear();
        Ok(())
    }

    fn shared(&self) -> io::Result<DmaBlock> {
        Ok(block(&self.chip.shared, 0))
    }

    fn name(&self) -> Option<String> {
        self.chip.state().name.clone()
    }

    fn opener(&self) -> u32 {
        self.opener
    }

    fn alive(&self, opener: u32) -> bool {
        !self.chip.state().dead.contains(&opener)
    }

    fn idle(&self) {}

    fn resolve(&self, _: &[u8; 16]) -> Option<[u8; 6]> {
        None
    }
}
