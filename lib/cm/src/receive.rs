//! Handles received MADs, and the end of connections: REJ, DREQ, DREP, timeouts, destruction.
use crate::{
    Address, Agent, Event, Failure, Refused, RejectReason, Service, SidrReply, SidrStatus, State, Time,
    Wanted, format,
};
use hwspec::wire::mad::{BASE_VERSION, MadHeader, Method, MgmtClass, cm::*};

impl Agent {
    /// A MAD arrived.
    pub(crate) fn receive(&mut self, now: Time, from: &Address, bytes: &[u8]) {
        let Some(mad) = bytes.first_chunk::<{ hwspec::wire::mad::MAD_SIZE }>() else { return };
        let head = MadHeader::from_bytes(hwspec::layout::prefix(mad));
        let ours = head.mgmt_class() == MgmtClass::ComMgt
            && head.base_version() == BASE_VERSION
            && head.class_version() == CLASS_VERSION
            && head.method() == Method::Send;
        if !ours {
            return;
        }
        match CmAttribute::from_raw(head.attribute_id()) {
            CmAttribute::Req => self.request(now, from, mad),
            CmAttribute::Mra => self.delayed(now, &Mra::from_bytes(*mad)),
            CmAttribute::Rej => self.rejected(now, &Rej::from_bytes(*mad)),
            CmAttribute::Rep => self.reply(now, from, &Rep::from_bytes(*mad)),
            CmAttribute::Rtu => self.ready_to_use(from, &Rtu::from_bytes(*mad)),
            CmAttribute::Dreq => self.disconnect_request(now, from, &Dreq::from_bytes(*mad)),
            CmAttribute::Drep => self.disconnected(now, &Drep::from_bytes(*mad)),
            CmAttribute::Lap => self.alternate_path(from, &Lap::from_bytes(*mad)),
            CmAttribute::SidrReq => self.sidr_query(from, mad),
            CmAttribute::SidrRep => self.sidr_answer(&SidrRep::from_bytes(*mad)),
            // LAPs are never sent from here, and the class has no attributes that could be queried.
            CmAttribute::Apr | CmAttribute::ClassPortInfo => {}
            _ => {}
        }
    }

    /// [`Refused::State`] unless the connection is in one of these states.
    pub(crate) fn must_be(&self, id: u32, states: &[State]) -> Result<(), Refused> {
        let state = self.conns.get(&id).map(|conn| conn.state).ok_or(Refused::NoSuchId)?;
        match states.contains(&state) {
            true => Ok(()),
            false => Err(Refused::State(state)),
        }
    }

    /// Finds the connection for a message with both ids.
    fn between(&self, local: u32, remote: u32) -> Option<State> {
        self.conns.get(&local).filter(|conn| conn.remote_id == remote).map(|conn| conn.state)
    }

    /// True if a connection has sent its REQ and does not know its peer's id yet.
    fn awaits_reply(&self, id: u32) -> bool {
        self.must_be(id, &[State::ReqSent, State::MraReqReceived]).is_ok()
    }

    /// A REJ arrived.
    fn rejected(&mut self, now: Time, rej: &Rej) {
        let local = rej.remote_comm_id();
        let id = match rej.reason() {
            // A sender that never learned this side's id refers to the connection by its GUID (IBTA
            // 12.6.7.2).
            RejectReason::Timeout => {
                let guid = u64::from_be_bytes(hwspec::layout::prefix(&rej.info()));
                self.by_id.get(&(guid, rej.local_comm_id())).copied()
            }
            // In a REJ to a REQ, the sender has not told its id yet, or this side does not know it.
            _ if rej.message() == Concerning::Req => self.between(local, 0).map(|_| local),
            _ => self.between(local, rej.local_comm_id()).map(|_| local),
        };
        let Some((id, conn)) = id.and_then(|id| Some((id, self.conns.get(&id)?))) else { return };
        let about_req = rej.message() == Concerning::Req;
        let timewait = match conn.state {
            // The rejected REQ is this side's, or that of an earlier connection.
            State::ReqSent | State::MraReqReceived if !about_req => return,
            State::ReqSent
            | State::MraReqReceived
            | State::RepSent
            | State::MraRepReceived
            | State::ReqReceived
            | State::MraReqSent => rej.reason() == RejectReason::StaleConnection,
            State::RepReceived | State::MraRepSent | State::Established | State::DreqSent if !about_req => {
                true
            }
            _ => return,
        };
        let length = usize::from(rej.info_length()).min(rej.info().len());
        let event = match conn.state {
            // A peer that does not know the connection agrees to its end.
            State::DreqSent => Event::Disconnected { private_data: vec![0; 224] },
            _ => Event::Rejected {
                reason: rej.reason(),
                message: rej.message(),
                info: rej.info()[..length].to_vec(),
                private_data: rej.private_data().to_vec(),
            },
        };
        self.tell(id, event);
        if timewait { self.timewait(now, id) } else { self.idle(id) }
    }

