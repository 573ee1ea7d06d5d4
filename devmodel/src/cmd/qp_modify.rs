//! State transitions of a queue pair (IBTA 10.3.1): the legal ones, and the context fields that each takes.

use super::{
    call::Call,
    object::to,
    qp,
    qp_context::{self, OptParam},
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    mlx5::{drained, flush, work::QpStage},
    state::{PdRow, QpFlags, QpRow},
};
use hwspec::{
    cmd::{Opcode, qp::*},
    context::{QpState, ServiceType},
};

/// Access rights of the responder.
const ACCESS: OptParam = OptParam::RRE.union(OptParam::RWE).union(OptParam::RAE);

/// A transition: its source state, its target state, and the optional fields that it accepts.
fn table(op: Opcode) -> Option<(QpState, QpState, OptParam)> {
    use OptParam as P;
    Some(match op {
        Opcode::Rst2initQp => (QpState::Reset, QpState::Init, P::COUNTER_SET_ID),
        Opcode::Init2initQp => {
            (QpState::Init, QpState::Init, ACCESS | P::PKEY_INDEX | P::PRIMARY_PORT | P::Q_KEY)
        }
        Opcode::Init2rtrQp => (QpState::Init, QpState::Rtr, ACCESS | P::PKEY_INDEX | P::Q_KEY),
        Opcode::Rtr2rtsQp => (QpState::Rtr, QpState::Rts, ACCESS | P::RNR_TIMEOUT | P::PM_STATE | P::Q_KEY),
        Opcode::Rts2rtsQp => {
            let optional = ACCESS | P::RNR_TIMEOUT | P::PM_STATE | P::COUNTER_SET_ID | P::Q_KEY;
            (QpState::Rts, QpState::Rts, optional)
        }
        Opcode::Sqerr2rtsQp => (QpState::SqErr, QpState::Rts, ACCESS | P::RNR_TIMEOUT | P::Q_KEY),
        Opcode::SqdRtsQp => (QpState::SqDrained, QpState::Rts, ACCESS | P::RNR_TIMEOUT | P::Q_KEY),
        Opcode::Rts2sqdQp => (QpState::Rts, QpState::SqDrained, P::empty()),
        Opcode::Sqd2sqdQp => {
            // These may be changed while no request is outstanding.
            let path =
                P::PKEY_INDEX | P::PRIMARY_PORT | P::PRIMARY_ADDRESS_PATH | P::PM_STATE | P::ACK_TIMEOUT;
            let retries = P::RNR_TIMEOUT | P::RETRY_COUNT | P::RNR_RETRY;
            let optional = ACCESS | P::Q_KEY | P::SRA_MAX | P::RRA_MAX | path | retries;
            (QpState::SqDrained, QpState::SqDrained, optional)
        }
        _ => return None,
    })
}

pub(super) fn transition(call: &mut Call<'_, '_, '_>) -> Done {
    let op = call.opcode;
    let (from, next, accepted) = table(op).ok_or(Refused(Syndrome::UnknownOpcode))?;
    // All these inputs have the same layout up to the end of the context.
    let input: ModifyQpIn = call.input()?;
    let index = call.named::<QpRow>()?;
    let mut row = *call.row::<QpRow>(index)?;
    Syndrome::QpState.unless(qp_context::state_of(&row) == from)?;
    if op == Opcode::Sqd2sqdQp {
        // IBTA 10.3.1.6: only after the queue has drained.
        Syndrome::QpState.unless(!row.has(QpFlags::DRAINING))?;
    }
    let optional = OptParam::from_bits(input.opt_param_mask())
        .filter(|given| accepted.contains(*given))
        .ok_or(Refused(Syndrome::OptParam))?;
    let context = input.qpc();
    match op {
        Opcode::Rst2initQp => {
            qp::reset(&mut row);
            let must = ACCESS
                | OptParam::PKEY_INDEX
                | OptParam::PRIMARY_PORT
                | OptParam::COUNTER_SET_ID
                | OptParam::Q_KEY;
            qp_context::take(call, &mut row, &context, must)?;
            if row.service == ServiceType::RegUmr.raw() {
                // It is created without a domain; translation lists come from the memory of this one.
                call.own::<PdRow>(context.pd())?;
                to::<PdRow>(row.pd).into_iter().for_each(|pd| pd.drop(call.func));
                to::<PdRow>(context.pd()).into_iter().for_each(|pd| pd.take(call.func));
                row.pd = context.pd();
            }
        }
        Opcode::Init2rtrQp => qp_context::take_receive(call, &mut row, &context, input.qpn())?,
        Opcode::Rtr2rtsQp => qp_context::take_send(call, &mut row, &context)?,
        _ => {}
    }
    qp_context::take(call, &mut row, &context, optional)?;
    row.state = next.raw();
    row.set(QpFlags::DRAINING, op == Opcode::Rts2sqdQp);
    *call.row_mut::<QpRow>(index)? = row;
    if op == Opcode::Rts2sqdQp {
        QpStage::on(call.func, call.step, index, drained);
    }
    if next == QpState::Rts {
        // Requests may have been posted earlier.
        call.func.make_ready(index);
    }
    Ok(())
}

/// Moves the QP to ERR, from any state. All posted work requests complete with a flush error.
pub(super) fn to_error(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.named::<QpRow>()?;
    QpStage::on(call.func, call.step, index, flush::enter_error).ok_or(Refused(Syndrome::NoSuchQp))?;
    Ok(())
}

/// Moves the QP to RESET, from any state.
pub(super) fn to_reset(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.named::<QpRow>()?;
    call.func.forget_timers(index);
    qp::reset(call.row_mut::<QpRow>(index)?);
    Ok(())
}
