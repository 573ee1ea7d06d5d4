//! The subnet administrator's tables of several segments, as seen by their receiver (IBTA 13.6).

use super::common::*;
use hwspec::wire::mad::sa::{HEADER_SIZE, NodeRecord, PathRecord, SaAttribute, SaMad, path, rmpp, status};

const SWITCH_LID: u16 = devmodel::identity::switch_lid(0);
/// Longer than the sender's time limit for an acknowledgement, ps.
const PATIENCE: u64 = 2_000_000_000_000;

/// No segments.
const NONE: [u32; 0] = [];

/// Queries all nodes: four functions and the switch, whose records take three segments.
fn nodes() -> SaMad {
    query(Method::GetTable, SaAttribute::NodeRecord, 0, &NodeRecord::zeroed())
}

/// Builds a packet of the receiver of `of`: type `kind`, with `segment` and the last segment of its window.
fn answer(of: &SaMad, kind: u8, segment: u32, window: u32) -> [u8; MAD_SIZE] {
    let mut packet = *of;
    packet.set().rmpp_version(rmpp::VERSION).rmpp_type(kind).rmpp_flags(rmpp::ACTIVE);
    packet.set().rmpp_segment(segment).rmpp_payload_len(window);
    *packet.as_bytes()
}

/// Creates the QP1 of a port that queries, with receives for ten segments.
fn asker() -> (Bed, General) {
    let (mut bed, a) = general();
    a.listen(&mut bed, 10);
    (bed, a)
}

fn acknowledge(a: &General, bed: &mut Bed, of: &SaMad, segment: u32, window: u32) {
    a.send(bed, SWITCH_LID, &answer(of, rmpp::ACK, segment, window));
}

/// Returns the segments that arrived since the last call.
fn segments(a: &General, bed: &mut Bed) -> Vec<SaMad> {
    a.heard(bed, SWITCH_LID).into_iter().map(SaMad::from_bytes).collect()
}

fn numbers(a: &General, bed: &mut Bed) -> Vec<u32> {
    segments(a, bed).iter().map(SaMad::rmpp_segment).collect()
}

/// Returns the reasons of the ABORTs that arrived since the last call.
fn aborts(a: &General, bed: &mut Bed) -> Vec<u8> {
    let all = segments(a, bed);
    all.iter().filter(|s| s.rmpp_type() == rmpp::ABORT).map(SaMad::rmpp_status).collect()
}

/// 13.6.2, 13.6.5: the first segment has the total length; the others are sent when they are in the receiver's window.
#[test]
fn a_table_comes_in_as_many_segments_as_it_takes() {
    let (mut bed, a) = asker();
    a.send(&mut bed, SWITCH_LID, nodes().as_bytes());
    let mut all = segments(&a, &mut bed);
    assert_eq!(all.len(), 1, "the initial window is one segment");
    acknowledge(&a, &mut bed, &nodes(), 1, 2);
    all.extend(segments(&a, &mut bed));
    assert_eq!(all.len(), 2, "the window");
    acknowledge(&a, &mut bed, &nodes(), 2, 66);
    all.extend(segments(&a, &mut bed));
    let len = 5 * 112;
    let said: Vec<_> =
        all.iter().map(|s| (s.rmpp_segment(), s.rmpp_flags(), s.rmpp_payload_len() as usize)).collect();
    assert_eq!(
        said,
        [
            (1, rmpp::ACTIVE | rmpp::FIRST, 3 * HEADER_SIZE + len),
            (2, rmpp::ACTIVE, 0),
            (3, rmpp::ACTIVE | rmpp::LAST, HEADER_SIZE + len - 400),
        ]
    );
    for segment in &all {
        assert_eq!(
            (segment.rmpp_type(), segment.rmpp_status(), segment.attribute_offset()),
            (rmpp::DATA, 0, 14)
        );
        assert_eq!((segment.header().method(), segment.header().status()), (Method::GetTableResp, 0));
        assert_eq!(segment.header().transaction_id(), nodes().header().transaction_id());
    }
    let data: Vec<u8> = all.iter().flat_map(|segment| segment.data()).collect();
    let lids: Vec<u16> =
        data[..len].chunks(112).map(|record| NodeRecord::read(&prefix::<108>(record)).lid()).collect();
    assert_eq!(lids, [SWITCH_LID, 1, 2, 3, 4]);
    acknowledge(&a, &mut bed, &nodes(), 3, 67);
    bed.advance(20 * PATIENCE);
    assert_eq!(numbers(&a, &mut bed), NONE, "the transfer is complete");
}

/// 15.2.5.16 requires a requester to name an end, but OpenSM answers such a query of `saquery -p` in this way.
#[test]
fn a_table_of_paths_without_an_end_is_of_all_ports() {
    let (mut bed, a) = asker();
    let all = query(Method::GetTable, SaAttribute::PathRecord, 0, &PathRecord::zeroed());
    a.send(&mut bed, SWITCH_LID, all.as_bytes());
    acknowledge(&a, &mut bed, &all, 1, 9);
    let first = &segments(&a, &mut bed)[0];
    let (segments, len) = (8, 5 * 5 * PathRecord::SIZE);
    assert_eq!(first.rmpp_payload_len() as usize, segments * HEADER_SIZE + len);
}

