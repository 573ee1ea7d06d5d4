//! Commands: parses them, executes them, and writes their responses.

use super::file::Pending;
use super::id::{Id, State};
use super::manager::{Manager, Shared};
use super::sockaddr::SockAddr;
use super::uapi::{self, Plain, command, event, port_space, qp_type};
use crate::ours;
use libc::{c_int, size_t};
use std::os::fd::RawFd;

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The command was executed.
    Done,
    /// It fails with this errno.
    Failed(c_int),
    /// There is no event yet: to be retried when the descriptor is readable.
    Wait,
}

/// Maximum number of pending requests of a listener (`max_backlog`).
const MAX_BACKLOG: u32 = 1024;

/// The output buffer of a command.
#[derive(Clone, Copy)]
pub struct Answer {
    address: u64,
    /// Size of the buffer.
    pub room: usize,
}

impl Answer {
    fn at(address: u64, room: usize) -> Self {
        Self { address, room }
    }

    /// Writes `bytes`, truncated to the buffer.
    ///
    /// # Errors
    /// EFAULT for a null address.
    pub fn put(&self, bytes: &[u8]) -> Result<(), c_int> {
        let to = self.address as *mut u8;
        if to.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: the program states that this many bytes are writable there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len().min(self.room)) };
        Ok(())
    }

    /// Fails with ENOSPC unless the buffer has room for `len` bytes.
    pub fn holds(&self, len: usize) -> Result<(), c_int> {
        if self.room < len { Err(libc::ENOSPC) } else { Ok(()) }
    }
}

/// Executes the command that was written to `fd`.
///
/// # Safety
/// `buffer` is readable for `length` bytes, and the addresses in the command are valid as the command describes.
pub unsafe fn run(fd: RawFd, buffer: *const u8, length: size_t) -> Step {
    if buffer.is_null() {
        return Step::Failed(libc::EFAULT);
    }
    // SAFETY: guaranteed by the caller: `buffer` is readable for `length` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(buffer, length) };
    let Some((head, body)) = bytes.split_at_checked(size_of::<uapi::Header>()) else {
        return Step::Failed(libc::EINVAL);
    };
    let head = uapi::Header::read(head);
    let Some(body) = body.get(..usize::from(head.in_len)) else { return Step::Failed(libc::EINVAL) };
    if head.command == command::CONNECT {
        super::connect::wait_for_listener(uapi::Connect::read(body).id);
    }
    let mut manager = Shared::here().lock();
    match manager.obey(fd, head.command, body, usize::from(head.out_len)) {
        Ok(step) => step,
        Err(errno) => Step::Failed(errno),
    }
}

