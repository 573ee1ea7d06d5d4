//! The agents' messages as decoded by tshark, an independent implementation.

use super::link::{Link, Side};
use hwspec::{
    handle::Qpn,
    wire::{
        BthOpcode, Envelope, IpPair, Packet,
        mad::{
            QP1_QKEY,
            cm::{CmaHeader, PortSpace, service_id},
        },
        write_frame,
    },
};
use ironverbs_cm::*;
use std::{path::Path as File, process::Command as Program};

const SERVICE: u64 = service_id(PortSpace::Tcp, 7471);

/// A connection that is established and ended, and one that is rejected.
fn exchange() -> Link {
    let mut link = Link::new();
    let listener = link.open(Side::Right);
    link.command(Side::Right, listener, Command::Listen { service_id: SERVICE }).expect("listen");
    for accepted in [true, false] {
        let left = link.open(Side::Left);
        let addresses = IpPair::V4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2] };
        let connect = Connect {
            qpn: 0x12_3456,
            starting_psn: 0xab_cdef,
            responder_resources: 3,
            initiator_depth: 5,
            retry_count: 6,
            rnr_retry_count: 4,
            private_data: CmaHeader::new(addresses, 0x4321).as_bytes().to_vec(),
            ..link.connect(SERVICE)
        };
        link.command(Side::Left, left, Command::Connect(Box::new(connect))).expect("connect");
        link.settle();
        let (right, _) = link.event(Side::Right).expect("a REQ");
        if !accepted {
            let reject = Command::Reject {
                reason: RejectReason::InsufficientResponderResources,
                info: vec![9],
                private_data: Vec::new(),
            };
            link.command(Side::Right, right, reject).expect("reject");
            continue;
        }
        let accept = Accept {
            qpn: 0x65_4321,
            starting_psn: 0xfe_dcba,
            responder_resources: 7,
            initiator_depth: 2,
            rnr_retry_count: 1,
            ..Accept::default()
        };
        link.command(Side::Right, right, Command::Accept(Box::new(accept))).expect("accept");
        link.settle();
        link.command(Side::Left, left, Command::Ready { private_data: Vec::new() }).expect("ready");
        link.settle();
        link.command(Side::Left, left, Command::Disconnect { private_data: Vec::new() }).expect("disconnect");
        link.settle();
        link.command(Side::Right, right, Command::DisconnectReply { private_data: Vec::new() })
            .expect("reply");
        link.settle();
        while link.event(Side::Left).is_some() || link.event(Side::Right).is_some() {}
    }
    link
}

/// A capture of all sent messages as RoCE v2 frames.
fn capture(link: &Link, to: &File) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 65535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for (side, mad) in &link.log {
        let (src, dst) = if *side == Side::Left { (1, 2) } else { (2, 1) };
        let addresses = IpPair::V4 { src: [10, 0, 0, src], dst: [10, 0, 0, dst] };
        let envelope = Envelope::new([2, 0, 0, 0, 0, src], [2, 0, 0, 0, 0, dst], addresses);
        let mut packet = Packet::default();
        packet.bth.set().opcode(BthOpcode::UdSendOnly).pkey(0xffff).dest_qp(Qpn(1));
        packet.deth.set().qkey(QP1_QKEY).src_qp(Qpn(1));
        let mut frame = [0; 512];
        let length = write_frame(&mut frame, &envelope, &packet, &mad[..]).expect("a frame");
        for word in [0, 0, length as u32, length as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&frame[..length]);
    }
    std::fs::write(to, bytes).expect("a capture");
}

/// The values of these fields according to tshark, one line per frame. `None` if tshark is not installed.
fn dissect(file: &File, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut tshark = Program::new("tshark");
    tshark.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=;"]);
    fields.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let done = tshark.output().ok()?;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    Some(text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect())
}

