//! The port: its link state, and the events about it.

use super::event;
use crate::{region::Func, state::EqRow};
use hwspec::eqe::{Eqe, EventType, PortChange, PortEvent};

/// Changes the link state; event queues that subscribe to port events are notified of a change.
pub(crate) fn set_link(func: &mut Func<'_>, up: bool) {
    if func.function().vport_state == u32::from(up) {
        return;
    }
    *func.function_mut(|f| &mut f.vport_state) = up.into();
    port_event(func, if up { PortChange::Active } else { PortChange::Down });
}

/// Sends a port event to every event queue that subscribes to it.
pub(crate) fn port_event(func: &mut Func<'_>, change: PortChange) {
    let bit = 1u64 << EventType::PortChange.raw();
    for eqn in func.live::<EqRow>() {
        if func.row::<EqRow>(eqn).is_some_and(|eq| eq.mask[0] & bit != 0) {
            let mut eqe = Eqe::new(EventType::PortChange, PortEvent::with(|s| s.port_num(1)));
            eqe.set().event_sub_type(change.raw());
            event::push(func, eqn, eqe);
        }
    }
}
