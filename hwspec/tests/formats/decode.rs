//! Decoding of commands and work requests into named fields.

use ironverbs_hwspec::{
    cmd::{
        CmdOut, Opcode, Status, adapter::AccessRegisterIn, flow::SetFteIn, qp::CreateQpIn, rq_sq::CreateSqIn,
    },
    context::{ServiceType, mkey::Mtt},
    decode::{
        Value,
        command::{self, Shape},
        wqe::{self, Queue},
    },
    wqe::{AvSeg, CtrlSeg, DataSeg, EthSeg, InlineSeg, WqeOpcode},
};
use proptest::prelude::*;

fn text(value: Value<'_>) -> String {
    match value {
        Value::Number(number) => format!("{number:#x}"),
        Value::Bytes(bytes) => format!("{} bytes", bytes.len()),
        Value::Reserved { at, bits } => format!("{bits:#x} at {at:#x}"),
    }
}

fn named(shape: &Shape, whole: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    shape.walk(whole, &mut |path, value| all.push(format!("{path}={}", text(value))));
    all
}

fn request(queue: Queue, whole: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    wqe::walk(queue, whole, &mut |path, value| all.push(format!("{path}={}", text(value))));
    all
}

#[test]
fn fields_of_nested_contexts_and_of_lists_are_named_and_other_bits_are_reserved() {
    let mut create = CreateSqIn::zeroed();
    create.set().opcode(Opcode::CreateSq).uid(3);
    let mut context = create.ctx();
    context.set().cqn(5);
    let mut wq = context.wq();
    wq.set().pd(7);
    context.set().wq(wq);
    create.set().ctx(context);
    let mut bytes = create.as_bytes().to_vec();
    bytes[0xa] = 0x40;
    bytes.extend_from_slice(&0x1234_5000_u64.to_be_bytes());
    bytes.extend_from_slice(&0x8000_0000_0000_0801_u64.to_be_bytes());
    let shape = command::input(&bytes);
    assert_eq!(
        named(&shape, &bytes),
        [
            "opcode=0x904",
            "uid=0x3",
            "ctx.cqn=0x5",
            "ctx.wq.pd=0x7",
            "reserved=0x4000 at 0x8",
            "pas[0].pa=0x12345",
            "pas[1].pa=0x8000000000000",
            "pas[1].reserved=0x801 at 0x11c",
        ]
    );
    assert_eq!(shape.reserved(&bytes), Some((8, 0x4000)));
    bytes[0xa] = 0;
    assert_eq!(command::input(&bytes).reserved(&bytes), Some((0x11c, 0x801)));
}

