//! Memory regions.

use super::{AccessFlags, Pd};
use crate::{
    dma::{DmaMem, UserMapping},
    error::Error,
    transport::Access,
};
use hwspec::{
    cmd::{Opcode, mkey::*},
    context::mkey::MkeyContext,
    handle::Mkey,
};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// `mkc.access_mode_1_0`: translation by page list.
const MODE_MTT: u8 = 1;
/// `mkc.qpn`: usable by every QP of the protection domain.
const ANY_QP: u32 = 0xff_ffff;
/// log2 of the largest page an mkey can have (5 bits).
const MAX_LOG_PAGE: u32 = 31;
/// log2 of the smallest.
const MIN_LOG_PAGE: u32 = 12;

/// Memory the device may reach with a key.
pub struct Mr {
    pd: Arc<Pd>,
    key: Mkey,
    backing: Option<Backing>,
}

/// What a region lies on.
enum Backing {
    /// Memory of the program.
    User(UserMapping),
    /// Memory of the driver.
    Driver(Arc<DmaMem>),
}

impl Backing {
    /// Ends the device's access as far as that is this region's to end.
    fn unmap(self) -> Result<(), Error> {
        match self {
            Self::User(mapping) => mapping.unmap(),
            Self::Driver(_) => Ok(()),
        }
    }

    /// Keeps the memory for ever: the device may still reach it.
    fn leak(self) {
        match self {
            Self::User(mapping) => mapping.leak(),
            Self::Driver(mem) => std::mem::forget(mem),
        }
    }
}

impl Mr {
    /// Registers `len` bytes at `addr`; keys address them from `hca_va` on (usually `addr as u64`). `addr` and `hca_va`
    /// must agree modulo 4096.
    /// # Safety
    /// The memory stays mapped while registered, and changes under the process.
    #[allow(unsafe_code)] // a promise about the caller's memory, which only the caller can give
    pub unsafe fn register(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        hca_va: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        check(len, hca_va, access)?;
        let writable = access.contains(AccessFlags::LOCAL_WRITE);
        let device = &pd.device;
        // SAFETY: the caller's promise.
        let mapping = unsafe {
            UserMapping::map(&device.function.transport, addr, len, Access { read: true, write: writable })?
        };
        let iova = mapping.iova;
        let mr = Self::create(pd, Backing::User(mapping), iova, len, hca_va, access)?;
        if hca_va != addr as u64 {
            device.shifted.insert(mr.key.0, hca_va, len, addr as u64);
        }
        Ok(mr)
    }

    /// Registers all of `mem`; keys address it by its bus addresses.
    pub fn over(pd: &Arc<Pd>, mem: &Arc<DmaMem>, access: AccessFlags) -> Result<Mr, Error> {
        let (iova, len) = (mem.iova(), mem.len());
        check(len, iova, access)?;
        let mr = Self::create(pd, Backing::Driver(mem.clone()), iova, len, iova, access)?;
        let at = mem.words().as_ptr() as u64;
        if at != iova {
            pd.device.shifted.insert(mr.key.0, iova, len, at);
        }
        Ok(mr)
    }

    /// `CREATE_MKEY` for `len` bytes from bus address `iova`, which keys address from `hca_va` on.
    fn create(
        pd: &Arc<Pd>,
        backing: Backing,
        iova: u64,
        len: usize,
        hca_va: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let device = &pd.device;
        let (log_page, list) = translation(iova, hca_va, len)?;
        let variant = device.mkey_variant.fetch_add(1, Relaxed);
        let octwords = (list.len() as u32).div_ceil(2);
        let mut context = MkeyContext::zeroed();
        context
            .set()
            .a(access.contains(AccessFlags::REMOTE_ATOMIC))
            .rw(access.contains(AccessFlags::REMOTE_WRITE))
            .rr(access.contains(AccessFlags::REMOTE_READ))
            .lw(access.contains(AccessFlags::LOCAL_WRITE))
            .lr(true)
            .access_mode_1_0(MODE_MTT)
            .qpn(ANY_QP)
            .mkey_7_0(variant)
            .pd(pd.pdn)
            .start_addr(hca_va)
            .len(len as u64)
            .translations_octword_size(octwords)
            .log_page_size(log_page as u8);
        let mut input = CreateMkeyIn::zeroed();
        input.set().memory_key_mkey_entry(context).translations_octword_actual_size(octwords);
        // The list comes in whole octwords.
        let mut list = list;
        list.resize(octwords as usize * 2, 0);
        let created: Result<CreateMkeyOut, Error> =
            device.function.call_with(Opcode::CreateMkey, device.opener.uid(), &input, &list);
        match created {
            Ok(out) => {
                let key = Mkey::new(out.mkey_index(), variant);
                Ok(Mr { pd: pd.clone(), key, backing: Some(backing) })
            }
            Err(error) => {
                if error.is_uncertain() {
                    backing.leak(); // the key may yet come to life
                }
                Err(error)
            }
        }
    }

