//! Page supply: memory that the chip asks for and keeps its tables in (PRM: pages management).

use crate::{
    cmd::CommandQueue,
    dma::{DmaMem, PAGE_SIZE},
    error::Error,
    shared_area::{PAGE_BLOCKS, PageBlock, Shared},
    transport::{Scope, Transport},
};
use hwspec::cmd::{
    Opcode,
    adapter::{ManagePagesIn, ManagePagesOut, QueryPagesIn, QueryPagesOut},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Which pages `QUERY_PAGES` asks about (`op_mod`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Stage {
    /// Before the capabilities.
    Boot = 1,
    /// Before `INIT_HCA`.
    Init = 2,
}

/// `op_mod` of `MANAGE_PAGES`.
const CANT_GIVE: u16 = 0;
const GIVE: u16 = 1;
const TAKE: u16 = 2;
/// [`PageBlock::function`] of a block that was given to no function.
const NOBODY: u16 = u16::MAX;
/// How long another opener may take to supply pages.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pages in one command: what the preallocated mailboxes hold.
const BATCH: usize = 512;

/// The blocks that this process allocated. Those of other openers are reached through the transport.
pub type OwnBlocks = Mutex<HashMap<u64, DmaMem>>;

/// Supplies pages. The blocks are recorded in the shared area, for openers that come later.
pub struct PageSupply<'a> {
    pub transport: &'a Arc<dyn Transport>,
    pub shared: &'a Shared,
    pub cmd: &'a CommandQueue,
    pub own: &'a OwnBlocks,
}

impl PageSupply<'_> {
    /// Queries how many pages are needed at this stage (negative: to be reclaimed) and for which function.
    pub fn query(&self, stage: Stage) -> Result<(u16, i32), Error> {
        let mut input = QueryPagesIn::zeroed();
        input.set().op_mod(stage as u16);
        let out: QueryPagesOut = self.cmd.call(Opcode::QueryPages, 0, &input)?;
        Ok((out.function_id(), out.num_pages() as i32))
    }

    /// Queries and supplies. Returns how many pages were asked for.
    pub fn satisfy(&self, stage: Stage) -> Result<i32, Error> {
        let (function, pages) = self.query(stage)?;
        self.change(function, pages)?;
        Ok(pages)
    }

    /// Gives `pages` to `function` (0: this one), or reclaims them if negative. Does nothing while another opener does
    /// so.
    pub fn change(&self, function: u16, pages: i32) -> Result<(), Error> {
        if pages == 0 || !self.shared.claim_page_manager() {
            return Ok(());
        }
        let result = match pages > 0 {
            true => self.give(function, pages as usize),
            false => self.take(function, pages.unsigned_abs() as usize).map(drop),
        };
        self.shared.release_page_manager();
        result
    }

    fn give(&self, function: u16, mut pages: usize) -> Result<(), Error> {
        while pages > 0 {
            let batch = pages.min(BATCH);
            let index = (0..PAGE_BLOCKS).find(|at| self.shared.page_block(*at).is_none());
            let mem = index
                .ok_or_else(|| {
                    Error::no_memory(format!("the chip holds {PAGE_BLOCKS} blocks of pages already"))
                })
                .and_then(|index| {
                    DmaMem::alloc(self.transport, batch * PAGE_SIZE, Scope::Function).map(|mem| (index, mem))
                });
            let (index, mem) = match mem {
                Ok(found) => found,
                Err(error) => {
                    self.refuse(function);
                    return Err(error);
                }
            };
            let list: Vec<u64> = (0..batch).map(|page| mem.iova() + (page * PAGE_SIZE) as u64).collect();
            let block = PageBlock { iova: mem.iova(), pages: batch as u32, function, held: batch as u32 };
            self.shared.set_page_block(index, Some(block));
            let mut input = ManagePagesIn::zeroed();
            input.set().op_mod(GIVE).function_id(function).input_num_entries(batch as u32);
            let given: Result<ManagePagesOut, Error> =
                self.cmd.call_with(Opcode::ManagePages, 0, &input, &list);
            match given {
                Err(error) if !error.is_uncertain() => {
                    self.shared.set_page_block(index, None);
                    return Err(error);
                }
                // From here on the pages are given, or may be. The block belongs to the function, and is freed when the
                // chip returns it.
                outcome => {
                    self.own.lock().unwrap_or_else(|e| e.into_inner()).insert(mem.iova(), mem);
                    outcome?;
                }
            }
            pages -= batch;
        }
        Ok(())
    }

    /// Records a block that is not given to the chip as its own memory. It is freed with the others when the function
    /// goes down.
    pub fn keep(&self, mem: DmaMem) -> Result<(), Error> {
        let begin = Instant::now();
        while !self.shared.claim_page_manager() {
            if begin.elapsed() > PATIENCE {
                return Err(Error::Timeout { what: "the supplier of pages".into(), waited: PATIENCE });
            }
            self.transport.nap(Duration::from_micros(200));
        }
        let index = (0..PAGE_BLOCKS).find(|at| self.shared.page_block(*at).is_none());
        let pages = mem.len().div_ceil(PAGE_SIZE) as u32;
        if let Some(index) = index {
            let block = PageBlock { iova: mem.iova(), pages, function: NOBODY, held: 0 };
            self.shared.set_page_block(index, Some(block));
            self.own.lock().unwrap_or_else(|e| e.into_inner()).insert(mem.iova(), mem);
        }
        self.shared.release_page_manager();
        index.map(drop).ok_or_else(|| {
            Error::no_memory(format!("the function has {PAGE_BLOCKS} blocks of pages already"))
        })
    }

    /// Frees a block of [`keep`](Self::keep).
    pub fn give_up(&self, iova: u64) {
        let at = (0..PAGE_BLOCKS).find(|at| self.shared.page_block(*at).is_some_and(|b| b.iova == iova));
        if let Some(at) = at {
            free_block(self.transport, self.shared, self.own, at);
        }
    }

    /// Tells the device that there are no pages for it.
    fn refuse(&self, function: u16) {
        let mut input = ManagePagesIn::zeroed();
        input.set().op_mod(CANT_GIVE).function_id(function);
        let answer: Result<ManagePagesOut, Error> = self.cmd.call(Opcode::ManagePages, 0, &input);
        if let Err(error) = answer {
            tracing::warn!(%error, "the device could not be told that there are no pages");
        }
    }

    /// Reclaims up to `pages` pages and frees the blocks that are complete. Returns how many the chip gave back.
    fn take(&self, function: u16, pages: usize) -> Result<usize, Error> {
        let mut got = 0;
        while got < pages {
            let batch = (pages - got).min(BATCH);
            let mut input = ManagePagesIn::zeroed();
            input.set().op_mod(TAKE).function_id(function).input_num_entries(batch as u32);
            let mut output = vec![0; ManagePagesOut::SIZE + 8 * batch];
            self.cmd.call_raw(Opcode::ManagePages, 0, &input, &[], &mut output)?;
            let header: ManagePagesOut = hwspec::layout::Layout::read(&output);
            let count = header.output_num_entries() as usize;
            if count > batch {
                return Err(Error::device(format!("at most {batch} pages back"), format!("{count}")));
            }
            for page in output[ManagePagesOut::SIZE..].chunks_exact(8).take(count) {
                self.returned(u64::from_be_bytes(hwspec::layout::prefix(page)));
            }
            got += count;
            if count == 0 {
                break;
            }
        }
        Ok(got)
    }

    fn returned(&self, page: u64) {
        let owner = (0..PAGE_BLOCKS).find_map(|at| {
            let block = self.shared.page_block(at)?;
            (page.wrapping_sub(block.iova) < u64::from(block.pages) * PAGE_SIZE as u64).then_some((at, block))
        });
        match owner {
            None => tracing::warn!(page, "the chip returned a page it was never given"),
            Some((at, block)) if block.held > 1 => {
                self.shared.set_page_block(at, Some(PageBlock { held: block.held - 1, ..block }));
            }
            Some((at, _)) => free_block(self.transport, self.shared, self.own, at),
        }
    }

    /// Reclaims all pages of `function` (0: this one). The chip may still write to those that it keeps.
    pub fn reclaim(&self, function: u16) -> Result<(), Error> {
        let blocks = (0..PAGE_BLOCKS).filter_map(|at| self.shared.page_block(at));
        let held: u64 = blocks.filter(|b| b.function == function).map(|b| u64::from(b.held)).sum();
        let got = self.take(function, held as usize)?;
        if (got as u64) < held {
            return Err(Error::device(format!("{held} pages back"), got.to_string()));
        }
        Ok(())
    }
}

fn free_block(transport: &Arc<dyn Transport>, shared: &Shared, own: &OwnBlocks, at: usize) {
    let Some(block) = shared.page_block(at) else { return };
    shared.set_page_block(at, None);
    if own.lock().unwrap_or_else(|e| e.into_inner()).remove(&block.iova).is_some() {
        return;
    }
    match DmaMem::attach(transport, block.iova, block.pages as usize * PAGE_SIZE) {
        Ok(mem) => mem.free(),
        Err(error) => tracing::warn!(iova = block.iova, %error, "a block of pages could not be freed"),
    }
}

/// Frees all recorded blocks. The chip has been reset and holds none.
pub fn free_all(transport: &Arc<dyn Transport>, shared: &Shared, own: &OwnBlocks) {
    (0..PAGE_BLOCKS).for_each(|at| free_block(transport, shared, own, at));
}

/// Leaves the blocks to the function, which outlives this opener.
pub fn leave(own: &OwnBlocks) {
    own.lock().unwrap_or_else(|e| e.into_inner()).drain().for_each(|(_, mem)| mem.leave());
}
