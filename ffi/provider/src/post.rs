//! `ibv_post_send` and `ibv_post_recv`. Hot path. The program's list is converted one request at a time on the stack; the driver validates
//! and builds the requests, and rings the doorbell once for the whole list.

use crate::abi::public::{self as abi, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::ah::IronAh;
use crate::convert;
use crate::guard::guard;
use crate::mw;
use crate::ours::Ours;
use crate::qp::IronQp;
use driver::{PostError, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target};
use libc::c_int;

/// SGE lists are passed on without copying.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());

/// A singly linked list of work requests.
pub trait WorkRequest {
    /// The next request in the list, or null.
    fn next(&self) -> *mut Self;
}

impl WorkRequest for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl WorkRequest for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Iterates over the program's list. Stops at the first request that cannot be converted, and keeps its errno.
pub struct Walk<W> {
    at: *mut W,
    refused: Option<c_int>,
}

impl<W: WorkRequest> Walk<W> {
    #[inline]
    fn step<T>(&mut self, convert: impl FnOnce(&W) -> Result<T, c_int>) -> Option<T> {
        // SAFETY: the program's list: null or a work request.
        let wr = unsafe { self.at.as_ref() }?;
        match convert(wr) {
            Ok(converted) => {
                self.at = wr.next();
                Some(converted)
            }
            Err(errno) => {
                self.refused = Some(errno);
                None
            }
        }
    }

    /// Returns the errno, and points `bad` to the first request that was not posted.
    #[inline]
    unsafe fn finish(self, first: *mut W, posted: Result<(), PostError>, bad: *mut *mut W) -> c_int {
        let (errno, at) = match posted {
            Err(error) => {
                let mut at = first;
                for _ in 0..error.index {
                    // SAFETY: the driver's count covers only requests of this list.
                    at = unsafe { (*at).next() };
                }
                (error.errno, at)
            }
            Ok(()) => match self.refused {
                None => return 0,
                Some(errno) => (errno, self.at),
            },
        };
        if !bad.is_null() {
            // SAFETY: `bad` is the program's output pointer.
            unsafe { *bad = at };
        }
        errno
    }
}

/// The program's SGE list.
///
/// # Safety
/// `list` has `count` SGEs for as long as the result is used.
#[inline]
unsafe fn pieces<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], c_int> {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller: `list` has `count` SGEs. Both types have the same layout, as asserted above.
    Ok(unsafe { std::slice::from_raw_parts(list.cast(), count) })
}

impl Iterator for &mut Walk<ibv_send_wr> {
    type Item = SendWr<'static>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.step(send_wr)
    }
}

#[inline]
fn send_wr(wr: &ibv_send_wr) -> Result<SendWr<'static>, c_int> {
    let op = send_op(wr)?;
    let flags = convert::common_flags(wr.send_flags).ok_or(libc::EINVAL)?;
    // SAFETY: the program keeps its list until the call returns.
    Ok(SendWr { wr_id: wr.wr_id, op, sge: unsafe { pieces(wr.sg_list, wr.num_sge) }?, flags })
}

/// Iterates over requests that carry a destination.
struct Addressed<'a> {
    walk: &'a mut Walk<ibv_send_wr>,
    service: Service,
}

impl Iterator for Addressed<'_> {
    type Item = (SendWr<'static>, Target<'static>);

    fn next(&mut self) -> Option<Self::Item> {
        let service = self.service;
        self.walk.step(|wr| match service {
            Service::RawPacket => Ok((raw_packet(wr)?, Target::Peer)),
            _ => Ok((send_wr(wr)?, target(wr, service)?)),
        })
    }
}

/// Converts a request that may ask for checksum offload.
fn raw_packet(wr: &ibv_send_wr) -> Result<SendWr<'static>, c_int> {
    let flags = SendFlags::from_bits(wr.send_flags).ok_or(libc::EINVAL)?;
    // SAFETY: the program keeps its list until the call returns.
    Ok(SendWr { wr_id: wr.wr_id, op: send_op(wr)?, sge: unsafe { pieces(wr.sg_list, wr.num_sge) }?, flags })
}

/// The destination of a request.
fn target(wr: &ibv_send_wr, service: Service) -> Result<Target<'static>, c_int> {
    match service {
        Service::Ud => {
            // SAFETY: for this service, the program sets this member of the union.
            let ud = unsafe { wr.wr.ud };
            if ud.ah.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: an address handle of this provider, which the program keeps until the call returns.
            let ah: &'static driver::Ah = unsafe { &IronAh::of(ud.ah).inner };
            Ok(Target::Datagram { ah, qpn: ud.remote_qpn, qkey: ud.remote_qkey })
        }
        Service::XrcIni => Ok(Target::Srq(wr.remote_srqn)),
        _ => Ok(Target::Peer),
    }
}

impl Iterator for &mut Walk<ibv_recv_wr> {
    type Item = RecvWr<'static>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: the program keeps its list until the call returns.
        self.step(|wr| Ok(RecvWr { wr_id: wr.wr_id, sge: unsafe { pieces(wr.sg_list, wr.num_sge) }? }))
    }
}

