//! Two agents on a reliable link: every path through the protocol, step by step.

use super::link::{Link, Side};
use hwspec::wire::mad::cm::{Concerning, PortSpace, service_id};
use ironverbs_cm::*;
use std::time::Duration;

const SERVICE: u64 = service_id(PortSpace::Tcp, 7471);

fn data(text: &str) -> Vec<u8> {
    text.into()
}

fn no_data() -> Vec<u8> {
    Vec::new()
}

/// A link with its right side listening.
fn listening() -> (Link, ConnId) {
    let mut link = Link::new();
    let listener = link.open(Side::Right);
    link.command(Side::Right, listener, Command::Listen { service_id: SERVICE }).expect("listen");
    (link, listener)
}

fn connect(link: &mut Link) -> ConnId {
    let id = link.open(Side::Left);
    let connect =
        Connect { qpn: 0x111, starting_psn: 0x1234, private_data: data("hello"), ..link.connect(SERVICE) };
    link.command(Side::Left, id, Command::Connect(Box::new(connect))).expect("connect");
    link.settle();
    id
}

fn request(link: &mut Link) -> (ConnId, Request) {
    match link.event(Side::Right) {
        Some((id, Event::Request(request))) => (id, *request),
        other => panic!("no request: {other:?}"),
    }
}

/// A connection that was asked for, with the ids of both sides.
fn asked() -> (Link, ConnId, ConnId) {
    let (mut link, _) = listening();
    let left = connect(&mut link);
    let (right, _) = request(&mut link);
    (link, left, right)
}

fn accept(link: &mut Link, id: ConnId) {
    let accept =
        Accept { qpn: 0x222, starting_psn: 0x4321, private_data: data("welcome"), ..Accept::default() };
    link.command(Side::Right, id, Command::Accept(Box::new(accept))).expect("accept");
    link.settle();
}

/// An established connection, with the ids of both sides.
fn connected() -> (Link, ConnId, ConnId) {
    let (mut link, left, right) = asked();
    accept(&mut link, right);
    assert!(matches!(link.event(Side::Left), Some((id, Event::Reply(_))) if id == left));
    link.command(Side::Left, left, Command::Ready { private_data: no_data() }).expect("ready");
    link.settle();
    assert!(matches!(link.event(Side::Right), Some((id, Event::Established { .. })) if id == right));
    (link, left, right)
}

#[test]
fn a_connection_is_made_and_both_sides_know_what_their_queue_pairs_need() {
    let (mut link, listener) = listening();
    let left = connect(&mut link);
    let (right, request) = request(&mut link);
    assert_eq!((request.listener, request.remote_qpn, request.starting_psn), (listener, 0x111, 0x1234));
    assert!(request.private_data.starts_with(b"hello") && request.private_data.len() == 92);
    accept(&mut link, right);
    let Some((id, Event::Reply(reply))) = link.event(Side::Left) else { panic!("no reply") };
    assert_eq!((id, reply.remote_qpn, reply.starting_psn), (left, 0x222, 0x4321));
    assert!(reply.private_data.starts_with(b"welcome") && reply.private_data.len() == 196);
    link.command(Side::Left, left, Command::Ready { private_data: data("go") }).expect("ready");
    link.settle();
    let Some((id, Event::Established { private_data })) = link.event(Side::Right) else { panic!("no RTU") };
    assert!(id == right && private_data.starts_with(b"go"));

    let (l, r) = (link.left.qp_parameters(left).unwrap(), link.right.qp_parameters(right).unwrap());
    assert_eq!((l.local_qpn, l.remote_qpn, l.sq_psn, l.rq_psn), (0x111, 0x222, 0x4321, 0x1234));
    assert_eq!((r.local_qpn, r.remote_qpn, r.sq_psn, r.rq_psn), (0x222, 0x111, 0x1234, 0x4321));
    assert_eq!((l.path.local_gid, l.path.remote_gid), (r.path.remote_gid, r.path.local_gid));
    assert_eq!(l.path.mtu, r.path.mtu);
    assert_eq!(link.left.deadline(), None, "nothing is repeated any more");
    assert_eq!(link.right.deadline(), None);
}

