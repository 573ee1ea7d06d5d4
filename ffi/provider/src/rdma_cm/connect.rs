//! What a program does with a connection: connect, accept, reject, disconnect, and the listening before it.

use super::commands::Step;
use super::id::{Conn, State};
use super::ip_header::IpHeader;
use super::manager::{Listening, Manager, Shared};
use super::ports;
use super::uapi::{ConnParam, Plain, UdParam, event, qp_type};
use cm::{Accept, Command, Connect, Refused, RejectReason, Service, SidrReply, SidrRequest, SidrStatus};
use libc::c_int;

/// Lengths of the fields for private data (IBTA 12.6 and 12.11).
const REQ_DATA: usize = 92;
const SIDR_REQ_DATA: usize = 216;
/// Private data of a REJ.
pub const REJ_DATA: u8 = 148;
/// `IB_EVENT_COMM_EST` of rdma_notify(3).
const COMM_EST: u32 = 4;

/// The errno of a refused command.
fn errno(refused: Refused) -> c_int {
    match refused {
        Refused::NoSuchId | Refused::State(_) | Refused::TooLong(..) => libc::EINVAL,
        Refused::InUse => libc::EBUSY,
        Refused::Full => libc::ENOMEM,
    }
}

/// The transport of a connected QP type.
fn service(qp_type: u8) -> Option<Service> {
    match qp_type {
        qp_type::RC => Some(Service::Rc),
        qp_type::UC => Some(Service::Uc),
        qp_type::XRC_INI => Some(Service::Xrc),
        _ => None,
    }
}

