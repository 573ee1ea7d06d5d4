//! The e-switch as all parties see it without a lock: its state, its settings and its counters.

use super::{Func, GROUP_ADDRESSES, Region, Row, Shortage, Sync, Table, geometry::FLOW_COUNT};
use crate::{
    Config, LinkLayer, identity,
    state::{FlowCounterRow, FunctionRow, Head, VportRow},
};
use std::{
    mem::offset_of,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};
use zerocopy::FromZeros;

/// In [`Sync::Switch`]: the e-switch's settings decide where frames go.
const ACTIVE: u32 = 1;
/// In [`Sync::Switch`]: they always do.
const ALWAYS: u32 = 2;
/// Increment of the generation in [`Sync::Switch`].
const CHANGE: u32 = 4;

impl Region {
    /// True if frames are forwarded by the e-switch's settings rather than by the functions' initial addresses.
    #[inline(always)]
    pub(crate) fn is_switched(&self) -> bool {
        self.sync(0, Sync::Switch).load(Relaxed) & ACTIVE != 0
    }

    /// A generation number that changes with the e-switch's settings.
    pub(crate) fn switch_generation(&self) -> u32 {
        self.sync(0, Sync::Switch).load(Acquire)
    }

    /// From now on forwards frames by the e-switch's settings, even if there are none.
    pub(crate) fn always_switch(&self) {
        self.sync(0, Sync::Switch).fetch_or(ALWAYS | ACTIVE, AcqRel);
    }

    /// Tells all parties that the forwarding settings have changed.
    pub(crate) fn switch_changed(&self) {
        let word = self.sync(0, Sync::Switch);
        loop {
            let before = word.load(Acquire);
            let active = before & ALWAYS != 0 || self.has_switch_settings();
            let after = (before & !ACTIVE).wrapping_add(CHANGE) | u32::from(active);
            // A party that changes a setting concurrently changes the word as well.
            if word.compare_exchange(before, after, AcqRel, Acquire).is_ok() {
                return;
            }
        }
    }

    /// The root table of the forwarding database, if there is one.
    pub(crate) fn forwarding_root(&self) -> Option<u32> {
        let roots: [u32; crate::state::FLOW_ROOTS] = self.look(0, offset_of!(FunctionRow, flow_root))?;
        roots[1].checked_sub(1)
    }

    fn has_switch_settings(&self) -> bool {
        let special = |fid| {
            self.vport(fid).treats_frames()
                || self.sync(fid, Sync::Group).load(Relaxed) & GROUP_ADDRESSES != 0
        };
        self.forwarding_root().is_some() || self.functions_there().any(special)
    }

    /// The e-switch manager's settings for the port of `fid`.
    pub(crate) fn vport(&self, fid: u8) -> VportRow {
        self.peek(0, fid.into()).unwrap_or_else(VportRow::new_zeroed)
    }

    /// Node and port GUID of `fid`: as set by the manager, else derived from its number (zero for a VF if the manager owns all GUIDs).
    pub(crate) fn guids(&self, config: &Config, fid: u8) -> [[u8; 8]; 2] {
        let owned = config.strict.owner && config.link_layer == LinkLayer::Ethernet;
        let born = if owned && fid != 0 { [0; 8] } else { identity::guid(config.node_id, fid) };
        let set = self.vport(fid);
        [set.node_guid, set.port_guid].map(|guid| if guid == 0 { born } else { guid.to_be_bytes() })
    }

    /// Packets and bytes counted by the e-switch's flow tables on counter `index`, in addition to the values in its row; `None`
    /// if there is no such counter.
    pub(crate) fn flow_count(&self, index: u32) -> Option<[&AtomicU64; 2]> {
        if index as usize >= self.rows(Table::FlowCount) {
            return None;
        }
        let at =
            self.row_pointer(self.block(0), Table::FlowCount, index as usize, FLOW_COUNT).cast::<AtomicU64>();
        // SAFETY: `row_pointer` returns a row within the region, with room for two words; they are aligned because tables begin
        // at page boundaries; they are only ever accessed as atomics.
        Some(unsafe { [&*at, &*at.add(1)] })
    }
}

impl Func<'_> {
    /// Backs the e-switch's counts of all flow counters.
    pub(crate) fn back_flow_counts(&self) -> Result<(), Shortage> {
        self.back_rows(Table::FlowCount, 0, self.rows(FlowCounterRow::TABLE))
    }

    /// Row `index`, mutable; zeroed if it was free. For tables with row numbers that the caller chooses.
    pub(crate) fn row_at<R: Row + FromZeros>(&mut self, index: u32) -> Result<&mut R, Shortage> {
        if index >= self.rows(R::TABLE) {
            return Err(Shortage::Full);
        }
        self.reach(R::TABLE, index)?;
        let mut free = self.function().free[R::TABLE as usize];
        if index >= free.fresh {
            self.back_rows(R::TABLE, free.fresh, index + 1)?;
            free.fresh = index + 1;
            *self.function_mut(|f| &mut f.free[R::TABLE as usize]) = free;
        }
        let row = self.any_row_mut::<R>(index);
        if row.head().live == 0 {
            *row = R::new_zeroed();
            *row.head_mut() = Head { live: 1, ..Head::default() };
        }
        Ok(row)
    }

    /// Frees row `index` of such a table.
    pub(crate) fn clear_at<R: Row>(&mut self, index: u32) {
        if let Some(row) = self.row_mut::<R>(index) {
            *row.head_mut() = Head::default();
        }
    }
}
