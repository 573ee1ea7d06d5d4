//! The active side, and connections.

use super::{Id, Manager, REQUEST_DATA};
use crate::{
    Device, Error, Qp, QpBuilder, Result,
    qp::{READS, attributes, first_psn},
    verbs::{AddressHandle, LinkLayer, QpAttr},
};
use cm::{Command, Connect, Event, Failure, Path, QpParameters, RejectReason, Service};
use hwspec::wire::{
    ip::IpPair,
    mad::cm::{CmaHeader, PortSpace, service_id},
};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    ops::Deref,
    sync::Arc,
};

/// Answers may take a second beside the way there and back, and a message is repeated seven times: a peer that is not there is noticed after
/// nine seconds.
const RESPONSE_TIMEOUT: u8 = 18;
const PACKET_LIFE_TIME: u8 = 14;
const RETRIES: u8 = 7;

/// Connects to a listener at `address`, from the open device that is nearest by its address. [`QpBuilder::connect`] has choices.
///
/// # Errors
/// [`Error::Unreachable`]: there is no device or no way; [`Error::NoAnswer`], [`Error::NoListener`], [`Error::Rejected`].
pub async fn connect(address: SocketAddr) -> Result<Connection> {
    let device = Device::towards(address.ip()).ok_or(Error::Unreachable(address))?;
    device.qp().connect(address, b"").await
}

impl QpBuilder<'_> {
    /// Connects to a listener at `address`, which gets up to 56 bytes of private `data`.
    ///
    /// # Errors
    /// As for [`connect`](crate::connect()); [`Error::TooLong`].
    pub async fn connect(self, address: SocketAddr, data: &[u8]) -> Result<Connection> {
        if data.len() > REQUEST_DATA {
            return Err(Error::TooLong { len: data.len(), room: REQUEST_DATA });
        }
        let timeout = self.timeout();
        let qp = self.build()?;
        let (device, manager) = (qp.device().clone(), qp.device().manager()?);
        let path = path(&device, address)?;
        qp.init()?;
        let end = manager.end(qp.channel())?;
        let mut private_data = header(device.address(), address.ip()).ok_or(Error::Unreachable(address))?;
        private_data.extend_from_slice(data);
        let request = Connect {
            qpn: qp.qpn(),
            starting_psn: first_psn(&device, qp.qpn()),
            responder_resources: READS,
            initiator_depth: READS,
            rnr_retry_count: qp.receive_retries(),
            remote_response_timeout: RESPONSE_TIMEOUT,
            local_response_timeout: RESPONSE_TIMEOUT,
            max_retries: RETRIES,
            private_data,
            ..Connect::new(service_id(PortSpace::Tcp, address.port()), Service::Rc, path)
        };
        manager.command(end.id, Command::Connect(Box::new(request)))?;
        let data = reply(&manager, &end, address).await?;
        let parameters = manager.lock().agent.qp_parameters(end.id).ok_or(Error::Closed)?;
        qp.start(&attributes_of(&device, &parameters, timeout))?;
        manager.command(end.id, Command::Ready { private_data: Vec::new() })?;
        Ok(Connection { end, qp, peer: address, data })
    }
}

/// Waits for the listener's answer, and returns its private data.
async fn reply(manager: &Arc<Manager>, end: &Id, address: SocketAddr) -> Result<Vec<u8>> {
    loop {
        match manager.event(end.id).await? {
            Event::Reply(reply) => return Ok(reply.private_data),
            Event::Rejected { reason: RejectReason::InvalidServiceId, .. } => {
                return Err(Error::NoListener(address));
            }
            Event::Rejected { reason: RejectReason::ConsumerDefined, private_data, .. } => {
                return Err(Error::Rejected { data: private_data });
            }
            Event::Rejected { reason, .. } => return Err(Error::Protocol(format!("{reason:?}"))),
            Event::Failed(Failure::Request) => return Err(Error::NoAnswer(address)),
            _ => {}
        }
    }
}

/// The path from the device to the port with an address. Fails at once if the port's MAC cannot be found.
fn path(device: &Device, address: SocketAddr) -> Result<Path> {
    let unreachable = |_| Error::Unreachable(address);
    if device.raw().link_layer() == LinkLayer::InfiniBand {
        return Err(Error::Unreachable(address)); // addresses there are found by IPoIB
    }
    let remote_gid = node::gid::gid_of_ip(address.ip());
    crate::verbs::Ah::create(device.pd(), &crate::qp::path(device, remote_gid, 0)).map_err(unreachable)?;
    let mtu = device.raw().port()?.active_mtu.clamp(256, 4096).ilog2() - 7;
    Ok(Path {
        local_gid: device.gid().0,
        remote_gid,
        mtu: mtu as u8,
        packet_life_time: PACKET_LIFE_TIME,
        ..Path::default()
    })
}

fn header(from: IpAddr, to: IpAddr) -> Option<Vec<u8>> {
    let addresses = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => IpPair::V4 { src: from.octets(), dst: to.octets() },
        (IpAddr::V6(from), IpAddr::V6(to)) => IpPair::V6 { src: from.octets(), dst: to.octets() },
        _ => return None,
    };
    Some(CmaHeader::new(addresses, 0).as_bytes().to_vec())
}

/// The attributes of a queue pair with a connection's parameters.
pub(super) fn attributes_of(device: &Device, parameters: &QpParameters, timeout: u8) -> QpAttr {
    let QpParameters { path, .. } = parameters;
    QpAttr {
        ah: AddressHandle {
            dgid: path.remote_gid,
            sgid_index: device.gid().1,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            dlid: path.remote_lid,
            sl: path.sl,
            is_global: path.grh,
            port_num: 1,
            ..AddressHandle::default()
        },
        path_mtu: 128 << path.mtu.clamp(1, 5),
        dest_qp_num: parameters.remote_qpn,
        rq_psn: parameters.rq_psn,
        sq_psn: parameters.sq_psn,
        max_dest_rd_atomic: parameters.responder_resources,
        max_rd_atomic: parameters.initiator_depth,
        timeout,
        retry_cnt: parameters.retry_count,
        rnr_retry: parameters.rnr_retry_count,
        ..attributes()
    }
}

/// A connection: a [`Qp`] that was connected by address. Dropping it hangs up.
pub struct Connection {
    // Hangs up before the queue pair goes.
    pub(super) end: Id,
    pub(super) qp: Qp,
    pub(super) peer: SocketAddr,
    pub(super) data: Vec<u8>,
}

impl Connection {
    /// The peer's address; its port is 0 on the side of the listener.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The peer's private data, padded with zeros.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Hangs up, and waits until the peer knows or is known to be gone.
    pub async fn disconnect(self) {
        let Self { end, qp, .. } = self;
        qp.close();
        let hung_up = end.manager.command(end.id, Command::Disconnect { private_data: Vec::new() });
        // If the peer has hung up already, there is nothing to wait for.
        if hung_up.is_ok() {
            while let Ok(event) = end.manager.event(end.id).await {
                if matches!(event, Event::Disconnect { .. } | Event::Disconnected { .. } | Event::Failed(_)) {
                    break;
                }
            }
        }
    }

    /// Waits until the peer hangs up.
    pub async fn disconnected(&self) {
        while let Ok(event) = self.end.manager.event(self.end.id).await {
            if matches!(
                event,
                Event::Disconnect { .. }
                    | Event::Disconnected { .. }
                    | Event::Failed(_)
                    | Event::TimewaitOver
            ) {
                break;
            }
        }
    }
}

impl Deref for Connection {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).field("qp", &self.qp).finish()
    }
}
