//! Multicast groups of the subnet: their members and their properties (IBTA 15.2.5.17, o15-0.2.2).

use super::{
    Asked, Subnet,
    mad::{Answer, DEFAULT_PKEY, PACKET_LIFE, RATE_100G},
};
use crate::{
    host::Party,
    identity,
    region::{Func, FunctionSet, Region},
    state::{SUBNET_GROUPS, SubnetGroupRow, SubnetPortRow},
};
use hwspec::{
    layout::Layout,
    wire::{
        lrh::FIRST_MULTICAST_LID,
        mad::{
            sa::{
                McMemberRecord, Selector, join_state,
                member::{
                    FLOW_LABEL, HOP_LIMIT, JOIN_STATE, LIFE_TIME, LIFE_TIME_SELECTOR, MGID, MLID, MTU,
                    MTU_SELECTOR, PKEY, PORT_GID, QKEY, RATE, RATE_SELECTOR, SL, TRAFFIC_CLASS,
                },
                status,
            },
            smp::{MTU_2048, MTU_4096},
        },
    },
};
use std::collections::BTreeSet;

/// Q_Key of the IPoIB broadcast group unless a request chooses one; OpenSM has the same default.
const IPOIB_QKEY: u32 = 0x0b1b;
/// Components of the packet lifetime.
const LIFE: u64 = LIFE_TIME_SELECTOR | LIFE_TIME;
/// The full-member bit of a P_Key; the P_Key of a group has it set.
const FULL_MEMBER: u16 = 0x8000;
/// Signature of IPoIB over IPv4 in an MGID (RFC 4391, 4).
const IPOIB_IPV4: [u8; 2] = [0x40, 0x1b];

/// The group with this GID, and its index.
pub(super) fn by_gid(region: &Region, mgid: &[u8; 16]) -> Option<(u32, SubnetGroupRow)> {
    all(region).find(|(_, row)| row.mgid == *mgid)
}

/// All groups, which the PF keeps.
pub(super) fn all(region: &Region) -> impl Iterator<Item = (u32, SubnetGroupRow)> + '_ {
    region.objects::<SubnetGroupRow>(0)
}

/// The index of the group that a request names.
fn named(region: &Region, asked: &Asked<McMemberRecord>) -> Option<u32> {
    let (index, _) = by_gid(region, &asked.want.mgid()).filter(|_| asked.has(MGID))?;
    Some(index)
}

const _: () = assert!(SUBNET_GROUPS < 0x3fff);

/// Number of groups that a port leaves between two commits.
const CHUNK: usize = 16;
/// Number of groups that one port may keep alive, so that it cannot use up all of them.
const SHARE: usize = SUBNET_GROUPS / 4;

fn bit(fid: u8) -> (usize, u64) {
    (usize::from(fid >> 6) & 1, 1 << (fid & 63))
}

fn has(set: &[u64; 2], fid: u8) -> bool {
    let (word, bit) = bit(fid);
    set[word] & bit != 0
}

/// `join_state` of function `fid` in a group.
fn state_of(row: &SubnetGroupRow, fid: u8) -> u8 {
    let state = |set: &[u64; 2], value: u8| if has(set, fid) { value } else { 0 };
    state(&row.full, join_state::FULL)
        | state(&row.send_only, join_state::SEND_ONLY_FULL)
        | state(&row.non, join_state::NON_MEMBER | join_state::SEND_ONLY_NON_MEMBER)
}

fn put(row: &mut SubnetGroupRow, fid: u8, state: u8) {
    let (word, bit) = bit(fid);
    let put = |set: &mut [u64; 2], on: bool| {
        set[word] = if on { set[word] | bit } else { set[word] & !bit };
    };
    put(&mut row.full, state & join_state::FULL != 0);
    put(&mut row.send_only, state & join_state::SEND_ONLY_FULL != 0);
    put(&mut row.non, state & (join_state::NON_MEMBER | join_state::SEND_ONLY_NON_MEMBER) != 0);
}

/// A group as a record.
fn record(row: &SubnetGroupRow, port_gid: [u8; 16], join_state: u8) -> McMemberRecord {
    McMemberRecord::with(|s| {
        s.mgid(row.mgid)
            .port_gid(port_gid)
            .qkey(row.qkey)
            .mlid(row.mlid)
            .mtu_selector(Selector::Exactly)
            .mtu(row.mtu)
            .traffic_class(row.traffic_class)
            .pkey(row.pkey)
            .rate_selector(Selector::Exactly)
            .rate(row.rate)
            .life_time_selector(Selector::Exactly)
            .life_time(row.life_time)
            .sl(row.sl)
            .flow_label(row.flow_label)
            .hop_limit(row.hop_limit)
            .scope(row.mgid[1] & 15)
            .join_state(join_state)
    })
}

