use super::{device, open};
use crate::{
    AccessFlags, Device, Dm, Error, InPlace, Mr, Pd,
    transport::fake::{Chip, Lie},
};
use hwspec::cmd::{Opcode, Status, memic::DeallocMemicIn};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

#[allow(unsafe_code)]
fn register(pd: &Arc<Pd>, memory: &mut [u8], access: AccessFlags) -> Result<Mr, Error> {
    let base = memory.as_mut_ptr();
    // SAFETY: the memory outlives the region in these tests.
    unsafe { Mr::register(pd, base, memory.len(), base as u64, access) }
}

/// A device, and what its chip does wrong.
fn lying(lie: Lie) -> (Arc<Chip>, Arc<Device>) {
    let (chip, device) = device();
    chip.state().lie = Some(lie);
    (chip, device)
}

#[test]
fn status_becomes_the_errno_the_linux_driver_gives() {
    let (chip, device) = device();
    let cases = [
        (Status::BadParam, libc::EINVAL),
        (Status::NoResources, libc::EAGAIN),
        (Status::Lim, libc::ENOMEM),
        (Status::BadResource, libc::EINVAL),
        (Status::ResBusy, libc::EBUSY),
        (Status::InternalErr, libc::EIO),
        (Status::Other(0x77), libc::EIO),
    ];
    for (status, errno) in cases {
        chip.state().lie = Some(Lie::Refuse(Opcode::AllocPd, status, 0xabcd));
        let error = Pd::alloc(&device).err().unwrap();
        assert_eq!(error.errno(), errno);
        assert!(error.to_string().contains("0xabcd"), "{error}");
    }
}

#[test]
fn an_object_that_cannot_be_destroyed_stays_with_its_owner() {
    let (chip, device) = device();
    let mut pd = Pd::alloc(&device).unwrap();
    let other = pd.clone();
    assert_eq!(pd.destroy_in_place().unwrap_err().errno(), libc::EBUSY);
    drop(other);
    chip.state().lie = Some(Lie::Refuse(Opcode::DeallocPd, Status::BadResource, 0));
    assert_eq!(pd.destroy_in_place().unwrap_err().errno(), libc::EINVAL);
    pd.destroy_in_place().expect("nothing is left to do");
}

#[test]
fn undelivered_command_says_why() {
    let (_chip, device) = lying(Lie::Undelivered(Opcode::AllocPd, 3));
    let error = Pd::alloc(&device).err().unwrap();
    assert!(error.to_string().contains("BadBlockNumber"), "{error}");
}

#[test]
fn foreign_token_is_not_taken_for_an_answer() {
    let (chip, device) = lying(Lie::BadToken(Opcode::AllocPd));
    assert_eq!(Pd::alloc(&device).err().unwrap().errno(), libc::EIO);
    chip.state().lie = None;
    Pd::alloc(&device).unwrap().dealloc().unwrap();
}

#[test]
fn silent_device_is_given_up_in_bounded_time_and_slots_go_round() {
    let (chip, device) = lying(Lie::Silent(Opcode::AllocPd));
    let begin = Instant::now();
    assert_eq!(Pd::alloc(&device).err().unwrap().errno(), libc::ETIMEDOUT);
    assert!(begin.elapsed() < Duration::from_secs(2));
    chip.state().lie = None;
    // The slot of the lost command stays with the device; the other slots keep working.
    Pd::alloc(&device).unwrap().dealloc().unwrap();
}

/// Twenty exceeds the number of slots; none of them may be lost.
#[test]
fn device_that_acts_at_once_is_not_waited_for() {
    let (chip, device) = device();
    chip.state().acts_at_once = true;
    chip.state().lie = Some(Lie::Silent(Opcode::AllocPd));
    let begin = Instant::now();
    for _ in 0..20 {
        let error = Pd::alloc(&device).err().unwrap();
        assert_eq!((error.errno(), error.to_string().as_str()), (libc::EIO, "AllocPd was never carried out"));
    }
    assert!(begin.elapsed() < Duration::from_millis(100));
    chip.state().lie = None;
    Pd::alloc(&device).unwrap().dealloc().unwrap();
}

/// Entries left by programs killed between filling an entry and ringing the doorbell.
#[test]
fn slots_left_to_a_device_that_acts_at_once_serve_again() {
    let (chip, device) = lying(Lie::Silent(Opcode::AllocPd));
    (0..8).for_each(|_| assert_eq!(Pd::alloc(&device).err().unwrap().errno(), libc::ETIMEDOUT));
    chip.state().lie = None;
    assert_eq!(Pd::alloc(&device).err().unwrap().errno(), libc::ETIMEDOUT, "the device may still have them");
    chip.state().acts_at_once = true;
    Pd::alloc(&device).unwrap().dealloc().unwrap();
}

#[test]
fn many_threads_share_the_queue() {
    let (chip, device) = device();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| Pd::alloc(&device).unwrap().dealloc().unwrap()));
        }
    });
    let count = |op| chip.state().log.iter().filter(|o| **o == op).count();
    assert_eq!((count(Opcode::AllocPd), count(Opcode::DeallocPd)), (200, 200));
}