    /// Key for work requests of this side.
    pub fn lkey(&self) -> u32 {
        self.key.0
    }

    /// Key to give to peers.
    pub fn rkey(&self) -> u32 {
        self.key.0
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Deregisters: when it returns the device touches the memory no more. Dropping does the same silently.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        let Some(backing) = self.backing.take() else { return Ok(()) };
        let mut input = DestroyMkeyIn::zeroed();
        input.set().mkey_index(self.key.index());
        let device = &self.pd.device;
        device.shifted.remove(self.key.0);
        match device.function.order(Opcode::DestroyMkey, device.opener.uid(), &input) {
            Ok(()) => backing.unmap(),
            Err(error) => {
                backing.leak(); // the key lives: taking the memory away would let it reach what comes there next
                Err(error)
            }
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, key = self.key.0, "a memory region could not be deregistered");
        }
    }
}

fn check(len: usize, hca_va: u64, access: AccessFlags) -> Result<(), Error> {
    if len == 0 || hca_va.checked_add(len as u64).is_none() {
        return Err(Error::invalid(format!("a memory region of {len} bytes from {hca_va:#x} on cannot be")));
    }
    if access.contains(AccessFlags::ON_DEMAND) {
        return Err(Error::Invalid {
            what: "on-demand paging is not offered".into(),
            errno: libc::EOPNOTSUPP,
        });
    }
    let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(remote) && !access.contains(AccessFlags::LOCAL_WRITE) {
        // IBTA 10.6.3.1: remote write or atomic access needs local write access.
        return Err(Error::invalid(format!("{access:?} needs LOCAL_WRITE too")));
    }
    Ok(())
}

/// The page list that makes `hca_va` mean `iova`: pages as large as the alignment of the two allows, so the list is as
/// short as can be. Pages may reach beyond the region; the bounds of the key do not.
fn translation(iova: u64, hca_va: u64, len: usize) -> Result<(u32, Vec<u64>), Error> {
    let log_page = (iova ^ hca_va).trailing_zeros().min(MAX_LOG_PAGE);
    if log_page < MIN_LOG_PAGE {
        return Err(Error::invalid(format!(
            "the address of the memory and {hca_va:#x}, by which keys address it, must agree modulo 4096"
        )));
    }
    let first = iova & (u64::MAX << log_page);
    let lead = hca_va & !(u64::MAX << log_page);
    let pages = (lead + len as u64).div_ceil(1 << log_page);
    Ok((log_page, (0..pages).map(|page| first + (page << log_page)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_need_one_entry() {
        assert_eq!(
            translation(0x7f12_3456_7000, 0x7f12_3456_7000, 1 << 20).unwrap(),
            (31, vec![0x7f12_0000_0000])
        );
    }

    #[test]
    fn alignment_of_the_difference_sets_the_page() {
        let (log, list) = translation(0x1_0000_5000, 0x5000, 0x3000).unwrap();
        assert_eq!((log, list), (31, vec![0x1_0000_0000 & (u64::MAX << 31)]));
        let (log, list) = translation(0x10_3000, 0x2000, 0x2000).unwrap();
        assert_eq!((log, list), (12, vec![0x10_3000, 0x10_4000]));
    }

    #[test]
    fn region_across_a_large_page_needs_two() {
        let base = (1u64 << 31) - 0x1000;
        assert_eq!(translation(base, base, 0x2000).unwrap(), (31, vec![0, 1 << 31]));
    }

    #[test]
    fn different_page_offsets_are_refused() {
        assert_eq!(translation(0x1000, 0x1010, 16).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn remote_write_needs_local_write() {
        assert!(check(1, 0, AccessFlags::REMOTE_WRITE).is_err());
        assert!(check(1, 0, AccessFlags::REMOTE_READ).is_ok());
        assert!(check(0, 0, AccessFlags::empty()).is_err());
    }
}
