//! A program with a target QP and an SRQ in the XRC domain of a file: `xrc DIR FID FILE`. It also has an initiator and a region of device
//! memory on the function.
//!
//! It prints `target GID QPN SRQN`, reads the card of the initiator, prints `connected`, and `received LEN` for each message to its SRQ. It
//! exits when its standard input ends.

use driver::{
    AccessFlags, Completion, Cq, Dm, FileId, Mr, Pd, Qp, QpInit, RecvWr, Service, Sge, Srq, SrqInit,
    WcStatus, XrcDomain, XrcOpen,
};
use ironverbs_tests::{
    end::{Card, Patience, Words, connect, register},
    program::{hear, say},
};
use std::{error::Error, os::unix::fs::MetadataExt, path::PathBuf};

const RECEIVES: u32 = 8;
const ROOM: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: xrc DIR FID FILE";
    let dir = PathBuf::from(args.next().ok_or(usage)?);
    let fid: u8 = args.next().ok_or(usage)?.parse()?;
    let file = std::fs::metadata(args.next().ok_or(usage)?)?;
    let device = node::open_device(&dir, fid)?;
    let file = FileId { dev: file.dev(), ino: file.ino() };
    let domain = XrcDomain::open(&device, XrcOpen { file: Some(file), create: true, exclusive: false })?;
    let pd = Pd::alloc(&device)?;
    let cq = Cq::create(&device, 64, 0)?;
    let words = Words::new(RECEIVES as usize * ROOM);
    let mr: Mr = register(&pd, &words, AccessFlags::LOCAL_WRITE)?;
    let xrc = Some((domain.clone(), cq.clone()));
    let srq = Srq::create(&pd, &SrqInit { max_wr: RECEIVES, max_sge: 1, xrc, cookie: 0 })?;
    for i in 0..RECEIVES as usize {
        let sge = [Sge { addr: words.addr() + (i * ROOM) as u64, length: ROOM as u32, lkey: mr.lkey() }];
        srq.post_recv([RecvWr { wr_id: i as u64, sge: &sge }])?;
    }
    let target = Qp::create_target(&domain, 0)?;
    let _initiator = Qp::create(&pd, &QpInit { max_send_wr: 1, ..QpInit::new(Service::XrcIni, &cq, &cq) })?;
    let dm = Dm::alloc(&device, ROOM as u64, 0)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ZERO_BASED;
    let _region = Mr::of_device(&pd, &dm, 0, ROOM, access)?;
    say(format!("target {} {} {}", u128::from_be_bytes(device.gid(1)?), target.qpn(), srq.srqn()));
    connect(&target, &hear().unwrap_or_default().parse::<Card>()?, Patience::default())?;
    say("connected");
    let end = std::thread::spawn(hear);
    let mut out = [Completion::default()];
    while !end.is_finished() {
        if cq.poll(&mut out) == 0 {
            std::thread::yield_now();
            continue;
        }
        assert_eq!(out[0].status, WcStatus::Success);
        say(format!("received {}", out[0].byte_len));
    }
    Ok(())
}
