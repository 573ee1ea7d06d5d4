//! The function itself: registers, command queue, pages, addresses, counters.

use super::{COUNTERS, CongestionRow, FLOW_ROOTS, FreeList, IbPort, Table};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// MSI-X table entries of a function.
pub const MSIX_VECTORS: usize = 64;
/// Entries of a function's RoCE address (GID) table.
pub const ROCE_ADDRESSES: usize = 32;

/// One MSI-X table entry, as the driver programs it (PCIe base specification, MSI-X).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MsixEntry {
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u32,
    /// Bit 0: masked.
    pub control: u32,
}

/// One RoCE address: a GID and how packets that use it look.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RoceAddress {
    /// The GID; for IPv4 the mapped form `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// Source MAC.
    pub mac: [u8; 6],
    /// 1: in use.
    pub valid: u8,
    /// `roce_version`: 2 is RoCE v2.
    pub version: u8,
    /// `roce_l3_type`: 0 IPv4, 1 IPv6.
    pub l3_type: u8,
    /// VLAN of packets that use it, as a big-endian number, with the bit above it set; 0 is none.
    pub vlan: [u8; 2],
    /// Padding.
    pub reserved: [u8; 5],
}

impl RoceAddress {
    /// In `vlan`: there is one.
    pub const VLAN_VALID: u16 = 0x1000;

    /// The VLAN's number, if packets bear one.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        match u16::from_be_bytes(self.vlan) {
            0 => None,
            vlan => Some(vlan & 0xfff),
        }
    }
}

/// Unicast addresses a vport's list holds.
pub const UNICAST_LIST: usize = 64;
/// Multicast addresses a vport's list holds.
pub const MULTICAST_LIST: usize = 128;
/// VLANs a vport's list holds.
pub const VLAN_LIST: usize = 256;

/// How far the bring-up of a function is (`FunctionRow::hca_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HcaState {
    /// After a reset, or `DISABLE_HCA`.
    Reset,
    /// After `ENABLE_HCA`, or `TEARDOWN_HCA`.
    Enabled,
    /// After `INIT_HCA`.
    Running,
}

impl HcaState {
    /// As the function's row holds it.
    pub const fn raw(self) -> u32 {
        self as u32
    }
}

/// Registers and books of one function.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FunctionRow {
    /// Rises with every reset of the function.
    pub resets: u32,
    /// Bits of the PCI command register kept at hand: [`MEMORY_SPACE`](Self::MEMORY_SPACE), [`BUS_MASTER`](Self::BUS_MASTER);
    /// and [`VF_MEMORY_OFF`](Self::VF_MEMORY_OFF).
    pub pci_command: u32,

    /// PCI configuration space, as the driver reads it.
    pub config: [u8; 4096],
    /// MSI-X table.
    pub msix: [MsixEntry; MSIX_VECTORS],
    /// MSI-X pending bits.
    pub msix_pending: u64,

    /// Command queue address from the initialization segment.
    pub cmdq: u64,
    /// Slots of the command queue whose command waits for pages.
    pub cmd_pending: u32,
    /// State of the bring-up: 0 reset, 1 after `ENABLE_HCA`, 2 after `INIT_HCA`.
    pub hca_state: u32,
    /// Interface step sequence id chosen by `SET_ISSI`.
    pub issi: u32,
    /// Commands that make or end objects, while requests for pages are counted by them.
    pub makers: u32,
    /// Health syndrome; 0 is well.
    pub health_syndrome: u32,
    /// Pages the driver gave and did not get back.
    pub pages_held: u32,
    /// Pages asked for at boot and at init that are still missing.
    pub pages_wanted: [i32; 2],
    /// First and number of translation entries that list the pages held: see the page commands.
    pub page_list: [u32; 2],

    /// MAC of the port.
    pub mac: [u8; 6],
    /// Port MTU of the Ethernet link, in bytes.
    pub mtu: u16,
    /// Link: 1 down, 2 up as the vport state says.
    pub vport_state: u32,
    /// Administrative state.
    pub vport_admin_state: u32,
    /// RoCE on this vport.
    pub roce_enabled: u32,
    /// Capability bits changed by `SET_HCA_CAP`: general page, first 64 bytes of difference kept by the command's file.
    pub caps_set: [u32; 16],
    /// The frames that the vport takes beside those to its own address: bit 0 all unicast, bit 1 all multicast, bit 2 everything.
    pub promiscuous: u32,
    /// Own frames that do not come back: bit 0 unicast, bit 1 multicast.
    pub local_block: u32,
    /// Entries of the three lists.
    pub list_len: [u32; 3],
    /// Unicast addresses, in the low 48 bits.
    pub unicast_list: [u64; UNICAST_LIST],
    /// Multicast addresses, in the low 48 bits.
    pub multicast_list: [u64; MULTICAST_LIST],
    /// VLANs.
    pub vlan_list: [u16; VLAN_LIST],
    /// First flow table for received frames, and of the forwarding database: index plus one; 0 is none.
    pub flow_root: [u32; FLOW_ROOTS],
    /// How often the ready ring was doubled, see `region::queues`.
    pub ready_doubled: u32,
    /// 1: queues with something to send wait for the port's rate, and there is a timer for them.
    pub held: u32,

    /// The port on InfiniBand.
    pub ib: IbPort,
    /// RoCE addresses.
    pub roce: [RoceAddress; ROCE_ADDRESSES],

    /// Free lists of the object tables, by [`Table`].
    pub free: [FreeList; Table::ALL.len().next_multiple_of(2)],
    /// Free lists of translation ranges by log2 of their length (index plus one of the first entry).
    pub mtt_free: [u32; 32],
    /// Translation entries from here on were never used.
    pub mtt_fresh: u32,
    /// Translation entries in use.
    pub mtt_used: u32,

    /// The counts of `counters` before the resets there were: the port's own books, which no reset ends.
    pub before: [u64; COUNTERS],
    /// QP0 and QP1: index plus one of the queue pair that is it, 0 if none. Of several, the one that came last.
    pub special_qp: [u32; 2],
    /// When BAR0 was first looked at since the reset, ps; 0 is never. Only kept where that takes time.
    pub woken: u64,
    /// Pages that a command waits for; negative: the driver has none.
    pub pages_owed: i32,
    /// How often pages were asked back in vain since `TEARDOWN_HCA`.
    pub empty_takes: u32,
    /// Slots of the command queue whose command waits for its time.
    pub cmd_delayed: u32,
    /// 1: there is a timer for them.
    pub cmd_timed: u32,
    /// When a port whose rate is limited is done with what it sent, ps.
    pub port_free: u64,
    /// Of function 0, whose port it is.
    pub congestion: CongestionRow,
    /// Padding: what changes with every frame begins a cache line.
    pub reserved1: [u64; 3],
    /// Entries of the timer heap.
    pub timers: u32,
    /// Ready ring: next to take and next to fill, free-running.
    pub ready: [u32; 2],

    /// Receive ring: slots taken, free-running; the senders see it when the job commits.
    pub rx_next: u32,

    /// See [`Counters`](super::Counters).
    pub counters: [u64; COUNTERS],
}

