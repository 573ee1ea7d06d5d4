//! Streams as lists of lines, and the text file format with repetitions collapsed.

use crate::{
    event::Record,
    file,
    text::{Detail, Printer},
};
use std::{collections::BTreeMap, fs, path::Path};

/// First line of a text file.
pub const HEAD: &str = "# ironverbs stream, normalised";
/// Longest group of lines that is checked for repetition.
const GROUP: usize = 24;

/// The lines of a stream's events, for one function or for all. With several functions each line includes the
/// number.
pub fn lines(records: &[Record], function: Option<u8>, detail: Detail) -> Vec<String> {
    let mut printers: BTreeMap<u8, Printer> = BTreeMap::new();
    let chosen = |record: &&Record| function.is_none_or(|one| one == record.function);
    let mut first = records.iter().filter(chosen).map(|record| record.function);
    let one = first.next();
    let several = first.any(|other| Some(other) != one);
    let mut all = Vec::new();
    for record in records.iter().filter(chosen) {
        let printer = printers.entry(record.function).or_insert_with(|| Printer::new(detail));
        if let Some(line) = printer.line(record) {
            all.push(if several { format!("f{} {line}", record.function) } else { line });
        }
    }
    all
}

/// Collapses repetitions: `x3 line`, and for groups `x3 {`, the lines and `}`.
pub fn collapsed(lines: &[String]) -> Vec<String> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let times = |len: usize| {
            let group = &lines[at..at + len];
            lines[at..].chunks_exact(len).take_while(|chunk| *chunk == group).count()
        };
        let most = GROUP.min((lines.len() - at) / 2);
        let best = (1..=most).map(|len| (times(len), len)).filter(|(times, _)| *times > 1);
        match best.max_by_key(|(times, len)| ((times - 1) * len, usize::MAX - len)) {
            Some((times, 1)) => {
                out.push(format!("x{times} {}", lines[at]));
                at += times;
            }
            Some((times, len)) => {
                out.push(format!("x{times} {{"));
                out.extend(collapsed(&lines[at..at + len]));
                out.push("}".into());
                at += times * len;
            }
            None => {
                out.push(lines[at].clone());
                at += 1;
            }
        }
    }
    out
}

/// Reads the lines of a file: of a recorded stream in compact form, or of a text file written by
/// [`collapsed`], with each repetition as one line.
///
/// # Errors
/// The file cannot be read or is neither.
pub fn read(path: &Path, function: Option<u8>) -> Result<Vec<String>, String> {
    // A recorded stream may be large, a text file is not.
    let begin = fs::File::open(path).and_then(|file| {
        let mut begin = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(file, HEAD.len() as u64), &mut begin)?;
        Ok(begin)
    });
    if begin.map_err(|e| format!("{}: {e}", path.display()))? != HEAD.as_bytes() {
        return Ok(lines(&file::read(path)?.0, function, Detail::Compact));
    }
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let plain = |line: &str| -> Option<String> {
        let line = match line.strip_prefix('x').and_then(|rest| rest.split_once(' ')) {
            Some((times, rest)) if times.parse::<u64>().is_ok() => rest,
            _ => line,
        };
        (!matches!(line, "" | "{" | "}") && !line.starts_with('#')).then(|| line.to_string())
    };
    Ok(text.lines().filter_map(plain).collect())
}
