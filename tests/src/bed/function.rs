//! Functions: registers, and bring-up in the documented order.

use super::{
    Bed,
    command::{CommandError, CommandMemory, MAILBOX_STRIDE, MAILBOXES},
};
use devmodel::{LinkLayer, identity};
use hwspec::{
    cmd::{CmdIn, CmdOut, Opcode, adapter::*, resource::*, vport::*},
    context::vport::RoceAddr,
    doorbell::UAR_SHIFT,
    pcie::{MSIX_CAP, MSIX_TABLE, NUM_VFS, SRIOV_CONTROL, VF_ENABLE, VF_MSE},
    wire::ip::gid_of_v4,
};

/// Registers of the initialization segment.
const CMDQ_HIGH: u64 = 0x10;
const CMDQ_LOW: u64 = 0x14;
const INITIALIZING: u64 = 0x1fc;
/// Configuration space: command register.
const COMMAND: usize = 0x04;
const MEMORY_AND_MASTER: u32 = 0x6;
/// MSI-X capability: enable bit, in the dword with the capability ID.
const MSIX_ENABLE: u32 = 1 << 31;
/// Vectors that the bed unmasks, and the address of their messages.
const VECTORS: u32 = 8;
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;
/// Pages per MANAGE_PAGES command.
const PAGES_PER_COMMAND: u32 = 512;

/// GID index of the link-local GID.
pub const GID_LINK_LOCAL: u8 = 0;
/// GID index of the IPv4-mapped GID.
pub const GID_IPV4: u8 = 1;

/// The bed's state for a function with a command queue.
#[derive(Clone, Debug, Default)]
pub struct FunctionState {
    pub(super) command: CommandMemory,
    /// Protection domain, allocated by [`Bed::function`].
    pub pd: u32,
    /// User access region, allocated by [`Bed::function`]; 0 before.
    pub uar: u32,
    /// Number of pages given to the chip.
    pub pages: u32,
}

/// The IPv4-mapped GID of a function: 127.0.0.(fid+1).
pub fn gid_v4(fid: u8) -> [u8; 16] {
    gid_of_v4([127, 0, 0, fid + 1])
}

impl Bed {
    /// Reads `width` bytes of configuration space: 1, 2 or 4.
    pub fn config_read(&mut self, fid: u8, offset: usize, width: usize) -> u32 {
        self.adapter.config_read(&mut self.memory, fid, offset, width)
    }

    /// Writes `width` bytes of configuration space: 1, 2 or 4.
    pub fn config_write(&mut self, fid: u8, offset: usize, width: usize, value: u32) {
        self.adapter.config_write(&mut self.runner, &mut self.memory, self.now, fid, offset, width, value);
        self.written(fid);
    }

    /// Reads a register of BAR0.
    pub fn read32(&mut self, fid: u8, offset: u64) -> u32 {
        self.adapter.bar_read32(&mut self.memory, self.now, fid, offset)
    }

    /// Writes a register of BAR0.
    pub fn write32(&mut self, fid: u8, offset: u64, value: u32) {
        if !self.rings(fid, offset, value.into(), true) {
            self.adapter.bar_write32(&mut self.runner, &mut self.memory, self.now, fid, offset, value);
            self.written(fid);
        }
    }

    /// Writes 8 bytes of BAR0.
    pub fn write64(&mut self, fid: u8, offset: u64, value: u64) {
        if !self.rings(fid, offset, value, false) {
            self.adapter.bar_write64(&mut self.runner, &mut self.memory, self.now, fid, offset, value);
            self.written(fid);
        }
    }

    /// Returns the offset in BAR0 of `register` in the function's UAR.
    pub fn uar_register(&self, fid: u8, register: usize) -> u64 {
        u64::from(self.state(fid).uar << UAR_SHIFT) + register as u64
    }

    /// Function level reset.
    pub fn reset(&mut self, fid: u8) {
        self.adapter.reset(&mut self.memory, fid);
        self.forget(|f| f == fid);
    }

