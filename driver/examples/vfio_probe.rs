//! Checks the guarantees of kernel VFIO and of our transport on a PCI function that is bound to vfio-pci.
//!
//! `vfio_probe 0000:00:04.0` prints a line for each guarantee and exits with 1 if one is broken. It writes nothing to
//! the function but its command register, and resets it twice.
#![allow(unsafe_code)] // maps memory for a device, which does not use it

use ironverbs_driver::{
    pci::Address,
    transport::{
        Access, Scope, Transport, Width,
        vfio::{VfioError, VfioTransport},
    },
};
use std::{
    collections::HashSet,
    process::{Command, ExitCode},
    time::Duration,
};

const PAGE: usize = 4096;
const BOTH: Access = Access::BOTH;

type Try = Result<(), String>;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(address), second) = (args.next(), args.next()) else {
        eprintln!("vfio_probe: expected a PCI address");
        return ExitCode::FAILURE;
    };
    match run(&address, second.is_some()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("FAILED {why}");
            ExitCode::FAILURE
        }
    }
}

fn check(ok: bool, what: &str) -> Try {
    if ok {
        println!("ok {what}");
        return Ok(());
    }
    Err(what.into())
}

fn run(text: &str, second: bool) -> Try {
    let address: Address = text.parse()?;
    if second {
        let busy = matches!(VfioTransport::open(address), Err(VfioError::Busy { pid: Some(_), .. }));
        return check(busy, "a second process learns who has the function");
    }
    let device = VfioTransport::open(address).map_err(|e| e.to_string())?;
    let failed = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
    let id = device.config_read(0, Width::B4).map_err(failed("configuration space"))?;
    let vendor = device.config_read(0, Width::B2).map_err(failed("configuration space"))?;
    check(id & 0xffff == vendor && id != u32::MAX, "configuration space is read in words and dwords")?;
    check(device.config_read(2, Width::B4).is_err(), "a dword that is not aligned is refused")?;
    let command = device.config_read(4, Width::B2).map_err(failed("command register"))?;
    device.config_write(4, Width::B2, command | 0b110).map_err(failed("command register"))?;
    let command = device.config_read(4, Width::B2).map_err(failed("command register"))?;
    check(command & 0b100 != 0, "the function may become bus master")?;
    let bar = device.bar(0).map_err(failed("BAR0"))?;
    let _ = bar.read32(0);
    check(device.bar(6).is_err(), "BAR0 can be read, BAR6 is refused")?;
    mappings(&device)?;
    own_memory(&device)?;
    interrupts(&device)?;
    device.reset().map_err(failed("reset"))?;
    check(device.config_read(0, Width::B4).ok() == Some(id), "a reset leaves the function in place")?;
    let me = std::env::current_exe().map_err(failed("this program"))?;
    let other = Command::new(me).args([text, "second"]).status().map_err(failed("a second process"))?;
    check(other.success(), "kernel VFIO gives a function to one process")?;
    let again = VfioTransport::open(address).map_err(|e| e.to_string())?;
    check(std::sync::Arc::ptr_eq(&device, &again), "within a process the function is shared")?;
    // SAFETY: the child only looks at the function and waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let gone = device.config_read(0, Width::B4).is_err() && bar.read32(0) == u32::MAX;
        if gone {
            std::thread::sleep(Duration::from_secs(60));
        }
        // SAFETY: only ends the child.
        unsafe { libc::_exit(1) };
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut status = 0;
    // SAFETY: the process is our own child.
    let lives = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0;
    check(lives, "in a child of fork the function is gone")?;
    drop((device, again, bar));
    let reopened = VfioTransport::open(address).map(drop).map_err(|e| e.to_string());
    // SAFETY: the process is our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut status, 0);
    }
    reopened?;
    check(true, "a child keeps nothing of it")?;
    let device = VfioTransport::open(address).map_err(|e| e.to_string())?;
    check(device.config_read(0, Width::B4).ok() == Some(id), "let go of, it can be opened again")
}

