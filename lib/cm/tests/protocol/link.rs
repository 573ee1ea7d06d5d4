//! Two agents and a link between them, which may lose, duplicate and reorder MADs.

use ironverbs_cm::*;
use std::{collections::VecDeque, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

impl Side {
    pub fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// A MAD in flight to one side.
struct Flying {
    to: Side,
    from: Address,
    mad: Box<Mad>,
    /// Others may overtake it.
    late: bool,
}

pub struct Link {
    pub left: Agent,
    pub right: Agent,
    pub now: Time,
    /// If set, unclaimed MADs are refused.
    pub refuse_unclaimed: bool,
    /// All MADs sent, with their sender.
    pub log: Vec<(Side, Box<Mad>)>,
    flying: Vec<Flying>,
    events: [VecDeque<(ConnId, Event)>; 2],
    /// The faults of the next MADs, set by [`Link::faults`].
    faults: VecDeque<u8>,
    tags: u16,
}

const GIDS: [Gid; 2] = [[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], {
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[15] = 2;
    gid
}];

fn agent(side: Side, tag: u16) -> Agent {
    Agent::new(Config { tag, first: 0, ca_guid: 0x1000 + side as u64, ack_delay: 16 })
}

impl Link {
    pub fn new() -> Self {
        Self {
            left: agent(Side::Left, 1),
            right: agent(Side::Right, 2),
            now: Duration::ZERO,
            refuse_unclaimed: true,
            log: Vec::new(),
            flying: Vec::new(),
            events: Default::default(),
            faults: VecDeque::new(),
            tags: 2,
        }
    }

    /// Sets the faults of the next MADs, one number for each: 0 for lost, 1 for duplicated, 2 for overtaken by later
    /// ones. Any other number, and all MADs after the list, arrive.
    pub fn faults(&mut self, faults: impl IntoIterator<Item = u8>) {
        self.faults = faults.into_iter().collect();
    }

    pub fn agent(&mut self, side: Side) -> &mut Agent {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    pub fn path(&self, side: Side) -> Path {
        Path { local_gid: GIDS[side as usize], remote_gid: GIDS[side.other() as usize], ..Path::default() }
    }

    pub fn connect(&self, service_id: u64) -> Connect {
        Connect::new(service_id, Service::Rc, self.path(Side::Left))
    }

    pub fn open(&mut self, side: Side) -> ConnId {
        self.agent(side).open().expect("an id")
    }

    pub fn command(&mut self, side: Side, id: ConnId, command: Command) -> Result<(), Refused> {
        let now = self.now;
        let done = self.agent(side).handle(now, Input::Command(id, command));
        self.collect(side);
        done
    }

    pub fn event(&mut self, side: Side) -> Option<(ConnId, Event)> {
        self.events[side as usize].pop_front()
    }

    /// Number of MADs that a side has sent so far.
    pub fn sent(&self, side: Side) -> usize {
        self.log.iter().filter(|(from, _)| *from == side).count()
    }

    /// Kills the process on the left and starts another.
    pub fn restart_left(&mut self) {
        self.restart(Side::Left);
    }

    pub fn restart(&mut self, side: Side) {
        self.tags += 1;
        *self.agent(side) = agent(side, 2 + self.tags);
        self.events[side as usize].clear();
    }

    fn collect(&mut self, side: Side) {
        while let Some(output) = self.agent(side).poll() {
            match output {
                Output::Send { to, mad } => {
                    assert_eq!(to.remote_gid, GIDS[side.other() as usize], "MADs go to the other side");
                    self.log.push((side, mad.clone()));
                    let from = Address { local_gid: to.remote_gid, remote_gid: to.local_gid, ..to };
                    let fly = |mad| Flying { to: side.other(), from, mad, late: false };
                    match self.faults.pop_front() {
                        Some(0) => {}
                        Some(1) => self.flying.extend([fly(mad.clone()), fly(mad)]),
                        Some(2) => self.flying.push(Flying { late: true, ..fly(mad) }),
                        _ => self.flying.push(fly(mad)),
                    }
                }
                Output::Event(id, event) => self.events[side as usize].push_back((id, event)),
                Output::Unclaimed(unclaimed) => {
                    if self.refuse_unclaimed {
                        self.agent(side).refuse(&unclaimed);
                    }
                }
            }
        }
    }

    /// Delivers one MAD. Returns false if there was none.
    pub fn deliver(&mut self) -> bool {
        if self.flying.is_empty() {
            return false;
        }
        let next = self.flying.iter().position(|flying| !flying.late).unwrap_or(0);
        let flying = self.flying.remove(next);
        let now = self.now;
        let done =
            self.agent(flying.to).handle(now, Input::Mad { from: flying.from, bytes: &flying.mad[..] });
        assert_eq!(done, Ok(()), "a MAD is never refused");
        self.collect(flying.to);
        true
    }

    /// Delivers all MADs in flight.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.deliver() {
                return;
            }
        }
        panic!("the agents talk for ever");
    }

    /// Advances time.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        loop {
            let next = [self.left.deadline(), self.right.deadline()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for side in [Side::Left, Side::Right] {
                let now = self.now;
                assert_eq!(self.agent(side).handle(now, Input::Tick), Ok(()));
                self.collect(side);
            }
            self.settle();
        }
        self.now = end;
    }
}
