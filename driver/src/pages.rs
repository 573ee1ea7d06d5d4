//! Page supply: memory that the chip requests for its tables (PRM: pages management).

use crate::{
    cmd::CommandQueue,
    dma::{DmaMem, PAGE_SIZE},
    error::Error,
    shared_area::{PAGE_BLOCKS, PageBlock, Shared},
    transport::{Scope, Transport},
};
use hwspec::cmd::{Opcode, adapter::*};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Selects the pages that `QUERY_PAGES` asks about (`op_mod`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Stage {
    /// Before capabilities are set.
    Boot = 1,
    /// Before `INIT_HCA`.
    Init = 2,
}

/// [`PageBlock::function`] of a block that was given to no function.
const NOBODY: u16 = u16::MAX;
/// Timeout for another opener to finish supplying pages, and for the device to return any.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of pages given to the device per request: 16 GiB, far more than firmware takes at once.
const MOST_GIVEN: i32 = 1 << 22;
/// Maximum number of pages that the device can return at once.
const MOST_RECLAIMED: i32 = 50_000;
/// Pages per command, limited by the preallocated mailboxes.
const BATCH: usize = 512;

/// A function that has pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number; 0 is the function that this driver operates.
    pub function: u16,
    /// True if it belongs to the adapter's embedded processor.
    pub embedded: bool,
}

impl Owner {
    /// A function of the host.
    pub fn function(function: u16) -> Self {
        Self { function, embedded: false }
    }
}

/// Blocks allocated by this process. Blocks of other openers are reached through the transport.
pub type OwnBlocks = Mutex<HashMap<u64, DmaMem>>;

/// Supplies pages. Blocks are recorded in the shared area, for later openers.
pub struct PageSupply<'a> {
    pub transport: &'a Arc<dyn Transport>,
    pub shared: &'a Shared,
    pub cmd: &'a CommandQueue,
    pub own: &'a OwnBlocks,
    /// Start of the supply. A device that keeps asking for pages, or is slow with each command, gets as much time in
    /// total as one command.
    pub began: Instant,
}

