//! Converts events of the protocol to librdmacm events.

use super::file::Pending;
use super::id::{Conn, Id, State};
use super::ip_header::{IpHeader, sock_addr};
use super::manager::{Manager, response};
use super::ports::{self, At};
use super::sockaddr::SockAddr;
use super::uapi::{AhAttr, ConnParam, Plain, UdParam, event, qp_type};
use cm::{Command, Event, Failure, Path, Reply, Request, Service, SidrQuery, SidrReply, SidrStatus};

/// Length of the private data in a SIDR_REP.
pub const SIDR_REP_DATA: u8 = 136;

/// Index of `lo`, which is the net device of every port here.
const LOOPBACK_INTERFACE: u32 = 1;

/// The fields that REQ and SIDR_REQ have in common.
struct Asker<'a> {
    conn: Conn,
    listener: cm::ConnId,
    service_id: u64,
    local_gid: [u8; 16],
    remote_gid: [u8; 16],
    pkey: u16,
    private_data: &'a [u8],
}

/// The private data field with `data`, and its length.
fn field(data: &[u8]) -> ([u8; 256], u8) {
    let mut field = [0; 256];
    let count = data.len().min(255);
    field[..count].copy_from_slice(&data[..count]);
    (field, count as u8)
}

impl Manager {
    /// Handles an event of the connection or listener `conn`.
    pub fn handle_event(&mut self, conn: Conn, happened: Event) {
        match happened {
            Event::Request(request) => return self.requested(conn, &request),
            Event::SidrRequest(query) => return self.asked(conn, &query),
            _ => {}
        }
        let Some(number) = self.conns.get(&conn).copied() else { return };
        let Some(id) = self.ids.get_mut(number) else { return };
        let wanted = if happened == Event::TimewaitOver { State::Disconnect } else { State::Connect };
        if id.state != wanted {
            return;
        }
        let nothing = ConnParam::zero();
        match happened {
            Event::Reply(reply) => self.replied(conn, number, &reply),
            Event::Established { .. } => self.report(number, event::ESTABLISHED, 0, nothing.bytes(), (0, 0)),
            Event::Rejected { reason, private_data, .. } => {
                let (private_data, private_data_len) = field(&private_data);
                let param = ConnParam { private_data, private_data_len, ..nothing };
                self.report(number, event::REJECTED, reason.raw().into(), param.bytes(), (0, 0));
            }
            Event::Failed(Failure::Request | Failure::Reply | Failure::Sidr) => {
                self.report(number, event::UNREACHABLE, -libc::ETIMEDOUT, nothing.bytes(), (0, 0));
            }
            Event::Disconnect { .. } | Event::Disconnected { .. } | Event::Failed(Failure::Disconnect) => {
                id.state = State::Disconnect;
                let silent = matches!(happened, Event::Failed(_));
                let status = if silent { -libc::ETIMEDOUT } else { 0 };
                self.report(number, event::DISCONNECTED, status, nothing.bytes(), (0, 0));
            }
            Event::TimewaitOver => self.report(number, event::TIMEWAIT_EXIT, 0, nothing.bytes(), (0, 0)),
            Event::SidrReply(answer) => self.answered(number, &answer),
            Event::Delayed { .. } | Event::Request(_) | Event::SidrRequest(_) => {}
        }
    }

    /// Records that the program may take long to respond. The peer gets an MRA if it repeats its request.
    fn take_time(&mut self, conn: Conn) {
        let delay = Command::Delay {
            service_timeout: cm::default::MRA_TIMEOUT,
            if_repeated: true,
            private_data: Vec::new(),
        };
        let _ = self.command(conn, delay);
    }

    fn replied(&mut self, conn: Conn, number: u32, reply: &Reply) {
        self.take_time(conn);
        let (private_data, private_data_len) = field(&reply.private_data);
        let param = ConnParam {
            qp_num: reply.remote_qpn,
            private_data,
            private_data_len,
            srq: reply.srq.into(),
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control.into(),
            rnr_retry_count: reply.rnr_retry_count,
            ..ConnParam::zero()
        };
        self.report(number, event::CONNECT_RESPONSE, 0, param.bytes(), reply.ece);
    }

    fn answered(&mut self, number: u32, answer: &SidrReply) {
        let (private_data, private_data_len) = field(&answer.private_data);
        let mut param = UdParam { private_data, private_data_len, ..UdParam::zero() };
        let Some(id) = self.ids.get_mut(number) else { return };
        if answer.status != SidrStatus::Valid {
            let status = answer.status.raw().into();
            return self.report(number, event::UNREACHABLE, status, param.bytes(), answer.ece);
        }
        id.qkey = answer.qkey;
        (param.qp_num, param.qkey) = (answer.qpn, answer.qkey);
        if let (Some(path), Some(at)) = (&id.path, id.at) {
            param.ah_attr = address_vector(path, at);
        }
        self.report(number, event::ESTABLISHED, 0, param.bytes(), answer.ece);
    }

