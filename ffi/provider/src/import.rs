//! Objects that one context of a program created and another uses (`ibv_import_device`, `ibv_import_pd` and their like).
//!
//! A context is imported by its command descriptor or a duplicate of it, which refer to the same file. The device file of a simulated
//! function is meaningless in another process, so imported objects must belong to a context that this process opened.

use crate::abi::memory::ibv_dm;
use crate::abi::public::{ibv_context, ibv_mr, ibv_pd};
use crate::context::Context;
use crate::device::IronDevice;
use crate::dm::IronDm;
use crate::exports::{At, Exports, find, hold};
use crate::guard::{guard, guard_ptr, set_errno};
use crate::mr::{IronMr, TYPE_IMPORTED};
use crate::ours::{Ours, destroy};
use crate::pd::{IronPd, PdKind};
use driver::LinkLayer;
use libc::{c_int, c_ulong, c_void};
use node::place::Place;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Mutex;

/// Contexts of this process, by command descriptor.
static CONTEXTS: Mutex<Vec<(RawFd, At)>> = Mutex::new(Vec::new());

impl Exports {
    /// Calls `then` with the region that has this key, in any context that shares the device.
    pub fn with_key<T>(&self, key: u32, then: impl FnOnce(&ibv_mr, &IronMr) -> T) -> Option<T> {
        let mrs = hold(&self.mrs);
        let at = find(&mrs, key >> 8)? as *const ibv_mr;
        // SAFETY: on the list, so not deregistered while the lock is held.
        let (public, ours) = unsafe { (&*at, IronMr::of(at)) };
        (public.lkey == key).then(|| then(public, ours))
    }
}

/// Makes a context importable by `fd`.
pub fn enter_context(fd: RawFd, context: *mut ibv_context) {
    hold(&CONTEXTS).push((fd, context as At));
}

/// Withdraws a context that is about to be closed.
pub fn leave_context(context: *mut ibv_context) {
    hold(&CONTEXTS).retain(|(_, at)| *at != context as At);
}

/// The places of the devices that this process has open.
pub fn open_places() -> Vec<Place> {
    let contexts = hold(&CONTEXTS);
    // SAFETY: on the list, so not closed while the lock is held; its device belongs to this provider.
    let place = |at: &At| unsafe {
        let context = *at as *const ibv_context;
        let here = Context::of(context).birth.is_here();
        here.then(|| (*(*context).device.cast::<IronDevice>()).place.clone())
    };
    contexts.iter().filter_map(|(_, at)| place(at)).collect()
}

/// Finds the context with command descriptor `fd`, or with one that `fd` duplicates. The program keeps the context open until the import is
/// done. Fails with EOPNOTSUPP if no context of this process matches.
pub fn context_behind(fd: RawFd) -> Result<*mut ibv_context, c_int> {
    let found = hold(&CONTEXTS).iter().find(|(other, _)| is_same_file(fd, *other)).map(|(_, at)| *at);
    Ok(found.ok_or(libc::EOPNOTSUPP)? as *mut ibv_context)
}

/// True if two descriptors of this process refer to the same open file description.
fn is_same_file(a: RawFd, b: RawFd) -> bool {
    /// `KCMP_FILE`.
    const FILE: c_int = 0;
    let pid = std::process::id();
    // SAFETY: kcmp compares the files and has no side effects.
    a == b || unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, FILE, a, b) } == 0
}

/// Header of a command of the kernel's ioctl interface; its attributes follow.
#[repr(C)]
struct Command {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved: [u64; 2],
}

/// An attribute of such a command.
#[repr(C)]
struct Attribute {
    id: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    data: i64,
}

/// `RDMA_VERBS_IOCTL`.
const VERBS_IOCTL: c_ulong = 0xc018_1b01;
/// `UVERBS_OBJECT_ASYNC_EVENT`. Its method 0 creates an event file.
const ASYNC_EVENT: (u16, u16) = (16, 0);
/// `UVERBS_OBJECT_DEVICE`, `UVERBS_METHOD_QUERY_GID_ENTRY`.
const GID_ENTRY: (u16, u16) = (0, 6);
/// `UVERBS_ATTR_F_VALID_OUTPUT`.
const VALID: u16 = 2;