/// 13.6.6: a segment that is not acknowledged in time is sent again, with those after it.
#[test]
fn a_segment_that_is_lost_is_sent_again() {
    let (mut bed, a) = general();
    a.listen(&mut bed, 2);
    a.send(&mut bed, SWITCH_LID, nodes().as_bytes());
    acknowledge(&a, &mut bed, &nodes(), 1, 3);
    assert_eq!(numbers(&a, &mut bed), [1, 2], "there is no receive for the third");
    a.listen(&mut bed, 10);
    acknowledge(&a, &mut bed, &nodes(), 2, 3);
    assert_eq!(numbers(&a, &mut bed), NONE, "the third is not sent again yet");
    bed.advance(PATIENCE);
    assert_eq!(numbers(&a, &mut bed), [3]);
    acknowledge(&a, &mut bed, &nodes(), 3, 3);
    bed.advance(20 * PATIENCE);
    assert_eq!(numbers(&a, &mut bed), NONE);
}

#[test]
fn a_receiver_that_stays_silent_is_given_up() {
    let (mut bed, a) = asker();
    a.send(&mut bed, SWITCH_LID, nodes().as_bytes());
    bed.advance(20 * PATIENCE);
    let all = segments(&a, &mut bed);
    let (last, tries) = all.split_last().expect("segments");
    assert_eq!(tries.iter().map(SaMad::rmpp_segment).collect::<Vec<_>>(), [1; 4]);
    assert_eq!((last.rmpp_type(), last.rmpp_status()), (rmpp::ABORT, rmpp::TOO_MANY_RETRIES));
    acknowledge(&a, &mut bed, &nodes(), 1, 3);
    assert_eq!(numbers(&a, &mut bed), NONE, "the table was forgotten");
}

/// 13.6.2.2 to 13.6.2.4, 13.6.6.
#[test]
fn a_receiver_that_gives_up_or_makes_no_sense_gets_no_more() {
    for (kind, segment, window, reasons) in [
        (rmpp::ACK, 2, 1, &[rmpp::WINDOW_TOO_SMALL][..]),
        (rmpp::ACK, 2, 9, &[rmpp::SEGMENT_TOO_BIG]),
        (9, 1, 9, &[rmpp::BAD_TYPE]),
        (rmpp::STOP, 0, 0, &[]),
        (rmpp::ABORT, 0, 0, &[]),
    ] {
        let (mut bed, a) = asker();
        a.send(&mut bed, SWITCH_LID, nodes().as_bytes());
        assert_eq!(numbers(&a, &mut bed), [1]);
        a.send(&mut bed, SWITCH_LID, &answer(&nodes(), kind, segment, window));
        assert_eq!(aborts(&a, &mut bed), reasons, "{kind} {segment} {window}");
        acknowledge(&a, &mut bed, &nodes(), 1, 3);
        bed.advance(20 * PATIENCE);
        assert_eq!(numbers(&a, &mut bed), NONE);
    }
}

#[test]
fn an_acknowledgement_that_was_overtaken_changes_nothing() {
    let (mut bed, a) = asker();
    a.send(&mut bed, SWITCH_LID, nodes().as_bytes());
    acknowledge(&a, &mut bed, &nodes(), 1, 3);
    acknowledge(&a, &mut bed, &nodes(), 2, 3);
    acknowledge(&a, &mut bed, &nodes(), 1, 2);
    assert_eq!(numbers(&a, &mut bed), [1, 2, 3]);
    bed.advance(PATIENCE);
    assert_eq!(numbers(&a, &mut bed), [3]);
}

/// All segments of a table must be of the same records: with one path less, the remaining segments would have others.
#[test]
fn a_table_of_books_that_changed_is_given_up() {
    let (mut bed, a) = asker();
    let paths =
        query(Method::GetTable, SaAttribute::PathRecord, path::SLID, &PathRecord::with(|s| s.slid(2)));
    a.send(&mut bed, SWITCH_LID, paths.as_bytes());
    assert_eq!(numbers(&a, &mut bed), [1]);
    set(&mut bed, 2, smp::attribute::PKEY_TABLE, &[0; 64]);
    acknowledge(&a, &mut bed, &paths, 1, 9);
    assert_eq!(aborts(&a, &mut bed), [rmpp::UNSPECIFIED]);
}

#[test]
fn a_query_that_is_repeated_begins_anew() {
    let (mut bed, a) = asker();
    for _ in 0..12 {
        a.listen(&mut bed, 1);
        a.send(&mut bed, SWITCH_LID, nodes().as_bytes());
        assert_eq!(numbers(&a, &mut bed), [1]);
    }
    acknowledge(&a, &mut bed, &nodes(), 1, 3);
    assert_eq!(numbers(&a, &mut bed), [2, 3], "one of them is being sent");
}

#[test]
fn a_port_that_asks_for_many_tables_at_once_leaves_room_for_others() {
    let (mut bed, a) = asker();
    let b = General::new(&mut bed, 2);
    b.listen(&mut bed, 1);
    let numbered = |id: u64| {
        let (mut query, mut header) = (nodes(), nodes().header());
        header.set().transaction_id(id);
        query.set().header(header);
        *query.as_bytes()
    };
    for id in 0..9 {
        a.send(&mut bed, SWITCH_LID, &numbered(id));
    }
    let answers: Vec<_> = segments(&a, &mut bed).iter().map(|answer| answer.header().status()).collect();
    assert_eq!(answers, [[0; 8].as_slice(), &[status::NO_RESOURCES]].concat());
    b.send(&mut bed, SWITCH_LID, &numbered(1));
    assert_eq!(numbers(&b, &mut bed), [1], "a transaction with the same number");
}
