//! Memory regions.

use super::{AccessFlags, Device, Dm, InPlace, OF_FUNCTION, Pd, key_change::change_key};
use crate::{
    dma::{DmaMem, PAGE_SIZE, UserMapping},
    error::Error,
    inline::Home,
    umr::Change,
};
use hwspec::{
    cmd::{Opcode, Status, mkey::*},
    context::{
        AccessMode,
        mkey::{ANY_QP, MkeyContext},
    },
    handle::Mkey,
    wqe::MkeyMask,
};
use std::sync::Arc;

/// log2 of the largest page size of an mkey (5 bits).
const MAX_LOG_PAGE: u32 = 31;
/// Size of a program's address space in bytes.
const ALL_OF_MEMORY: usize = 1 << 47;
/// log2 of the smallest page size.
const MIN_LOG_PAGE: u32 = 12;

/// Memory accessible to the device through a key.
pub struct Mr {
    pd: Arc<Pd>,
    key: Mkey,
    access: AccessFlags,
    /// Address in the program, address under the keys, and length.
    addr: u64,
    hca_va: u64,
    len: usize,
    backing: Option<Backing>,
}

/// The memory behind a region.
enum Backing {
    /// Memory of the program.
    User(UserMapping),
    /// Memory of the driver.
    Driver(Arc<DmaMem>),
    /// Another region, of which this one is a view under another key.
    Under(Box<Mr>),
    /// Memory of the device.
    Device(Arc<Dm>),
}

impl Backing {
    /// The user context that owns its key.
    fn user_context(&self, device: &Device) -> u16 {
        match self {
            Self::Device(_) => OF_FUNCTION,
            Self::User(_) | Self::Driver(_) | Self::Under(_) => device.opener.uid(),
        }
    }

    /// Ends the device's access, unless the memory belongs to another region.
    fn unmap(self) -> Result<(), Error> {
        match self {
            Self::User(mapping) => mapping.unmap(),
            Self::Driver(_) | Self::Device(_) => Ok(()),
            Self::Under(mut mr) => mr.release(),
        }
    }

    /// Keeps the memory forever, since the device may still access it.
    fn leak(self) {
        match self {
            Self::User(mapping) => mapping.leak(),
            Self::Driver(mem) => std::mem::forget(mem),
            Self::Under(mr) => std::mem::forget(mr),
            Self::Device(dm) => std::mem::forget(dm),
        }
    }
}

/// Address translation of a key.
enum Translation {
    /// Pages of `1 << log_page` bytes.
    Pages { log_page: u32, list: Vec<u64> },
    /// Ranges under other keys: length and key, address.
    Parts(Vec<u64>),
    /// Device memory at this offset in BAR0.
    Device(u64),
}

impl Mr {
    /// Registers `len` bytes at `addr`; keys address them starting at `hca_va` (usually `addr as u64`; 0 if `access`
    /// includes zero-based). `addr` and `hca_va` must be equal modulo 4096, unless zero-based.
    /// # Safety
    /// The memory stays mapped while registered, and the device may change it at any time.
    #[allow(unsafe_code)] // the guarantee about the caller's memory can only come from the caller
    pub unsafe fn register(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        hca_va: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let paged = access.contains(AccessFlags::ON_DEMAND);
        if paged && !pd.device.attr().on_demand {
            return Err(Error::unsupported("the way to the device takes no page faults"));
        }
        let zero_based = access.contains(AccessFlags::ZERO_BASED);
        // The program's entire address space, including later mappings.
        let implicit = paged && addr.is_null() && len == usize::MAX;
        if implicit && zero_based {
            return Err(Error::invalid("all of memory begins where it begins"));
        }
        let (len, hca_va) = match (implicit, zero_based) {
            (true, _) => (ALL_OF_MEMORY, 0),
            (_, true) => (len, 0),
            _ => (len, hca_va),
        };
        check(len, hca_va, access)?;
        if zero_based && addr as usize % PAGE_SIZE != 0 {
            // The key's pages must start where pages of `hca_va` start; otherwise a view on top shifts them.
            let local =
                access & (AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING | AccessFlags::ON_DEMAND);
            // SAFETY: the caller's guarantee.
            let under = unsafe { Self::register(pd, addr, len, addr as u64, local)? };
            let parts = parts(under.key.0, addr as u64, len);
            let mut mr =
                Self::create(pd, Backing::Under(Box::new(under)), Translation::Parts(parts), len, 0, access)?;
            pd.device.shifted.insert(mr.key.0, 0, len as u64, home(addr as u64, paged));
            mr.addr = addr as u64;
            return Ok(mr);
        }
        let writable = access.contains(AccessFlags::LOCAL_WRITE);
        let device = &pd.device;
        let transport = &device.function.transport;
        let mapping = match paged {
            // SAFETY: the caller's guarantee.
            true => unsafe { UserMapping::map_paged(transport, addr, len)? },
            // SAFETY: the caller's guarantee.
            false => unsafe { UserMapping::map(transport, addr, len, writable)? },
        };
        let pages = translation(mapping.iova, hca_va, len)?;
        let mut mr = Self::create(pd, Backing::User(mapping), pages, len, hca_va, access)?;
        mr.addr = addr as u64;
        if paged || hca_va != addr as u64 {
            device.shifted.insert(mr.key.0, hca_va, len as u64, home(addr as u64, paged));
        }
        Ok(mr)
    }

