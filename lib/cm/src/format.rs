//! Construction of a connection's messages.
use crate::{
    Accept, Agent, Connect, Mad, Refused, RejectReason, Service, SidrReply, SidrRequest, conn::Conn,
};
use hwspec::{layout::prefix, wire::mad::cm::*};

/// Fills a field of `N` bytes. [`Refused::TooLong`] if it does not fit.
pub(crate) fn field<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Refused> {
    match bytes.len() <= N {
        true => Ok(prefix(bytes)),
        false => Err(Refused::TooLong(bytes.len(), N)),
    }
}

/// The transport of a REQ, `None` if it is not supported.
pub(crate) fn service_of(req: &Req) -> Option<Service> {
    match (req.transport_service(), req.extended_transport()) {
        (TransportService::Rc, _) => Some(Service::Rc),
        (TransportService::Uc, _) => Some(Service::Uc),
        (TransportService::Extended, EXTENDED_XRC) => Some(Service::Xrc),
        _ => None,
    }
}

impl Agent {
    /// A unique transaction id (IBTA 13.4.6.4) for message number `nth` of connection `id`.
    pub(crate) fn transaction(&self, id: u32, nth: u32) -> u64 {
        u64::from(self.config.first.wrapping_add(nth as u16)) << 32 | u64::from(id)
    }
}

pub(crate) fn req(agent: &Agent, id: u32, connect: &Connect) -> Result<Mad, Refused> {
    let data = field(&connect.private_data)?;
    let mut req = Req::zeroed();
    let (transport, extended) = match connect.service {
        Service::Rc => (TransportService::Rc, 0),
        Service::Uc => (TransportService::Uc, 0),
        Service::Xrc => (TransportService::Extended, EXTENDED_XRC),
    };
    let (vendor, options) = connect.ece;
    req.set()
        .header(header(CmAttribute::Req, agent.transaction(id, 0), options))
        .local_comm_id(id)
        .vendor_id(vendor & 0xff_ffff)
        .service_id(connect.service_id)
        .local_ca_guid(agent.config.ca_guid)
        .local_qpn(connect.qpn & 0xff_ffff)
        .initiator_depth(connect.initiator_depth)
        .remote_cm_response_timeout(connect.remote_response_timeout & 31)
        .transport_service(transport)
        .extended_transport(extended)
        .end_to_end_flow_control(connect.flow_control)
        .starting_psn(connect.starting_psn & 0xff_ffff)
        .local_cm_response_timeout(connect.local_response_timeout & 31)
        .pkey(connect.path.pkey)
        .path_mtu(connect.path.mtu & 0xf)
        .max_cm_retries(connect.max_retries & 0xf)
        .primary(connect.path.describe(agent.config.ack_delay))
        .private_data(data);
    // An XRC initiator serves no requests and receives nothing (annex A14.8).
    if connect.service != Service::Xrc {
        req.set()
            .responder_resources(connect.responder_resources)
            .retry_count(connect.retry_count & 7)
            .rnr_retry_count(connect.rnr_retry_count & 7)
            .srq(connect.srq);
    }
    Ok(*req.as_bytes())
}

pub(crate) fn rep(agent: &Agent, id: u32, conn: &Conn, accept: &Accept) -> Result<Mad, Refused> {
    let data = field(&accept.private_data)?;
    let mut rep = Rep::zeroed();
    let (vendor, options) = accept.ece;
    rep.set()
        .header(header(CmAttribute::Rep, conn.transaction, options))
        .local_comm_id(id)
        .remote_comm_id(conn.remote_id)
        .starting_psn(accept.starting_psn & 0xff_ffff)
        .responder_resources(accept.responder_resources)
        .target_ack_delay(agent.config.ack_delay & 31)
        .rnr_retry_count(accept.rnr_retry_count & 7)
        .local_ca_guid(agent.config.ca_guid)
        .vendor_id_high((vendor >> 16) as u8)
        .vendor_id_middle((vendor >> 8) as u8)
        .vendor_id_low(vendor as u8)
        .private_data(data);
    match conn.qp.service {
        Service::Xrc => rep.set().srq(true).local_eecn(accept.qpn & 0xff_ffff),
        _ => rep
            .set()
            .initiator_depth(accept.initiator_depth)
            .end_to_end_flow_control(accept.flow_control)
            .srq(accept.srq)
            .local_qpn(accept.qpn & 0xff_ffff),
    };
    Ok(*rep.as_bytes())
}

pub(crate) fn mra(id: u32, conn: &Conn, message: Concerning, data: &[u8]) -> Mad {
    let mut mra = Mra::zeroed();
    mra.set()
        .header(header(CmAttribute::Mra, conn.transaction, 0))
        .local_comm_id(id)
        .remote_comm_id(conn.remote_id)
        .message(message)
        .service_timeout(conn.service_timeout & 31)
        .private_data(prefix(data));
    *mra.as_bytes()
}

