//! A machine with an adapter, and a minimal driver.

use devmodel::{
    Adapter, Config,
    cmd::Syndrome,
    engine::Runner,
    host::{Abort, Bus, Iova, Parties, Party, Rid},
    region::{Geometry, Region},
};
use hwspec::{
    cmd::{
        CmdOut, DeliveryStatus, Opcode, Status,
        adapter::*,
        queue::{CmdMailbox, CmdQueueEntry},
    },
    layout::{Layout, Set, prefix},
};
use std::collections::HashMap;

/// Size of each function's memory, which starts at address 0.
pub const MEMORY: usize = 4 << 20;
/// Address of the command queue.
pub const CMDQ: u64 = 0x1000;
/// Mailboxes for inputs and outputs.
pub const BOXES_IN: u64 = 0x10_000;
pub const BOXES_OUT: u64 = 0x80_000;
/// Distance between mailboxes.
pub const BOX: u64 = 0x400;
/// Start of the memory for queues.
pub const QUEUES: u64 = 0x10_0000;

/// Overwrites fields of a valid command, so that it becomes invalid in one respect.
pub type Change<'f, T> = &'f dyn for<'s, 'x> Fn(&'s mut Set<'x, T>) -> &'s mut Set<'x, T>;
/// Such changes, each with the syndrome of the refusal, or `None` if the command is still accepted.
pub type Refusals<'f, T> = &'f [(Change<'f, T>, Option<Syndrome>)];

/// Memory of each function, interrupts, and a record of every transfer.
#[derive(Default)]
pub struct Machine {
    pub memory: HashMap<u8, Vec<u8>>,
    pub interrupts: Vec<(Rid, u16, u64, u32)>,
    pub transfers: Vec<Rid>,
    /// Party of the running program; 0 stands for party 1.
    pub party: u16,
    /// Party with unreachable memory.
    pub out_of_reach: Option<Party>,
    /// Party of the stopped program.
    pub stopped: Option<Party>,
    /// Party of the dead program.
    pub dead: Option<Party>,
}

impl Machine {
    fn at(&mut self, rid: Rid, at: Iova, len: usize) -> Option<&mut [u8]> {
        self.transfers.push(rid);
        let at = usize::try_from(at).ok()?;
        self.memory.entry(rid.0).or_insert_with(|| vec![0; MEMORY]).get_mut(at..at.checked_add(len)?)
    }
}

impl Bus for Machine {
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        let from = self.at(rid, at, buf.len()).ok_or(Abort::Source)?;
        buf.copy_from_slice(from);
        Ok(())
    }
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        self.at(rid, at, data.len()).ok_or(Abort::Destination)?.copy_from_slice(data);
        Ok(())
    }
    fn msix(&mut self, rid: Rid, vector: u16, address: u64, data: u32) {
        self.interrupts.push((rid, vector, address, data));
    }
}

impl Parties for Machine {
    fn party(&self) -> Party {
        Party(self.party.max(1))
    }
    fn reaches(&mut self, party: Party) -> bool {
        self.out_of_reach != Some(party)
    }
    fn wake(&mut self, _: Party) {}
    fn alive(&mut self, party: Party) -> bool {
        self.dead != Some(party)
    }
    fn relax(&mut self, holder: Party, times: u32) -> bool {
        assert!(times < 100, "waits for party {}, which does not go on", holder.0);
        self.stopped == Some(holder)
    }
}

/// The reply to a command.
#[derive(Clone, Debug)]
pub struct Reply {
    pub delivery: DeliveryStatus,
    pub output: Vec<u8>,
}

impl Reply {
    pub fn status(&self) -> Status {
        assert_eq!(self.delivery, DeliveryStatus::Ok);
        CmdOut::read(&self.output).status()
    }
    pub fn syndrome(&self) -> u32 {
        CmdOut::read(&self.output).syndrome()
    }
    /// The number of the object that the command created.
    #[track_caller]
    pub fn made(&self) -> u32 {
        assert_eq!(self.status(), Status::Ok, "{:#x}", self.syndrome());
        u32::from_be_bytes(prefix(&self.output[8..])) & 0xff_ffff
    }
    /// The reason for the refusal; `None` if the command was accepted.
    pub fn refused(&self) -> Option<Syndrome> {
        Syndrome::from_code(self.syndrome())
    }
}

/// The machine, the adapter, and the time.
pub struct Bed {
    pub adapter: Adapter,
    pub runner: Runner,
    pub host: Machine,
    pub now: u64,
    /// The next free page for queues, by function.
    pub next: HashMap<u8, u64>,
}

impl Bed {
    /// Powers the adapter on: only the PF is present.
    pub fn power_on() -> Self {
        Self::with(Config::default())
    }