    /// Registers all of `mem`; keys address it by its IOVAs.
    pub fn over(pd: &Arc<Pd>, mem: &Arc<DmaMem>, access: AccessFlags) -> Result<Mr, Error> {
        Self::over_first(pd, mem, mem.len(), access)
    }

    /// Registers the first `len` bytes of `mem`. EINVAL: it has fewer.
    pub fn over_first(pd: &Arc<Pd>, mem: &Arc<DmaMem>, len: usize, access: AccessFlags) -> Result<Mr, Error> {
        let iova = mem.iova();
        if len > mem.len() {
            return Err(Error::invalid(format!("{len} bytes of {}", mem.len())));
        }
        check(len, iova, access)?;
        let pages = translation(iova, iova, len)?;
        let mr = Self::create(pd, Backing::Driver(mem.clone()), pages, len, iova, access)?;
        let at = mem.words().as_ptr() as u64;
        if at != iova {
            pd.device.shifted.insert(mr.key.0, iova, len as u64, Home::Here(at));
        }
        Ok(mr)
    }

    /// Registers `len` bytes of device memory at `offset`; keys address them from 0 (`ibv_reg_dm_mr`). EINVAL: out of
    /// bounds, a different device from the domain's, or not zero-based; EOPNOTSUPP: access rights that device memory
    /// does not support.
    pub fn of_device(
        pd: &Arc<Pd>,
        dm: &Arc<Dm>,
        offset: u64,
        len: usize,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        /// The access rights that device memory supports.
        const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE
            .union(AccessFlags::REMOTE_WRITE)
            .union(AccessFlags::REMOTE_READ)
            .union(AccessFlags::REMOTE_ATOMIC)
            .union(AccessFlags::ZERO_BASED)
            .union(AccessFlags::RELAXED_ORDERING);
        check(1, 0, access)?;
        if !RIGHTS.contains(access) {
            return Err(Error::unsupported(format!("device memory cannot have {access:?}")));
        }
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= dm.len());
        if !fits || !access.contains(AccessFlags::ZERO_BASED) || !Arc::ptr_eq(dm.device(), &pd.device) {
            return Err(Error::invalid(format!(
                "{len} bytes from {offset} of {} bytes cannot be a region",
                dm.len()
            )));
        }
        let at = dm.place() + offset;
        let mr = Self::create(pd, Backing::Device(dm.clone()), Translation::Device(at), len, 0, access)?;
        let home = Home::Device(pd.device.function.bar.clone(), at as u32);
        pd.device.shifted.insert(mr.key.0, 0, len as u64, home);
        Ok(mr)
    }

    /// Executes `CREATE_MKEY` for `len` bytes; keys address them starting at `hca_va`.
    fn create(
        pd: &Arc<Pd>,
        backing: Backing,
        translation: Translation,
        len: usize,
        hca_va: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let device = &pd.device;
        let variant = device.key_variant();
        let (mode, start, log_page, mut list) = match translation {
            Translation::Pages { log_page, list } => (AccessMode::Mtt, hca_va, log_page, list),
            Translation::Parts(list) => (AccessMode::Klm, hca_va, 0, list),
            Translation::Device(at) => (AccessMode::Memic, at, 0, Vec::new()),
        };
        let octwords = (list.len() as u32).div_ceil(2);
        let mut context = rights(device, pd, access);
        context
            .set()
            .umr_en(true)
            .access_mode_1_0(mode.raw() & 3)
            .access_mode_4_2(mode.raw() >> 2)
            .qpn(ANY_QP)
            .mkey_7_0(variant)
            .start_addr(start)
            .len(len as u64)
            .translations_octword_size(octwords)
            .log_page_size(log_page as u8);
        let mut input = CreateMkeyIn::zeroed();
        input.set().memory_key_mkey_entry(context).translations_octword_actual_size(octwords);
        // The list consists of whole octowords.
        list.resize(octwords as usize * 2, 0);
        let created: Result<CreateMkeyOut, Error> =
            device.function.call_with(Opcode::CreateMkey, backing.user_context(device), &input, &list);
        match created {
            Ok(out) => {
                let key = Mkey::new(out.mkey_index(), variant);
                device.shifted.forget(key.0);
                Ok(Mr { pd: pd.clone(), key, access, addr: hca_va, hca_va, len, backing: Some(backing) })
            }
            Err(error) => {
                if error.is_uncertain() {
                    backing.leak(); // the key may still be created
                }
                Err(error)
            }
        }
    }

    /// Key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.key.0
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        self.key.0
    }

    /// Its access rights.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// True if its key is a view of another, so that windows cannot be bound to it.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(self.backing, Some(Backing::Under(_)))
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Changes access rights, domain or both; the keys stay (`ibv_rereg_mr`). On an error the region is unchanged.
    /// EINVAL: impossible rights, or rights that its memory was not mapped for; EBUSY: windows are bound to it.
    pub fn change(&mut self, pd: Option<&Arc<Pd>>, access: Option<AccessFlags>) -> Result<(), Error> {
        let (pd, access) = (pd.unwrap_or(&self.pd).clone(), access.unwrap_or(self.access));
        check(1, 0, access)?;
        if !Arc::ptr_eq(&pd.device, &self.pd.device) {
            return Err(Error::invalid("the protection domain is of another device"));
        }
        let kept = AccessFlags::ZERO_BASED | AccessFlags::ON_DEMAND;
        let grows =
            access.contains(AccessFlags::LOCAL_WRITE) && !self.access.contains(AccessFlags::LOCAL_WRITE);
        if grows || self.is_indirect() || access & kept != self.access & kept {
            return Err(Error::refused(libc::EAGAIN, "the region must be registered anew"));
        }
        let rights_mask = MkeyMask::LR | MkeyMask::LW | MkeyMask::RR | MkeyMask::RW | MkeyMask::A;
        let context = rights(&pd.device, &pd, access);
        let mask = if Arc::ptr_eq(&pd, &self.pd) { rights_mask } else { rights_mask | MkeyMask::PD };
        let mut context = context;
        context.set().mkey_7_0(self.key.0 as u8);
        change_key(&pd.device, self.key.0, &Change::context(mask, &context))?;
        (self.pd, self.access) = (pd, access);
        Ok(())
    }

    /// True if local work requests may write to it.
    pub fn is_writable(&self) -> bool {
        self.access.contains(AccessFlags::LOCAL_WRITE)
    }

    /// Populates pages before the device faults on them (`ibv_advise_mr`): `len` bytes at `addr` as addressed by the
    /// keys, writable if `write`. Without `fault`, only checks the request. EFAULT: out of bounds, not writable, or
    /// not mapped; EINVAL: the region does not use on-demand paging.
    pub fn prefetch(&self, addr: u64, len: u32, write: bool, fault: bool) -> Result<(), i32> {
        if !self.access.contains(AccessFlags::ON_DEMAND) {
            return Err(libc::EINVAL);
        }
        let Some(offset) = addr.checked_sub(self.hca_va) else { return Err(libc::EFAULT) };
        let within = offset.checked_add(len.into()).is_some_and(|end| end <= self.len as u64);
        if !within || write && !self.is_writable() {
            return Err(libc::EFAULT);
        }
        if !fault || len == 0 {
            return Ok(());
        }
        let begin = self.addr + offset;
        let first = begin & !(PAGE_SIZE as u64 - 1);
        let whole = (begin - first + u64::from(len)).next_multiple_of(PAGE_SIZE as u64);
        let transport = &self.pd.device.function.transport;
        let result = transport.populate(first as *mut u8, whole as usize, write);
        result.map_err(|error| error.raw_os_error().unwrap_or(libc::EFAULT))
    }

    /// Deregisters the region. Once it returns, the device no longer accesses the memory. Dropping does the same
    /// without reporting errors. EBUSY while windows are bound to it; [`Mr::try_deregister`] allows a retry then.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.release()
    }

    /// Like [`Mr::deregister`], but on EBUSY the region stays registered and the caller may retry.
    pub fn try_deregister(&mut self) -> Result<(), Error> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Error> {
        let Some(backing) = self.backing.take() else { return Ok(()) };
        let device = &self.pd.device;
        match device.function.destroy_object(
            Opcode::DestroyMkey,
            backing.user_context(device),
            self.key.index(),
        ) {
            Ok(()) => {
                device.shifted.retire(self.key.0);
                backing.unmap()
            }
            Err(Error::Command { status: Status::BadResState | Status::ResBusy, .. }) => {
                self.backing = Some(backing);
                Err(Error::busy("windows are bound to the region"))
            }
            Err(error) => {
                backing.leak(); // the key is still valid, and would access the next mapping there
                Err(error)
            }
        }
    }
}