/// `struct ib_uverbs_gid_entry`.
#[repr(C)]
struct GidEntry {
    gid: [u8; 16],
    index: u32,
    port: u32,
    kind: u32,
    interface: u32,
}

/// Handles an ioctl command of libibverbs for a context of this provider. Returns `None` for commands to pass to the kernel.
///
/// # Safety
/// `command` is a whole command with as many attributes as it says, and `context` an open context of this provider.
unsafe fn answer(context: *const ibv_context, command: *mut Command) -> Option<Result<(), c_int>> {
    // SAFETY: guaranteed by the caller: the attributes follow the command.
    let (of, attributes) = unsafe {
        let count = usize::from((*command).attributes);
        let list = std::slice::from_raw_parts_mut(command.add(1).cast::<Attribute>(), count);
        (((*command).object, (*command).method), list)
    };
    match (of, attributes) {
        (ASYNC_EVENT, [file]) => {
            // SAFETY: guaranteed by the caller.
            file.data = unsafe { (*context).async_fd }.into();
            Some(Ok(()))
        }
        // All releases pass exactly these attributes, in this order. Without this command the library would read sysfs, which fails in
        // programs that have changed their root or run out of descriptors.
        (GID_ENTRY, [port, index, _flags, entry]) if usize::from(entry.len) >= size_of::<GidEntry>() => {
            // SAFETY: guaranteed by the caller: V4 for the output buffer.
            let found = unsafe { gid_entry(context, port.data as u32, index.data as u32) };
            entry.flags |= VALID;
            // SAFETY: as above; its alignment is not guaranteed.
            Some(found.map(|found| unsafe { (entry.data as *mut GidEntry).write_unaligned(found) }))
        }
        _ => None,
    }
}

/// Returns entry `index` of a port's GID table. Fails with ENODATA if it is empty and EINVAL if the port or the entry does not exist.
///
/// # Safety
/// `context` is an open context of this provider.
unsafe fn gid_entry(context: *const ibv_context, port: u32, index: u32) -> Result<GidEntry, c_int> {
    /// `IB_UVERBS_GID_TYPE_IB`, `IB_UVERBS_GID_TYPE_ROCE_V2`.
    const KINDS: [u32; 2] = [0, 2];
    // SAFETY: V1.
    let ours = unsafe { Context::of(context) };
    ours.birth.check()?;
    let number = u16::try_from(index).ok().filter(|_| port == 1).ok_or(libc::EINVAL)?;
    let gid = ours.device.gid(number).map_err(|e| e.errno())?;
    let is_ethernet = ours.device.port().map_err(|e| e.errno())?.link_layer == LinkLayer::Ethernet;
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => Err(libc::ENODATA),
        gid => Ok(GidEntry { gid, index, port, kind: KINDS[usize::from(is_ethernet)], interface: 0 }),
    }
}

/// Replaces ioctl(2) in libibverbs. For an imported context the library asks the kernel for an event file even if the context has one: the
/// command returns the existing file.
///
/// # Safety
/// As for ioctl(2) with one argument. libibverbs built any command for one of the provider's descriptors.
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let answered = guard(None, || {
        let context = || hold(&CONTEXTS).iter().find(|(other, _)| *other == fd).map(|(_, at)| *at);
        if request != VERBS_IOCTL || argument.is_null() {
            return None;
        }
        // SAFETY: a whole command with as many attributes as it says, and an open context of this provider.
        unsafe { answer(context()? as *const ibv_context, argument.cast()) }
    });
    match answered {
        Some(Ok(())) => 0,
        Some(Err(errno)) => {
            set_errno(errno);
            -1
        }
        // SAFETY: the arguments are the caller's, unchanged.
        None => unsafe { libc::ioctl(fd, request, argument) },
    }
}

