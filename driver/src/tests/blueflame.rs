//! Work requests written whole into the doorbell page.

use super::{
    data::{Bed, bed_on, connect, init, write},
    open,
};
use crate::{Qp, QpInit, SendFlags, SendOp, SendWr, Sge, Target, transport::fake::Chip};
use hwspec::{
    cmd::{Opcode, cq::CreateCqIn, qp::CreateQpIn, resource::DeallocUarIn},
    cqe::CqeOpcode,
    doorbell::{BF_BUF_SIZE, BF_OFFSET, BF_REG_SIZE, UAR_SIZE},
    layout::Layout,
};
use std::sync::Arc;

const BUFFER: u32 = BF_BUF_SIZE as u32;

/// A queue pair on a chip with write-combining doorbell pages, and its doorbell page.
fn bed() -> (Bed, u32) {
    let chip = Chip::new();
    chip.state().combines = true;
    let device = open(&chip.opener(1));
    let bed = bed_on(chip, device);
    let page = page_of(&bed.chip);
    bed.chip.state().watched = Some(bed.record);
    (bed, page)
}

/// The doorbell page of the most recently created queue pair.
fn page_of(chip: &Chip) -> u32 {
    chip.last::<CreateQpIn>(Opcode::CreateQp).qpc().uar_page()
}

/// Offset of the first register of a page.
fn register(page: u32) -> u32 {
    page * UAR_SIZE as u32 + BF_OFFSET as u32
}

/// The stores that copy `block` to `at`.
fn stores(at: u32, block: &[u8; 64]) -> Vec<(u32, u64)> {
    let words = block.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().unwrap()));
    (at..).step_by(8).zip(words).collect()
}

fn taken(bed: &Bed) -> Vec<(u32, u64)> {
    std::mem::take(&mut bed.chip.state().doorbells)
}

#[test]
fn a_request_is_written_into_the_buffers_of_its_register_in_turn() {
    let (bed, page) = bed();
    assert_ne!(page, bed.chip.last::<CreateCqIn>(Opcode::CreateCq).cq_context().uar_page());
    let sge = [Sge { addr: 0x1000, length: 8, lkey: 1 }];
    for number in 0..40u64 {
        let data = [number as u8; 12];
        let wr = write(number, &sge, SendFlags::SIGNALED);
        let posted = match number % 3 {
            0 => bed.qp.post_send([wr]),
            1 => {
                let wr = SendWr { op: SendOp::Send, ..write(number, &[], SendFlags::empty()) };
                bed.qp.post_inline(wr, &Target::Peer, &data)
            }
            _ => bed.qp.post_send([SendWr { op: SendOp::Read { raddr: 8, rkey: 1 }, ..wr }]),
        };
        posted.unwrap();
        let to = register(page) + (number % 2) as u32 * BUFFER;
        assert_eq!(taken(&bed), stores(to, &bed.block(number)), "request {number}");
        // The doorbell record was written before all of it.
        let seen = std::mem::take(&mut bed.chip.state().seen);
        let counters = seen.iter().map(|word| u64::from_be(*word) as u32);
        assert_eq!(counters.collect::<Vec<_>>(), [number as u32 + 1; 8]);
        bed.complete(number, CqeOpcode::Req, bed.qp.qpn(), number as u16);
        assert_eq!(bed.poll().len(), 1);
    }
}

#[test]
fn a_request_that_goes_round_the_end_of_the_ring_is_written_in_one_piece() {
    let (bed, page) = bed();
    let data: Vec<u8> = (0..60).collect();
    // Fifteen of one block, and one of two that wraps: the last block of the ring and the first.
    for number in 0..15u64 {
        bed.qp.post_send([write(number, &[], SendFlags::SIGNALED)]).unwrap();
        bed.complete(number, CqeOpcode::Req, bed.qp.qpn(), number as u16);
        assert_eq!(bed.poll().len(), 1);
    }
    taken(&bed);
    bed.qp.post_inline(write(15, &[], SendFlags::empty()), &Target::Peer, &data).unwrap();
    let to = register(page) + BUFFER;
    let expected = [stores(to, &bed.block(15)), stores(to + 64, &bed.block(16))].concat();
    assert_eq!(taken(&bed), expected);
    assert_eq!(bed.block(16)[..4], data[28..32], "the second piece is of this request");
}

