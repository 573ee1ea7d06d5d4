//! `ironverbs sim` from a user's point of view: figures, further output, and files for other programs.

use std::{
    fs,
    process::{Command, Output},
};
use testkit::Scratch;

fn sim(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ironverbs")).arg("sim").args(words.split_whitespace()).output().unwrap()
}

fn said(words: &str) -> String {
    let out = sim(words);
    assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn refused(words: &str) -> String {
    let out = sim(words);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.lines().count() == 1, "{words}: {said}");
    said
}

#[test]
fn the_parts_of_a_waterfall_add_up_to_what_the_table_says() {
    for (words, halves) in
        [("read_lat -s 2 -n 9", 1.0), ("send_lat -s 4096 -n 9", 2.0), ("write_lat -s 70000 -n 9", 2.0)]
    {
        let (mut parts, mut sum, mut end) = (0.0, 0.0, 0.0);
        let said = said(&format!("{words} --waterfall 5"));
        for line in said.lines().skip_while(|line| !line.starts_with("message 5")).skip(2) {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["sum", whole, ..] => sum = whole.parse().unwrap(),
                [from, takes, ..] => {
                    let (from, takes): (f64, f64) = (from.parse().unwrap(), takes.parse().unwrap());
                    assert!((from - end).abs() < 5e-4, "{line}: the one before ends at {end}");
                    end = from + takes;
                    parts += takes;
                }
                _ => panic!("{line}"),
            }
        }
        assert!((parts - sum).abs() < 5e-4 && sum > 0.0, "{parts} and {sum}: {said}");
        let row: Vec<f64> =
            said.lines().nth(1).unwrap().split_whitespace().map(|w| w.parse().unwrap()).collect();
        let (least, most) = (row[2] - 0.005, row[3] + 0.005);
        assert!((least..=most).contains(&(sum / halves / 1e3)), "{said}");
    }
}

#[test]
fn what_cannot_be_shown_is_said_in_a_line() {
    assert!(
        refused("send_bw --waterfall 1").contains("--waterfall: expected a program that measures latency")
    );
    assert!(refused("send_lat -n 10 --waterfall 11").ends_with("--waterfall: expected 1 to 10, found 11\n"));
    assert!(refused("send_lat -a --counters").contains("--all"));
    assert!(
        refused("send_lat --pcap /no/such/folder/a.pcap").contains("cannot write /no/such/folder/a.pcap: ")
    );
    assert!(refused("send_lat --trace /no/such/folder/a").contains("cannot write /no/such/folder/a: "));
    assert!(refused("report /no/such/folder/a.html --profile direct-x8").contains("cannot write /no/such"));
    // A full disk.
    assert!(refused("send_lat --pcap /dev/full").contains("cannot write /dev/full: "));
}

#[test]
fn counters_are_those_of_what_was_sent() {
    let said = said("write_bw -s 8192 -n 1000 --counters");
    let line = |begin: &str| {
        said.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{begin}: {said}"))
    };
    assert!(line("SXP   packets").split_whitespace().nth(2) == Some("2000"), "{said}");
    assert!(line("client: ").contains("tx_packets 2000"), "{said}");
    assert!(
        line("server: ").contains("rx_packets 2000") && line("server: ").contains("rx_write_requests 1000"),
        "{said}"
    );
    // In the units of the kernel, which counts data in words of four bytes.
    assert!(line("  below /sys, in counters: ").contains("port_xmit_data 2081000,"), "{said}");
    assert!(line("  below /sys, in hw_counters: ").ends_with(" rx_write_requests 1000"), "{said}");
}

#[test]
fn the_same_files_are_written_at_every_run() {
    for option in ["--trace", "--pcap"] {
        let files = [1, 2].map(|n| Scratch::named(&format!("{n}{option}")));
        let bytes = files.each_ref().map(|file| {
            said(&format!("send_bw -s 20000 -n 50 {option} {}", file.0.display()));
            fs::read(&file.0).unwrap()
        });
        assert!(bytes[0] == bytes[1] && bytes[0].len() > 10_000, "{option}: {} bytes", bytes[0].len());
    }
}

