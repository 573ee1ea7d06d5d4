//! The subnet management agent of a function's port (IBTA 14.2.5, 14.4).

use super::mad::{self, Answer, turned};
use crate::{
    Config, identity,
    mlx5::eswitch,
    region::Func,
    state::{ARBITRATION, IbPort, PKEYS, PORT_GUIDS, SubnetPortRow},
};
use hwspec::{
    eqe::PortChange,
    layout::{Layout, prefix},
    wire::mad::{
        Mad, Method, Smp,
        smp::{attribute, port_state, *},
        status,
    },
};
use zerocopy::FromZeros;

/// `port_physical_state`: polling, which a manager may request.
const POLLING: u8 = 2;
/// Blocks of the P_Key and GUID tables.
const PKEY_BLOCKS: u32 = (PKEYS / PKEYS_PER_BLOCK) as u32;
const GUID_BLOCKS: u32 = (PORT_GUIDS / GUIDS_PER_BLOCK) as u32;
/// `link_speed_*`: 2.5 Gb/s to 10 Gb/s, and 10 Gb/s alone; in the extended fields 14 and 25 Gb/s, and 25 Gb/s alone.
const SPEEDS: u8 = 7;
const SPEED_QDR: u8 = 4;
const SPEEDS_EXT: u8 = 3;
const SPEED_EDR: u8 = 2;
/// `link_width_supported`: 1x and 4x.
const WIDTHS: u8 = 3;

/// Answers a subnet management packet. `None`: no answer, as to one with a wrong management key.
pub(super) fn answer(func: &mut Func<'_>, config: &Config, request: &Mad, keys_checked: bool) -> Option<Mad> {
    respond(request, &[Method::Get, Method::Set], |packet, id, modifier| {
        let is_set = packet.header().method() == Method::Set;
        // IBTA 14.2.4.1: the key protects changes, and at higher levels reads too.
        let port = func.function().ib;
        let protected = is_set || port.m_key_protect >= 2;
        if !keys_checked && port.m_key != 0 && packet.m_key() != port.m_key && protected {
            let violations = func.function_mut(|f| &mut f.ib.m_key_violations);
            *violations = violations.saturating_add(1);
            return Ok(None);
        }
        let done = if is_set { set(func, config, id, modifier, &packet.data()) } else { Ok(()) };
        let f = func.function();
        let [node_guid, _] = func.region().guids(config, func.fid());
        let seen = Seen { fid: func.fid(), node_guid, ib: &f.ib, up: f.vport_state != 0 };
        let data = seen.get(config, id, modifier).map_err(|other| done.err().unwrap_or(other))?;
        Ok(Some((done.err().unwrap_or(0), data)))
    })
}

/// Answers a packet with one of `methods`: `get` yields the status and the value of an attribute, by number and modifier.
pub(super) fn respond(
    request: &Mad,
    methods: &[Method],
    get: impl FnOnce(&Smp, u16, u32) -> Answer<Option<(u16, [u8; 64])>>,
) -> Option<Mad> {
    mad::answer(request, CLASS_VERSION, |header| {
        if !methods.contains(&header.method()) {
            return Err(status::BAD_METHOD);
        }
        let got = get(&Smp::read(request), header.attribute_id(), header.attribute_modifier())?;
        Ok(got.map(|(status, data)| {
            let mut answer = Smp::from_bytes(turned(request, status));
            answer.set().data(data);
            *answer.as_bytes()
        }))
    })
}

/// `data` of an SMP that begins with `attribute`.
fn block<T: Layout>(attribute: &T) -> [u8; 64] {
    prefix(attribute.bytes())
}

/// A port as its agent reports it.
pub(super) struct Seen<'a> {
    /// Its function.
    pub fid: u8,
    /// GUID of the function as a node.
    pub node_guid: [u8; 8],
    /// The state that managers set.
    pub ib: &'a IbPort,
    /// The link is up.
    pub up: bool,
}

