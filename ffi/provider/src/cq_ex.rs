//! The extended polling interface: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` and the field readers between them. Each reader
//! decodes its field when called, so fields that are not read cost nothing.

use crate::abi::public::{self as abi, Polled, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex};
use crate::cq::{Current, IronCq, Wanted};
use crate::guard::{answer, guard};
use crate::ours::Of;
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
pub extern "C" fn create_cq_ex(context: Of<ibv_context>, attr: &ibv_cq_init_attr_ex) -> Option<Of<ibv_cq>> {
    answer(|| {
        let has = |bit| attr.comp_mask & bit != 0;
        let flags = if has(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
        let stamped = attr.wc_flags & STAMPS != 0;
        let tagged = attr.wc_flags & abi::IBV_WC_EX_WITH_CVLAN != 0;
        let device = context.device.attr();
        let missing = stamped && device.clock_khz == 0 || tagged && !device.raw_vlan_stripping;
        if attr.wc_flags & !FIELDS != 0 || flags & !FLAGS != 0 || missing {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & !MASK != 0 {
            return Err(libc::EINVAL);
        }
        let domain = match has(abi::IBV_CQ_INIT_ATTR_MASK_PD) {
            true => Some(attr.parent_domain.filter(|pd| pd.is_parent_domain()).ok_or(libc::EINVAL)?),
            false => None,
        };
        let wanted = Wanted {
            entries: i64::from(attr.cqe),
            channel: attr.channel,
            vector: i64::from(attr.comp_vector),
            ignore_overrun: flags & abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            domain,
        };
        IronCq::create(context, &wanted, |cq| {
            cq.current.get_mut().reads_raw = stamped || tagged;
            let alone = flags & abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
            install(&mut cq.public, attr.wc_flags, alone);
        })
    })
}

/// Sets the function pointers.
fn install(public: &mut ibv_cq_ex, fields: u64, alone: bool) {
    public.start_poll = Some(if alone { start_poll::<true> } else { start_poll::<false> });
    public.next_poll = Some(next_poll);
    public.end_poll = Some(if alone { end_poll::<true> } else { end_poll::<false> });
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

impl Polled {
    /// The completion that the thread is reading.
    #[inline]
    fn current(&self) -> &Current {
        // SAFETY: by the invariant of the type, only this thread uses it.
        unsafe { &*self.of().current.get() }
    }

    /// Makes the next completion current. Returns ENOENT if there is none. Inlined, because a call would cost ten instructions per
    /// completion.
    #[inline(always)]
    fn advance(&mut self) -> c_int {
        // SAFETY: by the invariant of the type, only this thread uses it.
        let Current { completion, reads_raw, raw } = unsafe { &mut *self.of().current.get() };
        let mut shown = Shown { cq: self.of(), completion };
        let found = match *reads_raw {
            true => self.of().inner.poll_raw(&mut shown, raw),
            false => self.of().inner.poll(std::slice::from_mut(&mut shown)) == 1,
        };
        match found {
            true => 0,
            false if self.of().inner.is_gone() => libc::EIO,
            false => libc::ENOENT,
        }
    }
}

/// Receives the current completion: `wr_id` and `status`, which programs read directly, and the fields for the readers.
struct Shown<'a> {
    /// A CQ that this thread is polling for as long as this value lives.
    cq: Of<ibv_cq>,
    completion: &'a mut Completion,
}

impl CompletionSlot for Shown<'_> {
    #[inline(always)]
    fn put(&mut self, completion: Completion) {
        let cq = self.cq.raw().cast::<ibv_cq_ex>();
        // SAFETY: V1, V2; by the invariant of `cq`, only this thread accesses the two members.
        unsafe {
            (*cq).wr_id = completion.wr_id;
            (*cq).status = completion.status as c_uint;
        }
        *self.completion = completion;
    }
}

/// `ibv_start_poll`. With `ALONE`, a single thread polls the CQ, as the program declared. No attributes are defined.
extern "C" fn start_poll<const ALONE: bool>(cq: Of<ibv_cq>, attr: Option<&u32>) -> c_int {
    guard(libc::EIO, || {
        if attr.is_some_and(|mask| *mask != 0) {
            return libc::EINVAL;
        }
        while !ALONE && cq.polling.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: this thread has just set `polling`, or is the only one that polls.
        let result = unsafe { Polled::new(cq) }.advance();
        if !ALONE && result != 0 {
            cq.polling.store(false, Ordering::Release);
        }
        result
    })
}

extern "C" fn next_poll(mut cq: Polled) -> c_int {
    guard(libc::EIO, || cq.advance())
}

extern "C" fn end_poll<const ALONE: bool>(cq: Polled) {
    if !ALONE {
        cq.of().polling.store(false, Ordering::Release);
    }
}

macro_rules! readers { ($($(#[$m:meta])* $name:ident: $t:ty = $of:expr;)*) => { $(
    $(#[$m])*
    extern "C" fn $name(cq: Polled) -> $t {
        let of: fn(&Current) -> $t = $of;
        of(cq.current())
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

extern "C" fn read_completion_wallclock_ns(cq: Polled) -> u64 {
    guard(0, || match stamp(cq.current()) {
        0 => 0,
        stamp => {
            let context = cq.of().context();
            context.wall.at(&context.device, stamp)
        }
    })
}