    /// Drops the bed's state for the functions that `gone` selects.
    fn forget(&mut self, gone: impl Fn(u8) -> bool) {
        self.functions.retain(|fid, _| !gone(*fid));
        self.queues.eq_of.retain(|fid, _| !gone(*fid));
    }

    /// Enables `n` VFs (0 disables them) through the SR-IOV capability of the PF.
    pub fn set_vfs(&mut self, n: u16) {
        self.config_write(0, SRIOV_CONTROL, 2, 0);
        self.forget(|fid| fid != 0);
        if n > 0 {
            self.config_write(0, NUM_VFS, 2, n.into());
            self.config_write(0, SRIOV_CONTROL, 2, VF_ENABLE | VF_MSE);
        }
    }

    /// Returns the bed's state for a function with a command queue.
    pub fn state(&self, fid: u8) -> &FunctionState {
        self.functions.get(&fid).unwrap_or_else(|| panic!("function {fid} is up"))
    }

    /// Brings function `fid` up if necessary: VF enable, [`bring_up`](Self::bring_up), RoCE addresses, a PD and a UAR. Returns `fid`.
    pub fn function(&mut self, fid: u8) -> u8 {
        if fid > 0 && !self.adapter.region().is_present(fid) {
            let all = self.adapter.region().functions() - 1;
            self.function(0);
            self.set_vfs(all.into());
        }
        if !self.functions.contains_key(&fid) {
            self.bring_up(fid);
        }
        if self.state(fid).uar == 0 {
            self.equip(fid).unwrap_or_else(|e| panic!("RoCE, PD and UAR of function {fid}: {e:?}"));
        }
        fid
    }

    /// Enables memory space, bus mastering and MSI-X, and sets up a command queue.
    pub fn enable_pci(&mut self, fid: u8) {
        self.config_write(fid, COMMAND, 2, MEMORY_AND_MASTER);
        self.config_write(fid, MSIX_CAP, 4, MSIX_ENABLE);
        for vector in 0..VECTORS {
            // Address, data, unmasked; the table is little-endian.
            let entry = MSIX_TABLE as u64 + 16 * u64::from(vector);
            for (at, word) in (entry..).step_by(4).zip([MESSAGE_ADDRESS, 0, vector, 0]) {
                self.write32(fid, at, word.swap_bytes());
            }
        }
        let geometry = self.read32(fid, CMDQ_LOW);
        let (log_size, log_stride) = ((geometry >> 4) as u8 & 0xf, geometry as u8 & 0xf);
        let command = CommandMemory {
            queue: self.memory.alloc(fid, 1 << (log_size + log_stride)),
            log_stride,
            input: self.memory.alloc(fid, (2 * MAILBOXES * MAILBOX_STRIDE) as usize),
            output: self.memory.alloc(fid, (2 * MAILBOXES * MAILBOX_STRIDE) as usize),
        };
        self.write32(fid, CMDQ_HIGH, (command.queue >> 32) as u32);
        self.write32(fid, CMDQ_LOW, command.queue as u32);
        self.forget(|f| f == fid);
        self.functions.insert(fid, FunctionState { command, ..FunctionState::default() });
    }

    /// Initializes function `fid`, which is present, up to INIT_HCA.
    pub fn bring_up(&mut self, fid: u8) {
        self.enable_pci(fid);
        assert_eq!(self.read32(fid, INITIALIZING) >> 31, 0, "the firmware has started");
        self.initialize(fid).unwrap_or_else(|e| panic!("bring-up of function {fid}: {e:?}"));
    }

    fn initialize(&mut self, fid: u8) -> Result<(), CommandError> {
        self.command::<_, EnableHcaOut>(fid, Opcode::EnableHca, &EnableHcaIn::zeroed())?;
        self.command::<_, CmdOut>(fid, Opcode::SetIssi, &SetIssiIn::with(|s| s.current_issi(1)))?;
        self.supply(fid, 1)?;
        self.supply(fid, 2)?;
        self.command::<_, CmdOut>(fid, Opcode::InitHca, &InitHcaIn::zeroed()).map(drop)
    }

