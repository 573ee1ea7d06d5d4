//! Detects the private layout of each libibverbs in this process, by observing its behaviour.
//!
//! The version in a provider's file name does not determine the layout: upstream changed it four times without raising the version. So the
//! library initializes a throw-away context, copies a table of sentinels, and reads a throw-away QP; the words that it accesses reveal the
//! layout. A layout that fits no known release is refused; nothing is guessed.

use super::objects::{self, Object};
use super::ops::{CONTEXT_SLOTS, EXTENDED_SLOTS, MAX_OPS, OpsTable, PRIV_WORD, RELEASES};
use super::public::{ibv_context, ibv_device, ibv_qp};
use super::verbs_types::{VERBS_QP_EX, verbs_context, verbs_device, verbs_device_ops};
use libc::{c_char, c_int, c_void, size_t};
use std::ffi::CStr;
use std::mem::{offset_of, size_of};
use std::ptr::{null, null_mut};

/// Size of a context allocation: more than any known `struct verbs_context` (696 bytes in v65).
pub const CONTEXT_ROOM: usize = 8192;
/// Size of a QP allocation: more than any known `struct verbs_qp` (376 bytes in v65).
pub const QP_ROOM: usize = 1024;
/// The first sentinel; the slot number is added. Sentinels are only compared, never called.
const SENTINEL: usize = 0x6972_6f6e_0000;
/// Registration entry points, one per interface number, newest first.
const REGISTER: [&CStr; 5] = [
    c"verbs_register_driver_65",
    c"verbs_register_driver_64",
    c"verbs_register_driver_59",
    c"verbs_register_driver_57",
    c"verbs_register_driver_34",
];

type RegisterFn = unsafe extern "C" fn(*const verbs_device_ops);
type InitFn = unsafe extern "C" fn(*mut ibv_device, c_int, size_t, *mut c_void, u32) -> *mut u8;
type UninitFn = unsafe extern "C" fn(*mut verbs_context);
type SetOpsFn = unsafe extern "C" fn(*mut verbs_context, *const *const c_void);
type QpToExFn = unsafe extern "C" fn(*mut ibv_qp) -> *mut c_void;
type SysfsPathFn = unsafe extern "C" fn() -> *const c_char;

/// The libibverbs functions that the provider calls. It is not linked against libibverbs.
#[derive(Clone, Copy)]
pub struct Library {
    register: RegisterFn,
    init: InitFn,
    uninit: UninitFn,
    set_ops: SetOpsFn,
    qp_to_ex: QpToExFn,
    sysfs_path: Option<SysfsPathFn>,
    /// An address inside the library, by which its tables are found.
    pub inside: usize,
    object: Object,
}

/// The detected layout.
pub struct Layout {
    /// The library's functions.
    pub library: Library,
    /// Names to slots.
    pub ops: OpsTable,
    /// `sizeof(struct verbs_context)`.
    pub context_size: usize,
    /// Offset of `comp_mask` in `struct verbs_qp`.
    pub qp_comp_mask: usize,
}

impl Library {
    /// Every libibverbs loaded into this process, under any name. The error for one that lacks a function is an address inside it and that
    /// function.
    pub fn loaded() -> Vec<Result<Self, (usize, String)>> {
        // Defined by every release with the private provider interface, and by no other library.
        objects::defining(c"verbs_set_ops")
            .into_iter()
            .map(|object| Self::at(object).map_err(|what| (object.at, what)))
            .collect()
    }

    fn at(object: Object) -> Result<Self, String> {
        let find = |name: &CStr| object.find(name);
        let need = |name: &CStr| {
            let address = find(name);
            if address.is_null() { Err(format!("it lacks {}", name.to_string_lossy())) } else { Ok(address) }
        };
        let register = REGISTER.iter().map(|name| find(name)).find(|address| !address.is_null());
        let register = register.ok_or("it has none of verbs_register_driver_{34,57,59,64,65}")?;
        let sysfs_path = find(c"ibv_get_sysfs_path");
        let (init, uninit) = (need(c"_verbs_init_and_alloc_context")?, need(c"verbs_uninit_context")?);
        let (set_ops, qp_to_ex) = (need(c"verbs_set_ops")?, need(c"ibv_qp_to_qp_ex")?);
        // SAFETY: these names have had these types in every release from 36 to 65.
        Ok(unsafe {
            Self {
                register: std::mem::transmute::<*mut c_void, RegisterFn>(register),
                init: std::mem::transmute::<*mut c_void, InitFn>(init),
                uninit: std::mem::transmute::<*mut c_void, UninitFn>(uninit),
                set_ops: std::mem::transmute::<*mut c_void, SetOpsFn>(set_ops),
                qp_to_ex: std::mem::transmute::<*mut c_void, QpToExFn>(qp_to_ex),
                sysfs_path: (!sysfs_path.is_null())
                    .then(|| std::mem::transmute::<*mut c_void, SysfsPathFn>(sysfs_path)),
                inside: object.at,
                object,
            }
        })
    }

    /// The address of a function in the library or in those it is linked with; null if there is none.
    pub fn find(&self, name: &CStr) -> *mut c_void {
        self.object.find(name)
    }