impl Seen<'_> {
    /// Answers a packet of an observer, which may not change anything.
    pub fn answer(&self, config: &Config, request: &Mad) -> Option<Mad> {
        respond(request, &[Method::Get], |packet, id, modifier| {
            let locked = self.ib.m_key != 0 && self.ib.m_key_protect >= 2;
            if locked && packet.m_key() != self.ib.m_key {
                return Ok(None);
            }
            Ok(Some((0, self.get(config, id, modifier)?)))
        })
    }

    fn lid(&self, config: &Config) -> u16 {
        identity::lid(config.node_id, self.fid)
    }

    fn get(&self, config: &Config, id: u16, modifier: u32) -> Answer<[u8; 64]> {
        let port = self.ib;
        // Attributes of a node, unlike those of a port, have no modifier.
        let bad = |bad: bool| if bad { Err(status::BAD_FIELD) } else { Ok(()) };
        match id {
            attribute::NODE_DESCRIPTION => bad(modifier != 0).map(|()| port.node_description),
            attribute::NODE_INFO => {
                let end = SubnetPortRow {
                    guids: [self.node_guid, port.guids[0]],
                    lid: self.lid(config),
                    device_id: config.strict.card.device_id(self.fid),
                    ports: 1,
                    ..SubnetPortRow::new_zeroed()
                };
                bad(modifier != 0).map(|()| block(&end.node_info()))
            }
            attribute::PORT_INFO => {
                bad(modifier & 0x7fff_ffff > 1).map(|()| block(&described(self.lid(config), port, self.up)))
            }
            attribute::GUID_INFO => {
                bad(modifier >= GUID_BLOCKS)?;
                let mut data = [0; 64];
                for (at, guid) in data.chunks_exact_mut(8).zip(&port.guids) {
                    at.copy_from_slice(guid);
                }
                Ok(data)
            }
            attribute::PKEY_TABLE => {
                let first = pkey_block(modifier)?;
                let mut data = [0; 64];
                for (at, pkey) in data.chunks_exact_mut(2).zip(&port.pkeys[first..]) {
                    at.copy_from_slice(&pkey.to_be_bytes());
                }
                Ok(data)
            }
            attribute::SL_TO_VL => Ok(prefix(&port.sl_to_vl)),
            attribute::VL_ARBITRATION => {
                let table = arbitration_table(modifier)?;
                let mut data = [0; 64];
                for (at, entry) in data.chunks_exact_mut(2).zip(&port.arbitration[table]) {
                    at.copy_from_slice(entry);
                }
                Ok(data)
            }
            _ => Err(status::BAD_ATTRIBUTE),
        }
    }
}

fn set(func: &mut Func<'_>, config: &Config, id: u16, modifier: u32, data: &[u8; 64]) -> Answer<()> {
    match id {
        attribute::NODE_DESCRIPTION if modifier == 0 => {
            *func.function_mut(|f| &mut f.ib.node_description) = *data;
        }
        attribute::PORT_INFO if modifier & 0x7fff_ffff <= 1 => {
            return set_port_info(func, config, &PortInfo::read(data));
        }
        attribute::GUID_INFO if modifier < GUID_BLOCKS => {
            let before = func.function().ib.guids;
            let guids = func.function_mut(|f| &mut f.ib.guids);
            // The first is the port's own, which is read-only (IBTA 14.2.5.5).
            for (guid, given) in guids.iter_mut().zip(data.chunks_exact(8)).skip(1) {
                *guid = prefix(given);
            }
            if *guids != before {
                eswitch::port_event(func, PortChange::Guid);
            }
        }
        attribute::PKEY_TABLE => {
            let first = pkey_block(modifier)?;
            let before = func.function().ib.pkeys;
            let pkeys = func.function_mut(|f| &mut f.ib.pkeys);
            for (pkey, given) in pkeys[first..].iter_mut().zip(data.chunks_exact(2)) {
                *pkey = u16::from_be_bytes(prefix(given));
            }
            if *pkeys != before {
                eswitch::port_event(func, PortChange::Pkey);
            }
        }
        attribute::SL_TO_VL => {
            // There is one data lane: every service level is mapped to it or to none.
            let known = data[..8].iter().all(|b| matches!(b >> 4, 0 | 15) && matches!(b & 15, 0 | 15));
            if !known {
                return Err(status::BAD_FIELD);
            }
            *func.function_mut(|f| &mut f.ib.sl_to_vl) = prefix(data);
        }
        attribute::VL_ARBITRATION => {
            let table = arbitration_table(modifier)?;
            let entries = &mut func.function_mut(|f| &mut f.ib.arbitration)[table];
            for (entry, given) in entries.iter_mut().zip(data.chunks_exact(2)) {
                *entry = prefix(given);
            }
        }
        attribute::NODE_DESCRIPTION | attribute::PORT_INFO | attribute::GUID_INFO => {
            return Err(status::BAD_FIELD);
        }
        _ => return Err(status::BAD_ATTRIBUTE),
    }
    Ok(())
}

/// First P_Key of a block; the upper half of the modifier names a switch port and is 0 here.
fn pkey_block(modifier: u32) -> Answer<usize> {
    if modifier < PKEY_BLOCKS { Ok(modifier as usize * PKEYS_PER_BLOCK) } else { Err(status::BAD_FIELD) }
}