    /// An initialized PF.
    pub fn up() -> Self {
        let mut bed = Self::power_on();
        bed.bring_up(0);
        bed
    }

    /// Like [`power_on`](Self::power_on), with the strictness of `switches`.
    pub fn strict(switches: &str) -> Self {
        Self::with(Config { strict: switches.parse().unwrap(), ..Config::default() })
    }

    fn with(config: Config) -> Self {
        let mut host = Machine::default();
        let adapter = Adapter::power_on(Region::private(Geometry::SMALL), config, &mut host);
        Self { adapter, runner: Runner::new(), host, now: 0, next: HashMap::new() }
    }

    /// A PF and two VFs, all initialized.
    pub fn ready() -> Self {
        let mut bed = Self::power_on();
        bed.enable_vfs(2);
        (0..3).for_each(|fid| bed.bring_up(fid));
        bed
    }

    pub fn config_read(&mut self, fid: u8, at: usize, width: usize) -> u32 {
        self.adapter.config_read(&mut self.host, fid, at, width)
    }
    pub fn config_write(&mut self, fid: u8, at: usize, width: usize, value: u32) {
        self.adapter.config_write(&mut self.runner, &mut self.host, self.now, fid, at, width, value);
    }
    pub fn read32(&mut self, fid: u8, at: u64) -> u32 {
        self.adapter.bar_read32(&mut self.host, self.now, fid, at)
    }
    pub fn write32(&mut self, fid: u8, at: u64, value: u32) {
        self.adapter.bar_write32(&mut self.runner, &mut self.host, self.now, fid, at, value);
    }
    pub fn write64(&mut self, fid: u8, at: u64, value: u64) {
        self.adapter.bar_write64(&mut self.runner, &mut self.host, self.now, fid, at, value);
    }

    /// The `len` bytes of `fid`'s memory at `at`.
    pub fn memory(&mut self, fid: u8, at: u64, len: usize) -> &mut [u8] {
        let all = self.host.memory.entry(fid).or_insert_with(|| vec![0; MEMORY]);
        &mut all[at as usize..at as usize + len]
    }

    /// Allocates zeroed pages in `fid`'s memory.
    pub fn pages(&mut self, fid: u8, pages: u64) -> u64 {
        let next = self.next.entry(fid).or_insert(QUEUES);
        let at = *next;
        *next += pages * 4096;
        self.memory(fid, at, (pages * 4096) as usize).fill(0);
        at
    }

    pub fn enable_vfs(&mut self, vfs: u32) {
        let cap = hwspec::pcie::SRIOV_CAP;
        self.config_write(0, cap + 0x10, 2, vfs);
        self.config_write(0, cap + 0x08, 2, 1 | 1 << 3);
    }

    /// Enables memory space, bus mastering and MSI-X, with all vectors unmasked.
    pub fn enable_pci(&mut self, fid: u8) {
        self.config_write(fid, 4, 2, 0b110);
        self.config_write(fid, hwspec::pcie::MSIX_CAP + 2, 2, 0x8000);
        for vector in 0..64u64 {
            let entry = hwspec::pcie::MSIX_TABLE as u64 + 16 * vector;
            self.write32(fid, entry, (0xfee0_0000u32).swap_bytes());
            self.write32(fid, entry + 8, (vector as u32).swap_bytes());
            self.write32(fid, entry + 12, 0);
        }
        self.write32(fid, 0x10, 0);
        self.write32(fid, 0x14, CMDQ as u32);
    }

    /// Runs a driver's initialization up to `INIT_HCA`.
    pub fn bring_up(&mut self, fid: u8) {
        self.enable_pci(fid);
        self.ok(fid, Opcode::EnableHca, &EnableHcaIn::zeroed(), 16);
        self.ok(fid, Opcode::SetIssi, &SetIssiIn::with(|s| s.current_issi(1)), 16);
        for stage in [1, 2] {
            self.supply(fid, stage);
        }
        self.ok(fid, Opcode::InitHca, &InitHcaIn::zeroed(), 16);
    }

    /// Supplies the pages that the function requests at `stage`. Returns their number.
    pub fn supply(&mut self, fid: u8, stage: u16) -> u32 {
        let query = QueryPagesIn::with(|s| s.op_mod(stage));
        let out = QueryPagesOut::read(&self.ok(fid, Opcode::QueryPages, &query, 16));
        let count = out.num_pages();
        let first = self.pages(fid, count.into());
        let give = ManagePagesIn::with(|s| s.op_mod(1).input_num_entries(count));
        let list: Vec<u64> = (0..u64::from(count)).map(|i| first + i * 4096).collect();
        let input = with_list(&give, &list);
        let reply = self.run(fid, Opcode::ManagePages, 0, &input, 16);
        assert_eq!(reply.status(), Status::Ok);
        count
    }