    /// Registers the provider.
    ///
    /// # Safety
    /// The layout is a known one; `ops` lives as long as the process.
    pub unsafe fn register(&self, ops: &'static verbs_device_ops) {
        // SAFETY: guaranteed by the caller: the layout is known, and `ops` lives as long as the process.
        unsafe { (self.register)(ops) }
    }

    /// Allocates a zeroed context of `size` bytes and has the library initialize it. Returns null on failure, with `cmd_fd` closed.
    ///
    /// # Safety
    /// `device` is known to the library; `size` is at least `sizeof(struct verbs_context)`.
    pub unsafe fn init_context(&self, device: *mut ibv_device, cmd_fd: c_int, size: usize) -> *mut u8 {
        // The last argument is the kernel's driver ID; 0 is "unknown".
        // SAFETY: guaranteed by the caller: the library knows `device`, and `size` has room for its part.
        unsafe { (self.init)(device, cmd_fd, size, null_mut(), 0) }
    }

    /// Undoes `init_context` except for the allocation; closes the command and event descriptors.
    ///
    /// # Safety
    /// `context` was returned by `init_context` and is only freed afterwards.
    pub unsafe fn uninit_context(&self, context: *mut u8) {
        // SAFETY: guaranteed by the caller: the context is from the library and not used any more.
        unsafe { (self.uninit)(context.cast()) }
    }

    /// Copies a table of operations into a context.
    ///
    /// # Safety
    /// `context` was returned by `init_context`; `table` is at least as long as the library's.
    pub unsafe fn set_ops(&self, context: *mut u8, table: &[*const c_void; MAX_OPS]) {
        // SAFETY: guaranteed by the caller: the context is from the library, and `table` is as long as the library reads.
        unsafe { (self.set_ops)(context.cast(), table.as_ptr()) }
    }

    /// The root of sysfs as the library sees it.
    pub fn sysfs(&self) -> String {
        let Some(path) = self.sysfs_path else { return "/sys".into() };
        // SAFETY: takes no arguments, and returns a static string or null.
        let path = unsafe { path() };
        if path.is_null() {
            return "/sys".into();
        }
        // SAFETY: not null, terminated.
        unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned()
    }
}

impl Layout {
    /// Detects the library's layout with throw-away objects.
    ///
    /// # Errors
    /// The library behaves like no known release.
    pub fn probe(library: Library) -> Result<Self, String> {
        let (context_size, ops) = probe_context(&library)?;
        let qp_comp_mask = probe_qp(&library)?;
        Ok(Self { library, ops, context_size, qp_comp_mask })
    }

    /// Bytes from the start of `struct verbs_context` to its `ibv_context`.
    pub fn context_offset(&self) -> usize {
        self.context_size - size_of::<ibv_context>()
    }
}

/// Reads a word of a throw-away context after the library's changes.
fn word(base: *const u8, offset: usize) -> usize {
    // SAFETY: callers stay within CONTEXT_ROOM; the words are initialized (calloc) and aligned.
    unsafe { base.add(offset).cast::<usize>().read() }
}

fn probe_context(library: &Library) -> Result<(usize, OpsTable), String> {
    // SAFETY: all-zero is a valid device: null pointers, zero counts.
    let mut device: Box<verbs_device> = unsafe { Box::new(std::mem::zeroed()) };
    device.refcount = 1;
    let device = Box::into_raw(device);
    // SAFETY: the device lives until the end of this function; volatile, because the library changes the count.
    let refcount = || unsafe { (&raw const (*device).refcount).read_volatile() };
    // SAFETY: as above. Without a descriptor the library makes no system call that could succeed.
    let context = unsafe { library.init_context(device.cast(), -1, CONTEXT_ROOM) };
    if context.is_null() {
        return Err("it could not initialise a context".into());
    }
    let found = read_context(library, context, device.cast(), refcount());
    // SAFETY: from init_context; the library allocated it with the C allocator.
    unsafe {
        library.uninit_context(context);
        libc::free(context.cast());
    }
    let left = refcount();
    if found.is_ok() && left == 1 {
        // SAFETY: from Box::into_raw, and the library holds no reference.
        drop(unsafe { Box::from_raw(device) });
    } else if found.is_ok() {
        return Err(format!("struct verbs_device: its count is {left} after the last user, expected 1"));
    }
    found
}

