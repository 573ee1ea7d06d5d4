//! Domains of extended reliable connections, and target QPs, which are the domain's and not an opener's (IBTA annex A14).
//!
//! Whoever has the same file open gets the same domain, and may open the target QPs in it by their numbers. So both
//! belong to the function (user context 0), and go with the last opener that holds them.

use super::{Device, Pd, Qp, QpInit, Service};
use crate::{
    claims::{FileId, FunctionLock, Held},
    error::Error,
    function::Function,
    stand_ins::{self, StandIns},
};
use hwspec::{
    cmd::{Opcode, Status, qp::*, resource::*},
    context::{PathMigState, ServiceType, qp::QpContext},
};
use std::sync::Arc;

/// `qpc.rq_type`: receives come from an SRQ.
const SHARED_RQ: u8 = 1;
/// `qpc.user_index` of those who have none.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// How to open an XRC domain (`ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct XrcOpen {
    /// The file that names it; `None`: nobody else shall find it.
    pub file: Option<FileId>,
    /// It may be new (`O_CREAT`).
    pub create: bool,
    /// It must be new (`O_EXCL`).
    pub exclusive: bool,
}

/// An XRC domain, as one opener holds it.
pub struct XrcDomain {
    device: Arc<Device>,
    xrcdn: u32,
    /// What target QPs are created with.
    stand_ins: StandIns,
    live: bool,
}

impl XrcDomain {
    /// Opens the domain of a file, or a new one. EOPNOTSUPP: the device has no XRC; EAGAIN: there is none and it may not be
    /// new; EINVAL: there is one and it must be new.
    pub fn open(device: &Arc<Device>, how: XrcOpen) -> Result<Arc<XrcDomain>, Error> {
        let function = &device.function;
        if !function.caps.general.xrc() {
            return Err(Error::Invalid { what: "the device has no XRC".into(), errno: libc::EOPNOTSUPP });
        }
        let lock = function.shared.lock(function.options.command_timeout)?;
        sweep(function, &lock);
        let stand_ins = StandIns::of(function, &lock)?;
        let found = how.file.and_then(|file| lock.domain_of(file));
        let xrcdn = match found {
            Some(_) if how.exclusive => {
                return Err(Error::invalid("the file has an XRC domain already"));
            }
            Some(xrcdn) => {
                lock.hold(Held::Domain(xrcdn))?;
                xrcdn
            }
            None if how.file.is_some() && !how.create => {
                return Err(Error::Invalid {
                    what: "the file has no XRC domain".into(),
                    errno: libc::EAGAIN,
                });
            }
            None => Self::allocate(function, &lock, how.file)?,
        };
        drop(lock);
        Ok(Arc::new(XrcDomain { device: device.clone(), xrcdn, stand_ins, live: true }))
    }

    fn allocate(function: &Function, lock: &FunctionLock<'_>, file: Option<FileId>) -> Result<u32, Error> {
        let out: AllocXrcdOut = function.call(Opcode::AllocXrcd, 0, &AllocXrcdIn::zeroed())?;
        let xrcdn = out.xrcd();
        let named = file.map_or(Ok(()), |file| lock.name_domain(file, xrcdn));
        let held = named.and_then(|()| lock.hold(Held::Domain(xrcdn)));
        if let Err(error) = held {
            destroy(function, lock, Held::Domain(xrcdn));
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

    /// The domain as target QPs name one: the function's own, which is not for us to deallocate.
    pub(super) fn pd(&self) -> Arc<Pd> {
        Pd::of_function(&self.device, self.stand_ins.pdn)
    }

    /// Creates a target QP in RESET; `cookie` comes back in its events.
    pub(super) fn create_target(self: &Arc<Self>) -> Result<u32, Error> {
        let function = &self.device.function;
        let lock = function.shared.lock(function.options.command_timeout)?;
        sweep(function, &lock);
        let mut qpc = QpContext::zeroed();
        qpc.set()
            .st(ServiceType::Xrc)
            .pm_state(PathMigState::Migrated)
            .pd(self.stand_ins.pdn)
            .no_sq(true)
            .rq_type(SHARED_RQ)
            .srqn_rmpn_xrqn(self.stand_ins.srqn)
            .cqn_snd(self.stand_ins.cqn)
            .cqn_rcv(self.stand_ins.cqn)
            .xrcd(self.xrcdn)
            .user_index(NO_USER_INDEX);
        let mut input = CreateQpIn::zeroed();
        input.set().qpc(qpc);
        let out: CreateQpOut = function.call(Opcode::CreateQp, 0, &input)?;
        let held = Held::Target(out.qpn());
        lock.hold(held).inspect_err(|_| destroy(function, &lock, held))?;
        Ok(out.qpn())
    }

    /// Holds a target QP that somebody has. EINVAL: there is none of this number in the domain.
    pub(super) fn hold_target(&self, qpn: u32) -> Result<(), Error> {
        let function = &self.device.function;
        let lock = function.shared.lock(function.options.command_timeout)?;
        sweep(function, &lock);
        let absent = || Error::invalid(format!("the domain has no target QP {qpn:#x}"));
        if qpn > 0xff_ffff || !lock.is_held(Held::Target(qpn)) {
            return Err(absent());
        }
        let mut input = QueryQpIn::zeroed();
        input.set().qpn(qpn);
        let out: QueryQpOut = function.call(Opcode::QueryQp, 0, &input)?;
        match out.qpc().xrcd() == self.xrcdn {
            true => lock.hold(Held::Target(qpn)),
            false => Err(absent()),
        }
    }

    /// Holds it no more; the last one destroys it.
    pub(super) fn let_go_target(&self, qpn: u32) -> Result<(), Error> {
        let_go(&self.device.function, Held::Target(qpn))
    }

    /// What the sending side of XRC names though it receives nothing.
    pub(super) fn placeholders(device: &Device) -> Result<StandIns, Error> {
        let function = &device.function;
        let lock = function.shared.lock(function.options.command_timeout)?;
        StandIns::of(function, &lock)
    }

    /// Closes it; EBUSY while SRQs and target QPs of this opener are in it (they keep it; it goes with the last of them).
    /// Dropping the last reference does the same silently. Other openers keep theirs.
    pub fn close(self: Arc<Self>) -> Result<(), Error> {
        match Arc::into_inner(self) {
            None => Err(Error::Invalid { what: "the XRC domain is in use".into(), errno: libc::EBUSY }),
            Some(mut domain) => domain.release(),
        }
    }

    fn release(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.live) {
            return Ok(());
        }
        let_go(&self.device.function, Held::Domain(self.xrcdn))
    }
}

impl Drop for XrcDomain {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(xrcdn = self.xrcdn, %error, "an XRC domain could not be closed");
        }
    }
}