impl PageSupply<'_> {
    /// Queries the number of pages needed at this stage (negative: to be reclaimed) and the function that needs them.
    pub fn query(&self, stage: Stage) -> Result<(u16, i32), Error> {
        let input = QueryPagesIn::with(|s| s.op_mod(stage as u16));
        let out: QueryPagesOut = self.cmd.call(Opcode::QueryPages, 0, &input)?;
        Ok((out.function_id(), out.num_pages() as i32))
    }

    /// Queries and supplies pages. Returns the number requested.
    pub fn satisfy(&self, stage: Stage) -> Result<i32, Error> {
        let (function, pages) = self.query(stage)?;
        self.manage(|| self.change(Owner::function(function), pages))?;
        Ok(pages)
    }

    /// Runs `body` as the only opener that supplies pages.
    fn manage<T>(&self, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let begin = Instant::now();
        while !self.shared.claim_page_manager() {
            if begin.elapsed() > PATIENCE {
                return Err(Error::Timeout { what: "the supplier of pages".into(), waited: PATIENCE });
            }
            self.transport.nap(Duration::from_micros(200));
        }
        let result = body();
        self.shared.release_page_manager();
        result
    }

    /// Gives `pages` to `owner`, or reclaims them if negative.
    fn change(&self, owner: Owner, pages: i32) -> Result<(), Error> {
        match pages {
            0 => Ok(()),
            1.. => self.give(owner, pages as usize),
            _ => self.take(owner, pages.unsigned_abs() as usize).map(drop),
        }
    }

    /// Serves a request of the device, as the only opener that supplies pages. If the device then refuses the pages
    /// that it asked for, that is only logged.
    pub fn answer(&self, owner: Owner, pages: i32) {
        if let Err(error) = self.change(owner, pages.clamp(-MOST_RECLAIMED, MOST_GIVEN)) {
            tracing::warn!(pages, %error, "a request for pages could not be served");
        }
    }

    /// True if the time for the device is up.
    pub fn is_over(&self) -> bool {
        self.began.elapsed() > self.cmd.timeout()
    }

    fn in_time(&self, what: &str, pages: usize) -> Result<(), Error> {
        match self.is_over() {
            true => Err(Error::Timeout {
                what: format!("{what} of {pages} more pages"),
                waited: self.cmd.timeout(),
            }),
            false => Ok(()),
        }
    }

    fn give(&self, owner: Owner, mut pages: usize) -> Result<(), Error> {
        while pages > 0 {
            let stock = self.in_time("the supply", pages).and_then(|()| self.stock(owner, pages));
            let (index, block) = match stock {
                Ok(found) => found,
                Err(error) => {
                    self.refuse(owner);
                    return Err(error);
                }
            };
            let batch = pages.min((block.pages - block.given) as usize).min(BATCH);
            let first = block.iova + u64::from(block.given) * PAGE_SIZE as u64;
            let list: Vec<u64> = (0..batch).map(|page| first + (page * PAGE_SIZE) as u64).collect();
            let after =
                PageBlock { given: block.given + batch as u32, held: block.held + batch as u32, ..block };
            self.shared.set_page_block(index, Some(after));
            let mut input = ManagePagesIn::zeroed();
            input.set().op_mod(GIVE).function_id(owner.function).embedded_cpu_function(owner.embedded);
            input.set().input_num_entries(batch as u32);
            let given: Result<ManagePagesOut, Error> =
                self.cmd.call_with(Opcode::ManagePages, 0, &input, &list);
            if let Err(error) = given {
                // If the device certainly did not take the pages, the block is unchanged.
                if !error.is_uncertain() {
                    self.shared.set_page_block(index, Some(block));
                    if block.held == 0 {
                        free_block(self.transport, self.shared, self.own, index);
                    }
                }
                return Err(error);
            }
            pages -= batch;
        }
        Ok(())
    }

    /// Returns a block with pages that have not been given to the chip: one already started for this function, or a new
    /// one.
    fn stock(&self, owner: Owner, pages: usize) -> Result<(usize, PageBlock), Error> {
        let (mut free, mut used) = (None, 0);
        for at in 0..PAGE_BLOCKS {
            match self.shared.page_block(at) {
                None => free = free.or(Some(at)),
                Some(block) if block.function == owner.function && block.given < block.pages => {
                    return Ok((at, block));
                }
                Some(_) => used += 1,
            }
        }
        let full = || Error::no_memory(format!("the chip holds {PAGE_BLOCKS} blocks of pages already"));
        let index = free.ok_or_else(full)?;
        // A chip that makes many small requests is served from a few large blocks, since the record of blocks is small.
        let size = if used < PAGE_BLOCKS / 8 { pages.min(BATCH) } else { BATCH };
        let mem = DmaMem::alloc(self.transport, size * PAGE_SIZE, Scope::Function)?;
        let block =
            PageBlock { iova: mem.iova(), pages: size as u32, function: owner.function, given: 0, held: 0 };
        self.shared.set_page_block(index, Some(block));
        self.own.lock().unwrap_or_else(|e| e.into_inner()).insert(mem.iova(), mem);
        Ok((index, block))
    }

    /// Records a block that does not become the chip's own memory. It is freed with the others when the function goes
    /// down.
    pub fn keep(&self, mem: DmaMem) -> Result<(), Error> {
        self.manage(|| {
            let index = (0..PAGE_BLOCKS).find(|at| self.shared.page_block(*at).is_none());
            let index = index.ok_or_else(|| {
                Error::no_memory(format!("the function has {PAGE_BLOCKS} blocks of pages already"))
            })?;
            let pages = mem.len().div_ceil(PAGE_SIZE) as u32;
            let block = PageBlock { iova: mem.iova(), pages, function: NOBODY, given: pages, held: 0 };
            self.shared.set_page_block(index, Some(block));
            self.own.lock().unwrap_or_else(|e| e.into_inner()).insert(mem.iova(), mem);
            Ok(())
        })
    }

    /// Frees a block recorded by [`keep`](Self::keep).
    pub fn give_up(&self, iova: u64) {
        let at = (0..PAGE_BLOCKS).find(|at| self.shared.page_block(*at).is_some_and(|b| b.iova == iova));
        if let Some(at) = at {
            free_block(self.transport, self.shared, self.own, at);
        }
    }

    /// Tells the device that it gets no pages.
    fn refuse(&self, owner: Owner) {
        let mut input = ManagePagesIn::zeroed();
        input.set().op_mod(CANT_GIVE).function_id(owner.function).embedded_cpu_function(owner.embedded);
        let answer: Result<ManagePagesOut, Error> = self.cmd.call(Opcode::ManagePages, 0, &input);
        if let Err(error) = answer {
            tracing::warn!(%error, "the device could not be told that there are no pages");
        }
    }

    /// Reclaims up to `pages` pages and frees complete blocks. Returns the number of pages that the chip returned.
    fn take(&self, owner: Owner, pages: usize) -> Result<usize, Error> {
        let mut got = 0;
        while got < pages {
            let batch = (pages - got).min(BATCH);
            let mut input = ManagePagesIn::zeroed();
            input.set().op_mod(TAKE).function_id(owner.function).embedded_cpu_function(owner.embedded);
            input.set().input_num_entries(batch as u32);
            let mut output = vec![0; ManagePagesOut::SIZE + 8 * batch];
            self.cmd.call_raw(Opcode::ManagePages, 0, &input, &[], &mut output)?;
            let header: ManagePagesOut = hwspec::layout::Layout::read(&output);
            let count = header.output_num_entries() as usize;
            if count > batch {
                return Err(Error::device(format!("at most {batch} pages back"), format!("{count}")));
            }
            for page in output[ManagePagesOut::SIZE..].chunks_exact(8).take(count) {
                self.returned(owner, u64::from_be_bytes(hwspec::layout::prefix(page)));
            }
            got += count;
            if count == 0 || got == pages {
                break;
            }
            self.in_time("the return", pages - got)?;
        }
        Ok(got)
    }

    fn returned(&self, owner: Owner, page: u64) {
        let owner = (0..PAGE_BLOCKS).find_map(|at| {
            // Some recorded blocks were never given to the chip and are in use.
            let held = |block: &PageBlock| block.function == owner.function && block.held > 0;
            let block = self.shared.page_block(at).filter(held)?;
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

    /// Reclaims all pages of `function` (0: this one); gives up when none is returned within [`PATIENCE`] or the timeout
    /// of a command, if that is shorter. The chip may still write to the pages that it keeps.
    pub fn reclaim(&self, function: u16) -> Result<(), Error> {
        self.manage(|| {
            let held = || -> usize {
                let blocks = (0..PAGE_BLOCKS).filter_map(|at| self.shared.page_block(at));
                blocks.filter(|block| block.function == function).map(|block| block.held as usize).sum()
            };
            let mut left = held();
            let mut progress = Instant::now();
            while left > 0 {
                self.take(Owner::function(function), left)?;
                let now = held();
                if now < left {
                    (left, progress) = (now, Instant::now());
                    continue;
                }
                // A device that acts at once will return no more than it already has.
                if self.transport.acts_at_once() || progress.elapsed() > PATIENCE.min(self.cmd.timeout()) {
                    return Err(Error::device(
                        format!("the pages of function {function} back"),
                        format!("{left} that the device keeps"),
                    ));
                }
                self.transport.idle();
                self.transport.nap(Duration::from_millis(1));
            }
            Ok(())
        })
    }

    /// Reclaims the pages of all functions.
    pub fn reclaim_all(&self) -> Result<(), Error> {
        let blocks = (0..PAGE_BLOCKS).filter_map(|at| self.shared.page_block(at));
        let mut functions: Vec<u16> = blocks.filter(|b| b.held > 0).map(|b| b.function).collect();
        // Virtual functions come before the physical one, which has number 0.
        functions.sort_unstable_by(|a, b| b.cmp(a));
        functions.dedup();
        functions.into_iter().try_for_each(|function| self.reclaim(function))
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

/// Frees all recorded blocks. The chip has been reset and holds no pages.
pub fn free_all(transport: &Arc<dyn Transport>, shared: &Shared, own: &OwnBlocks) {
    (0..PAGE_BLOCKS).for_each(|at| free_block(transport, shared, own, at));
}

/// Leaves the blocks to the function, which outlives this opener.
pub fn leave(own: &OwnBlocks) {
    own.lock().unwrap_or_else(|e| e.into_inner()).drain().for_each(|(_, mem)| mem.leave());
}
