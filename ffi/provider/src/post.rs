//! `ibv_post_send` and `ibv_post_recv`. Hot path. The program's list is converted one request at a time on the stack; the driver validates
//! and builds the requests, and rings the doorbell once for the whole list.

use crate::abi::public::{self as abi, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::convert;
use crate::guard::{Birth, guard};
use crate::mw;
use crate::ours::{self, Of};
use driver::{PostError, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target};
use libc::c_int;
use std::ptr::null;

/// SGE lists are passed on without copying.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());

/// A work request in a singly linked list.
///
/// # Safety
/// `next` returns null or a work request, and `pieces` as many SGEs as it says, or a null list. Programs uphold it (V4).
pub unsafe trait WorkRequest: 'static {
    /// The next request in the list, or null.
    fn next(&self) -> *const Self;
    /// The SGE list, and its length.
    fn pieces(&self) -> (*const ibv_sge, c_int);
}

macro_rules! work_requests { ($($name:ident)+) => { $(
    // SAFETY: V4.
    unsafe impl WorkRequest for $name {
        #[inline(always)]
        fn next(&self) -> *const Self {
            self.next
        }

        #[inline(always)]
        fn pieces(&self) -> (*const ibv_sge, c_int) {
            (self.sg_list, self.num_sge)
        }
    }
)+ } }
work_requests! { ibv_send_wr ibv_recv_wr }

/// Iterates over the program's list. Stops at the first request that cannot be converted, and keeps its errno.
pub struct Walk<W> {
    at: *const W,
    refused: Option<c_int>,
}

impl<W: WorkRequest> Walk<W> {
    #[inline]
    fn step<T>(&mut self, convert: impl FnOnce(&'static W) -> Result<T, c_int>) -> Option<T> {
        // SAFETY: the program's list: null or a work request, which the program keeps until the call returns.
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
}

/// Posts a list of requests with `post`. Returns the errno, and points `bad` to the first request that was not posted.
#[inline(always)]
pub fn list<W: WorkRequest>(
    birth: Birth,
    first: Option<&W>,
    bad: Option<&mut *const W>,
    post: impl FnOnce(&mut Walk<W>) -> Result<(), PostError>,
) -> c_int {
    guard(libc::EIO, || {
        let first = first.map_or(null(), std::ptr::from_ref);
        let mut walk = Walk { at: first, refused: None };
        let posted = match birth.check() {
            Ok(()) => post(&mut walk),
            Err(errno) => Err(PostError { index: 0, errno }),
        };
        let (errno, at) = match posted {
            Err(error) => {
                let mut at = first;
                for _ in 0..error.index {
                    // SAFETY: the driver's count covers only requests of this list.
                    at = unsafe { (*at).next() };
                }
                (error.errno, at)
            }
            Ok(()) => match walk.refused {
                None => return 0,
                Some(errno) => (errno, walk.at),
            },
        };
        if let Some(bad) = bad {
            *bad = at;
        }
        errno
    })
}

/// The SGE list of a request.
#[inline]
fn pieces<W: WorkRequest>(wr: &W) -> Result<&[Sge], c_int> {
    let (list, count) = wr.pieces();
    let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
    if list.is_null() && count != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the invariant of the trait, `list` has `count` SGEs. Both types have the same layout, as asserted above.
    Ok(unsafe { ours::list(list.cast(), count) })
}

impl Iterator for &mut Walk<ibv_send_wr> {
    type Item = SendWr<'static>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.step(send_wr)
    }
}

#[inline]
fn send_wr(wr: &ibv_send_wr) -> Result<SendWr<'_>, c_int> {
    let op = send_op(wr)?;
    let flags = convert::common_flags(wr.send_flags).ok_or(libc::EINVAL)?;
    Ok(SendWr { wr_id: wr.wr_id, op, sge: pieces(wr)?, flags })
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
fn raw_packet(wr: &ibv_send_wr) -> Result<SendWr<'_>, c_int> {
    let flags = SendFlags::from_bits(wr.send_flags).ok_or(libc::EINVAL)?;
    Ok(SendWr { wr_id: wr.wr_id, op: send_op(wr)?, sge: pieces(wr)?, flags })
}

/// The destination of a request.
fn target(wr: &ibv_send_wr, service: Service) -> Result<Target<'_>, c_int> {
    match service {
        Service::Ud => {
            // SAFETY: for this service, the program sets this member of the union.
            let ud = unsafe { &wr.wr.ud };
            let ah = &ud.ah.as_ref().ok_or(libc::EINVAL)?.inner;
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
        self.step(|wr| Ok(RecvWr { wr_id: wr.wr_id, sge: pieces(wr)? }))
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
            // SAFETY: with this opcode the program has set this member.
            let bind = unsafe { &wr.extra.bind_mw };
            mw::binding(bind.mw, bind.rkey, &bind.bind_info)?
        }
        _ => return Err(libc::EINVAL),
    })
}

/// `ibv_post_send`.
pub extern "C" fn post_send(
    qp: Of<ibv_qp>,
    requests: Option<&ibv_send_wr>,
    bad: Option<&mut *const ibv_send_wr>,
) -> c_int {
    // SAFETY: V4: the program's inline data is readable, and its other buffers stay until they complete (ibv_post_send(3)).
    list(qp.birth, requests, bad, |walk| unsafe {
        match qp.service {
            Service::Rc => qp.inner.post_send_raw(walk),
            service => qp.inner.post_send_to_raw(Addressed { walk, service }),
        }
    })
}

/// `ibv_post_recv`.
pub extern "C" fn post_recv(
    qp: Of<ibv_qp>,
    requests: Option<&ibv_recv_wr>,
    bad: Option<&mut *const ibv_recv_wr>,
) -> c_int {
    list(qp.birth, requests, bad, |walk| qp.inner.post_recv(walk))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            list[index].next = &raw const list[index + 1];
        }
        let post = |post: &mut dyn FnMut(&mut Walk<ibv_send_wr>) -> Result<(), PostError>| {
            let mut bad = null();
            let errno = super::list(Birth::here(), list.first(), Some(&mut bad), post);
            (errno, bad)
        };
        let all = &mut |walk: &mut Walk<ibv_send_wr>| {
            assert_eq!(walk.count(), 2);
            Ok(())
        };
        assert_eq!(post(all), (libc::EINVAL, &raw const list[2]));
        let failed = &mut |_: &mut Walk<ibv_send_wr>| Err(PostError { index: 1, errno: libc::ENOMEM });
        assert_eq!(post(failed), (libc::ENOMEM, &raw const list[1]));
    }

    #[test]
    fn impossible_counts_of_pieces_are_refused() {
        for count in [-1, 1] {
            assert_eq!(pieces(&send(abi::IBV_WR_SEND, count)), Err(libc::EINVAL));
        }
    }

    #[test]
    fn immediate_data_keeps_its_bytes() {
        let mut wr = send(abi::IBV_WR_SEND_WITH_IMM, 0);
        wr.imm_data = 0x1122_3344u32.to_be();
        assert_eq!(send_op(&wr), Ok(SendOp::SendImm(0x1122_3344)));
    }
}