    fn requested(&mut self, conn: Conn, request: &Request) {
        let asker = Asker {
            conn,
            listener: request.listener,
            service_id: request.service_id,
            local_gid: request.path.local_gid,
            remote_gid: request.path.remote_gid,
            pkey: request.path.pkey,
            private_data: &request.private_data,
        };
        let Some((listener, child, at)) = self.child(&asker) else { return self.hang_up(conn) };
        self.announce(at.port);
        let kind = match request.service {
            Service::Rc => qp_type::RC,
            Service::Uc => qp_type::UC,
            Service::Xrc => qp_type::XRC_TGT,
        };
        let data = request.private_data.get(child.header_len()..).unwrap_or(&[]);
        let (private_data, private_data_len) = field(data);
        let param = ConnParam {
            qp_num: request.remote_qpn,
            private_data,
            private_data_len,
            srq: request.srq.into(),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control.into(),
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ..ConnParam::zero()
        };
        let child = Id { qp_type: kind, path: Some(request.path), at: Some(at), ..child };
        if self.present(listener, child, conn, param.bytes(), request.ece) {
            self.take_time(conn);
        }
    }

    fn asked(&mut self, conn: Conn, query: &SidrQuery) {
        let asker = Asker {
            conn,
            listener: query.listener,
            service_id: query.service_id,
            local_gid: query.from.local_gid,
            remote_gid: query.from.remote_gid,
            pkey: query.pkey,
            private_data: &query.private_data,
        };
        let Some((listener, child, at)) = self.child(&asker) else { return self.hang_up(conn) };
        self.announce(at.port);
        let from = &query.from;
        let path = Path {
            local_gid: self.ports[at.port].gid(at.gid),
            remote_gid: from.remote_gid,
            local_lid: from.local_lid,
            remote_lid: from.remote_lid,
            grh: from.grh,
            sl: from.sl,
            traffic_class: from.traffic_class,
            hop_limit: from.hop_limit,
            pkey: query.pkey,
            ..Path::default()
        };
        let (private_data, private_data_len) =
            field(query.private_data.get(child.header_len()..).unwrap_or(&[]));
        let param = UdParam { private_data, private_data_len, ..UdParam::zero() };
        let child = Id { path: Some(path), at: Some(at), ..child };
        self.present(listener, child, conn, param.bytes(), (0, 0));
    }

    /// Finds the listener for a request, and creates the ID of the new connection.
    fn child(&self, asker: &Asker<'_>) -> Option<(u32, Id, At)> {
        let port = asker.conn.0;
        let listening = self.listening.get(&(port, asker.service_id)).filter(|l| l.conn == asker.listener)?;
        let header = IpHeader::read(asker.private_data);
        let (number, listener) = listening.ids.iter().find_map(|number| {
            let id = self.ids.get(*number)?;
            hears(id, header.as_ref(), &asker.local_gid).then_some((*number, id))
        })?;
        let here = &self.ports[port];
        let gid = here.info.gids.iter().position(|gid| *gid == asker.local_gid).unwrap_or(0) as u8;
        let at = At { port, gid };
        let own = listener.src?;
        let (src, dst) = match (own, header) {
            (SockAddr::Ib { sid, mask, .. }, _) => {
                let pkey = asker.pkey;
                let there =
                    SockAddr::Ib { gid: asker.remote_gid, pkey, sid: asker.service_id, mask: u64::MAX };
                (SockAddr::Ib { gid: here.gid(gid), pkey, sid, mask }, there)
            }
            (_, Some(header)) => {
                let addr = |ip, port| sock_addr(ip, port, LOOPBACK_INTERFACE);
                (addr(header.dst, own.port()), addr(header.src, header.port))
            }
            (_, None) => return None,
        };
        let psn = self.random() & 0xff_ffff;
        let child = Id {
            state: State::Connect,
            src: Some(src),
            dst: Some(dst),
            remote_gid: asker.remote_gid,
            conn: Some(asker.conn),
            tos: listener.tos,
            ..Id::new(listener.file, 0, listener.ps, listener.qp_type, psn)
        };
        Some((number, child, at))
    }

    /// Reports a new ID to its listener. Returns false if the listener's backlog is full; the ID is then dropped.
    fn present(&mut self, listener: u32, child: Id, conn: Conn, param: &[u8], ece: (u32, u32)) -> bool {
        let Some(id) = self.ids.get_mut(listener).filter(|id| id.backlog > 0) else {
            self.hang_up(conn);
            return false;
        };
        id.backlog -= 1;
        let (uid, file) = (id.uid, id.file);
        let number = self.ids.insert(child);
        self.conns.insert(conn, number);
        let response = response(uid, number, event::CONNECT_REQUEST, 0, param, ece);
        self.deliver(file, Pending { about: listener, child: Some(number), group: None, response });
        true
    }
}

/// True if the request is for this listener.
fn hears(id: &Id, header: Option<&IpHeader>, local_gid: &[u8; 16]) -> bool {
    let (Some(src), State::Listen) = (id.src, id.state) else { return false };
    match (src, header) {
        (SockAddr::Ib { gid, .. }, _) => gid == [0; 16] || gid == *local_gid,
        (_, None) => false,
        // It listens on all ports.
        (_, Some(header)) if id.at.is_none() => {
            let same = src.ip().is_some_and(|ip| ip.is_ipv4() == header.dst.is_ipv4());
            same || !id.is_af_only()
        }
        (_, Some(header)) => src.ip() == Some(header.dst),
    }
}

/// The address vector of a path.
pub fn address_vector(path: &Path, at: At) -> AhAttr {
    AhAttr {
        dgid: if path.grh { path.remote_gid } else { [0; 16] },
        flow_label: path.flow_label,
        sgid_index: at.gid,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        dlid: path.remote_lid,
        sl: path.sl,
        static_rate: path.rate,
        is_global: path.grh.into(),
        port_num: ports::PORT,
        ..AhAttr::zero()
    }
}