impl InPlace for Mr {
    fn destroy_in_place(&mut self) -> Result<(), Error> {
        self.release()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, key = self.key.0, "a memory region could not be deregistered");
            if let Some(backing) = self.backing.take() {
                backing.leak();
            }
        }
    }
}

/// The location of a region of the program at `addr`, with pages that may be missing if `paged`.
fn home(addr: u64, paged: bool) -> Home {
    if paged { Home::Paged(addr) } else { Home::Here(addr) }
}

/// Access rights as fields of a key's context.
fn rights(device: &Device, pd: &Pd, access: AccessFlags) -> MkeyContext {
    let has = |flag| access.contains(flag);
    let caps = &device.function.caps.general;
    let relaxed = has(AccessFlags::RELAXED_ORDERING);
    MkeyContext::with(|s| {
        s.a(has(AccessFlags::REMOTE_ATOMIC))
            .rw(has(AccessFlags::REMOTE_WRITE))
            .rr(has(AccessFlags::REMOTE_READ))
            .lw(has(AccessFlags::LOCAL_WRITE))
            .lr(true)
            .relaxed_ordering_write(relaxed && caps.relaxed_ordering_write())
            .relaxed_ordering_read(relaxed && caps.relaxed_ordering_read())
            .pd(pd.pdn)
    })
}

