use super::{device, open, options};
use crate::{
    Cq, DeviceEvent, Event, Health, Pd, PortEvent, Qp, QpEvent, QpInit, Service,
    transport::fake::{Chip, Lie},
};
use hwspec::{
    cmd::{Opcode, Status, adapter::ManagePagesIn, eq::CreateEqIn},
    eqe::{CompEvent, CqErrorEvent, Eqe, EventType, PagesEvent, PortChange},
    handle::{Cqn, Qpn},
    pcie::{EXT_CAP_ID_SRIOV, SriovCap},
};
use std::{sync::Arc, time::Duration};

/// Writes entry `index` of the EQ of 64 entries, as the device does.
fn raise(chip: &Chip, index: u64, mut eqe: Eqe) {
    let state = chip.state();
    let input = &state.inputs.iter().rev().find(|(op, _)| *op == Opcode::CreateEq).unwrap().1;
    let ring = u64::from_be_bytes(input[0x110..0x118].try_into().unwrap());
    eqe.set().owner(index / 64 % 2 == 1);
    state.write(ring + index % 64 * 64, eqe.as_bytes());
}

fn comp(cqn: u32) -> Eqe {
    let mut data = CompEvent::zeroed();
    data.set().cq_number(Cqn(cqn));
    Eqe::new(EventType::Comp, data)
}

fn of_qp(kind: EventType, qpn: u32) -> Eqe {
    let mut data = hwspec::eqe::QpEvent::zeroed();
    data.set().qpn_rqn_sqn(Qpn(qpn));
    Eqe::new(kind, data)
}

#[test]
fn events_arrive_with_their_cookies() {
    let (chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 10, 0xc0).unwrap();
    let init = QpInit {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        sq_sig_all: true,
        cookie: 0xd0,
        ..QpInit::new(Service::Rc, &cq, &cq)
    };
    let qp = Qp::create(&pd, &init).unwrap();
    let mut error = CqErrorEvent::zeroed();
    error.set().cqn(Cqn(cq.cqn()));
    let mut port = hwspec::eqe::PortEvent::zeroed();
    port.set().port_num(1);
    let mut up = Eqe::new(EventType::PortChange, port);
    up.set().event_sub_type(PortChange::Active.raw());
    let raised = [
        comp(cq.cqn()),
        of_qp(EventType::WqAccessError, qp.qpn()),
        Eqe::new(EventType::CqError, error),
        up,
        of_qp(EventType::Other(0x7f), 0),
    ];
    raised.into_iter().enumerate().for_each(|(index, eqe)| raise(&chip, index as u64, eqe));
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
    for (index, (change, _)) in kinds.iter().enumerate() {
        let mut port = hwspec::eqe::PortEvent::zeroed();
        port.set().port_num(1);
        let mut eqe = Eqe::new(EventType::PortChange, port);
        eqe.set().event_sub_type(change.raw());
        raise(&chip, index as u64, eqe);
    }
    let events: Vec<_> = std::iter::from_fn(|| device.events().next()).collect();
    assert_eq!(events, kinds.map(|(_, kind)| Event::Port { port: 1, kind }));
}

#[test]
fn a_drained_send_queue_is_told_to_who_asked_and_once() {
    let (chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 10, 1).unwrap();
    let init = QpInit { max_send_wr: 1, cookie: 5, ..QpInit::new(Service::Rc, &cq, &cq) };
    let qp = Qp::create(&pd, &init).unwrap();
    let drained = || of_qp(EventType::SqDrained, qp.qpn());
    raise(&chip, 0, drained());
    assert_eq!(device.events().next(), None);
    device.registry.notify_of_drained(qp.qpn(), true);
    raise(&chip, 1, drained());
    raise(&chip, 2, drained());
    let drained = Event::Qp { qpn: qp.qpn(), cookie: 5, kind: QpEvent::SqDrained };
    assert_eq!((device.events().next(), device.events().next()), (Some(drained), None));
}

