//! The subnet administrator (IBTA 15.4): queries that come to QP1 of the switch.

use super::{
    Asked, Subnet, groups,
    mad::{self, Answer, turned},
    rmpp::Response,
};
use crate::{Config, region::Func};
use hwspec::{
    layout::{Layout, prefix},
    wire::mad::{
        Mad, Method,
        sa::{self, CLASS_VERSION, SEND_ONLY_FULL_MEMBER, SaAttribute, SaMad, rmpp},
        status,
    },
};

/// `capability_mask` of `ClassPortInfo`: UD multicast.
const UD_MULTICAST: u16 = 1 << 9;

/// Answers a query of the port with LID `from`. `None` is no answer.
pub(super) fn answer(func: &mut Func<'_>, config: &Config, from: u16, request: &Mad) -> Option<Response> {
    let subnet = Subnet { region: func.region(), config };
    subnet.administer(from, request, |query| {
        if attribute(query) != SaAttribute::McMemberRecord {
            return Err(status::BAD_ATTRIBUTE);
        }
        let asked = Asked::read(from, query);
        let record = match query.header().method() {
            Method::Set => groups::join(func, subnet, &asked)?,
            _ => groups::leave(func, subnet, &asked)?,
        };
        Ok(vec![record.bytes().to_vec()])
    })
}

fn attribute(query: &SaMad) -> SaAttribute {
    SaAttribute::from_raw(query.header().attribute_id())
}

impl Subnet<'_> {
    /// Answers a query of the port with LID `from`; `change` carries out requests to change something.
    pub fn administer(
        &self,
        from: u16,
        request: &Mad,
        change: impl FnOnce(&SaMad) -> Answer<Vec<Vec<u8>>>,
    ) -> Option<Response> {
        let query = SaMad::read(request);
        // A query fits in one segment, which needs no acknowledgement.
        if query.rmpp_flags() & rmpp::ACTIVE != 0 && query.rmpp_type() != rmpp::DATA {
            return None;
        }
        mad::answer(request, CLASS_VERSION, |header| {
            let records = match header.method() {
                Method::Set | Method::Delete => change(&query)?,
                _ => self.find(from, &query)?,
            };
            match &records[..] {
                _ if header.method() == Method::GetTable => Ok(Some(table(request, &records))),
                [record] => Ok(Some(single(request, record).into())),
                [] => Err(sa::status::NO_RECORDS),
                // IBTA 15.4.4: a Get that matches several records is an error, except that one of several paths is sufficient.
                [record, ..] if attribute(&query) == SaAttribute::PathRecord => {
                    Ok(Some(single(request, record).into()))
                }
                _ => Err(sa::status::TOO_MANY_RECORDS),
            }
        })
    }

    fn find(&self, from: u16, query: &SaMad) -> Answer<Vec<Vec<u8>>> {
        match attribute(query) {
            SaAttribute::ClassPortInfo => {
                let info = mad::class_port_info(CLASS_VERSION, UD_MULTICAST, SEND_ONLY_FULL_MEMBER);
                Ok(vec![info.bytes().to_vec()])
            }
            SaAttribute::PathRecord => {
                self.paths(query.header().method() == Method::GetTable, &Asked::read(from, query))
            }
            SaAttribute::McMemberRecord => Ok(groups::query(self.region, &Asked::read(from, query))),
            SaAttribute::NodeRecord => Ok(self.nodes(&Asked::read(from, query))),
            SaAttribute::PortInfoRecord => Ok(self.ports_of_nodes(&Asked::read(from, query))),
            _ => Err(status::BAD_ATTRIBUTE),
        }
    }
}

fn single(request: &Mad, record: &[u8]) -> Mad {
    let mut answer = SaMad::from_bytes(turned(request, 0));
    answer.set().data(prefix(record)).attribute_offset(offset(record.len()));
    *answer.as_bytes()
}

/// Distance of records, in units of 8 bytes.
fn offset(record: usize) -> u16 {
    record.div_ceil(8) as u16
}

fn table(request: &Mad, records: &[Vec<u8>]) -> Response {
    let offset = records.first().map_or(0, |r| offset(r.len()));
    let mut data = vec![0; usize::from(offset) * 8 * records.len()];
    for (at, record) in data.chunks_exact_mut((usize::from(offset) * 8).max(1)).zip(records) {
        at[..record.len()].copy_from_slice(record);
    }
    Response::table(&turned(request, 0), offset, &data)
}
