//! A client of a served function and its adapter: a minimal guest.
#![allow(unsafe_code)]

use hwspec::{
    cmd::{
        CmdIn, CmdOut, DeliveryStatus, Opcode, Status,
        adapter::{EnableHcaIn, InitHcaIn, ManagePagesIn, QueryPagesIn, QueryPagesOut},
        eq::{CreateEqIn, CreateEqOut},
        queue::{CmdMailbox, CmdQueueEntry},
        resource::AllocUarOut,
    },
    context::eq::EqContext,
    eqe::EventType,
    layout::{Layout, prefix},
    pcie::MSIX_CAP,
};
use ironverbs_devmodel::{
    Config,
    region::Geometry,
    serve::{Misbehaving, Misbehaviour, Plug, Standalone},
};
use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::{AsFd, FromRawFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use testkit::Scratch;
use vfio_user_proto::{zerocopy::IntoBytes, *};

pub const SOON: Duration = Duration::from_secs(10);
/// Size of a guest's memory, and its address on the guest's bus.
pub const MEMORY: u64 = 4 << 20;
pub const BASE: u64 = 0x1_0000_0000;
/// Addresses of the guest's command queue, mailboxes and event queue; the rest is for tests.
pub const CMDQ: u64 = 0x1000;
const BOXES_IN: u64 = 0x4000;
const BOXES_OUT: u64 = 0x2_0000;
const BOX: u64 = 0x400;
const PAGES: u64 = 0x10_0000;
pub const EQ: u64 = 0x20_0000;
pub const FREE: u64 = 0x30_0000;

/// An adapter with functions 0 to 2 served.
pub struct Served {
    pub plugs: Vec<Plug>,
    pub dir: Scratch,
}

impl Served {
    pub fn new() -> Self {
        Self::misbehaving("")
    }

    /// Functions with the misbehaviours in `how`, separated by commas; none if it is empty.
    pub fn misbehaving(how: &str) -> Self {
        let how = how.split(',').filter(|how| !how.is_empty()).map(|how| how.parse().expect("known"));
        let how: Vec<Misbehaviour> = how.collect();
        let dir = Scratch::made();
        let standalone = Standalone::new(Geometry::SMALL, Config::default());
        let plugs = (0..3u8).map(|fid| {
            let path = dir.0.join(format!("f{fid}"));
            let function = standalone.function(fid);
            let plug = match how.is_empty() {
                true => Plug::new(&path, Arc::new(function)),
                false => Plug::new(&path, Arc::new(Misbehaving::new(function, how.clone()))),
            };
            plug.expect("a plug")
        });
        Self { plugs: plugs.collect(), dir }
    }

    pub fn path(&self, fid: u8) -> PathBuf {
        self.dir.0.join(format!("f{fid}"))
    }

    pub fn client(&self, fid: u8) -> Client {
        Client::new(&self.path(fid))
    }

    /// Functions, and a client of function 1.
    pub fn with_client() -> (Self, Client) {
        let served = Self::new();
        let client = served.client(1);
        (served, client)
    }

    /// Functions, and a [`guest`](Self::guest) on function 1.
    pub fn with_guest() -> (Self, Client) {
        let served = Self::new();
        let guest = served.guest(1);
        (served, guest)
    }

    /// A client with memory and command queue set up.
    pub fn guest(&self, fid: u8) -> Client {
        let mut client = self.client(fid);
        client.map_all();
        client.enable();
        client
    }
}

/// Waits until `what` returns true.
#[track_caller]
pub fn eventually(name: &str, what: impl FnMut() -> bool) {
    testkit::until(name, SOON, what);
}

pub fn eventfd() -> File {
    // SAFETY: the arguments are numbers; the descriptor is new and ours.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        File::from_raw_fd(fd)
    }
}

/// Number of signals of an eventfd since the last call.
pub fn signals(mut fd: &File) -> u64 {
    let mut count = [0; 8];
    match fd.read(&mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
        Err(e) => panic!("{e}"),
    }
}

/// A client, with a vfio-user link unless another is specified.
pub struct Client<L = Connection> {
    pub link: L,
    pub memory: File,
}

/// A client's access to its function.
pub trait Link {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>>;
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()>;
}

impl Link for Connection {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>> {
        let access = RegionAccess { offset, region, count };
        let reply = self.call(Command::REGION_READ, &[access.as_bytes()], &[], SOON)?;
        assert_eq!(reply.payload.len(), 16 + count as usize);
        Ok(reply.payload[16..].to_vec())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        let access = RegionAccess { offset, region, count: data.len() as u32 };
        self.call(Command::REGION_WRITE, &[access.as_bytes(), data], &[], SOON).map(drop)
    }
}

impl Client {
    pub fn new(path: &Path) -> Self {
        let (link, _) = Connection::connect(path, SOON).expect("a session");
        Self { link, memory: testkit::memfd(MEMORY) }
    }

    pub fn call(&mut self, command: Command, payload: &[u8], fds: &[&File]) -> Result<Reply> {
        let fds: Vec<_> = fds.iter().map(|f| f.as_fd()).collect();
        self.link.call(command, &[payload], &fds, SOON)
    }

