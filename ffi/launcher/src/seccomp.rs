//! The filters that keep programs from using the kernel's RDMA netlink, which does not know the simulated devices.
//!
//! Where the kernel's ib_core is loaded, libibverbs queries the devices over netlink and never reads sysfs, so it would not find simulated
//! ones. One filter passes such sockets to the supervisor. Where there is no supervisor, the other filter makes `socket(AF_NETLINK, _,
//! NETLINK_RDMA)` fail as in a kernel without ib_core: programs then read sysfs, which lists real and simulated devices. Both prevent the
//! loading of ib_core, which that call triggers.

use std::io;

use super::notify::Listener;
use super::reserved::Reserved;
use super::sys;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const AUDIT_ARCH: u32 = 0xc000_00f3;

/// Netlink protocol number of RDMA.
pub const NETLINK_RDMA: libc::c_int = 20;

/// Calls on descriptors that the supervisor handles. The kernel executes all others.
const ON_DESCRIPTORS: [libc::c_long; 5] =
    [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_connect];

// Offsets in struct seccomp_data; an `int` argument is the low half of its slot (little endian).
const DATA_NR: u32 = 0;
const DATA_ARCH: u32 = 4;
const DATA_ARG0: u32 = 16;
const DATA_ARG1: u32 = 24;
const DATA_ARG2: u32 = 32;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_EQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_GE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const fn op(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Continues if the loaded word is `k`, else skips `miss` instructions.
const fn want(k: u32, miss: u8) -> libc::sock_filter {
    libc::sock_filter { code: JUMP_EQ, jt: 0, jf: miss, k }
}

/// Skips `hit` instructions if the loaded word is `k`.
const fn either(k: u32, hit: u8) -> libc::sock_filter {
    libc::sock_filter { code: JUMP_EQ, jt: hit, jf: 0, k }
}

const ALLOW: libc::sock_filter = op(RETURN, libc::SECCOMP_RET_ALLOW);

/// Makes RDMA netlink appear to be missing.
const HIDING: [libc::sock_filter; 10] = [
    op(LOAD, DATA_ARCH),
    want(AUDIT_ARCH, 7),
    op(LOAD, DATA_NR),
    want(libc::SYS_socket as u32, 5),
    op(LOAD, DATA_ARG0),
    want(libc::AF_NETLINK as u32, 3),
    op(LOAD, DATA_ARG2),
    want(NETLINK_RDMA as u32, 1),
    op(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32),
    ALLOW,
];

/// Commands of the umad device files (ib_user_mad.h), which the kernel cannot handle for simulated devices either.
pub const REGISTER: u32 = 0xc01c_1b01;
/// Unregisters an agent.
pub const UNREGISTER: u32 = 0x4004_1b02;
/// Enables the P_Key index in packets.
pub const ENABLE_PKEY: u32 = 0x1b03;
/// [`REGISTER`] with flags.
pub const REGISTER_2: u32 = 0xc028_1b04;

/// Length of a read with room for one packet of a umad file: a header with a P_Key index, and a MAD. libibumad begins with this length,
/// before it knows whether an answer is longer.
pub const ONE_DATAGRAM: u32 = 64 + 256;

/// Passes calls on RDMA netlink and umad files to the supervisor. Socket calls are trapped only on the `reserved` numbers, so that calls on
/// a program's own sockets never wait for it, and reads only if their length is [`ONE_DATAGRAM`].
fn watching(reserved: Reserved) -> [libc::sock_filter; 28] {
    let numbers = reserved.numbers();
    [
        op(LOAD, DATA_ARCH),
        want(AUDIT_ARCH, 25),
        op(LOAD, DATA_NR),
        either(ON_DESCRIPTORS[0] as u32, 11),
        either(ON_DESCRIPTORS[1] as u32, 10),
        either(ON_DESCRIPTORS[2] as u32, 9),
        either(ON_DESCRIPTORS[3] as u32, 8),
        either(ON_DESCRIPTORS[4] as u32, 7),
        either(libc::SYS_ioctl as u32, 10),
        either(libc::SYS_read as u32, 14),
        want(libc::SYS_socket as u32, 16),
        op(LOAD, DATA_ARG0),
        want(libc::AF_NETLINK as u32, 14),
        op(LOAD, DATA_ARG2),
        libc::sock_filter { code: JUMP_EQ, jt: 11, jf: 12, k: NETLINK_RDMA as u32 },
        op(LOAD, DATA_ARG0),
        libc::sock_filter { code: JUMP_GE, jt: 0, jf: 10, k: numbers.start },
        libc::sock_filter { code: JUMP_GE, jt: 9, jf: 0, k: numbers.end },
        op(RETURN, libc::SECCOMP_RET_USER_NOTIF),
        op(LOAD, DATA_ARG1),
        either(REGISTER, 5),
        either(REGISTER_2, 4),
        either(ENABLE_PKEY, 3),
        libc::sock_filter { code: JUMP_EQ, jt: 2, jf: 3, k: UNREGISTER },
        op(LOAD, DATA_ARG2),
        want(ONE_DATAGRAM, 1),
        op(RETURN, libc::SECCOMP_RET_USER_NOTIF),
        ALLOW,
    ]
}

/// Installs a filter. The kernel accepts one from a process with CAP_SYS_ADMIN, and from others only with no_new_privs set, because a
/// set-uid program would otherwise run under an unprivileged user's filter. That setting is irrevocable and breaks `sudo`, so it is made
/// only where the kernel requires it.
fn install<T>(filter: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match filter() {
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            nix::sys::prctl::set_no_new_privs()?;
            filter()
        }
        done => done,
    }
}

