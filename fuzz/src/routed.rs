//! InfiniBand: LID-routed packets for queue pairs, agents, the switch and groups, from this adapter and from another one on its subnet, and
//! management datagrams that the driver sends to its own port.

use crate::bytes::Bytes;
use devmodel::{
    Config, LinkLayer, identity,
    region::{Outlet, OutletRing},
};
use hwspec::{
    cmd::{Opcode, vport::*},
    context::ServiceType,
    handle::{Psn, Qpn},
    wire::{
        BthOpcode, Grh, Packet, Route,
        bth::Transport,
        lrh::PERMISSIVE_LID,
        mad::{MAD_SIZE, QP1_QKEY},
        write_routed,
    },
};
use std::sync::OnceLock;
use tests::bed::{Access, Bed, MS, Mr, Path, Qp, Saved, US, Wr, reseal};

/// Maximum number of packets and commands per input.
const TURNS: usize = 16;
/// LID of the switch, and GID of a group.
const SWITCH: u16 = identity::switch_lid(0);
const GROUP: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
const QKEY: u32 = 0x0b1b;
/// Number of another adapter on the subnet.
const OTHER: u16 = 16;

#[derive(Clone)]
struct Stage {
    saved: Saved,
    rc: Qp,
    mr: Mr,
    /// QPs 1 and 0, and a member of the group.
    datagrams: [Qp; 3],
    bystanders: [Qp; 2],
    regions: [Mr; 2],
}

fn build() -> Stage {
    let mut bed = Bed::infiniband();
    let path = Path { mtu: 256, timeout: 6, retry_count: 3, grh: false, ..Path::default() };
    let (rc, _) = bed.pair(path);
    let (c, d) = (bed.qp(2), bed.qp(3));
    bed.connect(c, d, path);
    let mr = bed.mr(1, 8192, Access::ALL);
    let regions = [bed.mr(2, 2048, Access::ALL), bed.mr(3, 2048, Access::ALL)];
    let ud = bed.datagram(1, ServiceType::Ud, QKEY);
    bed.attach(ud, GROUP).expect("ATTACH_TO_MCG");
    let datagrams = [bed.datagram(1, ServiceType::Qp1, QP1_QKEY), bed.datagram(1, ServiceType::Qp0, 0), ud];
    for _ in 0..8 {
        datagrams.iter().chain([&rc]).for_each(|qp| {
            bed.post_recv(*qp, &[mr.part(4096, 1024)]);
        });
    }
    let other = Bed::new(Config { link_layer: LinkLayer::Infiniband, node_id: OTHER, ..Config::default() });
    OutletRing::of(bed.adapter.region(), Outlet::Uplink).open(true);
    bed.learn(&[other.adapter.announce()]);
    bed.take_frames();
    let saved = bed.save();
    Stage { saved, rc, mr, datagrams, bystanders: [c, d], regions }
}

/// Sends packets and management datagrams built from `data`.
pub fn routed(data: &[u8]) {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    let stage = STAGE.get_or_init(build);
    let mut input = Bytes(data);
    let mut bed = Bed::restore(&stage.saved);
    for _ in 0..TURNS {
        if input.is_empty() {
            break;
        }
        if input.u8() % 4 == 0 {
            let command = MadIfcIn::with(|s| s.port(1).mad(mad(&mut input)));
            let checked = u16::from(input.u8() % 4);
            // The command may be refused or answered.
            let _ = bed.command_with(1, Opcode::MadIfc, checked, &command, &[], MadIfcOut::SIZE);
        } else {
            let frame = frame(stage, &mut input);
            let source = || identity::node_of_lid(u16::from_be_bytes([frame[6], frame[7]]));
            assert!(
                !bed.adapter.admits(&frame) || source().is_some_and(|id| id != 0),
                "a name of this adapter"
            );
            bed.inject(&frame);
        }
        bed.advance(u64::from(input.u8()) * US);
    }
    judge(&mut bed, stage);
}

