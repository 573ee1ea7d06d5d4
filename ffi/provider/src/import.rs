//! Objects that one context of a program created and another uses (`ibv_import_device`, `ibv_import_pd` and their like).
//!
//! A context is imported by its command descriptor or a duplicate of it, which refer to the same file. The device file of a simulated
//! function is meaningless in another process, so imported objects must belong to a context that this process opened.

use crate::abi::memory::ibv_dm;
use crate::abi::public::{ibv_context, ibv_mr, ibv_pd};
use crate::context::Context;
use crate::dm::IronDm;
use crate::exports::{Exports, List};
use crate::guard::{guard, set_errno, verb};
use crate::mr::{IronMr, TYPE_IMPORTED};
use crate::ours::{Last, Of};
use crate::pd::{IronPd, PdKind};
use driver::LinkLayer;
use libc::{c_int, c_ulong, c_void};
use node::place::Place;
use std::os::fd::RawFd;
use std::ptr::null_mut;

/// Contexts of this process, by command descriptor.
static CONTEXTS: List<ibv_context> = List::new();

impl Exports {
    /// Calls `then` with the region that has this key, in any context that shares the device.
    pub fn with_key<T>(&self, key: u32, then: impl FnOnce(Of<ibv_mr>) -> T) -> Option<T> {
        self.mrs.with(|handle| handle == key >> 8, |mr| (mr.keys().0 == key).then(|| then(mr))).flatten()
    }
}

/// Makes a context importable by `fd`.
pub fn enter_context(fd: RawFd, context: Of<ibv_context>) {
    CONTEXTS.enter(context, fd as u32);
}

/// Withdraws a context that is about to be closed.
pub fn leave_context(context: Of<ibv_context>) {
    CONTEXTS.leave(context.raw());
}

/// The places of the devices that this process has open.
pub fn open_places() -> Vec<Place> {
    CONTEXTS.each(|context| context.birth.is_here().then(|| context.library_device().place.clone()))
}

/// Finds the context with command descriptor `fd`, or with one that `fd` duplicates: the first one, which the program keeps open until the
/// import is done, while other threads may close contexts that they imported. Fails with EOPNOTSUPP if no context of this process matches.
pub fn context_behind(fd: RawFd) -> Result<Of<ibv_context>, c_int> {
    CONTEXTS.with(|other| is_same_file(fd, other as RawFd), |context| context).ok_or(libc::EOPNOTSUPP)
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
/// `command` is a whole command with as many attributes as it says (V4).
unsafe fn answer(context: Of<ibv_context>, command: *mut Command) -> Option<Result<(), c_int>> {
    // SAFETY: guaranteed by the caller: the attributes follow the command.
    let (of, attributes) = unsafe {
        let count = usize::from((*command).attributes);
        let list = std::slice::from_raw_parts_mut(command.add(1).cast::<Attribute>(), count);
        (((*command).object, (*command).method), list)
    };
    match (of, attributes) {
        (ASYNC_EVENT, [file]) => {
            // SAFETY: V1: `join` has set the descriptor.
            file.data = unsafe { (*context.raw()).async_fd }.into();
            Some(Ok(()))
        }
        // All releases pass exactly these attributes, in this order. Without this command the library would read sysfs, which fails in
        // programs that have changed their root or run out of descriptors.
        (GID_ENTRY, [port, index, _flags, entry]) if usize::from(entry.len) >= size_of::<GidEntry>() => {
            let found = gid_entry(&context, port.data as u32, index.data as u32);
            entry.flags |= VALID;
            // SAFETY: guaranteed by the caller: V4 for the output buffer, whose alignment is not guaranteed.
            Some(found.map(|found| unsafe { (entry.data as *mut GidEntry).write_unaligned(found) }))
        }
        _ => None,
    }
}

/// Returns entry `index` of a port's GID table. Fails with ENODATA if it is empty and EINVAL if the port or the entry does not exist.
fn gid_entry(context: &Context, port: u32, index: u32) -> Result<GidEntry, c_int> {
    /// `IB_UVERBS_GID_TYPE_IB`, `IB_UVERBS_GID_TYPE_ROCE_V2`.
    const KINDS: [u32; 2] = [0, 2];
    context.birth.check()?;
    let number = u16::try_from(index).ok().filter(|_| port == 1).ok_or(libc::EINVAL)?;
    let gid = context.device.gid(number)?;
    let is_ethernet = context.device.port()?.link_layer == LinkLayer::Ethernet;
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
        if request != VERBS_IOCTL || argument.is_null() {
            return None;
        }
        let context = CONTEXTS.with(|other| other as RawFd == fd, |context| context)?;
        // SAFETY: guaranteed by the caller: a whole command.
        unsafe { answer(context, argument.cast()) }
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
pub extern "C" fn import_pd(context: Of<ibv_context>, handle: u32) -> Option<Of<ibv_pd>> {
    verb(context, || {
        let found = context.exports.pds.with(
            |other| other == handle,
            |theirs| {
                let kind = PdKind::Imported { _origin: theirs.users.hold() };
                IronPd::publish(context, theirs.inner.clone(), kind)
            },
        );
        found.ok_or(libc::ENOENT)
    })
}

/// `ibv_unimport_pd`. Programs may call it before they destroy the objects that they created in the PD.
pub extern "C" fn unimport_pd(pd: Last<ibv_pd>) {
    guard((), || {
        let found = pd.of();
        if !found.context().birth.is_here() {
            return;
        }
        if found.users.none().is_ok() {
            drop(pd.take());
            return;
        }
        let ours = found.raw().cast::<IronPd>();
        // SAFETY: V1, V2 and V5. Objects in the PD still refer to its public part, so that stays allocated; they count as users of it until
        // they are destroyed. Nothing uses the other members any more.
        unsafe {
            (&raw mut (*ours).inner).drop_in_place();
            (&raw mut (*ours).kind).drop_in_place();
            (&raw mut (*ours).context).drop_in_place();
        }
    });
}

/// `ibv_import_mr`. The region's address is not reported. The device keeps the region until the original is deregistered. Fails with ENOENT
/// if no context of the device has a region with this handle.
pub extern "C" fn import_mr(pd: Of<ibv_pd>, handle: u32) -> Option<Of<ibv_mr>> {
    verb(pd, || {
        let mrs = &pd.context().exports.mrs;
        let found = mrs.with(|other| other == handle, |theirs| (theirs.length(), theirs.keys()));
        let (length, keys) = found.ok_or(libc::ENOENT)?;
        Ok(IronMr::publish(pd, (null_mut(), length), 0, keys, TYPE_IMPORTED, 0, None))
    })
}

/// `ibv_import_dm`. The device keeps the memory until the original is freed. Fails with ENOENT if no context of the device has device
/// memory with this handle.
pub extern "C" fn import_dm(context: Of<ibv_context>, handle: u32) -> Option<Of<ibv_dm>> {
    verb(context, || {
        let found = context.exports.dms.with(|other| other == handle, |theirs| theirs.inner.clone());
        Ok(IronDm::publish(context, found.ok_or(libc::ENOENT)?))
    })
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
