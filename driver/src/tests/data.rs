use super::device;
use crate::{
    AccessFlags, AddressHandle, Completion, Cq, Device, Pd, Qp, QpAttr, QpAttrMask as Mask, QpInit, QpState,
    RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target, WcOpcode, WcStatus, transport::fake::Chip,
};
use hwspec::{
    cmd::{Opcode, cq::CreateCqIn, qp::*},
    cqe::{Cqe64, CqeOpcode},
    handle::Qpn,
    layout::Layout,
    wqe::*,
};
use std::sync::Arc;

pub(super) struct Bed {
    pub chip: Arc<Chip>,
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    ring: u64,
    pub record: u64,
    cqes: u64,
}

pub(super) fn init(cq: &Arc<Cq>) -> QpInit {
    QpInit {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 60,
        cookie: 77,
        ..QpInit::new(Service::Rc, cq, cq)
    }
}

fn attr(state: QpState) -> QpAttr {
    QpAttr {
        qp_state: state,
        port_num: 1,
        path_mtu: 1024,
        dest_qp_num: 0x1234,
        rq_psn: 5,
        sq_psn: 6,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        qp_access_flags: AccessFlags::REMOTE_WRITE,
        ah: AddressHandle {
            dgid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x1b, 0x56, 0xff, 0xfe, 0, 0, 9],
            is_global: true,
            port_num: 1,
            hop_limit: 64,
            ..AddressHandle::default()
        },
        ..QpAttr::default()
    }
}

const INIT: Mask = Mask::STATE.union(Mask::PKEY_INDEX).union(Mask::PORT).union(Mask::ACCESS_FLAGS);
const RTR: Mask = Mask::STATE
    .union(Mask::AV)
    .union(Mask::PATH_MTU)
    .union(Mask::DEST_QPN)
    .union(Mask::RQ_PSN)
    .union(Mask::MAX_DEST_RD_ATOMIC)
    .union(Mask::MIN_RNR_TIMER);
const RTS: Mask = Mask::STATE
    .union(Mask::TIMEOUT)
    .union(Mask::RETRY_CNT)
    .union(Mask::RNR_RETRY)
    .union(Mask::SQ_PSN)
    .union(Mask::MAX_QP_RD_ATOMIC);

pub(super) fn connect(qp: &Qp) {
    qp.modify(&attr(QpState::Init), INIT).unwrap();
    qp.modify(&attr(QpState::Rtr), RTR).unwrap();
    qp.modify(&attr(QpState::Rts), RTS).unwrap();
}

pub(super) fn bed_on(chip: Arc<Chip>, device: Arc<Device>) -> Bed {
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 15, 9).unwrap();
    let qp = Qp::create(&pd, &init(&cq)).unwrap();
    connect(&qp);
    chip.state().doorbells.clear();
    let create = chip.last::<CreateQpIn>(Opcode::CreateQp);
    let list = |op| {
        let state = chip.state();
        let input = &state.inputs.iter().rev().find(|(o, _)| *o == op).unwrap().1;
        u64::from_be_bytes(input[0x110..0x118].try_into().unwrap())
    };
    let (ring, cqes) = (list(Opcode::CreateQp), list(Opcode::CreateCq));
    Bed { chip, qp, cq, ring, record: create.qpc().dbr_addr(), cqes }
}

fn bed() -> Bed {
    let (chip, device) = device();
    bed_on(chip, device)
}

impl Bed {
    /// The send ring of sixteen blocks follows the receive ring of four 32-byte entries.
    pub fn block(&self, index: u64) -> [u8; 64] {
        let mut bytes = [0; 64];
        self.chip.state().read(self.ring + 128 + index % 16 * 64, &mut bytes);
        bytes
    }

    fn record(&self) -> (u32, u32) {
        let mut bytes = [0; 8];
        self.chip.state().read(self.record, &mut bytes);
        let half = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        (half(0), half(4))
    }