fn let_go(function: &Function, held: Held) -> Result<(), Error> {
    if crate::cmd::is_gone(&function.bar) {
        return Ok(()); // in a child of fork it is the parent's
    }
    let lock = function.shared.lock(function.options.command_timeout)?;
    let mut result = Ok(());
    if lock.let_go(held) {
        unname(&lock, held);
        result = end(function, held);
        if matches!(&result, Err(error) if is_busy(error)) {
            // What the dead had in it is still to be cleaned up.
            result = lock.orphan(held);
        }
    }
    sweep(function, &lock);
    result
}

fn end(function: &Function, held: Held) -> Result<(), Error> {
    match held {
        Held::Target(qpn) => stand_ins::end(function, Opcode::DestroyQp, 0, qpn),
        Held::Domain(xrcdn) => stand_ins::end(function, Opcode::DeallocXrcd, 0, xrcdn),
    }
}

/// Ends what nobody holds, whatever the device says.
fn destroy(function: &Function, lock: &FunctionLock<'_>, held: Held) {
    if let Err(error) = end(function, held) {
        tracing::warn!(?held, %error, "what nobody holds could not be ended");
    }
    unname(lock, held);
}

/// Whoever opens the file from now on gets another domain.
fn unname(lock: &FunctionLock<'_>, held: Held) {
    if let Held::Domain(xrcdn) = held {
        lock.unname_domain(xrcdn);
    }
}

/// Whether the device refused because others refer to it.
fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Command { status: Status::BadResState | Status::ResBusy, .. })
}

/// Ends what only the dead hold. A domain in which they had more stays until that is gone.
pub(crate) fn sweep(function: &Function, lock: &FunctionLock<'_>) {
    // Without stand-ins nobody has had any.
    if lock.stand_ins()[0] == 0 {
        return;
    }
    for held in lock.abandoned() {
        unname(lock, held);
        match end(function, held) {
            Err(error) if is_busy(&error) => continue,
            Err(error) => tracing::debug!(?held, %error, "what the dead held was gone already"),
            Ok(()) => {}
        }
        lock.strike_held(held);
    }
}

impl Qp {
    /// Creates the receiving side of XRC in RESET; `cookie` comes back in its events.
    pub fn create_target(domain: &Arc<XrcDomain>, cookie: u64) -> Result<Arc<Qp>, Error> {
        let qpn = domain.create_target()?;
        Self::of_target(domain, qpn, cookie)
    }

    /// Opens a target QP of the domain that somebody else created (`ibv_open_qp`). EINVAL: there is none.
    pub fn open_target(domain: &Arc<XrcDomain>, qpn: u32, cookie: u64) -> Result<Arc<Qp>, Error> {
        domain.hold_target(qpn)?;
        Self::of_target(domain, qpn, cookie)
    }
}

/// Whether QPs of this service have receives of their own, with what `init` asks for.
pub(super) fn without_receives(init: &QpInit) -> QpInit {
    match init.srq.is_some() || init.service == Service::XrcIni {
        true => QpInit { max_recv_wr: 0, max_recv_sge: 0, ..init.clone() },
        false => init.clone(),
    }
}
