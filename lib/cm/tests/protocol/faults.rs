//! Two agents on a faulty link, with programs that may do anything at any time: in the end both agree, and no state is
//! left over.

use super::link::{Link, Side};
use hwspec::wire::mad::cm::{PortSpace, service_id};
use ironverbs_cm::*;
use proptest::prelude::*;
use std::time::Duration;

const SERVICE: u64 = service_id(PortSpace::Tcp, 1);
/// Longer than all retries of a message, its MRA, and timewait combined.
const LONG: Duration = Duration::from_secs(2000);

/// A step of the programs or the link.
#[derive(Clone, Debug)]
enum Action {
    /// The left side requests a connection.
    Connect(Service),
    /// The left side requests a datagram service.
    Ask,
    /// A program answers its oldest event, either by continuing or by refusing.
    Answer(Side, bool),
    /// A program disconnects, destroys or delays one of its connections.
    Disconnect(Side, usize),
    Destroy(Side, usize),
    Delay(Side, usize, bool),
    Established(usize),
    /// Some MADs arrive.
    Deliver(usize),
    /// Time passes, in milliseconds.
    Pass(u64),
    /// A process is killed, and another takes its place.
    Kill(Side),
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Left), Just(Side::Right)]
}

fn service() -> impl Strategy<Value = Service> {
    prop_oneof![Just(Service::Rc), Just(Service::Uc), Just(Service::Xrc)]
}

/// Steps of cooperative programs, which do not leave a connection before it is established.
fn kind() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => service().prop_map(Action::Connect),
        1 => Just(Action::Ask),
        12 => side().prop_map(|side| Action::Answer(side, true)),
        2 => (side(), 0usize..4).prop_map(|(side, which)| Action::Disconnect(side, which)),
        2 => (side(), 0usize..4, any::<bool>()).prop_map(|(side, which, lazy)| Action::Delay(side, which, lazy)),
        1 => (0usize..4).prop_map(Action::Established),
        12 => (1usize..4).prop_map(Action::Deliver),
        3 => (1u64..20_000).prop_map(Action::Pass),
    ]
}

/// Steps of programs that refuse and leave at will.
fn rude() -> impl Strategy<Value = Action> {
    prop_oneof![
        30 => kind(),
        4 => side().prop_map(|side| Action::Answer(side, false)),
        3 => (side(), 0usize..4).prop_map(|(side, which)| Action::Destroy(side, which)),
    ]
}

/// Steps of programs that may also be killed.
fn mortal() -> impl Strategy<Value = Action> {
    prop_oneof![
        30 => rude(),
        1 => side().prop_map(Action::Kill),
    ]
}