/// Entries of a key that translates addresses from 0 to `len` bytes at `va` of key `under`.
fn parts(under: u32, va: u64, len: usize) -> Vec<u64> {
    /// Maximum length of an entry; the field has 32 bits.
    const MOST: u64 = 1 << 31;
    let len = len as u64;
    (0..len.div_ceil(MOST))
        .flat_map(|i| {
            let at = i * MOST;
            [(len - at).min(MOST) << 32 | u64::from(under), va + at]
        })
        .collect()
}

fn check(len: usize, hca_va: u64, access: AccessFlags) -> Result<(), Error> {
    if len == 0 || hca_va.checked_add(len as u64).is_none() {
        return Err(Error::invalid(format!("a memory region of {len} bytes from {hca_va:#x} on cannot be")));
    }
    let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(remote) && !access.contains(AccessFlags::LOCAL_WRITE) {
        // IBTA 10.6.3.1: remote write or atomic access requires local write access.
        return Err(Error::invalid(format!("{access:?} needs LOCAL_WRITE too")));
    }
    Ok(())
}

/// Builds the page list that translates `hca_va` to `iova`, with the largest pages that their alignment allows, for a
/// short list. Pages may extend beyond the region; the bounds of the key do not.
fn translation(iova: u64, hca_va: u64, len: usize) -> Result<Translation, Error> {
    let (log_page, list) = pages(iova, hca_va, len)?;
    Ok(Translation::Pages { log_page, list })
}

fn pages(iova: u64, hca_va: u64, len: usize) -> Result<(u32, Vec<u64>), Error> {
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
        assert_eq!(pages(0x7f12_3456_7000, 0x7f12_3456_7000, 1 << 20).unwrap(), (31, vec![0x7f12_0000_0000]));
    }

    #[test]
    fn alignment_of_the_difference_sets_the_page() {
        let (log, list) = pages(0x1_0000_5000, 0x5000, 0x3000).unwrap();
        assert_eq!((log, list), (31, vec![0x1_0000_0000 & (u64::MAX << 31)]));
        let (log, list) = pages(0x10_3000, 0x2000, 0x2000).unwrap();
        assert_eq!((log, list), (12, vec![0x10_3000, 0x10_4000]));
    }

    #[test]
    fn region_across_a_large_page_needs_two() {
        let base = (1u64 << 31) - 0x1000;
        assert_eq!(pages(base, base, 0x2000).unwrap(), (31, vec![0, 1 << 31]));
    }

    #[test]
    fn different_page_offsets_are_refused() {
        assert_eq!(pages(0x1000, 0x1010, 16).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn remote_write_needs_local_write() {
        assert!(check(1, 0, AccessFlags::REMOTE_WRITE).is_err());
        assert!(check(1, 0, AccessFlags::REMOTE_READ).is_ok());
        assert!(check(0, 0, AccessFlags::empty()).is_err());
    }
}