/// The groups that match, without their members: only the administrator's own port may see those (IBTA 15.4.1.2).
pub(super) fn query(region: &Region, asked: &Asked<McMemberRecord>) -> Vec<Vec<u8>> {
    let matching = all(region).filter(|(_, row)| {
        (!asked.has(MGID) || row.mgid == asked.want.mgid())
            && (!asked.has(MLID) || row.mlid == asked.want.mlid())
            && fits(row, asked)
    });
    matching.map(|(_, row)| record(&row, [0; 16], 0).bytes().to_vec()).collect()
}

/// True if the group has the requested properties.
fn fits(row: &SubnetGroupRow, asked: &Asked<McMemberRecord>) -> bool {
    let want = &asked.want;
    let is = |bit: u64, same: bool| !asked.has(bit) || same;
    is(QKEY, row.qkey == want.qkey())
        && is(PKEY, row.pkey & 0x7fff == want.pkey() & 0x7fff)
        && is(TRAFFIC_CLASS, row.traffic_class == want.traffic_class())
        && is(SL, row.sl == want.sl())
        && is(FLOW_LABEL, row.flow_label == want.flow_label())
        && is(HOP_LIMIT, row.hop_limit == want.hop_limit())
        && asked.selects(MTU_SELECTOR | MTU, (want.mtu_selector(), want.mtu()), row.mtu)
        && asked.selects(RATE_SELECTOR | RATE, (want.rate_selector(), want.rate()), row.rate)
        && asked.selects(LIFE, (want.life_time_selector(), want.life_time()), row.life_time)
}

/// The function that makes the request: the request names its GID and came from its LID. Ports of other adapters use the administrator
/// there.
fn member(subnet: Subnet<'_>, asked: &Asked<McMemberRecord>) -> Answer<(u8, SubnetPortRow)> {
    if !asked.has(PORT_GID) || !asked.has(JOIN_STATE) {
        return Err(status::INSUFFICIENT_COMPONENTS);
    }
    let end = subnet.by_gid(&asked.want.port_gid()).filter(|end| end.lid == asked.from);
    let end = end.ok_or(status::INVALID_GID)?;
    let fid = identity::fid_of_lid(subnet.config.node_id, end.lid).ok_or(status::INVALID_GID)?;
    Ok((fid, end))
}

/// Adds a port to a group. Creates the group if the request has all properties that it needs.
pub(super) fn join(
    func: &mut Func<'_>,
    subnet: Subnet<'_>,
    asked: &Asked<McMemberRecord>,
) -> Answer<McMemberRecord> {
    let (fid, end) = member(subnet, asked)?;
    let wanted = asked.want.join_state() & 15;
    if wanted == 0 {
        return Err(status::REQ_INVALID);
    }
    let index = match named(subnet.region, asked) {
        Some(index) => {
            let row = func.row::<SubnetGroupRow>(index).ok_or(status::NO_RESOURCES)?;
            if !fits(row, asked) || !end.is_member(row.pkey) {
                return Err(status::REQ_INVALID);
            }
            index
        }
        None => {
            let all = func.live::<SubnetGroupRow>();
            let kept = all.iter().filter_map(|i| func.row::<SubnetGroupRow>(*i));
            if kept.filter(|row| state_of(row, fid) != 0).count() >= SHARE {
                return Err(status::NO_RESOURCES);
            }
            create(func, &end, asked, wanted)?
        }
    };
    let row = func.row_mut::<SubnetGroupRow>(index).ok_or(status::NO_RESOURCES)?;
    let state = state_of(row, fid) | wanted;
    put(row, fid, state);
    let row = *row;
    Ok(record(&row, end.gid(), state_of(&row, fid)))
}

/// Creates a group. The first member must keep it alive (IBTA o15-0.2.4), and its request must have all properties of the group. Only for
/// IPoIB's broadcast group they are optional, as if the administrator had created it.
fn create(func: &mut Func<'_>, by: &SubnetPortRow, asked: &Asked<McMemberRecord>, state: u8) -> Answer<u32> {
    let want = &asked.want;
    let needed = QKEY | PKEY | SL | FLOW_LABEL | TRAFFIC_CLASS;
    let mgid = want.mgid();
    let broadcast = is_ipoib_broadcast(&mgid);
    if asked.mask & needed != needed && !broadcast {
        return Err(status::INSUFFICIENT_COMPONENTS);
    }
    if !asked.has(MGID) || mgid == [0; 16] || mgid[0] != 0xff {
        return Err(status::REQ_INVALID);
    }
    let pkey = if asked.has(PKEY) { want.pkey() | FULL_MEMBER } else { DEFAULT_PKEY };
    let foreign = !by.is_member(pkey);
    if state & (join_state::FULL | join_state::SEND_ONLY_FULL) == 0 || foreign {
        return Err(status::REQ_INVALID);
    }
    let (mtu, rate) = ((want.mtu_selector(), want.mtu()), (want.rate_selector(), want.rate()));
    let mtu = choose(asked, MTU_SELECTOR | MTU, mtu, 1..=MTU_4096, MTU_2048)?;
    let rate = choose(asked, RATE_SELECTOR | RATE, rate, 2..=RATE_100G, RATE_100G)?;
    let time = (want.life_time_selector(), want.life_time());
    let life_time = choose(asked, LIFE, time, 0..=31, PACKET_LIFE)?;
    let all = func.live::<SubnetGroupRow>();
    let taken: BTreeSet<u16> =
        all.iter().filter_map(|i| Some(func.row::<SubnetGroupRow>(*i)?.mlid)).collect();
    let index = func.alloc::<SubnetGroupRow>(0, Party(0)).map_err(|_| status::NO_RESOURCES)?;
    // An MLID is reused as late as a row's number, unless a group of another adapter has it.
    let mut mlids =
        (0..SUBNET_GROUPS).map(|i| FIRST_MULTICAST_LID + ((index as usize + i) % SUBNET_GROUPS) as u16);
    let mlid = mlids.find(|mlid| !taken.contains(mlid)).unwrap_or(FIRST_MULTICAST_LID);
    if let Some(row) = func.row_mut::<SubnetGroupRow>(index) {
        (row.mgid, row.mlid) = (mgid, mlid);
        row.qkey = if asked.has(QKEY) { want.qkey() } else { IPOIB_QKEY };
        row.pkey = pkey;
        (row.mtu, row.rate, row.life_time) = (mtu, rate, life_time);
        row.sl = if asked.has(SL) { want.sl() } else { 0 };
        row.flow_label = if asked.has(FLOW_LABEL) { want.flow_label() } else { 0 };
        row.traffic_class = if asked.has(TRAFFIC_CLASS) { want.traffic_class() } else { 0 };
        row.hop_limit = if asked.has(HOP_LIMIT) { want.hop_limit() } else { 0 };
    }
    Ok(index)
}

