//! State transitions of a queue pair (IBTA 10.3.1): the legal ones, and the context fields that each takes.

use super::{
    call::Call,
    object::to,
    qp,
    qp_context::{self, OptParam},
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    mlx5::{flush, settle, work::Work},
    state::{PdRow, QpFlags, QpRow},
};
use hwspec::{
    cmd::{Opcode, qp::*},
    context::{QpState, ServiceType},
};

/// Access rights of the responder.
const ACCESS: OptParam = OptParam::RRE.union(OptParam::RWE).union(OptParam::RAE);

/// The parameters that may be changed when no request is outstanding.
const DRAINED: OptParam = ACCESS
    .union(OptParam::PKEY_INDEX)
    .union(OptParam::Q_KEY)
    .union(OptParam::RNR_TIMEOUT)
    .union(OptParam::PRIMARY_ADDRESS_PATH)
    .union(OptParam::SRA_MAX)
    .union(OptParam::RRA_MAX)
    .union(OptParam::PM_STATE)
    .union(OptParam::RETRY_COUNT)
    .union(OptParam::RNR_RETRY)
    .union(OptParam::ACK_TIMEOUT)
    .union(OptParam::PRIMARY_PORT);

/// A transition: source state, target state, and the optional fields that it accepts.
struct Transition {
    from: QpState,
    to: QpState,
    optional: OptParam,
}

fn table(op: Opcode) -> Option<Transition> {
    let (from, to, optional) = match op {
        Opcode::Rst2initQp => (QpState::Reset, QpState::Init, OptParam::COUNTER_SET_ID),
        Opcode::Init2initQp => (
            QpState::Init,
            QpState::Init,
            ACCESS.union(OptParam::PKEY_INDEX).union(OptParam::PRIMARY_PORT).union(OptParam::Q_KEY),
        ),
        Opcode::Init2rtrQp => {
            (QpState::Init, QpState::Rtr, ACCESS.union(OptParam::PKEY_INDEX).union(OptParam::Q_KEY))
        }
        Opcode::Rtr2rtsQp => (
            QpState::Rtr,
            QpState::Rts,
            ACCESS.union(OptParam::RNR_TIMEOUT).union(OptParam::PM_STATE).union(OptParam::Q_KEY),
        ),
        Opcode::Rts2rtsQp => (
            QpState::Rts,
            QpState::Rts,
            ACCESS
                .union(OptParam::RNR_TIMEOUT)
                .union(OptParam::PM_STATE)
                .union(OptParam::COUNTER_SET_ID)
                .union(OptParam::Q_KEY),
        ),
        Opcode::Sqerr2rtsQp => {
            (QpState::SqErr, QpState::Rts, ACCESS.union(OptParam::RNR_TIMEOUT).union(OptParam::Q_KEY))
        }
        Opcode::SqdRtsQp => {
            (QpState::SqDrained, QpState::Rts, ACCESS.union(OptParam::RNR_TIMEOUT).union(OptParam::Q_KEY))
        }
        Opcode::Rts2sqdQp => (QpState::Rts, QpState::SqDrained, OptParam::empty()),
        Opcode::Sqd2sqdQp => (QpState::SqDrained, QpState::SqDrained, DRAINED),
        _ => return None,
    };
    Some(Transition { from, to, optional })
}

pub(super) fn transition(call: &mut Call<'_, '_, '_>) -> Done {
    let op = call.opcode;
    let Some(transition) = table(op) else { return Syndrome::UnknownOpcode.refuse() };
    // All these inputs have the same layout up to the end of the context.
    let input: ModifyQpIn = call.input()?;
    let index = call.named::<QpRow>()?;
    let mut row = *call.row::<QpRow>(index)?;
    Syndrome::QpState.unless(qp_context::state_of(&row) == transition.from)?;
    if op == Opcode::Sqd2sqdQp {
        // IBTA 10.3.1.6: only after the queue has drained.
        Syndrome::QpState.unless(!row.has(QpFlags::DRAINING))?;
    }
    let optional = OptParam::from_bits(input.opt_param_mask())
        .filter(|given| transition.optional.contains(*given))
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
    row.state = transition.to.raw();
    row.set(QpFlags::DRAINING, op == Opcode::Rts2sqdQp);
    *call.row_mut::<QpRow>(index)? = row;
    if op == Opcode::Rts2sqdQp {
        Work::on(call.func, call.step, index, settle::drained);
    }
    if transition.to == QpState::Rts {
        // Requests may have been posted earlier.
        call.func.make_ready(index);
    }
    Ok(())
}

/// Moves the QP to ERR, from any state. All posted work requests complete with a flush error.
pub(super) fn to_error(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.named::<QpRow>()?;
    Work::on(call.func, call.step, index, flush::enter_error).ok_or(Refused(Syndrome::NoSuchQp))?;
    Ok(())
}

/// Moves the QP to RESET, from any state.
pub(super) fn to_reset(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.named::<QpRow>()?;
    call.func.forget_timers(index);
    qp::reset(call.row_mut::<QpRow>(index)?);
    Ok(())
}
