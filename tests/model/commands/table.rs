//! Every command in every state, from every sender and with every variant, compared with the table of commands; and the table compared
//! with Linux's headers and driver.

use super::*;
use devmodel::{
    cmd::{COMMANDS, Command, Sender},
    state::HcaState,
};
use hwspec::cmd::adapter::EnableHcaIn;
use std::collections::BTreeSet;
use testkit::linux::{Header, Ifc, dirs, read};

/// Refusals by the table, before the command's handler reads its input.
const GATE: [Syndrome; 5] =
    [Syndrome::UnknownOpcode, Syndrome::HcaState, Syndrome::OpMod, Syndrome::Privileged, Syndrome::Uid];
/// The uid of objects that the driver shares with all user contexts.
const SHARED: u16 = 0xffff;
/// The uid of no user context.
const ABSENT: u16 = 77;

fn line(opcode: Opcode) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.opcode == opcode)
}

/// A function in this state of its bring-up.
fn bed_in(state: HcaState) -> (Bed, u16) {
    let mut bed = Bed::cx5();
    match state {
        HcaState::Reset => bed.enable_pci(0),
        HcaState::Enabled => {
            bed.enable_pci(0);
            bed.ok(0, Opcode::EnableHca, &EnableHcaIn::zeroed(), 16);
        }
        HcaState::Running => bed.bring_up(0),
    }
    // User contexts exist only after INIT_HCA.
    let uid = if state == HcaState::Running { bed.uid(0) } else { 1 };
    (bed, uid)
}

/// The check that refuses the command, according to its line in the table.
fn refusal(opcode: Opcode, state: HcaState, uid: u16, op_mod: u16) -> Option<Syndrome> {
    let Some(command) = line(opcode) else { return Some(Syndrome::UnknownOpcode) };
    if !command.states.contains(&state) {
        return Some(Syndrome::HcaState);
    }
    if !command.op_mods.contains(&op_mod) {
        return Some(Syndrome::OpMod);
    }
    if uid == 0 || uid == SHARED {
        return None;
    }
    if command.sender == Sender::Owner {
        return Some(Syndrome::Privileged);
    }
    (uid == ABSENT || state != HcaState::Running).then_some(Syndrome::Uid)
}

/// Sends a command that consists of a header only; returns the check that refused it.
fn send(bed: &mut Bed, opcode: Opcode, uid: u16, op_mod: u16) -> (Status, Option<Syndrome>) {
    let mut input = [0; 16];
    input[6..8].copy_from_slice(&op_mod.to_be_bytes());
    let reply = bed.reply_to(0, opcode, uid, &input, 16);
    (reply.status(), GATE.into_iter().find(|one| one.code() == reply.syndrome()))
}

/// True if the command changes the state of the function, so that the next command needs a new one.
fn moves(opcode: Opcode) -> bool {
    [Opcode::EnableHca, Opcode::DisableHca, Opcode::InitHca, Opcode::TeardownHca].contains(&opcode)
}

#[test]
fn every_command_is_granted_or_refused_as_its_line_says() {
    let op_mods: Vec<u16> = (0..0x48).chain([0x100, SHARED]).collect();
    for state in [HcaState::Reset, HcaState::Enabled, HcaState::Running] {
        let (mut bed, own) = bed_in(state);
        for opcode in Opcode::ALL {
            for (op_mod, uid) in op_mods.iter().flat_map(|m| [0, own, ABSENT, SHARED].map(|uid| (*m, uid))) {
                let (status, found) = send(&mut bed, *opcode, uid, op_mod);
                let expected = refusal(*opcode, state, uid, op_mod);
                // The PF's ENABLE_HCA and DISABLE_HCA also control its VFs, in any state.
                let of_itself = [Opcode::EnableHca, Opcode::DisableHca].contains(opcode)
                    && found == Some(Syndrome::HcaState)
                    && expected.is_none();
                let what = format!("{opcode:?} in {state:?}, uid {uid}, op_mod {op_mod:#x}");
                assert!(found == expected || of_itself, "{what}: {found:?} and not {expected:?}");
                assert!(expected.is_none_or(|one| one.status() == status), "{what}: {status:?}");
                if expected.is_none() && moves(*opcode) {
                    (bed, _) = bed_in(state);
                }
            }
        }
    }
}

#[test]
fn an_opcode_without_a_line_is_unknown_in_every_state() {
    for state in [HcaState::Reset, HcaState::Enabled, HcaState::Running] {
        let (mut bed, uid) = bed_in(state);
        for opcode in (0..=u16::MAX).map(Opcode::from_raw).filter(|opcode| line(*opcode).is_none()) {
            let refused = (Status::BadOp, Some(Syndrome::UnknownOpcode));
            assert_eq!(send(&mut bed, opcode, 0, 0), refused, "{opcode:?} in {state:?}");
            assert_eq!(send(&mut bed, opcode, uid, 1), refused, "{opcode:?} in {state:?}");
        }
    }
}

