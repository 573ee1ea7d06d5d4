use super::{device, open, options};
use crate::{
    Device, OpenOptions,
    bringup::{self, Step, Watch},
    error::Error,
    ready,
    shared_area::{FunctionState, Shared},
    transport::{
        Registers, Transport,
        fake::{Chip, Lie},
    },
};
use hwspec::cmd::Opcode;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

#[test]
fn commands_come_in_the_order_of_the_interface_and_go_in_reverse() {
    let (chip, device) = device();
    let log: Vec<_> = std::mem::take(&mut chip.state().log);
    let expected = [
        Opcode::EnableHca,
        Opcode::QueryIssi,
        Opcode::SetIssi,
        Opcode::QueryPages,
        Opcode::ManagePages,
        Opcode::QueryHcaCap,
        Opcode::QueryHcaCap,
        Opcode::SetHcaCap,
        Opcode::QueryHcaCap,
        Opcode::QueryHcaCap,
        Opcode::QueryHcaCap,
        Opcode::SetHcaCap,
        Opcode::QueryHcaCap,
        Opcode::QueryHcaCap,
        Opcode::QueryPages,
        Opcode::ManagePages,
        Opcode::ManagePages,
        Opcode::InitHca,
        Opcode::QueryHcaCap,
        Opcode::QueryHcaCap,
        Opcode::QueryHcaCap,
        Opcode::QueryAdapter,
        Opcode::QueryNicVportContext,
        Opcode::AllocUar,
        Opcode::CreateEq,
        Opcode::CreateEq,
        Opcode::AccessReg,
        Opcode::ModifyNicVportContext,
        Opcode::ModifyNicVportContext,
        Opcode::ModifyNicVportContext,
        Opcode::SetRoceAddress,
        Opcode::SetRoceAddress,
        Opcode::CreateUctx,
        Opcode::AllocUar,
        Opcode::AllocTransportDomain,
        Opcode::CreateEq,
    ];
    assert_eq!(log, expected);
    device.close().unwrap();
    let log: Vec<_> = std::mem::take(&mut chip.state().log);
    let expected = [
        Opcode::DestroyEq,
        Opcode::DeallocTransportDomain,
        Opcode::DeallocUar,
        Opcode::DestroyUctx,
        Opcode::DestroyEq,
        Opcode::DestroyEq,
        Opcode::DeallocUar,
        Opcode::TeardownHca,
        Opcode::ManagePages,
        Opcode::ManagePages,
        Opcode::DisableHca,
    ];
    assert_eq!(log, expected);
    assert_eq!((chip.blocks(), chip.state().pages.len()), (0, 0), "nothing is left behind");
}

#[test]
fn what_the_device_says_of_itself_arrives() {
    let (_chip, device) = device();
    let attr = device.attr();
    assert_eq!(attr.fw_ver, (16, 26, 7));
    assert_eq!((attr.vendor_id, attr.vendor_part_id, attr.max_qp_wr), (0x15b3, 0x1018, 1024));
    assert_eq!((attr.max_cqe, attr.max_sge, attr.psid.as_str()), (65535, 30, "IRN0000000001"));
    assert_eq!(attr.node_guid, [0, 0x1b, 0x56, 0xff, 0xfe, 0, 0, 3]);
    let port = device.port().unwrap();
    assert!(port.active);
    assert_eq!((port.active_mtu, port.mac, port.gid_tbl_len), (4096, crate::transport::fake::MAC, 16));
    assert_eq!(device.gid(1).unwrap(), options().gids[1]);
    assert_eq!(device.gid(5).unwrap(), [0; 16]);
    assert_eq!(device.gid(16).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn second_opener_attaches_and_the_first_may_leave() {
    let chip = Chip::new();
    let first = open(&chip.opener(1));
    chip.state().log.clear();
    let second = open(&chip.opener(2));
    assert!(
        !chip.state().log.contains(&Opcode::EnableHca) && !chip.state().log.contains(&Opcode::SetRoceAddress)
    );
    first.close().unwrap();
    assert!(!chip.state().log.contains(&Opcode::TeardownHca));
    assert!(second.port().unwrap().active);
    second.close().unwrap();
    assert!(chip.state().log.contains(&Opcode::TeardownHca));
    assert_eq!(chip.blocks(), 0, "the second frees what the first allocated");
}

#[test]
fn dead_bringer_is_replaced() {
    let chip = Chip::new();
    let dead: Arc<dyn Transport> = chip.opener(1);
    let shared = Shared::open(&dead).unwrap();
    let lock = shared.lock(Duration::from_millis(50)).unwrap();
    lock.set_state(FunctionState::InChange);
    std::mem::forget(lock);
    let refused = Device::open(chip.opener(2), options()).err().unwrap();
    assert_eq!(refused.errno(), libc::ETIMEDOUT, "{refused}");
    chip.state().dead.insert(1);
    let device = open(&chip.opener(2));
    assert_eq!(chip.state().resets, 1);
    device.close().unwrap();
    assert_eq!(chip.blocks(), 0);
}

#[test]
fn openers_that_died_do_not_keep_the_function_up() {
    let chip = Chip::new();
    std::mem::forget(open(&chip.opener(1)));
    let second = open(&chip.opener(2));
    chip.state().dead.insert(1);
    second.close().unwrap();
    assert!(chip.state().log.contains(&Opcode::TeardownHca));
}

#[test]
fn failed_bring_up_leaves_nothing() {
    for op in [
        Opcode::EnableHca,
        Opcode::QueryPages,
        Opcode::ManagePages,
        Opcode::InitHca,
        Opcode::QueryAdapter,
        Opcode::SetRoceAddress,
        Opcode::CreateUctx,
        Opcode::CreateEq,
    ] {
        let chip = Chip::new();
        chip.state().lie = Some(Lie::Refuse(op, hwspec::cmd::Status::BadSysState, 7));
        let error = Device::open(chip.opener(1), options()).err().expect("refused");
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert_eq!((chip.blocks(), chip.state().pages.len()), (0, 0), "after {op:?}");
        chip.state().lie = None;
        open(&chip.opener(1)).close().unwrap();
    }
}

#[test]
fn close_says_when_objects_live() {
    let (chip, device) = device();
    let pd = crate::Pd::alloc(&device).unwrap();
    assert_eq!(device.close().unwrap_err().errno(), libc::EBUSY);
    pd.dealloc().unwrap();
    assert_eq!(chip.blocks(), 0, "the device closes with its last object");
}

#[test]
fn foreign_device_is_refused() {
    let chip = Chip::new();
    chip.config(0, 0x1533_8086);
    let error = Device::open(chip.opener(1), options()).err().unwrap();
    assert!(error.to_string().contains("8086:1533"), "{error}");
    // An mlx4 card has the same vendor ID but another interface.
    chip.config(0, 0x1007_15b3);
    let error = Device::open(chip.opener(1), options()).err().unwrap();
    assert!(error.to_string().contains("15b3:1007"), "{error}");
}

#[test]
fn every_adapter_of_the_family_comes_up() {
    for adapter in hwspec::pcie::ADAPTERS {
        for (id, is_virtual) in [(adapter.physical, false), (adapter.virtual_function, true)] {
            let chip = Chip::new();
            chip.config(0, u32::from(id) << 16 | 0x15b3);
            let device = open(&chip.opener(1));
            assert_eq!(
                (device.is_virtual(), device.attr().vendor_part_id),
                (is_virtual, id.into()),
                "{id:#x}"
            );
            device.close().unwrap();
        }
    }
}

#[test]
fn firmware_may_take_longer_to_be_ready_than_for_a_command() {
    const INITIALIZING: u32 = 0x1fc;
    let chip = Chip::new();
    chip.write32(INITIALIZING, 1 << 31);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            chip.write32(INITIALIZING, 0);
        });
        let patient = OpenOptions { ready_timeout: Duration::from_secs(20), ..options() };
        Device::open(chip.opener(1), patient).unwrap().close().unwrap();
    });
    chip.write32(INITIALIZING, 1 << 31);
    let error = Device::open(chip.opener(1), options()).err().unwrap();
    assert!(error.to_string().starts_with("initialization of the firmware did not finish"), "{error}");
    // Those of the stock driver.
    let usual = OpenOptions::default();
    assert_eq!((usual.command_timeout.as_secs(), usual.ready_timeout.as_secs()), (60, 120));
}

