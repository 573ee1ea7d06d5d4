//! XRC domains, and target QPs, which belong to a domain rather than to an opener (IBTA annex A14).
//!
//! All openers that have the same file open get the same domain, and may open the target QPs in it by number. So both
//! belong to the function (user context 0), and are destroyed with the last opener that holds them.

use super::{Device, OF_FUNCTION, Pd, ends::ends};
use crate::{
    abandoned::{destroy, destroy_unheld, is_busy, sweep, unname},
    error::Error,
    function::Function,
    placeholders::Placeholders,
    shared_area::{FileId, FunctionLock, XrcObject},
};
use hwspec::{
    cmd::{CmdIn, Opcode, qp::*, resource::*},
    context::{PathMigState, ServiceType, qp::*},
};
use std::sync::Arc;

/// Options for opening an XRC domain (`ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcOpen {
    /// The file that identifies it. `None`: no other opener can find it.
    pub file: Option<FileId>,
    /// Create the domain if it does not exist (`O_CREAT`).
    pub create: bool,
    /// Fail if the domain exists (`O_EXCL`).
    pub exclusive: bool,
}

/// An XRC domain held by one opener.
pub struct XrcDomain {
    device: Arc<Device>,
    xrcdn: u32,
    /// Placeholders for the contexts of target QPs.
    placeholders: Placeholders,
    live: bool,
}

impl XrcDomain {
    /// Opens the domain of a file, or a new one. EOPNOTSUPP: the device has no XRC; EAGAIN: the file has no domain and
    /// `create` is not set; EINVAL: the file has one and `exclusive` is set.
    pub fn open(device: &Arc<Device>, how: XrcOpen) -> Result<Arc<XrcDomain>, Error> {
        let function = &device.function;
        if !function.caps.general.xrc() {
            return Err(Error::unsupported("the device has no XRC"));
        }
        let lock = function.lock()?;
        sweep(function, &lock);
        let placeholders = Placeholders::of(function, &lock)?;
        let found = how.file.and_then(|file| lock.domain_of(file));
        let xrcdn = match found {
            Some(_) if how.exclusive => {
                return Err(Error::invalid("the file has an XRC domain already"));
            }
            Some(xrcdn) => {
                lock.hold(XrcObject::Domain(xrcdn))?;
                xrcdn
            }
            None if how.file.is_some() && !how.create => {
                return Err(Error::refused(libc::EAGAIN, "the file has no XRC domain"));
            }
            None => Self::allocate(function, &lock, how.file)?,
        };
        drop(lock);
        Ok(Arc::new(XrcDomain { device: device.clone(), xrcdn, placeholders, live: true }))
    }

    fn allocate(function: &Function, lock: &FunctionLock<'_>, file: Option<FileId>) -> Result<u32, Error> {
        let out: AllocXrcdOut = function.call(Opcode::AllocXrcd, OF_FUNCTION, &CmdIn::zeroed())?;
        let xrcdn = out.xrcd();
        let named = file.map_or(Ok(()), |file| lock.name_domain(file, xrcdn));
        let held = named.and_then(|()| lock.hold(XrcObject::Domain(xrcdn)));
        if let Err(error) = held {
            destroy_unheld(function, lock, XrcObject::Domain(xrcdn));
            return Err(error);
        }
        Ok(xrcdn)
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its number.
    pub fn xrcdn(&self) -> u32 {
        self.xrcdn
    }

    /// The protection domain of target QPs, owned by the function, so that openers do not deallocate it.
    pub(super) fn pd(&self) -> Arc<Pd> {
        Pd::of_function(&self.device, self.placeholders.pdn)
    }

    /// Creates a target QP in RESET, with a hold for this opener. Returns its number.
    pub(super) fn create_target(self: &Arc<Self>) -> Result<u32, Error> {
        let function = &self.device.function;
        let lock = function.lock()?;
        sweep(function, &lock);
        let qpc = QpContext::with(|s| {
            s.st(ServiceType::Xrc)
                .pm_state(PathMigState::Migrated)
                .pd(self.placeholders.pdn)
                .no_sq(true)
                .rq_type(RQ_SHARED)
                .srqn_rmpn_xrqn(self.placeholders.srqn)
                .cqn_snd(self.placeholders.cqn)
                .cqn_rcv(self.placeholders.cqn)
                .xrcd(self.xrcdn)
                .user_index(NO_USER_INDEX)
        });
        let input = CreateQpIn::with(|s| s.qpc(qpc));
        let out: CreateQpOut = function.call(Opcode::CreateQp, OF_FUNCTION, &input)?;
        let held = XrcObject::Target(out.qpn());
        lock.hold(held).inspect_err(|_| destroy_unheld(function, &lock, held))?;
        Ok(out.qpn())
    }

    /// Adds a hold on an existing target QP. EINVAL: the domain has no target QP with this number.
    pub(super) fn hold_target(&self, qpn: u32) -> Result<(), Error> {
        let function = &self.device.function;
        let lock = function.lock()?;
        sweep(function, &lock);
        let absent = || Error::invalid(format!("the domain has no target QP {qpn:#x}"));
        if qpn > 0xff_ffff || !lock.is_held(XrcObject::Target(qpn)) {
            return Err(absent());
        }
        let input = QueryQpIn::with(|s| s.qpn(qpn));
        let out: QueryQpOut = function.call(Opcode::QueryQp, OF_FUNCTION, &input)?;
        match out.qpc().xrcd() == self.xrcdn {
            true => lock.hold(XrcObject::Target(qpn)),
            false => Err(absent()),
        }
    }

    /// Drops a hold on a target QP. The last one destroys it.
    pub(super) fn drop_target(&self, qpn: u32) -> Result<(), Error> {
        drop_hold(&self.device.function, XrcObject::Target(qpn))
    }

    /// The placeholders for the context of an initiator QP, which receives nothing.
    pub(super) fn placeholders(device: &Device) -> Result<Placeholders, Error> {
        let function = &device.function;
        let lock = function.lock()?;
        Placeholders::of(function, &lock)
    }

    fn release(&mut self) -> Result<(), Error> {
        drop_hold(&self.device.function, XrcObject::Domain(self.xrcdn))
    }
}

ends! {
    /// Closes the domain. EBUSY while it has SRQs and target QPs of this opener, which keep it until the last of them
    /// is gone. Dropping the last reference does the same without reporting errors. Other openers are unaffected.
    XrcDomain.close: "the XRC domain is in use", "an XRC domain could not be closed", xrcdn = xrcdn
}

fn drop_hold(function: &Function, object: XrcObject) -> Result<(), Error> {
    if crate::cmd::is_gone(&function.bar) {
        return Ok(()); // in a child of fork the hold belongs to the parent
    }
    let lock = function.lock()?;
    let mut result = Ok(());
    if lock.drop_hold(object) {
        unname(&lock, object);
        result = destroy(function, object);
        if matches!(&result, Err(error) if is_busy(error)) {
            // The domain contains objects of dead openers that are still to be destroyed.
            result = lock.orphan(object);
        }
    }
    sweep(function, &lock);
    result
}
