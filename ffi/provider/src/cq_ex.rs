//! The extended polling interface: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and the field readers between them. Each reader
//! decodes its field when called, so fields that are not read cost nothing.

use crate::abi::public::{self as abi, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex};
use crate::context::Context;
use crate::cq::{Current, IronCq, Wanted};
use crate::guard::{guard, guard_ptr};
use crate::ours::Ours;
use crate::pd::IronPd;
use crate::poll::imm_or_key;
use driver::{Completion, CompletionSlot, WcStatus};
use libc::{c_int, c_uint};
use std::sync::atomic::Ordering;

/// The completion fields that are supported.
const FIELDS: u64 = abi::IBV_WC_STANDARD_FLAGS | STAMPS | abi::IBV_WC_EX_WITH_CVLAN;
const STAMPS: u64 =
    abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
const MASK: u32 = abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD;
const FLAGS: u32 = abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

/// `ibv_create_cq_ex`.
///
/// # Safety
/// Called by libibverbs with an open context of this provider.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guard_ptr(|| {
        // SAFETY: V1 for the context, V4 for `attr`.
        let (ours, attr) = unsafe { (Context::of(context), &*attr) };
        let has = |bit| attr.comp_mask & bit != 0;
        let flags = if has(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
        let stamped = attr.wc_flags & STAMPS != 0;
        let tagged = attr.wc_flags & abi::IBV_WC_EX_WITH_CVLAN != 0;
        let device = ours.device.attr();
        let missing = stamped && device.clock_khz == 0 || tagged && !device.raw_vlan_stripping;
        if attr.wc_flags & !FIELDS != 0 || flags & !FLAGS != 0 || missing {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & !MASK != 0 {
            return Err(libc::EINVAL);
        }
        let domain = match has(abi::IBV_CQ_INIT_ATTR_MASK_PD) {
            true => attr.parent_domain,
            false => std::ptr::null_mut(),
        };
        // SAFETY: V1, V2 and V6 for the domain, which `comp_mask` names (V4).
        let is_parent = !domain.is_null() && unsafe { IronPd::of(domain) }.is_parent_domain();
        if has(abi::IBV_CQ_INIT_ATTR_MASK_PD) && !is_parent {
            return Err(libc::EINVAL);
        }
        let wanted = Wanted {
            entries: i64::from(attr.cqe),
            channel: attr.channel,
            vector: i64::from(attr.comp_vector),
            ignore_overrun: flags & abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            domain,
        };
        // SAFETY: V1 for the context, V6 for channel and domain; the new CQ is not shared yet.
        let cq = unsafe { &mut *IronCq::create(context, &wanted)? };
        cq.current.get_mut().reads_raw = stamped || tagged;
        let public = &mut cq.public;
        install(public, attr.wc_flags, flags & abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0);
        Ok(&raw mut *public)
    })
}

/// Sets the function pointers.
fn install(public: &mut ibv_cq_ex, fields: u64, alone: bool) {
    public.start_poll = Some(if alone { start_poll_alone } else { start_poll });
    public.next_poll = Some(next_poll);
    public.end_poll = Some(if alone { end_poll_alone } else { end_poll });
    public.read_opcode = Some(read_opcode);
    public.read_vendor_err = Some(read_vendor_err);
    public.read_byte_len = Some(read_byte_len);
    public.read_imm_data = Some(read_imm_data);
    public.read_qp_num = Some(read_qp_num);
    public.read_src_qp = Some(read_src_qp);
    public.read_wc_flags = Some(read_wc_flags);
    public.read_slid = Some(read_slid);
    public.read_sl = Some(read_sl);
    public.read_dlid_path_bits = Some(read_path_bits);
    if fields & abi::IBV_WC_EX_WITH_CVLAN != 0 {
        public.read_cvlan = Some(read_cvlan);
    }
    if fields & abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0 {
        public.read_completion_ts = Some(read_completion_ts);
    }
    if fields & abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0 {
        public.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
}

/// Receives the current completion: `wr_id` and `status`, which programs read directly, and the fields for the readers.
struct Shown<'a> {
    /// A CQ of this provider that this thread is polling for as long as this value lives.
    cq: *mut ibv_cq_ex,
    completion: &'a mut Completion,
}

impl CompletionSlot for Shown<'_> {
    #[inline(always)]
    fn put(&mut self, completion: Completion) {
        // SAFETY: by the invariant of `cq`; only the polling thread accesses the two members.
        unsafe {
            (*self.cq).wr_id = completion.wr_id;
            (*self.cq).status = completion.status as c_uint;
        }
        *self.completion = completion;
    }
}