    pub fn complete(&self, index: u64, opcode: CqeOpcode, qpn: u32, counter: u16) {
        let mut cqe = Cqe64::zeroed();
        cqe.set().opcode(opcode).qpn(Qpn(qpn)).wqe_counter(counter).sop(WqeOpcode::RdmaWrite.raw());
        cqe.set().owner(index / 16 % 2 == 1);
        self.chip.state().write(self.cqes + index % 16 * 64, cqe.as_bytes());
    }

    pub fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::default(); 8];
        let found = self.cq.poll(&mut out);
        out[..found].to_vec()
    }
}

pub(super) fn write<'a>(wr_id: u64, sge: &'a [Sge], flags: SendFlags) -> SendWr<'a> {
    SendWr { wr_id, op: SendOp::Write { raddr: 0x1122_3344_5566, rkey: 0x77 }, sge, flags }
}

#[test]
fn write_becomes_its_wqe_record_and_doorbell() {
    let bed = bed();
    let sge = [Sge { addr: 0xdead_0000, length: 4096, lkey: 0x55 }, Sge { addr: 1, length: 0, lkey: 9 }];
    bed.qp.post_send([write(1, &sge, SendFlags::SIGNALED | SendFlags::SOLICITED)]).unwrap();
    let block = bed.block(0);
    let ctrl = CtrlSeg::read(&block);
    assert_eq!((ctrl.opcode(), ctrl.qpn().0, ctrl.ds()), (WqeOpcode::RdmaWrite, bed.qp.qpn(), 3));
    assert_eq!((ctrl.ce(), ctrl.se(), ctrl.fm()), (CqeMode::Always, true, FenceMode::None));
    let raddr = RaddrSeg::read(&block[16..]);
    assert_eq!((raddr.raddr(), raddr.rkey()), (0x1122_3344_5566, 0x77));
    let data = DataSeg::read(&block[32..]);
    assert_eq!((data.byte_count(), data.lkey(), data.addr()), (4096, 0x55, 0xdead_0000));
    assert_eq!(bed.record(), (0, 1));
    let bell = u64::from_be_bytes(block[..8].try_into().unwrap());
    let uar = bed.chip.last::<CreateCqIn>(Opcode::CreateCq).cq_context().uar_page();
    assert_eq!(bed.chip.state().doorbells, [(uar * 4096 + 0x800, bell)]);
}

#[test]
fn batch_rings_once_and_reports_the_refused_one() {
    let bed = bed();
    let sge = [Sge { addr: 0, length: 8, lkey: 1 }];
    let bad = [Sge::default(); 9];
    let list = [
        write(1, &sge, SendFlags::empty()),
        write(2, &sge, SendFlags::FENCE),
        write(3, &bad, SendFlags::empty()),
    ];
    let error = bed.qp.post_send(list).unwrap_err();
    assert_eq!((error.index, error.errno), (2, libc::ENOMEM));
    assert_eq!(bed.chip.state().doorbells.len(), 1);
    assert_eq!(bed.record(), (0, 2));
    assert_eq!(CtrlSeg::read(&bed.block(1)).fm(), FenceMode::Fence);
}

#[test]
fn inline_data_lie_in_the_wqe_padded_with_zeros() {
    let bed = bed();
    let (first, second) = ([1u8; 20], [2u8; 11]);
    let piece = |data: &[u8]| Sge { addr: data.as_ptr() as u64, length: data.len() as u32, lkey: 0 };
    let sge = [piece(&first), piece(&second)];
    let mut batch = bed.qp.begin();
    batch.put(&write(1, &sge, SendFlags::INLINE)).unwrap();
    batch.commit();
    let bytes = [bed.block(0), bed.block(1)].concat();
    assert_eq!(CtrlSeg::read(&bytes).ds(), 2 + 3);
    assert_eq!(bytes[32..36], 0x8000_001fu32.to_be_bytes());
    assert_eq!((&bytes[36..56], &bytes[56..67]), (&first[..], &second[..]));
    assert!(bytes[67..80].iter().all(|b| *b == 0));
    let post = |data: &[u8]| bed.qp.post_inline(write(1, &[], SendFlags::empty()), &Target::Peer, data);
    assert_eq!(post(&[0; 1000]).unwrap_err().errno, libc::ENOMEM);
    post(&first).unwrap();
    assert_eq!(bed.block(2)[36..56], first);
    // An address alone is no guarantee about the memory there.
    assert_eq!(bed.qp.post_send([write(1, &sge, SendFlags::INLINE)]).unwrap_err().errno, libc::EINVAL);
}