/// A stage of the model panics, as happens when it finds its tables corrupted. Undoing the bring-up must not wait for
/// the lock that the panicking thread holds.
#[test]
fn bring_up_that_panics_leaves_the_function_at_once() {
    struct Panics;
    impl Watch for Panics {
        fn step(&mut self, step: Step) {
            assert_ne!(step, Step::SetCaps, "on purpose");
        }
        fn read(&mut self, _: &'static str, _: String) {}
    }
    let chip = Chip::new();
    let patient = OpenOptions { lock_timeout: Duration::from_secs(10), ..options() };
    let (fake, begin) = (chip.opener(1), Instant::now());
    assert!(catch_unwind(AssertUnwindSafe(|| bringup::open(fake, patient, &mut Panics))).is_err());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    open(&chip.opener(2)).close().unwrap();
}

/// Firmware may need a minute, and the opener that waits for it holds the lock.
#[test]
fn an_opener_that_brings_the_function_up_is_waited_for_as_long_as_that_may_take() {
    let chip = Chip::new();
    let first: Arc<dyn Transport> = chip.opener(1);
    let shared = Shared::open(&first).unwrap();
    let lock = shared.lock(Duration::ZERO).unwrap();
    let second = || OpenOptions { ready_timeout: Duration::from_secs(20), ..options() };
    let error = Device::open(chip.opener(2), second()).err().unwrap().to_string();
    assert!(error.contains("holding the function's lock"), "{error}");
    lock.set_state(FunctionState::InChange);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Device::open(chip.opener(2), second()));
        std::thread::sleep(3 * options().lock_timeout);
        lock.set_state(FunctionState::Down);
        drop(lock);
        waiting.join().unwrap().expect("it waited");
    });
}

#[test]
fn registers_that_nobody_answers_for_yet_are_waited_for() {
    let chip = Chip::new();
    chip.state().gone = true;
    let transport: Arc<dyn Transport> = chip.opener(1);
    let bar = transport.bar(0).unwrap();
    let waited = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            chip.state().gone = false;
        });
        ready::wait(&*transport, &bar, Duration::from_secs(20)).unwrap()
    });
    assert!((100..10_000).contains(&waited.as_millis()), "{waited:?}");
}

#[test]
fn a_function_whose_configuration_space_is_gone_too_is_not_waited_for() {
    let chip = Chip::new();
    let transport: Arc<dyn Transport> = chip.opener(1);
    let bar = transport.bar(0).unwrap();
    chip.state().gone = true;
    let wait = |limit| ready::wait(&*transport, &bar, Duration::from_millis(limit));
    let begin = Instant::now();
    assert!(matches!(wait(50), Err(Error::Gone)));
    assert!(begin.elapsed() < Duration::from_secs(5), "the limit counts while it may still come");
    chip.config(0, u32::MAX);
    assert!(matches!(wait(60_000), Err(Error::Gone)));
    assert!((1..20).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}
