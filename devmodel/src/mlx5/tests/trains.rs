//! Packets sent in a train have the same effects as packets sent one by one.

use super::*;
use crate::{
    mlx5::{step::Buffers, turn},
    state::MkeyRow,
};
use zerocopy::IntoBytes;

/// The final state of a run: memory, both functions with their counters, both queue pairs.
type Left = (Vec<u8>, [Vec<u8>; 2], [Vec<u8>; 2]);

/// Runs `act` twice: with trains allowed, and with the wire observed, so that every packet is sent alone.
fn both(mtu: u16, act: impl Fn(&mut Rig, &mut Runner)) -> [Left; 2] {
    [false, true].map(|watched| {
        let link = Link { mtu, ..Link::default() };
        let (mut rig, mut runner) = (Rig::new(Config::default(), link), Runner::new());
        if watched {
            runner.set_trace(Some(Box::new(|_| {})));
        }
        act(&mut rig, &mut runner);
        let functions = [0, 1].map(|i| rig.with(i, |func| func.function().as_bytes().to_vec()));
        let pairs = [0, 1].map(|i| rig.qp(i).as_bytes().to_vec());
        (std::mem::take(&mut rig.machine.memory), functions, pairs)
    })
}

fn same(what: &str, [trains, single]: [Left; 2]) {
    assert!(trains.0 == single.0, "{what}: memory differs");
    for i in 0..2 {
        let differs = |(at, (a, b)): (usize, (&u8, &u8))| (a != b).then_some((at, *a, *b));
        let found: Vec<_> = trains.1[i].iter().zip(&single.1[i]).enumerate().filter_map(differs).collect();
        assert!(found.is_empty(), "{what}: function {i} differs (offset, as trains, one by one): {found:?}");
    }
    assert!(trains.2 == single.2, "{what}: queue pairs differ");
}

/// Runs until all activity has ended; timers expire meanwhile.
fn until_quiet(rig: &mut Rig, runner: &mut Runner) {
    go(rig, runner, 1);
    for tick in 1..40u64 {
        for i in 0..2 {
            runner.run(&rig.adapter, &mut rig.machine, tick * 200_000_000_000, rig.sides[i].fid);
        }
    }
}

#[test]
fn middles_of_a_message_leave_in_trains() {
    let mut rig = Rig::new(Config::default(), Link { mtu: 1024, ..Link::default() });
    let mut buffers = Buffers::default();
    rig.post_send(0, WqeOpcode::RdmaWrite, 40 << 10, 0, true);
    let side = rig.sides[0];
    let mut func = Func::lock(rig.adapter.region(), side.fid, &mut rig.machine);
    let mut step = Step::new(&mut rig.machine, 1, (rig.adapter.region(), rig.adapter.config()), &mut buffers);
    step.trains = true;
    turn::ring(&mut func, &mut step, side.qpn, side.uar);
    drop(func);
    let sent: Vec<(u16, usize)> =
        buffers.out.iter().map(|frame| (frame.packets, frame.payload.len())).collect();
    // AckReq is set on the 32nd packet and on the last.
    let one = (1, 1024);
    assert_eq!(sent, [one, one, (29, 29 << 10), one, (7, 7 << 10), one]);
    let psns = |frame: &step::Frame| {
        Headers::of_built(&frame.headers[..frame.header_len.into()], 2000).map(|h| h.bth().psn().get())
    };
    let train: Vec<u32> = buffers.out[2].of_train().filter_map(|one| psns(&one).ok()).collect();
    let begin = Link::default().psn;
    assert_eq!(train, (2..31).map(|i| (begin + i) & 0xff_ffff).collect::<Vec<_>>());
    assert!(buffers.out[2].of_train().all(|one| one.packets == 1 && one.payload.len() == 1024));
}

#[test]
fn whatever_is_transferred_is_the_same() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        // The lengths are limited to the work of one call.
        for len in [4, 5, 34, 35, 99, 100, 256].map(|packets| packets * u32::from(mtu) + packets % 2) {
            for (opcode, received) in [
                (WqeOpcode::RdmaWrite, None),
                (WqeOpcode::Send, Some(CqeOpcode::RespSend)),
                (WqeOpcode::RdmaRead, None),
            ] {
                let left = both(mtu, |rig, runner| {
                    let reads = opcode == WqeOpcode::RdmaRead;
                    let bytes = pattern(rig, usize::from(reads), len as usize);
                    for _ in 0..3 {
                        let to = rig.sides[1].data;
                        if received.is_some() {
                            rig.post_recv(1, to, len);
                        }
                        rig.post_send(0, opcode, len, 0, true);
                    }
                    go(rig, runner, 1);
                    assert_eq!(rig.data(usize::from(!reads), 0, len as usize), bytes);
                    for _ in 0..3 {
                        assert_eq!(rig.poll(0).map(|cqe| cqe.opcode()), Some(CqeOpcode::Req));
                        assert_eq!(rig.poll(1).map(|cqe| cqe.opcode()), received);
                    }
                });
                same(&format!("{opcode:?} of {len} by {mtu}"), left);
            }
        }
    }
}