#[test]
fn a_message_is_no_longer_than_the_device_says() {
    let bed = bed();
    let half = |more: u32| Sge { addr: 0, length: (1 << 29) + more, lkey: 1 };
    let post = |more| bed.qp.post_send([write(1, &[half(0), half(more)], SendFlags::empty())]);
    assert_eq!(post(1).unwrap_err().errno, libc::EINVAL);
    post(0).unwrap();
}

#[test]
fn atomics_take_eight_bytes_and_nothing_else() {
    let bed = bed();
    let op = SendOp::CmpSwap { raddr: 8, rkey: 1, compare: 2, swap: 3 };
    let post = |length| {
        bed.qp.post_send([SendWr {
            wr_id: 1,
            op,
            sge: &[Sge { addr: 0, length, lkey: 1 }],
            flags: SendFlags::empty(),
        }])
    };
    assert_eq!(post(4).unwrap_err().errno, libc::EINVAL);
    post(8).unwrap();
    let block = bed.block(0);
    let atomic = AtomicSeg::read(&block[32..]);
    assert_eq!((atomic.swap_add(), atomic.compare()), (3, 2));
    assert_eq!(CtrlSeg::read(&block).ds(), 4);
}

#[test]
fn full_queue_says_so_until_completions_are_polled() {
    let bed = bed();
    let cap = bed.qp.cap().max_send_wr;
    let post = |id| bed.qp.post_send([write(id, &[], SendFlags::SIGNALED)]);
    (0..cap).for_each(|id| post(id.into()).unwrap());
    assert_eq!(post(99).unwrap_err().errno, libc::ENOMEM);
    bed.complete(0, CqeOpcode::Req, bed.qp.qpn(), 1);
    let done = bed.poll();
    assert_eq!((done.len(), done[0].wr_id, done[0].opcode), (1, 1, WcOpcode::RdmaWrite));
    post(5).unwrap();
    post(6).unwrap();
    assert_eq!(post(7).unwrap_err().errno, libc::ENOMEM);
}

#[test]
fn ring_goes_round_many_times() {
    let bed = bed();
    for number in 0..1000u64 {
        bed.qp.post_send([write(number, &[], SendFlags::SIGNALED)]).unwrap();
        let ctrl = CtrlSeg::read(&bed.block(number));
        assert_eq!(ctrl.wqe_idx(), number as u16);
        bed.complete(number, CqeOpcode::Req, bed.qp.qpn(), number as u16);
        assert_eq!(bed.poll()[0].wr_id, number);
        assert_eq!(bed.poll(), []);
    }
    assert_eq!(bed.record(), (0, 1000));
}

#[test]
fn aborted_batch_was_never_there() {
    let bed = bed();
    let mut batch = bed.qp.begin();
    batch.put(&write(1, &[], SendFlags::empty())).unwrap();
    batch.abort();
    bed.qp.begin().commit();
    assert!(bed.chip.state().doorbells.is_empty());
    assert_eq!(bed.record(), (0, 0));
    bed.qp.post_send([write(2, &[], SendFlags::SIGNALED)]).unwrap();
    assert_eq!(CtrlSeg::read(&bed.block(0)).wqe_idx(), 0);
}

#[test]
fn a_plain_request_is_the_wqe_that_it_is_among_others() {
    let data = *b"twelve bytes";
    let sge = Sge { addr: data.as_ptr() as u64, length: 12, lkey: 0x55 };
    for op in [SendOp::Send, SendOp::Write { raddr: 0x1122_3344_5566, rkey: 0x77 }] {
        for flags in (0..16).map(SendFlags::from_bits_truncate) {
            let bed = bed();
            // An empty SGE adds nothing to the WQE, but excludes the request from the fast path.
            let lists = [&[sge][..], &[sge, Sge::default()]];
            for (wr_id, sge) in lists.into_iter().enumerate() {
                let mut batch = bed.qp.begin();
                batch.put(&SendWr { wr_id: wr_id as u64, op, sge, flags }).unwrap();
                batch.commit();
            }
            let blocks = [0, 1].map(|index| {
                let mut block = bed.block(index);
                assert_eq!(u64::from(CtrlSeg::read(&block).wqe_idx()), index, "{op:?} {flags:?}");
                // The WQE index differs.
                block[1..3].fill(0);
                block
            });
            assert_eq!(blocks[0], blocks[1], "{op:?} {flags:?}");
        }
    }
}

