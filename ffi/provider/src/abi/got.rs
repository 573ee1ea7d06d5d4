//! Replaces one imported function of a loaded object, through its slot in the global offset table.
//!
//! Completion channels are the one verb without a provider operation: libibverbs itself writes a command to the device file. The provider
//! therefore intercepts its calls of `write`, and those of no other object: only that object's table is changed.

use super::objects;
use libc::c_void;
use std::ffi::CStr;
use std::ops::Range;
use std::slice;

#[cfg(target_arch = "x86_64")]
const SLOT_KINDS: [u32; 2] = [6, 7]; // R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT
#[cfg(target_arch = "aarch64")]
const SLOT_KINDS: [u32; 2] = [1025, 1026]; // R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the relocation types of this architecture are not known");

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

/// The mapped object that an address belongs to.
struct Object {
    base: usize,
    dynamic: *const Dyn,
    /// The range that was made read-only after relocation (RELRO).
    relro: Range<usize>,
}

/// Redirects every call of `name` from the object around `inside` to `target`. Returns the number of slots that were set.
///
/// # Errors
/// The object, its tables or the import cannot be found, or the memory cannot be made writable.
///
/// # Safety
/// `target` has the type of the function it replaces and lives as long as the process.
pub unsafe fn replace_import(inside: usize, name: &CStr, target: *const c_void) -> Result<usize, String> {
    let object = find_object(inside).ok_or("its dynamic section was not found")?;
    let mut set = 0;
    // SAFETY: the loader keeps these tables mapped and initialized.
    unsafe {
        let find = |tag| dynamic_value(&object, tag);
        let (strings, symbols) = (find(DT_STRTAB), find(DT_SYMTAB));
        let (Some(strings), Some(symbols)) = (strings, symbols) else {
            return Err("its symbol table was not found".into());
        };
        for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
            let (Some(table), Some(size)) = (find(table), find(size)) else { continue };
            let count = size / size_of::<libc::Elf64_Rela>();
            for rela in slice::from_raw_parts(table as *const libc::Elf64_Rela, count) {
                let (symbol, kind) = ((rela.r_info >> 32) as usize, rela.r_info as u32);
                if !SLOT_KINDS.contains(&kind) {
                    continue;
                }
                let symbol = &*(symbols as *const libc::Elf64_Sym).add(symbol);
                if CStr::from_ptr((strings + symbol.st_name as usize) as *const _) == name {
                    write_slot(&object, object.base + rela.r_offset as usize, target)?;
                    set += 1;
                }
            }
        }
    }
    if set == 0 { Err(format!("it does not call {}", name.to_string_lossy())) } else { Ok(set) }
}

fn find_object(inside: usize) -> Option<Object> {
    let mut found = None;
    objects::each(|info, headers| {
        let of = |kind| headers.iter().filter(move |header| header.p_type == kind);
        let here = of(libc::PT_LOAD).any(|header| objects::range(info, header).contains(&inside));
        if here {
            found = of(libc::PT_DYNAMIC).next().map(|dynamic| Object {
                base: info.dlpi_addr as usize,
                dynamic: objects::range(info, dynamic).start as *const Dyn,
                relro: of(libc::PT_GNU_RELRO).next().map_or(0..0, |relro| objects::range(info, relro)),
            });
        }
        here
    });
    found
}

/// Looks up an entry of the dynamic section. glibc has relocated the addresses in it; musl has not.
unsafe fn dynamic_value(object: &Object, tag: i64) -> Option<usize> {
    let mut entry = object.dynamic;
    // SAFETY: the section ends with a zero tag.
    unsafe {
        while (*entry).tag != 0 {
            if (*entry).tag == tag {
                let value = (*entry).value as usize;
                let is_size = matches!(tag, DT_PLTRELSZ | DT_RELASZ);
                return Some(if is_size || value >= object.base { value } else { value + object.base });
            }
            entry = entry.add(1);
        }
    }
    None
}

unsafe fn write_slot(object: &Object, slot: usize, target: *const c_void) -> Result<(), String> {
    let sealed = object.relro.contains(&slot);
    // SAFETY: one page of the object's own data; other threads only read the slot.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let start = (slot & !(page - 1)) as *mut c_void;
        if sealed && libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return Err(format!("its import table cannot be written: {}", std::io::Error::last_os_error()));
        }
        std::sync::atomic::AtomicPtr::from_ptr(slot as *mut *mut c_void)
            .store(target.cast_mut(), std::sync::atomic::Ordering::Release);
        if sealed {
            libc::mprotect(start, page, libc::PROT_READ);
        }
    }
    Ok(())
}