const _: () = assert!(std::mem::offset_of!(FunctionRow, timers) % 64 == 0);

impl FunctionRow {
    /// In `pci_command`: BAR0 answers (memory space enable).
    pub(crate) const MEMORY_SPACE: u32 = 1 << 1;
    /// In `pci_command`: the function may use DMA and interrupts (bus master enable).
    pub(crate) const BUS_MASTER: u32 = 1 << 2;
    /// In `pci_command`: the PF's SR-IOV capability switched the memory space of its VFs off.
    pub(crate) const VF_MEMORY_OFF: u32 = 1 << 16;

    /// In `promiscuous`: all unicast.
    pub(crate) const ALL_UNICAST: u32 = 1;
    /// In `promiscuous`: all multicast.
    pub(crate) const ALL_MULTICAST: u32 = 2;
    /// In `promiscuous`: everything.
    pub(crate) const ALL: u32 = 4;
    /// In `local_block`: unicast.
    pub(crate) const BLOCK_UNICAST: u32 = 1;
    /// In `local_block`: multicast.
    pub(crate) const BLOCK_MULTICAST: u32 = 2;

    /// The list of unicast addresses.
    pub(crate) fn unicast(&self) -> &[u64] {
        &self.unicast_list[..(self.list_len[0] as usize).min(UNICAST_LIST)]
    }

    /// In `caps_set`, words that `SET_HCA_CAP` chose, where 0 is the default.
    pub(crate) const SET_UAR_4K: usize = 0;
    /// See [`SET_UAR_4K`](Self::SET_UAR_4K).
    pub(crate) const SET_LOG_MAX_QP: usize = 1;
    /// See [`SET_UAR_4K`](Self::SET_UAR_4K).
    pub(crate) const SET_ATOMIC_ENDIANNESS: usize = 2;
    /// See [`SET_UAR_4K`](Self::SET_UAR_4K).
    pub(crate) const SET_SOURCE_PORT: usize = 3;

    /// True if the function may transfer data and interrupt.
    #[inline]
    pub(crate) fn may_dma(&self) -> bool {
        self.pci_command & Self::BUS_MASTER != 0
    }

    /// True if BAR0 of the function answers.
    #[inline]
    pub(crate) fn bar_answers(&self) -> bool {
        self.pci_command & (Self::MEMORY_SPACE | Self::VF_MEMORY_OFF) == Self::MEMORY_SPACE
    }

    /// True if registers of BAR0 that make the function transfer data do so.
    #[inline]
    pub(crate) fn rings(&self) -> bool {
        self.bar_answers() && self.may_dma()
    }

    /// The dword at `at` of configuration space.
    pub(crate) fn config_dword(&self, at: usize) -> u32 {
        u32::from_le_bytes(hwspec::layout::prefix(&self.config[at..]))
    }
}