#[test]
fn plain_requests_and_others_share_the_queues_room() {
    let bed = bed();
    let cap = bed.qp.cap().max_send_wr;
    let sge = [Sge { addr: 0x1000, length: 8, lkey: 1 }];
    let read = |id| SendWr { op: SendOp::Read { raddr: 0, rkey: 1 }, ..write(id, &sge, SendFlags::SIGNALED) };
    let post = |wr| bed.qp.post_send([wr]).map_err(|error| error.errno);
    let plain = |id| write(id, &sge, SendFlags::SIGNALED);
    // A discarded request takes no room in the queue.
    let mut batch = bed.qp.begin();
    (0..cap).for_each(|id| batch.put(&plain(id.into())).unwrap());
    assert_eq!(batch.put(&plain(99)), Err(libc::ENOMEM));
    batch.abort();
    for id in 0..cap.into() {
        post(if id % 3 == 1 { read(id) } else { plain(id) }).unwrap();
    }
    assert_eq!((post(plain(99)), post(read(99))), (Err(libc::ENOMEM), Err(libc::ENOMEM)));
    for index in 0..u64::from(cap) {
        bed.complete(index, CqeOpcode::Req, bed.qp.qpn(), index as u16);
        assert_eq!(bed.poll()[0].wr_id, index);
        post(plain(index)).unwrap();
        assert_eq!(post(read(99)), Err(libc::ENOMEM));
    }
}

#[test]
fn a_plain_request_waits_for_the_key_that_the_one_before_it_changed() {
    let bed = bed();
    let sge = [Sge { addr: 0x1000, length: 8, lkey: 1 }];
    let plain = |id| write(id, &sge, SendFlags::empty());
    let change = SendWr { op: SendOp::LocalInv(0x700), ..write(1, &[], SendFlags::empty()) };
    bed.qp.post_send([plain(0), change, plain(2)]).unwrap();
    let behind = (2..16).map(|index| CtrlSeg::read(&bed.block(index)));
    let fences: Vec<_> =
        behind.filter(|ctrl| ctrl.opcode() == WqeOpcode::RdmaWrite).map(|ctrl| ctrl.fm()).collect();
    assert_eq!(fences, [FenceMode::InitiatorSmall]);
    assert_eq!(CtrlSeg::read(&bed.block(0)).fm(), FenceMode::None);
}

#[test]
fn receives_end_their_scatter_list_and_come_back_in_order() {
    let bed = bed();
    let sge = [Sge { addr: 0x1000, length: 64, lkey: 5 }];
    bed.qp.post_recv([RecvWr { wr_id: 10, sge: &sge }, RecvWr { wr_id: 11, sge: &[] }]).unwrap();
    assert_eq!(bed.record(), (2, 0));
    let mut entries = [0; 64];
    bed.chip.state().read(bed.ring, &mut entries);
    assert_eq!(DataSeg::read(&entries).addr(), 0x1000);
    assert_eq!(DataSeg::read(&entries[16..]).lkey(), INVALID_LKEY);
    assert_eq!(DataSeg::read(&entries[32..]).lkey(), INVALID_LKEY);
    bed.complete(0, CqeOpcode::RespSend, bed.qp.qpn(), 0);
    bed.complete(1, CqeOpcode::RespSendImm, bed.qp.qpn(), 1);
    let ids: Vec<_> = bed.poll().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [10, 11]);
    let full: Vec<_> = (0..5).map(|wr_id| RecvWr { wr_id, sge: &sge }).collect();
    let error = bed.qp.post_recv(full).unwrap_err();
    assert_eq!((error.index, error.errno), (4, libc::ENOMEM));
}