/// Builds a management datagram, usually one that some agent knows.
fn mad(input: &mut Bytes<'_>) -> [u8; MAD_SIZE] {
    const CLASSES: [(u8, u8); 4] = [(0x81, 1), (0x01, 1), (0x04, 1), (0x03, 2)];
    const METHODS: [u8; 6] = [1, 2, 0x12, 0x15, 1, 2];
    const ATTRIBUTES: [u8; 16] =
        [1, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1d, 0x20, 0x35, 0x38, 0x38, 0x38];
    let mut mad = [0; MAD_SIZE];
    let kind = input.u8();
    let (class, version) = CLASSES[usize::from(kind & 3)];
    mad[..4].copy_from_slice(&[1, class, version, METHODS[usize::from(kind >> 2) % METHODS.len()]]);
    (mad[6], mad[7]) = (input.u8() % 8, input.u8() % 8);
    mad[17] = ATTRIBUTES[usize::from(input.u8()) % ATTRIBUTES.len()];
    mad[23] = input.u8() % 8;
    if class == 0x81 {
        mad[32..36].fill(0xff);
        mad[128..136].copy_from_slice(&input.u64().to_be_bytes().map(|b| b % 8));
    }
    // Sets a few arbitrary bytes: component masks, records, counters.
    for _ in 0..input.u8() % 24 {
        mad[usize::from(input.u8())] = input.u8();
    }
    if class == 0x03 && kind & 0x80 != 0 {
        // Inserts a group that this port may join.
        mad[48..56].copy_from_slice(&(u64::from(input.u32()) & 0x3_ffff | 0x1_0003).to_be_bytes());
        mad[56..72].copy_from_slice(&GROUP);
        mad[72..88].copy_from_slice(&identity::port_gid(0, 1));
        mad[104] = input.u8();
    }
    mad
}

fn frame(stage: &Stage, input: &mut Bytes<'_>) -> Vec<u8> {
    let kind = input.u8();
    let dlid = match input.u8() % 8 {
        0..=2 => SWITCH,
        3 => PERMISSIVE_LID,
        4 => 0xc000 | input.u16(),
        5 => input.u16(),
        _ => 2,
    };
    let [general, management, datagram] = stage.datagrams;
    let (qpn, qkey) = match input.u8() % 8 {
        0..=2 => (1, QP1_QKEY),
        3 | 4 => (0, 0),
        5 => (datagram.qpn, QKEY),
        6 => (0xff_ffff, QKEY),
        _ => (if kind & 1 == 0 { stage.rc.qpn } else { input.u32() & 0xff_ffff }, input.u32()),
    };
    let grh = (kind & 2 != 0).then(|| Grh {
        sgid: identity::port_gid(0, 2),
        dgid: if kind & 4 == 0 { identity::port_gid(0, 1) } else { GROUP },
        hop_limit: 1,
        ..Grh::default()
    });
    // The source is never a bystander, which would be accountable for packets sent in its name. With bit 3 it is on another adapter.
    let slid = if kind & 8 == 0 { 2 } else { OTHER << 8 | input.u16() & 0xfff };
    let route = Route { vl: if qpn == 0 { 15 } else { 0 }, sl: input.u8() & 15, dlid, slid, grh };
    let mut packet = Packet::default();
    let opcode = if qpn == stage.rc.qpn || kind & 16 != 0 {
        BthOpcode::from_raw(input.u8()).on(Transport::Rc)
    } else {
        BthOpcode::UdSendOnly
    };
    let psn = 0x200 + u32::from(input.u8()) % 8;
    packet.bth.set().opcode(opcode).pkey(0xffff).dest_qp(Qpn(qpn)).psn(Psn::new(psn)).ack_req(kind & 32 != 0);
    packet
        .deth
        .set()
        .qkey(qkey)
        .src_qp([general, management, datagram].map(|qp| Qpn(qp.qpn))[usize::from(kind) % 3]);
    packet.reth.set().va(stage.mr.va + u64::from(input.u8())).rkey(stage.mr.key).dma_len(256);
    let payload = match kind & 64 {
        0 => mad(input).to_vec(),
        _ => vec![kind; usize::from(input.u16()) % 600],
    };
    let mut frame = vec![0; 1024];
    let len = write_routed(&mut frame, &route, &packet, &payload).unwrap_or(0);
    frame.truncate(len);
    if kind & 128 != 0 {
        for _ in 0..input.u8() % 4 {
            let (at, flip) = (usize::from(input.u8()), input.u8());
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= flip;
            }
        }
        if frame.len() > 16 && input.u8() & 1 == 0 {
            reseal(&mut frame);
        } else {
            frame.truncate(usize::from(input.u16()));
        }
    }
    frame
}

/// Checks that the bystanders are unchanged and still work.
fn judge(bed: &mut Bed, stage: &Stage) {
    bed.wire().forgetful = true;
    bed.advance(20 * MS);
    let ([c, d], [from, to]) = (stage.bystanders, stage.regions);
    assert!(bed.bytes(from).iter().chain(&bed.bytes(to)).all(|b| *b == 0), "memory of others was written");
    assert!(!bed.has_completion(c.send_cq) && !bed.has_completion(d.send_cq), "completions nobody asked for");
    let data = bed.pattern(from, 0x5a);
    bed.post(c, &Wr::write(from.sge(), to));
    bed.advance(20 * MS);
    assert!(bed.one(c.send_cq).is_ok(), "others can't send");
    assert_eq!(bed.bytes(to), data);
}