#[test]
fn depths_of_reads_are_named_from_each_sides_own_view() {
    let (mut link, _) = listening();
    let left = link.open(Side::Left);
    let wants = Connect { initiator_depth: 4, responder_resources: 9, ..link.connect(SERVICE) };
    link.command(Side::Left, left, Command::Connect(Box::new(wants))).expect("connect");
    link.settle();
    let (right, request) = request(&mut link);
    assert_eq!((request.responder_resources, request.initiator_depth), (4, 9));
    let accept = Accept { responder_resources: 3, initiator_depth: 8, ..Accept::default() };
    link.command(Side::Right, right, Command::Accept(Box::new(accept))).expect("accept");
    link.settle();
    let Some((_, Event::Reply(reply))) = link.event(Side::Left) else { panic!("no reply") };
    assert_eq!((reply.responder_resources, reply.initiator_depth), (8, 3));
}

#[test]
fn a_connection_ends_with_timewait_on_both_sides() {
    let (mut link, left, right) = connected();
    link.command(Side::Left, left, Command::Disconnect { private_data: data("bye") }).expect("disconnect");
    link.settle();
    let Some((id, Event::Disconnect { private_data })) = link.event(Side::Right) else { panic!("no DREQ") };
    assert!(id == right && private_data.starts_with(b"bye"));
    link.command(Side::Right, right, Command::DisconnectReply { private_data: no_data() }).expect("reply");
    link.settle();
    assert!(matches!(link.event(Side::Left), Some((id, Event::Disconnected { .. })) if id == left));
    assert_eq!(link.left.state(left), Some(State::Timewait));
    link.pass(Duration::from_secs(60));
    assert_eq!(link.event(Side::Left), Some((left, Event::TimewaitOver)));
    assert_eq!(link.event(Side::Right), Some((right, Event::TimewaitOver)));
    for (side, id) in [(Side::Left, left), (Side::Right, right)] {
        link.command(side, id, Command::Destroy).expect("destroy");
        assert_eq!(link.command(side, id, Command::Destroy), Err(Refused::NoSuchId));
    }
    assert_eq!((link.left.len(), link.right.len()), (0, 1), "the listener is left");
}

#[test]
fn two_sides_that_disconnect_at_the_same_time_are_disconnected_once() {
    let (mut link, left, right) = connected();
    for (side, id) in [(Side::Left, left), (Side::Right, right)] {
        link.command(side, id, Command::Disconnect { private_data: no_data() }).expect("disconnect");
    }
    link.settle();
    for (side, id) in [(Side::Left, left), (Side::Right, right)] {
        assert!(matches!(link.event(side), Some((it, Event::Disconnect { .. })) if it == id));
        assert_eq!(link.event(side), None);
    }
    assert_eq!(
        (link.left.state(left), link.right.state(right)),
        (Some(State::Timewait), Some(State::Timewait))
    );
}

#[test]
fn a_request_may_be_rejected_with_reason_and_data() {
    let (mut link, left, right) = asked();
    let reject = Command::Reject {
        reason: RejectReason::ConsumerDefined,
        info: vec![7; 72],
        private_data: data("go away"),
    };
    link.command(Side::Right, right, reject).expect("reject");
    link.settle();
    let Some((id, Event::Rejected { reason, message, info, private_data })) = link.event(Side::Left) else {
        panic!("no REJ")
    };
    assert_eq!((id, reason, message), (left, RejectReason::ConsumerDefined, Concerning::Req));
    assert!(info == [7; 72] && private_data.starts_with(b"go away") && private_data.len() == 148);
    assert_eq!(link.left.state(left), Some(State::Idle));
    assert_eq!(link.right.state(right), Some(State::Idle));
}

#[test]
fn a_reply_may_be_rejected_too() {
    let (mut link, left, right) = asked();
    accept(&mut link, right);
    link.event(Side::Left);
    link.command(Side::Left, left, Command::Destroy).expect("destroy");
    link.settle();
    let Some((id, Event::Rejected { reason, message, .. })) = link.event(Side::Right) else {
        panic!("no REJ")
    };
    assert_eq!((id, reason, message), (right, RejectReason::ConsumerDefined, Concerning::Rep));
    assert!(link.left.is_empty());
}

