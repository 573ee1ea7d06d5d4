//! Port registers with different contents on InfiniBand.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
    registers::PPCNT,
};
use crate::subnet;
use hwspec::{context::port::*, layout::Layout, wire::mad::pma::PortCounters};

/// `ib_proto_*`: SDR to EDR, and EDR alone.
const SPEEDS: u16 = 0x3f;
const EDR: u16 = 1 << 5;
/// `ib_link_width_*`: 1x and 4x, and 4x alone.
const WIDTHS: u16 = 1 << 0 | WIDTH_4X;
const WIDTH_4X: u16 = 1 << 2;
/// Path MTUs of the port, in bytes.
const MTU: u16 = 4096;
/// `grp` of `PPCNT`: `PortCounters` without their first word.
const PORT_COUNTERS: u8 = 0x20;

/// Reads register `id` into `register`. False if the register is the same on all links.
pub(super) fn read(call: &Call<'_, '_, '_>, id: u16, register: &mut [u8]) -> bool {
    match id {
        PTYS => {
            let mut ptys = Ptys::zeroed();
            ptys.set().local_port(Ptys::read(register).local_port()).proto_mask(PROTO_INFINIBAND);
            ptys.set().ib_link_width_capability(WIDTHS).ib_proto_capability(SPEEDS);
            ptys.set().ib_link_width_admin(WIDTHS).ib_proto_admin(SPEEDS);
            ptys.set().ib_link_width_oper(WIDTH_4X).ib_proto_oper(EDR);
            put(register, &ptys);
        }
        PMTU => {
            let mut pmtu = Pmtu::read(register);
            pmtu.set().max_mtu(MTU).admin_mtu(MTU).oper_mtu(MTU);
            put(register, &pmtu);
        }
        PPCNT => {
            let mut ppcnt = Ppcnt::read(register);
            let mut counters = [0; 0xf8];
            if ppcnt.grp() == PORT_COUNTERS {
                let all = subnet::port_counters(call.func);
                counters[..PortCounters::SIZE - 4].copy_from_slice(&all.as_bytes()[4..]);
            }
            ppcnt.set().counter_set(counters);
            put(register, &ppcnt);
        }
        _ => return false,
    }
    true
}

/// Writes register `id`; the other registers above follow from the link.
pub(super) fn write(id: u16, register: &[u8]) -> Done {
    match id {
        PMTU => Syndrome::Mtu.unless(Pmtu::read(register).admin_mtu() == MTU),
        _ => Syndrome::Register.refuse(),
    }
}

fn put<T: Layout>(register: &mut [u8], value: &T) {
    if let Some(at) = register.get_mut(..T::SIZE) {
        at.copy_from_slice(value.bytes());
    }
}
