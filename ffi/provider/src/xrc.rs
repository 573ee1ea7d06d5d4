//! XRC domains, identified by files.

use crate::abi::public::{self as abi, ibv_context, ibv_qp, ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr};
use crate::context::{Context, io_errno};
use crate::guard::guard_ptr;
use crate::ours::{Ours, destroy, ours};
use crate::qp_verbs;
use crate::users::{Use, Users};
use driver::{FileId, InPlace, XrcOpen};
use libc::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// The provider's XRC domain. Programs see its first member.
#[repr(C)]
pub struct IronXrcd {
    public: ibv_xrcd,
    /// The driver's XRC domain.
    pub inner: Arc<driver::XrcDomain>,
    /// SRQs and target QPs in it.
    pub users: Users,
    /// The file that identifies it. Kept open so that its inode number is not reused.
    _file: Option<OwnedFd>,
    _context: Use,
}

ours!(IronXrcd: ibv_xrcd);

/// Returns the identity of the file behind a descriptor, and a duplicate that keeps it open.
fn file_of(fd: c_int) -> Result<(FileId, OwnedFd), c_int> {
    // SAFETY: any number is acceptable; the result is a fresh descriptor that this function owns.
    let kept = unsafe {
        match libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) {
            -1 => return Err(io_errno(std::io::Error::last_os_error())),
            kept => OwnedFd::from_raw_fd(kept),
        }
    };
    // SAFETY: a structure of integers to fill; any descriptor is acceptable.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) != 0 {
            return Err(io_errno(std::io::Error::last_os_error()));
        }
        stat
    };
    Ok((FileId { dev: stat.st_dev, ino: stat.st_ino }, kept))
}

/// `ibv_open_xrcd`.
///
/// # Safety
/// Called by programs with an open context of this provider.
pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const KNOWN: u32 = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `init`.
        let (ours, init) = unsafe { (Context::of(context), &*init) };
        ours.birth.check()?;
        if init.comp_mask & !KNOWN != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if init.comp_mask != KNOWN {
            return Err(libc::EINVAL);
        }
        let (file, kept) = if init.fd == -1 { None } else { Some(file_of(init.fd)?) }.unzip();
        let how = XrcOpen {
            file,
            create: init.oflags & libc::O_CREAT != 0,
            exclusive: init.oflags & libc::O_EXCL != 0,
        };
        let inner = driver::XrcDomain::open(&ours.device, how).map_err(|e| e.errno())?;
        let public = ibv_xrcd { context };
        let (users, of_context) = (Users::default(), ours.users.hold());
        Ok(IronXrcd { public, inner, users, _file: kept, _context: of_context }.into_public())
    })
}

/// `ibv_close_xrcd`.
///
/// # Safety
/// Called by programs with an XRC domain of this provider.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: V1, V2 and V5 for the domain, V3 for its context; the check ensures that it has no users.
    unsafe {
        let leave = |_: &Context| IronXrcd::of(xrcd).users.none();
        destroy(xrcd, leave, |ours: &mut IronXrcd| ours.inner.destroy_in_place())
    }
}

/// `ibv_open_qp`: opens a target QP that this or another program created in the XRC domain.
///
/// # Safety
/// Called by programs with an open context of this provider.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    const NEEDED: u32 = abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `attr`: a member is read only if `comp_mask` names it; V1, V2 and V6 for
        // the domain.
        unsafe {
            let attr = &*attr;
            if attr.comp_mask & !(NEEDED | abi::IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let whole = attr.comp_mask & NEEDED == NEEDED;
            if !whole || attr.xrcd.is_null() || attr.qp_type != abi::IBV_QPT_XRC_RECV {
                return Err(libc::EINVAL);
            }
            let has_context = attr.comp_mask & abi::IBV_QP_OPEN_ATTR_CONTEXT != 0;
            let qp_context = if has_context { attr.qp_context } else { std::ptr::null_mut() };
            qp_verbs::target(context, attr.xrcd, qp_context, |domain, cookie| {
                driver::Qp::open_target(domain, attr.qp_num, cookie)
            })
        }
    })
}