/// Two programs and their connections.
struct Rig {
    link: Link,
    ids: [Vec<ConnId>; 2],
    listener: ConnId,
    /// The next QP number; every connection gets its own.
    qpn: u32,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self { link: Link::new(), ids: Default::default(), listener: ConnId(0), qpn: 2 };
        rig.listen();
        rig
    }

    fn listen(&mut self) {
        self.listener = self.link.open(Side::Right);
        self.link
            .command(Side::Right, self.listener, Command::Listen { service_id: SERVICE })
            .expect("listen");
    }

    fn next_qpn(&mut self) -> u32 {
        self.qpn += 1;
        self.qpn
    }

    fn some(&self, side: Side, which: usize) -> Option<ConnId> {
        let ids = &self.ids[side as usize];
        (!ids.is_empty()).then(|| ids[which % ids.len()])
    }

    fn answer(&mut self, side: Side, yes: bool) {
        let Some((id, event)) = self.link.event(side) else { return };
        let qpn = self.next_qpn();
        let command = match event {
            Event::Request(_) => {
                self.ids[side as usize].push(id);
                match yes {
                    true => Command::Accept(Box::new(Accept { qpn, ..Accept::default() })),
                    false => Command::Reject {
                        reason: RejectReason::ConsumerDefined,
                        info: Vec::new(),
                        private_data: Vec::new(),
                    },
                }
            }
            Event::Reply(_) if yes => Command::Ready { private_data: Vec::new() },
            Event::Disconnect { .. } if yes => Command::DisconnectReply { private_data: Vec::new() },
            Event::SidrRequest(_) => {
                self.ids[side as usize].push(id);
                let status = if yes { SidrStatus::Valid } else { SidrStatus::Rejected };
                let (info, private_data) = (Vec::new(), Vec::new());
                Command::SidrReply(Box::new(SidrReply {
                    status,
                    qpn,
                    qkey: 1,
                    ece: (0, 0),
                    info,
                    private_data,
                }))
            }
            Event::Reply(_) | Event::Disconnect { .. } => Command::Destroy,
            _ => return,
        };
        // The state may have changed in the meantime.
        let _ = self.link.command(side, id, command);
    }

    fn act(&mut self, action: Action) {
        let private_data = Vec::new();
        match action {
            Action::Connect(service) => {
                let id = self.link.open(Side::Left);
                self.ids[0].push(id);
                let connect = Connect { service, qpn: self.next_qpn(), ..self.link.connect(SERVICE) };
                self.link.command(Side::Left, id, Command::Connect(Box::new(connect))).expect("connect");
            }
            Action::Ask => {
                let id = self.link.open(Side::Left);
                self.ids[0].push(id);
                let (path, timeout) = (self.link.path(Side::Left), Duration::from_secs(4));
                let ask = SidrRequest { service_id: SERVICE, path, timeout, max_retries: 15, private_data };
                self.link.command(Side::Left, id, Command::SidrRequest(Box::new(ask))).expect("ask");
            }
            Action::Answer(side, yes) => self.answer(side, yes),
            Action::Disconnect(side, which) => {
                if let Some(id) = self.some(side, which) {
                    let _ = self.link.command(side, id, Command::Disconnect { private_data });
                }
            }
            Action::Destroy(side, which) => {
                if let Some(id) = self.some(side, which) {
                    let _ = self.link.command(side, id, Command::Destroy);
                    self.ids[side as usize].retain(|other| *other != id);
                }
            }
            Action::Delay(side, which, if_repeated) => {
                if let Some(id) = self.some(side, which) {
                    let delay = Command::Delay { service_timeout: 20, if_repeated, private_data };
                    let _ = self.link.command(side, id, delay);
                }
            }
            Action::Established(which) => {
                if let Some(id) = self.some(Side::Right, which) {
                    let _ = self.link.command(Side::Right, id, Command::Established);
                }
            }
            Action::Deliver(count) => {
                for _ in 0..count {
                    self.link.deliver();
                }
            }
            Action::Pass(ms) => self.link.pass(Duration::from_millis(ms)),
            Action::Kill(side) => {
                self.link.restart(side);
                self.ids[side as usize].clear();
                if side == Side::Right {
                    self.listen();
                }
            }
        }
    }

    /// Both sides answer everything until nothing more happens.
    fn calm(&mut self) {
        self.link.faults([]);
        for _ in 0..20 {
            // Answer before time passes: if a side answers a REP only after the REP's sender gave up on a DREQ, it
            // learns of the end only from its QP, as after a lost REJ.
            for side in [Side::Left, Side::Right] {
                for _ in 0..100 {
                    self.answer(side, true);
                }
            }
            self.link.pass(LONG);
        }
        assert_eq!((self.link.left.deadline(), self.link.right.deadline()), (None, None), "calm");
    }

    fn established(&self, side: Side) -> Vec<(ConnId, QpParameters)> {
        let agent = if side == Side::Left { &self.link.left } else { &self.link.right };
        let ids = self.ids[side as usize].iter();
        ids.filter(|id| agent.state(**id) == Some(State::Established))
            .filter_map(|id| Some((*id, agent.qp_parameters(*id)?)))
            // The target of an XRC connection may leave without notice.
            .filter(|(_, qp)| qp.service != Service::Xrc)
            .collect()
    }
}

/// Checks that the QPs of all established connections, as seen by the left side, have matching parameters.
fn agree(rig: &Rig) -> Result<(), TestCaseError> {
    let pairs = |side| {
        let mut pairs: Vec<_> = rig.established(side).into_iter().map(|(_, qp)| qp).collect();
        pairs.sort_by_key(|qp| if side == Side::Left { qp.local_qpn } else { qp.remote_qpn });
        pairs
    };
    let (left, right) = (pairs(Side::Left), pairs(Side::Right));
    prop_assert_eq!(left.len(), right.len());
    for (l, r) in left.iter().zip(&right) {
        prop_assert_eq!(
            (l.local_qpn, l.rq_psn, l.remote_qpn, l.sq_psn),
            (r.remote_qpn, r.sq_psn, r.local_qpn, r.rq_psn)
        );
        prop_assert_eq!(l.service, r.service);
    }
    Ok(())
}