    /// Runs a command that must succeed and returns its output.
    pub fn ok<I: Layout>(&mut self, fid: u8, op: Opcode, input: &I, out: usize) -> Vec<u8> {
        let reply = self.run(fid, op, 0, input.bytes(), out);
        assert_eq!(reply.status(), Status::Ok, "{op:?}: syndrome {:#x}", reply.syndrome());
        reply.output
    }

    /// The output of a query of object `number`.
    pub fn query<O: Layout>(&mut self, fid: u8, op: Opcode, number: u32) -> O {
        let mut input = [0; 16];
        input[8..12].copy_from_slice(&number.to_be_bytes());
        O::read(&self.ok(fid, op, &input, O::SIZE))
    }

    /// Runs a command and returns its status.
    pub fn status<I: Layout>(&mut self, fid: u8, op: Opcode, input: &I, out: usize) -> Status {
        self.run(fid, op, 0, input.bytes(), out).status()
    }

    /// Runs a command in slot 0; opcode and uid are filled in.
    pub fn run(&mut self, fid: u8, op: Opcode, uid: u16, input: &[u8], out: usize) -> Reply {
        let mut bytes = input.to_vec();
        bytes[..2].copy_from_slice(&op.raw().to_be_bytes());
        if uid != 0 {
            bytes[2..4].copy_from_slice(&uid.to_be_bytes());
        }
        self.place(fid, 0, &bytes, out);
        self.write32(fid, 0x18, 1);
        self.reply(fid, 0, out)
    }

    /// Writes a command to `slot` without ringing the doorbell.
    pub fn place(&mut self, fid: u8, slot: u64, input: &[u8], out: usize) {
        let token = 0xa0 + slot as u8;
        let (boxes_in, boxes_out) = (BOXES_IN + slot * 0x8000, BOXES_OUT + slot * 0x8000);
        let rest = input.get(16..).unwrap_or_default().to_vec();
        let count = |len: usize| len.saturating_sub(16).div_ceil(512);
        self.chain(fid, boxes_in, token, count(input.len()), &rest);
        self.chain(fid, boxes_out, token, count(out), &[]);
        let entry = CmdQueueEntry::with(|s| {
            s.kind(7)
                .input_length(input.len() as u32)
                .input_mailbox_pointer_31_9(boxes_in as u32 >> 9)
                .command_input_inline_data(prefix(input))
                .output_mailbox_pointer_31_9(boxes_out as u32 >> 9)
                .output_length(out as u32)
                .token(token)
                .ownership(true)
        });
        self.memory(fid, CMDQ + 64 * slot, 64).copy_from_slice(entry.as_bytes());
    }

    fn chain(&mut self, fid: u8, at: u64, token: u8, count: usize, data: &[u8]) {
        for number in 0..count {
            let part = &data[data.len().min(512 * number)..];
            let mut mailbox = CmdMailbox::zeroed();
            let next = if number + 1 < count { at + BOX * (number as u64 + 1) } else { 0 };
            mailbox
                .set()
                .mailbox_data(prefix(&part[..part.len().min(512)]))
                .next_pointer_31_10(next as u32 >> 10)
                .block_number(number as u32)
                .token(token);
            let place = self.memory(fid, at + BOX * number as u64, CmdMailbox::SIZE);
            place.copy_from_slice(mailbox.as_bytes());
        }
    }

    pub fn entry(&mut self, fid: u8, slot: u64) -> CmdQueueEntry {
        CmdQueueEntry::read(self.memory(fid, CMDQ + 64 * slot, 64))
    }

    /// Reads the reply in `slot`, which must be complete.
    pub fn reply(&mut self, fid: u8, slot: u64, out: usize) -> Reply {
        let entry = self.entry(fid, slot);
        assert!(!entry.ownership(), "the command was not completed");
        let mut output = entry.command_output_inline_data()[..out.min(16)].to_vec();
        for number in 0..out.saturating_sub(16).div_ceil(512) as u64 {
            let left = (out - output.len()).min(512);
            let at = BOXES_OUT + slot * 0x8000 + BOX * number;
            output.extend_from_slice(self.memory(fid, at, left));
        }
        Reply { delivery: DeliveryStatus::from_raw(entry.status()), output }
    }
}

/// `input` followed by a list of 64-bit entries.
pub fn with_list<I: Layout>(input: &I, list: &[u64]) -> Vec<u8> {
    let mut bytes = input.bytes().to_vec();
    list.iter().for_each(|e| bytes.extend_from_slice(&e.to_be_bytes()));
    bytes
}
