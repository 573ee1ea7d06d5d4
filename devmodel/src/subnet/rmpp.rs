//! Tables that do not fit one management datagram: the sender's side of the reliable multi-packet protocol (IBTA 13.6).
//!
//! The administrator sends the first segment, then those in the window of the receiver's acknowledgements, and repeats segments that are
//! not acknowledged in time. It keeps only the query and a hash of the table, and builds segments from the records each time it sends them.
//! If the records have changed meanwhile, it aborts the transfer, and the receiver repeats its query. Queries fit in one segment.

use super::{agent::Back, sa};
use crate::{
    Config,
    host::Party,
    identity,
    mlx5::Step,
    region::{Func, TimerKind},
    state::SubnetSendRow,
};
use hwspec::{
    layout::{Layout, prefix},
    wire::{
        Grh, Route,
        mad::{
            Mad,
            sa::{DATA_SIZE, HEADER_SIZE, SaMad, rmpp, status},
        },
    },
};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Time limit for an acknowledgement, ps: response time 18, 4.096 us x 2^18, as Linux assumes for the subnet.
const PATIENCE: u64 = 4_096_000 << 18;
/// Number of times that unacknowledged segments are sent again.
const RETRIES: u8 = 3;
/// Maximum number of tables that are sent to one port at a time.
const PER_PORT: usize = 8;
/// Bytes of a segment before the RMPP payload.
const RMPP_HEADER: usize = 36;

/// An answer of the administrator: one datagram, or a table of several segments.
pub(super) struct Response {
    first: Mad,
    /// Records after those of the first segment.
    rest: Vec<u8>,
}

impl From<Mad> for Response {
    fn from(first: Mad) -> Self {
        Self { first, rest: Vec::new() }
    }
}

impl Response {
    /// Makes a table of `data`, records `offset` times 8 bytes apart, with the header of `answer`.
    pub fn table(answer: &Mad, offset: u16, data: &[u8]) -> Self {
        let (here, rest) = data.split_at(data.len().min(DATA_SIZE));
        let mut first = SaMad::from_bytes(*answer);
        let segments = 1 + rest.len().div_ceil(DATA_SIZE);
        first
            .set()
            .rmpp_version(rmpp::VERSION)
            .rmpp_type(rmpp::DATA)
            .rmpp_resp_time(rmpp::NO_RESP_TIME)
            .rmpp_flags(rmpp::ACTIVE | rmpp::FIRST | if rest.is_empty() { rmpp::LAST } else { 0 })
            .rmpp_status(0)
            .rmpp_segment(1)
            .rmpp_payload_len((segments * HEADER_SIZE + data.len()) as u32)
            .attribute_offset(offset)
            .data(prefix(here));
        Self { first: *first.as_bytes(), rest: rest.to_vec() }
    }

    fn segments(&self) -> u32 {
        1 + self.rest.len().div_ceil(DATA_SIZE) as u32
    }

    /// Builds segment `number`, counted from 1.
    fn segment(&self, number: u32) -> Mad {
        let behind = (number as usize).saturating_sub(2);
        let Some(data) = self.rest.chunks(DATA_SIZE).nth(behind).filter(|_| number > 1) else {
            return self.first;
        };
        let last = number == self.segments();
        let mut segment = SaMad::from_bytes(self.first);
        segment
            .set()
            .rmpp_flags(rmpp::ACTIVE | if last { rmpp::LAST } else { 0 })
            .rmpp_segment(number)
            .rmpp_payload_len(if last { (HEADER_SIZE + data.len()) as u32 } else { 0 })
            .data(prefix(data));
        *segment.as_bytes()
    }

    /// The answer as Linux returns it to a program (ib_user_mad.h): a table in one piece after the header of its first segment, without
    /// padding after its records.
    pub fn whole(&self) -> Vec<u8> {
        let first = SaMad::read(&self.first);
        let mut whole = [&self.first[..], &self.rest].concat();
        if self.rest.is_empty() && first.rmpp_flags() & rmpp::ACTIVE != 0 {
            whole.truncate(RMPP_HEADER.saturating_add(first.rmpp_payload_len() as usize));
        }
        whole
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.first, &self.rest).hash(&mut hasher);
        hasher.finish()
    }
}

/// Handles a packet to the administrator's QP1.
pub(super) fn arrive(func: &mut Func<'_>, step: &mut Step<'_>, back: &Back, mad: &Mad) {
    let packet = SaMad::read(mad);
    if packet.rmpp_flags() & rmpp::ACTIVE != 0 && packet.rmpp_type() != rmpp::DATA {
        return hear(func, step, back, &packet);
    }
    let config = *step.config;
    let Some(response) = sa::answer(func, &config, back.route.dlid, mad) else { return };
    if response.segments() == 1 {
        return back.send(func, step, &response.first);
    }
    // A repeated query restarts the transfer; the receiver acknowledges the segments that it has.
    if let Some(before) = find(func, back, &packet) {
        end(func, before);
    }
    match begin(func, back, mad, &response) {
        Some(index) => go_on(func, step, index),
        None => back.send(func, step, &super::mad::turned(mad, status::NO_RESOURCES)),
    }
}