#[test]
fn tshark_reads_what_was_meant() {
    let link = exchange();
    let file = std::env::temp_dir().join(format!("ironverbs-cm-{}.pcap", std::process::id()));
    capture(&link, &file);
    let lines = |fields: &[&str]| dissect(&file, fields);
    let Some(attributes) = lines(&["infiniband.mad.attributeid", "_ws.malformed", "_ws.expert.message"])
    else {
        eprintln!("skipped: there is no tshark");
        return;
    };
    let ids: Vec<&str> = attributes.iter().map(|line| line[0].as_str()).collect();
    assert_eq!(ids, ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016", "0x0010", "0x0012"]);
    assert!(attributes.iter().all(|line| line[1].is_empty() && line[2].is_empty()), "{attributes:?}");
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("a number"),
        None => text.parse().unwrap_or_else(|_| panic!("{text:?} is no number")),
    };
    let says = |frame: usize, fields: &[(&str, u64)]| {
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let found = &lines(&names).expect("tshark")[frame];
        for ((name, expected), found) in fields.iter().zip(found) {
            assert_eq!(number(found), *expected, "{name} of frame {frame}");
        }
    };
    says(
        0,
        &[
            ("infiniband.cm.req", 0x1_0000),
            ("infiniband.cm.req.serviceid.protocol", 6),
            ("infiniband.cm.req.serviceid.dport", 7471),
            ("infiniband.cm.req.localcaguid", 0x1000),
            ("infiniband.cm.req.localqpn", 0x12_3456),
            ("infiniband.cm.req.responderres", 3),
            ("infiniband.cm.req.initdepth", 5),
            ("infiniband.cm.req.remoteresptout", 20),
            ("infiniband.cm.req.localresptout", 20),
            ("infiniband.cm.req.startpsn", 0xab_cdef),
            ("infiniband.cm.req.retrcount", 6),
            ("infiniband.cm.req.rnrretrcount", 4),
            ("infiniband.cm.req.pkey", 0xffff),
            ("infiniband.cm.req.pppmtu", 3),
            ("infiniband.cm.req.maxcmretr", 15),
            ("infiniband.cm.req.prim_hoplim", 64),
            ("infiniband.cm.req.prim_localacktout", 19),
            ("infiniband.cm.req.ip_cm.ipv", 4),
            ("infiniband.cm.req.ip_cm.sport", 0x4321),
        ],
    );
    let addresses = ["infiniband.cm.req.ip_cm.sip4", "infiniband.cm.req.ip_cm.dip4"];
    assert_eq!(lines(&addresses).expect("tshark")[0], ["10.0.0.1", "10.0.0.2"]);
    says(
        1,
        &[
            ("infiniband.cm.rep", 0x2_0001),
            ("infiniband.cm.rep.remotecommid", 0x1_0000),
            ("infiniband.cm.rep.localqpn", 0x65_4321),
            ("infiniband.cm.rep.startpsn", 0xfe_dcba),
            ("infiniband.cm.rep.respres", 7),
            ("infiniband.cm.rep.initdepth", 2),
            ("infiniband.cm.rep.tgtackdelay", 16),
            ("infiniband.cm.rep.rnrretrcount", 1),
            ("infiniband.cm.rep.localcaguid", 0x1001),
        ],
    );
    says(2, &[("infiniband.cm.rtu.localcommid", 0x1_0000), ("infiniband.cm.rtu.remotecommid", 0x2_0001)]);
    says(
        3,
        &[
            ("infiniband.cm.dreq.localcommid", 0x1_0000),
            ("infiniband.cm.dreq.remotecommid", 0x2_0001),
            ("infiniband.cm.req.remoteqpneecn", 0x65_4321),
        ],
    );
    says(4, &[("infiniband.cm.drsp.localcommid", 0x2_0001), ("infiniband.cm.drsp.remotecommid", 0x1_0000)]);
    says(
        6,
        &[
            ("infiniband.cm.rej.localcommid", 0),
            ("infiniband.cm.rej.remotecommid", 0x1_0001),
            ("infiniband.cm.rej.msgrej", 0),
            ("infiniband.cm.rej.rejinfolen", 1),
            ("infiniband.cm.rej.reason", 27),
        ],
    );
    let _ = std::fs::remove_file(&file);
}