#[test]
fn events_of_objects_that_are_gone_are_skipped_and_the_queue_goes_round() {
    let (chip, device) = device();
    let cq = Cq::create(&device, 10, 1).unwrap();
    for index in 0..300 {
        match index % 3 {
            0 => raise(&chip, index, comp(cq.cqn() + 5)),
            1 => raise(&chip, index, of_qp(EventType::CommEst, 0xff_ffff)),
            _ => {
                raise(&chip, index, comp(cq.cqn()));
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
    for (index, sn) in [0u64, 1, 2, 3, 0].into_iter().enumerate() {
        cq.arm(false);
        assert_eq!(chip.state().doorbells.last().unwrap().1 >> 60, sn);
        raise(&chip, index as u64, comp(cq.cqn()));
        assert!(device.events().next().is_some());
    }
}

#[test]
fn requests_for_pages_are_served_on_the_way() {
    let (chip, device) = device();
    let before = chip.state().pages.len();
    let mut request = PagesEvent::zeroed();
    request.set().num_pages(5);
    raise(&chip, 0, Eqe::new(EventType::PageRequest, request));
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().pages.len(), before + 5);
    request.set().num_pages(-2i32 as u32);
    raise(&chip, 1, Eqe::new(EventType::PageRequest, request));
    assert_eq!(device.events().next(), None);
    assert_eq!(chip.state().pages.len(), before + 3);
    assert_eq!(chip.last::<ManagePagesIn>(Opcode::ManagePages).op_mod(), 2);
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
    let vectors = || -> Vec<u16> {
        let state = chip.state();
        let inputs = state.inputs.iter().filter(|(op, _)| *op == Opcode::CreateEq);
        inputs
            .map(|(_, i)| <CreateEqIn as hwspec::layout::Layout>::read(i).eq_context_entry().intr())
            .collect()
    };
    assert_eq!(vectors(), [0, 1]);
    first.close().unwrap();
    let third = open(&chip.opener(3));
    assert_eq!(vectors(), [0, 1, 0]);
    drop((second, third));
}

#[test]
fn openers_share_vectors_when_all_are_taken_and_the_way_to_the_device_can() {
    let chip = Chip::new();
    // Two vectors.
    chip.config(0x9c, 0x0001_0011);
    let own = [open(&chip.opener(1)), open(&chip.opener(2))];
    let refused = crate::Device::open(chip.opener(3), options()).err().expect("none is left");
    assert_eq!(refused.errno(), libc::EBUSY);
    chip.state().shares_vectors = true;
    let common: Vec<_> = (3..7).map(|opener| open(&chip.opener(opener))).collect();
    let vectors = || -> Vec<u16> {
        let state = chip.state();
        let inputs = state.inputs.iter().filter(|(op, _)| *op == Opcode::CreateEq);
        inputs
            .map(|(_, i)| <CreateEqIn as hwspec::layout::Layout>::read(i).eq_context_entry().intr())
            .collect()
    };
    assert_eq!(vectors(), [0, 1, 0, 1, 0, 1], "in turn");
    // An opener that shares a vector does not give it back. One that has its own leaves it to the next.
    drop(common);
    let [first, second] = own;
    drop(first);
    let next = open(&chip.opener(8));
    assert_eq!(vectors()[6..], [0]);
    drop((second, next));
}

#[test]
fn a_vector_somebody_is_still_connected_to_is_passed_over() {
    let chip = Chip::new();
    chip.state().busy_vectors.extend([0, 1]);
    let first = open(&chip.opener(1));
    chip.state().busy_vectors.clear();
    let second = open(&chip.opener(2));
    let state = chip.state();
    let inputs = state.inputs.iter().filter(|(op, _)| *op == Opcode::CreateEq);
    let vectors: Vec<_> = inputs
        .map(|(_, i)| <CreateEqIn as hwspec::layout::Layout>::read(i).eq_context_entry().intr())
        .collect();
    drop(state);
    assert_eq!(vectors, [2, 0]);
    drop((first, second));
}

#[test]
fn health_is_read_from_the_health_buffer() {
    let (chip, device) = device();
    assert!(device.health().is_good());
    use crate::transport::Registers;
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
    assert!(!health.is_good());
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