/// Gather and scatter lists with odd sizes.
#[test]
fn lists_of_many_entries_are_the_same() {
    for (n, entry) in [(3u64, 5_000u32), (7, 1_111), (5, 4_096), (12, 777)] {
        let left = both(1024, |rig, runner| {
            pattern(rig, 0, 1 << 17);
            let (side, peer) = (rig.sides[0], rig.sides[1]);
            let list: Vec<_> = (0..n).map(|i| (side.key, side.data + i * 9_001, entry)).collect();
            for opcode in [WqeOpcode::RdmaWrite, WqeOpcode::RdmaRead] {
                rig.post_list(0, opcode, &list, (peer.data + 13, peer.key), 0, true);
            }
            go(rig, runner, 1);
            for _ in 0..2 {
                assert_eq!(rig.poll(0).map(|cqe| cqe.opcode()), Some(CqeOpcode::Req));
            }
        });
        same(&format!("{n} entries of {entry}"), left);
    }
}

/// Memory that refuses an access at either end, at various positions in the message.
#[test]
fn a_refusal_within_a_train_is_at_its_packet() {
    for opcode in [WqeOpcode::RdmaWrite, WqeOpcode::Send, WqeOpcode::RdmaRead] {
        for end in 0..2 {
            for at in [0u64, 1, 1023, 1024, 3 * 1024 + 5, 20 * 1024, 31 * 1024 + 1, 39 * 1024 + 1023] {
                let left = both(1024, |rig, runner| {
                    pattern(rig, 0, 40 << 10);
                    pattern(rig, 1, 40 << 10);
                    let hole = rig.sides[end].data + at;
                    rig.machine.hole = hole..hole + 1;
                    let to = rig.sides[1].data;
                    rig.post_recv(1, to, 40 << 10);
                    rig.post_send(0, opcode, 40 << 10, 0, true);
                    rig.post_send(0, WqeOpcode::RdmaWrite, 8, 0, true);
                    until_quiet(rig, runner);
                    assert!(rig.poll(0).is_some());
                });
                same(&format!("{opcode:?} refused at {at} of side {end}"), left);
            }
        }
    }
}

/// A receive that is too short, and a key that ends within the message.
#[test]
fn a_message_that_does_not_fit_ends_at_its_packet() {
    for room in [1u32, 1024, 1025, 7 * 1024, 31 * 1024, 40 * 1024 - 1] {
        let left = both(1024, |rig, runner| {
            pattern(rig, 0, 40 << 10);
            let to = rig.sides[1].data;
            rig.post_recv(1, to, room);
            rig.post_send(0, WqeOpcode::Send, 40 << 10, 0, true);
            until_quiet(rig, runner);
            assert!(rig.poll(0).is_some());
        });
        same(&format!("a receive of {room}"), left);
        for (opcode, end) in [(WqeOpcode::RdmaWrite, 1), (WqeOpcode::RdmaRead, 0), (WqeOpcode::RdmaRead, 1)] {
            let left = both(1024, |rig, runner| {
                let (key, start) = (rig.sides[end].key, rig.sides[end].data);
                rig.with(end, |func| {
                    let row = func.get_mut::<MkeyRow>(key >> 8).expect("the key");
                    row.access &= !crate::translate::access::LENGTH64;
                    (row.start, row.len) = (start, room.into());
                });
                pattern(rig, 0, 40 << 10);
                rig.post_send(0, opcode, 40 << 10, 0, true);
                until_quiet(rig, runner);
                assert!(rig.poll(0).is_some());
            });
            same(&format!("{opcode:?} past {room} of side {end}'s key"), left);
        }
    }
}

/// Retransmitted trains of which the peer already has some packets.
#[test]
fn trains_that_come_again_are_duplicates_packet_by_packet() {
    for had in [0u32, 1, 2, 5, 30, 31, 39] {
        let left = both(1024, |rig, runner| {
            pattern(rig, 0, 40 << 10);
            rig.post_send(0, WqeOpcode::RdmaWrite, 40 << 10, 0, true);
            // The peer is at that position after executing the earlier packets.
            let qpn = rig.sides[1].qpn;
            let (key, va) = (rig.sides[1].key, rig.sides[1].data);
            rig.with(1, |func| {
                let q = func.get_mut::<QpRow>(qpn).expect("the QP");
                q.responder.psn = (q.responder.psn + had) & 0xff_ffff;
                if had > 0 {
                    let rx = &mut q.responder.rx;
                    (rx.kind, rx.length, rx.done) = (crate::transport::Message::WRITE, 40 << 10, had << 10);
                    (rx.rkey, rx.va) = (key, va);
                }
            });
            until_quiet(rig, runner);
            assert_eq!(rig.poll(0).map(|cqe| cqe.opcode()), Some(CqeOpcode::Req));
        });
        same(&format!("{had} were there"), left);
    }
}

/// A gap: no packet of the trains after it counts.
#[test]
fn trains_behind_a_gap_are_out_of_sequence_packet_by_packet() {
    let left = both(1024, |rig, runner| {
        pattern(rig, 0, 40 << 10);
        rig.post_send(0, WqeOpcode::RdmaWrite, 40 << 10, 0, true);
        let qpn = rig.sides[1].qpn;
        rig.with(1, |func| {
            let q = func.get_mut::<QpRow>(qpn).expect("the QP");
            q.responder.psn = q.responder.psn.wrapping_sub(3) & 0xff_ffff;
        });
        until_quiet(rig, runner);
    });
    same("a gap", left);
}
