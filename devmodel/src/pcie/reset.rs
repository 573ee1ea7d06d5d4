//! Resets: they leave a function without objects, pages and programmed registers (PCI Express Base 5.0, 6.6.2).

use super::config_space;
use crate::{
    Adapter, Config, LinkLayer, cmd,
    host::Host,
    identity,
    mlx5::eswitch,
    region::{Func, FunctionSet, Patience, Region, Sync, Table, purge_frames},
    state::{FunctionRow, MsixEntry},
    subnet,
};
use hwspec::pcie::{SRIOV_CAP, SriovCap};
use std::sync::atomic::Ordering::Release;
use zerocopy::FromZeros;

/// Largest Ethernet payload of a frame, in bytes.
const ETHERNET_MTU: u16 = 9000;
/// Size of a vport's largest frame, in bytes, unless its driver sets another: 1500 plus header, tag and check sequence.
const VPORT_MTU: u16 = 1522;
/// `vport_state`: up; `admin_state`: up.
const VPORT_UP: u32 = 1;

/// Initializes registers and bookkeeping for a function without objects. Counts the reset.
pub(super) fn defaults(func: &mut Func<'_>, settings: &Config) {
    let fid = func.fid();
    let total_vfs = u16::from(func.region().functions()) - 1;
    let (resets, rx_next) = (func.function().resets, func.behind_frames());
    // The e-switch manager's settings of the port survive resets of the function.
    let set = func.region().vport(fid);
    let [_, port_guid] = func.region().guids(settings, fid);
    let born = match settings.strict.owner && fid != 0 {
        true => [0; 6],
        false => identity::mac(settings.node_id, fid),
    };
    // The subnet's records do not belong to the function alone.
    let before_reset = func.function().free;
    let (before, last) = (func.function().before, func.function().counters);
    *func.function_mut(|f| f) = FunctionRow {
        resets: resets.wrapping_add(1),
        before: std::array::from_fn(|i| before[i].wrapping_add(last[i])),
        config: config_space::defaults(fid, total_vfs, settings.strict.card, settings.link_layer),
        msix: [MsixEntry { control: 1, ..Default::default() }; crate::state::MSIX_VECTORS],
        mac: if set.mac == [0; 6] { born } else { set.mac },
        mtu: if settings.strict.owner { VPORT_MTU } else { ETHERNET_MTU },
        ib: subnet::port(settings.node_id, fid, port_guid),
        // Up, unless the e-switch manager keeps it down.
        vport_state: if set.admin_state == 1 { 0 } else { VPORT_UP },
        vport_admin_state: VPORT_UP,
        // Skips the waiting frames: they are not for the next user.
        rx_next,
        ..FunctionRow::new_zeroed()
    };
    for table in [Table::SubnetPort as usize, Table::SubnetGroup as usize] {
        func.function_mut(|f| &mut f.free)[table] = before_reset[table];
    }
    for table in Table::KNOWN_TO_PEERS {
        let next = before_reset[table as usize].over_reset(func.rows(table));
        func.function_mut(|f| &mut f.free)[table as usize] = next;
    }
    func.region().sync(fid, Sync::Ready).store(0, Release);
    func.region().sync(fid, Sync::Timer).store(0, Release);
    func.region().sync(fid, Sync::Group).store(0, Release);
    eswitch::takes(func, settings);
}

impl Adapter {
    /// Creates an adapter in its power-on state: only the PF is present.
    pub fn power_on(region: Region, config: Config, host: &mut dyn Host) -> Self {
        let adapter = Self::attach(region, config);
        adapter.region().set_key(host.entropy());
        if adapter.config().strict.owner && adapter.config().link_layer == LinkLayer::Ethernet {
            adapter.region().always_switch();
        }
        // A VF is reset when it is enabled.
        let mut pf = Func::lock(adapter.region(), 0, host);
        defaults(&mut pf, adapter.config());
        pf.region().sync(pf.fid(), Sync::Present).store(1, Release);
        pf.commit(host);
        drop(pf);
        adapter
    }