    pub(crate) fn reject(
        &mut self,
        now: Time,
        id: u32,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), Refused> {
        let Some(conn) = self.conns.get(&id) else { return Err(Refused::NoSuchId) };
        let (local, message, timewait) = match conn.state {
            State::ReqReceived => (0, Concerning::Req, false),
            State::MraReqSent => (id, Concerning::Req, false),
            State::RepReceived | State::MraRepSent => (id, Concerning::Rep, false),
            State::ReqSent | State::MraReqReceived => (id, Concerning::Unspecified, false),
            State::RepSent | State::MraRepReceived => (id, Concerning::Unspecified, true),
            state => return Err(Refused::State(state)),
        };
        let mad = format::rej(local, conn, message, reason, info, private_data)?;
        let to = conn.address;
        self.send(to, mad);
        if timewait {
            self.timewait(now, id)
        } else {
            self.idle(id)
        }
        Ok(())
    }

    pub(crate) fn delay(
        &mut self,
        id: u32,
        service_timeout: u8,
        if_repeated: bool,
        private_data: Vec<u8>,
    ) -> Result<(), Refused> {
        let _: [u8; 222] = format::field(&private_data)?;
        let Some(conn) = self.conns.get_mut(&id) else { return Err(Refused::NoSuchId) };
        let (after, message) = match conn.state {
            State::ReqReceived => (State::MraReqSent, Concerning::Req),
            State::RepReceived => (State::MraRepSent, Concerning::Rep),
            state => return Err(Refused::State(state)),
        };
        conn.state = after;
        conn.service_timeout = service_timeout & 31;
        conn.answer = private_data;
        let (to, mad) = (conn.address, format::mra(id, conn, message, &conn.answer));
        if !if_repeated {
            self.send(to, mad);
        }
        Ok(())
    }

    pub(crate) fn disconnect(&mut self, now: Time, id: u32, private_data: &[u8]) -> Result<(), Refused> {
        self.must_be(id, &[State::Established])?;
        let _: [u8; 220] = format::field(private_data)?;
        self.send_dreq(now, id, private_data);
        Ok(())
    }

