//! `ironverbs pcap check` on captures as other programs write them.

use std::{fs, path::Path, process::Command};

fn check(file: &Path) -> (bool, String) {
    let out =
        Command::new(env!("CARGO_BIN_EXE_ironverbs")).args(["pcap", "check"]).arg(file).output().unwrap();
    (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

/// Frames of the model, as a pcap file with nanosecond timestamps.
fn pcap(folder: &Path) -> Vec<u8> {
    let file = folder.join("whole.pcap");
    let words = ["sim", "write_bw", "-s", "9000", "-n", "50", "--pcap"];
    let made = Command::new(env!("CARGO_BIN_EXE_ironverbs")).args(words).arg(&file).output().unwrap();
    assert!(made.status.success());
    let pcap = fs::read(file).unwrap();
    assert_eq!(pcap[..4], [0xa1, 0xb2, 0x3c, 0x4d], "big endian, nanoseconds");
    pcap
}

/// Positions of a pcap file's records.
fn records(pcap: &[u8]) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut at = 24;
    while at + 16 <= pcap.len() {
        let len = u32::from_be_bytes(pcap[at + 8..at + 12].try_into().unwrap()) as usize;
        all.push((at, len));
        at += 16 + len;
    }
    all
}

#[test]
fn a_capture_that_ends_within_a_frame_is_asked_as_far_as_it_goes() {
    let room = testkit::Scratch::new();
    fs::create_dir_all(&room.0).unwrap();
    let whole = pcap(&room.0);
    let file = room.0.join("cut.pcap");
    let last = records(&whole).len() - 1;
    fs::write(&file, &whole[..whole.len() - 5]).unwrap();
    let (good, said) = check(&file);
    assert!(good && said.starts_with(&format!("{last} frames, ")), "{said}");
    assert!(said.contains("0 breaches") && said.contains("The file ends within a frame."), "{said}");
}

#[test]
fn beginnings_of_frames_are_enough_and_pcapngs_times_are_microseconds() {
    let room = testkit::Scratch::new();
    fs::create_dir_all(&room.0).unwrap();
    let whole = pcap(&room.0);
    // As written by `tcpdump -s 96`: the limit in the header, and original frame lengths above it.
    let mut short = whole[..24].to_vec();
    short[16..20].copy_from_slice(&96u32.to_be_bytes());
    // A section, an interface with the default resolution of microseconds, and packets a microsecond apart.
    let block = |kind: u32, body: &[u8]| {
        let len = (12 + body.len().next_multiple_of(4)) as u32;
        let mut block = [kind.to_le_bytes(), len.to_le_bytes()].concat();
        block.extend_from_slice(body);
        block.resize(len as usize - 4, 0);
        block.extend_from_slice(&len.to_le_bytes());
        block
    };
    let mut ng =
        block(0x0a0d_0d0a, &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    ng.extend(block(1, &[1, 0, 0, 0, 0, 0, 4, 0]));
    for (number, (at, len)) in records(&whole).into_iter().enumerate() {
        let (frame, some) = (&whole[at + 16..at + 16 + len], len.min(96));
        short.extend_from_slice(&whole[at..at + 8]);
        short.extend_from_slice(&(some as u32).to_be_bytes());
        short.extend_from_slice(&(len as u32).to_be_bytes());
        short.extend_from_slice(&frame[..some]);
        // The second packet is missing, so that the report states a time.
        if number != 1 {
            let words = [0, 0, 1_000_000 + number as u32, len as u32, len as u32];
            let mut body: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
            body.extend_from_slice(frame);
            ng.extend(block(6, &body));
        }
    }
    let file = room.0.join("short.pcap");
    fs::write(&file, short).unwrap();
    let (good, said) = check(&file);
    assert!(good && said.contains("0 breaches") && !said.contains("left out"), "{said}");
    fs::write(&file, ng).unwrap();
    let (good, said) = check(&file);
    assert!(!good && said.starts_with("frame 2, 1000002.000 us"), "{said}");
}
