use super::{device, open, options};
use crate::{
    Cq, DeviceEvent, Event, Health, Pd, PortEvent, Qp, QpEvent, QpInit, Service,
    transport::{
        Registers,
        fake::{Chip, Lie},
    },
};
use hwspec::{
    cmd::{Opcode, Status, eq::CreateEqIn},
    doorbell::{EQ_ARM, UAR_SIZE},
    eqe::{CompEvent, CqErrorEvent, Eqe, EventType, PortChange},
    handle::{Cqn, Qpn},
    layout::Layout,
    pcie::{EXT_CAP_ID_SRIOV, SriovCap},
};
use std::{sync::Arc, time::Duration};

fn raise(chip: &Chip, eqe: Eqe) {
    chip.state().raise(eqe);
}

fn comp(cqn: u32) -> Eqe {
    let data = CompEvent::with(|s| s.cq_number(Cqn(cqn)));
    Eqe::new(EventType::Comp, data)
}

fn of_qp(kind: EventType, qpn: u32) -> Eqe {
    let data = hwspec::eqe::QpEvent::with(|s| s.qpn_rqn_sqn(Qpn(qpn)));
    Eqe::new(kind, data)
}

fn port(change: PortChange) -> Eqe {
    let data = hwspec::eqe::PortEvent::with(|s| s.port_num(1));
    let mut eqe = Eqe::new(EventType::PortChange, data);
    eqe.set().event_sub_type(change.raw());
    eqe
}

#[test]
fn events_arrive_with_their_cookies() {
    let (chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 10, 0xc0).unwrap();
    let init = QpInit { max_send_wr: 1, cookie: 0xd0, ..QpInit::new(Service::Rc, &cq, &cq) };
    let qp = Qp::create(&pd, &init).unwrap();
    let error = CqErrorEvent::with(|s| s.cqn(Cqn(cq.cqn())));
    let raised = [
        comp(cq.cqn()),
        of_qp(EventType::WqAccessError, qp.qpn()),
        Eqe::new(EventType::CqError, error),
        port(PortChange::Active),
        of_qp(EventType::Other(0x7f), 0),
    ];
    raised.into_iter().for_each(|eqe| raise(&chip, eqe));
    let events: Vec<_> = std::iter::from_fn(|| device.events().next()).collect();
    let (cqn, qpn) = (cq.cqn(), qp.qpn());
    let expected = [
        Event::Cq { cqn, cookie: 0xc0 },
        Event::Qp { qpn, cookie: 0xd0, kind: QpEvent::AccessError },
        Event::CqError { cqn, cookie: 0xc0 },
        Event::Port { port: 1, kind: PortEvent::Active },
        Event::Device(DeviceEvent::Other(0x7f, 0)),
    ];
    assert_eq!(events, expected);
}

#[test]
fn changes_of_the_port_are_told_by_kind() {
    let (chip, device) = device();
    let kinds = [
        (PortChange::Down, PortEvent::Error),
        (PortChange::Active, PortEvent::Active),
        (PortChange::Lid, PortEvent::LidChange),
        (PortChange::Pkey, PortEvent::PkeyChange),
        (PortChange::Guid, PortEvent::GidChange),
        (PortChange::ClientRereg, PortEvent::ClientReregister),
        (PortChange::Other(0x33), PortEvent::Other(0x33)),
    ];
    kinds.iter().for_each(|(change, _)| raise(&chip, port(*change)));
    let events: Vec<_> = std::iter::from_fn(|| device.events().next()).collect();
    assert_eq!(events, kinds.map(|(_, kind)| Event::Port { port: 1, kind }));
}

#[test]
fn a_device_that_raises_events_for_ever_does_not_keep_who_takes_them() {
    let (chip, device) = device();
    let port = || port(PortChange::Active);
    raise(&chip, port());
    let mut taken = 0;
    assert!(device.events().drain(|_| {
        raise(&chip, port());
        taken += 1;
    }));
    assert!((100..10_000).contains(&taken), "{taken}");
    assert!(!device.events().drain(drop), "and then one more");
}