#[test]
fn lying_completions_never_panic() {
    let bed = bed();
    let mut index = 0;
    for raw in 0..16u8 {
        for qpn in [bed.qp.qpn(), 0, 0xff_ffff] {
            for counter in [0, 3, 0x8000, 0xffff] {
                bed.complete(index, CqeOpcode::from_raw(raw), qpn, counter);
                // Opcode 15 marks an entry that was never written.
                let found = bed.poll();
                assert!(found.iter().all(|wc| wc.status != WcStatus::Success), "{found:?}");
                index += u64::from(raw != 15);
            }
        }
    }
    bed.qp.post_send([write(4, &[], SendFlags::SIGNALED)]).unwrap();
    bed.complete(index, CqeOpcode::Req, bed.qp.qpn(), 0);
    assert_eq!(bed.poll()[0].wr_id, 4, "the queue still works");
}

#[test]
fn completions_of_a_destroyed_qp_are_removed_and_others_stay() {
    let bed = bed();
    let other = Qp::create(bed.qp.pd(), &init(&bed.cq)).unwrap();
    let (gone, stays) = (other.qpn(), bed.qp.qpn());
    for id in 0..3 {
        bed.qp.post_send([write(id, &[], SendFlags::SIGNALED)]).unwrap();
    }
    for (index, (qpn, counter)) in
        [(gone, 0), (stays, 0), (gone, 1), (gone, 2), (stays, 1)].into_iter().enumerate()
    {
        bed.complete(index as u64, CqeOpcode::Req, qpn, counter);
    }
    other.destroy().unwrap();
    let ids: Vec<_> = bed.poll().iter().map(|wc| (wc.qpn, wc.wr_id)).collect();
    assert_eq!(ids, [(stays, 0), (stays, 1)]);
    bed.complete(5, CqeOpcode::Req, stays, 2);
    assert_eq!(bed.poll()[0].wr_id, 2);
}