fn mappings(device: &VfioTransport) -> Try {
    let mut memory = vec![0u8; 9 * PAGE];
    let base = memory.as_mut_ptr().wrapping_add(memory.as_ptr().align_offset(PAGE));
    // SAFETY: the memory outlives the mappings, and the device does not use it.
    let map = |at: usize, len: usize| unsafe { device.dma_map(base.wrapping_add(at), len, BOTH) };
    let mut all = Vec::new();
    for (at, len) in [(0, 8), (0, 8), (4, 4), (2, 3)] {
        let (at, len) = (at * PAGE, len * PAGE);
        all.push((map(at, len).map_err(|e| format!("a mapping: {e}"))?, len as u64));
    }
    let apart = |a: &(u64, u64), b: &(u64, u64)| a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0;
    let disjoint = all.iter().enumerate().all(|(n, a)| all[n + 1..].iter().all(|b| apart(a, b)));
    check(disjoint, "memory is mapped several times, and in parts, at addresses of their own")?;
    for (iova, len) in &all {
        device.dma_unmap(*iova, *len as usize).map_err(|e| format!("unmapping: {e}"))?;
    }
    let (iova, len) = all[0];
    check(device.dma_unmap(iova, len as usize).is_err(), "what is not mapped cannot be unmapped")?;
    static CONSTANT: [u8; 3 * PAGE] = [1; 3 * PAGE];
    let first = CONSTANT.as_ptr().wrapping_add(CONSTANT.as_ptr().align_offset(PAGE));
    // SAFETY: maps a page of a constant, which is never freed.
    let read_only = unsafe { device.dma_map(first.cast_mut(), PAGE, Access { write: false, ..BOTH }) };
    // SAFETY: the mapping is refused.
    let writable = unsafe { device.dma_map(first.cast_mut(), PAGE, BOTH) };
    check(read_only.is_ok() && writable.is_err(), "read-only memory is mapped for reading and only so")?;
    device.dma_unmap(read_only.unwrap_or(0), PAGE).map_err(|e| format!("unmapping: {e}"))?;
    // SAFETY: the mapping is refused.
    let nowhere = unsafe { device.dma_map(PAGE as *mut u8, PAGE, BOTH) };
    check(nowhere.is_err(), "memory that is not there is refused")?;
    let mut addresses = HashSet::new();
    for _ in 0..2000 {
        let iova = map(0, PAGE).map_err(|e| format!("two thousand mappings: {e}"))?;
        addresses.insert(iova);
    }
    check(addresses.len() == 2000, "two thousand mappings at a time")?;
    for iova in addresses {
        device.dma_unmap(iova, PAGE).map_err(|e| format!("unmapping: {e}"))?;
    }
    Ok(())
}

fn own_memory(device: &VfioTransport) -> Try {
    let mut blocks = Vec::new();
    for len in [1, PAGE, 3 * PAGE, 1 << 20, 5 << 20, PAGE] {
        let block = device.dma_alloc(len, Scope::Function).map_err(|e| format!("{len} bytes: {e}"))?;
        // SAFETY: the byte is the last one of our own block.
        unsafe { block.ptr.as_ptr().add(block.len - 1).write_volatile(1) };
        blocks.push(block);
    }
    let aligned = blocks.iter().all(|b| b.ptr.as_ptr() as usize % PAGE == 0 && b.iova % PAGE as u64 == 0);
    let found = blocks.iter().all(|b| device.dma_attach(b.iova, b.len).is_ok_and(|view| view.ptr == b.ptr));
    check(aligned && found, "the driver's own memory, small and large, is found by its address")?;
    blocks.into_iter().for_each(|block| device.dma_free(block));
    Ok(())
}

fn interrupts(device: &VfioTransport) -> Try {
    if device.vectors() < 3 {
        println!("skipped interrupts: {} vectors", device.vectors());
        return Ok(());
    }
    for vector in [1, 0, 2, 1] {
        let fd = device.interrupt(vector).map_err(|e| format!("vector {vector}: {e}"))?;
        let fired = fd.wait(Some(Duration::from_millis(1))).map_err(|e| e.to_string())?;
        if fired {
            return Err(format!("vector {vector} fired by itself"));
        }
    }
    let beyond = device.vectors().min(0xffff) as u16;
    check(device.interrupt(beyond).is_err(), "vectors are connected one by one, and only those there are")
}