#[test]
fn a_drained_send_queue_is_told_to_who_asked_and_once() {
    let (chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 10, 1).unwrap();
    let init = QpInit { max_send_wr: 1, cookie: 5, ..QpInit::new(Service::Rc, &cq, &cq) };
    let qp = Qp::create(&pd, &init).unwrap();
    let drained = || of_qp(EventType::SqDrained, qp.qpn());
    raise(&chip, drained());
    assert_eq!(device.events().next(), None);
    device.registry.notify_of_drained(qp.qpn(), true);
    raise(&chip, drained());
    raise(&chip, drained());
    let drained = Event::Qp { qpn: qp.qpn(), cookie: 5, kind: QpEvent::SqDrained };
    assert_eq!((device.events().next(), device.events().next()), (Some(drained), None));
}

#[test]
fn events_of_objects_that_are_gone_are_skipped_and_the_queue_goes_round() {
    let (chip, device) = device();
    let cq = Cq::create(&device, 10, 1).unwrap();
    for index in 0..300 {
        match index % 3 {
            0 => raise(&chip, comp(cq.cqn() + 5)),
            1 => raise(&chip, of_qp(EventType::CommEst, 0xff_ffff)),
            _ => {
                raise(&chip, comp(cq.cqn()));
                assert_eq!(device.events().next(), Some(Event::Cq { cqn: cq.cqn(), cookie: 1 }));
                assert_eq!(device.events().next(), None);
            }
        }
    }
}

#[test]
fn the_next_arming_says_that_the_event_was_seen() {
    let (chip, device) = device();
    let cq = Cq::create(&device, 10, 1).unwrap();
    for sn in [0u64, 1, 2, 3, 0] {
        cq.arm(false);
        assert_eq!(chip.state().doorbells.last().unwrap().1 >> 60, sn);
        raise(&chip, comp(cq.cqn()));
        assert!(device.events().next().is_some());
    }
}

/// User context, event mask and vector of each created queue.
fn queues(chip: &Chip) -> Vec<(u16, u64, u16)> {
    let state = chip.state();
    let inputs = state.inputs.iter().filter(|(op, _)| *op == Opcode::CreateEq);
    let queue = |input: &[u8]| {
        let input = CreateEqIn::read(input);
        let mask = u64::from_be_bytes(input.event_bitmask()[..8].try_into().unwrap());
        (input.uid(), mask, input.eq_context_entry().intr())
    };
    inputs.map(|(_, input)| queue(input)).collect()
}

#[test]
fn what_is_no_completion_has_one_queue_and_one_for_pages_whoever_opens_the_function() {
    let chip = Chip::new();
    let openers = [open(&chip.opener(1)), open(&chip.opener(2))];
    let [(0, mask, 0), (0, pages, 0), (first, 0, 1), (second, 0, 2)] = queues(&chip)[..] else {
        panic!("{:x?}", queues(&chip))
    };
    assert!(first != 0 && second != 0 && first != second, "completions belong to their openers");
    // Linux subscribes to these on every device. It never subscribes to type 8, and has a separate queue for
    // pages.
    assert_eq!((mask, pages), (0x001f_02be & !(1 << 8), 1 << EventType::PageRequest.raw()));
    drop(openers);
}

#[test]
fn the_functions_queues_are_armed_from_the_beginning() {
    let (chip, device) = device();
    let (_, input) =
        &chip.state().inputs.iter().filter(|(op, _)| *op == Opcode::CreateEq).nth(1).unwrap().clone();
    let page = CreateEqIn::read(input).eq_context_entry().uar_page();
    // Both share a doorbell page; the queue for pages comes last.
    let armed = chip.read32(page * UAR_SIZE as u32 + EQ_ARM as u32);
    assert!(armed >> 24 != 0 && armed & 0xff_ffff == 0, "{armed:#x}");
    drop(device);
}

