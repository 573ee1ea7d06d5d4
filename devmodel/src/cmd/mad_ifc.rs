//! `MAD_IFC`: access of the driver to the port's own management agents (PRM: MAD_IFC).

use super::{
    call::Call,
    refusal::{Done, Refused, Syndrome},
};
use crate::{LinkLayer, subnet};
use hwspec::{
    cmd::vport::{MadIfcIn, MadIfcOut},
    layout::prefix,
    wire::mad::MadHeader,
};

/// `op_mod`: the management key is considered valid; the other bit is for the baseboard key.
pub(super) const IGNORE_MKEY: u16 = 1 << 0;
pub(super) const IGNORE_BKEY: u16 = 1 << 1;

pub(super) fn run(call: &mut Call<'_, '_, '_>) -> Done {
    let input: MadIfcIn = call.input()?;
    Syndrome::NotOnThisLink.unless(call.step.config.link_layer == LinkLayer::Infiniband)?;
    Syndrome::Port.unless(input.port() <= 1)?;
    let mad = input.mad();
    let mut out = MadIfcOut::zeroed();
    // A MAD that requires no response, such as a trap repress, gets none.
    if MadHeader::from_bytes(prefix(&mad)).method().answer().is_some() {
        let config = *call.step.config;
        let answer = subnet::local(call.func, &config, &mad, call.op_mod & IGNORE_MKEY != 0);
        out.set().response_mad_packet(answer.ok_or(Refused(Syndrome::ManagementKey))?);
    }
    call.answer(&out)
}
