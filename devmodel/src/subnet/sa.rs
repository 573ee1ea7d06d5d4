//! The subnet administrator (IBTA 15.4): queries that come to QP1 of the switch.

use super::{
    groups,
    mad::{Answer, check_version, refuse},
    paths, records,
};
use crate::{
    Config,
    region::{Func, Region},
};
use hwspec::{
    layout::Layout,
    wire::mad::{
        self, ClassPortInfo, MAD_SIZE, Method,
        sa::{
            CLASS_VERSION, DATA_SIZE, McMemberRecord, NodeRecord, PathRecord, PortInfoRecord,
            SEND_ONLY_FULL_MEMBER, SaAttribute, SaMad, rmpp, status,
        },
    },
};

/// Bytes of the SA header, which RMPP counts as payload.
const SA_HEADER: u32 = 20;
/// `capability_mask` of `ClassPortInfo`: UD multicast.
const UD_MULTICAST: u16 = 1 << 9;

/// Answers a query of the port with LID `from`. `None` is no answer.
pub(super) fn answer(
    func: &mut Func<'_>,
    config: &Config,
    from: u16,
    request: &[u8; MAD_SIZE],
) -> Option<[u8; MAD_SIZE]> {
    respond(request, |query| match query.header().method() {
        Method::Set | Method::Delete => change(func, config, from, query),
        _ => find(func.region(), config, from, query),
    })
}

/// As [`answer`], to those who only look: requests that change something are refused.
pub(super) fn look(
    region: &Region,
    config: &Config,
    from: u16,
    request: &[u8; MAD_SIZE],
) -> Option<[u8; MAD_SIZE]> {
    respond(request, |query| match query.header().method() {
        Method::Set | Method::Delete => Err(mad::status::BAD_METHOD),
        _ => find(region, config, from, query),
    })
}

/// The answer to `request`, with the records that `find` has for it.
fn respond(
    request: &[u8; MAD_SIZE],
    find: impl FnOnce(&SaMad) -> Answer<Vec<Vec<u8>>>,
) -> Option<[u8; MAD_SIZE]> {
    let query = SaMad::read(request);
    let header = query.header();
    let method = header.method();
    method.answer()?;
    // Nothing we send needs an acknowledgement, and a query fits in one segment.
    if query.rmpp_flags() & rmpp::ACTIVE != 0 && query.rmpp_type() != rmpp::DATA {
        return None;
    }
    let records = match check_version(&header, CLASS_VERSION).and_then(|()| find(&query)) {
        Ok(records) => records,
        Err(status) => return Some(refuse(request, status)),
    };
    if method == Method::GetTable {
        return Some(table(request, &records));
    }
    Some(match &records[..] {
        [record] => single(request, record),
        [] => refuse(request, status::NO_RECORDS),
        // IBTA 15.4.4: a Get that matches several is an error, but for paths, of which one will do.
        [record, ..] if SaAttribute::from_raw(header.attribute_id()) == SaAttribute::PathRecord => {
            single(request, record)
        }
        _ => refuse(request, status::TOO_MANY_RECORDS),
    })
}

fn find(region: &Region, config: &Config, from: u16, query: &SaMad) -> Answer<Vec<Vec<u8>>> {
    let (mask, data) = (query.component_mask(), query.data());
    match SaAttribute::from_raw(query.header().attribute_id()) {
        SaAttribute::ClassPortInfo => Ok(vec![class_port_info().bytes().to_vec()]),
        SaAttribute::PathRecord => paths::find(region, config, from, mask, &PathRecord::read(&data)),
        SaAttribute::McMemberRecord => Ok(groups::query(region, mask, &McMemberRecord::read(&data))),
        SaAttribute::NodeRecord => Ok(records::nodes(region, config, mask, &NodeRecord::read(&data))),
        SaAttribute::PortInfoRecord => Ok(records::ports(region, config, mask, &PortInfoRecord::read(&data))),
        _ => Err(mad::status::BAD_ATTRIBUTE),
    }
}

fn change(func: &mut Func<'_>, config: &Config, from: u16, query: &SaMad) -> Answer<Vec<Vec<u8>>> {
    let header = query.header();
    if SaAttribute::from_raw(header.attribute_id()) != SaAttribute::McMemberRecord {
        return Err(mad::status::BAD_ATTRIBUTE);
    }
    let (mask, want) = (query.component_mask(), McMemberRecord::read(&query.data()));
    let record = match header.method() {
        Method::Set => groups::join(func, config, from, mask, &want)?,
        _ => groups::leave(func, config, from, mask, &want)?,
    };
    Ok(vec![record.bytes().to_vec()])
}

fn class_port_info() -> ClassPortInfo {
    ClassPortInfo::with(|s| {
        s.base_version(mad::BASE_VERSION)
            .class_version(CLASS_VERSION)
            .capability_mask(UD_MULTICAST)
            .capability_mask2(SEND_ONLY_FULL_MEMBER)
            .resp_time_value(super::mad::RESPONSE_TIME)
    })
}

fn single(request: &[u8; MAD_SIZE], record: &[u8]) -> [u8; MAD_SIZE] {
    let mut answer = SaMad::from_bytes(super::mad::turned(request, 0));
    answer.set().data(hwspec::layout::prefix(record)).attribute_offset(offset(record.len()));
    *answer.as_bytes()
}

/// Distance of records, in units of 8 bytes.
fn offset(record: usize) -> u16 {
    record.div_ceil(8) as u16
}

/// A table: as many records as one segment holds; none at all if there are more (IBTA 13.6: later segments would have to
/// wait for acknowledgements of the first).
fn table(request: &[u8; MAD_SIZE], records: &[Vec<u8>]) -> [u8; MAD_SIZE] {
    let distance = records.first().map_or(0, |r| usize::from(offset(r.len())) * 8);
    let len = distance * records.len();
    if len > DATA_SIZE {
        return refuse(request, status::NO_RESOURCES);
    }
    let mut data = [0; DATA_SIZE];
    for (at, record) in data.chunks_exact_mut(distance.max(1)).zip(records) {
        at[..record.len()].copy_from_slice(record);
    }
    let mut answer = SaMad::from_bytes(super::mad::turned(request, 0));
    answer
        .set()
        .rmpp_version(rmpp::VERSION)
        .rmpp_type(rmpp::DATA)
        .rmpp_flags(rmpp::ACTIVE | rmpp::FIRST | rmpp::LAST)
        .rmpp_status(0)
        .rmpp_segment(1)
        .rmpp_payload_len(SA_HEADER + len as u32)
        .attribute_offset((distance / 8) as u16)
        .data(data);
    *answer.as_bytes()
}