#[test]
fn nobody_listening_is_said_by_the_elder_alone() {
    for elder in [true, false] {
        let mut link = Link::new();
        link.right.set_elder(elder);
        link.refuse_unclaimed = true;
        let left = connect(&mut link);
        match elder {
            true => assert!(matches!(
                link.event(Side::Left),
                Some((id, Event::Rejected { reason: RejectReason::InvalidServiceId, .. })) if id == left
            )),
            false => assert_eq!(link.event(Side::Left), None),
        }
    }
}

#[test]
fn silence_is_given_up_after_all_retries() {
    let mut link = Link::new();
    link.right.set_elder(false);
    let left = connect(&mut link);
    let sent = link.sent(Side::Left);
    link.pass(Duration::from_millis(16 * (2 * 1024 + 4096) - 1));
    assert_eq!(link.event(Side::Left), None);
    assert_eq!(link.sent(Side::Left) - sent, 15);
    link.pass(Duration::from_millis(1));
    assert_eq!(link.event(Side::Left), Some((left, Event::Failed(Failure::Request))));
    assert_eq!(link.left.state(left), Some(State::Idle));
}

#[test]
fn an_mra_keeps_a_request_alive() {
    let (mut link, left, right) = asked();
    let delay = Command::Delay { service_timeout: 24, if_repeated: true, private_data: no_data() };
    link.command(Side::Right, right, delay).expect("delay");
    link.settle();
    assert_eq!(link.event(Side::Left), None, "only when the REQ is repeated");
    link.pass(Duration::from_secs(7));
    assert!(
        matches!(link.event(Side::Left), Some((id, Event::Delayed { service_timeout: 24, .. })) if id == left)
    );
    let sent = link.sent(Side::Left);
    link.pass(Duration::from_secs(60));
    assert_eq!(link.sent(Side::Left), sent, "2^24 x 4.096 us are more than a minute");
    accept(&mut link, right);
    assert!(matches!(link.event(Side::Left), Some((_, Event::Reply(_)))));
}

#[test]
fn a_peer_that_has_forgotten_its_connection_learns_so_and_may_connect_again() {
    let (mut link, _, right) = connected();
    link.restart_left();
    let left = connect(&mut link);
    assert!(matches!(
        link.event(Side::Left),
        Some((id, Event::Rejected { reason: RejectReason::StaleConnection, .. })) if id == left
    ));
    // The DREQ for the old connection does not find it, which counts as an answer.
    assert!(matches!(link.event(Side::Right), Some((id, Event::Disconnected { .. })) if id == right));
    link.pass(Duration::from_secs(60));
    connect(&mut link);
    link.event(Side::Right);
    request(&mut link);
}

#[test]
fn a_datagram_service_is_found() {
    let (mut link, listener) = listening();
    let left = link.open(Side::Left);
    let ask = SidrRequest {
        service_id: SERVICE,
        path: link.path(Side::Left),
        timeout: Duration::from_secs(4),
        max_retries: 15,
        private_data: data("who?"),
    };
    link.command(Side::Left, left, Command::SidrRequest(Box::new(ask))).expect("ask");
    link.settle();
    let Some((right, Event::SidrRequest(request))) = link.event(Side::Right) else { panic!("no request") };
    assert!(request.listener == listener && request.private_data.starts_with(b"who?"));
    let reply = SidrReply {
        status: SidrStatus::Valid,
        qpn: 0x333,
        qkey: 0x1234_5678,
        ece: (0, 0),
        info: no_data(),
        private_data: data("me"),
    };
    link.command(Side::Right, right, Command::SidrReply(Box::new(reply))).expect("reply");
    link.settle();
    let Some((id, Event::SidrReply(answer))) = link.event(Side::Left) else { panic!("no answer") };
    assert_eq!((id, answer.status, answer.qpn, answer.qkey), (left, SidrStatus::Valid, 0x333, 0x1234_5678));
    assert!(answer.private_data.starts_with(b"me") && answer.private_data.len() == 136);
    assert_eq!(link.left.state(left), Some(State::Idle));
    assert_eq!(link.right.state(right), Some(State::Idle));
}