#[inline]
fn send_op(wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    let imm = u32::from_be(wr.imm_data);
    // SAFETY: the opcode determines which member of the union the program has set.
    let (rdma, atomic) = (|| unsafe { wr.wr.rdma }, || unsafe { wr.wr.atomic });
    let to = || (rdma().remote_addr, rdma().rkey);
    Ok(match wr.opcode {
        abi::IBV_WR_RDMA_WRITE => {
            let (raddr, rkey) = to();
            SendOp::Write { raddr, rkey }
        }
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => {
            let (raddr, rkey) = to();
            SendOp::WriteImm { raddr, rkey, imm }
        }
        abi::IBV_WR_SEND => SendOp::Send,
        abi::IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm),
        abi::IBV_WR_SEND_WITH_INV => SendOp::SendInv(wr.imm_data),
        abi::IBV_WR_RDMA_READ => {
            let (raddr, rkey) = to();
            SendOp::Read { raddr, rkey }
        }
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => {
            let a = atomic();
            SendOp::CmpSwap { raddr: a.remote_addr, rkey: a.rkey, compare: a.compare_add, swap: a.swap }
        }
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let a = atomic();
            SendOp::FetchAdd { raddr: a.remote_addr, rkey: a.rkey, add: a.compare_add }
        }
        abi::IBV_WR_LOCAL_INV => SendOp::LocalInv(wr.imm_data),
        abi::IBV_WR_BIND_MW => {
            // SAFETY: with this opcode the program has set this member, with a window and an MR of this provider.
            unsafe { mw::binding(wr.extra.bind_mw.mw, wr.extra.bind_mw.rkey, &wr.extra.bind_mw.bind_info)? }
        }
        _ => return Err(libc::EINVAL),
    })
}

/// `ibv_post_send`.
///
/// # Safety
/// Called by programs with a QP of this provider and a list of send work requests.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    guard(libc::EIO, || {
        let mut walk = Walk { at: wr, refused: None };
        // SAFETY: V1 and V2 for the QP, V4 for the list and for `bad`.
        unsafe {
            let ours = IronQp::of(qp);
            let posted = match ours.birth.check() {
                Ok(()) if ours.service == Service::Rc => ours.inner.post_send_raw(&mut walk),
                Ok(()) => ours.inner.post_send_to_raw(Addressed { walk: &mut walk, service: ours.service }),
                Err(errno) => Err(PostError { index: 0, errno }),
            };
            walk.finish(wr, posted, bad)
        }
    })
}

/// `ibv_post_recv`.
///
/// # Safety
/// Called by programs with a QP of this provider and a list of receive work requests.
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: V1 and V2 for the QP, V4 for the list and for `bad`.
        unsafe {
            let ours = IronQp::of(qp);
            receives(wr, bad, |walk| match ours.birth.check() {
                Ok(()) => ours.inner.post_recv(walk),
                Err(errno) => Err(PostError { index: 0, errno }),
            })
        }
    })
}

/// Posts a list of receives with `post`, and returns the errno.
///
/// # Safety
/// `wr` is a program's list, and `bad` is null or points to where the first request that was not posted is stored.
#[inline]
pub unsafe fn receives(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl FnOnce(&mut Walk<ibv_recv_wr>) -> Result<(), PostError>,
) -> c_int {
    let mut walk = Walk { at: wr, refused: None };
    let posted = post(&mut walk);
    // SAFETY: guaranteed by the caller: V4 for the list and for `bad`.
    unsafe { walk.finish(wr, posted, bad) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    fn send(opcode: u32, num_sge: c_int) -> ibv_send_wr {
        // SAFETY: all-zero is a valid, empty work request.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.opcode = opcode;
        wr.num_sge = num_sge;
        wr
    }

    #[test]
    fn a_list_ends_at_the_request_that_cannot_be_and_names_it() {
        let mut list =
            [send(abi::IBV_WR_SEND, 0), send(abi::IBV_WR_SEND, 0), send(77, 0), send(abi::IBV_WR_SEND, 0)];
        for index in 0..3 {
            list[index].next = &raw mut list[index + 1];
        }
        let first = list.as_mut_ptr();
        let mut walk = Walk { at: first, refused: None };
        assert_eq!((&mut walk).count(), 2);
        let mut bad = null_mut();
        // SAFETY: the list and `bad` are locals of this test.
        assert_eq!(unsafe { walk.finish(first, Ok(()), &raw mut bad) }, libc::EINVAL);
        assert_eq!(bad, &raw mut list[2]);
        let walk = Walk { at: null_mut(), refused: None };
        let failed = Err(PostError { index: 1, errno: libc::ENOMEM });
        // SAFETY: the list and `bad` are locals of this test.
        assert_eq!(unsafe { walk.finish(first, failed, &raw mut bad) }, libc::ENOMEM);
        assert_eq!(bad, &raw mut list[1]);
    }

    #[test]
    fn impossible_counts_of_pieces_are_refused() {
        for (count, list) in [(-1, null_mut()), (1, null_mut())] {
            // SAFETY: nothing is read through the null pointer.
            assert_eq!(unsafe { pieces(list, count) }, Err(libc::EINVAL));
        }
    }

    #[test]
    fn immediate_data_keeps_its_bytes() {
        let mut wr = send(abi::IBV_WR_SEND_WITH_IMM, 0);
        wr.imm_data = 0x1122_3344u32.to_be();
        assert_eq!(send_op(&wr), Ok(SendOp::SendImm(0x1122_3344)));
    }
}
