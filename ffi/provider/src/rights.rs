//! Checks the program's privileges as the kernel's verbs would, since there is no kernel behind our device files.

use libc::c_int;

/// Number of the capability (capabilities(7)).
const CAP_NET_RAW: u32 = 13;
/// EPERM unless the calling thread has CAP_NET_RAW in effect. Like ib_uverbs, for operations by which a program could
/// send frames with any addresses, or steer those of others to itself: raw packet queue pairs and flows.
pub fn raw_packets() -> Result<(), c_int> {
    match node::capabilities::get() {
        Ok([low, _]) if low.effective & 1 << CAP_NET_RAW != 0 => Ok(()),
        _ => Err(libc::EPERM),
    }
}