/// Makes the next completion current. Returns ENOENT if there is none. Inlined, because a call would cost ten instructions per completion.
///
/// # Safety
/// The caller holds `polling`, or is the only thread that polls.
#[inline(always)]
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a CQ of this provider; `current` and the two public members belong to the holder of `polling`.
    unsafe {
        let ours = IronCq::of(cq.cast());
        let Current { completion, reads_raw, raw } = &mut *ours.current.get();
        let mut shown = Shown { cq, completion };
        let found = match *reads_raw {
            true => ours.inner.poll_raw(&mut shown, raw),
            false => ours.inner.poll(std::slice::from_mut(&mut shown)) == 1,
        };
        match found {
            true => 0,
            false if ours.inner.is_gone() => libc::EIO,
            false => libc::ENOENT,
        }
    }
}

/// # Safety
/// `attr` is null or points to an attribute structure, which begins with its mask. No attributes are defined.
#[inline]
unsafe fn may_start(attr: *const u32) -> bool {
    // SAFETY: guaranteed by the caller: V4 for `attr`.
    attr.is_null() || unsafe { *attr } == 0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut u32) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: called by programs with a CQ of this provider.
        let ours = unsafe { IronCq::of(cq.cast()) };
        // SAFETY: V4 for the attributes.
        if !unsafe { may_start(attr) } {
            return libc::EINVAL;
        }
        while ours.polling.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: this thread has just set `polling`.
        let result = unsafe { advance(cq) };
        if result != 0 {
            ours.polling.store(false, Ordering::Release);
        }
        result
    })
}

/// `ibv_start_poll` for CQs that a single thread polls, as the program declared.
unsafe extern "C" fn start_poll_alone(cq: *mut ibv_cq_ex, attr: *mut u32) -> c_int {
    // SAFETY: called by programs with a CQ of this provider, from a single thread.
    guard(libc::EIO, || unsafe { if may_start(attr) { advance(cq) } else { libc::EINVAL } })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: called between start and end of polling, so this thread holds `polling`.
    guard(libc::EIO, || unsafe { advance(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a CQ of this provider.
    unsafe { IronCq::of(cq.cast()) }.polling.store(false, Ordering::Release);
}

unsafe extern "C" fn end_poll_alone(_: *mut ibv_cq_ex) {}

/// # Safety
/// `cq` is a CQ of this provider that this thread is polling.
#[inline]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Current {
    // SAFETY: guaranteed by the caller: V1 and V2, and only this thread polls the CQ.
    unsafe { &*IronCq::of(cq.cast()).current.get() }
}

macro_rules! readers { ($($(#[$m:meta])* $name:ident: $t:ty = $of:expr;)*) => { $(
    $(#[$m])*
    unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $t {
        let of: fn(&Current) -> $t = $of;
        // SAFETY: called by programs between start and end of polling.
        of(unsafe { current(cq) })
    }
)* } }
readers! {
    read_opcode: c_uint = |c| c.completion.opcode as c_uint;
    read_vendor_err: u32 = |c| c.completion.vendor_err;
    read_byte_len: u32 = |c| c.completion.byte_len;
    read_imm_data: u32 = |c| imm_or_key(&c.completion);
    read_qp_num: u32 = |c| c.completion.qpn;
    read_src_qp: u32 = |c| c.completion.src_qp;
    read_wc_flags: c_uint = |c| c.completion.flags.bits();
    read_slid: u32 = |c| c.completion.slid.into();
    read_sl: u8 = |c| c.completion.sl;
    read_path_bits: u8 = |c| c.completion.path_bits;
    read_completion_ts: u64 = stamp;
    /// The VLAN tag that was stripped from a raw packet.
    read_cvlan: u16 = |c| if c.completion.status == WcStatus::Success { c.raw.vlan_info() } else { 0 };
}

/// Returns the timestamp. Error CQEs have none.
fn stamp(current: &Current) -> u64 {
    if current.completion.status == WcStatus::Success { current.raw.timestamp() } else { 0 }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    guard(0, || {
        // SAFETY: called by programs between start and end of polling, with a CQ of an open context.
        let (context, stamp) = unsafe { (Context::of((*cq).base.context), stamp(current(cq))) };
        if stamp == 0 { 0 } else { context.wall.at(&context.device, stamp) }
    })
}
