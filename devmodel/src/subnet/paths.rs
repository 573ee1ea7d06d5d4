//! Paths between ports (IBTA 15.2.5.16): all have one hop, through the switch, and the same properties.

use super::{
    Asked, Subnet, groups,
    mad::{Answer, PACKET_LIFE, RATE_100G},
};
use crate::state::SubnetPortRow;
use hwspec::{
    layout::Layout,
    wire::mad::{
        sa::{
            PathRecord, Selector,
            path::{
                DGID, DLID, FLOW_LABEL, HOP_LIMIT, LIFE_TIME, LIFE_TIME_SELECTOR, MTU, MTU_SELECTOR, PKEY,
                QOS_CLASS, RATE, RATE_SELECTOR, SERVICE_ID, SGID, SL, SLID, TRAFFIC_CLASS,
            },
            status,
        },
        smp::MTU_4096,
    },
};

impl<T: Layout> Asked<T> {
    /// True if the value `have` matches `selector` and `want`, or if the mask lacks one of `bits`.
    pub fn selects(&self, bits: u64, (selector, want): (Selector, u8), have: u8) -> bool {
        if self.mask & bits != bits {
            return true;
        }
        match selector {
            Selector::Greater => have > want,
            Selector::Less => have < want,
            Selector::Exactly => have == want,
            _ => true,
        }
    }
}

impl Subnet<'_> {
    /// The matching `PathRecord`s. A query must name at least one end, unless it asks for a `table`, which may list the paths between all
    /// ports.
    pub fn paths(&self, table: bool, asked: &Asked<PathRecord>) -> Answer<Vec<Vec<u8>>> {
        let (has, want) = (|bits| asked.has(bits), &asked.want);
        let pkey = has(PKEY).then(|| want.pkey());
        let names_an_end = has(DGID | DLID | SGID | SLID);
        if !names_an_end && !table {
            return Err(status::INSUFFICIENT_COMPONENTS);
        }
        let fits = asked.selects(MTU_SELECTOR | MTU, (want.mtu_selector(), want.mtu()), MTU_4096)
            && asked.selects(RATE_SELECTOR | RATE, (want.rate_selector(), want.rate()), RATE_100G)
            && asked.selects(
                LIFE_TIME_SELECTOR | LIFE_TIME,
                (want.life_time_selector(), want.life_time()),
                PACKET_LIFE,
            );
        if !names_an_end && fits {
            return Ok(self.ends().iter().flat_map(|source| self.paths_from(source, asked)).collect());
        }
        let source = match (has(SGID), has(SLID)) {
            (true, _) => self.by_gid(&want.sgid()),
            (_, true) => self.by_lid(want.slid()),
            _ => self.by_lid(asked.from),
        };
        // IBTA 15.2.5.16: a source that does not exist has no paths.
        let source = source.filter(|end: &SubnetPortRow| fits && (!has(SLID) || end.lid == want.slid()));
        let Some(source) = source else { return Ok(Vec::new()) };
        if has(DGID) && want.dgid()[0] == 0xff {
            let group = groups::by_gid(self.region, &want.dgid()).filter(|(_, group)| {
                pkey.is_none_or(|pkey| pkey & 0x7fff == group.pkey & 0x7fff) && source.is_member(group.pkey)
            });
            let path = group.map(|(_, group)| {
                let mut record = path(&source, (group.mlid, want.dgid()), group.pkey, asked);
                record.set().mtu(group.mtu).rate(group.rate).life_time(group.life_time);
                record.set().sl(group.sl).flow_label(group.flow_label).traffic_class(group.traffic_class);
                record.set().hop_limit(group.hop_limit);
                record.bytes().to_vec()
            });
            return Ok(path.into_iter().collect());
        }
        Ok(self.paths_from(&source, asked))
    }

    fn paths_from(&self, source: &SubnetPortRow, asked: &Asked<PathRecord>) -> Vec<Vec<u8>> {
        let (has, want) = (|bits| asked.has(bits), &asked.want);
        let pkey = has(PKEY).then(|| want.pkey());
        let destinations = self
            .ends()
            .into_iter()
            .filter(|end| (!has(DGID) || end.gid() == want.dgid()) && (!has(DLID) || end.lid == want.dlid()));
        let records = destinations.filter_map(|to| {
            let pkey = source.pkey_to(&to, pkey)?;
            Some(path(source, (to.lid, to.gid()), pkey, asked).bytes().to_vec())
        });
        records.collect()
    }
}

fn path(
    source: &SubnetPortRow,
    (dlid, dgid): (u16, [u8; 16]),
    pkey: u16,
    asked: &Asked<PathRecord>,
) -> PathRecord {
    // Components without a meaning to the fabric are copied from the request.
    let given = |bit: u64, value: u64| if asked.has(bit) { value } else { 0 };
    let want = &asked.want;
    PathRecord::with(|s| {
        s.service_id(given(SERVICE_ID, want.service_id()))
            .dgid(dgid)
            .sgid(source.gid())
            .dlid(dlid)
            .slid(source.lid)
            .flow_label(given(FLOW_LABEL, want.flow_label().into()) as u32)
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
            .life_time(PACKET_LIFE)
    })
}
