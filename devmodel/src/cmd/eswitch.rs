//! Commands with which the PF manages the e-switch: settings of ports, the MAC address table, bandwidth.

use super::{
    bind::{Bound, cast},
    call::Call,
    nic_vport::address,
    object,
    refusal::{Done, Refused, Syndrome},
    vport::{manages, vport},
};
use crate::{
    region::{Func, Table},
    state::{L2Row, SchedulingRow, VportRow},
};
use hwspec::{
    cmd::eswitch::*,
    context::{
        caps::QosCap,
        eswitch::{EswVportContext, EswitchCap, HostParams, SchedulingContext},
    },
    layout::prefix,
    pcie::NUM_VFS,
};

/// `vport_cvlan_insert`: never, only without a tag, always.
const INSERT_NEVER: u8 = 0;
const INSERT_IF_NONE: u8 = 1;
const INSERT_ALWAYS: u8 = 3;
/// `scheduling_hierarchy`: the e-switch's.
const E_SWITCH: u8 = 2;
/// `element_type`: a node of the hierarchy, a vport.
const TSAR: u8 = 0;
const VPORT: u8 = 1;
/// `element_attributes` of a node: weighted sharing.
const DWRR: u32 = 0;
/// `modify_bitmask`.
const SHARE: u32 = 1;
const LIMIT: u32 = 2;
/// In `L2Row::vlan`: the address applies to one VLAN.
const VLAN_VALID: u16 = 1 << 12;
/// Levels of the hierarchy: the whole, groups, vports.
const LOG_DEPTH: u8 = 1;
/// The maximum share.
const MOST_SHARE: u32 = 100;

bind! { SchedulingContext <-> SchedulingRow {
    element_type <-> kind,
    element_attributes <-> attributes,
    parent_element_id <-> parent,
    bw_share <-> share,
    max_average_bw <-> limit,
} }

/// Allows only the e-switch manager.
fn manager(call: &Call<'_, '_, '_>) -> Done {
    Syndrome::FunctionId.unless(manages(call.func))
}

/// The mutable settings of the port of `fid`.
pub(super) fn settings<'f>(func: &'f mut Func<'_>, fid: u8) -> Done<&'f mut VportRow> {
    func.row_at::<VportRow>(fid.into()).map_err(Refused::from)
}

/// The capability page of the e-switch.
pub(super) fn caps() -> EswitchCap {
    EswitchCap::with(|s| {
        s.vport_cvlan_strip(true)
            .vport_cvlan_insert_if_not_exist(true)
            .nic_vport_node_guid_modify(true)
            .nic_vport_port_guid_modify(true)
    })
}

/// The QoS capability page.
pub(super) fn qos() -> QosCap {
    QosCap::with(|s| {
        s.esw_scheduling(true)
            .esw_bw_share(true)
            .esw_rate_limit(true)
            .log_esw_max_sched_depth(LOG_DEPTH)
            .esw_element_type(1 << TSAR | 1 << VPORT)
            .esw_tsar_type(1 << DWRR)
            .max_tsar_bw_share(MOST_SHARE)
    })
}

pub(super) fn functions(call: &mut Call<'_, '_, '_>) -> Done {
    manager(call)?;
    let region = call.func.region();
    let host = HostParams::with(|s| {
        s.host_num_of_vfs(region.config_dword(0, NUM_VFS) as u16)
            .host_total_vfs(u16::from(region.functions()) - 1)
    });
    call.answer(&QueryEswFunctionsOut::with(|s| s.host_params_context(host)))
}

pub(super) fn query_context(call: &mut Call<'_, '_, '_>) -> Done {
    call.input::<QueryEswVportContextIn>()?;
    manager(call)?;
    let row = call.func.region().vport(vport(call)?);
    let context = EswVportContext::with(|s| {
        s.vport_cvlan_strip(row.strip != 0)
            .vport_cvlan_insert(row.insert as u8)
            .cvlan_pcp((row.tci >> 13) as u8)
            .cvlan_cfi(row.tci & 1 << 12 != 0)
            .cvlan_id(row.tci & 0xfff)
    });
    call.answer(&QueryEswVportContextOut::with(|s| s.esw_vport_context(context)))
}

pub(super) fn modify_context(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyEswVportContextIn = call.input()?;
    manager(call)?;
    let fid = vport(call)?;
    let (fields, c) = (input.field_select(), input.esw_vport_context());
    let known =
        !fields.vport_svlan_strip() && !fields.vport_svlan_insert() && !fields.fdb_to_vport_reg_c_id();
    Syndrome::ModifyField.unless(known)?;
    let mode = c.vport_cvlan_insert();
    Syndrome::ModifyField.unless([INSERT_NEVER, INSERT_IF_NONE, INSERT_ALWAYS].contains(&mode))?;
    let row = settings(call.func, fid)?;
    if fields.vport_cvlan_strip() {
        row.strip = c.vport_cvlan_strip().into();
    }
    if fields.vport_cvlan_insert() {
        row.insert = mode.into();
        row.tci = u16::from(c.cvlan_pcp()) << 13 | u16::from(c.cvlan_cfi()) << 12 | c.cvlan_id();
    }
    call.switch_changed();
    Ok(())
}

pub(super) fn set_address(call: &mut Call<'_, '_, '_>) -> Done {
    let input: SetL2TableEntryIn = call.input()?;
    manager(call)?;
    let index = l2_index(call, input.table_index())?;
    l2_owner(call, index)?;
    let uid = call.uid;
    let row = call.func.row_at::<L2Row>(index).map_err(Refused::from)?;
    row.head.uid = uid;
    row.mac = prefix(&input.mac_address().as_bytes()[2..]);
    row.vlan = if input.vlan_valid() { VLAN_VALID | input.vlan() } else { 0 };
    call.switch_changed();
    Ok(())
}

