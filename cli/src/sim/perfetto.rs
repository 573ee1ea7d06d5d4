//! Traces for ui.perfetto.dev: a track for each unit of each end, a slice for each span, and arrows along the path of each message. The
//! fields are those of Perfetto's `trace.proto`.

use super::look::ENDS;
use devmodel::engine::{
    Ps,
    spans::{Span, Timeline, Unit},
};
use prost::Message;
use std::collections::BTreeMap;

#[derive(Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Message)]
struct TracePacket {
    /// In nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Message)]
struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    /// Order of its child tracks: 3 is by their rank.
    #[prost(int32, optional, tag = "11")]
    child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    sibling_order_rank: Option<i32>,
}

#[derive(Message)]
struct TrackEvent {
    /// 1 begins a slice, 2 ends it.
    #[prost(int32, tag = "9")]
    r#type: i32,
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
}

/// A track: the end, its unit, and an index, because overlapping spans need several tracks.
type Track = (u8, Unit, usize);

const BY_RANK: i32 = 3;
const BEGIN: i32 = 1;
const END: i32 = 2;

/// The trace of `timeline`, with a root called `name`.
pub fn trace(name: &str, timeline: &Timeline) -> Vec<u8> {
    let (lanes, tracks) = lanes(timeline.spans());
    let messages = messages(timeline);
    let mut packet = descriptors(name, &tracks);
    // Slices of one track must not overlap, and at the same time, ends must precede begins.
    let mut events: Vec<(Ps, i32, TrackEvent)> = Vec::new();
    for (number, (span, track)) in timeline.spans().iter().zip(lanes).enumerate() {
        let track_uuid = tracks[&track];
        let flow_ids = messages.get(&number).map(|message| *message as u64 + 1).into_iter().collect();
        let begin = TrackEvent { r#type: BEGIN, track_uuid, name: Some(span.part.to_string()), flow_ids };
        events.push((span.from, BEGIN, begin));
        events.push((span.until, END, TrackEvent { r#type: END, track_uuid, ..TrackEvent::default() }));
    }
    events.sort_by_key(|(at, kind, _)| (*at, std::cmp::Reverse(*kind)));
    packet.extend(events.into_iter().map(|(at, _, event)| TracePacket {
        timestamp: Some(at / 1000),
        track_event: Some(event),
        ..empty()
    }));
    Trace { packet }.encode_to_vec()
}

fn empty() -> TracePacket {
    TracePacket { trusted_packet_sequence_id: 1, ..TracePacket::default() }
}

/// Assigns each span a track that is free at its time. Returns the track of each span, and the ID of each track.
fn lanes(spans: &[Span]) -> (Vec<Track>, BTreeMap<Track, u64>) {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|number| (spans[*number].from, *number));
    let mut free: BTreeMap<(u8, Unit), Vec<Ps>> = BTreeMap::new();
    let mut of = vec![(0, Unit::Host, 0); spans.len()];
    for number in order {
        let Span { part, card, from, until, .. } = spans[number];
        let until_when = free.entry((card, part.unit())).or_default();
        let lane = until_when.iter().position(|until| *until <= from).unwrap_or(until_when.len());
        match until_when.get_mut(lane) {
            Some(free_at) => *free_at = until,
            None => until_when.push(until),
        }
        of[number] = (card, part.unit(), lane);
    }
    let mut tracks: Vec<Track> = of.clone();
    tracks.sort_unstable();
    tracks.dedup();
    // After those of the root and the two ends.
    (of, tracks.into_iter().zip(10..).collect())
}

/// The message that each span belongs to, by span number.
fn messages(timeline: &Timeline) -> BTreeMap<usize, usize> {
    let mut of = BTreeMap::new();
    for (message, way) in timeline.ways().enumerate() {
        for span in way {
            of.entry(span).or_insert(message);
        }
    }
    of
}

/// Descriptors with the names of all tracks.
fn descriptors(name: &str, tracks: &BTreeMap<Track, u64>) -> Vec<TracePacket> {
    let mut all = vec![TrackDescriptor {
        uuid: 1,
        name: name.into(),
        child_ordering: Some(BY_RANK),
        ..TrackDescriptor::default()
    }];
    for (rank, end) in ENDS.iter().enumerate() {
        all.push(TrackDescriptor {
            uuid: 2 + rank as u64,
            name: (*end).into(),
            parent_uuid: Some(1),
            child_ordering: Some(BY_RANK),
            sibling_order_rank: Some(rank as i32),
        });
    }
    for (rank, ((card, unit, lane), uuid)) in tracks.iter().enumerate() {
        let name = if *lane == 0 { unit.to_string() } else { format!("{unit} {}", lane + 1) };
        all.push(TrackDescriptor {
            uuid: *uuid,
            name,
            parent_uuid: Some(2 + u64::from(*card).min(1)),
            child_ordering: None,
            sibling_order_rank: Some(rank as i32),
        });
    }
    all.into_iter().map(|track| TracePacket { track_descriptor: Some(track), ..empty() }).collect()
}