/// A REJ of a connection. `local` is 0 if the peer never learned this side's id.
pub(crate) fn rej(
    local: u32,
    conn: &Conn,
    message: Concerning,
    reason: RejectReason,
    info: &[u8],
    data: &[u8],
) -> Result<Mad, Refused> {
    let mut rej = Rej::zeroed();
    rej.set()
        .header(header(CmAttribute::Rej, conn.transaction, 0))
        .local_comm_id(local)
        .remote_comm_id(conn.remote_id)
        .message(message)
        .reason(reason)
        .info(field(info)?)
        .info_length(info.len() as u8)
        .private_data(field(data)?);
    Ok(*rej.as_bytes())
}

/// A REJ for a MAD without a connection here.
pub(crate) fn rej_to(mad: &Mad, reason: RejectReason, message: Concerning) -> Mad {
    let asked = Rej::from_bytes(*mad);
    let remote = if message == Concerning::Req { 0 } else { asked.remote_comm_id() };
    let mut rej = Rej::zeroed();
    rej.set()
        .header(header(CmAttribute::Rej, asked.header().transaction_id(), 0))
        .local_comm_id(remote)
        .remote_comm_id(asked.local_comm_id())
        .message(message)
        .reason(reason);
    *rej.as_bytes()
}

pub(crate) fn rtu(id: u32, conn: &Conn, data: &[u8]) -> Result<Mad, Refused> {
    let mut rtu = Rtu::zeroed();
    rtu.set()
        .header(header(CmAttribute::Rtu, conn.transaction, 0))
        .local_comm_id(id)
        .remote_comm_id(conn.remote_id)
        .private_data(field(data)?);
    Ok(*rtu.as_bytes())
}

pub(crate) fn dreq(agent: &Agent, id: u32, conn: &Conn, data: &[u8]) -> Result<Mad, Refused> {
    let mut dreq = Dreq::zeroed();
    dreq.set()
        .header(header(CmAttribute::Dreq, agent.transaction(id, 1), 0))
        .local_comm_id(id)
        .remote_comm_id(conn.remote_id)
        .remote_qpn(conn.qp.remote_qpn)
        .private_data(field(data)?);
    Ok(*dreq.as_bytes())
}

/// A DREP for a DREQ, from its header and ids.
pub(crate) fn drep(dreq: &Dreq, data: &[u8]) -> Mad {
    let mut drep = Drep::zeroed();
    drep.set()
        .header(header(CmAttribute::Drep, dreq.header().transaction_id(), 0))
        .local_comm_id(dreq.remote_comm_id())
        .remote_comm_id(dreq.local_comm_id())
        .private_data(prefix(data));
    *drep.as_bytes()
}

/// Alternate paths are not supported.
pub(crate) fn apr(lap: &Lap) -> Mad {
    let mut apr = Apr::zeroed();
    apr.set()
        .header(header(CmAttribute::Apr, lap.header().transaction_id(), 0))
        .local_comm_id(lap.remote_comm_id())
        .remote_comm_id(lap.local_comm_id())
        .status(ApStatus::Unsupported);
    *apr.as_bytes()
}

pub(crate) fn sidr_req(agent: &Agent, id: u32, request: &SidrRequest) -> Result<Mad, Refused> {
    let mut req = SidrReq::zeroed();
    req.set()
        .header(header(CmAttribute::SidrReq, agent.transaction(id, 0), 0))
        .request_id(id)
        .pkey(request.path.pkey)
        .service_id(request.service_id)
        .private_data(field(&request.private_data)?);
    Ok(*req.as_bytes())
}

/// The answer to a SIDR_REQ with this transaction, id and service.
pub(crate) fn sidr_rep(
    transaction: u64,
    request_id: u32,
    service_id: u64,
    reply: &SidrReply,
) -> Result<Mad, Refused> {
    let (vendor, options) = reply.ece;
    let mut rep = SidrRep::zeroed();
    rep.set()
        .header(header(CmAttribute::SidrRep, transaction, options))
        .request_id(request_id)
        .status(reply.status)
        .info(field(&reply.info)?)
        .info_length(reply.info.len() as u8)
        .vendor_id_high((vendor >> 8) as u16)
        .vendor_id_low(vendor as u8)
        .qpn(reply.qpn & 0xff_ffff)
        .service_id(service_id)
        .qkey(reply.qkey)
        .private_data(field(&reply.private_data)?);
    Ok(*rep.as_bytes())
}

/// The answer to a SIDR_REQ for an unknown service.
pub(crate) fn sidr_refusal(request: &SidrReq) -> Mad {
    let mut rep = SidrRep::zeroed();
    rep.set()
        .header(header(CmAttribute::SidrRep, request.header().transaction_id(), 0))
        .request_id(request.request_id())
        .status(SidrStatus::Unsupported)
        .service_id(request.service_id());
    *rep.as_bytes()
}
