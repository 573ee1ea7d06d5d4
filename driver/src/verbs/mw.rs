//! Memory windows: temporary access for peers to parts of memory regions (IBTA 10.6.7).

use super::{AccessFlags, Mr, Pd, Qp, SendFlags, SendOp, SendWr, ends::ends};
use crate::error::{Error, PostError};
use hwspec::{
    cmd::{Opcode, mkey::*},
    context::{
        AccessMode,
        mkey::{ANY_QP, MkeyContext},
    },
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// Room for translations in octowords: one entry, padded to the device's granularity.
const ROOM: u32 = 4;
/// Access rights of a window (`ibv_bind_mw`). Local ones have no effect, since windows are for peers.
const RIGHTS: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::LOCAL_WRITE)
    .union(AccessFlags::ZERO_BASED);
/// Maximum length of a window, since the length of an entry has 32 bits.
const MAX_LEN: u64 = 1 << 31;

/// Kind of a memory window, numbered as `ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MwType {
    /// Bound on any QP of the domain; the device chooses the key ([`Mw::bind`]).
    One = 1,
    /// Bound by a work request to the QP that it is posted on, with a key chosen by the program.
    Two = 2,
}

/// A memory window.
pub struct Mw {
    pd: Arc<Pd>,
    kind: MwType,
    rkey: AtomicU32,
    live: bool,
}

/// The memory to bind a window to.
#[derive(Clone, Copy)]
pub struct MwBind<'a> {
    /// The region; `None` with length 0 unbinds the window.
    pub mr: Option<&'a Mr>,
    /// First byte, as addressed by the region's keys.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Access rights of peers.
    pub access: AccessFlags,
}

impl Mw {
    /// Allocates an unbound window.
    pub fn alloc(pd: &Arc<Pd>, kind: MwType) -> Result<Mw, Error> {
        let device = &pd.device;
        let variant = device.key_variant();
        let context = MkeyContext::with(|s| {
            s.free(true)
                .umr_en(true)
                .access_mode_1_0(AccessMode::Klm.raw())
                .qpn(ANY_QP)
                .mkey_7_0(variant)
                .en_rinval(kind == MwType::Two)
                .pd(pd.pdn)
                .translations_octword_size(ROOM)
        });
        let input = CreateMkeyIn::with(|s| s.memory_key_mkey_entry(context));
        let out: CreateMkeyOut = device.function.call(Opcode::CreateMkey, device.opener.uid(), &input)?;
        let rkey = AtomicU32::new(out.mkey_index() << 8 | u32::from(variant));
        Ok(Mw { pd: pd.clone(), kind, rkey, live: true })
    }

    /// Key for peers. The key of a type 1 window changes with every bind.
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Relaxed)
    }

    /// Its kind.
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Builds the work request that binds the window under the new key `rkey`, to be posted on a QP of its domain.
    /// EINVAL: not a key of this window, a region of another domain or one that does not allow windows, or unsupported
    /// access rights; EOPNOTSUPP: a zero-based region, or a part longer than 2 GiB.
    pub fn binding(&self, rkey: u32, bind: &MwBind<'_>) -> Result<SendOp, i32> {
        let ours = self.rkey() >> 8 == rkey >> 8;
        let ends = bind.len == 0;
        if !ours || !RIGHTS.contains(bind.access) || bind.mr.is_none() && (bind.addr != 0 || !ends) {
            return Err(libc::EINVAL);
        }
        let lkey = match bind.mr {
            Some(mr) if !ends => {
                let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
                let short =
                    bind.access.intersects(changes) && !mr.access().contains(AccessFlags::LOCAL_WRITE);
                let other = !mr.pd().is_same(&self.pd);
                if other || short || !mr.access().contains(AccessFlags::MW_BIND) {
                    return Err(libc::EINVAL);
                }
                if mr.is_indirect() || bind.len > MAX_LEN {
                    return Err(libc::EOPNOTSUPP);
                }
                mr.lkey()
            }
            _ => 0,
        };
        Ok(SendOp::BindMw {
            mw: self.rkey(),
            variant: rkey as u8,
            tied: self.kind == MwType::Two,
            lkey,
            addr: bind.addr,
            len: bind.len,
            access: bind.access,
        })
    }

    /// Binds a type 1 window on a QP of its domain (`ibv_bind_mw`), with a work request that completes on the send CQ.
    /// The window has a new key from now on; the old key becomes invalid when the work request completes. EINVAL, in
    /// addition to [`Mw::binding`]: a type 2 window, a zero-based bind, or a QP of another domain.
    pub fn bind(&self, qp: &Qp, wr_id: u64, flags: SendFlags, bind: &MwBind<'_>) -> Result<(), i32> {
        let zero_based = bind.access.contains(AccessFlags::ZERO_BASED);
        if self.kind != MwType::One || zero_based || !qp.pd().is_same(&self.pd) {
            return Err(libc::EINVAL);
        }
        let rkey = next_variant(self.rkey());
        let op = self.binding(rkey, bind)?;
        qp.post_send([SendWr { wr_id, op, sge: &[], flags }]).map_err(|PostError { errno, .. }| errno)?;
        self.rkey.store(rkey, Relaxed);
        Ok(())
    }

    fn release(&mut self) -> Result<(), Error> {
        let device = &self.pd.device;
        device.function.destroy_object(Opcode::DestroyMkey, device.opener.uid(), self.rkey() >> 8)
    }
}

ends! {
    /// Deallocates the window, bound or not. Dropping it does the same without reporting errors.
    Mw.dealloc(self): "a memory window could not be deallocated", key = rkey
}

/// Returns the key with its low byte incremented (`ibv_inc_rkey`).
pub fn next_variant(rkey: u32) -> u32 {
    rkey & !0xff | (rkey.wrapping_add(1) & 0xff)
}
