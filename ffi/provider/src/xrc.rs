//! XRC domains, identified by files.

use crate::abi::public::{self as abi, ibv_context, ibv_qp, ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr};
use crate::context::io_errno;
use crate::guard::{answer, verb};
use crate::ours::{Destroy, Of, ends_inner, ours};
use crate::qp_verbs;
use crate::users::{Use, Users};
use driver::{FileId, XrcOpen};
use libc::c_int;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
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
    _file: Option<File>,
    _context: Use,
}

ours!(IronXrcd: ibv_xrcd);

/// Returns the identity of the file behind a descriptor, and a duplicate that keeps it open.
fn file_of(fd: c_int) -> Result<(FileId, File), c_int> {
    // SAFETY: any number but -1 is acceptable; the descriptor is only duplicated, by which a closed one fails.
    let kept = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(io_errno)?;
    let kept = File::from(kept);
    let found = kept.metadata().map_err(io_errno)?;
    Ok((FileId { dev: found.dev(), ino: found.ino() }, kept))
}

/// `ibv_open_xrcd`.
pub extern "C" fn open_xrcd(context: Of<ibv_context>, init: &ibv_xrcd_init_attr) -> Option<Of<ibv_xrcd>> {
    const KNOWN: u32 = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
    verb(context, || {
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
        let inner = driver::XrcDomain::open(&context.device, how)?;
        let public = ibv_xrcd { context: context.raw() };
        let (users, of_context) = (Users::default(), context.users.hold());
        Ok(Of::made(IronXrcd { public, inner, users, _file: kept, _context: of_context }))
    })
}

/// `ibv_close_xrcd`.
impl Destroy for ibv_xrcd {
    fn leave(xrcd: Of<Self>) -> Result<(), c_int> {
        xrcd.users.none()
    }

    ends_inner!();
}

/// `ibv_open_qp`: opens a target QP that this or another program created in the XRC domain.
pub extern "C" fn open_qp(context: Of<ibv_context>, attr: &ibv_qp_open_attr) -> Option<Of<ibv_qp>> {
    const NEEDED: u32 = abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
    answer(|| {
        if attr.comp_mask & !(NEEDED | abi::IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // A member is read only if `comp_mask` names it.
        let whole = attr.comp_mask & NEEDED == NEEDED && attr.qp_type == abi::IBV_QPT_XRC_RECV;
        let domain = if whole { attr.xrcd } else { None }.ok_or(libc::EINVAL)?;
        let has_context = attr.comp_mask & abi::IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if has_context { attr.qp_context } else { std::ptr::null_mut() };
        qp_verbs::target(context, domain, None, qp_context, |domain, cookie| {
            driver::Qp::open_target(domain, attr.qp_num, cookie)
        })
    })
}
