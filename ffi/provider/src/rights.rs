//! Privilege checks that the kernel's verbs would perform: there is no kernel behind the provider's device files.

use libc::c_int;

/// Number of the capability (capabilities(7)).
const CAP_NET_RAW: u32 = 13;
/// Fails with EPERM unless the calling thread has CAP_NET_RAW in effect. Required, as by ib_uverbs, for raw packet QPs and flow rules,
/// which let a program send frames with arbitrary addresses or receive frames of others.
pub fn raw_packets() -> Result<(), c_int> {
    match node::capabilities::get() {
        Ok([low, _]) if low.effective & 1 << CAP_NET_RAW != 0 => Ok(()),
        _ => Err(libc::EPERM),
    }
}
