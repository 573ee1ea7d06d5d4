//! Dispatch of commands, as permitted by their line in the table.

use super::{
    call::{Call, SHARED_UID},
    refusal::{Done, Refused, Syndrome},
    strict,
    table::{self, Sender},
};
use crate::{mlx5::event, region::Func, state::UctxRow};
use hwspec::{
    decode,
    eqe::{CmdEvent, Eqe, EventType},
};

/// Executes the command in `call`. A command is refused if it has no line in the table or its line does not permit it.
pub(super) fn run(call: &mut Call<'_, '_, '_>) -> Done {
    let command = table::find(call.opcode).ok_or(Refused(Syndrome::UnknownOpcode))?;
    let state = call.func.function().hca_state;
    Syndrome::HcaState.unless(command.states.iter().any(|allowed| allowed.raw() == state))?;
    Syndrome::OpMod.unless(command.op_mods.contains(&call.op_mod))?;
    if call.step.config.strict.reserved {
        strict::reserved(call)?;
    }
    // Objects that the driver shares with all user contexts are its own.
    if call.uid == SHARED_UID {
        (call.uid, call.for_all) = (0, true);
    }
    if call.uid != 0 {
        // Commands without a uid field carry zero there or, from user programs, the uid of their context.
        Syndrome::Privileged.unless(command.sender != Sender::Owner)?;
        Syndrome::Uid.unless(call.func.row::<UctxRow>(call.uid.into()).is_some())?;
    }
    (command.run)(call)?;
    // A handler without an answer leaves the zeros of a header.
    Syndrome::OutputLength.unless(call.output.len() >= decode::command::least_output(call.opcode))
}

/// Raises the completion event of the command in `slot`.
pub(super) fn command_event(func: &mut Func<'_>, slot: u32) {
    let Some(eqn) = event::listener(func, EventType::Cmd) else { return };
    let event = CmdEvent::with(|s| s.command_completion_vector(1 << slot));
    event::push(func, eqn, Eqe::new(EventType::Cmd, event));
}
