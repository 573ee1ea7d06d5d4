//! Multicast groups: attachment of datagram QPs to a group's GID (IBTA 10.5).

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{
    region::{Func, GROUP_QP},
    state::{GroupRow, QpRow},
};
use hwspec::{
    cmd::{CmdOut, mcg::*},
    context::ServiceType,
};

/// First byte of every multicast GID (IBTA 4.1.1).
const MULTICAST: u8 = 0xff;
/// Prefix `::ffff:0:0/96` of an IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Maximum number of groups of a QP: its memberships end together with it.
const MAX_PER_QP: usize = 64;

/// Number of the function's QPs in group `gid`.
fn members(func: &Func<'_>, gid: [u8; 16]) -> usize {
    let is_this = |i: &u32| func.row::<GroupRow>(*i).is_some_and(|row| row.gid == gid);
    func.live::<GroupRow>().iter().filter(|i| is_this(i)).count()
}

/// True if the GID is a multicast address: IPv6, or IPv4 in mapped form.
fn is_group(gid: [u8; 16]) -> bool {
    gid[0] == MULTICAST || gid[..12] == MAPPED && gid[12] >> 4 == 0xe
}

/// Rows of the memberships of QP index `qp` that match `pick`.
fn memberships(func: &Func<'_>, qp: u32, pick: impl Fn(&GroupRow) -> bool) -> Vec<u32> {
    let mut rows = func.live::<GroupRow>();
    rows.retain(|i| func.row::<GroupRow>(*i).is_some_and(|row| row.qp == qp && pick(row)));
    rows
}

pub(super) fn attach(call: &mut Call<'_, '_, '_>) -> Done {
    let input: AttachToMcgIn = call.input()?;
    let gid = input.multicast_gid();
    let qp = call.own::<QpRow>(input.qpn(), Syndrome::NoSuchQp)?;
    let datagrams = call.func.row::<QpRow>(qp).is_some_and(|row| row.service == ServiceType::Ud.raw());
    Syndrome::ServiceType.unless(datagrams)?;
    Syndrome::GroupGid.unless(is_group(gid))?;
    let joined = memberships(call.func, qp, |_| true);
    let is_this = |i: &u32| call.func.row::<GroupRow>(*i).is_some_and(|row| row.gid == gid);
    if !joined.iter().any(is_this) {
        Syndrome::TableFull
            .unless(joined.len() < MAX_PER_QP && members(call.func, gid) < GroupRow::MAX_MEMBERS)?;
        let index = call.alloc::<GroupRow>(0)?;
        if let Some(row) = call.func.row_mut::<GroupRow>(index) {
            (row.gid, row.qp) = (gid, qp);
        }
    }
    tell_switch(call.func);
    call.answer(&CmdOut::zeroed())
}

pub(super) fn detach(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DetachFromMcgIn = call.input()?;
    let gid = input.multicast_gid();
    let qp = call.own::<QpRow>(input.qpn(), Syndrome::NoSuchQp)?;
    let rows = memberships(call.func, qp, |row| row.gid == gid);
    Syndrome::NotInGroup.unless(!rows.is_empty())?;
    rows.iter().for_each(|index| call.func.free::<GroupRow>(*index));
    tell_switch(call.func);
    call.answer(&CmdOut::zeroed())
}

/// Ends all memberships of a QP.
pub(super) fn leave_all(func: &mut Func<'_>, qp: u32) {
    if func.used::<GroupRow>() == 0 {
        return;
    }
    memberships(func, qp, |_| true).iter().for_each(|index| func.free::<GroupRow>(*index));
    tell_switch(func);
}

/// Has the switch deliver multicast frames to this function as long as it has members.
fn tell_switch(func: &mut Func<'_>) {
    let any = func.used::<GroupRow>() != 0;
    func.takes_frames(GROUP_QP, any);
}
