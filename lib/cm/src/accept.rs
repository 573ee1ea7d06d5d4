//! The passive side: REQ in, REP out, RTU in.
use crate::{
    Accept, Address, Agent, Event, Mad, Path, QpParameters, Refused, RejectReason, Request, State, Time,
    Wanted, conn::Conn, duration, format,
};
use hwspec::wire::mad::cm::{Concerning, Req, Rtu};

impl Agent {
    pub(crate) fn listen(&mut self, id: u32, service_id: u64) -> Result<(), Refused> {
        self.must_be(id, &[State::Idle])?;
        if self.services.contains_key(&service_id) {
            return Err(Refused::InUse);
        }
        self.services.insert(service_id, id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::Listen;
            conn.service_id = service_id;
        }
        Ok(())
    }

    /// A REQ arrived.
    pub(crate) fn request(&mut self, now: Time, from: &Address, mad: &Mad) {
        let req = Req::from_bytes(*mad);
        if self.known_request(now, from, &req) {
            return;
        }
        let Some(listener) = self.services.get(&req.service_id()).copied() else {
            return self.unclaimed(from, Wanted::Service(req.service_id()), mad);
        };
        let refuse = |reason| format::rej_to(mad, reason, Concerning::Req);
        let Some(service) = format::service_of(&req) else {
            return self.send(*from, refuse(RejectReason::InvalidTransportType));
        };
        if !(1..=5).contains(&req.path_mtu()) {
            return self.send(*from, refuse(RejectReason::InvalidMtu));
        }
        let path = Path::of_request(&req.primary(), req.path_mtu(), req.pkey(), from);
        let conn = Conn {
            state: State::ReqReceived,
            remote_id: req.local_comm_id(),
            remote_ca_guid: req.local_ca_guid(),
            transaction: req.header().transaction_id(),
            service_id: req.service_id(),
            address: *from,
            timeout: duration(req.local_cm_response_timeout()),
            max_retries: req.max_cm_retries(),
            qp: QpParameters {
                service,
                active: false,
                path,
                local_qpn: 0,
                remote_qpn: req.local_qpn(),
                rq_psn: 0,
                sq_psn: req.starting_psn(),
                responder_resources: req.initiator_depth(),
                initiator_depth: req.responder_resources(),
                retry_count: req.retry_count(),
                rnr_retry_count: req.rnr_retry_count(),
                ack_timeout: crate::ack_timeout(self.config.ack_delay, path.packet_life_time),
            },
            ..Conn::default()
        };
        let Ok(id) = self.insert(conn) else { return self.send(*from, refuse(RejectReason::NoResources)) };
        // Neither map has an entry for this peer: known peers are handled elsewhere.
        let _ = self.note_remote_id(id.0);
        let _ = self.note_remote_qp(id.0);
        let request = Request {
            listener: crate::ConnId(listener),
            from: *from,
            service_id: req.service_id(),
            service,
            path,
            remote_ca_guid: req.local_ca_guid(),
            remote_qpn: req.local_qpn(),
            starting_psn: req.starting_psn(),
            responder_resources: req.initiator_depth(),
            initiator_depth: req.responder_resources(),
            retry_count: req.retry_count(),
            rnr_retry_count: req.rnr_retry_count(),
            flow_control: req.end_to_end_flow_control(),
            srq: req.srq(),
            ece: (req.vendor_id(), req.header().attribute_modifier()),
            private_data: req.private_data().to_vec(),
        };
        self.tell(id.0, Event::Request(Box::new(request)));
    }

    pub(crate) fn accept(&mut self, now: Time, id: u32, accept: &Accept) -> Result<(), Refused> {
        self.must_be(id, &[State::ReqReceived, State::MraReqSent])?;
        let Some(conn) = self.conns.get(&id) else { return Err(Refused::NoSuchId) };
        let mad = format::rep(self, id, conn, accept)?;
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::RepSent;
            conn.qp.local_qpn = accept.qpn & 0xff_ffff;
            conn.qp.rq_psn = accept.starting_psn & 0xff_ffff;
            conn.qp.initiator_depth = accept.initiator_depth;
            conn.qp.responder_resources = accept.responder_resources;
        }
        self.send_until_answered(now, id, mad);
        Ok(())
    }

    /// Refuses, on behalf of the whole function, a MAD that no agent on it claims.
    pub fn refuse(&mut self, unclaimed: &crate::Unclaimed) {
        use hwspec::wire::mad::cm::{CmAttribute, Dreq, SidrReq};
        let mad = &unclaimed.mad;
        let request = SidrReq::from_bytes(**mad);
        let answer = match CmAttribute::from_raw(request.header().attribute_id()) {
            CmAttribute::Req => format::rej_to(mad, RejectReason::InvalidServiceId, Concerning::Req),
            CmAttribute::Dreq => format::drep(&Dreq::from_bytes(**mad), &[]),
            _ => format::sidr_refusal(&request),
        };
        self.send(unclaimed.from, answer);
    }

    /// An RTU arrived.
    pub(crate) fn ready_to_use(&mut self, from: &Address, rtu: &Rtu) {
        let id = rtu.remote_comm_id();
        let known = self.conns.get_mut(&id).filter(|conn| conn.remote_id == rtu.local_comm_id());
        let Some(conn) = known else {
            if self.is_own(id) {
                self.is_over(from, rtu);
            }
            return;
        };
        match conn.state {
            State::RepSent | State::MraRepReceived => {
                conn.state = State::Established;
                self.answered(id);
                self.tell(id, Event::Established { private_data: rtu.private_data().to_vec() });
            }
            State::Timewait | State::Idle => self.is_over(from, rtu),
            _ => {}
        }
    }

    /// Rejects an RTU for a connection that ended here while the RTU was in flight. A peer that has learned of
    /// the end in the meantime ignores this.
    fn is_over(&mut self, from: &Address, rtu: &Rtu) {
        let mad = format::rej_to(rtu.as_bytes(), RejectReason::InvalidCommId, Concerning::Unspecified);
        self.send(*from, mad);
    }

    /// The QP has received a packet, which is equivalent to an RTU.
    pub(crate) fn established(&mut self, id: u32) -> Result<(), Refused> {
        self.must_be(id, &[State::RepSent, State::MraRepReceived])?;
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::Established;
        }
        self.answered(id);
        self.tell(id, Event::Established { private_data: vec![0; 224] });
        Ok(())
    }
}
