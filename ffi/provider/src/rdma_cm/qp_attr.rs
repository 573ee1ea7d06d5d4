//! INIT_QP_ATTR: the QP attributes for a state transition, derived from the state of the connection.

use super::cm_events::address_vector;
use super::commands::{Answer, Step};
use super::id::Id;
use super::manager::Manager;
use super::ports::PORT;
use super::uapi::{Plain, QpAttr, qp_type};
use cm::{QpParameters, State};
use driver::{AccessFlags, QpAttrMask, QpState};
use libc::c_int;

impl Manager {
    /// Returns the attributes for moving a QP to `qp_state`.
    ///
    /// # Errors
    /// EINVAL: no such state, or the connection has not progressed that far.
    pub fn init_qp_attr(&mut self, number: u32, qp_state: u32, answer: Answer) -> Result<Step, c_int> {
        let wanted = QpState::from_raw(qp_state).ok_or(libc::EINVAL)?;
        let id = self.ids.get_mut(number).ok_or(libc::ENOENT)?;
        let mut attr = QpAttr { qp_state, qp_attr_mask: QpAttrMask::STATE.bits(), ..QpAttr::zero() };
        match id.conn.filter(|_| !id.is_datagram()) {
            None => unconnected(id, wanted, &mut attr),
            Some(conn) => {
                let id = self.ids.get(number).ok_or(libc::ENOENT)?;
                let line = self.lines.get(&conn.0).ok_or(libc::ENODEV)?;
                let state = line.agent.state(conn.1).ok_or(libc::EINVAL)?;
                let parameters = line.agent.qp_parameters(conn.1).ok_or(libc::EINVAL)?;
                connected(id, state, &parameters, wanted, &mut attr)?;
            }
        }
        answer.put(attr.bytes()).map(|()| Step::Done)
    }
}

/// Adds attributes to the mask of the response.
fn needs(attr: &mut QpAttr, members: QpAttrMask) {
    attr.qp_attr_mask |= members.bits();
}

/// Attributes before or without a connection, from the port and the port space.
fn unconnected(id: &mut Id, wanted: QpState, attr: &mut QpAttr) {
    needs(attr, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT);
    attr.port_num = PORT;
    if id.is_datagram() {
        needs(attr, QpAttrMask::QKEY);
        attr.qkey = id.q_key();
    } else {
        needs(attr, QpAttrMask::ACCESS_FLAGS);
    }
    if wanted == QpState::Rtr {
        attr.rq_psn = id.psn;
    }
}

fn connected(
    id: &Id,
    state: State,
    parameters: &QpParameters,
    wanted: QpState,
    attr: &mut QpAttr,
) -> Result<(), c_int> {
    use State::*;
    let asked = matches!(state, ReqSent | MraReqReceived);
    let answered = matches!(
        state,
        ReqReceived | MraReqSent | RepReceived | MraRepSent | RepSent | MraRepReceived | Established
    );
    let (responds, requests) = (
        matches!(id.qp_type, qp_type::RC | qp_type::XRC_TGT),
        matches!(id.qp_type, qp_type::RC | qp_type::XRC_INI),
    );
    match wanted {
        QpState::Init if asked || answered => {
            needs(attr, QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT);
            let mut access = AccessFlags::REMOTE_WRITE;
            if parameters.responder_resources != 0 {
                access |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
            }
            attr.qp_access_flags = access.bits();
            attr.port_num = PORT;
        }
        QpState::Rtr if answered => {
            needs(attr, QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN);
            attr.ah_attr = address_vector(&parameters.path, id.at.ok_or(libc::EINVAL)?);
            attr.path_mtu = parameters.path.mtu.into();
            attr.dest_qp_num = parameters.remote_qpn;
            attr.rq_psn = id.psn;
            if responds {
                needs(attr, QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER);
                attr.max_dest_rd_atomic = parameters.responder_resources;
            }
        }
        QpState::Rts if answered => {
            needs(attr, QpAttrMask::SQ_PSN);
            attr.sq_psn = parameters.sq_psn;
            if requests {
                needs(attr, QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC);
                attr.retry_cnt = parameters.retry_count;
                attr.rnr_retry = parameters.rnr_retry_count;
                attr.max_rd_atomic = parameters.initiator_depth;
            }
            if requests || responds {
                needs(attr, QpAttrMask::TIMEOUT);
                attr.timeout = id.timeout.unwrap_or(parameters.ack_timeout);
            }
        }
        _ => return Err(libc::EINVAL),
    }
    Ok(())
}
