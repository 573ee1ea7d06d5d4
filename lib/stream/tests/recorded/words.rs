//! Two streams compared, and the list of reviewed differences.

use ironverbs_stream::{
    lines::collapsed,
    words::{Allowed, Words, aligned},
};

fn words(lines: &[&str]) -> Words {
    Words::of(&lines.iter().map(ToString::to_string).collect::<Vec<_>>())
}

fn unlike(ours: &[&str], theirs: &[&str]) -> Vec<String> {
    words(ours).unlike(&words(theirs)).iter().map(ToString::to_string).collect()
}

const STOCK: [&str; 4] =
    ["ENABLE_HCA", "ALLOC_PD uid=# -> pd=#", "CREATE_QP qpc.pd=# qpc.st=0x2 -> qpn=#", "DESTROY_QP qpn=#"];

#[test]
fn what_is_sent_as_often_as_one_likes_is_the_same() {
    assert_eq!(unlike(&[STOCK[0], STOCK[1], STOCK[1], STOCK[2], STOCK[3], STOCK[1]], &STOCK), [""; 0]);
}

#[test]
fn new_words_fields_reserved_bits_and_places_are_differences() {
    assert_eq!(
        unlike(
            &[
                STOCK[0],
                "CREATE_QP qpc.pd=# qpc.rlky=0x1 reserved@0x8:00000001=1",
                "NOP",
                "ALLOC_PD uid=#",
                STOCK[3],
            ],
            &STOCK
        ),
        [
            "sets CREATE_QP qpc.rlky",
            "reserved CREATE_QP reserved@0x8:00000001",
            "sends NOP",
            "order CREATE_QP",
        ]
    );
    assert_eq!(unlike(&STOCK[..2], &STOCK), ["lacks CREATE_QP", "lacks DESTROY_QP"]);
}

#[test]
fn how_memory_lies_in_pages_says_nothing() {
    let first = ["CREATE_RMP ctx.wq.log_wq_stride=0x5 pas[].pa=*"];
    let next = ["CREATE_RMP ctx.wq.log_wq_pg_sz=* ctx.wq.page_offset=* ctx.wq.log_wq_stride=0x5 pas[].pa=*"];
    assert_eq!(unlike(&next, &first), [""; 0]);
    assert_eq!(unlike(&first, &next), [""; 0]);
}

#[test]
fn what_was_refused_was_not_said() {
    assert_eq!(
        unlike(&["NOP -> BadOp syndrome=0x1", "NOP -> delivery=0x7", "NOP -> unanswered"], &[]),
        [""; 0]
    );
    assert_eq!(unlike(&["f3 NOP", "f3 ALLOC_PD -> pd=#"], &[]), ["sends NOP", "sends ALLOC_PD"]);
}

/// A driver may reuse a slot before the answer has been read; then a refusal cannot be detected.
#[test]
fn a_command_whose_answer_was_not_seen_is_neither_new_nor_missing() {
    let (known, unknown) = (
        ["ALLOC_XRCD -> xrcd=#", "CREATE_QP x=1 y=2 -> qpn=#"],
        ["ALLOC_XRCD -> unanswered", "CREATE_QP x=1 y=2 -> unanswered"],
    );
    assert_eq!(unlike(&known, &unknown), [""; 0]);
    assert_eq!(unlike(&unknown, &known), [""; 0]);
    let other = ["ALLOC_XRCD -> xrcd=#", "CREATE_QP x=1 -> qpn=#", "CREATE_QP z=3 -> unanswered"];
    assert_eq!(unlike(&known, &other), ["sets CREATE_QP y"]);
    assert_eq!(unlike(&other, &known), [""; 0]);
}

#[test]
fn a_list_allows_what_stands_in_it_and_nothing_in_it_may_be_idle() {
    let found = words(&["NOP x=1", "CREATE_QP"]).unlike(&words(&["CREATE_QP", "INIT_HCA"]));
    let judge = |text: &str| Allowed::parse(text).expect("a list").judge(&found);
    assert_eq!(judge("").0, ["sends NOP", "lacks INIT_HCA"]);
    assert_eq!(judge("# about\n\nsends NOP - it is free\nlacks * - why not\n"), (vec![], vec![]));
    assert_eq!(judge("sends NOP - a\nlacks INIT_HCA - b\nsets NOP x - c").1, ["sets NOP x"]);
    assert_eq!(Allowed::parse("sends NOP - a\nsends ACK - b").expect("a list").len(), 2);
    for (text, why) in [
        ("sends NOP", "line 1: expected a difference, ' - ' and a reason"),
        ("\nsends NOP -  ", "line 2: expected a reason"),
        ("sends NOP - a\nsends NOP - b", "line 2: expected each difference once"),
    ] {
        let said = Allowed::parse(text).expect_err("no list");
        assert!(said.starts_with(why), "{said}");
    }
}

#[test]
fn repetition_is_collapsed_and_lines_are_aligned() {
    let lines = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
    assert_eq!(collapsed(&lines("a b b b c d c d e")), ["a", "x3 b", "x2 {", "c", "d", "}", "e"]);
    assert_eq!(collapsed(&lines("a b b a b b")), ["x2 {", "a", "x2 b", "}"]);
    assert_eq!(aligned(&lines("a b c d e f"), &lines("a b x d e f"), 1), ["  b", "- c", "+ x", "  d"]);
    assert_eq!(aligned(&lines("1 a b c d 2"), &lines("a b c d"), 1), ["- 1", "  a", "...", "  d", "- 2"]);
    assert!(aligned(&lines("a b"), &lines("a b"), 3).is_empty());
}
