//! Checks made only by an adapter that is as strict as a card ([`Strict`](crate::strict::Strict)).

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::state::EqRow;
use hwspec::{context::caps::HcaCap, decode::command, eqe::EventType};

/// Tells if a capability page offers a feature.
type Offers = fn(&HcaCap) -> bool;

/// Events offered by the general page (Linux: gather_async_events_mask).
const OFFERED: &[(EventType, Offers)] = &[
    (EventType::NicVportChange, |c| c.vport_group_manager()),
    (EventType::VhcaStateChange, |c| c.vhca_state()),
    (EventType::PortModuleEvent, |c| c.port_module_event()),
    (EventType::TempWarnEvent, |c| c.temp_warn_event()),
    (EventType::DctDrained, |c| c.dct()),
    (EventType::FpgaError, |c| c.fpga()),
    (EventType::FpgaQpError, |c| c.fpga()),
    (EventType::GeneralEvent, |c| c.general_notification_event()),
    (EventType::MonitorCounter, |c| c.max_num_of_monitor_counters() != 0),
    (EventType::PpsEvent, |c| c.pps()),
];

const fn bit(event: EventType) -> u64 {
    1 << event.raw()
}

/// Checks the input against the tables: bits outside of all fields must be zero.
pub(super) fn reserved(call: &Call<'_, '_, '_>) -> Done {
    let found = command::input(call.input).reserved(call.input);
    if let Some((at, bits)) = found {
        tracing::debug!(op = ?call.opcode, at, bits = format_args!("{bits:#x}"), "reserved bits are set");
    }
    Syndrome::Reserved.unless(found.is_none())
}

/// Checks the events of a new event queue against the general capability page and against other queues.
pub(super) fn events(call: &Call<'_, '_, '_>, caps: &HcaCap, mask: [u64; 4]) -> Done {
    let of_all = EventType::OF_ALL.iter().chain(&[EventType::Cmd, EventType::PageRequest]);
    let always = of_all.fold(0, |bits, event| bits | bit(*event));
    let offered =
        OFFERED.iter().filter(|(_, offers)| offers(caps)).fold(always, |bits, (e, _)| bits | bit(*e));
    Syndrome::EventMask.unless(mask[0] & !offered == 0 && mask[1..] == [0; 3])?;
    // rdma-core's VFIO driver maps commands and pages to one queue, Linux maps each to its own.
    let (pages, alone) = (bit(EventType::PageRequest), bit(EventType::PageRequest) | bit(EventType::Cmd));
    Syndrome::EventOfPages.unless(mask[0] & pages == 0 || mask[0] & !alone == 0)?;
    let taken = call.func.objects::<EqRow>().fold(0, |bits, (_, row)| bits | row.mask[0]);
    Syndrome::EventMapped.unless(mask[0] & taken == 0)
}
