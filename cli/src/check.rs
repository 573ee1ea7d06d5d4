//! `ironverbs check`: whether frames that somebody captured keep the rules of the reliable connection.

use crate::say::{fail, say_line};
use devmodel::wire::rules::Checker;
use pcap_file::{
    DataLink, PcapError,
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader},
};
use std::{error::Error, fs::File, io::BufReader, path::Path, process::ExitCode};

/// Breaches that are told of one by one.
const TOLD: usize = 50;

pub fn check(path: &Path, lossy: bool) -> ExitCode {
    let checker = if lossy { Checker::new().lossy() } else { Checker::new() };
    match read(path, checker) {
        Ok(checker) => show(&checker),
        Err(why) => fail(1, format!("{}: {why}", path.display())),
    }
}

fn show(checker: &Checker) -> ExitCode {
    let (count, breaches) = (checker.count(), checker.breaches());
    for breach in breaches.iter().take(TOLD) {
        say_line!("{breach}");
    }
    if breaches.len() > TOLD {
        say_line!("and {} more", breaches.len() - TOLD);
    }
    say_line!(
        "{} frames, {} of reliable connections, for {} queue pairs: {} breaches of rules.",
        count.frames,
        count.checked,
        count.queue_pairs,
        breaches.len()
    );
    if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Gives all frames of a capture to `checker`: pcap, or pcapng of the first interface's kind.
fn read(path: &Path, mut checker: Checker) -> Result<Checker, Box<dyn Error>> {
    let open = || File::open(path).map(BufReader::new);
    match PcapReader::new(open()?) {
        Ok(mut pcap) => {
            ethernet(pcap.header().datalink)?;
            while let Some(packet) = pcap.next_packet() {
                let packet = packet?;
                checker.frame(packet.timestamp.as_nanos() as u64, &packet.data);
            }
        }
        Err(PcapError::IoError(e)) => return Err(e.into()),
        Err(_) => {
            let mut pcapng = PcapNgReader::new(open()?)
                .map_err(|_| "expected a capture in the format pcap or pcapng, found another file")?;
            while let Some(block) = pcapng.next_block() {
                match block? {
                    Block::InterfaceDescription(interface) => ethernet(interface.linktype)?,
                    Block::EnhancedPacket(packet) => {
                        checker.frame(packet.timestamp.as_nanos() as u64, &packet.data);
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(checker)
}

fn ethernet(kind: DataLink) -> Result<(), String> {
    match kind {
        DataLink::ETHERNET => Ok(()),
        other => Err(format!("expected frames of Ethernet, found those of link type {}", u32::from(other))),
    }
}