/// Index of the table that `modifier` selects: the upper half is 1 for the low priority table, 3 for the high. Each table has one block.
fn arbitration_table(modifier: u32) -> Answer<usize> {
    match modifier >> 16 {
        1 => Ok(0),
        3 => Ok(1),
        _ => Err(status::BAD_FIELD),
    }
}

/// `PortInfo` of a function's port with the values that a manager set. The administrator is that of its adapter.
pub(super) fn described(lid: u16, port: &IbPort, up: bool) -> PortInfo {
    let mut info = link_of(up);
    info.set()
        .m_key(port.m_key)
        .gid_prefix(port.gid_prefix)
        .lid(lid)
        .master_sm_lid(identity::node_of_lid(lid).map_or(0, identity::switch_lid))
        .capability_mask(port.capability_mask)
        .m_key_lease_period(port.m_key_lease)
        .local_port_num(1)
        .m_key_protect_bits(port.m_key_protect)
        .vl_high_limit(port.vl_high_limit)
        .vl_arbitration_high_cap(ARBITRATION as u8)
        .vl_arbitration_low_cap(ARBITRATION as u8)
        .m_key_violations(port.m_key_violations)
        .p_key_violations(port.pkey_violations)
        .q_key_violations(port.qkey_violations)
        .guid_cap(PORT_GUIDS as u8)
        .subnet_timeout(port.subnet_timeout)
        .resp_time_value(mad::RESPONSE_TIME);
    info
}

/// The properties that all ports of the subnet have in common: a 4x EDR link.
pub(super) fn link_of(up: bool) -> PortInfo {
    PortInfo::with(|s| {
        s.link_width_enabled(WIDTHS)
            .link_width_supported(WIDTHS)
            .link_width_active(WIDTH_4X)
            .link_speed_supported(SPEEDS)
            .port_state(if up { port_state::ACTIVE } else { port_state::DOWN })
            .port_physical_state(if up { PHYS_LINK_UP } else { PHYS_DISABLED })
            .link_down_default_state(POLLING)
            .link_speed_active(SPEED_QDR)
            .link_speed_enabled(SPEEDS)
            .neighbor_mtu(MTU_4096)
            .vl_cap(1)
            .mtu_cap(MTU_4096)
            .operational_vls(1)
            .link_speed_ext_active(SPEED_EDR)
            .link_speed_ext_supported(SPEEDS_EXT)
            .link_speed_ext_enabled(SPEEDS_EXT)
    })
}

fn set_port_info(func: &mut Func<'_>, config: &Config, info: &PortInfo) -> Answer<()> {
    // The switch assigns LIDs: a manager can set only the present one, or none.
    let lid = matches!(info.lid(), 0) || info.lid() == identity::lid(config.node_id, func.fid());
    if !lid || info.lmc() != 0 {
        return Err(status::BAD_FIELD);
    }
    let (state, physical) = (info.port_state(), info.port_physical_state());
    if state > port_state::ACTIVE || !matches!(physical, 0 | POLLING | PHYS_DISABLED) {
        return Err(status::BAD_FIELD);
    }
    let mut port = func.function().ib;
    port.m_key = info.m_key();
    port.m_key_protect = info.m_key_protect_bits();
    port.m_key_lease = info.m_key_lease_period();
    port.gid_prefix = info.gid_prefix();
    port.subnet_timeout = info.subnet_timeout();
    port.vl_high_limit = info.vl_high_limit();
    // Violation counters are cleared by writing zero (IBTA 14.2.5.6).
    let cleared = |counter: u16, given: u16| if given == 0 { 0 } else { counter };
    port.m_key_violations = cleared(port.m_key_violations, info.m_key_violations());
    port.pkey_violations = cleared(port.pkey_violations, info.p_key_violations());
    port.qkey_violations = cleared(port.qkey_violations, info.q_key_violations());
    let changed = port.gid_prefix != func.function().ib.gid_prefix;
    *func.function_mut(|f| &mut f.ib) = port;
    if changed {
        eswitch::port_event(func, PortChange::Guid);
    }
    if info.client_reregister() {
        eswitch::port_event(func, PortChange::ClientRereg);
    }
    match (state, physical) {
        (port_state::DOWN, PHYS_DISABLED) => set_link(func, false),
        (port_state::DOWN, POLLING) | (_, POLLING) => set_link(func, true),
        _ => {}
    }
    Ok(())
}

/// The link goes down or comes up.
pub(crate) fn set_link(func: &mut Func<'_>, up: bool) {
    if !up && func.function().vport_state != 0 {
        let downed = func.function_mut(|f| &mut f.ib.link_downed);
        *downed = downed.saturating_add(1);
    }
    eswitch::set_port(func, up);
}