/// `ibv_import_pd`. Fails with ENOENT if no context of the device has a PD with this handle.
///
/// # Safety
/// Called by programs with an open context of this provider.
pub unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    guard_ptr(|| {
        // SAFETY: V1.
        let ours = unsafe { Context::of(context) };
        ours.birth.check()?;
        let pds = hold(&ours.exports.pds);
        let at = find(&pds, handle).ok_or(libc::ENOENT)?;
        // SAFETY: on the list, so not deallocated; it cannot be deallocated while it is in use.
        let theirs = unsafe { IronPd::of(at as *const ibv_pd) };
        let kind = PdKind::Imported { _origin: theirs.users.hold() };
        // SAFETY: V1.
        Ok(unsafe { IronPd::publish(context, theirs.inner.clone(), kind) })
    })
}

/// `ibv_unimport_pd`. Programs may call it before they destroy the objects that they created in the PD.
///
/// # Safety
/// Called by programs as the last use of a PD that [`import_pd`] returned.
pub unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    guard((), || {
        // SAFETY: V1, V2 and V5 for the domain, V3 for its context and for the PD that it was imported from, which counts it as a user.
        unsafe {
            if !IronPd::context(pd).birth.is_here() {
                return;
            }
            let ours = pd.cast::<IronPd>();
            match (*ours).users.none() {
                Ok(()) => drop(Box::from_raw(ours)),
                // Objects in the PD still refer to its public part and its use count, so those stay allocated.
                Err(_) => {
                    (&raw mut (*ours).inner).drop_in_place();
                    (&raw mut (*ours).kind).drop_in_place();
                    (&raw mut (*ours).context).drop_in_place();
                }
            }
        }
    });
}

/// `ibv_import_mr`. The region's address is not reported. Fails with ENOENT if no context of the device has a region with this handle.
///
/// # Safety
/// Called by programs with a PD of this provider.
pub unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    guard_ptr(|| {
        // SAFETY: V1 for the PD, V3 for its context.
        let ours = unsafe { IronPd::context(pd) };
        ours.birth.check()?;
        let mrs = hold(&ours.exports.mrs);
        let at = find(&mrs, handle).ok_or(libc::ENOENT)?;
        // SAFETY: on the list, so not deregistered.
        let (length, keys) = unsafe {
            let theirs = at as *const ibv_mr;
            ((*theirs).length, ((*theirs).lkey, (*theirs).rkey))
        };
        drop(mrs);
        // SAFETY: V1 and V2 for the PD.
        Ok(unsafe { IronMr::hand_out(pd, (null_mut(), length), keys, TYPE_IMPORTED, 0, None) })
    })
}

/// `ibv_unimport_mr`.
///
/// # Safety
/// Called by programs as the last use of a region that [`import_mr`] returned.
pub unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: V1, V2 and V5 for the region, V3 for its PD and context. The device keeps the region until the original is deregistered.
    unsafe { destroy(mr, |_| Ok(()), |_: &mut IronMr| Ok(())) };
}

/// `ibv_import_dm`. Fails with ENOENT if no context of the device has device memory with this handle.
///
/// # Safety
/// Called by programs with an open context of this provider.
pub unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    guard_ptr(|| {
        // SAFETY: V1.
        let ours = unsafe { Context::of(context) };
        ours.birth.check()?;
        let dms = hold(&ours.exports.dms);
        let at = find(&dms, handle).ok_or(libc::ENOENT)?;
        // SAFETY: on the list, so not freed.
        let inner = unsafe { IronDm::of(at as *const ibv_dm) }.inner.clone();
        // SAFETY: V1.
        Ok(unsafe { IronDm::hand_out(context, inner) })
    })
}

/// `ibv_unimport_dm`.
///
/// # Safety
/// Called by programs as the last use of device memory that [`import_dm`] returned.
pub unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: V1, V2 and V5 for the device memory, V3 for its context. The device keeps the memory until the original is freed.
    unsafe { destroy(dm, |_| Ok(()), |_: &mut IronDm| Ok(())) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_the_same_file_and_another_opening_is_not() {
        let open = || std::fs::File::open("/dev/null").expect("/dev/null");
        use std::os::fd::AsRawFd;
        let (one, two) = (open(), open());
        let copy = one.try_clone().expect("a duplicate");
        assert!(is_same_file(one.as_raw_fd(), copy.as_raw_fd()));
        assert!(!is_same_file(one.as_raw_fd(), two.as_raw_fd()));
        assert!(!is_same_file(one.as_raw_fd(), -1));
    }
}