#[test]
fn wireshark_reads_the_frames_with_their_check_sums() {
    let file = Scratch::named("frames.pcap");
    said(&format!("write_bw -s 10000 -n 20 --pcap {}", file.0.display()));
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file.0).args(["-T", "fields", "-e", "infiniband.bth.opcode", "-e", "frame.len"]);
    let Ok(out) = tshark.output() else { return println!("skipped: there is no tshark") };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    // First, middle and last packets of WRITEs, and acknowledgements.
    for (opcode, bytes, count) in [("6", 4170, 20), ("7", 4154, 20), ("8", 10_000 - 8192 + 58, 20)] {
        let found =
            text.lines().filter(|line| line.split_whitespace().eq([opcode, &bytes.to_string()])).count();
        assert_eq!(found, count, "{opcode} of {bytes} bytes: {text}");
    }
    assert!(text.lines().any(|line| line.starts_with("17\t")), "{text}");
}

#[test]
fn a_plan_of_faults_says_what_followed() {
    let (plan, timeline) = (Scratch::named("plan.toml"), Scratch::named("timeline.json"));
    fs::write(&plan.0, "[[fault]]\ndo = \"drop\"\nopcode = \"RcWriteMiddle\"\nnth = 20\n").unwrap();
    let words = format!("write_bw -n 50 --fault {}", plan.0.display());
    let text = said(&format!("{words} --timeline {}", timeline.0.display()));
    let line = text.lines().find(|line| line.contains("RcWriteMiddle")).unwrap();
    assert!(
        line.contains("drop")
            && line.contains("NAK (sequence) after 0.5")
            && line.contains("sent again after"),
        "{text}"
    );
    let whole: serde_json::Value = serde_json::from_str(&fs::read_to_string(&timeline.0).unwrap()).unwrap();
    assert_eq!(
        (&whole["faults"][0]["frames"], &whole["followed"][0]["nak"]),
        (&1.into(), &"NAK (sequence)".into())
    );
    assert!(whole["frames"].as_array().unwrap().len() > 800);
    // A connection that breaks ends the run, and the consequences of the fault are reported nevertheless.
    fs::write(&plan.0, "[[fault]]\ndo = \"drop\"\nfrom = 1\n").unwrap();
    let out = sim(&words);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stdout).contains("drop"));
    assert!(String::from_utf8_lossy(&out.stderr).contains("did not complete: the connection is in error"));
    fs::write(&plan.0, "[[fault]]\ndo = \"drop\"\nqp = 7\n").unwrap();
    let out = sim(&words);
    let line = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        line.ends_with(":1: expected a frame as this fault says, found none in the whole run\n"),
        "{line}"
    );
    assert!(refused("write_bw --fault /no/such/file").contains("/no/such/file: No such file"));
    // All frames, in a run without faults.
    let text = said(&format!("write_bw -n 50 --timeline {}", timeline.0.display()));
    assert_eq!(text.lines().count(), 2, "{text}");
    let whole: serde_json::Value = serde_json::from_str(&fs::read_to_string(&timeline.0).unwrap()).unwrap();
    assert!(
        whole["frames"].as_array().unwrap().len() > 800 && whole["faults"].as_array().unwrap().is_empty()
    );
}

#[test]
fn sizes_are_taken_as_people_write_them_and_none_of_them_is_refused() {
    assert_eq!(said("write_bw -s 64K -n 50"), said("write_bw -s 65536 -n 50"));
    assert_eq!(said("write_bw -s 1MiB -n 50"), said("write_bw -s 1048576 -n 50"));
    let line = refused("write_bw -s 64Q");
    assert!(line.contains("expected bytes, such as 65536, 64K or 1M"), "{line}");
    let line = refused("write_bw -s 8G");
    assert!(line.contains("message size: expected 1 to 8388608"), "{line}");
    // perftest puts up to 236 bytes into the work request, which then takes several WQE slots.
    for size in [220, 221, 236, 237] {
        said(&format!("send_lat -s {size} -n 50"));
    }
}