#[test]
fn the_device_has_every_command_the_interface_names() {
    let mut named: Vec<u16> = Opcode::ALL.iter().map(|opcode| opcode.raw()).collect();
    named.sort();
    assert_eq!(COMMANDS.iter().map(|command| command.opcode.raw()).collect::<Vec<_>>(), named);
}

macro_rules! opcodes { ($($name:ident)*) => { &[ $( Opcode::$name ),* ] } }

/// The commands of this device that Linux lets programs send through `DEVX_OTHER` (drivers/infiniband/hw/mlx5/devx.c:
/// `devx_is_general_cmd`).
const GENERAL: &[Opcode] = opcodes! {
    QueryHcaCap QueryHcaVportContext QueryVportState QueryAdapter QueryIssi QueryNicVportContext
    QueryRoceAddress QueryVportCounter QueryEswFunctions QueryEswVportContext Nop QueryCongStatus
    QueryCongParams QueryCongStatistics
};

/// Of the commands with which Linux lets programs create, modify, query and destroy DEVX objects (the same file: `devx_is_obj_create_cmd`,
/// `_modify_cmd`, `_query_cmd`, `devx_obj_build_destroy_cmd`), those without a uid in the structures of its header.
const OBJECTS: &[Opcode] = opcodes! {
    CreateFlowGroup AllocFlowCounter SetFlowTableEntry ModifyFlowTable QueryMkey QueryCq QueryRmp QuerySq
    QueryRq QueryRqt QueryTir QueryTis QueryQCounter QueryFlowTable QueryFlowGroup QueryFlowTableEntry
    QueryFlowCounter QueryQp QuerySrq QueryXrcSrq DeallocQCounter DestroyFlowTable DestroyFlowGroup
    DeleteFlowTableEntry DeallocFlowCounter CreateSchedulingElement ModifySchedulingElement
    QuerySchedulingElement DestroySchedulingElement SetL2TableEntry QueryL2TableEntry DeleteL2TableEntry
};

/// Additional commands that user contexts may send here, unlike in Linux, where they are reserved to the kernel: the user-space driver of
/// a function sends them on behalf of its program, and their objects end with the program.
const OURS: &[Opcode] = opcodes! {
    QueryEq DestroyEq AllocMemic DeallocMemic Rts2sqdQp Sqd2sqdQp
};

/// The structure of an opcode, where the names differ by more than capitalization.
fn structure(opcode: Opcode) -> String {
    match opcode {
        Opcode::Qp2Err => "qp_2err_in".into(),
        Opcode::Qp2Rst => "qp_2rst_in".into(),
        Opcode::SqdRtsQp => "sqd2rts_qp_in".into(),
        Opcode::SetFlowTableEntry => "set_fte_in".into(),
        Opcode::QueryFlowTableEntry => "query_fte_in".into(),
        Opcode::DeleteFlowTableEntry => "delete_fte_in".into(),
        Opcode::AccessReg => "access_register_in".into(),
        other => capitals(other).to_lowercase() + "_in",
    }
}

