//! The agent: all connections of one process on one function, with their timers and outputs.
use crate::{
    Address, Command, ConnId, Event, Input, Mad, Output, QpParameters, Refused, State, Time, Unclaimed,
    Wanted,
    conn::{Conn, Pending},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The parameters of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Upper half of this agent's communication ids. Random, since agents that share a QP1 must not use the same.
    pub tag: u16,
    /// Lower half of the first id. Random, since a successor with the same tag must not start with the ids of its
    /// predecessor.
    pub first: u16,
    /// Node GUID of the function.
    pub ca_guid: u64,
    /// The function's acknowledge delay: 4.096 us x 2^n (`local_ca_ack_delay`).
    pub ack_delay: u8,
}

/// Identifies the remote side of a connection: a CA GUID, with a communication id or a QP.
pub(crate) type Remote = (u64, u32);

/// All connections of one process on one function, as described in the [crate] documentation.
#[derive(Debug)]
pub struct Agent {
    pub(crate) config: Config,
    next: u16,
    elder: bool,
    pub(crate) conns: BTreeMap<u32, Conn>,
    /// Listeners by service id.
    pub(crate) services: BTreeMap<u64, u32>,
    /// Connections by GUID and communication id of the peer.
    pub(crate) by_id: BTreeMap<Remote, u32>,
    /// Connections by GUID and QP of the peer.
    pub(crate) by_qp: BTreeMap<Remote, u32>,
    /// Unanswered SIDR_REQs, by source and id.
    pub(crate) queries: BTreeMap<(crate::Gid, u16, u32), u32>,
    timers: BTreeSet<(Time, u32)>,
    outputs: VecDeque<Output>,
}

impl Agent {
    /// Creates an agent without connections.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            next: config.first,
            elder: true,
            conns: BTreeMap::new(),
            services: BTreeMap::new(),
            by_id: BTreeMap::new(),
            by_qp: BTreeMap::new(),
            queries: BTreeMap::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Sets whether this agent answers for its function when no other agent does, through [`Output::Unclaimed`].
    /// Initially true.
    pub fn set_elder(&mut self, elder: bool) {
        self.elder = elder;
    }

    /// Opens a new idle connection. [`Refused::Full`] if 65,536 are in use.
    pub fn open(&mut self) -> Result<ConnId, Refused> {
        self.insert(Conn::default())
    }

    pub(crate) fn insert(&mut self, conn: Conn) -> Result<ConnId, Refused> {
        for _ in 0..=u16::MAX {
            let id = u32::from(self.config.tag) << 16 | u32::from(self.next);
            self.next = self.next.wrapping_add(1);
            // In several messages, 0 means that there is no id.
            if id != 0 && !self.conns.contains_key(&id) {
                self.conns.insert(id, conn);
                return Ok(ConnId(id));
            }
        }
        Err(Refused::Full)
    }

    /// Handles an input at `now`, which must not decrease. Only commands can be refused; a refused command changes
    /// nothing.
    pub fn handle(&mut self, now: Time, input: Input<'_>) -> Result<(), Refused> {
        match input {
            Input::Mad { from, bytes } => self.receive(now, &from, bytes),
            Input::Command(id, command) => {
                if self.conns.get(&id.0).is_none_or(|conn| conn.abandoned) {
                    return Err(Refused::NoSuchId);
                }
                self.obey(now, id.0, command)?;
            }
            Input::Tick => {}
        }
        self.expire(now);
        Ok(())
    }

    fn obey(&mut self, now: Time, id: u32, command: Command) -> Result<(), Refused> {
        match command {
            Command::Listen { service_id } => self.listen(id, service_id),
            Command::Connect(connect) => self.connect(now, id, &connect),
            Command::Accept(accept) => self.accept(now, id, &accept),
            Command::Ready { private_data } => self.ready(id, private_data),
            Command::Reject { reason, info, private_data } => {
                self.reject(now, id, reason, &info, &private_data)
            }
            Command::Delay { service_timeout, if_repeated, private_data } => {
                self.delay(id, service_timeout, if_repeated, private_data)
            }
            Command::Established => self.established(id),
            Command::Disconnect { private_data } => self.disconnect(now, id, &private_data),
            Command::DisconnectReply { private_data } => self.disconnect_reply(now, id, private_data),
            Command::PeerGone => self.peer_gone(now, id),
            Command::SidrRequest(request) => self.sidr_request(now, id, &request),
            Command::SidrReply(reply) => self.sidr_reply(id, &reply),
            Command::Destroy => {
                self.destroy(now, id);
                Ok(())
            }
        }
    }