#[test]
fn each_opener_hears_of_the_port_and_of_its_own_objects() {
    let chip = Chip::new();
    let devices = [open(&chip.opener(1)), open(&chip.opener(2))];
    let qps = devices.each_ref().map(|device| {
        let pd = Pd::alloc(device).unwrap();
        let cq = Cq::create(device, 10, 1).unwrap();
        Qp::create(&pd, &QpInit { max_send_wr: 1, ..QpInit::new(Service::Rc, &cq, &cq) }).unwrap()
    });
    raise(&chip, of_qp(EventType::WqCatasError, qps[1].qpn()));
    raise(&chip, port(PortChange::Down));
    let heard =
        devices.each_ref().map(|device| std::iter::from_fn(|| device.events().next()).collect::<Vec<_>>());
    let down = Event::Port { port: 1, kind: PortEvent::Error };
    let fatal = Event::Qp { qpn: qps[1].qpn(), cookie: 0, kind: QpEvent::Fatal };
    assert_eq!(heard, [vec![down], vec![fatal, down]]);
}

#[test]
fn the_queue_survives_the_opener_that_made_it() {
    for dies in [false, true] {
        let chip = Chip::new();
        let (first, second) = (open(&chip.opener(1)), open(&chip.opener(2)));
        match dies {
            true => {
                std::mem::forget(first);
                chip.state().dead.insert(1);
            }
            false => first.close().unwrap(),
        }
        for _ in 0..100 {
            raise(&chip, Eqe::new(EventType::PortChange, hwspec::eqe::PortEvent::zeroed()));
            assert!(matches!(second.events().next(), Some(Event::Port { .. })));
        }
        second.close().unwrap();
        assert!(chip.state().log.contains(&Opcode::TeardownHca));
    }
}

#[test]
fn an_event_that_is_older_than_the_object_with_its_number_is_not_its() {
    let (chip, device) = device();
    raise(&chip, of_qp(EventType::WqCatasError, 0x500));
    // Another opener took it out of the queue.
    let other = open(&chip.opener(2));
    assert_eq!(other.events().next(), None);
    device.registry.add_qp(0x500, 7);
    assert_eq!(device.events().next(), None);
    raise(&chip, of_qp(EventType::WqCatasError, 0x500));
    assert_eq!(device.events().next(), Some(Event::Qp { qpn: 0x500, cookie: 7, kind: QpEvent::Fatal }));
}

#[test]
fn an_opener_that_reads_late_loses_the_oldest_events_and_nothing_else() {
    let chip = Chip::new();
    let (quick, late) = (open(&chip.opener(1)), open(&chip.opener(2)));
    for _ in 0..2000 {
        raise(&chip, Eqe::new(EventType::PortChange, hwspec::eqe::PortEvent::zeroed()));
        assert!(quick.events().next().is_some());
    }
    let heard = std::iter::from_fn(|| late.events().next()).count();
    assert!((200..=512).contains(&heard), "{heard}");
    raise(&chip, Eqe::new(EventType::PortChange, hwspec::eqe::PortEvent::zeroed()));
    assert!(late.events().next().is_some());
}

#[test]
fn waiting_ends_when_time_is_up() {
    let (_chip, device) = device();
    assert!(!device.events().wait(Some(Duration::from_millis(5))).unwrap());
}

#[test]
fn each_opener_has_a_vector_of_its_own() {
    let chip = Chip::new();
    let (first, second) = (open(&chip.opener(1)), open(&chip.opener(2)));
    let vectors = || -> Vec<u16> { queues(&chip).iter().map(|(_, _, vector)| *vector).collect() };
    assert_eq!(vectors(), [0, 0, 1, 2], "the first is that of the function's queues");
    first.close().unwrap();
    let third = open(&chip.opener(3));
    assert_eq!(vectors(), [0, 0, 1, 2, 1]);
    drop((second, third));
}

