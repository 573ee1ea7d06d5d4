//! The active side: REQ out, REP in, RTU out.
use crate::{
    Address, Agent, Connect, Event, QpParameters, Refused, RejectReason, Reply, Service, State, Time,
    duration, format,
};
use hwspec::wire::mad::cm::{Concerning, Mra, Rep};

impl Agent {
    pub(crate) fn connect(&mut self, now: Time, id: u32, connect: &Connect) -> Result<(), Refused> {
        self.must_be(id, &[State::Idle])?;
        let mad = format::req(self, id, connect)?;
        let (transaction, delay) = (self.transaction(id, 0), self.config.ack_delay);
        let Some(conn) = self.conns.get_mut(&id) else { return Err(Refused::NoSuchId) };
        conn.transaction = transaction;
        conn.service_id = connect.service_id;
        conn.remote_id = 0;
        conn.address = connect.path.address();
        conn.timeout =
            duration(connect.path.packet_life_time) * 2 + duration(connect.remote_response_timeout);
        conn.max_retries = connect.max_retries & 0xf;
        conn.qp = QpParameters {
            service: connect.service,
            active: true,
            path: connect.path,
            local_qpn: connect.qpn & 0xff_ffff,
            remote_qpn: 0,
            rq_psn: connect.starting_psn & 0xff_ffff,
            sq_psn: 0,
            responder_resources: connect.responder_resources,
            initiator_depth: connect.initiator_depth,
            retry_count: connect.retry_count & 7,
            rnr_retry_count: connect.rnr_retry_count & 7,
            ack_timeout: crate::ack_timeout(delay, connect.path.packet_life_time & 31),
        };
        conn.state = State::ReqSent;
        self.send_until_answered(now, id, mad);
        Ok(())
    }

    /// A REP arrived.
    pub(crate) fn reply(&mut self, now: Time, from: &Address, rep: &Rep) {
        let id = rep.remote_comm_id();
        let unknown = |reason| format::rej_to(rep.as_bytes(), reason, Concerning::Rep);
        let Some(conn) = self.conns.get(&id) else {
            // Notifies a peer that waits for a connection given up by this side (IBTA 12.9.8.3.1).
            if self.is_own(id) {
                self.send(*from, unknown(RejectReason::InvalidCommId));
            }
            return;
        };
        match conn.state {
            State::ReqSent | State::MraReqReceived => self.first_reply(now, from, id, rep),
            State::Idle | State::Listen | State::SidrReqSent | State::SidrReqReceived => {
                self.send(*from, unknown(RejectReason::InvalidCommId));
            }
            _ if conn.remote_id != rep.local_comm_id() => {
                self.send(*from, unknown(RejectReason::InvalidCommId));
            }
            // A repeated REP means that the RTU was lost.
            State::Established if conn.qp.active => {
                if let Ok(mad) = format::rtu(id, conn, &conn.answer) {
                    self.send(*from, mad);
                }
            }
            State::MraRepSent => {
                let mad = format::mra(id, conn, Concerning::Rep, &conn.answer);
                self.send(*from, mad);
            }
            _ => {}
        }
    }

    fn first_reply(&mut self, now: Time, from: &Address, id: u32, rep: &Rep) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let remote_qpn = match conn.qp.service {
            Service::Xrc => rep.local_eecn(),
            _ => rep.local_qpn(),
        };
        conn.remote_id = rep.local_comm_id();
        conn.remote_ca_guid = rep.local_ca_guid();
        conn.qp.remote_qpn = remote_qpn;
        let known = self.note_remote_id(id).err();
        let stale = known.or_else(|| self.note_remote_qp(id).err());
        if let Some(other) = stale {
            self.forget_remote(id);
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.remote_id = 0;
                conn.qp.remote_qpn = 0;
            }
            if known.is_none() {
                let mad = format::rej_to(rep.as_bytes(), RejectReason::StaleConnection, Concerning::Rep);
                self.send(*from, mad);
                self.release_stale(now, other);
            }
            return;
        }
        self.answered(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = State::RepReceived;
        conn.qp.sq_psn = rep.starting_psn();
        conn.qp.initiator_depth = rep.responder_resources();
        conn.qp.responder_resources = rep.initiator_depth();
        conn.qp.rnr_retry_count = rep.rnr_retry_count();
        let life_time = conn.qp.ack_timeout.saturating_sub(1);
        conn.qp.ack_timeout = crate::ack_timeout(rep.target_ack_delay(), life_time);
        let vendor = u32::from(rep.vendor_id_high()) << 16
            | u32::from(rep.vendor_id_middle()) << 8
            | u32::from(rep.vendor_id_low());
        let reply = Reply {
            remote_qpn,
            starting_psn: rep.starting_psn(),
            remote_ca_guid: rep.local_ca_guid(),
            responder_resources: rep.initiator_depth(),
            initiator_depth: rep.responder_resources(),
            target_ack_delay: rep.target_ack_delay(),
            rnr_retry_count: rep.rnr_retry_count(),
            flow_control: rep.end_to_end_flow_control(),
            srq: rep.srq(),
            ece: (vendor, rep.header().attribute_modifier()),
            private_data: rep.private_data().to_vec(),
        };
        self.tell(id, Event::Reply(Box::new(reply)));
    }

    pub(crate) fn ready(&mut self, id: u32, private_data: Vec<u8>) -> Result<(), Refused> {
        self.must_be(id, &[State::RepReceived, State::MraRepSent])?;
        let Some(conn) = self.conns.get_mut(&id) else { return Err(Refused::NoSuchId) };
        let mad = format::rtu(id, conn, &private_data)?;
        conn.state = State::Established;
        conn.answer = private_data;
        let to = conn.address;
        self.send(to, mad);
        Ok(())
    }

    /// An MRA arrived: the peer needs more time.
    pub(crate) fn delayed(&mut self, now: Time, mra: &Mra) {
        let id = mra.remote_comm_id();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let after = match (conn.state, mra.message()) {
            (State::ReqSent, Concerning::Req) => State::MraReqReceived,
            (State::RepSent, Concerning::Rep) if conn.remote_id == mra.local_comm_id() => {
                State::MraRepReceived
            }
            _ => return,
        };
        conn.state = after;
        let timeout = duration(mra.service_timeout()) + duration(conn.qp.ack_timeout);
        if let Some(pending) = conn.pending.as_mut() {
            pending.timeout = timeout;
        }
        self.arm(id, Some(now + timeout));
        let private_data = mra.private_data().to_vec();
        self.tell(id, Event::Delayed { service_timeout: mra.service_timeout(), private_data });
    }
}
