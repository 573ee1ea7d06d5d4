//! The function itself: registers, command queue, pages, addresses, counters.

use super::{COUNTERS, CongestionRow, FLOW_ROOTS, FreeList, IbPort, Table};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// MSI-X table entries of a function.
pub const MSIX_VECTORS: usize = 64;
/// Entries of a function's RoCE address (GID) table.
pub const ROCE_ADDRESSES: usize = 32;

/// One MSI-X table entry, as programmed by the driver (PCIe base specification, MSI-X).
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

/// One RoCE address: a GID and the headers of packets that use it.
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
    /// VLAN of packets that use it, as a big-endian number, with the next higher bit set; 0 is none.
    pub vlan: [u8; 2],
    /// Padding.
    pub reserved: [u8; 5],
}

impl RoceAddress {
    /// In `vlan`: the VLAN is valid.
    pub const VLAN_VALID: u16 = 0x1000;

    /// The VLAN's number, if packets carry one.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        match u16::from_be_bytes(self.vlan) {
            0 => None,
            vlan => Some(vlan & 0xfff),
        }
    }
}

/// Unicast addresses in a vport's list.
pub const UNICAST_LIST: usize = 64;
/// Multicast addresses in a vport's list.
pub const MULTICAST_LIST: usize = 128;
/// VLANs in a vport's list.
pub const VLAN_LIST: usize = 256;

/// Progress of a function's bring-up (`FunctionRow::hca_state`).
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
    /// The value in the function's row.
    pub const fn raw(self) -> u32 {
        self as u32
    }
}

/// Registers and bookkeeping of one function.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FunctionRow {
    /// Number of resets of the function.
    pub resets: u32,
    /// Cached bits of the PCI command register: [`MEMORY_SPACE`](Self::MEMORY_SPACE), [`BUS_MASTER`](Self::BUS_MASTER); and
    /// [`VF_MEMORY_OFF`](Self::VF_MEMORY_OFF).
    pub pci_command: u32,

    /// PCI configuration space, as the driver reads it.
    pub config: [u8; 4096],
    /// MSI-X table.
    pub msix: [MsixEntry; MSIX_VECTORS],
    /// MSI-X pending bits.
    pub msix_pending: u64,

    /// Command queue address from the initialization segment.
    pub cmdq: u64,
    /// Command queue slots with a command that waits for pages.
    pub cmd_pending: u32,
    /// State of the bring-up: 0 reset, 1 after `ENABLE_HCA`, 2 after `INIT_HCA`.
    pub hca_state: u32,
    /// Interface step sequence id chosen by `SET_ISSI`.
    pub issi: u32,
    /// Number of commands that create or destroy objects, which triggers requests for pages.
    pub makers: u32,
    /// Health syndrome; 0 is healthy.
    pub health_syndrome: u32,
    /// Pages that the driver gave and did not take back.
    pub pages_held: u32,
    /// Pages requested at boot and at init that are still missing.
    pub pages_wanted: [i32; 2],
    /// First and number of the translation entries with the list of held pages, kept by the page commands.
    pub page_list: [u32; 2],

    /// MAC of the port.
    pub mac: [u8; 6],
    /// Port MTU of the Ethernet link, in bytes.
    pub mtu: u16,
    /// Link state: 0 down, 1 up.
    pub vport_state: u32,
    /// Administrative state.
    pub vport_admin_state: u32,
    /// RoCE on this vport.
    pub roce_enabled: u32,
    /// Capability values changed by `SET_HCA_CAP`, indexed by [`SET_UAR_4K`](Self::SET_UAR_4K) and the constants after it.
    pub caps_set: [u32; 16],
    /// Frames that the vport accepts in addition to those to its own address: bit 0 all unicast, bit 1 all multicast, bit 2
    /// everything.
    pub promiscuous: u32,
    /// Loopback of own frames that is blocked: bit 0 unicast, bit 1 multicast.
    pub local_block: u32,
    /// Lengths of the three lists.
    pub list_len: [u32; 3],
    /// Unicast addresses, in the low 48 bits.
    pub unicast_list: [u64; UNICAST_LIST],
    /// Multicast addresses, in the low 48 bits.
    pub multicast_list: [u64; MULTICAST_LIST],
    /// VLANs.
    pub vlan_list: [u16; VLAN_LIST],
    /// Root flow tables of receive and of the forwarding database: index plus one; 0 is none.
    pub flow_root: [u32; FLOW_ROOTS],
    /// How often `region::queues` doubled the ready ring.
    pub ready_doubled: u32,
    /// 1: queues with data to send wait for the port's rate limit, and a timer is armed for them.
    pub held: u32,

    /// The port on InfiniBand.
    pub ib: IbPort,
    /// RoCE addresses.
    pub roce: [RoceAddress; ROCE_ADDRESSES],

    /// Free lists of the object tables, by [`Table`].
    pub free: [FreeList; Table::ALL.len().next_multiple_of(2)],
    /// Free lists of translation ranges by log2 of their length (index plus one of the first entry).
    pub mtt_free: [u32; 32],
    /// First translation entry that was never used.
    pub mtt_fresh: u32,
    /// Translation entries in use.
    pub mtt_used: u32,

    /// Sums of `counters` from before earlier resets: the port's own counts, which resets do not clear.
    pub before: [u64; COUNTERS],
    /// QP0 and QP1: index plus one of the queue pair with that role, 0 if none. If there are several, the latest.
    pub special_qp: [u32; 2],
    /// Time of the first BAR0 access since the reset, ps; 0 is never. Used only where a reset takes time.
    pub woken: u64,
    /// Pages that a command waits for; negative: the driver has no pages.
    pub pages_owed: i32,
    /// How often pages were reclaimed without result since `TEARDOWN_HCA`.
    pub empty_takes: u32,
    /// Command queue slots with a command that completes at a later time.
    pub cmd_delayed: u32,
    /// 1: a timer is armed for them.
    pub cmd_timed: u32,
    /// Time at which a rate-limited port has finished transmitting, ps.
    pub port_free: u64,
    /// Used in function 0 only, which owns the port.
    pub congestion: CongestionRow,
    /// Padding: fields that change with every frame start a cache line.
    pub reserved1: [u64; 3],
    /// Entries of the timer heap.
    pub timers: u32,
    /// Ready ring: consumer and producer index, free-running.
    pub ready: [u32; 2],

    /// Receive ring: slots consumed, free-running; becomes visible to senders when the job commits.
    pub rx_next: u32,

    /// The counters, indexed by [`Counters`](super::Counters).
    pub counters: [u64; COUNTERS],
}