/// The numbers of the line that contains `begin`.
fn numbers(said: &str, begin: &str) -> Vec<f64> {
    let line = said.lines().find(|line| line.contains(begin)).unwrap_or_else(|| panic!("{begin}: {said}"));
    line.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_network_says_what_pauses_and_marks_do() {
    let queue = |words: &str| {
        let said = said(&format!("network --size 4000000 {words}"));
        assert!(said.contains("8 flows between 9 hosts over 1 switches: 8 done, 0 failed"), "{said}");
        (numbers(&said, "Longest queue"), numbers(&said, "pauses, "))
    };
    let (nothing, _) = queue("--buffer 4000000");
    assert!(nothing[1] > 0.0, "packets dropped: {nothing:?}");
    let (paused, pauses) = queue("--buffer 4000000 --pfc");
    assert!(paused[1] == 0.0 && pauses[0] > 8.0, "{paused:?} {pauses:?}");
    let (marked, _) = queue("--buffer 4000000 --pfc --dcqcn");
    assert!(marked[2] > 0.0 && marked[3] > 0.0, "{marked:?}");
}

#[test]
fn files_of_other_simulators_go_in_and_come_out() {
    let (topology, flows, matrix) =
        (Scratch::named("topology.txt"), Scratch::named("flow.txt"), Scratch::named("a.cm"));
    let (fct, pauses, qlen, json, csv) = (
        Scratch::named("fct.txt"),
        Scratch::named("pfc.txt"),
        Scratch::named("qlen.txt"),
        Scratch::named("out.json"),
        Scratch::named("out.csv"),
    );
    fs::write(&topology.0, "4 1 3\n3\n0 3 100Gbps 1us 0\n1 3 100Gbps 1us 0\n2 3 100Gbps 1us 0\n").unwrap();
    fs::write(&flows.0, "2\n0 2 3 100 2000000 2\n1 2 3 100 2000000 2\n").unwrap();
    fs::write(&matrix.0, "Nodes 3\nConnections 1\n0->2 start 0 size 5000\n").unwrap();
    said(&format!(
        "network --topology {} --flows {} --pfc --buffer 1000000 --fct {} --pauses {} --qlen {} --json {} --csv {}",
        topology.0.display(),
        flows.0.display(),
        fct.0.display(),
        pauses.0.display(),
        qlen.0.display(),
        json.0.display(),
        csv.0.display()
    ));
    let text = |file: &Scratch| fs::read_to_string(&file.0).unwrap();
    let lines: Vec<_> = text(&fct).lines().map(str::to_owned).collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("0b00") && lines[0].contains(" 2000000 2000000000 "),
        "{lines:?}"
    );
    assert!(text(&pauses).lines().count() > 2 && text(&qlen).starts_with("time: "));
    let whole: serde_json::Value = serde_json::from_str(&text(&json)).unwrap();
    assert_eq!(whole["flows"].as_array().unwrap().len(), 2);
    let columns: Vec<_> = text(&csv).lines().map(|line| line.split(',').count()).collect();
    assert!(columns.len() > 10 && columns.iter().all(|count| *count == 1 + 3 + 3), "{columns:?}");
    // Two idle seconds pass before the first flow begins.
    let later = said(&format!("network --topology {} --flows {}", topology.0.display(), flows.0.display()));
    assert!(numbers(&later, "of payload in all")[0] > 50.0, "{later}");
    let said = said(&format!("network --topology {} --matrix {}", topology.0.display(), matrix.0.display()));
    assert!(said.contains("1 flows between 3 hosts over 1 switches: 1 done"), "{said}");
    fs::write(&topology.0, "4 1 2\n3\n0 3 100Gbps 1us 0\n1 3 100Gbps 1us 0\n").unwrap();
    let line = refused(&format!("network --topology {}", topology.0.display()));
    assert_eq!(line.matches("expected").count(), 1, "{line}");
    fs::write(&topology.0, "4 1 3\n3\n0 3 100 1us 0\n").unwrap();
    let line = refused(&format!("network --topology {}", topology.0.display()));
    assert!(line.contains("topology.txt:3: expected a link's rate, as 100Gbps, found 100"), "{line}");
}