impl Manager {
    fn obey(&mut self, fd: RawFd, number: u32, body: &[u8], room: usize) -> Result<Step, c_int> {
        self.file(fd)?;
        match number {
            command::CREATE_ID => self.create_id(fd, &Plain::read(body), room),
            command::DESTROY_ID => self.destroy_id(fd, &Plain::read(body), room),
            command::BIND_IP => {
                let input = uapi::BindIp::read(body);
                let address = SockAddr::read(&input.addr).ok_or(libc::EINVAL)?;
                self.id(fd, input.id)?;
                self.bind(input.id, address)
            }
            command::BIND => {
                let input = uapi::Bind::read(body);
                let address = sized(&input.addr, input.addr_size)?;
                self.id(fd, input.id)?;
                self.bind(input.id, address)
            }
            command::RESOLVE_IP => {
                let input = uapi::ResolveIp::read(body);
                let dst = SockAddr::read(&input.dst).ok_or(libc::EINVAL)?;
                let src = optional(&input.src)?;
                self.id(fd, input.id)?;
                self.resolve_addr(input.id, src, dst)
            }
            command::RESOLVE_ADDR => {
                let input = uapi::ResolveAddr::read(body);
                let dst = sized(&input.dst, input.dst_size)?;
                let src = if input.src_size == 0 { None } else { Some(sized(&input.src, input.src_size)?) };
                self.id(fd, input.id)?;
                self.resolve_addr(input.id, src, dst)
            }
            command::RESOLVE_ROUTE => {
                let input = uapi::ResolveRoute::read(body);
                self.bound_id(fd, input.id)?;
                self.resolve_route(input.id)
            }
            command::QUERY_ROUTE => {
                let input = uapi::Query::read(body);
                self.id(fd, input.id)?;
                self.query_route(input.id, Answer::at(input.response, room))
            }
            command::QUERY => {
                let input = uapi::Query::read(body);
                self.id(fd, input.id)?;
                self.query(input.id, input.option, Answer::at(input.response, room))
            }
            command::CONNECT => {
                let input = uapi::Connect::read(body);
                if body.len() < uapi::CONNECT_MIN || input.param.valid == 0 {
                    return Err(libc::EINVAL);
                }
                self.bound_id(fd, input.id)?;
                self.connect(input.id, &input.param, (input.ece.vendor_id, input.ece.attr_mod))
            }
            command::LISTEN => {
                let input = uapi::Listen::read(body);
                let id = self.id(fd, input.id)?;
                id.backlog = if input.backlog == 0 { MAX_BACKLOG } else { input.backlog.min(MAX_BACKLOG) };
                self.listen(input.id)
            }
            command::ACCEPT => {
                let input = uapi::Accept::read(body);
                if body.len() < uapi::ACCEPT_MIN {
                    return Err(libc::EINVAL);
                }
                self.bound_id(fd, input.id)?;
                self.accept(input.id, input.uid, &input.param, (input.ece.vendor_id, input.ece.attr_mod))
            }
            command::REJECT => {
                let input = uapi::Reject::read(body);
                let id = self.bound_id(fd, input.id).map(|_| input.id);
                self.reject(id?, input.reason, &input.private_data[..usize::from(input.private_data_len)])
            }
            command::DISCONNECT => {
                let input = uapi::JustId::read(body);
                self.bound_id(fd, input.id)?;
                self.disconnect(input.id)
            }
            command::INIT_QP_ATTR => {
                let input = uapi::InitQpAttr::read(body);
                let answer = Answer::at(input.response, room);
                answer.holds(size_of::<uapi::QpAttr>())?;
                self.bound_id(fd, input.id)?;
                self.init_qp_attr(input.id, input.qp_state, answer)
            }
            command::GET_EVENT => self.get_event(fd, &Plain::read(body), room),
            command::SET_OPTION => {
                let input = uapi::SetOption::read(body);
                self.id(fd, input.id)?;
                /// Longer than any option.
                const MOST: u32 = 1 << 16;
                if input.optlen > MOST || (input.optval == 0 && input.optlen != 0) {
                    return Err(libc::EINVAL);
                }
                // SAFETY: the program states that this many bytes are readable there.
                let value = unsafe { ours::list(input.optval as *const u8, input.optlen as usize) };
                self.set_option(input.id, input.level, input.optname, value)
            }
            command::NOTIFY => {
                let input = uapi::Notify::read(body);
                self.bound_id(fd, input.id)?;
                self.notify(input.id, input.event)
            }
            command::JOIN_IP_MCAST => {
                let input = uapi::JoinIp::read(body);
                let address = SockAddr::read(&input.addr).ok_or(libc::EINVAL)?;
                self.bound_id(fd, input.id)?;
                self.join(input.id, input.uid, address, 0, Answer::at(input.response, room))
            }
            command::JOIN_MCAST => {
                let input = uapi::Join::read(body);
                let address = sized(&input.addr, input.addr_size)?;
                self.bound_id(fd, input.id)?;
                self.join(input.id, input.uid, address, input.join_flags, Answer::at(input.response, room))
            }
            command::LEAVE_MCAST => {
                let input = uapi::DestroyId::read(body);
                let answer = Answer::at(input.response, room);
                answer.holds(4)?;
                answer.put(&self.leave(fd, input.id)?.to_ne_bytes()).map(|()| Step::Done)
            }
            command::MIGRATE_ID => {
                let input = uapi::MigrateId::read(body);
                let from = input.fd as RawFd;
                self.file(from).map_err(|_| libc::EINVAL)?;
                let reported = self.migrate(input.id, from, fd)?;
                Answer::at(input.response, room).put(&reported.to_ne_bytes()).map(|()| Step::Done)
            }
            command::WRITE_CM_EVENT => {
                let input = uapi::WriteEvent::read(body);
                self.id(fd, input.id)?;
                if !matches!(input.event, event::USER | event::INTERNAL) {
                    return Err(libc::EINVAL);
                }
                self.report(input.id, input.event, input.status as i32, &input.param, (0, 0));
                Ok(Step::Done)
            }
            // There are no service records, and the kernel has had no readable options for a long time.
            command::GET_OPTION | command::RESOLVE_IB_SERVICE => Err(libc::ENOSYS),
            _ => Err(libc::EINVAL),
        }
    }

