//! The file format of a stream: a header line, then a line for each event as it happens.

use crate::event::{Event, HEAD, Record};
use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Maximum size of a file in bytes. Further lines are not recorded, and the file says so.
pub const LIMIT: u64 = 256 << 20;
/// Maximum length of a line in bytes: the longest input and output of a command in hexadecimal, plus names.
const LONGEST: u64 = 80 << 20;

/// Writer of a stream file. Each line is written at once and completely, so the file is usable however the process
/// ends.
pub struct Recorder {
    begin: Instant,
    out: Mutex<Out>,
}

struct Out {
    file: File,
    limit: u64,
    written: u64,
    next: u64,
    /// No further output: the limit was reached, or a write failed.
    over: bool,
}

impl Recorder {
    /// Creates a file, replacing an existing one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path) -> Result<Arc<Self>, String> {
        Self::with_limit(path, LIMIT)
    }

    /// Like [`create`](Self::create), with another limit.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn with_limit(path: &Path, limit: u64) -> Result<Arc<Self>, String> {
        let why = |e| format!("cannot record to {}: {e}", path.display());
        let mut file = File::create(path).map_err(why)?;
        writeln!(file, "{HEAD}").map_err(why)?;
        let written = HEAD.len() as u64 + 1;
        let out = Out { file, limit, written, next: 0, over: false };
        Ok(Arc::new(Self { begin: Instant::now(), out: Mutex::new(out) }))
    }

    /// Returns the next position in the stream, and the time.
    pub(crate) fn place(&self) -> (u64, u64) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let place = out.next;
        out.next += 1;
        (place, u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Writes an event.
    pub(crate) fn put(&self, record: &Record) {
        let mut line = record.line();
        line.push('\n');
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if out.over {
            return;
        }
        if out.written + line.len() as u64 > out.limit {
            out.over = true;
            line = Record { event: Event::Full, ..record.clone() }.line() + "\n";
        }
        out.written += line.len() as u64;
        if let Err(error) = out.file.write_all(line.as_bytes()) {
            out.over = true;
            tracing::warn!(%error, "the recording ends here: its file cannot be written");
        }
    }
}

/// Reads a file. Omits a truncated last line, since the writer may have ended within it; the second value is true in
/// that case.
///
/// # Errors
/// The file cannot be read or has a wrong format: line number, expected and actual contents.
pub fn read(path: &Path) -> Result<(Vec<Record>, bool), String> {
    let named = |why: String| format!("{}: {why}", path.display());
    let file = File::open(path).map_err(|e| named(e.to_string()))?;
    let mut reader = BufReader::new(file);
    let (mut records, mut number, mut cut) = (Vec::new(), 0_u64, false);
    loop {
        let mut line = Vec::new();
        let len =
            reader.by_ref().take(LONGEST).read_until(b'\n', &mut line).map_err(|e| named(e.to_string()))?;
        if len == 0 {
            break;
        }
        number += 1;
        let whole = line.pop_if_end();
        let text = std::str::from_utf8(&line).unwrap_or("bytes that are no text");
        if number == 1 {
            if text != HEAD {
                let found: String = text.chars().take(60).collect();
                return Err(named(format!("line 1: expected a stream ({HEAD}), found {found:?}")));
            }
            continue;
        }
        match Record::parse(text) {
            Ok(record) => records.push(record),
            Err(_) if !whole && len < LONGEST as usize => cut = true,
            Err(why) => return Err(named(format!("line {number}: {why}"))),
        }
    }
    if number == 0 {
        return Err(named("expected a stream, found nothing".into()));
    }
    // A command's line is only written when it is answered.
    records.sort_by_key(|record| record.place);
    Ok((records, cut))
}

/// Removes a newline.
trait PopEnd {
    /// Returns true if there was one.
    fn pop_if_end(&mut self) -> bool;
}

impl PopEnd for Vec<u8> {
    fn pop_if_end(&mut self) -> bool {
        let whole = self.last() == Some(&b'\n');
        if whole {
            self.pop();
        }
        whole
    }
}