#[test]
fn openers_share_vectors_when_all_are_taken_and_the_way_to_the_device_can() {
    let chip = Chip::new();
    // Three vectors, one of which belongs to the function's events.
    chip.config(0x9c, 0x0002_0011);
    let own = [open(&chip.opener(1)), open(&chip.opener(2))];
    let refused = crate::Device::open(chip.opener(3), options()).err().expect("none is left");
    assert_eq!(refused.errno(), libc::EBUSY);
    chip.state().shares_vectors = true;
    let common: Vec<_> = (3..7).map(|opener| open(&chip.opener(opener))).collect();
    let vectors = || -> Vec<u16> { queues(&chip).iter().map(|(_, _, vector)| *vector).collect() };
    assert_eq!(vectors(), [0, 0, 1, 2, 1, 2, 1, 2], "in turn");
    // An opener that shares a vector does not release it. One with its own vector leaves it to the next
    // opener.
    drop(common);
    let [first, second] = own;
    drop(first);
    let next = open(&chip.opener(8));
    assert_eq!(vectors()[8..], [1]);
    drop((second, next));
}

#[test]
fn a_vector_somebody_is_still_connected_to_is_passed_over() {
    let chip = Chip::new();
    chip.state().busy_vectors.extend([1, 2]);
    let first = open(&chip.opener(1));
    chip.state().busy_vectors.clear();
    let second = open(&chip.opener(2));
    let vectors: Vec<_> = queues(&chip).iter().map(|(_, _, vector)| *vector).collect();
    assert_eq!(vectors, [0, 0, 3, 1]);
    drop((first, second));
}

#[test]
fn health_is_read_from_the_health_buffer() {
    let (chip, device) = device();
    assert!(!device.health().is_fatal());
    chip.write32(0x1010, 0x0000_0042);
    chip.write32(0x238, 1 << 31 | 3 << 24);
    chip.write32(0x23c, 0x0010_1234);
    let health = device.health();
    let expected = Health {
        counter: 0x42,
        fatal: 0,
        syndrome: 0x10,
        ext_syndrome: 0x1234,
        severity: 3,
        reset_requested: true,
        fw_version: 0,
    };
    assert_eq!(health, expected);
    assert!(health.is_fatal());
}

fn with_sriov() -> Arc<Chip> {
    let chip = Chip::new();
    chip.config(0, 0x1017_15b3);
    chip.config(0x100, 0x1801_000e);
    let cap = SriovCap::new(8);
    for (at, dword) in cap.as_bytes().chunks_exact(4).enumerate() {
        chip.config(0x180 + at as u16 * 4, u32::from_be_bytes(dword.try_into().unwrap()));
    }
    assert_eq!(cap.id(), EXT_CAP_ID_SRIOV);
    chip
}

#[test]
fn virtual_functions_come_and_go() {
    let chip = with_sriov();
    let device = open(&chip.opener(1));
    assert_eq!(device.virtual_functions().unwrap().total, 8);
    assert_eq!(device.enable_virtual_functions(9).unwrap_err().errno(), libc::EINVAL);
    device.enable_virtual_functions(3).unwrap();
    assert_eq!(device.virtual_functions().unwrap().enabled, 3);
    assert_eq!(chip.state().log.iter().filter(|op| **op == Opcode::EnableHca).count(), 1 + 3);
    assert_eq!(device.enable_virtual_functions(1).unwrap_err().errno(), libc::EBUSY);
    device.disable_virtual_functions().unwrap();
    assert_eq!(device.virtual_functions().unwrap().enabled, 0);
}

#[test]
fn virtual_function_the_device_refuses_undoes_the_others() {
    let chip = with_sriov();
    let device = open(&chip.opener(1));
    chip.state().lie = Some(Lie::Refuse(Opcode::EnableHca, Status::NoResources, 1));
    assert_eq!(device.enable_virtual_functions(2).unwrap_err().errno(), libc::EAGAIN);
    assert_eq!(device.virtual_functions().unwrap().enabled, 0);
}

#[test]
fn a_function_without_the_capability_says_so() {
    let device = open(&Chip::new().opener(1));
    assert_eq!(device.virtual_functions().unwrap_err().errno(), libc::EOPNOTSUPP);
    assert_eq!(options().gids.len(), 2);
}