    /// Resets function `fid` (FLR): destroys its objects, sets its registers to their power-on values and drops the frames that wait
    /// for it. No transfer to or from its memory happens after this returns. Resetting the PF removes its VFs. Returns the functions
    /// that were locked meanwhile: other parties may have left work there.
    pub fn reset(&self, host: &mut dyn Host, fid: u8) -> FunctionSet {
        // Endless patience does not run out.
        self.reset_with(host, fid, Patience::Endless).unwrap_or_default()
    }

    /// Like [`reset`](Self::reset), with limited patience. `None` when it ran out: the caller must retry.
    pub fn reset_with(&self, host: &mut dyn Host, fid: u8, patience: Patience) -> Option<FunctionSet> {
        if fid >= self.region().functions() {
            return Some(0);
        }
        let vfs = if fid == 0 { self.remove_vfs(host, patience)? } else { 0 };
        let pci_command = if fid == 0 { 0 } else { self.vf_memory_off() };
        let mut locked = self.reset_registers(host, fid, pci_command, None, patience)?;
        if fid == 0 && self.config().link_layer == LinkLayer::Infiniband {
            for vf in 1..self.region().functions() {
                locked |= self.leave_subnet(host, vf, patience)?;
            }
        }
        Some(vfs | locked)
    }

    /// Removes the port of `fid` from all multicast groups; the PF keeps the subnet's records. Returns the functions that were
    /// locked.
    #[cold]
    fn leave_subnet(&self, host: &mut dyn Host, fid: u8, patience: Patience) -> Option<FunctionSet> {
        // A port in no group does not need the PF, which a stopped program may hold.
        if !subnet::is_in_a_group(self.region(), fid) {
            return Some(0);
        }
        let mut pf = Func::lock_with(self.region(), 0, host, patience)?;
        loop {
            let more = subnet::group_port_gone(&mut pf, fid);
            pf.commit(host);
            if !more {
                return Some(1);
            }
        }
    }

    /// Like [`reset`](Self::reset), but leaves other functions unchanged: the PF keeps its SR-IOV capability and its VFs. For a PF
    /// with a user that has only this function, while other users have the VFs. `None` when patience ran out: the caller must retry.
    pub fn reset_alone(&self, host: &mut dyn Host, fid: u8, patience: Patience) -> Option<FunctionSet> {
        if fid != 0 {
            return self.reset_with(host, fid, patience);
        }
        let mut sriov = [0; SriovCap::SIZE];
        {
            let pf = Func::lock_with(self.region(), 0, host, patience)?;
            sriov.copy_from_slice(&pf.function().config[SRIOV_CAP..SRIOV_CAP + SriovCap::SIZE]);
        }
        self.reset_registers(host, 0, 0, Some(&sriov), patience)
    }

    fn reset_registers(
        &self,
        host: &mut dyn Host,
        fid: u8,
        pci_command: u32,
        sriov: Option<&[u8]>,
        patience: Patience,
    ) -> Option<FunctionSet> {
        let mut func = Func::lock_with(self.region(), fid, host, patience)?;
        cmd::end_objects(&mut func, host, |_| true);
        let before = func.function().free;
        defaults(&mut func, self.config());
        *func.function_mut(|f| &mut f.pci_command) = pci_command;
        if let Some(sriov) = sriov {
            func.function_mut(|f| &mut f.config)[SRIOV_CAP..SRIOV_CAP + SriovCap::SIZE]
                .copy_from_slice(sriov);
        }
        func.commit(host);
        func.give_all_back(&before);
        drop(func);
        let mut locked = purge_frames(self.region(), host, fid, patience)?;
        Func::lock_with(self.region(), fid, host, patience)?.forget_peers(host, self.functions());
        if self.config().link_layer == LinkLayer::Infiniband {
            locked |= self.leave_subnet(host, fid, patience)?;
        }
        Some(locked | 1 << fid)
    }
}