/// `CamelCase` as `CAMEL_CASE`.
fn capitals(opcode: Opcode) -> String {
    let mut out = String::new();
    for c in format!("{opcode:?}").chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

/// Commands with a uid in their input according to Linux.
fn with_uid(ifc: &Ifc) -> Vec<Opcode> {
    let has = |opcode: &&Opcode| {
        let shape = ifc.shape(&structure(**opcode));
        shape.is_some_and(|shape| shape.fields.get("uid") == Some(&(16, 16)))
    };
    Opcode::ALL.iter().filter(has).copied().collect()
}

#[test]
fn user_contexts_may_send_what_linux_sends_for_them_and_little_more() {
    for dir in dirs() {
        let with_uid =
            with_uid(&Ifc::parse(&["mlx5_ifc.h", "mlx5_ifc_fpga.h"].map(|file| read(&dir, file)).join("\n")));
        assert!(
            with_uid.len() > 50,
            "{}: the header knows {} commands with a uid",
            dir.display(),
            with_uid.len()
        );
        for command in COMMANDS {
            let opcode = &command.opcode;
            let (general, object) =
                (GENERAL.contains(opcode), OBJECTS.contains(opcode) || with_uid.contains(opcode));
            let expected = match (general, object || OURS.contains(opcode)) {
                (true, false) => Sender::General,
                (false, true) => Sender::Object,
                (false, false) => Sender::Owner,
                (true, true) => panic!("{opcode:?} is in two lists"),
            };
            assert_eq!(command.sender, expected, "{opcode:?}");
            assert!(!(object && OURS.contains(opcode)), "{opcode:?} is Linux's, too");
        }
    }
}

/// Variants named in the headers that this device does not support.
const NOT_OFFERED: &[(&str, &str)] = &[("ARM_RQ", "XRQ")];

/// Variants named in no header, and the source that distinguishes them.
const BY_SOURCE: &[(Opcode, &[u16], &str)] = &[
    (Opcode::SetFlowTableRoot, &[0, 1], "mlx5/core/fs_cmd.c, mlx5_cmd_update_root_ft: 1 takes the table off"),
    (Opcode::SetFlowTableEntry, &[0, 1], "hw/mlx5/devx.c: 0 makes an object, 1 changes it"),
    (
        Opcode::MadIfc,
        &[0, 1, 2, 3],
        "hw/mlx5/mad.c, mlx5_MAD_IFC: a bit for each of two keys not to be checked",
    ),
];

/// The `op_mod`s named by `header` for `opcode`.
fn variants(header: &Header, opcode: Opcode) -> BTreeSet<u16> {
    let prefixes = match opcode {
        Opcode::QueryVportState | Opcode::ModifyVportState => vec!["MLX5_VPORT_STATE_OP_MOD_".to_string()],
        Opcode::AccessReg => vec!["MLX5_ACCESS_REGISTER_IN_OP_MOD_".into()],
        other => vec![format!("MLX5_{}_IN_OP_MOD_", capitals(other))],
    };
    let named = prefixes.iter().flat_map(|prefix| header.named(prefix));
    named
        .filter(|(name, _)| !NOT_OFFERED.contains(&(&capitals(opcode), name)))
        .map(|(_, value)| value as u16)
        .collect()
}

/// The capability pages of `header`, as `op_mod`s above bit 0.
fn pages(header: &Header) -> BTreeSet<u16> {
    let named = [
        "GENERAL",
        "ETHERNET_OFFLOADS",
        "ODP",
        "ATOMIC",
        "ROCE",
        "FLOW_TABLE",
        "ESWITCH_FLOW_TABLE",
        "ESWITCH",
        "QOS",
        "DEV_MEM",
        "GENERAL_2",
    ];
    named.map(|name| header.value(&format!("MLX5_CAP_{name}")).expect(name) as u16).into()
}

#[test]
fn variants_are_those_the_headers_name() {
    for dir in dirs() {
        let header = Header::parse(&["mlx5_ifc.h", "device.h"].map(|file| read(&dir, file)).join("\n"));
        for command in COMMANDS {
            let opcode = command.opcode;
            let found: BTreeSet<u16> = command.op_mods.iter().copied().collect();
            let source = BY_SOURCE.iter().find(|(one, ..)| *one == opcode).map(|(_, op_mods, _)| *op_mods);
            let expected = match (opcode, source) {
                // Bit 0: maximum or current values.
                (Opcode::QueryHcaCap, _) => {
                    pages(&header).iter().flat_map(|p| [p << 1, p << 1 | 1]).collect()
                }
                (Opcode::SetHcaCap, _) => pages(&header).iter().map(|p| p << 1).collect(),
                (_, Some(op_mods)) => op_mods.iter().copied().collect(),
                _ => variants(&header, opcode),
            };
            // A command without variants is sent with zero.
            let expected = if expected.is_empty() { [0].into() } else { expected };
            assert_eq!(found, expected, "{opcode:?}");
        }
    }
}

/// The commands that Linux sends before INIT_HCA (mlx5/core/main.c, `mlx5_function_enable` and its callees), and those that undo them.
const BEFORE_INIT: &[Opcode] = opcodes! {
    EnableHca QueryIssi SetIssi QueryPages ManagePages AccessReg QueryHcaCap SetHcaCap InitHca DisableHca
};

/// Additional commands that this device accepts as early.
const EARLY: &[Opcode] = opcodes! {
    Nop QueryAdapter SetDriverVersion
};

#[test]
fn before_init_hca_a_driver_may_send_what_linux_does_then() {
    for command in COMMANDS {
        let early = BEFORE_INIT.contains(&command.opcode) || EARLY.contains(&command.opcode);
        assert_eq!(command.states.contains(&HcaState::Enabled), early, "{:?}", command.opcode);
    }
}

#[test]
fn a_user_context_cannot_choose_the_functions_first_flow_table() {
    let (mut bed, uid) = bed_in(HcaState::Running);
    for op_mod in [0, 1] {
        let refused = (Status::BadResource, Some(Syndrome::Privileged));
        assert_eq!(send(&mut bed, Opcode::SetFlowTableRoot, uid, op_mod), refused);
    }
}

#[test]
fn a_devx_program_reads_capabilities_in_its_own_name() {
    let (mut bed, uid) = bed_in(HcaState::Running);
    let mut header = [0; 16];
    // The current general page.
    header[7] = 1;
    let reply = bed.reply_to(0, Opcode::QueryHcaCap, uid, &header, 0x1010);
    assert_eq!(reply.status(), Status::Ok);
    assert!(reply.output[16..].iter().any(|byte| *byte != 0));
}