/// Adds a table to those being sent. Returns `None` if there are too many.
fn begin(func: &mut Func<'_>, back: &Back, query: &Mad, response: &Response) -> Option<u32> {
    let live = func.live::<SubnetSendRow>();
    let to_port = |i: &&u32| func.row::<SubnetSendRow>(**i).is_some_and(|row| row.lid == back.route.dlid);
    if live.iter().filter(to_port).count() >= PER_PORT {
        return None;
    }
    let index = func.alloc::<SubnetSendRow>(0, Party(0)).ok()?;
    let grh = back.route.grh.unwrap_or_default();
    let row = func.row_mut::<SubnetSendRow>(index)?;
    *row = SubnetSendRow {
        digest: response.digest(),
        query: *query,
        sgid: grh.sgid,
        dgid: grh.dgid,
        peer: back.peer,
        window: 1,
        lid: back.route.dlid,
        pkey: back.pkey,
        sl: back.route.sl,
        has_grh: back.route.grh.is_some().into(),
        ..*row
    };
    Some(index)
}

/// Finds the table being sent that `packet`, from the port and QP of `back`, refers to.
fn find(func: &Func<'_>, back: &Back, packet: &SaMad) -> Option<u32> {
    let transaction = packet.header().transaction_id();
    func.live::<SubnetSendRow>().into_iter().find(|index| {
        func.row::<SubnetSendRow>(*index).is_some_and(|row| {
            let of_query = SaMad::read(&row.query).header().transaction_id();
            (row.lid, row.peer, of_query) == (back.route.dlid, back.peer, transaction)
        })
    })
}

fn end(func: &mut Func<'_>, index: u32) {
    func.forget_timer(index, TimerKind::Segments);
    func.free::<SubnetSendRow>(index);
}

/// Handles an acknowledgement, a STOP or an ABORT of a table being sent. A packet that refers to no table is ignored.
fn hear(func: &mut Func<'_>, step: &mut Step<'_>, back: &Back, packet: &SaMad) {
    let Some(index) = find(func, back, packet) else { return };
    let (segment, window) = (packet.rmpp_segment(), packet.rmpp_payload_len());
    let Some(row) = func.row_mut::<SubnetSendRow>(index) else { return };
    match packet.rmpp_type() {
        rmpp::STOP | rmpp::ABORT => end(func, index),
        rmpp::ACK if window < segment => abort(func, step, index, rmpp::WINDOW_TOO_SMALL),
        rmpp::ACK if segment > row.sent => abort(func, step, index, rmpp::SEGMENT_TOO_BIG),
        // A later acknowledgement overtook this one.
        rmpp::ACK if segment < row.acked || window < row.window => {}
        rmpp::ACK => {
            if segment > row.acked {
                row.silences = 0;
            }
            (row.acked, row.window) = (segment, window);
            go_on(func, step, index);
        }
        _ => abort(func, step, index, rmpp::BAD_TYPE),
    }
}

/// Sends the segments in the receiver's window that were not sent yet. Ends a table whose segments are all acknowledged.
fn go_on(func: &mut Func<'_>, step: &mut Step<'_>, index: u32) {
    let Some(row) = func.row::<SubnetSendRow>(index).copied() else { return };
    let config = *step.config;
    let response = sa::answer(func, &config, row.lid, &row.query).filter(|now| now.digest() == row.digest);
    let Some(response) = response else { return abort(func, step, index, rmpp::UNSPECIFIED) };
    if row.acked == response.segments() {
        return end(func, index);
    }
    let (back, last) = (Back::of(&row, &config), row.window.min(response.segments()));
    for number in row.sent + 1..=last {
        back.send(func, step, &response.segment(number));
    }
    if let Some(row) = func.row_mut::<SubnetSendRow>(index) {
        row.sent = row.sent.max(last);
        row.due = step.now + PATIENCE;
        let due = row.due;
        func.arm_timer(index, TimerKind::Segments, due);
    }
}

/// Handles the timer: sends unacknowledged segments again if their time limit has passed.
#[cold]
pub(crate) fn expire(func: &mut Func<'_>, step: &mut Step<'_>, index: u32) {
    let Some(row) = func.row_mut::<SubnetSendRow>(index) else { return };
    if step.now < row.due {
        let due = row.due;
        func.arm_timer(index, TimerKind::Segments, due);
    } else if row.silences == RETRIES {
        abort(func, step, index, rmpp::TOO_MANY_RETRIES);
    } else {
        row.silences += 1;
        row.sent = row.acked;
        go_on(func, step, index);
    }
}

/// Ends a table, and tells its receiver the reason.
fn abort(func: &mut Func<'_>, step: &mut Step<'_>, index: u32, reason: u8) {
    let Some(row) = func.row::<SubnetSendRow>(index).copied() else { return };
    let mut packet = SaMad::from_bytes(super::mad::turned(&row.query, 0));
    packet
        .set()
        .rmpp_version(rmpp::VERSION)
        .rmpp_type(rmpp::ABORT)
        .rmpp_resp_time(rmpp::NO_RESP_TIME)
        .rmpp_flags(rmpp::ACTIVE)
        .rmpp_status(reason)
        .rmpp_segment(0)
        .rmpp_payload_len(0);
    Back::of(&row, step.config).send(func, step, packet.as_bytes());
    end(func, index);
}

impl Back {
    fn of(row: &SubnetSendRow, config: &Config) -> Self {
        let grh =
            Grh { sgid: row.sgid, dgid: row.dgid, hop_limit: super::agent::HOP_LIMIT, ..Grh::default() };
        let grh = (row.has_grh != 0).then_some(grh);
        let route =
            Route { vl: 0, sl: row.sl, dlid: row.lid, slid: identity::switch_lid(config.node_id), grh };
        Self { route, qpn: 1, peer: row.peer, pkey: row.pkey }
    }
}