    /// The errno of a refused request; 0 if it was not refused.
    pub fn errno(&mut self, command: Command, payload: &[u8], fds: &[&File]) -> i32 {
        match self.call(command, payload, fds) {
            Ok(_) => 0,
            Err(Error::Refused { errno, .. }) => errno,
            Err(other) => panic!("{other}"),
        }
    }

    pub fn map(&mut self, address: u64, size: u64, offset: u64, file: Option<&File>) -> i32 {
        let map = DmaMap { argsz: 32, flags: 3, offset, address, size };
        let fds: Vec<&File> = file.into_iter().collect();
        self.errno(Command::DMA_MAP, map.as_bytes(), &fds)
    }

    pub fn unmap(&mut self, address: u64, size: u64) -> i32 {
        let unmap = DmaUnmap { argsz: 24, flags: 0, address, size };
        self.errno(Command::DMA_UNMAP, unmap.as_bytes(), &[])
    }

    /// Maps all memory at [`BASE`].
    pub fn map_all(&mut self) {
        let memory = self.memory.try_clone().expect("a descriptor");
        assert_eq!(self.map(BASE, MEMORY, 0, Some(&memory)), 0);
    }

    /// Connects `vector` to a new eventfd and enables MSI-X.
    pub fn connect(&mut self, vector: u32) -> File {
        let fd = eventfd();
        let flags = IRQ_SET_DATA_EVENTFD | IRQ_SET_TRIGGER;
        let set = IrqSet { argsz: 20, flags, index: IRQ_MSIX, start: vector, count: 1 };
        assert_eq!(self.errno(Command::DEVICE_SET_IRQS, set.as_bytes(), &[&fd]), 0);
        self.write(REGION_CONFIG, MSIX_CAP as u64 + 2, &0x8000u16.to_le_bytes()).expect("MSI-X control");
        fd
    }

    /// Triggers a vector from the client's side.
    pub fn guest_triggers(&mut self, vector: u32) {
        let flags = IRQ_SET_DATA_NONE | IRQ_SET_TRIGGER;
        let set = IrqSet { argsz: 20, flags, index: IRQ_MSIX, start: vector, count: 1 };
        assert_eq!(self.errno(Command::DEVICE_SET_IRQS, set.as_bytes(), &[]), 0);
    }
}

impl<L: Link> Client<L> {
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>> {
        self.link.read(region, offset, count)
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        self.link.write(region, offset, data)
    }

    pub fn config(&mut self, at: u64) -> u32 {
        u32::from_le_bytes(prefix(&self.read(REGION_CONFIG, at, 4).expect("configuration space")))
    }

    pub fn register(&mut self, at: u64) -> u32 {
        u32::from_be_bytes(prefix(&self.read(REGION_BAR0, at, 4).expect("BAR0")))
    }

    pub fn set_register(&mut self, at: u64, value: u32) {
        self.write(REGION_BAR0, at, &value.to_be_bytes()).expect("BAR0");
    }