#[test]
fn what_follows_is_told_by_the_register_the_access_mode_and_the_lengths() {
    let mut access = AccessRegisterIn::zeroed();
    access.set().opcode(Opcode::AccessReg).register_id(0x5003);
    let mut bytes = access.as_bytes().to_vec();
    bytes.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0, 0x23, 0x28, 0, 0, 0, 0, 0, 0]);
    let shape = command::input(&bytes);
    assert_eq!(
        named(&shape, &bytes),
        ["opcode=0x805", "register_id=0x5003", "pmtu.local_port=0x1", "pmtu.admin_mtu=0x2328"]
    );
    let answer = command::output(&bytes, &bytes);
    assert!(named(&answer, &bytes).iter().any(|field| field == "status=0x8"), "not a refusal");

    let mut entry = SetFteIn::zeroed();
    entry.set().opcode(Opcode::SetFlowTableEntry);
    let mut context = entry.flow_context();
    context.set().destination_list_size(1).flow_counter_list_size(1);
    entry.set().flow_context(context);
    let mut bytes = entry.as_bytes().to_vec();
    bytes.extend_from_slice(&[2, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    let found = named(&command::input(&bytes), &bytes);
    assert_eq!(
        found[3..],
        [
            "destination[0].destination_type=0x2",
            "destination[0].destination_id=0x9",
            "counter[0].flow_counter_id=0x4"
        ]
    );

    for (mode, name) in [(1, "mtt[0].ptag_31_8=0x45"), (2, "klm[0].address=0x4503")] {
        let mut key = [0; 0x120];
        key[..2].copy_from_slice(&Opcode::CreateMkey.raw().to_be_bytes());
        key[0x12] = mode;
        let last = if mode == 1 { 0x118 } else { 0x120 };
        key[last - 2..last].copy_from_slice(&[0x45, 0x03]);
        let found = named(&command::input(&key), &key);
        assert!(found.iter().any(|field| field == name), "{name} in {found:?}");
    }
    assert_eq!(Mtt::SIZE, 8);
}

#[test]
fn bits_behind_the_end_of_a_command_are_reserved() {
    let mut bytes = [0; 0x18];
    bytes[..2].copy_from_slice(&Opcode::AllocPd.raw().to_be_bytes());
    assert_eq!(command::input(&bytes).reserved(&bytes), None);
    bytes[0x17] = 1;
    assert_eq!(command::input(&bytes).reserved(&bytes), Some((0x14, 1)));
}

#[test]
fn a_refusal_is_read_as_a_header() {
    let mut create = CreateQpIn::zeroed();
    create.set().opcode(Opcode::CreateQp);
    let mut refusal = CmdOut::zeroed();
    refusal.set().status(Status::BadParam).syndrome(0x12);
    let shape = command::output(create.as_bytes(), refusal.as_bytes());
    assert_eq!(named(&shape, refusal.as_bytes()), ["status=0x3", "syndrome=0x12"]);
}

#[test]
fn segments_of_a_work_request_follow_its_service_and_its_opcode() {
    let mut ctrl = CtrlSeg::zeroed();
    ctrl.set().opcode(WqeOpcode::Send).ds(5);
    let mut vector = AvSeg::zeroed();
    vector.set().ext(true).hop_limit(64);
    let mut data = DataSeg::zeroed();
    data.set().byte_count(8).lkey(0x100).addr(0x1000);
    let datagram = [ctrl.as_bytes().as_slice(), vector.as_bytes(), data.as_bytes()].concat();
    assert_eq!(
        request(Queue::Send(ServiceType::Ud), &datagram),
        [
            "ctrl.opcode=0xa",
            "ctrl.ds=0x5",
            "av.ext=0x1",
            "av.hop_limit=0x40",
            "data[0].byte_count=0x8",
            "data[0].lkey=0x100",
            "data[0].addr=0x1000",
        ]
    );
    let inline = [ctrl.as_bytes().as_slice(), InlineSeg::new(4).as_bytes(), b"abcd", &[0; 8]].concat();
    assert_eq!(
        request(Queue::Send(ServiceType::Rc), &inline)[2..],
        ["inline[0].inline_data=0x1", "inline[0].byte_count=0x4", "inline_bytes[0]=12 bytes"]
    );
    let mut eth = EthSeg::zeroed();
    eth.set().inline_hdr_sz(18);
    let frame = [ctrl.as_bytes().as_slice(), eth.as_bytes(), &[7; 16], data.as_bytes()].concat();
    assert_eq!(
        request(Queue::Send(ServiceType::RawEth), &frame)[2..5],
        ["eth.inline_hdr_sz=0x12", "headers=16 bytes", "data[0].byte_count=0x8"]
    );
    assert_eq!(request(Queue::Receive, data.as_bytes())[0], "data[0].byte_count=0x8");
    // Linux's net device requests padding with the bit that means inline in a send.
    data.set().inline_data(true).byte_count(0x5ee);
    let receives = [[0; 16].as_slice(), data.as_bytes()].concat();
    assert_eq!(
        request(Queue::Shared, &receives)[..2],
        ["data[0].inline_data=0x1", "data[0].byte_count=0x5ee"]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn any_bytes_can_be_decoded(mut bytes in prop::collection::vec(any::<u8>(), 0..0x600), pick in any::<usize>(), service in 0..16u8) {
        if bytes.len() > 2 {
            bytes[..2].copy_from_slice(&Opcode::ALL[pick % Opcode::ALL.len()].raw().to_be_bytes());
        }
        named(&command::input(&bytes), &bytes);
        let answer = bytes.get(3..).unwrap_or_default();
        named(&command::output(&bytes, answer), answer);
        for queue in [Queue::Send(ServiceType::from_raw(service)), Queue::Receive, Queue::Shared] {
            request(queue, &bytes);
        }
    }
}