    pub(crate) fn send_dreq(&mut self, now: Time, id: u32, private_data: &[u8]) {
        let Some(conn) = self.conns.get(&id) else { return };
        let Ok(mad) = format::dreq(self, id, conn, private_data) else { return };
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::DreqSent;
        }
        self.send_until_answered(now, id, mad);
    }

    /// A DREQ arrived.
    fn disconnect_request(&mut self, now: Time, from: &Address, dreq: &Dreq) {
        let id = dreq.remote_comm_id();
        let Some(state) = self.between(id, dreq.local_comm_id()) else {
            return match self.is_own(id) {
                // The DREQ overtook the REP. A DREP would end only the peer's side; the DREQ will be
                // repeated.
                true if self.awaits_reply(id) => {}
                // The connection ended long ago, and the DREP was lost.
                true => self.send(*from, format::drep(dreq, &[])),
                false => self.unclaimed(from, Wanted::Connection(id), dreq.as_bytes()),
            };
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.qp.local_qpn != dreq.remote_qpn() {
            return;
        }
        let event = Event::Disconnect { private_data: dreq.private_data().to_vec() };
        // The passive side may know from its QP, before the RTU, that the connection is established.
        let stands = matches!(
            state,
            State::RepSent
                | State::MraRepReceived
                | State::RepReceived
                | State::MraRepSent
                | State::Established
        );
        match state {
            _ if stands && !conn.abandoned => {
                conn.state = State::DreqReceived;
                conn.transaction = dreq.header().transaction_id();
                self.answered(id);
                self.tell(id, event);
            }
            // Both sides disconnect, or there is no program left to ask (IBTA 12.9.8.4).
            _ if stands || state == State::DreqSent => {
                conn.answer = Vec::new();
                self.send(*from, format::drep(dreq, &[]));
                self.timewait(now, id);
                self.tell(id, event);
            }
            State::Timewait => {
                let mad = format::drep(dreq, &conn.answer);
                self.send(*from, mad);
            }
            _ => {}
        }
    }

    pub(crate) fn peer_gone(&mut self, now: Time, id: u32) -> Result<(), Refused> {
        let standing = [State::RepSent, State::MraRepReceived, State::Established];
        if self.must_be(id, &standing).is_ok() {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.state = State::DreqReceived;
            }
            self.answered(id);
            self.tell(id, Event::Disconnect { private_data: vec![0; 220] });
            return Ok(());
        }
        self.must_be(id, &[State::DreqSent])?;
        self.timewait(now, id);
        self.tell(id, Event::Disconnected { private_data: vec![0; 224] });
        Ok(())
    }

    pub(crate) fn disconnect_reply(
        &mut self,
        now: Time,
        id: u32,
        private_data: Vec<u8>,
    ) -> Result<(), Refused> {
        self.must_be(id, &[State::DreqReceived])?;
        let _: [u8; 224] = format::field(&private_data)?;
        self.send_drep(now, id, private_data);
        Ok(())
    }

    fn send_drep(&mut self, now: Time, id: u32, private_data: Vec<u8>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut dreq = Dreq::zeroed();
        dreq.set()
            .header(header(CmAttribute::Dreq, conn.transaction, 0))
            .local_comm_id(conn.remote_id)
            .remote_comm_id(id);
        let (to, mad) = (conn.address, format::drep(&dreq, &private_data));
        conn.answer = private_data;
        self.send(to, mad);
        self.timewait(now, id);
    }

    /// A DREP arrived.
    fn disconnected(&mut self, now: Time, drep: &Drep) {
        let id = drep.remote_comm_id();
        let state = self.between(id, drep.local_comm_id());
        if matches!(state, Some(State::DreqSent | State::DreqReceived)) {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.answer = Vec::new();
            }
            self.timewait(now, id);
            self.tell(id, Event::Disconnected { private_data: drep.private_data().to_vec() });
        }
    }

    /// A LAP arrived. Since our REPs say that failover is not supported, there should be none.
    fn alternate_path(&mut self, from: &Address, lap: &Lap) {
        if self.between(lap.remote_comm_id(), lap.local_comm_id()) == Some(State::Established) {
            self.send(*from, format::apr(lap));
        }
    }

    /// A connection's timer expired: repeats its message, gives up, or ends timewait.
    pub(crate) fn timed_out(&mut self, now: Time, id: u32) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let to = conn.address;
        if let Some(pending) = conn.pending.as_mut().filter(|pending| pending.left > 0) {
            pending.left -= 1;
            let (mad, timeout) = (*pending.mad, pending.timeout);
            self.send(to, mad);
            return self.arm(id, Some(now + timeout));
        }
        let guid = self.config.ca_guid.to_be_bytes();
        match conn.state {
            State::Timewait => {
                self.tell(id, Event::TimewaitOver);
                self.idle(id);
            }
            State::ReqSent | State::MraReqReceived | State::RepSent | State::MraRepReceived => {
                let failure = match conn.qp.active {
                    true => Failure::Request,
                    false => Failure::Reply,
                };
                let rej = format::rej(id, conn, Concerning::Unspecified, RejectReason::Timeout, &guid, &[]);
                if let Ok(mad) = rej {
                    self.send(to, mad);
                }
                self.tell(id, Event::Failed(failure));
                self.idle(id);
            }
            State::DreqSent => {
                self.tell(id, Event::Failed(Failure::Disconnect));
                self.timewait(now, id);
            }
            State::SidrReqSent => {
                self.tell(id, Event::Failed(Failure::Sidr));
                self.idle(id);
            }
            _ => {}
        }
    }

    /// Ends a connection on behalf of its program. The peer still gets any message due to it.
    pub(crate) fn destroy(&mut self, now: Time, id: u32) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.abandoned = true;
        let guid = self.config.ca_guid.to_be_bytes();
        match conn.state {
            State::Idle => self.idle(id),
            State::Listen => {
                let service_id = conn.service_id;
                self.services.remove(&service_id);
                self.idle(id);
            }
            State::ReqSent | State::MraReqReceived => {
                let _ = self.reject(now, id, RejectReason::Timeout, &guid, &[]);
            }
            State::ReqReceived
            | State::MraReqSent
            | State::RepReceived
            | State::MraRepSent
            | State::RepSent
            | State::MraRepReceived => {
                let _ = self.reject(now, id, RejectReason::ConsumerDefined, &[], &[]);
            }
            // The target of an XRC connection may outlive its creator (annex A14).
            State::Established if conn.qp.service == Service::Xrc && !conn.qp.active => self.idle(id),
            State::Established => self.send_dreq(now, id, &[]),
            State::DreqReceived => self.send_drep(now, id, Vec::new()),
            State::DreqSent | State::Timewait => {}
            State::SidrReqSent => self.idle(id),
            State::SidrReqReceived => {
                let reply = SidrReply {
                    status: SidrStatus::Rejected,
                    qpn: 0,
                    qkey: 0,
                    ece: (0, 0),
                    info: Vec::new(),
                    private_data: Vec::new(),
                };
                let _ = self.sidr_reply(id, &reply);
            }
        }
    }
}
