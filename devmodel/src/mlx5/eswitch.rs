//! Propagation of the e-switch manager's settings to ports, and of port changes to the manager.
//!
//! No function waits for another's lock: the manager's settings are in its own rows, which all functions may read, and a note in
//! a function's receive ring tells it of a change.

use super::{event, port};
use crate::{
    LinkLayer,
    config::Config,
    identity,
    region::{Func, GROUP_ADDRESSES, GROUP_STRANGERS},
    state::{EqRow, FunctionRow, VportRow},
    subnet,
};
use hwspec::eqe::{Eqe, EventType, VportEvent};

/// `FunctionRow::vport_admin_state`, and `VportRow::admin_state` less one: down.
const DOWN: u32 = 0;

/// Handles a note about vport `vport`, received by its function or by the manager.
pub(crate) fn noted(func: &mut Func<'_>, config: &Config, vport: u8) {
    if vport == func.fid() {
        take_over(func, config);
    } else if func.fid() == 0 {
        context_changed(func, vport);
    }
}

/// Applies the manager's settings of the function's port.
pub(crate) fn take_over(func: &mut Func<'_>, config: &Config) {
    let set = func.region().vport(func.fid());
    if set.mac != [0; 6] && func.function().mac != set.mac {
        *func.function_mut(|f| &mut f.mac) = set.mac;
        takes(func, config);
    }
    let [_, guid] = func.region().guids(config, func.fid());
    if func.function().ib.guids[0] != guid {
        func.function_mut(|f| &mut f.ib.guids)[0] = guid;
    }
    if set.admin_state != 0 {
        let up = func.function().vport_admin_state != DOWN;
        match config.link_layer {
            LinkLayer::Ethernet => set_link(func, up),
            LinkLayer::Infiniband => subnet::set_link(func, up && !is_held_down(func)),
        }
    }
}

/// True if the manager keeps the link of the function's port down.
pub(crate) fn is_held_down(func: &Func<'_>) -> bool {
    func.region().vport(func.fid()).admin_state == DOWN + 1
}

/// Raises the link, unless the manager holds it down, or takes it down.
pub(crate) fn set_link(func: &mut Func<'_>, up: bool) {
    port::set_link(func, up && !is_held_down(func));
}

/// Reports a change of the context of `vport` to the manager, or remembers it until the manager asks again.
pub(crate) fn context_changed(func: &mut Func<'_>, vport: u8) {
    let Ok(row) = func.row_at::<VportRow>(vport.into()) else { return };
    if row.events & VportRow::ARMED == 0 {
        row.events |= VportRow::MISSED;
        return;
    }
    row.events &= !VportRow::ARMED;
    let bit = 1u64 << EventType::NicVportChange.raw();
    for eqn in func.live::<EqRow>() {
        if func.row::<EqRow>(eqn).is_some_and(|eq| eq.mask[0] & bit != 0) {
            let data = VportEvent::with(|s| s.vport_num(vport.into()));
            event::push(func, eqn, Eqe::new(EventType::NicVportChange, data));
        }
    }
}

/// Tells the switch if the function accepts frames to addresses other than its initial one.
pub(crate) fn takes(func: &Func<'_>, config: &Config) {
    let f = func.function();
    let born = identity::mac(config.node_id, func.fid());
    let strange = |entry: &u64| entry.to_be_bytes()[2..] != born;
    let strangers = f.promiscuous & (FunctionRow::ALL_UNICAST | FunctionRow::ALL) != 0;
    let addresses = f.mac != born || f.unicast().iter().any(strange);
    func.takes_frames(GROUP_STRANGERS, strangers);
    func.takes_frames(GROUP_ADDRESSES, addresses);
    func.region().switch_changed();
}