const _: () = assert!(std::mem::offset_of!(FunctionRow, timers) % 64 == 0);

impl FunctionRow {
    /// In `pci_command`: BAR0 responds (memory space enable).
    pub(crate) const MEMORY_SPACE: u32 = 1 << 1;
    /// In `pci_command`: the function may use DMA and interrupts (bus master enable).
    pub(crate) const BUS_MASTER: u32 = 1 << 2;
    /// In `pci_command`: the PF's SR-IOV capability disabled the memory space of its VFs.
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

    /// The entries of the unicast address list.
    pub(crate) fn unicast(&self) -> &[u64] {
        &self.unicast_list[..(self.list_len[0] as usize).min(UNICAST_LIST)]
    }

    /// Index in `caps_set`: 4 KiB UAR pages. All these values are set by `SET_HCA_CAP`; 0 is the default.
    pub(crate) const SET_UAR_4K: usize = 0;
    /// Index in `caps_set`: log2 of the maximum number of QPs.
    pub(crate) const SET_LOG_MAX_QP: usize = 1;
    /// Index in `caps_set`: endianness of atomics.
    pub(crate) const SET_ATOMIC_ENDIANNESS: usize = 2;
    /// Index in `caps_set`: RoCE source port set by software.
    pub(crate) const SET_SOURCE_PORT: usize = 3;

    /// True if the function may transfer data and raise interrupts.
    #[inline]
    pub(crate) fn may_dma(&self) -> bool {
        self.pci_command & Self::BUS_MASTER != 0
    }

    /// True if BAR0 of the function responds.
    #[inline]
    pub(crate) fn bar_answers(&self) -> bool {
        self.pci_command & (Self::MEMORY_SPACE | Self::VF_MEMORY_OFF) == Self::MEMORY_SPACE
    }

    /// True if writes to the doorbell registers of BAR0 take effect.
    #[inline]
    pub(crate) fn rings(&self) -> bool {
        self.bar_answers() && self.may_dma()
    }

    /// The dword at `at` of configuration space.
    pub(crate) fn config_dword(&self, at: usize) -> u32 {
        u32::from_le_bytes(hwspec::layout::prefix(&self.config[at..]))
    }
}