#[test]
fn long_page_list_arrives_whole() {
    let (chip, device) = device();
    // A skew of one page allows only 4 KiB pages: 2049 entries, far more than the mailboxes of a slot hold.
    chip.state().skew = 0x1000;
    let pd = Pd::alloc(&device).unwrap();
    let mut memory = vec![0u8; 8 << 20];
    let base = memory.as_mut_ptr();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let mr = register(&pd, &mut memory, access).unwrap();
    let input = chip.state().inputs.iter().rev().find(|(op, _)| *op == Opcode::CreateMkey).unwrap().1.clone();
    let list: Vec<u64> =
        input[0x110..].chunks_exact(8).map(|b| u64::from_be_bytes(b.try_into().unwrap())).collect();
    let shift = (base as u64 ^ (base as u64 + 0x1000)).trailing_zeros();
    assert!(list.len() > 1000 && shift == 12 || shift > 12);
    let first = (base as u64 + 0x1000) & (u64::MAX << shift);
    assert!(
        list.iter()
            .take(2000 >> (shift - 12))
            .enumerate()
            .all(|(i, page)| *page == first + ((i as u64) << shift))
    );
    assert_eq!(chip.state().mapped.len(), 1);
    mr.deregister().unwrap();
    assert!(chip.state().mapped.is_empty());
}

#[test]
fn mailboxes_of_a_long_command_that_is_given_up_stay_with_the_device() {
    let (chip, device) = device();
    // One page more than there are 4 KiB pages in 8 MiB: the list takes mailboxes of its own.
    chip.state().skew = 0x1000;
    let pd = Pd::alloc(&device).unwrap();
    let mut memory = vec![0u8; 8 << 20];
    let before = chip.blocks();
    chip.state().lie = Some(Lie::Silent(Opcode::CreateMkey));
    let refused = register(&pd, &mut memory, AccessFlags::empty());
    assert_eq!(refused.err().unwrap().errno(), libc::ETIMEDOUT);
    assert_eq!(chip.blocks(), before + 1, "the device may still read the list");
}

#[test]
fn keys_change_their_variant() {
    let (_chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    let mut memory = [0u8; 64];
    let mut variant = || register(&pd, &mut memory, AccessFlags::empty()).unwrap().lkey() as u8;
    let variants: Vec<u8> = (0..64).map(|_| variant()).collect();
    assert!(variants.windows(2).all(|pair| pair[0] != pair[1]), "{variants:?}");
    // The next variant is not predictable either: 63 steps, each with 255 possible values, do not repeat one value by chance.
    let steps = |variants: &[u8]| -> Vec<u8> {
        variants.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect()
    };
    let distinct: std::collections::HashSet<u8> = steps(&variants).into_iter().collect();
    assert!(distinct.len() > 16, "{variants:?}");
}

#[test]
fn memory_of_a_key_the_device_keeps_is_never_given_back() {
    let (chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    let mut memory = [0u8; 64];
    let mr = register(&pd, &mut memory, AccessFlags::empty()).unwrap();
    chip.state().lie = Some(Lie::Refuse(Opcode::DestroyMkey, Status::BadResource, 1));
    assert_eq!(mr.deregister().unwrap_err().errno(), libc::EINVAL);
    assert_eq!(chip.state().mapped.len(), 1);
    chip.state().lie = None;
    let mr = register(&pd, &mut memory, AccessFlags::empty()).unwrap();
    // As with a window that is bound to the region.
    chip.state().lie = Some(Lie::Refuse(Opcode::DestroyMkey, Status::ResBusy, 1));
    drop(mr);
    assert_eq!(chip.state().mapped.len(), 2);
}

#[test]
fn function_that_is_gone_is_noticed_at_once_and_nothing_of_others_is_touched() {
    let (chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    chip.state().gone = true;
    let begin = Instant::now();
    assert_eq!(Pd::alloc(&device).err().unwrap().errno(), libc::ENODEV);
    drop(pd);
    drop(device);
    assert!(begin.elapsed() < Duration::from_millis(100));
    chip.state().gone = false;
    // As after a fork: the child has dropped everything, but the parent's entry is still in the list of openers.
    let other = open(&chip.opener(2));
    chip.state().log.clear();
    other.close().unwrap();
    assert!(!chip.state().log.contains(&Opcode::TeardownHca));
}

#[test]
fn device_memory_that_lies_outside_of_the_registers_is_refused_and_given_back() {
    for (at, within) in
        [(0x100_0000, true), (u64::from(u32::MAX) - 0xfff, true), (1 << 32, false), (u64::MAX, false)]
    {
        let chip = Chip::new();
        chip.state().memory = Some(at);
        chip.state().general.set().device_memory(true);
        let device = open(&chip.opener(1));
        let memory = Dm::alloc(&device, 64, 0).map(drop).map_err(|error| error.errno());
        assert_eq!(memory, if within { Ok(()) } else { Err(libc::EIO) }, "{at:#x}");
        let freed = chip.last::<DeallocMemicIn>(Opcode::DeallocMemic);
        assert_eq!((freed.memic_start_addr(), freed.memic_size()), (at, 4096));
    }
}
