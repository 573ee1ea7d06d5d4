//! Recognises duplicates, and connections that the peer has forgotten (IBTA 12.9.8.3).
use crate::{Address, Agent, RejectReason, State, Time, agent::Remote, format};
use hwspec::wire::mad::cm::{Concerning, Req};

impl Agent {
    /// Records a connection by its peer's id. Fails with the connection that already has that id.
    pub(crate) fn note_remote_id(&mut self, id: u32) -> Result<(), u32> {
        let Some(conn) = self.conns.get(&id) else { return Ok(()) };
        let key = (conn.remote_ca_guid, conn.remote_id);
        note(&mut self.by_id, key, id)
    }

    /// Records a connection by its peer's QP. Fails with the connection that already has that QP.
    pub(crate) fn note_remote_qp(&mut self, id: u32) -> Result<(), u32> {
        let Some(conn) = self.conns.get(&id) else { return Ok(()) };
        let key = (conn.remote_ca_guid, conn.qp.remote_qpn);
        note(&mut self.by_qp, key, id)
    }

    pub(crate) fn forget_remote(&mut self, id: u32) {
        self.forget_remote_qp(id);
        let Some(conn) = self.conns.get(&id) else { return };
        forget(&mut self.by_id, (conn.remote_ca_guid, conn.remote_id), id);
    }

    pub(crate) fn forget_remote_qp(&mut self, id: u32) {
        let Some(conn) = self.conns.get(&id) else { return };
        forget(&mut self.by_qp, (conn.remote_ca_guid, conn.qp.remote_qpn), id);
    }

    /// Handles a REQ from a peer known to this agent. Returns true if it needs no further handling.
    pub(crate) fn known_request(&mut self, now: Time, from: &Address, req: &Req) -> bool {
        let guid = req.local_ca_guid();
        if let Some(id) = self.by_id.get(&(guid, req.local_comm_id())).copied() {
            let same = self.conns.get(&id).is_some_and(|conn| {
                conn.transaction == req.header().transaction_id() && conn.qp.remote_qpn == req.local_qpn()
            });
            match same {
                true => self.repeated_request(from, id, req),
                // Another incarnation of the peer uses the same id.
                false => self.stale(now, from, id, req),
            }
            return true;
        }
        if let Some(id) = self.by_qp.get(&(guid, req.local_qpn())).copied() {
            self.stale(now, from, id, req);
            return true;
        }
        false
    }

    /// Repeats the last answer in response to a repeated REQ.
    fn repeated_request(&mut self, from: &Address, id: u32, req: &Req) {
        let Some(conn) = self.conns.get(&id) else { return };
        let mad = match conn.state {
            State::MraReqSent => format::mra(id, conn, Concerning::Req, &conn.answer),
            State::Timewait => format::rej_to(req.as_bytes(), RejectReason::StaleConnection, Concerning::Req),
            // A REP is repeated by its own timer.
            _ => return,
        };
        self.send(*from, mad);
    }

    /// Handles a REQ that reuses the QP or id of connection `id`, which shows that the peer has forgotten the
    /// connection.
    pub(crate) fn stale(&mut self, now: Time, from: &Address, id: u32, req: &Req) {
        let mad = format::rej_to(req.as_bytes(), RejectReason::StaleConnection, Concerning::Req);
        self.send(*from, mad);
        self.release_stale(now, id);
    }

    /// Ends a connection that its peer has forgotten.
    pub(crate) fn release_stale(&mut self, now: Time, id: u32) {
        if self.conns.get(&id).is_some_and(|conn| conn.state == State::Established) {
            self.send_dreq(now, id, &[]);
        }
    }
}

fn note(map: &mut std::collections::BTreeMap<Remote, u32>, key: Remote, id: u32) -> Result<(), u32> {
    match *map.entry(key).or_insert(id) {
        there if there == id => Ok(()),
        other => Err(other),
    }
}

fn forget(map: &mut std::collections::BTreeMap<Remote, u32>, key: Remote, id: u32) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}
