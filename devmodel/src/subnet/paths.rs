//! Paths between ports (IBTA 15.2.5.16): all alike, one hop through the switch.

use super::{
    groups,
    mad::{Answer, LIFE_TIME, RATE_100G},
    partitions,
    records::{self, End},
};
use crate::{Config, region::Region};
use hwspec::{
    layout::Layout,
    wire::mad::{
        sa::{
            PathRecord, Selector,
            path::{
                DGID, DLID, FLOW_LABEL, HOP_LIMIT, LIFE_TIME_SELECTOR, MTU, MTU_SELECTOR, PKEY, QOS_CLASS,
                RATE, RATE_SELECTOR, SERVICE_ID, SGID, SL, SLID, TRAFFIC_CLASS,
            },
            status,
        },
        smp::MTU_4096,
    },
};

/// True if a value of `have` is what `selector` and `want` ask for, if the mask has both bits.
pub(super) fn selected(mask: u64, bits: u64, selector: Selector, want: u8, have: u8) -> bool {
    if mask & bits != bits {
        return true;
    }
    match selector {
        Selector::Greater => have > want,
        Selector::Less => have < want,
        Selector::Exactly => have == want,
        _ => true,
    }
}

/// `PathRecord`s that match, for a requester with LID `from`.
pub(super) fn find(
    region: &Region,
    config: &Config,
    from: u16,
    mask: u64,
    want: &PathRecord,
) -> Answer<Vec<Vec<u8>>> {
    let has = |bit: u64| mask & bit != 0;
    let pkey = has(PKEY).then(|| want.pkey());
    let mtu = selected(mask, MTU_SELECTOR | MTU, want.mtu_selector(), want.mtu(), MTU_4096);
    let rate = selected(mask, RATE_SELECTOR | RATE, want.rate_selector(), want.rate(), RATE_100G);
    let time = (want.life_time_selector(), want.life_time());
    let time = selected(mask, LIFE_TIME_SELECTOR | LIFE, time.0, time.1, LIFE_TIME);
    if !(mtu && rate && time) {
        return Ok(Vec::new());
    }
    let source = match (has(SGID), has(SLID)) {
        (true, _) => records::by_gid(region, config, &want.sgid()),
        (_, true) => records::by_lid(region, config, want.slid()),
        _ => records::by_lid(region, config, from),
    };
    // IBTA 15.2.5.16: a source that does not exist has no paths.
    let Some(source) = source.filter(|end| !has(SLID) || end.lid == want.slid()) else {
        return Ok(Vec::new());
    };
    if has(DGID) && want.dgid()[0] == 0xff {
        let group = groups::by_gid(region, &want.dgid()).filter(|(_, group)| {
            pkey.is_none_or(|pkey| pkey & 0x7fff == group.pkey & 0x7fff)
                && partitions::is_member(region, &source, group.pkey)
        });
        let path = group.map(|(mlid, group)| {
            let mut record = between(&source, (mlid, want.dgid()), group.pkey, mask, want);
            record.set().mtu(group.mtu).rate(group.rate).life_time(group.life_time);
            record.set().sl(group.sl).flow_label(group.flow_label).traffic_class(group.traffic_class);
            record.set().hop_limit(group.hop_limit);
            record.bytes().to_vec()
        });
        return Ok(path.into_iter().collect());
    }
    if !has(DGID) && !has(DLID) && !has(SGID) && !has(SLID) {
        return Err(status::INSUFFICIENT_COMPONENTS);
    }
    let destinations = records::ends(region, config)
        .into_iter()
        .filter(|end| (!has(DGID) || end.gid() == want.dgid()) && (!has(DLID) || end.lid == want.dlid()));
    let records = destinations.filter_map(|to| {
        let pkey = partitions::between(region, &source, &to, pkey)?;
        Some(between(&source, (to.lid, to.gid()), pkey, mask, want).bytes().to_vec())
    });
    Ok(records.collect())
}

/// Component of the packet lifetime.
const LIFE: u64 = hwspec::wire::mad::sa::path::LIFE_TIME;

fn between(
    source: &End,
    (dlid, dgid): (u16, [u8; 16]),
    pkey: u16,
    mask: u64,
    want: &PathRecord,
) -> PathRecord {
    // Components that the fabric does not care about are as the requester wants them.
    let given = |bit: u64, value: u32| if mask & bit != 0 { value } else { 0 };
    PathRecord::with(|s| {
        s.service_id(if mask & SERVICE_ID != 0 { want.service_id() } else { 0 })
            .dgid(dgid)
            .sgid(source.gid())
            .dlid(dlid)
            .slid(source.lid)
            .flow_label(given(FLOW_LABEL, want.flow_label()))
            .hop_limit(given(HOP_LIMIT, want.hop_limit().into()) as u8)
            .traffic_class(given(TRAFFIC_CLASS, want.traffic_class().into()) as u8)
            .reversible(true)
            .pkey(pkey)
            .qos_class(given(QOS_CLASS, want.qos_class().into()) as u16)
            .sl(given(SL, want.sl().into()) as u8)
            .mtu_selector(Selector::Exactly)
            .mtu(MTU_4096)
            .rate_selector(Selector::Exactly)
            .rate(RATE_100G)
            .life_time_selector(Selector::Exactly)
            .life_time(LIFE_TIME)
    })
}
