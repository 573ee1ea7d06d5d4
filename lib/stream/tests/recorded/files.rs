//! Files of streams: written files can be read, and any other contents are refused with one line.

use hwspec::{context::ServiceType, decode::wqe::Queue};
use ironverbs_stream::{
    event::{Event, HEAD, Record},
    file, lines,
    text::Detail,
};
use proptest::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// A file private to a test, removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(content: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("ironverbs-stream-{}-{n}", std::process::id()));
        fs::write(&path, content).expect("a scratch file");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn read(&self) -> Result<(Vec<Record>, bool), String> {
        file::read(&self.0)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn events() -> impl Strategy<Value = Event> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..200);
    let queue = prop_oneof![
        any::<u8>().prop_map(|service| Queue::Send(ServiceType::from_raw(service))),
        Just(Queue::Receive),
        Just(Queue::Shared),
    ];
    prop_oneof![
        (any::<u64>(), prop_oneof![Just(4), Just(8)], any::<u64>())
            .prop_map(|(offset, width, value)| Event::Write { offset, width, value }),
        (bytes(), bytes(), any::<Option<u8>>()).prop_map(|(input, output, delivery)| Event::Command {
            input,
            output,
            delivery
        }),
        (queue, any::<u32>(), any::<u32>(), bytes())
            .prop_map(|(queue, number, index, bytes)| Event::Request { queue, number, index, bytes }),
        Just(Event::Reset),
        Just(Event::Full),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn what_is_written_is_read_and_can_be_printed(events in prop::collection::vec(events(), 0..12), function in 0..3u8) {
        let records: Vec<Record> = (0..).zip(events).map(|(place, event)| {
            Record { place, nanoseconds: place * 7, function: function.min(place as u8), event }
        }).collect();
        let text: String = records.iter().map(|record| record.line() + "\n").collect();
        let file = Scratch::new(format!("{HEAD}\n{text}").as_bytes());
        prop_assert_eq!(file.read(), Ok((records.clone(), false)));
        for detail in [Detail::Raw, Detail::Named, Detail::Compact] {
            lines::collapsed(&lines::lines(&records, None, detail));
        }
        // The writer may have ended within its last line.
        if let Some(end) = text.trim_end().rfind('\n') {
            let cut = Scratch::new(format!("{HEAD}\n{}", &text[..end + 10]).as_bytes());
            prop_assert_eq!(cut.read(), Ok((records[..records.len() - 1].to_vec(), true)));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), headed in any::<bool>()) {
        let head = if headed { format!("{HEAD}\n") } else { String::new() };
        let file = Scratch::new(&[head.as_bytes(), &bytes].concat());
        let _ = file.read();
        let _ = lines::read(&file.0, None);
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let said = |content: &str| Scratch::new(content.as_bytes()).read().expect_err("a refusal");
    assert!(said("").ends_with("expected a stream, found nothing"));
    assert!(said("\u{7f}ELF\n").contains("line 1: expected a stream"));
    let line = |middle: &str| said(&format!("{HEAD}\n{middle}\n{{\"n\":1}}\n"));
    assert!(line("{").contains("line 2: expected an object of JSON"));
    assert!(
        line(r#"{"event":"write","n":0,"ns":0}"#).contains(r#"expected a number as "offset", found null"#)
    );
    assert!(
        line(r#"{"event":"dance"}"#)
            .contains(r#"expected write, command, request, reset or full, found "dance""#)
    );
    let odd = r#"{"n":0,"ns":0,"function":0,"event":"command","delivery":0,"input":"010","output":""}"#;
    assert!(line(odd).contains(r#"expected hexadecimal bytes as "input""#));
    let far = r#"{"n":0,"ns":0,"function":256,"event":"reset"}"#;
    assert!(line(far).contains(r#"expected at most 255 as "function", found 256"#));
    let nowhere = file::read(Path::new("/nowhere/at/all")).expect_err("no file");
    assert!(nowhere.starts_with("/nowhere/at/all: "), "{nowhere}");
    let refused = file::Recorder::create(Path::new("/nowhere/at/all")).err().expect("no file");
    assert!(refused.starts_with("cannot record to /nowhere/at/all: "), "{refused}");
}
