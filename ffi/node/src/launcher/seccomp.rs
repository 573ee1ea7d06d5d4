//! The filter that keeps libibverbs on sysfs.
//!
//! Where the kernel's ib_core is loaded, libibverbs asks it over netlink which devices there are and never looks at
//! sysfs, so ours would stay unseen. The filter answers `socket(AF_NETLINK, _, NETLINK_RDMA)` as a kernel without
//! ib_core does; programs then read sysfs, where real and simulated devices stand side by side. It also spares the
//! host the loading of ib_core, which that call triggers.

use std::io;

use super::sys;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const AUDIT_ARCH: u32 = 0xc000_00f3;

/// Netlink protocol number of RDMA.
pub const NETLINK_RDMA: libc::c_int = 20;

// Offsets in struct seccomp_data; an `int` argument is the low half of its slot (little endian).
const DATA_NR: u32 = 0;
const DATA_ARCH: u32 = 4;
const DATA_ARG0: u32 = 16;
const DATA_ARG2: u32 = 32;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn op(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Falls through when the loaded word is `k`, else skips `miss` instructions.
const fn want(k: u32, miss: u8) -> libc::sock_filter {
    libc::sock_filter { code: JUMP_EQ, jt: 0, jf: miss, k }
}

const FILTER: [libc::sock_filter; 10] = [
    op(LOAD, DATA_ARCH),
    want(AUDIT_ARCH, 7),
    op(LOAD, DATA_NR),
    want(libc::SYS_socket as u32, 5),
    op(LOAD, DATA_ARG0),
    want(libc::AF_NETLINK as u32, 3),
    op(LOAD, DATA_ARG2),
    want(NETLINK_RDMA as u32, 1),
    op(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32),
    op(RETURN, libc::SECCOMP_RET_ALLOW),
];

/// Installs the filter for this process and all it starts.
pub fn hide_rdma_netlink() -> io::Result<()> {
    // The kernel accepts a filter only from those who can no longer gain privileges by executing set-uid files (or
    // already are privileged), since such a file would run under a filter its author never saw. With one uid mapped,
    // set-uid files give nothing anyway; for root the promise costs nothing, so it is made for all alike.
    sys::no_new_privs()?;
    sys::seccomp(&FILTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::Answer;

    #[test]
    fn rdma_netlink_is_refused_and_other_netlink_is_not() {
        let rdma = sys::in_child(|| {
            hide_rdma_netlink()?;
            sys::netlink(NETLINK_RDMA)
        });
        assert_eq!(rdma, Answer::No(libc::EPROTONOSUPPORT));
        let route = sys::in_child(|| {
            hide_rdma_netlink()?;
            sys::netlink(libc::NETLINK_ROUTE)
        });
        assert_eq!(route, Answer::Yes);
    }

    #[test]
    fn every_jump_of_a_mismatch_lands_on_allow() {
        for (i, step) in FILTER.iter().enumerate().filter(|(_, s)| s.code == JUMP_EQ) {
            assert_eq!(i + 1 + usize::from(step.jf), FILTER.len() - 1);
        }
    }
}