    fn equip(&mut self, fid: u8) -> Result<(), CommandError> {
        if self.adapter.config().link_layer == LinkLayer::Ethernet {
            self.set_roce(fid)?;
        }
        let pd: AllocPdOut = self.command(fid, Opcode::AllocPd, &CmdIn::zeroed())?;
        let uar: AllocUarOut = self.command(fid, Opcode::AllocUar, &CmdIn::zeroed())?;
        let state = self.functions.entry(fid).or_default();
        state.pd = pd.pd();
        state.uar = uar.uar();
        Ok(())
    }

    /// Enables or disables loopback of group frames to the net device that sent them.
    pub fn local_loopback(&mut self, fid: u8, on: bool) -> Result<(), CommandError> {
        const SELECT: u32 = UNICAST_LB | MULTICAST_LB;
        let mut input = ModifyNicVportContextIn::zeroed();
        let mut context = input.nic_vport_context();
        context.set().disable_mc_local_lb(!on).disable_uc_local_lb(!on);
        input.set().field_select(SELECT.to_be_bytes()).nic_vport_context(context);
        self.command::<_, CmdOut>(fid, Opcode::ModifyNicVportContext, &input).map(drop)
    }

    fn set_roce(&mut self, fid: u8) -> Result<(), CommandError> {
        let mut roce = ModifyNicVportContextIn::zeroed();
        let mut context = roce.nic_vport_context();
        context.set().roce_en(true);
        roce.set().field_select(ROCE_EN.to_be_bytes()).nic_vport_context(context);
        self.command::<_, CmdOut>(fid, Opcode::ModifyNicVportContext, &roce)?;
        // Linux does the same.
        self.local_loopback(fid, false)?;
        self.set_gid(fid, GID_LINK_LOCAL, identity::link_local_gid(0, fid))?;
        self.set_gid(fid, GID_IPV4, gid_v4(fid))
    }

    /// Executes QUERY_PAGES for `stage` (1 boot, 2 init) and gives the pages with MANAGE_PAGES.
    pub fn supply(&mut self, fid: u8, stage: u16) -> Result<(), CommandError> {
        let query = QueryPagesIn::with(|s| s.op_mod(stage));
        let out: QueryPagesOut = self.command(fid, Opcode::QueryPages, &query)?;
        let mut missing = out.num_pages();
        assert!(missing as i32 >= 0, "a chip that boots asks for pages, this one returns {}", missing as i32);
        while missing > 0 {
            let n = missing.min(PAGES_PER_COMMAND);
            let base = self.memory.alloc(fid, n as usize * 4096);
            let list: Vec<u8> = (0..u64::from(n)).flat_map(|i| (base + i * 4096).to_be_bytes()).collect();
            let give = ManagePagesIn::with(|s| s.function_id(out.function_id()).input_num_entries(n));
            self.command_with(fid, Opcode::ManagePages, 1, &give, &list, ManagePagesOut::SIZE)?;
            missing -= n;
            self.functions.entry(fid).or_default().pages += n;
        }
        Ok(())
    }

    /// Writes an entry of the RoCE address table.
    pub fn set_gid(&mut self, fid: u8, index: u8, gid: [u8; 16]) -> Result<(), CommandError> {
        self.set_gid_in(fid, index, gid, None)
    }

    /// Like [`set_gid`](Self::set_gid), with an address in a VLAN.
    pub fn set_gid_in(
        &mut self,
        fid: u8,
        index: u8,
        gid: [u8; 16],
        vlan: Option<u16>,
    ) -> Result<(), CommandError> {
        let mac = identity::mac(0, fid);
        let address = RoceAddr::with(|s| {
            s.source_l3_address(gid)
                .source_mac_47_32(u16::from_be_bytes([mac[0], mac[1]]))
                .source_mac_31_0(u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]))
                .vlan_valid(vlan.is_some())
                .vlan_id(vlan.unwrap_or(0))
                .roce_version(2)
                .roce_l3_type(u8::from(hwspec::wire::ip::v4_of_gid(&gid).is_none()))
        });
        let input = SetRoceAddressIn::with(|s| s.roce_address_index(index.into()).roce_address(address));
        self.command::<_, CmdOut>(fid, Opcode::SetRoceAddress, &input).map(drop)
    }
}