    pub fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, at).expect("memory");
        bytes
    }

    pub fn poke(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("memory");
    }

    /// Enables memory space and bus mastering, sets the command queue and runs `ENABLE_HCA`.
    pub fn enable(&mut self) {
        self.write(REGION_CONFIG, 4, &6u16.to_le_bytes()).expect("the command register");
        self.set_queue(BASE + CMDQ);
        assert_eq!(self.run(Opcode::EnableHca, 0, EnableHcaIn::zeroed().as_bytes(), 16).status(), Status::Ok);
    }

    pub fn set_queue(&mut self, at: u64) {
        self.set_register(0x10, (at >> 32) as u32);
        self.set_register(0x14, at as u32);
    }

    /// Supplies pages, runs `INIT_HCA` and allocates a UAR.
    pub fn init(&mut self) -> u32 {
        for stage in [1, 2] {
            let out = self.run(Opcode::QueryPages, stage, QueryPagesIn::zeroed().as_bytes(), 16);
            let wanted = QueryPagesOut::read(&out.0).num_pages();
            let mut bytes = ManagePagesIn::with(|s| s.input_num_entries(wanted)).as_bytes().to_vec();
            let page = |i: u32| BASE + PAGES + u64::from(i) * 4096 + u64::from(stage) * (64 << 12);
            (0..wanted).for_each(|i| bytes.extend(page(i).to_be_bytes()));
            assert_eq!(self.run(Opcode::ManagePages, 1, &bytes, 16).status(), Status::Ok);
        }
        assert_eq!(self.run(Opcode::InitHca, 0, InitHcaIn::zeroed().as_bytes(), 16).status(), Status::Ok);
        let out = self.run(Opcode::AllocUar, 0, CmdIn::zeroed().as_bytes(), 16);
        assert_eq!(out.status(), Status::Ok);
        AllocUarOut::read(&out.0).uar()
    }

    /// Creates an event queue of 64 entries for command completions, with MSI-X vector `vector`.
    pub fn create_eq(&mut self, uar: u32, vector: u16) -> u8 {
        let context = EqContext::with(|s| s.log_eq_size(6).uar_page(uar).intr(vector));
        let mut input = CreateEqIn::zeroed();
        let mut mask = [0; 0x20];
        mask[6] = 1 << (EventType::Cmd.raw() % 8);
        input.set().eq_context_entry(context).event_bitmask(mask);
        let mut bytes = input.as_bytes().to_vec();
        bytes.extend((BASE + EQ).to_be_bytes());
        let out = self.run(Opcode::CreateEq, 0, &bytes, 16);
        assert_eq!(out.status(), Status::Ok);
        let eqn = CreateEqOut::read(&out.0).eq_number();
        self.arm(uar, eqn, 0);
        eqn
    }

    pub fn arm(&mut self, uar: u32, eqn: u8, ci: u32) {
        let at = (u64::from(uar) << 12) + 0x40;
        self.set_register(at, u32::from(eqn) << 24 | ci);
    }

    /// Writes a command to the queue and returns the address of its entry.
    pub fn post(&mut self, op: Opcode, op_mod: u16, input: &[u8], out_len: u32) -> u64 {
        let mut bytes = input.to_vec();
        bytes[..2].copy_from_slice(&op.raw().to_be_bytes());
        bytes[6..8].copy_from_slice(&op_mod.to_be_bytes());
        let chain = |client: &Self, first: u64, rest: &[u8], len: usize| {
            let count = len.saturating_sub(16).div_ceil(512);
            for i in 0..count {
                let mut block = CmdMailbox::zeroed();
                let mut data = [0; 0x200];
                let part = rest.chunks(512).nth(i).unwrap_or_default();
                data[..part.len()].copy_from_slice(part);
                let next = if i + 1 < count { BASE + first + (i as u64 + 1) * BOX } else { 0 };
                block.set().mailbox_data(data).block_number(i as u32).token(7);
                block.set().next_pointer_63_32((next >> 32) as u32).next_pointer_31_10((next as u32) >> 10);
                client.poke(first + i as u64 * BOX, block.as_bytes());
            }
        };
        let head = bytes.len().min(16);
        chain(self, BOXES_IN, &bytes[head..], bytes.len());
        chain(self, BOXES_OUT, &[], out_len as usize);
        let mut inline = [0; 16];
        inline[..head].copy_from_slice(&bytes[..head]);
        let mut entry = CmdQueueEntry::zeroed();
        let (from, to) = (BASE + BOXES_IN, BASE + BOXES_OUT);
        entry.set().kind(7).input_length(bytes.len() as u32).output_length(out_len).token(7).ownership(true);
        entry.set().command_input_inline_data(inline);
        entry.set().input_mailbox_pointer_63_32((from >> 32) as u32);
        entry.set().input_mailbox_pointer_31_9((from as u32) >> 9);
        entry.set().output_mailbox_pointer_63_32((to >> 32) as u32);
        entry.set().output_mailbox_pointer_31_9((to as u32) >> 9);
        self.poke(CMDQ, entry.as_bytes());
        CMDQ
    }

    pub fn ring(&mut self) {
        self.set_register(0x18, 1);
    }

    /// Runs a command and waits for its completion.
    pub fn run(&mut self, op: Opcode, op_mod: u16, input: &[u8], out_len: u32) -> Output {
        let at = self.post(op, op_mod, input, out_len);
        self.ring();
        self.completes(at);
        let entry = CmdQueueEntry::from_bytes(prefix(&self.peek(at, 64)));
        assert_eq!(DeliveryStatus::from_raw(entry.status()), DeliveryStatus::Ok, "{op:?}");
        let mut out = entry.command_output_inline_data().to_vec();
        for i in 0..(out_len as usize).saturating_sub(16).div_ceil(512) {
            out.extend(self.peek(BOXES_OUT + i as u64 * BOX, 512));
        }
        out.truncate(out_len as usize);
        Output(out)
    }

    /// Posts a command that asks for the pages wanted, with an output of `out_len` bytes. Returns the address of its entry.
    pub fn post_query(&mut self, out_len: u32) -> u64 {
        self.post(Opcode::QueryPages, 1, QueryPagesIn::zeroed().as_bytes(), out_len)
    }

    /// Returns true if the command in the entry at `at` has completed.
    pub fn is_done(&self, at: u64) -> bool {
        self.peek(at + 0x3f, 1)[0] & 1 == 0
    }

    pub fn completes(&self, at: u64) {
        eventually("the command completes", || self.is_done(at));
    }

    /// Asserts that the function works, by running a command.
    pub fn works(&mut self) {
        let out = self.run(Opcode::QueryPages, 1, QueryPagesIn::zeroed().as_bytes(), 16);
        assert_eq!(out.status(), Status::Ok);
    }
}

/// The output of a command.
pub struct Output(pub Vec<u8>);

impl Output {
    pub fn status(&self) -> Status {
        CmdOut::read(&self.0).status()
    }
}

/// Sends raw bytes to a server, which the protocol's own types could not represent.
pub fn raw(path: &Path, bytes: &[u8]) -> std::os::unix::net::UnixStream {
    let mut stream = std::os::unix::net::UnixStream::connect(path).expect("a connection");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    // The server may already have closed the connection.
    let _ = stream.write_all(bytes);
    stream
}