    /// Takes the next output, if any.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Time at which [`Input::Tick`] is due, unless another input comes first.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// The state of a connection, `None` if the id does not exist.
    pub fn state(&self, id: ConnId) -> Option<State> {
        self.conns.get(&id.0).filter(|conn| !conn.abandoned).map(|conn| conn.state)
    }

    /// Parameters for the connection's QP, available from the REQ to the end of the connection.
    pub fn qp_parameters(&self, id: ConnId) -> Option<QpParameters> {
        let conn = self.conns.get(&id.0).filter(|conn| !conn.abandoned)?;
        let before = matches!(conn.state, State::Idle | State::Listen);
        let sidr = matches!(conn.state, State::SidrReqSent | State::SidrReqReceived);
        (!before && !sidr).then_some(conn.qp)
    }

    /// The peer's id of a connection, `None` while it is unknown and after the end.
    pub fn remote_id(&self, id: ConnId) -> Option<u32> {
        let conn = self.conns.get(&id.0).filter(|conn| !conn.abandoned)?;
        (conn.remote_id != 0 && conn.state != State::Idle).then_some(conn.remote_id)
    }

    /// Number of ids in use, including those of ended connections in timewait.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// True if no id is in use.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// True if a communication id belongs to this agent.
    pub(crate) fn is_own(&self, id: u32) -> bool {
        (id >> 16) as u16 == self.config.tag
    }

    pub(crate) fn send(&mut self, to: Address, mad: Mad) {
        self.outputs.push_back(Output::Send { to, mad: Box::new(mad) });
    }

    pub(crate) fn tell(&mut self, id: u32, event: Event) {
        if self.conns.get(&id).is_some_and(|conn| !conn.abandoned) {
            self.outputs.push_back(Output::Event(ConnId(id), event));
        }
    }

    pub(crate) fn unclaimed(&mut self, from: &Address, wanted: Wanted, mad: &Mad) {
        if self.elder {
            let mad = Box::new(*mad);
            self.outputs.push_back(Output::Unclaimed(Unclaimed { from: *from, wanted, mad }));
        }
    }

    /// Sends a MAD, repeatedly until it is answered.
    pub(crate) fn send_until_answered(&mut self, now: Time, id: u32, mad: Mad) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (to, timeout) = (conn.address, conn.timeout);
        conn.pending = Some(Pending { mad: Box::new(mad), timeout, left: conn.max_retries });
        self.send(to, mad);
        self.arm(id, Some(now + timeout));
    }

    /// Sets the only timer of a connection.
    pub(crate) fn arm(&mut self, id: u32, deadline: Option<Time>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut conn.deadline, deadline) {
            self.timers.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            self.timers.insert((deadline, id));
        }
    }

    /// Stops repeating a message, because it was answered or no answer is needed any more.
    pub(crate) fn answered(&mut self, id: u32) {
        self.arm(id, None);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.pending = None;
        }
    }

    /// Ends a connection without timewait, and removes it if it was destroyed.
    pub(crate) fn idle(&mut self, id: u32) {
        self.answered(id);
        self.forget_remote(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = State::Idle;
        if conn.abandoned {
            self.conns.remove(&id);
        }
    }

    /// Puts a connection into timewait, since its packets may still be in flight (IBTA 12.9.8.4). The connection
    /// still handles repeated messages, and its peer's QP may be reused.
    pub(crate) fn timewait(&mut self, now: Time, id: u32) {
        self.answered(id);
        self.forget_remote_qp(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = State::Timewait;
        let wait = crate::duration(conn.qp.ack_timeout);
        self.arm(id, Some(now + wait));
    }

    fn expire(&mut self, now: Time) {
        while let Some((time, id)) = self.timers.first().copied() {
            if time > now {
                break;
            }
            self.arm(id, None);
            self.timed_out(now, id);
        }
    }
}
