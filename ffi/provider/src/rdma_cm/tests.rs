//! Commands as librdmacm writes them, in a process without any device.

use super::commands::{Step, run};
use super::hooks;
use super::id::State;
use super::manager::Shared;
use super::open_files;
use super::sockaddr::SockAddr;
use super::uapi::{self, Plain, command, port_space};
use libc::{c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

struct Channel(RawFd);

impl Channel {
    fn open(nonblock: bool) -> Self {
        let fd = Shared::here().lock().open(nonblock).expect("a channel");
        open_files::enter(fd);
        Self(fd)
    }

    fn write(&self, number: u32, room: u16, body: &[u8]) -> Step {
        let head = uapi::Header { command: number, in_len: body.len() as u16, out_len: room };
        let bytes = [head.bytes(), body].concat();
        // SAFETY: a whole command; the addresses in it are those of locals that outlive the call.
        unsafe { run(self.0, bytes.as_ptr(), bytes.len()) }
    }

    fn create(&self, ps: u16) -> u32 {
        let mut id = u32::MAX;
        let response = &raw mut id as u64;
        let input = uapi::CreateId { uid: 7, response, ps, ..Plain::zero() };
        assert_eq!(self.write(command::CREATE_ID, 4, input.bytes()), Step::Done);
        id
    }

    fn destroy(&self, id: u32) -> (Step, u32) {
        let mut reported = u32::MAX;
        let input = uapi::DestroyId { response: &raw mut reported as u64, id, reserved: 0 };
        (self.write(command::DESTROY_ID, 4, input.bytes()), reported)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        open_files::leave(self.0);
        Shared::here().lock().close(self.0);
        // SAFETY: a descriptor of this value.
        unsafe { libc::close(self.0) };
    }
}

#[test]
fn what_is_no_command_is_refused() {
    let channel = Channel::open(true);
    // SAFETY: readable bytes, shorter than a command.
    assert_eq!(unsafe { run(channel.0, [0u8; 7].as_ptr(), 7) }, Step::Failed(libc::EINVAL));
    let head = uapi::Header { command: 0, in_len: 9, out_len: 0 };
    // SAFETY: the header announces more bytes than there are.
    assert_eq!(unsafe { run(channel.0, head.bytes().as_ptr(), 8) }, Step::Failed(libc::EINVAL));
    assert_eq!(channel.write(25, 0, &[]), Step::Failed(libc::EINVAL));
    assert_eq!(channel.write(command::GET_OPTION, 0, &[]), Step::Failed(libc::ENOSYS));
    assert_eq!(channel.write(command::CREATE_ID, 3, &[0; 24]), Step::Failed(libc::ENOSPC));
    assert_eq!(channel.write(command::CREATE_ID, 4, &[0; 24]), Step::Failed(libc::EINVAL), "port space 0");
    // SAFETY: as above; the descriptor is not a channel.
    assert_eq!(unsafe { run(-1, head.bytes().as_ptr(), 8) }, Step::Failed(libc::EINVAL));
}

#[test]
fn commands_on_an_id_that_is_not_there_or_anothers_change_nothing() {
    let (channel, other) = (Channel::open(true), Channel::open(true));
    let id = other.create(port_space::TCP);
    let address = SockAddr::V4 { ip: Ipv4Addr::UNSPECIFIED, port: 0 }.storage();
    let mut room = [0u8; 512];
    let response = room.as_mut_ptr() as u64;
    for (number, errno) in [(9999, libc::ENOENT), (id, libc::EINVAL)] {
        let valid = uapi::ConnParam { valid: 1, ..Plain::zero() };
        let tries: [(u32, Vec<u8>); 12] = [
            (
                command::BIND,
                uapi::Bind { id: number, addr_size: 16, reserved: 0, addr: address }.bytes().to_vec(),
            ),
            (command::RESOLVE_ROUTE, uapi::ResolveRoute { id: number, timeout_ms: 1 }.bytes().to_vec()),
            (command::QUERY, uapi::Query { response, id: number, option: 0 }.bytes().to_vec()),
            (command::QUERY_ROUTE, uapi::Query { response, id: number, option: 0 }.bytes().to_vec()),
            (command::CONNECT, uapi::Connect { id: number, param: valid, ..Plain::zero() }.bytes().to_vec()),
            (command::LISTEN, uapi::Listen { id: number, backlog: 1 }.bytes().to_vec()),
            (command::ACCEPT, uapi::Accept { id: number, param: valid, ..Plain::zero() }.bytes().to_vec()),
            (command::REJECT, uapi::Reject { id: number, ..Plain::zero() }.bytes().to_vec()),
            (command::DISCONNECT, uapi::JustId { id: number }.bytes().to_vec()),
            (command::INIT_QP_ATTR, uapi::InitQpAttr { response, id: number, qp_state: 1 }.bytes().to_vec()),
            (command::NOTIFY, uapi::Notify { id: number, event: 4 }.bytes().to_vec()),
            (command::SET_OPTION, uapi::SetOption { id: number, ..Plain::zero() }.bytes().to_vec()),
        ];
        for (what, body) in tries {
            assert_eq!(channel.write(what, 512, &body), Step::Failed(errno), "command {what} on id {number}");
        }
    }
    assert_eq!(channel.destroy(id), (Step::Failed(libc::EINVAL), u32::MAX));
    assert_eq!(other.destroy(id), (Step::Done, 0));
    assert_eq!(other.destroy(id), (Step::Failed(libc::ENOENT), u32::MAX));
}

/// As in Linux, although functions are not on an interface of the host.
#[test]
fn a_link_local_address_is_of_an_interface() {
    let channel = Channel::open(true);
    for (scope, errno) in [(0, libc::EINVAL), (u32::MAX, libc::ENODEV), (1, libc::EADDRNOTAVAIL)] {
        let id = channel.create(port_space::TCP);
        let ip = "fe80::9".parse().expect("an address");
        let addr = SockAddr::V6 { ip, port: 0, flow: [0; 4], scope }.storage();
        let bind = uapi::Bind { id, addr_size: 28, reserved: 0, addr };
        assert_eq!(channel.write(command::BIND, 0, bind.bytes()), Step::Failed(errno), "scope {scope}");
        assert_eq!(channel.destroy(id), (Step::Done, 0));
    }
}

#[test]
fn an_id_goes_its_way_in_order_only() {
    let channel = Channel::open(true);
    let id = channel.create(port_space::TCP);
    let bind = |ip, port| {
        let addr = SockAddr::V4 { ip, port }.storage();
        channel.write(command::BIND, 0, uapi::Bind { id, addr_size: 16, reserved: 0, addr }.bytes())
    };
    assert_eq!(bind(Ipv4Addr::new(192, 0, 2, 1), 0), Step::Failed(libc::EADDRNOTAVAIL));
    let wrong = uapi::Bind { id, addr_size: 28, reserved: 0, addr: [0; 128] };
    assert_eq!(channel.write(command::BIND, 0, wrong.bytes()), Step::Failed(libc::EINVAL));
    assert_eq!(bind(Ipv4Addr::UNSPECIFIED, 0), Step::Done);
    assert_eq!(bind(Ipv4Addr::UNSPECIFIED, 0), Step::Failed(libc::EINVAL), "bound already");
    // There is no device to listen on, so it stays bound.
    let listen = uapi::Listen { id, backlog: 0 };
    assert_eq!(channel.write(command::LISTEN, 0, listen.bytes()), Step::Failed(libc::ENODEV));
    let mut resp = uapi::QueryAddrResp::zero();
    let query = uapi::Query { response: &raw mut resp as u64, id, option: 0 };
    assert_eq!(channel.write(command::QUERY, 271, query.bytes()), Step::Failed(libc::ENOSPC));
    assert_eq!(channel.write(command::QUERY, 288, query.bytes()), Step::Done);
    assert!(resp.src_size == 16 && SockAddr::read(&resp.src).is_some_and(|src| src.port() >= 32768));
}

#[test]
fn a_loopback_address_that_no_port_has_says_no_more_than_the_wildcard() {
    let channel = Channel::open(true);
    let wilds: [SockAddr; 3] = [
        SockAddr::V4 { ip: Ipv4Addr::LOCALHOST, port: 0 },
        SockAddr::V4 { ip: Ipv4Addr::new(127, 9, 9, 9), port: 0 },
        SockAddr::V6 { ip: Ipv6Addr::LOCALHOST, port: 0, flow: [0; 4], scope: 0 },
    ];
    for address in wilds {
        let id = channel.create(port_space::TCP);
        let input = uapi::Bind { id, addr_size: address.len() as u16, reserved: 0, addr: address.storage() };
        assert_eq!(channel.write(command::BIND, 0, input.bytes()), Step::Done, "{address:?}");
        let mut resp = uapi::QueryAddrResp::zero();
        let query = uapi::Query { response: &raw mut resp as u64, id, option: 0 };
        assert_eq!(channel.write(command::QUERY, 288, query.bytes()), Step::Done);
        assert_eq!(SockAddr::read(&resp.src).and_then(|src| src.ip()), address.ip(), "as it was given");
        assert_eq!(channel.destroy(id), (Step::Done, 0));
    }
}

#[test]
fn a_search_answers_the_id_it_was_for_and_no_later_one_of_the_same_number() {
    let channel = Channel::open(true);
    let waiting = |id| {
        let mut manager = Shared::here().lock();
        let search = manager.search_begins(id);
        manager.ids.get_mut(id).expect("the id").state = State::AddrQuery;
        search
    };
    let state = |id| Shared::here().lock().ids.get(id).map(|id| id.state);
    let mut event = uapi::EventResp::zero();
    let get = uapi::GetEvent { response: &raw mut event as u64 };
    // The lowest free number is reused; other tests take some, too.
    let (id, before) = loop {
        let first = channel.create(port_space::TCP);
        let search = waiting(first);
        assert_eq!(channel.destroy(first), (Step::Done, 0));
        let second = channel.create(port_space::TCP);
        if second == first {
            break (second, search);
        }
    };
    let search = waiting(id);
    Shared::here().lock().search_ends(id, before, Err(libc::ETIMEDOUT));
    assert_eq!(state(id), Some(State::AddrQuery), "its own search is under way");
    assert_eq!(channel.write(command::GET_EVENT, 336, get.bytes()), Step::Failed(libc::EAGAIN));
    Shared::here().lock().search_ends(id, search, Err(libc::ETIMEDOUT));
    assert_eq!(state(id), Some(State::Bound));
    assert_eq!(channel.write(command::GET_EVENT, 336, get.bytes()), Step::Done);
    assert_eq!((event.id, event.event, event.status), (id, uapi::event::ADDR_ERROR, -libc::ETIMEDOUT));
    // An ID that has its result gets no second one.
    Shared::here().lock().search_ends(id, search, Err(libc::ETIMEDOUT));
    assert_eq!(channel.write(command::GET_EVENT, 336, get.bytes()), Step::Failed(libc::EAGAIN));
}

#[test]
fn a_channel_without_events_says_so_or_waits_and_the_thread_that_waits_can_be_cancelled() {
    let (quick, slow) = (Channel::open(true), Channel::open(false));
    let mut event = uapi::EventResp::zero();
    let get = uapi::GetEvent { response: &raw mut event as u64 };
    assert_eq!(quick.write(command::GET_EVENT, 336, get.bytes()), Step::Failed(libc::EAGAIN));
    assert_eq!(quick.write(command::GET_EVENT, 323, get.bytes()), Step::Failed(libc::ENOSPC));
    assert_eq!(slow.write(command::GET_EVENT, 336, get.bytes()), Step::Wait);

    // A user event.
    let id = quick.create(port_space::UDP);
    let own = uapi::WriteEvent { id, event: uapi::event::USER, status: 3, ..Plain::zero() };
    assert_eq!(quick.write(command::WRITE_CM_EVENT, 0, own.bytes()), Step::Done);
    assert_eq!(quick.write(command::GET_EVENT, 336, get.bytes()), Step::Done);
    assert_eq!(
        (event.id, event.event, event.status, event.uid),
        (id, uapi::event::USER, 3, 7u64.to_ne_bytes())
    );
    assert_eq!(quick.destroy(id), (Step::Done, 1));

    extern "C-unwind" fn wait(channel: *mut c_void) -> *mut c_void {
        let head = uapi::Header { command: command::GET_EVENT, in_len: 8, out_len: 336 };
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(head.bytes());
        // SAFETY: a whole command; there will be no event to write.
        unsafe { hooks::write(channel as usize as c_int, bytes.as_ptr().cast(), 16) };
        std::ptr::null_mut()
    }
    assert_eq!(cancelled(wait, slow.0), -1, "PTHREAD_CANCELED");
}

/// The exit value of a thread that is cancelled after a while. Nothing in its frames may need to be dropped.
fn cancelled(body: extern "C-unwind" fn(*mut c_void) -> *mut c_void, channel: RawFd) -> isize {
    // SAFETY: the C library's own threads; unwinding ends in its frames.
    unsafe {
        let start = std::mem::transmute::<
            extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            extern "C" fn(*mut c_void) -> *mut c_void,
        >(body);
        let mut thread = 0;
        assert_eq!(
            libc::pthread_create(&raw mut thread, std::ptr::null(), start, channel as usize as *mut c_void),
            0
        );
        std::thread::sleep(std::time::Duration::from_millis(100));
        pthread_cancel(thread);
        let mut answer = std::ptr::null_mut();
        assert_eq!(libc::pthread_join(thread, &raw mut answer), 0);
        answer as isize
    }
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

#[test]
fn a_thread_that_is_cancelled_in_a_command_does_it_to_its_end() {
    static ID: AtomicU32 = AtomicU32::new(0);
    let channel = Channel::open(true);
    ID.store(channel.create(port_space::UDP), SeqCst);

    extern "C-unwind" fn write(channel: *mut c_void) -> *mut c_void {
        let own = uapi::WriteEvent { id: ID.load(SeqCst), event: uapi::event::USER, ..Plain::zero() };
        let body = own.bytes();
        let head = uapi::Header { command: command::WRITE_CM_EVENT, in_len: body.len() as u16, out_len: 0 };
        let mut bytes = [0u8; 512];
        bytes[..8].copy_from_slice(head.bytes());
        bytes[8..8 + body.len()].copy_from_slice(body);
        // SAFETY: a whole command. The cancellation is pending already, and the program is woken by a system call.
        unsafe {
            pthread_cancel(libc::pthread_self());
            hooks::command(channel as usize as c_int, bytes.as_ptr().cast(), 8 + body.len());
            hooks::write(channel as usize as c_int, bytes.as_ptr().cast(), 8 + body.len());
        }
        std::ptr::null_mut()
    }
    assert_eq!(cancelled(write, channel.0), -1, "PTHREAD_CANCELED at the next call");
    let mut event = uapi::EventResp::zero();
    let get = uapi::GetEvent { response: &raw mut event as u64 };
    assert_eq!(channel.write(command::GET_EVENT, 336, get.bytes()), Step::Done);
    assert_eq!(event.event, uapi::event::USER);
    assert_eq!(channel.write(command::GET_EVENT, 336, get.bytes()), Step::Failed(libc::EAGAIN), "once");
}

#[test]
fn a_thread_whose_channel_is_closed_before_it_sleeps_sees_no_error() {
    extern "C-unwind" fn wait(channel: *mut c_void) -> *mut c_void {
        // SAFETY: nothing in this frame needs to be dropped.
        unsafe { hooks::wait_for_event(channel as usize as c_int) };
        std::ptr::null_mut()
    }
    // A number that is not open.
    let gone = RawFd::MAX;
    assert_eq!(cancelled(wait, gone), -1, "PTHREAD_CANCELED");
}

#[test]
fn an_event_thread_that_is_about_to_wait_when_its_channel_is_closed_sees_no_error() {
    static CLOSING: AtomicBool = AtomicBool::new(false);
    extern "C-unwind" fn events(channel: *mut c_void) -> *mut c_void {
        let mut event = uapi::EventResp::zero();
        let head = uapi::Header { command: command::GET_EVENT, in_len: 8, out_len: 336 };
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(head.bytes());
        bytes[8..].copy_from_slice(&(&raw mut event as u64).to_ne_bytes());
        // SAFETY: a whole command and room for one event, which is pending. Nothing here needs to be dropped.
        unsafe {
            hooks::write(channel as usize as c_int, bytes.as_ptr().cast(), 16);
            for _ in (0..200_000).take_while(|_| !CLOSING.load(Acquire)) {
                libc::usleep(100);
            }
            libc::usleep(3000);
            hooks::write(channel as usize as c_int, bytes.as_ptr().cast(), 16);
        }
        std::ptr::null_mut()
    }
    let fd = Shared::here().lock().open(false).expect("a channel");
    open_files::enter(fd);
    let channel = std::mem::ManuallyDrop::new(Channel(fd));
    let id = channel.create(port_space::UDP);
    let own = uapi::WriteEvent { id, event: uapi::event::USER, ..Plain::zero() };
    assert_eq!(channel.write(command::WRITE_CM_EVENT, 0, own.bytes()), Step::Done);
    let closer = std::thread::spawn(move || {
        let begun = std::time::Instant::now();
        while !Shared::here().lock().file(fd).is_ok_and(|file| file.is_to_be_asked()) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "expected an event to be taken");
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        CLOSING.store(true, Release);
        // SAFETY: the only close of it.
        unsafe { hooks::close(fd) }
    });
    assert_eq!(cancelled(events, fd), -1, "PTHREAD_CANCELED");
    assert_eq!(closer.join().expect("a thread"), 0);
}