#[test]
fn what_a_network_cannot_be_is_said_in_a_line() {
    for (words, expected) in [
        ("--hosts 1", "expected 2 to 128 hosts, found 1"),
        ("--hosts 129", "expected 2 to 128 hosts, found 129"),
        ("--racks 2x4", "--racks: expected three numbers, as 4x8x2, found 2x4"),
        ("--racks 2x4x0", "expected all hosts to be joined, found no way from host 0 to host 4"),
        ("--rate 0", "--rate: expected Gb/s, 0.001 to 1000000, found 0"),
        ("--mtu 1500", "MTU: expected 256, 512, 1024, 2048 or 4096, found 1500"),
        ("--buffer 100", "a switch's buffer: expected"),
        ("--size 0", "flow 0: expected 1 byte to 2^40, found 0"),
        ("--sample 0", "--sample: expected 1 to 1000000 us, found 0"),
        ("--time 0", "--time: expected milliseconds"),
        ("--flows /no/such/file", "/no/such/file: No such file or directory"),
        ("--fct /no/such/folder/fct.txt", "cannot write /no/such/folder/fct.txt: "),
        ("--report /no/such/folder/a.html", "cannot write /no/such/folder/a.html: "),
    ] {
        let said = refused(
            &format!("network --size 1000 {words}")
                .replace("--size 1000 --size", "--size")
                .replace("--size 1000 --flows", "--flows"),
        );
        assert!(said.contains(expected), "{words}: {said}");
    }
}

#[test]
fn the_page_of_a_network_has_three_pictures_for_each_of_four_ways() {
    let file = Scratch::named("network.html");
    said(&format!("network --time 2 --report {}", file.0.display()));
    let page = fs::read_to_string(&file.0).unwrap();
    assert_eq!(page.matches("<svg").count(), 12);
    assert!(page.ends_with("</html>\n") && page.contains("PFC and DCQCN"), "{}", page.len());
    assert!(!page.contains("src=") && !page.contains("href="), "something is fetched");
}

/// Read by protoc with Perfetto's own field names.
#[test]
fn protoc_reads_a_trace_whose_slices_end_and_do_not_overlap() {
    let (file, proto) = (Scratch::named("trace"), Scratch::named("trace.proto"));
    said(&format!("write_bw -s 20000 -n 40 --trace {}", file.0.display()));
    fs::write(&proto.0, PROTO).unwrap();
    let mut protoc = Command::new("protoc");
    protoc.arg("-I").arg(proto.0.parent().unwrap()).arg("--decode=Trace").arg(&proto.0);
    let Ok(out) = protoc.stdin(fs::File::open(&file.0).unwrap()).output() else {
        return println!("skipped: there is no protoc");
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut open = std::collections::BTreeMap::new();
    let (mut kind, mut slices) = ("", 0);
    for line in text.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("type: ") {
            kind = found;
        }
        if let Some(track) = line.strip_prefix("track_uuid: ") {
            let open = open.entry(track).or_insert(0);
            match kind {
                "TYPE_SLICE_BEGIN" => *open += 1,
                "TYPE_SLICE_END" => *open -= 1,
                other => panic!("{other}"),
            }
            assert!((0..=1).contains(open), "slices of track {track}");
            slices += 1;
        }
    }
    assert!(slices > 1000 && open.values().all(|open| *open == 0), "{slices}: {open:?}");
    assert!(
        ["\"client\"", "\"server\"", "\"SXP\"", "\"PXDP\""]
            .iter()
            .all(|name| text.contains(&format!("name: {name}")))
    );
}

const PROTO: &str = r#"syntax = "proto2";
message TrackDescriptor { optional uint64 uuid = 1; optional string name = 2; optional uint64 parent_uuid = 5; optional int32 child_ordering = 11; optional int32 sibling_order_rank = 12; }
message TrackEvent {
  enum Type { TYPE_UNSPECIFIED = 0; TYPE_SLICE_BEGIN = 1; TYPE_SLICE_END = 2; }
  optional Type type = 9; optional uint64 track_uuid = 11; optional string name = 23; repeated fixed64 flow_ids = 47;
}
message TracePacket { optional uint64 timestamp = 8; optional uint32 trusted_packet_sequence_id = 10; optional TrackEvent track_event = 11; optional TrackDescriptor track_descriptor = 60; }
message Trace { repeated TracePacket packet = 1; }
"#;

#[test]
fn the_page_has_its_pictures_and_needs_no_network() {
    let file = Scratch::named("page.html");
    said(&format!("report {} --profile direct-x8", file.0.display()));
    let page = fs::read_to_string(&file.0).unwrap();
    assert_eq!(page.matches("<svg").count(), 7, "two curves and five bars");
    assert!(page.ends_with("</html>\n") && page.contains("WRITE bandwidth 1 MiB"), "{}", page.len());
    assert!(!page.contains("src=") && !page.contains("href="), "something is fetched");
}
