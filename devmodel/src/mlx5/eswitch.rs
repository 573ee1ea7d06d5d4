//! The port: its link state, the e-switch manager's settings of it, and the report of changes to the manager.
//!
//! No function waits for another's lock: the manager's settings are in its own rows, which all functions may read, and a note in
//! a function's receive ring tells it of a change.

use super::event;
use crate::{
    LinkLayer,
    config::Config,
    identity,
    region::{Func, GROUP_ADDRESSES, GROUP_STRANGERS},
    state::{FunctionRow, VportRow},
    subnet,
};
use hwspec::eqe::{Eqe, EventType, PortChange, PortEvent, VportEvent};

/// `FunctionRow::vport_admin_state`, and `VportRow::admin_state` less one: down.
const DOWN: u32 = 0;

/// Handles a note: vport `vport` changed (its function and the manager get these), or groups of the function did.
pub(crate) fn noted(func: &mut Func<'_>, config: &Config, vport: u8) {
    if vport == subnet::REREGISTER {
        port_event(func, PortChange::ClientRereg);
    } else if vport == func.fid() {
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

/// Takes the link up or down. The manager may hold it down.
pub(crate) fn set_link(func: &mut Func<'_>, up: bool) {
    set_port(func, up && !is_held_down(func));
}

/// Changes the link state; event queues that subscribe to port events are notified of a change.
pub(crate) fn set_port(func: &mut Func<'_>, up: bool) {
    if func.function().vport_state == u32::from(up) {
        return;
    }
    *func.function_mut(|f| &mut f.vport_state) = up.into();
    port_event(func, if up { PortChange::Active } else { PortChange::Down });
}

/// Sends a port event to every event queue that subscribes to it.
pub(crate) fn port_event(func: &mut Func<'_>, change: PortChange) {
    let mut eqe = Eqe::new(EventType::PortChange, PortEvent::with(|s| s.port_num(1)));
    eqe.set().event_sub_type(change.raw());
    event::broadcast(func, eqe);
}

/// Reports a change of the context of `vport` to the manager, or remembers it until the manager asks again.
pub(crate) fn context_changed(func: &mut Func<'_>, vport: u8) {
    let Ok(row) = func.row_at::<VportRow>(vport.into()) else { return };
    if row.events & VportRow::ARMED == 0 {
        row.events |= VportRow::MISSED;
        return;
    }
    row.events &= !VportRow::ARMED;
    let data = VportEvent::with(|s| s.vport_num(vport.into()));
    event::broadcast(func, Eqe::new(EventType::NicVportChange, data));
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