/// Hides RDMA netlink from this process and everything it starts.
pub fn hide_rdma_netlink() -> io::Result<()> {
    install(|| sys::seccomp(&HIDING))
}

/// Passes RDMA netlink calls of this process, and of everything it starts, to the holder of the listener.
///
/// # Errors
/// EBUSY: another process already listens to this one. EINVAL: the kernel is too old.
pub fn watch_rdma_netlink(reserved: Reserved) -> io::Result<Listener> {
    install(|| Listener::install(&watching(reserved)))
}

#[cfg(test)]
mod tests {
    use super::super::netlink::Netlink;
    use super::*;
    use sys::Answer;

    fn open(protocol: libc::c_int) -> io::Result<()> {
        Netlink::open(libc::SOCK_RAW, protocol).map(drop)
    }

    #[test]
    fn rdma_netlink_is_refused_and_other_netlink_is_not() {
        let rdma = sys::in_child(|| {
            hide_rdma_netlink()?;
            open(NETLINK_RDMA)
        });
        assert_eq!(rdma, Answer::No(libc::EPROTONOSUPPORT));
        let route = sys::in_child(|| {
            hide_rdma_netlink()?;
            open(libc::NETLINK_ROUTE)
        });
        assert_eq!(route, Answer::Yes);
    }

    /// Interprets a filter for a call, by the rules of classic BPF.
    fn run(filter: &[libc::sock_filter], nr: libc::c_long, args: [u32; 3]) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let step = filter[at];
            at += 1;
            match step.code {
                LOAD => {
                    word = match step.k {
                        DATA_NR => nr as u32,
                        DATA_ARCH => AUDIT_ARCH,
                        DATA_ARG0 => args[0],
                        DATA_ARG1 => args[1],
                        DATA_ARG2 => args[2],
                        other => panic!("{other}"),
                    }
                }
                JUMP_EQ => at += usize::from(if word == step.k { step.jt } else { step.jf }),
                JUMP_GE => at += usize::from(if word >= step.k { step.jt } else { step.jf }),
                RETURN => return step.k,
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_supervisor_sees_rdma_sockets_and_its_own_descriptors_and_nothing_else() {
        let (netlink, rdma) = (libc::AF_NETLINK as u32, NETLINK_RDMA as u32);
        let reserved = Reserved::of(65536..65792);
        let watched = |nr, args| match run(&watching(reserved), nr, args) {
            libc::SECCOMP_RET_USER_NOTIF => true,
            libc::SECCOMP_RET_ALLOW => false,
            other => panic!("{other:#x}"),
        };
        assert!(watched(libc::SYS_socket, [netlink, 3, rdma]));
        assert!(!watched(libc::SYS_socket, [netlink, 3, 0]));
        assert!(!watched(libc::SYS_socket, [libc::AF_INET as u32, 1, rdma]));
        for call in ON_DESCRIPTORS {
            let seen = [0, 3, 900, 65535, 65536, 65791, 65792, u32::MAX].map(|fd| watched(call, [fd, 0, 0]));
            assert_eq!(seen, [false, false, false, false, true, true, false, false]);
        }
        for command in [REGISTER, REGISTER_2, ENABLE_PKEY, UNREGISTER] {
            assert!(watched(libc::SYS_ioctl, [3, command, 0]));
        }
        // RDMA_VERBS_IOCTL, TCGETS.
        for command in [0xc018_1b01, 0x5401] {
            assert!(!watched(libc::SYS_ioctl, [65600, command, rdma]));
        }
        for call in [libc::SYS_read, libc::SYS_write, libc::SYS_futex, libc::SYS_getsockname] {
            assert!(!watched(call, [65600, 3, rdma]));
        }
        assert!(watched(libc::SYS_read, [3, 0, ONE_DATAGRAM]));
        assert!(
            !watched(libc::SYS_read, [3, ONE_DATAGRAM, 4096])
                && !watched(libc::SYS_write, [3, 0, ONE_DATAGRAM])
        );
        assert_eq!(run(&HIDING, libc::SYS_socket, [netlink, 3, rdma]) & 0xffff, libc::EPROTONOSUPPORT as u32);
        assert_eq!(run(&HIDING, libc::SYS_sendto, [65600, 3, rdma]), libc::SECCOMP_RET_ALLOW);
    }
}
