//! Service id resolution: finds the datagram QP of a service (IBTA 12.11).
use crate::{
    Address, Agent, ConnId, Event, Mad, Refused, SidrQuery, SidrReply, SidrRequest, State, Time, Wanted,
    conn::Conn, format,
};
use hwspec::wire::mad::cm::{SidrRep, SidrReq};

impl Agent {
    pub(crate) fn sidr_request(&mut self, now: Time, id: u32, request: &SidrRequest) -> Result<(), Refused> {
        self.must_be(id, &[State::Idle])?;
        let mad = format::sidr_req(self, id, request)?;
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::SidrReqSent;
            conn.service_id = request.service_id;
            conn.address = request.path.address();
            conn.qp.path = request.path;
            conn.timeout = request.timeout;
            conn.max_retries = request.max_retries;
        }
        self.send_until_answered(now, id, mad);
        Ok(())
    }

    /// A SIDR_REQ arrived.
    pub(crate) fn sidr_query(&mut self, from: &Address, mad: &Mad) {
        let req = SidrReq::from_bytes(*mad);
        let key = (from.remote_gid, from.remote_lid, req.request_id());
        if self.queries.contains_key(&key) {
            return;
        }
        let Some(listener) = self.services.get(&req.service_id()).copied() else {
            return self.unclaimed(from, Wanted::Service(req.service_id()), mad);
        };
        let conn = Conn {
            state: State::SidrReqReceived,
            remote_id: req.request_id(),
            transaction: req.header().transaction_id(),
            service_id: req.service_id(),
            address: *from,
            ..Conn::default()
        };
        // No ids are left. The peer will repeat its request.
        let Ok(id) = self.insert(conn) else { return };
        self.queries.insert(key, id.0);
        let query = SidrQuery {
            listener: ConnId(listener),
            from: *from,
            service_id: req.service_id(),
            pkey: req.pkey(),
            private_data: req.private_data().to_vec(),
        };
        self.tell(id.0, Event::SidrRequest(Box::new(query)));
    }

    pub(crate) fn sidr_reply(&mut self, id: u32, reply: &SidrReply) -> Result<(), Refused> {
        self.must_be(id, &[State::SidrReqReceived])?;
        let Some(conn) = self.conns.get(&id) else { return Err(Refused::NoSuchId) };
        let mad = format::sidr_rep(conn.transaction, conn.remote_id, conn.service_id, reply)?;
        let to = conn.address;
        self.queries.remove(&(to.remote_gid, to.remote_lid, conn.remote_id));
        self.send(to, mad);
        self.idle(id);
        Ok(())
    }

    /// A SIDR_REP arrived.
    pub(crate) fn sidr_answer(&mut self, rep: &SidrRep) {
        let id = rep.request_id();
        if self.conns.get(&id).map(|conn| conn.state) != Some(State::SidrReqSent) {
            return;
        }
        let length = usize::from(rep.info_length()).min(rep.info().len());
        let answer = SidrReply {
            status: rep.status(),
            qpn: rep.qpn(),
            qkey: rep.qkey(),
            ece: (
                u32::from(rep.vendor_id_high()) << 8 | u32::from(rep.vendor_id_low()),
                rep.header().attribute_modifier(),
            ),
            info: rep.info()[..length].to_vec(),
            private_data: rep.private_data().to_vec(),
        };
        self.tell(id, Event::SidrReply(Box::new(answer)));
        self.idle(id);
    }
}