/// RFC 4391, 4: scope, the IPv4 signature, a P_Key, and ones.
fn is_ipoib_broadcast(mgid: &[u8; 16]) -> bool {
    mgid[0] == 0xff && mgid[2..4] == IPOIB_IPV4 && mgid[6..12] == [0; 6] && mgid[12..] == [0xff; 4]
}

/// The value that the request allows and that is nearest to the usual one.
fn choose(
    asked: &Asked<McMemberRecord>,
    bits: u64,
    want: (Selector, u8),
    range: std::ops::RangeInclusive<u8>,
    usual: u8,
) -> Answer<u8> {
    let mut allowed: Vec<u8> = range.filter(|v| asked.selects(bits, want, *v)).collect();
    allowed.sort_by_key(|v| v.abs_diff(usual));
    allowed.first().copied().ok_or(status::REQ_INVALID)
}

/// Removes a port from a group, in the roles that the request names. A group ends with the last member that keeps it alive.
pub(super) fn leave(
    func: &mut Func<'_>,
    subnet: Subnet<'_>,
    asked: &Asked<McMemberRecord>,
) -> Answer<McMemberRecord> {
    let (fid, end) = member(subnet, asked)?;
    let index = named(subnet.region, asked).ok_or(status::REQ_INVALID)?;
    let row = func.row_mut::<SubnetGroupRow>(index).ok_or(status::REQ_INVALID)?;
    let left = asked.want.join_state() & state_of(row, fid);
    if left == 0 {
        return Err(status::REQ_INVALID);
    }
    let state = state_of(row, fid) & !left;
    put(row, fid, state);
    let row = *row;
    end_if_empty(func, index);
    Ok(record(&row, end.gid(), state_of(&row, fid)))
}

/// True if ports of this adapter keep a group alive.
pub(super) fn has_members(row: &SubnetGroupRow) -> bool {
    (row.full, row.send_only) != ([0; 2], [0; 2])
}

/// The functions that are in a group in any role.
pub(super) fn members(row: &SubnetGroupRow) -> FunctionSet {
    let set = |[low, high]: [u64; 2]| FunctionSet::from(high) << 64 | FunctionSet::from(low);
    set(row.full) | set(row.send_only) | set(row.non)
}

pub(super) fn end_if_empty(func: &mut Func<'_>, index: u32) {
    let kept = |row: &SubnetGroupRow| has_members(row) || row.elsewhere != 0;
    if !func.row::<SubnetGroupRow>(index).is_some_and(kept) {
        func.free::<SubnetGroupRow>(index);
    }
}

/// True if the port of `fid` is in a multicast group. Reads the PF's records without its lock.
pub(crate) fn is_in_a_group(region: &Region, fid: u8) -> bool {
    region.objects::<SubnetGroupRow>(0).any(|(_, row)| state_of(&row, fid) != 0)
}

/// Removes the port of `fid`, which left the subnet, from up to `CHUNK` groups. True if there are more. `func` is the PF.
pub(crate) fn group_port_gone(func: &mut Func<'_>, fid: u8) -> bool {
    let mut all = func.live::<SubnetGroupRow>();
    all.retain(|i| func.row::<SubnetGroupRow>(*i).is_some_and(|row| state_of(row, fid) != 0));
    for index in all.iter().take(CHUNK) {
        if let Some(row) = func.row_mut::<SubnetGroupRow>(*index) {
            put(row, fid, 0);
        }
        end_if_empty(func, *index);
    }
    all.len() > CHUNK
}