    fn create_id(&mut self, fd: RawFd, input: &uapi::CreateId, room: usize) -> Result<Step, c_int> {
        let answer = Answer::at(input.response, room);
        answer.holds(4)?;
        let kind = match input.ps {
            port_space::TCP => qp_type::RC,
            port_space::UDP | port_space::IPOIB => qp_type::UD,
            port_space::IB => input.qp_type,
            _ => return Err(libc::EINVAL),
        };
        let psn = self.random() & 0xff_ffff;
        let number = self.ids.insert(Id::new(fd, input.uid, input.ps, kind, psn));
        answer.put(&number.to_ne_bytes()).inspect_err(|_| drop(self.ids.remove(number)))?;
        Ok(Step::Done)
    }

    fn destroy_id(&mut self, fd: RawFd, input: &uapi::DestroyId, room: usize) -> Result<Step, c_int> {
        let answer = Answer::at(input.response, room);
        answer.holds(4)?;
        self.id(fd, input.id)?;
        let reported = self.destroy(input.id)?;
        answer.put(&reported.to_ne_bytes()).map(|()| Step::Done)
    }

    fn get_event(&mut self, fd: RawFd, input: &uapi::GetEvent, room: usize) -> Result<Step, c_int> {
        let answer = Answer::at(input.response, room);
        answer.holds(uapi::EVENT_RESP_MIN)?;
        let file = self.file(fd)?;
        let Some(Pending { about, child, group, response }) = file.pop() else {
            file.asked(true);
            return if file.is_nonblocking() { Err(libc::EAGAIN) } else { Ok(Step::Wait) };
        };
        file.asked(false);
        answer.put(response.bytes())?;
        if let Some(id) = self.ids.get_mut(about) {
            id.reported += 1;
            // Fetching a request makes room for another one.
            id.backlog += u32::from(child.is_some());
        }
        if let Some(group) = group.and_then(|group| self.groups.get_mut(group)) {
            group.reported += 1;
        }
        Ok(Step::Done)
    }

    fn set_option(&mut self, number: u32, level: u32, name: u32, value: &[u8]) -> Result<Step, c_int> {
        /// `RDMA_OPTION_ID`, `RDMA_OPTION_IB` and their options.
        const ID: u32 = 0;
        const IB: u32 = 1;
        let flag =
            || <[u8; 4]>::try_from(value).map(|v| i32::from_ne_bytes(v) != 0).map_err(|_| libc::EINVAL);
        let byte = || <[u8; 1]>::try_from(value).map(|[v]| v).map_err(|_| libc::EINVAL);
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        match (level, name) {
            (ID, 0) => id.tos = byte()?,
            (ID, 1) => match flag()? {
                reuse if (reuse && id.state != State::Listen) || id.state == State::Idle => id.reuse = reuse,
                _ => return Err(libc::EINVAL),
            },
            (ID, 2) => match flag()? {
                only if matches!(id.state, State::Idle | State::Bound) => id.af_only = Some(only),
                _ => return Err(libc::EINVAL),
            },
            (ID, 3) => match byte()? {
                timeout if matches!(id.qp_type, qp_type::RC | qp_type::XRC_INI) => id.timeout = Some(timeout),
                _ => return Err(libc::EINVAL),
            },
            (IB, 1) => return self.set_ib_path(number, value),
            _ => return Err(libc::ENOSYS),
        }
        Ok(Step::Done)
    }
}

/// Reads an address of the given length.
fn sized(storage: &[u8], size: u16) -> Result<SockAddr, c_int> {
    SockAddr::read(storage).filter(|address| address.len() == usize::from(size)).ok_or(libc::EINVAL)
}

/// Reads an address; family 0 means none.
fn optional(storage: &[u8]) -> Result<Option<SockAddr>, c_int> {
    match storage {
        [0, 0, ..] => Ok(None),
        _ => SockAddr::read(storage).map(Some).ok_or(libc::EINVAL),
    }
}
