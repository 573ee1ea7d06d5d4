//! Multicast groups: attachment of datagram QPs to a group's GID (IBTA 10.5).

use super::{
    call::Call,
    refusal::{Done, Syndrome},
    vport::MAPPED,
};
use crate::{
    region::{Func, GROUP_QP},
    state::{GroupRow, QpRow},
};
use hwspec::{cmd::mcg::*, context::ServiceType};

/// First byte of every multicast GID (IBTA 4.1.1).
const MULTICAST: u8 = 0xff;

/// Maximum number of groups of a QP: its memberships end together with it.
const MAX_PER_QP: usize = 64;

/// True if the GID is a multicast address: IPv6, or IPv4 in mapped form.
fn is_group(gid: [u8; 16]) -> bool {
    gid[0] == MULTICAST || gid[..12] == MAPPED && gid[12] >> 4 == 0xe
}

pub(super) fn attach(call: &mut Call<'_, '_, '_>) -> Done {
    let input: AttachToMcgIn = call.input()?;
    let gid = input.multicast_gid();
    let qp = call.named::<QpRow>()?;
    Syndrome::ServiceType.unless(call.row::<QpRow>(qp)?.service == ServiceType::Ud.raw())?;
    Syndrome::GroupGid.unless(is_group(gid))?;
    if call.func.which::<GroupRow>(|row| row.qp == qp && row.gid == gid).is_empty() {
        let joined = call.func.which::<GroupRow>(|row| row.qp == qp).len();
        let members = call.func.which::<GroupRow>(|row| row.gid == gid).len();
        Syndrome::TableFull.unless(joined < MAX_PER_QP && members < GroupRow::MAX_MEMBERS)?;
        call.make::<GroupRow>(|row| (row.gid, row.qp) = (gid, qp))?;
    }
    tell_switch(call.func);
    Ok(())
}

pub(super) fn detach(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DetachFromMcgIn = call.input()?;
    let gid = input.multicast_gid();
    let qp = call.named::<QpRow>()?;
    let rows = call.func.which::<GroupRow>(|row| row.qp == qp && row.gid == gid);
    Syndrome::NotInGroup.unless(!rows.is_empty())?;
    rows.iter().for_each(|index| call.func.free::<GroupRow>(*index));
    tell_switch(call.func);
    Ok(())
}

/// Ends all memberships of a QP.
pub(super) fn leave_all(func: &mut Func<'_>, qp: u32) {
    if func.used::<GroupRow>() == 0 {
        return;
    }
    func.which::<GroupRow>(|row| row.qp == qp).iter().for_each(|index| func.free::<GroupRow>(*index));
    tell_switch(func);
}

/// Ends a membership.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    func.free::<GroupRow>(index);
    tell_switch(func);
}

/// Has the switch deliver multicast frames to this function as long as it has members.
fn tell_switch(func: &mut Func<'_>) {
    let any = func.used::<GroupRow>() != 0;
    func.takes_frames(GROUP_QP, any);
}