/// Checks that the entry is free or belongs to the caller.
fn l2_owner(call: &Call<'_, '_, '_>, index: u32) -> Done {
    let owner = call.func.row::<L2Row>(index).map(|row| row.head.uid);
    Syndrome::TableIndex.unless(owner.is_none_or(|uid| call.may_use(uid)))
}

fn l2_index(call: &Call<'_, '_, '_>, index: u32) -> Done<u32> {
    Syndrome::TableIndex.unless(index < call.func.rows(Table::L2))?;
    Ok(index)
}

pub(super) fn query_address(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryL2TableEntryIn = call.input()?;
    manager(call)?;
    let index = l2_index(call, input.table_index())?;
    let mut out = QueryL2TableEntryOut::zeroed();
    if let Some(row) = call.func.row::<L2Row>(index) {
        out.set().vlan_valid(row.vlan & VLAN_VALID != 0).vlan(row.vlan & 0xfff).mac_address(address(row.mac));
    }
    call.answer(&out)
}

pub(super) fn delete_address(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeleteL2TableEntryIn = call.input()?;
    manager(call)?;
    let index = l2_index(call, input.table_index())?;
    l2_owner(call, index)?;
    call.func.clear_at::<L2Row>(index);
    call.switch_changed();
    Ok(())
}

/// Element `number` of the e-switch's hierarchy.
fn element(call: &Call<'_, '_, '_>, hierarchy: u8, number: u32) -> Done<u32> {
    manager(call)?;
    Syndrome::Scheduling.unless(hierarchy == E_SWITCH)?;
    call.own::<SchedulingRow>(number)
}

pub(super) fn create_element(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateSchedulingElementIn = call.input()?;
    manager(call)?;
    Syndrome::Scheduling.unless(input.scheduling_hierarchy() == E_SWITCH)?;
    let c = input.scheduling_context();
    let attributes = c.element_attributes();
    let known = match c.element_type() {
        // The third byte holds the sharing scheme.
        TSAR => attributes >> 16 & 0xff == DWRR,
        VPORT => attributes & 0xffff < call.func.region().functions().into(),
        _ => false,
    };
    Syndrome::Scheduling.unless(known && c.bw_share() <= MOST_SHARE)?;
    // The root has no parent.
    if c.parent_element_id() != 0 {
        element(call, E_SWITCH, c.parent_element_id())?;
    }
    let index = call.make::<SchedulingRow>(|row| row.take(&c))?;
    set_limits(call)?;
    call.answer(&CreateSchedulingElementOut::with(|s| s.scheduling_element_id(index)))
}

pub(super) fn modify_element(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifySchedulingElementIn = call.input()?;
    let index = element(call, input.scheduling_hierarchy(), input.scheduling_element_id())?;
    let (mask, c) = (input.modify_bitmask(), input.scheduling_context());
    Syndrome::ModifyField.unless(mask & !(SHARE | LIMIT) == 0)?;
    Syndrome::Scheduling.unless(c.bw_share() <= MOST_SHARE)?;
    let row = call.row_mut::<SchedulingRow>(index)?;
    let has = |field| mask & field != 0;
    select! { has: SHARE => row.share = c.bw_share(); LIMIT => row.limit = c.max_average_bw(); }
    set_limits(call)?;
    call.answer(&ModifySchedulingElementOut::zeroed())
}

pub(super) fn query_element(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QuerySchedulingElementIn = call.input()?;
    let index = element(call, input.scheduling_hierarchy(), input.scheduling_element_id())?;
    let context = call.row::<SchedulingRow>(index)?.show();
    call.answer(&QuerySchedulingElementOut::with(|s| s.scheduling_context(context)))
}

pub(super) fn destroy_element(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroySchedulingElementIn = call.input()?;
    let index = element(call, input.scheduling_hierarchy(), input.scheduling_element_id())?;
    call.end::<SchedulingRow>(index)?;
    call.answer(&DestroySchedulingElementOut::zeroed())
}

/// Sets each port's limit to the minimum of its element and all parents.
fn set_limits(call: &mut Call<'_, '_, '_>) -> Done {
    let func = &mut *call.func;
    let mut limits = std::collections::BTreeMap::new();
    for (_, vport) in func.objects::<SchedulingRow>().filter(|(_, row)| row.kind == u32::from(VPORT)) {
        let (mut least, mut above) = (u32::MAX, Some(vport));
        for _ in 0..=func.rows(Table::Scheduling) {
            let Some(row) = above else { break };
            least = if row.limit == 0 { least } else { least.min(row.limit) };
            above = row.parent.checked_sub(1).and_then(|_| func.row::<SchedulingRow>(row.parent));
        }
        limits.insert(vport.attributes as u8, if least == u32::MAX { 0 } else { least });
    }
    for (fid, limit) in limits {
        if func.region().vport(fid).limit != limit {
            settings(func, fid)?.limit = limit;
        }
    }
    call.switch_changed();
    Ok(())
}

/// Destroys the element, even if other objects refer to it.
pub(super) fn end_element(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<SchedulingRow>(index).copied() else { return };
    if row.kind == u32::from(VPORT) {
        if let Some(set) = func.row_mut::<VportRow>(row.attributes & 0xffff) {
            set.limit = 0;
        }
        func.region().switch_changed();
    }
    object::end::<SchedulingRow>(func, index);
}