#[test]
fn several_requests_and_those_that_fit_no_buffer_ring_a_doorbell() {
    let (bed, page) = bed();
    let big = QpInit { max_inline: 300, max_send_wr: 16, ..init(&bed.cq) };
    let qp = Qp::create(bed.qp.pd(), &big).unwrap();
    connect(&qp);
    assert_eq!(page_of(&bed.chip), page, "two of them share a page");
    let data = [7u8; 300];
    let mut buffers = [0, BUFFER].into_iter().cycle();
    // The page's second register.
    let mut to = || register(page) + BF_REG_SIZE as u32 + buffers.next().unwrap();
    let few = |wrs: usize| (0..wrs).map(|n| write(n as u64, &[], SendFlags::empty()));
    // Segments: control, remote address, data after a four-byte header.
    for (bytes, blocks) in [(0, 1), (14 * 16 - 4, 4), (14 * 16 - 3, 0), (300, 0)] {
        taken(&bed);
        qp.post_inline(write(0, &[], SendFlags::empty()), &Target::Peer, &data[..bytes]).unwrap();
        let (stores, to) = (taken(&bed), to());
        let places: Vec<u32> = stores.iter().map(|(at, _)| *at).collect();
        let all = (to..).step_by(8).take(if blocks == 0 { 1 } else { 8 * blocks });
        assert_eq!(places, all.collect::<Vec<_>>(), "{bytes} bytes");
    }
    qp.post_send(few(3)).unwrap();
    let found = taken(&bed);
    assert_eq!((found.len(), found[0].0), (1, to()));
    // The doorbell of the last request.
    assert_eq!(found[0].1 >> 40, 1 + 4 + 5 + 6 + 2);
    qp.post_send(few(1)).unwrap();
    let found = taken(&bed);
    assert_eq!((found.len(), found[0].0), (8, to()));
    assert_eq!(bed.qp.post_send(few(1)), Ok(()));
    assert_eq!(taken(&bed)[0].0, register(page), "the other's register has a turn of its own");
}

#[test]
fn registers_are_those_of_the_first_queue_pairs_until_they_go() {
    let (bed, first) = bed();
    let opener = bed.chip.last::<CreateCqIn>(Opcode::CreateCq).cq_context().uar_page();
    let create = || {
        let qp = Qp::create(bed.qp.pd(), &init(&bed.cq)).unwrap();
        connect(&qp);
        taken(&bed);
        qp.post_send([write(0, &[], SendFlags::empty())]).unwrap();
        let place = taken(&bed)[0].0;
        assert_eq!(place / UAR_SIZE as u32, page_of(&bed.chip), "it rings where the device was told");
        (qp, place)
    };
    let mut all: Vec<_> = (0..15).map(|_| create()).collect();
    let mut places: Vec<u32> = all.iter().map(|(_, place)| *place).chain([register(first)]).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 16, "each has one of its own");
    assert!(places.iter().all(|place| place / UAR_SIZE as u32 != opener));
    let (beyond, place) = create();
    assert_eq!(place, register(opener));
    let (gone, free) = all.swap_remove(7);
    drop((gone, beyond));
    assert_eq!(create().1, free);
}

#[test]
fn the_pages_are_given_back_and_where_there_are_none_nothing_is_asked_for() {
    let pages = |chip: &Chip| {
        let of = |op| chip.state().log.iter().filter(|sent| **sent == op).count();
        (of(Opcode::AllocUar), of(Opcode::DeallocUar))
    };
    // One page belongs to the function's event queues and lives as long as the function; one is the opener's
    // own.
    for (combines, unmapped, allocated) in [(false, false, 2), (true, true, 3), (true, false, 4)] {
        let chip = Chip::new();
        (chip.state().combines, chip.state().unmapped) = (combines, unmapped);
        let bed = bed_on(chip.clone(), open(&chip.opener(1)));
        let more: Vec<Arc<Qp>> = (0..3).map(|_| Qp::create(bed.qp.pd(), &init(&bed.cq)).unwrap()).collect();
        let refused = usize::from(unmapped);
        assert_eq!(pages(&chip), (allocated, refused), "{combines} {unmapped}");
        drop((bed, more));
        assert_eq!(pages(&chip).1, allocated, "{combines} {unmapped}");
        let freed: Vec<u32> = {
            let state = chip.state();
            let freed = state.inputs.iter().filter(|(op, _)| *op == Opcode::DeallocUar);
            freed.map(|(_, input)| DeallocUarIn::read(input).uar()).collect()
        };
        let mut different = freed.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), freed.len(), "{freed:?}");
    }
}
