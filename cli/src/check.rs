//! `ironverbs pcap check`: checks captured frames against the rules of the reliable connection.

use crate::say::{fail, say_line};
use devmodel::wire::rules::Checker;
use pcap_file::{
    DataLink, PcapError, TsResolution,
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader, blocks::interface_description::InterfaceDescriptionOption},
};
use std::{
    error::Error,
    fs::File,
    io::{BufReader, ErrorKind},
    path::Path,
    process::ExitCode,
};

/// Maximum number of violations that are listed individually.
const TOLD: usize = 50;

pub fn check(path: &Path, lossy: bool) -> ExitCode {
    let checker = if lossy { Checker::new().lossy() } else { Checker::new() };
    match read(path, checker) {
        Ok((checker, is_cut)) => show(&checker, is_cut),
        Err(why) => fail(1, format!("{}: {why}", path.display())),
    }
}

fn show(checker: &Checker, is_cut: bool) -> ExitCode {
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
    if count.left_out > 0 {
        say_line!("{} frames were left out: RoCE v1, or too little of them was captured.", count.left_out);
    }
    if is_cut {
        say_line!("The file ends within a frame.");
    }
    if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Passes all frames of a capture to `checker`: pcap, or pcapng packets with the first interface's link type. Returns true if the capture
/// ends within a frame, as when its writer was killed.
fn read(path: &Path, mut checker: Checker) -> Result<(Checker, bool), Box<dyn Error>> {
    let open = || File::open(path).map(BufReader::new);
    match PcapReader::new(open()?) {
        Ok(mut pcap) => {
            ethernet(pcap.header().datalink)?;
            let tick = if pcap.header().ts_resolution == TsResolution::NanoSecond { 1 } else { 1000 };
            // Raw packets: a capture of only the beginnings of frames has original lengths beyond the file's snapshot length.
            while let Some(packet) = pcap.next_raw_packet() {
                let Some(packet) = whole(packet)? else { return Ok((checker, true)) };
                let at = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * tick;
                checker.beginning(at, &packet.data, packet.orig_len as usize);
            }
        }
        Err(PcapError::IoError(e)) => return Err(e.into()),
        Err(_) => {
            let mut pcapng = PcapNgReader::new(open()?)
                .map_err(|_| "expected a capture in the format pcap or pcapng, found another file")?;
            let mut ticks = Vec::new();
            while let Some(block) = pcapng.next_block() {
                let Some(block) = whole(block)? else { return Ok((checker, true)) };
                match block {
                    Block::SectionHeader(_) => ticks.clear(),
                    Block::InterfaceDescription(interface) => {
                        ethernet(interface.linktype)?;
                        ticks.push(Tick::of(&interface.options));
                    }
                    Block::EnhancedPacket(packet) => {
                        let tick = ticks.get(packet.interface_id as usize).copied().unwrap_or_default();
                        // The library interprets ticks as nanoseconds.
                        let at = tick.nanos(packet.timestamp.as_nanos());
                        checker.beginning(at, &packet.data, packet.original_len as usize);
                    }
                    _ => {}
                }
            }
        }
    }
    Ok((checker, false))
}

/// Returns the read value, or `None` at an unexpected end of file: the writer was killed, and the data before is valid.
fn whole<T>(read: Result<T, PcapError>) -> Result<Option<T>, PcapError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(PcapError::IncompleteBuffer) => Ok(None),
        Err(PcapError::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

/// An interface's time resolution as a fraction of a second (pcapng, `if_tsresol`).
#[derive(Clone, Copy)]
struct Tick(u64);

impl Default for Tick {
    fn default() -> Self {
        Self(1_000_000)
    }
}

impl Tick {
    fn of(options: &[InterfaceDescriptionOption<'_>]) -> Self {
        let told = options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(told) => Some(*told),
            _ => None,
        });
        let parts = told.and_then(|told| match told & 0x80 {
            0 => 10u64.checked_pow(told.into()),
            _ => 2u64.checked_pow((told & 0x7f).into()),
        });
        parts.map_or(Self::default(), Self)
    }

    fn nanos(self, ticks: u128) -> u64 {
        (ticks * 1_000_000_000 / u128::from(self.0)) as u64
    }
}

fn ethernet(kind: DataLink) -> Result<(), String> {
    match kind {
        DataLink::ETHERNET => Ok(()),
        other => Err(format!("expected frames of Ethernet, found those of link type {}", u32::from(other))),
    }
}
