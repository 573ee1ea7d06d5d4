//! The passive side.

use super::{Id, connection::attributes_of};
use crate::{
    Connection, Device, Error, QpBuilder, Result,
    qp::{READS, first_psn},
};
use cm::{Accept, Command, Event, RejectReason, Request};
use hwspec::wire::mad::cm::{CMA_HEADER_SIZE, PortSpace, service_id};
use std::{
    fmt,
    future::poll_fn,
    net::{IpAddr, SocketAddr},
};

/// Private data that fits into an answer, and into a refusal.
const ANSWER_DATA: usize = 196;
const REFUSAL_DATA: usize = 148;

/// A port where peers connect.
///
/// ```
/// use ironverbs::{Error, Listener, Pool, block_on, join, sim::Sim};
///
/// let sim = Sim::new();
/// let (server, client) = (sim.device(0)?, sim.device(1)?);
/// let listener = Listener::on(&server, 7471)?;
/// let (theirs, ours) = (Pool::new(&server, 8, 64)?, Pool::new(&client, 8, 64)?);
/// let serve = async {
///     let incoming = listener.accept().await?;
///     assert!(incoming.data().starts_with(b"it's me"));
///     let connection = incoming.accept().await?;
///     connection.send(theirs.take(b"welcome")?).await
/// };
/// let visit = async {
///     let connection = client.qp().connect(listener.address(), b"it's me").await?;
///     let message = connection.recv(ours.empty()?).await?;
///     assert_eq!(&*message, b"welcome");
///     Ok::<_, Error>(())
/// };
/// let (served, visited) = block_on(join(serve, visit));
/// served.and(visited)?;
/// # Ok::<(), Error>(())
/// ```
pub struct Listener {
    listening: Id,
    device: Device,
    port: u16,
}

impl Listener {
    /// Listens at `address`, which is that of an open device.
    ///
    /// # Errors
    /// [`Error::Unreachable`]: there is no such device; [`Error::AddressInUse`].
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let device = Device::with(address.ip()).ok_or(Error::Unreachable(address))?;
        Self::on(&device, address.port())
    }

    /// Listens on a device.
    ///
    /// # Errors
    /// [`Error::AddressInUse`].
    pub fn on(device: &Device, port: u16) -> Result<Self> {
        let manager = device.manager()?;
        let opened = manager.act(|protocol, _| {
            let id = protocol.agent.open()?;
            protocol.listeners.insert(id, Default::default());
            Ok(id)
        });
        let id = opened.map_err(|refused: cm::Refused| Error::Protocol(refused.to_string()))?;
        let listening = Id { manager, id };
        let taken = Error::AddressInUse(SocketAddr::new(device.address(), port));
        let listen = Command::Listen { service_id: service_id(PortSpace::Tcp, port) };
        let manager = &listening.manager;
        match manager.command(id, listen).is_ok() && manager.locks.listen(port) {
            true => {
                manager.look_after();
                Ok(Self { listening, device: device.clone(), port })
            }
            false => Err(taken),
        }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.device.address(), self.port)
    }

    /// Waits for the next request for a connection.
    ///
    /// # Errors
    /// [`Error::DeviceGone`].
    pub async fn accept(&self) -> Result<Incoming> {
        let (manager, id) = (&self.listening.manager, self.listening.id);
        let next = poll_fn(|cx| manager.wait(cx, |protocol| protocol.listeners.get_mut(&id)));
        let (id, request) = next.await?;
        let end = Id { manager: manager.clone(), id };
        Ok(Incoming { end, request, device: self.device.clone() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listening.manager.locks.release(self.port);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address()).finish()
    }
}

/// A request for a connection. Dropped, it is rejected.
pub struct Incoming {
    end: Id,
    request: Request,
    device: Device,
}

impl Incoming {
    /// The peer's IP address.
    pub fn peer(&self) -> IpAddr {
        node::gid::ip_of_gid(&self.request.path.remote_gid)
    }

    /// The peer's private data: 56 bytes, padded with zeros.
    pub fn data(&self) -> &[u8] {
        self.request.private_data.get(CMA_HEADER_SIZE..).unwrap_or_default()
    }

    /// Accepts.
    ///
    /// # Errors
    /// [`Error::NoAnswer`]: the peer has given up.
    pub async fn accept(self) -> Result<Connection> {
        let device = self.device.clone();
        self.accept_with(device.qp(), b"").await
    }

    /// Accepts with a queue pair as described and up to 196 bytes of private `data`.
    ///
    /// # Errors
    /// As for [`accept`](Self::accept); [`Error::TooLong`].
    pub async fn accept_with(self, builder: QpBuilder<'_>, data: &[u8]) -> Result<Connection> {
        if data.len() > ANSWER_DATA {
            return Err(Error::TooLong { len: data.len(), room: ANSWER_DATA });
        }
        let peer = SocketAddr::new(self.peer(), 0);
        let timeout = builder.timeout();
        let qp = builder.build()?;
        let Self { end, request, device } = self;
        let manager = end.manager.clone();
        let (responder_resources, initiator_depth) =
            (request.responder_resources.min(READS), request.initiator_depth.min(READS));
        let mut parameters = manager.lock().agent.qp_parameters(end.id).ok_or(Error::Closed)?;
        parameters.rq_psn = first_psn(&device, qp.qpn());
        (parameters.responder_resources, parameters.initiator_depth) = (responder_resources, initiator_depth);
        qp.start(&attributes_of(&device, &parameters, timeout))?;
        manager.adopt(end.id, qp.channel());
        let accept = Accept {
            qpn: qp.qpn(),
            starting_psn: parameters.rq_psn,
            responder_resources,
            initiator_depth,
            rnr_retry_count: qp.receive_retries(),
            private_data: data.to_vec(),
            ..Accept::default()
        };
        manager.command(end.id, Command::Accept(Box::new(accept)))?;
        match manager.event(end.id).await? {
            Event::Established { .. } => {}
            Event::Rejected { private_data, .. } => return Err(Error::Rejected { data: private_data }),
            _ => return Err(Error::NoAnswer(peer)),
        }
        let data = request.private_data.get(CMA_HEADER_SIZE..).unwrap_or_default().to_vec();
        Ok(Connection { end, qp, peer, data })
    }

    /// Rejects with up to 148 bytes of private `data`.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn reject(self, data: &[u8]) -> Result<()> {
        if data.len() > REFUSAL_DATA {
            return Err(Error::TooLong { len: data.len(), room: REFUSAL_DATA });
        }
        let (reason, private_data) = (RejectReason::ConsumerDefined, data.to_vec());
        self.end.manager.command(self.end.id, Command::Reject { reason, info: Vec::new(), private_data })
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer", &self.peer()).finish()
    }
}
