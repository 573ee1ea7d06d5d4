//! Port and device registers read by a driver when it loads, through `ACCESS_REG`.
//!
//! All fields here are in the first dword unless noted otherwise; dwords are big-endian.

use super::{
    call::Call,
    port_counters,
    refusal::{Done, Syndrome},
    registers_infiniband, registers_management, vport,
};
use crate::{LinkLayer, mlx5::eswitch};
use hwspec::{
    cmd::{CmdOut, adapter::*},
    context::port::*,
    eqe::PortChange,
    layout::{Layout, load, prefix, store},
};

/// Register IDs.
const PCAP: u16 = 0x5001;
const PMLP: u16 = 0x5002;
const PAOS: u16 = 0x5006;
const PFCC: u16 = 0x5007;
pub(super) const PPCNT: u16 = 0x5008;
const PVLC: u16 = 0x500f;
const NODE_DESC: u16 = 0x6001;
const HOST_ENDIANNESS: u16 = 0x7004;

/// Ethernet protocols of `PTYS`: 100GBASE-CR4.
const BASE_100G_CR4: u64 = 1 << 20;
/// `admin_status` and `oper_status` of `PAOS`.
const UP: u64 = 1;
const DOWN: u64 = 2;
/// Number of lanes of the port.
const LANES: u8 = 4;

/// Size of a register in bytes.
fn size(id: u16) -> Option<usize> {
    Some(match id {
        PMTU | PVLC | PAOS | HOST_ENDIANNESS => 0x10,
        PCAP => 0x14,
        PFCC => 0x20,
        PTYS | PMLP | NODE_DESC => 0x40,
        PPCNT => 0x100,
        _ => return None,
    })
}

pub(super) fn access(call: &mut Call<'_, '_, '_>) -> Done {
    let input: AccessRegisterIn = call.input()?;
    let id = input.register_id();
    let management = registers_management::size(id);
    if management.is_some() {
        Syndrome::Register.unless(call.func.fid() == 0 && call.op_mod == READ)?;
    }
    let Some(size) = management.or_else(|| size(id)) else { return Syndrome::Register.refuse() };
    let Some(given) = call.input.get(AccessRegisterIn::SIZE..AccessRegisterIn::SIZE + size) else {
        return Syndrome::InputLength.refuse();
    };
    let mut register = given.to_vec();
    // Port registers contain a port number: 0 and 1 are this port.
    if id >> 8 == 0x50 {
        Syndrome::Port.unless(load(&register, 0, 23, 16) <= 1)?;
    }
    let infiniband = call.step.config.link_layer == LinkLayer::Infiniband;
    match (id, call.op_mod) {
        _ if management.is_some() => registers_management::read(call, id, &mut register)?,
        (_, READ) if infiniband && registers_infiniband::read(call, id, &mut register) => {}
        (PMTU | PTYS | PPCNT, WRITE) if infiniband => registers_infiniband::write(id, &register)?,
        // The PF owns the port: a write by a VF's driver is ignored without an error.
        (PAOS | PMTU, WRITE) if call.step.config.strict.owner && call.func.fid() != 0 => {
            read(call, id, &mut register);
        }
        (NODE_DESC, WRITE) => *call.func.function_mut(|f| &mut f.ib.node_description) = prefix(&register),
        // The driver's byte order; the interface is big-endian regardless.
        (HOST_ENDIANNESS, WRITE | READ) => {}
        (PAOS, WRITE) => {
            // Without `ase` the state does not change and only the event is raised.
            if load(&register, 4, 31, 31) != 0 {
                let state = load(&register, 0, 11, 8);
                Syndrome::VportState.unless(state == UP || state == DOWN)?;
                match state == UP && call.func.function().vport_state != 0 {
                    // Raising a port that is already up still raises the event.
                    true => eswitch::port_event(call.func, PortChange::Active),
                    false => eswitch::set_link(call.func, state == UP),
                }
            }
            read(call, id, &mut register);
        }
        (PMTU, WRITE) => {
            let mtu = load(&register, 8, 31, 16) as u16;
            Syndrome::Mtu.unless((68..=vport::MAX_MTU).contains(&mtu))?;
            *call.func.function_mut(|f| &mut f.mtu) = mtu;
        }
        // Flow control is not supported.
        (PFCC, WRITE) => {
            let asked = Pfcc::read(&register);
            let none = !asked.pptx() && !asked.pprx() && asked.pfctx() == 0 && asked.pfcrx() == 0;
            Syndrome::FlowControl.unless(none)?;
        }
        (PPCNT, READ) => port_counters::ppcnt(call.func, &mut register)?,
        (_, READ) => read(call, id, &mut register),
        _ => return Syndrome::Register.refuse(),
    }
    call.answer_list(&CmdOut::zeroed(), register.into_iter().map(|byte| [byte]))
}

fn read(call: &Call<'_, '_, '_>, id: u16, register: &mut [u8]) {
    let f = call.func.function();
    match id {
        PTYS => {
            register[4..].fill(0);
            store(register, 0, 2, 0, PROTO_ETHERNET.into());
            // Capability, administrative, operational.
            [0xc, 0x18, 0x24].iter().for_each(|at| store(register, *at, 31, 0, BASE_100G_CR4));
        }
        PMTU => {
            store(register, 4, 31, 16, vport::MAX_MTU.into());
            store(register, 8, 31, 16, f.mtu.into());
            store(register, 0xc, 31, 16, f.mtu.into());
        }
        PVLC => [4, 8, 0xc].iter().for_each(|at| store(register, *at, 3, 0, 1)),
        PAOS => {
            let state = if f.vport_state != 0 { UP } else { DOWN };
            store(register, 0, 11, 8, state);
            store(register, 0, 3, 0, state);
        }
        PFCC => register[4..].fill(0),
        PCAP => register[4..].fill(0),
        PMLP => {
            register[1..].fill(0);
            store(register, 0, 7, 0, LANES.into());
            // Module 0; lane i of the port is lane i of the module.
            for lane in 0..LANES {
                store(register, 4 + 4 * usize::from(lane), 19, 16, lane.into());
            }
        }
        _ => register.copy_from_slice(&f.ib.node_description),
    }
}
