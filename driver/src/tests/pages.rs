//! Page requests of any size, at any time, in both directions.

use super::{device, open, options};
use crate::{
    Device, OpenOptions, Pd,
    transport::fake::{Chip, Lie},
};
use hwspec::cmd::{
    Opcode,
    adapter::{CANT_GIVE, GIVE, TAKE},
};
use std::time::{Duration, Instant};

fn request(chip: &Chip, function: u16, pages: i32) {
    chip.state().ask_pages(function, pages);
}

#[test]
fn requests_are_served_by_whoever_takes_events() {
    let (chip, device) = device();
    let before = chip.state().pages.len();
    request(&chip, 0, 5);
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().pages.len(), before + 5);
    request(&chip, 0, -2);
    request(&chip, 0, 0);
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().pages.len(), before + 3);
    assert_eq!(chip.state().managed.last(), Some(&(0, TAKE, 2)));
}

#[test]
fn a_command_that_waits_for_ten_thousand_pages_gets_them() {
    let chip = Chip::new();
    let patient = OpenOptions { command_timeout: Duration::from_secs(10), ..options() };
    let device = Device::open(chip.opener(1), patient).unwrap();
    let before = chip.state().pages.len();
    chip.state().hungry = vec![(Opcode::AllocPd, vec![(0, 10_000)])];
    let pd = Pd::alloc(&device).unwrap();
    assert_eq!(chip.state().pages.len(), before + 10_000);
    drop(pd);
    device.close().unwrap();
    assert_eq!((chip.blocks(), chip.state().pages.len()), (0, 0));
}

#[test]
fn a_command_may_wait_for_pages_of_other_functions_and_for_pages_to_be_taken_back() {
    let (chip, device) = device();
    chip.state().hungry = vec![(Opcode::AllocPd, vec![(3, 600), (0, -50), (7, 1)])];
    drop(Pd::alloc(&device).unwrap());
    let managed: Vec<_> = chip.state().managed.iter().rev().take(4).rev().copied().collect();
    assert_eq!(managed, [(3, GIVE, 512), (3, GIVE, 88), (0, TAKE, 50), (7, GIVE, 1)]);
    device.close().unwrap();
    assert_eq!((chip.blocks(), chip.state().pages.len()), (0, 0), "those of other functions too");
}

#[test]
fn requests_during_bring_up_and_teardown_are_served() {
    for op in [Opcode::SetRoceAddress, Opcode::ModifyNicVportContext, Opcode::CreateUctx] {
        let chip = Chip::new();
        chip.state().hungry = vec![(op, vec![(0, 40)])];
        open(&chip.opener(1)).close().unwrap();
        assert!(chip.state().managed.contains(&(0, GIVE, 40)), "{op:?}");
        assert_eq!(chip.blocks(), 0);
    }
    for op in [Opcode::DestroyEq, Opcode::DestroyUctx, Opcode::DeallocUar] {
        let (chip, device) = device();
        chip.state().hungry = vec![(op, vec![(0, 40)])];
        device.close().unwrap();
        assert!(chip.state().managed.contains(&(0, GIVE, 40)), "{op:?}");
        assert_eq!((chip.blocks(), chip.state().pages.len()), (0, 0), "{op:?}");
    }
}

#[test]
fn many_small_requests_do_not_use_up_the_record() {
    let (chip, device) = device();
    let before = chip.state().pages.len();
    for _ in 0..5000 {
        request(&chip, 0, 1);
        assert_eq!(device.events().next(), None);
    }
    assert_eq!(chip.state().pages.len(), before + 5000);
    device.close().unwrap();
    assert_eq!(chip.blocks(), 0);
}

#[test]
fn a_request_that_comes_while_another_opener_supplies_pages_is_served_later() {
    let (chip, device) = device();
    let before = chip.state().pages.len();
    let other = crate::shared_area::Shared::open(&(chip.opener(2) as std::sync::Arc<_>)).unwrap();
    assert!(other.claim_page_manager());
    request(&chip, 0, 9);
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().pages.len(), before);
    other.release_page_manager();
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().pages.len(), before + 9);
}

#[test]
fn a_device_that_answers_pages_with_another_request_holds_a_command_up_for_its_time_alone() {
    let (chip, device) = device();
    chip.state().insatiable = true;
    request(&chip, 0, 1);
    let begin = Instant::now();
    assert_eq!(device.events().next(), None);
    chip.state().lie = Some(Lie::Silent(Opcode::AllocPd));
    assert!(Pd::alloc(&device).is_err());
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    chip.state().insatiable = false;
    device.close().unwrap();
    assert_eq!(chip.blocks(), 0);
}

#[test]
fn a_device_cannot_give_back_what_it_was_not_given() {
    let (chip, device) = device();
    let queue = {
        let state = chip.state();
        let (_, input) = state.inputs.iter().find(|(op, _)| *op == Opcode::CreateEq).unwrap();
        u64::from_be_bytes(hwspec::layout::prefix(&input[0x110..]))
    };
    let blocks = chip.blocks();
    chip.state().pages.insert(0, queue);
    request(&chip, 0, -1);
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().managed.last(), Some(&(0, TAKE, 1)));
    assert_eq!(chip.blocks(), blocks, "its event queue is still there");
    device.close().unwrap();
    assert_eq!(chip.blocks(), 0);
}

#[test]
fn a_device_is_told_when_there_is_no_memory_for_it() {
    let (chip, device) = device();
    chip.state().exhausted = true;
    request(&chip, 4, 9);
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().managed.last(), Some(&(4, CANT_GIVE, 0)));
}

#[test]
fn pages_are_supplied_within_the_time_of_a_command() {
    let hurried = OpenOptions { command_timeout: Duration::ZERO, ..options() };
    let chip = Chip::new();
    let error = Device::open(chip.opener(1), hurried).err().unwrap();
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    assert!(error.to_string().contains("supply of"), "{error}");
    assert_eq!(chip.blocks(), 0);
}

#[test]
fn pages_are_waited_for_as_long_as_the_device_may_still_give_some() {
    let chip = Chip::new();
    // Longer than a busy machine could delay this thread.
    let patient = OpenOptions { command_timeout: Duration::from_secs(30), ..options() };
    let device = Device::open(chip.opener(1), patient).unwrap();
    chip.state().stingy = 20;
    device.close().unwrap();
    assert_eq!((chip.blocks(), chip.state().pages.len()), (0, 0));
    assert_eq!(chip.state().resets, 0);
    // A device that keeps its pages is reset.
    let patient = OpenOptions { command_timeout: Duration::from_secs(1), ..options() };
    let device = Device::open(chip.opener(1), patient).unwrap();
    chip.state().stingy = u32::MAX;
    let begin = Instant::now();
    device.close().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!((chip.blocks(), chip.state().resets), (0, 1));
}