#[test]
fn illegal_modify_is_einval_and_changes_nothing() {
    let bed = bed();
    let qp = Qp::create(bed.qp.pd(), &init(&bed.cq)).unwrap();
    bed.chip.state().log.clear();
    let mut bad_port = attr(QpState::Init);
    bad_port.port_num = 2;
    let cases = [
        (attr(QpState::Rtr), RTR),
        (attr(QpState::Rts), RTS),
        (attr(QpState::Init), INIT - Mask::PORT),
        (attr(QpState::Init), INIT | Mask::RQ_PSN),
        (attr(QpState::Sqd), Mask::STATE),
        (bad_port, INIT),
    ];
    for (attr, mask) in cases {
        assert_eq!(qp.modify(&attr, mask).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(qp.state(), QpState::Reset);
    }
    assert!(bed.chip.state().log.is_empty(), "no command was sent");
    qp.modify(&attr(QpState::Init), INIT).unwrap();
    let mut bad_mtu = attr(QpState::Rtr);
    bad_mtu.path_mtu = 1000;
    assert_eq!(qp.modify(&bad_mtu, RTR).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(qp.state(), QpState::Init);
    qp.modify(&attr(QpState::Rtr), RTR).unwrap();
}

#[test]
fn on_the_way_to_a_state_each_move_has_the_attributes_that_it_needs() {
    let bed = bed();
    let qp = Qp::create(bed.qp.pd(), &init(&bed.cq)).unwrap();
    let moves = |go: &dyn Fn()| {
        qp.modify(&attr(QpState::Reset), Mask::STATE).unwrap();
        bed.chip.state().inputs.clear();
        go();
        let mut sent = bed.chip.state().inputs.clone();
        sent.retain(|(op, _)| [Opcode::Rst2initQp, Opcode::Init2rtrQp, Opcode::Rtr2rtsQp].contains(op));
        (qp.state(), sent)
    };
    let by_hand = moves(&|| connect(&qp));
    assert_eq!((by_hand.0, by_hand.1.len()), (QpState::Rts, 3));
    assert_eq!(moves(&|| qp.advance_to(QpState::Rts, &attr(QpState::Err)).unwrap()), by_hand);
    let with_a_stop = moves(&|| {
        qp.advance_to(QpState::Init, &attr(QpState::Err)).unwrap();
        assert_eq!(qp.state(), QpState::Init);
        qp.advance_to(QpState::Rts, &attr(QpState::Err)).unwrap();
        qp.advance_to(QpState::Rts, &QpAttr::default()).expect("it is there");
    });
    assert_eq!(with_a_stop, by_hand);
    assert_eq!(qp.advance_to(QpState::Init, &attr(QpState::Init)).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(qp.state(), QpState::Rts, "there is no way back");
    let as_far_as_it_comes = moves(&|| {
        let bad_mtu = QpAttr { path_mtu: 1000, ..attr(QpState::Rts) };
        assert_eq!(qp.advance_to(QpState::Rts, &bad_mtu).unwrap_err().errno(), libc::EINVAL);
    });
    assert_eq!(as_far_as_it_comes, (QpState::Init, by_hand.1[..1].to_vec()));
}

#[test]
fn path_of_a_qp_reaches_its_context() {
    let bed = bed();
    let qpc = bed.chip.last::<ModifyQpIn>(Opcode::Init2rtrQp).qpc();
    let path = qpc.primary_address_path();
    assert_eq!((path.rmac_47_32(), path.rmac_31_0()), (0x021b, 0x5600_0009));
    assert_eq!((qpc.mtu(), qpc.remote_qpn(), qpc.next_rcv_psn()), (3, 0x1234, 5));
    assert_eq!((path.hop_limit(), path.udp_sport() >> 14), (64, 3));
    assert!(qpc.rwe() && !qpc.rre());
    let rts = bed.chip.last::<ModifyQpIn>(Opcode::Rtr2rtsQp).qpc();
    assert_eq!(
        (rts.next_send_psn(), rts.retry_count(), rts.primary_address_path().ack_timeout()),
        (6, 7, 14)
    );
}

#[test]
fn posting_follows_the_state() {
    let bed = bed();
    let qp = Qp::create(bed.qp.pd(), &init(&bed.cq)).unwrap();
    let sge = [Sge { addr: 0x1000, length: 8, lkey: 1 }];
    let send = || qp.post_send([write(1, &sge, SendFlags::empty())]).map_err(|e| e.errno);
    let recv = || qp.post_recv([RecvWr { wr_id: 1, sge: &[] }]).map_err(|e| e.errno);
    assert_eq!((send(), recv()), (Err(libc::EINVAL), Err(libc::EINVAL)));
    qp.modify(&attr(QpState::Init), INIT).unwrap();
    assert_eq!((send(), recv()), (Err(libc::EINVAL), Ok(())));
    qp.modify(&attr(QpState::Err), Mask::STATE).unwrap();
    assert_eq!((send(), recv()), (Ok(()), Ok(())), "in ERR work requests are posted and flush");
    qp.modify(&attr(QpState::Reset), Mask::STATE).unwrap();
    assert_eq!((send(), recv()), (Err(libc::EINVAL), Err(libc::EINVAL)));
}

#[test]
fn arming_tells_what_was_seen() {
    let bed = bed();
    bed.qp.post_send([write(1, &[], SendFlags::SIGNALED)]).unwrap();
    bed.complete(0, CqeOpcode::Req, bed.qp.qpn(), 0);
    assert_eq!(bed.poll().len(), 1);
    bed.chip.state().doorbells.clear();
    bed.cq.arm(true);
    let (offset, value) = bed.chip.state().doorbells[0];
    assert_eq!((offset % 4096, value), (0x20, 0x0100_0001_0000_0000 | u64::from(bed.cq.cqn())));
}

#[test]
fn nothing_is_left_when_all_is_dropped() {
    let bed = bed();
    let Bed { chip, qp, cq, .. } = bed;
    assert_eq!(cq.clone().destroy().unwrap_err().errno(), libc::EBUSY);
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    assert_eq!(chip.blocks(), 0);
}
