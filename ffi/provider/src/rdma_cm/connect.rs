//! Commands on connections: listen, connect, accept, reject and disconnect.

use super::commands::Step;
use super::id::{Conn, State};
use super::ip_header::IpHeader;
use super::manager::{Listening, Manager, Shared};
use super::ports;
use super::uapi::{ConnParam, Plain, UdParam, event, qp_type};
use cm::{Accept, Command, Connect, Refused, RejectReason, Service, SidrReply, SidrRequest, SidrStatus};
use libc::c_int;

/// Lengths of the private data fields (IBTA 12.6 and 12.11).
const REQ_DATA: usize = 92;
const SIDR_REQ_DATA: usize = 216;
/// Length of the private data in a REJ.
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

/// Waits briefly for a listener on this node if there is none for the request of `number`. Between hosts a request takes some time, and
/// servers rely on that: perftest's server listens only after it has told its client to connect.
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
    /// True if `number` connects to a port of this node that has no listener.
    fn would_be_refused(&self, number: u32) -> bool {
        let Some(id) = self.ids.get(number) else { return false };
        let (State::RouteResolved, Some(path), Some(dst)) = (id.state, id.path, id.dst) else { return false };
        self.nobody_listens(path.remote_gid, id.service_id(&dst))
    }

    /// Requests a connection, or the peer's datagram QP.
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
                // As in Linux' rdma_cm: twice the peer's response time.
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

    /// True if the peer is a port of this node without a listener for the service.
    fn nobody_listens(&self, remote: [u8; 16], service_id: u64) -> bool {
        let Some(there) = ports::with_gid(&self.ports, &remote) else { return false };
        if self.is_listened_to(there, service_id) {
            return false;
        }
        // In a guest that has the function, its own connection manager listens.
        !self.ports[there.port].is_served()
    }

    /// Reports the rejection that the peer would send.
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

    /// Accepts a request, or without parameters completes the connection that this side requested.
    ///
    /// # Errors
    /// EINVAL: there is neither, or there is too much private data.
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
                // Only IDs of AF_IB may choose a Q_Key.
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
        // The peer may respond at once.
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

    /// Rejects a request, or the reply to one.
    ///
    /// # Errors
    /// EINVAL: nothing to reject, too much private data, or a reason that programs may not give.
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

    /// Disconnects, or confirms the peer's disconnect.
    ///
    /// # Errors
    /// EINVAL: there is no connection.
    pub fn disconnect(&mut self, number: u32) -> Result<Step, c_int> {
        let conn = self.ids.get(number).and_then(|id| id.conn).ok_or(libc::EINVAL)?;
        if self.command(conn, Command::Disconnect { private_data: Vec::new() }).is_err() {
            // The connection may have ended, or never have existed. Linux ignores that too.
            let _ = self.command(conn, Command::DisconnectReply { private_data: Vec::new() });
        }
        Ok(Step::Done)
    }

    /// Handles an event of the program's QP.
    ///
    /// # Errors
    /// EINVAL: an unsupported event, or the wrong state.
    pub fn notify(&mut self, number: u32, event: u32) -> Result<Step, c_int> {
        let conn = self.ids.get(number).and_then(|id| id.conn).ok_or(libc::EINVAL)?;
        if event != COMM_EST {
            return Err(libc::EINVAL);
        }
        // An established connection needs nothing more.
        if self.line(conn.0)?.agent.state(conn.1) != Some(cm::State::Established) {
            self.command(conn, Command::Established)?;
        }
        Ok(Step::Done)
    }

    /// Makes `number` receive requests for `service` at a port of the fabric.
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

    /// Stops `number` from receiving requests.
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

    /// Ends a connection, and sends the peer the messages due.
    pub fn hang_up(&mut self, conn: Conn) {
        self.conns.remove(&conn);
        let _ = self.command(conn, Command::Destroy);
    }

    /// Passes a command to the protocol, and handles the consequences.
    ///
    /// # Errors
    /// The errno that Linux returns for the refusal.
    pub fn command(&mut self, conn: Conn, command: Command) -> Result<(), c_int> {
        let now = self.now();
        let line = self.line(conn.0)?;
        let done = line.agent.handle(now, cm::Input::Command(conn.1, command)).map_err(errno);
        self.pump(conn.0);
        self.wake();
        done
    }
}