#[test]
fn commands_in_the_wrong_state_change_nothing() {
    let (mut link, left, right) = connected();
    let wrong = [
        (Side::Left, left, Command::Ready { private_data: no_data() }),
        (Side::Left, left, Command::Listen { service_id: 1 }),
        (Side::Right, right, Command::Accept(Box::default())),
        (Side::Right, right, Command::DisconnectReply { private_data: no_data() }),
        (Side::Right, right, Command::Established),
    ];
    for (side, id, command) in wrong {
        assert_eq!(link.command(side, id, command), Err(Refused::State(State::Established)));
    }
    let long = Command::Disconnect { private_data: vec![0; 221] };
    assert_eq!(link.command(Side::Left, left, long), Err(Refused::TooLong(221, 220)));
    let taken = link.open(Side::Right);
    let listen = Command::Listen { service_id: SERVICE };
    assert_eq!(link.command(Side::Right, taken, listen), Err(Refused::InUse));
    assert_eq!(link.left.state(left), Some(State::Established));
}

#[test]
fn data_that_comes_before_the_rtu_is_as_good() {
    let (mut link, _, right) = asked();
    accept(&mut link, right);
    link.command(Side::Right, right, Command::Established).expect("established");
    assert!(matches!(link.event(Side::Right), Some((id, Event::Established { .. })) if id == right));
    assert_eq!(link.right.deadline(), None);
}

#[test]
fn a_peer_that_died_counts_as_one_that_took_its_leave() {
    let (mut link, left, right) = connected();
    assert_eq!(link.agent(Side::Left).remote_id(left), Some(right.0));
    link.command(Side::Left, left, Command::PeerGone).expect("gone");
    assert!(matches!(link.event(Side::Left), Some((id, Event::Disconnect { .. })) if id == left));
    link.command(Side::Left, left, Command::DisconnectReply { private_data: no_data() }).expect("reply");
    assert_eq!(link.agent(Side::Left).state(left), Some(State::Timewait));
    assert!(link.command(Side::Left, left, Command::PeerGone).is_err());

    link.command(Side::Right, right, Command::Disconnect { private_data: no_data() }).expect("disconnect");
    link.command(Side::Right, right, Command::PeerGone).expect("gone");
    assert!(matches!(link.event(Side::Right), Some((id, Event::Disconnected { .. })) if id == right));
}

#[test]
fn an_end_may_come_before_the_rtu_was_sent() {
    let (mut link, left, right) = asked();
    accept(&mut link, right);
    assert!(matches!(link.event(Side::Left), Some((_, Event::Reply(_)))));
    // The passive side learned from its queue pair that the connection is established.
    link.command(Side::Right, right, Command::Established).expect("established");
    link.command(Side::Right, right, Command::Disconnect { private_data: no_data() }).expect("disconnect");
    link.settle();
    assert!(matches!(link.event(Side::Left), Some((id, Event::Disconnect { .. })) if id == left));
    let late = link.command(Side::Left, left, Command::Ready { private_data: no_data() });
    assert_eq!(late, Err(Refused::State(State::DreqReceived)));
    link.command(Side::Left, left, Command::DisconnectReply { private_data: no_data() }).expect("reply");
    link.settle();
    assert!(matches!(link.event(Side::Right), Some((_, Event::Established { .. }))));
    assert!(matches!(link.event(Side::Right), Some((id, Event::Disconnected { .. })) if id == right));
}

#[test]
fn an_rtu_for_a_connection_that_was_given_up_is_answered() {
    let (mut link, left, right) = asked();
    accept(&mut link, right);
    // The REJ is lost.
    link.faults([0]);
    link.command(Side::Right, right, Command::Destroy).expect("destroy");
    link.command(Side::Left, left, Command::Ready { private_data: no_data() }).expect("ready");
    link.settle();
    assert!(matches!(link.event(Side::Left), Some((_, Event::Reply(_)))));
    assert!(matches!(
        link.event(Side::Left),
        Some((id, Event::Rejected { reason: RejectReason::InvalidCommId, .. })) if id == left
    ));
}