/// Checks that no ids and no timers remain after everything is destroyed.
fn nothing_is_left(rig: &mut Rig) -> Result<(), TestCaseError> {
    for side in [Side::Left, Side::Right] {
        for id in std::mem::take(&mut rig.ids[side as usize]) {
            let _ = rig.link.command(side, id, Command::Destroy);
        }
    }
    let listener = rig.listener;
    rig.link.command(Side::Right, listener, Command::Destroy).expect("destroy");
    for _ in 0..3 {
        rig.link.pass(LONG);
    }
    prop_assert!(rig.link.left.is_empty() && rig.link.right.is_empty(), "all ids are free again");
    prop_assert_eq!((rig.link.left.deadline(), rig.link.right.deadline()), (None, None));
    Ok(())
}

fn run(actions: Vec<Action>, faults: Vec<u8>) -> Rig {
    let mut rig = Rig::new();
    rig.link.faults(faults);
    for action in actions {
        rig.act(action);
    }
    rig.calm();
    rig
}

/// The passive side's QP receives a packet before the RTU, so its program may disconnect while the REP is still in
/// flight.
#[test]
fn a_dreq_that_overtakes_the_rep_is_not_answered() {
    use Action::*;
    let actions = vec![
        Connect(Service::Rc),
        Deliver(1),
        Answer(Side::Right, true),
        Established(0),
        Disconnect(Side::Right, 0),
        Deliver(3),
        Answer(Side::Left, true),
    ];
    // The REP is late, and the RTU that would reveal the disagreement is lost.
    let mut rig = run(actions, vec![3, 2, 3, 3, 0]);
    agree(&rig).expect("both sides agree");
    nothing_is_left(&mut rig).expect("nothing is left");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_a_link_that_loses_doubles_and_reorders_both_sides_agree_in_the_end(
        actions in prop::collection::vec(kind(), 1..60),
        faults in prop::collection::vec(0u8..8, 0..80),
    ) {
        let mut rig = run(actions, faults);
        agree(&rig)?;
        nothing_is_left(&mut rig)?;
    }

    #[test]
    fn programs_that_refuse_and_leave_as_they_like_agree_in_the_end(
        actions in prop::collection::vec(rude(), 1..60),
        // No losses: a REJ has no answer, so a side that misses it learns of the end only from its QP.
        faults in prop::collection::vec(1u8..6, 0..80),
    ) {
        let mut rig = run(actions, faults);
        agree(&rig)?;
        nothing_is_left(&mut rig)?;
    }

    #[test]
    fn programs_that_are_killed_leave_nothing_to_their_peers(
        actions in prop::collection::vec(mortal(), 1..60),
        faults in prop::collection::vec(0u8..8, 0..80),
    ) {
        nothing_is_left(&mut run(actions, faults))?;
    }

    #[test]
    fn bytes_from_anywhere_harm_nobody(
        mut mads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20),
        attributes in prop::collection::vec(0x10u8..0x1c, 20),
        (comm, service) in any::<(bool, bool)>(),
    ) {
        let mut rig = Rig::new();
        rig.act(Action::Connect(Service::Rc));
        rig.link.deliver();
        rig.answer(Side::Right, true);
        for (mad, attribute) in mads.iter_mut().zip(attributes) {
            if mad.len() >= 256 {
                mad[..4].copy_from_slice(&[1, 7, 2, 3]);
                mad[16..18].copy_from_slice(&[0, attribute]);
                if comm {
                    mad[24..28].copy_from_slice(&[0, 1, 0, 0]);
                    mad[28..32].copy_from_slice(&[0, 2, 0, 1]);
                }
                if service {
                    mad[32..40].copy_from_slice(&SERVICE.to_be_bytes());
                }
            }
            let (now, from) = (rig.link.now, rig.link.path(Side::Right).address());
            prop_assert_eq!(rig.link.right.handle(now, Input::Mad { from, bytes: mad }), Ok(()));
        }
    }
}