/// Waits a moment for a listener on this node, if the connection that `number` asks for would find none. Between hosts a
/// request takes its time, and servers count on that: perftest's listens only after it has told its client to connect.
pub fn wait_for_listener(number: u32) {
    const TRIES: u32 = 50;
    for _ in 0..TRIES {
        if !Shared::here().lock().would_be_refused(number) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

impl Manager {
    /// Whether the connection that `number` asks for is one to a port of this node where nobody listens.
    fn would_be_refused(&self, number: u32) -> bool {
        let Some(id) = self.ids.get(number) else { return false };
        let (State::RouteResolved, Some(path), Some(dst)) = (id.state, id.path, id.dst) else { return false };
        self.nobody_listens(path.remote_gid, id.service_id(&dst))
    }

    /// Asks the peer for a connection, or for its datagram QP.
    ///
    /// # Errors
    /// EINVAL: the path is not known, or there is too much private data.
    pub fn connect(&mut self, number: u32, param: &ConnParam, ece: (u32, u32)) -> Result<Step, c_int> {
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        let (Some(at), Some(path), Some(dst), Some(src)) = (id.at, id.path, id.dst, id.src) else {
            return Err(libc::EINVAL);
        };
        if id.state != State::RouteResolved {
            return Err(libc::EINVAL);
        }
        (id.qp_num, id.srq) = (param.qp_num & 0xff_ffff, param.srq != 0);
        let (datagram, service_id) = (id.is_datagram(), id.service_id(&dst));
        let mut private_data = match id.header_len() {
            0 => Vec::new(),
            _ => IpHeader::of(&src, &dst).and_then(|header| header.bytes()).ok_or(libc::EINVAL)?.to_vec(),
        };
        private_data.extend_from_slice(&param.private_data[..usize::from(param.private_data_len)]);
        let room = if datagram { SIDR_REQ_DATA } else { REQ_DATA };
        let kind = service(id.qp_type);
        if private_data.len() > room || (kind.is_none() && !datagram) {
            return Err(libc::EINVAL);
        }
        let (local_qpn, starting_psn, srq) = (id.qp_num, id.psn, id.srq);
        if self.nobody_listens(path.remote_gid, service_id) {
            return self.refused_here(number, datagram);
        }
        let command = match kind {
            None => Command::SidrRequest(Box::new(SidrRequest {
                service_id,
                path,
                // As Linux' rdma_cm: the time a peer is given to answer, doubled.
                timeout: cm::duration(cm::default::RESPONSE_TIMEOUT) * 2,
                max_retries: cm::default::MAX_RETRIES,
                private_data,
            })),
            Some(service) => Command::Connect(Box::new(Connect {
                qpn: local_qpn,
                starting_psn,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                retry_count: param.retry_count.min(7),
                rnr_retry_count: param.rnr_retry_count.min(7),
                flow_control: param.flow_control != 0,
                srq,
                ece,
                private_data,
                ..Connect::new(service_id, service, path)
            })),
        };
        let conn = self.line(at.port)?.agent.open().map_err(errno)?;
        let conn = (at.port, conn);
        self.conns.insert(conn, number);
        if let Some(id) = self.ids.get_mut(number) {
            (id.conn, id.state) = (Some(conn), State::Connect);
        }
        self.command(conn, command).inspect_err(|_| {
            self.hang_up(conn);
            if let Some(id) = self.ids.get_mut(number) {
                (id.conn, id.state) = (None, State::RouteResolved);
            }
        })?;
        Ok(Step::Done)
    }

    /// Whether the peer is a port of this node at which nobody listens to the service.
    fn nobody_listens(&self, remote: [u8; 16], service_id: u64) -> bool {
        let Some(there) = ports::with_gid(&self.ports, &remote) else { return false };
        if self.is_listened_to(there, service_id) {
            return false;
        }
        // A guest that has the function listens in its own way.
        !self.ports[there.port].is_served()
    }

    /// What the peer would answer.
    fn refused_here(&mut self, number: u32, datagram: bool) -> Result<Step, c_int> {
        /// `IB_SIDR_UNSUPPORTED`: service id not supported.
        const UNSUPPORTED: i32 = 1;
        if let Some(id) = self.ids.get_mut(number) {
            id.state = State::Connect;
        }
        if datagram {
            let param = UdParam { private_data_len: super::cm_events::SIDR_REP_DATA, ..UdParam::zero() };
            self.report(number, event::UNREACHABLE, UNSUPPORTED, param.bytes(), (0, 0));
        } else {
            let param = ConnParam { private_data_len: REJ_DATA, ..ConnParam::zero() };
            let reason = RejectReason::InvalidServiceId.raw().into();
            self.report(number, event::REJECTED, reason, param.bytes(), (0, 0));
        }
        Ok(Step::Done)
    }

    /// Accepts a request, or with no parameters completes the connection this side asked for.
    ///
    /// # Errors
    /// EINVAL: neither is due, or there is too much private data.
    pub fn accept(
        &mut self,
        number: u32,
        uid: u64,
        param: &ConnParam,
        ece: (u32, u32),
    ) -> Result<Step, c_int> {
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        let (Some(conn), State::Connect) = (id.conn, id.state) else { return Err(libc::EINVAL) };
        let valid = param.valid != 0;
        if valid {
            (id.qp_num, id.srq) = (param.qp_num & 0xff_ffff, param.srq != 0);
        }
        let private_data = param.private_data[..usize::from(param.private_data_len)].to_vec();
        let command = match (id.is_datagram(), valid) {
            (true, _) => {
                // Only who goes by AF_IB may name a Q_Key.
                if id.header_len() == 0 && param.qkey != 0 {
                    id.qkey = param.qkey;
                }
                Command::SidrReply(Box::new(SidrReply {
                    status: SidrStatus::Valid,
                    qpn: id.qp_num,
                    qkey: id.q_key(),
                    ece,
                    info: Vec::new(),
                    private_data,
                }))
            }
            (false, true) => Command::Accept(Box::new(Accept {
                qpn: id.qp_num,
                starting_psn: id.psn,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                rnr_retry_count: param.rnr_retry_count.min(7),
                flow_control: param.flow_control != 0,
                srq: id.srq,
                ece,
                private_data,
            })),
            (false, false) => Command::Ready { private_data: Vec::new() },
        };
        // Before the peer can answer.
        let before = id.uid;
        if valid {
            id.uid = uid;
        }
        self.command(conn, command).inspect_err(|_| {
            if let Some(id) = self.ids.get_mut(number) {
                id.uid = before;
            }
            let _ = self.reject(number, 0, &[]);
        })?;
        Ok(Step::Done)
    }

    /// Rejects a request, or the answer to one.
    ///
    /// # Errors
    /// EINVAL: nothing to reject, too much private data, or a reason the program may not give.
    pub fn reject(&mut self, number: u32, reason: u8, private_data: &[u8]) -> Result<Step, c_int> {
        const VENDOR_OPTION_NOT_SUPPORTED: u8 = 35;
        let reason = match reason {
            0 | 28 => RejectReason::ConsumerDefined,
            VENDOR_OPTION_NOT_SUPPORTED => RejectReason::VendorOptionNotSupported,
            _ => return Err(libc::EINVAL),
        };
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let conn = id.conn.ok_or(libc::EINVAL)?;
        let private_data = private_data.to_vec();
        let command = match id.is_datagram() {
            true => Command::SidrReply(Box::new(SidrReply {
                status: SidrStatus::Rejected,
                qpn: 0,
                qkey: 0,
                ece: (0, 0),
                info: Vec::new(),
                private_data,
            })),
            false => Command::Reject { reason, info: Vec::new(), private_data },
        };
        self.command(conn, command)?;
        Ok(Step::Done)
    }

    /// Ends a connection, or agrees to its end.
    ///
    /// # Errors
    /// EINVAL: there was none.
    pub fn disconnect(&mut self, number: u32) -> Result<Step, c_int> {
        let conn = self.ids.get(number).and_then(|id| id.conn).ok_or(libc::EINVAL)?;
        if self.command(conn, Command::Disconnect { private_data: Vec::new() }).is_err() {
            // It is over already, or never was: Linux says nothing either.
            let _ = self.command(conn, Command::DisconnectReply { private_data: Vec::new() });
        }
        Ok(Step::Done)
    }

    /// The program's QP has reported something.
    ///
    /// # Errors
    /// EINVAL: not this event, or not now.
    pub fn notify(&mut self, number: u32, event: u32) -> Result<Step, c_int> {
        let conn = self.ids.get(number).and_then(|id| id.conn).ok_or(libc::EINVAL)?;
        if event != COMM_EST {
            return Err(libc::EINVAL);
        }
        // Who is connected already needs no more.
        if self.line(conn.0)?.agent.state(conn.1) != Some(cm::State::Established) {
            self.command(conn, Command::Established)?;
        }
        Ok(Step::Done)
    }

    /// Lets `number` hear of requests for `service` at a port of the fabric.
    ///
    /// # Errors
    /// Those of opening the function; ENOMEM.
    pub fn listen_at(&mut self, port: usize, service: u64, number: u32) -> Result<(), c_int> {
        if let Some(listening) = self.listening.get_mut(&(port, service)) {
            listening.ids.push(number);
            return Ok(());
        }
        let conn = self.line(port)?.agent.open().map_err(errno)?;
        self.command((port, conn), Command::Listen { service_id: service })?;
        self.listening.insert((port, service), Listening { conn, ids: vec![number] });
        Ok(())
    }

    /// `number` hears of no more requests.
    pub fn stop_listening(&mut self, number: u32) {
        let mut over = Vec::new();
        self.listening.retain(|(port, _), listening| {
            listening.ids.retain(|id| *id != number);
            let left = !listening.ids.is_empty();
            if !left {
                over.push((*port, listening.conn));
            }
            left
        });
        over.into_iter().for_each(|conn| self.hang_up(conn));
    }

    /// An end of a connection goes; the peer is told what is due.
    pub fn hang_up(&mut self, conn: Conn) {
        self.conns.remove(&conn);
        let _ = self.command(conn, Command::Destroy);
    }

    /// Gives the protocol a command, and does what comes of it.
    ///
    /// # Errors
    /// The errno Linux has for what it refuses.
    pub fn command(&mut self, conn: Conn, command: Command) -> Result<(), c_int> {
        let now = self.now();
        let line = self.line(conn.0)?;
        let done = line.agent.handle(now, cm::Input::Command(conn.1, command)).map_err(errno);
        self.pump(conn.0);
        self.wake();
        done
    }
}