fn read_context(
    library: &Library,
    context: *mut u8,
    device: *const ibv_device,
    refcount: c_int,
) -> Result<(usize, OpsTable), String> {
    if refcount != 2 {
        return Err(format!("struct verbs_device: its count is {refcount} with one user, expected 2"));
    }
    let context_size = find_context_size(context, device)?;
    let inner = context_size - size_of::<ibv_context>();
    let sentinels: [*const c_void; MAX_OPS] = std::array::from_fn(|slot| (SENTINEL + slot) as *const c_void);
    // SAFETY: the sentinels are copied, not called.
    unsafe { library.set_ops(context, &sentinels) };

    let count = count_private_ops(word(context, inner - 8 * PRIV_WORD) as *const u8)?;
    let as_slot = |value: usize| value.checked_sub(SENTINEL).filter(|slot| *slot < MAX_OPS);
    let mut seen: Vec<(&str, usize)> = Vec::new();
    for (index, name) in CONTEXT_SLOTS.iter().enumerate() {
        let value = word(context, inner + offset_of!(ibv_context, ops) + 8 * index);
        note(&mut seen, name, as_slot(value), &format!("ibv_context.ops[{index}]"))?;
    }
    for below in 1..=inner / 8 {
        let name = EXTENDED_SLOTS.get(below - 1).copied().unwrap_or("");
        let slot = as_slot(word(context, inner - 8 * below));
        note(&mut seen, name, slot, &format!("struct verbs_context, {below} words below ibv_context"))?;
    }
    for release in RELEASES {
        let table = OpsTable::of(release);
        if table.len() == count && seen.iter().all(|(name, slot)| table.slot(name) == Some(*slot)) {
            return Ok((context_size, table));
        }
    }
    Err(format!("struct verbs_context_ops: {count} operations in an order of no known release"))
}

/// A named slot must hold a sentinel, an unnamed one must not.
fn note<'a>(
    seen: &mut Vec<(&'a str, usize)>,
    name: &'a str,
    slot: Option<usize>,
    at: &str,
) -> Result<(), String> {
    match slot {
        Some(slot) if !name.is_empty() => seen.push((name, slot)),
        Some(slot) => return Err(format!("{at}: operation {slot}, expected none")),
        None if name.is_empty() => {}
        None => return Err(format!("{at}: nothing, expected {name}")),
    }
    Ok(())
}

/// `sz` precedes `ibv_context`, which begins with the device pointer and ends the structure.
fn find_context_size(context: *const u8, device: *const ibv_device) -> Result<usize, String> {
    let fits = |at: &usize| {
        word(context, *at) == at + 8 + size_of::<ibv_context>() && word(context, at + 8) == device as usize
    };
    let mut found = (0..CONTEXT_ROOM - 8 - size_of::<ibv_context>()).step_by(8).filter(fits);
    match (found.next(), found.next()) {
        (Some(at), None) => {
            let size = at + 8 + size_of::<ibv_context>();
            let fd = word(context, at + 8 + offset_of!(ibv_context, cmd_fd));
            // Two ints of -1: the command descriptor that was passed, and the event descriptor, which is not opened.
            if fd != usize::MAX || at / 8 < PRIV_WORD {
                return Err(format!(
                    "struct verbs_context of {size} bytes: descriptors {fd:#x}, expected -1 and -1"
                ));
            }
            Ok(size)
        }
        _ => Err("struct verbs_context: no sz before an ibv_context that names its device".into()),
    }
}

/// The library keeps its own copy of the whole table: its length is the number of operations it knows.
fn count_private_ops(private: *const u8) -> Result<usize, String> {
    if private.is_null() || private as usize % 8 != 0 {
        return Err("struct verbs_context: no private part".into());
    }
    // SAFETY: the library allocated it with calloc; only its usable size is queried.
    let words = unsafe { libc::malloc_usable_size(private.cast_mut().cast()) } / 8;
    if !(RELEASES.len()..=1 << 16).contains(&words) {
        return Err("struct verbs_context: no private part of a believable size".into());
    }
    let value = |index: usize| word(private, 8 * index);
    let start = (0..words).find(|index| value(*index) == SENTINEL);
    let start = start.ok_or("its private part holds no copy of the operations")?;
    let count = (start..words).zip(SENTINEL..).take_while(|(index, wanted)| value(*index) == *wanted).count();
    if count >= MAX_OPS {
        return Err(format!("struct verbs_context_ops: {MAX_OPS} operations or more, expected at most 93"));
    }
    Ok(count)
}

/// `ibv_qp_to_qp_ex` depends on one bit of `comp_mask`: the only word that changes its result is `comp_mask`.
fn probe_qp(library: &Library) -> Result<usize, String> {
    let mut room: Box<[u32; QP_ROOM / 4]> = Box::new([0; QP_ROOM / 4]);
    let mut says_extended = |index: Option<usize>| {
        room.fill(0);
        if let Some(index) = index {
            room[index] = VERBS_QP_EX;
        }
        // SAFETY: the function only reads the object, which is larger than any known one.
        let answer = unsafe { (library.qp_to_ex)(room.as_mut_ptr().cast()) };
        answer != null::<c_void>().cast_mut()
    };
    if says_extended(None) {
        return Err("ibv_qp_to_qp_ex: an empty QP is extended".into());
    }
    let found: Vec<usize> = (0..QP_ROOM / 4).filter(|index| says_extended(Some(*index))).collect();
    match found[..] {
        // It follows the union of ibv_qp and ibv_qp_ex, which has a known minimum size of 344 (v36).
        [index] if (344..=512).contains(&(4 * index)) => Ok(4 * index),
        _ => Err(format!("struct verbs_qp: comp_mask at words {found:?}, expected one of 86 to 128")),
    }
}
