//! The server's behaviour towards a client that follows the protocol.

use super::client::{SOON, Served, eventfd, eventually, signals};
use hwspec::pcie::{EXPRESS_CAP, MSIX_CAP};
use std::os::unix::net::UnixStream;
use vfio_user_proto::{zerocopy::IntoBytes, *};

#[test]
fn a_client_learns_what_the_device_has() {
    let (served, mut c) = Served::with_client();
    let ask = DeviceInfo { argsz: 16, ..Default::default() };
    let (info, _): (DeviceInfo, _) = c.link.ask(Command::DEVICE_GET_INFO, &ask, SOON).expect("info");
    assert_eq!((info.flags, info.num_regions, info.num_irqs), (3, 9, 5));
    for (index, size) in [(0, 32 << 20), (1, 0), (6, 0), (7, 4096)] {
        let ask = RegionInfo { argsz: 32, index, ..Default::default() };
        let reply = c.call(Command::DEVICE_GET_REGION_INFO, ask.as_bytes(), &[]).expect("a region");
        let (region, areas) = RegionInfo::decode(&reply.payload).expect("a region");
        assert_eq!((region.index, region.size, region.flags & 3 == 3), (index, size, size > 0));
        assert!(areas.is_empty() && region.flags & REGION_FLAG_MMAP == 0, "all accesses are trapped");
    }
    for (index, count) in [(IRQ_INTX, 0), (IRQ_MSI, 0), (IRQ_MSIX, 64), (IRQ_ERR, 1), (IRQ_REQ, 0)] {
        let ask = IrqInfo { argsz: 16, index, ..Default::default() };
        let (info, _): (IrqInfo, _) = c.link.ask(Command::DEVICE_GET_IRQ_INFO, &ask, SOON).expect("info");
        assert_eq!((info.index, info.count), (index, count));
    }
    assert_eq!(c.config(0), 0x1018_15b3, "a VF");
    assert_eq!(c.config(8) >> 8, 0x02_0000);
    assert_eq!(served.client(0).config(0), 0x1017_15b3, "the PF");
}

#[test]
fn extended_capabilities_are_the_nodes_own() {
    let served = Served::new();
    let mut pf = served.client(0);
    assert!((0x100..0x1000).step_by(4).all(|at| pf.config(at) == 0));
    // Clears VF enable.
    pf.write(REGION_CONFIG, 0x188, &[0; 4]).expect("a write");
    assert_eq!(served.client(1).config(0), 0x1018_15b3, "the VFs are still there");
}

#[test]
fn a_command_goes_to_and_fro() {
    let (_served, mut c) = Served::with_guest();
    c.works();
    assert_eq!(c.register(4) >> 16, 5, "revision of the command interface");
}

#[test]
fn accesses_of_all_widths_find_the_same_bytes() {
    let (_served, mut c) = Served::with_guest();
    let all = c.read(REGION_BAR0, 0, 64).expect("the initialization segment");
    for (at, n) in [(0, 1), (3, 1), (4, 2), (6, 2), (4, 4), (0, 8), (5, 7), (13, 20)] {
        assert_eq!(c.read(REGION_BAR0, at as u64, n).expect("bytes"), all[at..at + n as usize]);
    }
    let config = c.read(REGION_CONFIG, 0, 256).expect("configuration space");
    for (at, n) in [(0, 1), (2, 2), (1, 3), (0x34, 4), (0x5f, 9)] {
        assert_eq!(c.read(REGION_CONFIG, at as u64, n).expect("bytes"), config[at..at + n as usize]);
    }
}

#[test]
fn interrupts_come_through_the_clients_eventfd() {
    let (_served, mut c) = Served::with_guest();
    let uar = c.init();
    let (one, two) = (c.connect(3), c.connect(4));
    let eqn = c.create_eq(uar, 3);
    assert_eq!(signals(&one), 0, "creating the queue is no event of its own");
    c.works();
    eventually("the command's event", || signals(&one) == 1);
    c.arm(uar, eqn, 1);
    c.works();
    eventually("the next event", || signals(&one) == 1);
    assert_eq!(signals(&two), 0);
    // Triggered by the client itself.
    c.guest_triggers(4);
    assert_eq!(signals(&two), 1);
}

