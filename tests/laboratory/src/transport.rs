//! The driver's transport: one function of the machine's adapter, as in `ffi/node/src/transport.rs`.
#![allow(unsafe_code)] // the driver's buffers are the chip's host memory

use crate::{
    machine::{Machine, Owner, SHARED, VFS, functions, machine},
    schedule::{Point, visit},
};
use devmodel::{host::Party, identity, pcie::MsixMessage};
use driver::transport::{Access, Bar, DmaBlock, Interrupt, Iova, Registers, Scope, Transport, Width};
use hwspec::wire::ip::gid_of_v4;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

/// Timers are checked once per this many empty polls.
const POLLS_PER_LOOK: u32 = 4;
/// Bits of an opener's id that hold its place.
const PLACE_BITS: u32 = 8;

/// Returns the GID of `fid`.
pub fn gid(fid: u8) -> [u8; 16] {
    gid_of_v4([127, 0, 0, fid + 1])
}

/// Function `fid` as opened by the program of `party`.
pub struct LabTransport {
    pub party: Party,
    pub fid: u8,
    pub polls: AtomicU32,
}

impl LabTransport {
    fn view(&self, at: u64, len: usize) -> io::Result<DmaBlock> {
        let ptr = NonNull::new(at as *mut u8).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(DmaBlock { ptr, iova: at, len })
    }

    fn touch<R>(&self, f: impl FnOnce(&mut devmodel::engine::Runner, &mut crate::host::LabHost) -> R) -> R {
        machine().touch(self.party, 0, self.fid, f)
    }
}

// SAFETY: blocks lie in the machine's memory, which outlives all programs.
unsafe impl Transport for LabTransport {
    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32> {
        let adapter = &machine().adapter;
        Ok(self.touch(|_, host| adapter.config_read(host, self.fid, offset.into(), width.bytes())))
    }

    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()> {
        let Machine { adapter, now, .. } = machine();
        self.touch(|runner, host| {
            adapter.config_write(runner, host, now.get(), self.fid, offset.into(), width.bytes(), value);
        });
        Ok(())
    }

    fn bar(&self, index: u8) -> io::Result<Bar> {
        let registers = Self { party: self.party, fid: self.fid, polls: AtomicU32::new(0) };
        match index {
            0 => Ok(Bar::Trapped(Arc::new(registers))),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    unsafe fn dma_map(&self, base: *mut u8, len: usize, _: Access) -> io::Result<Iova> {
        Ok(machine().register(self.party, self.fid, base as u64, len))
    }

    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        machine().unregister(self.party, self.fid, iova, len);
        Ok(())
    }

    fn dma_alloc(&self, len: usize, scope: Scope) -> io::Result<DmaBlock> {
        let owner = match scope {
            Scope::Function => Owner::Function(self.fid),
            Scope::Opener => Owner::Party(self.party.0),
        };
        let lock = machine().lock(self.party);
        let at = machine().block(owner, self.fid, len);
        drop(lock);
        self.view(at, len)
    }

    fn dma_free(&self, block: DmaBlock) {
        let lock = machine().lock(self.party);
        machine().free(block.iova);
        drop(lock);
    }

    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        self.view(iova, len)
    }

    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let interrupt = Interrupt::of(fd)?;
        machine().note_fd(self.party, interrupt.as_fd().as_raw_fd());
        let message = MsixMessage { address: 0xfee0_0000, data: vector.into() };
        self.touch(|_, host| machine().adapter.msix_program(host, self.fid, vector, Some(message)));
        Ok(interrupt)
    }

    fn shares_vectors(&self) -> bool {
        true
    }

    fn reset(&self) -> io::Result<()> {
        loop {
            let lock = machine().lock(self.party);
            if machine().reset(self.party, 0, self.fid).is_some() {
                return Ok(());
            }
            drop(lock);
            visit(Point::Nap);
        }
    }

    fn shared(&self) -> io::Result<DmaBlock> {
        let lock = machine().lock(self.party);
        let at = machine().shared(self.fid, &lock);
        drop(lock);
        self.view(at, SHARED)
    }

    fn opener(&self) -> u32 {
        machine().place(self.party).generation.get() << PLACE_BITS | u32::from(self.party.0)
    }

    fn alive(&self, opener: u32) -> bool {
        visit(Point::Node);
        let Some(place) = machine().places.get((opener & ((1 << PLACE_BITS) - 1)) as usize) else {
            return false;
        };
        place.taken.get() && !place.dead.get() && place.generation.get() == opener >> PLACE_BITS
    }

    fn idle(&self) {
        let Machine { adapter, now, .. } = machine();
        let polls = self.polls.fetch_add(1, Relaxed);
        if adapter.has_work(self.fid, now.get()) {
            machine().run(self.party, 0, self.fid);
        }
        if polls % POLLS_PER_LOOK == 0 {
            functions(machine().place(self.party).left.take())
                .for_each(|fid| machine().run(self.party, 0, fid));
        }
        visit(Point::Idle);
    }

    fn nap(&self, _: Duration) {
        visit(Point::Nap);
    }

    fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]> {
        (0..=VFS).find(|fid| gid(*fid) == *dgid).map(|fid| identity::mac(0, fid))
    }
}

impl Registers for LabTransport {
    fn read32(&self, offset: u32) -> u32 {
        let Machine { adapter, now, .. } = machine();
        self.touch(|_, host| adapter.bar_read32(host, now.get(), self.fid, offset.into()))
    }

    fn write32(&self, offset: u32, value: u32) {
        let Machine { adapter, now, .. } = machine();
        self.touch(|runner, host| {
            adapter.bar_write32(runner, host, now.get(), self.fid, offset.into(), value);
        });
    }

    fn write64(&self, offset: u32, value: u64) {
        let Machine { adapter, now, .. } = machine();
        self.touch(|runner, host| {
            adapter.bar_write64(runner, host, now.get(), self.fid, offset.into(), value);
        });
    }
}

/// A program's second thread: sleeps until it is woken or a timer is due, then runs pending work of its program's functions and cleans up
/// after the dead (`ffi/node/src/parked.rs`).
pub fn park(party: Party) {
    let machine = machine();
    let place = machine.place(party);
    while !place.ends.get() {
        visit(Point::Parked);
        place.woken.set(false);
        if !machine.dead().is_empty() {
            machine.reap(party, 1);
        }
        for fid in functions(place.left.take() | place.open.get()) {
            if machine.adapter.has_work(fid, machine.now.get()) {
                machine.run(party, 1, fid);
            }
            // Another holder of the function sees its frames, but may miss that a timer is due.
            if machine.adapter.region().function_lock(fid).holder().is_some_and(|holder| holder != party) {
                place.woken.set(true);
            }
        }
    }
    place.parked.set(false);
}