#[test]
fn a_masked_interrupt_waits() {
    let (_served, mut c) = Served::with_guest();
    let uar = c.init();
    let fd = c.connect(0);
    let eqn = c.create_eq(uar, 0);
    let mut set =
        IrqSet { argsz: 20, flags: IRQ_SET_DATA_BOOL | IRQ_SET_MASK, index: IRQ_MSIX, start: 0, count: 1 };
    assert_eq!(c.errno(Command::DEVICE_SET_IRQS, &[set.as_bytes(), &[1]].concat(), &[]), 0);
    c.works();
    assert_eq!(signals(&fd), 0);
    set.flags = IRQ_SET_DATA_NONE | IRQ_SET_UNMASK;
    assert_eq!(c.errno(Command::DEVICE_SET_IRQS, set.as_bytes(), &[]), 0);
    assert_eq!(signals(&fd), 1, "what became due while it was masked");
    c.arm(uar, eqn, 1);
    // Without descriptors, a vector is disconnected.
    set.flags = IRQ_SET_DATA_EVENTFD | IRQ_SET_TRIGGER;
    assert_eq!(c.errno(Command::DEVICE_SET_IRQS, set.as_bytes(), &[]), 0);
    c.works();
    assert_eq!(signals(&fd), 0);
    // An eventfd connected later receives the pending signal.
    let later = eventfd();
    assert_eq!(c.errno(Command::DEVICE_SET_IRQS, set.as_bytes(), &[&later]), 0);
    assert_eq!(signals(&later), 1);
}

#[test]
fn resets_start_the_function_afresh_and_keep_its_eventfds() {
    let (_served, mut c) = Served::with_guest();
    for how in ["message", "capability"] {
        let uar = c.init();
        let fd = c.connect(5);
        match how {
            "message" => assert_eq!(c.errno(Command::DEVICE_RESET, &[], &[]), 0),
            _ => c.write(REGION_CONFIG, EXPRESS_CAP as u64 + 8, &0x8000u16.to_le_bytes()).expect("FLR"),
        }
        assert_eq!(c.config(4) & 6, 0, "{how}: memory space and bus mastering are off");
        assert_eq!(c.register(0), u32::MAX);
        c.enable();
        assert_eq!(c.init(), uar, "{how}: as at first");
        c.write(REGION_CONFIG, MSIX_CAP as u64 + 2, &0x8000u16.to_le_bytes()).expect("MSI-X control");
        c.create_eq(uar, 5);
        c.works();
        eventually("an interrupt", || signals(&fd) == 1);
        assert_eq!(c.errno(Command::DEVICE_RESET, &[], &[]), 0);
        c.enable();
    }
}

#[test]
fn the_next_client_finds_the_function_as_new() {
    let (served, mut first) = Served::with_guest();
    first.init();
    drop(first);
    let mut second = served.client(1);
    assert_eq!(second.config(4) & 6, 0);
    second.map_all();
    second.enable();
    second.init();
    second.works();
}

#[test]
fn writes_without_reply_and_in_rows_act_in_order() {
    let (_served, mut c) = Served::with_guest();
    let at = c.post_query(16);
    let bell = RegionAccess { offset: 0x18, region: REGION_BAR0, count: 4 };
    let one = 1u32.to_be_bytes();
    c.link.tell(Command::REGION_WRITE, &[bell.as_bytes(), &one]).expect("sent");
    c.completes(at);
    let at = c.post_query(16);
    let mut data = [0; 8];
    data[..4].copy_from_slice(&one);
    let writes = [SmallWrite { access: bell, data }];
    assert_eq!(c.errno(Command::REGION_WRITE_MULTI, &SmallWrite::encode(&writes), &[]), 0);
    c.completes(at);
}

#[test]
fn what_we_do_not_know_is_not_supported() {
    let (_served, mut c) = Served::with_client();
    for command in
        [Command::DEVICE_GET_REGION_IO_FDS, Command::DEVICE_FEATURE, Command::DMA_READ, Command(99)]
    {
        assert_eq!(c.errno(command, &[0; 32], &[]), libc::EOPNOTSUPP, "{command:?}");
    }
    assert_eq!(c.config(0), 0x1018_15b3);
}

#[test]
fn sockets_go_with_the_server_and_clients_are_told() {
    let mut served = Served::new();
    let mut c = served.client(1);
    assert!(served.plugs[1].in_use() && !served.plugs[2].in_use());
    served.plugs.clear();
    assert!(!served.path(1).exists());
    assert!(UnixStream::connect(served.path(1)).is_err());
    assert!(matches!(c.link.receiver.receive(Some(SOON)), Err(Error::Closed)));
}
