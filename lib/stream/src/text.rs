//! Events as lines of text, with the names of `hwspec`.
//!
//! A line consists of the kind of event, `name=value` for each nonzero field, and for a command `->` and its answer.
//! Numbers are hexadecimal.

use crate::{
    event::{Event, Record, hex},
    normal::{Names, Treat, treat},
};
use hwspec::{
    cmd::{CmdIn, CmdOut, Opcode, Status, adapter::AccessRegisterIn},
    decode::{
        Path, RESERVED, Structure, Value, command,
        wqe::{self, Queue},
    },
    doorbell::{CqArm, EqDoorbell, SqDoorbell, UAR_SHIFT, UarRegister},
    init_segment::InitSegment,
    layout::{Field, Layout},
    wqe::CtrlSeg,
};
use std::fmt::Write;

/// Printed in place of an answer that is not in the file.
pub const UNANSWERED: &str = "unanswered";

/// Level of detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Everything, unmodified.
    Raw,
    /// Everything; values that differ between runs are replaced by their order or by `*`.
    Named,
    /// Only events that a driver of the same kind sends in every run: no doorbells, the first entry of lists, and of
    /// answers only new objects and refusals.
    Compact,
}

/// Prints the events of one function in order.
pub struct Printer {
    detail: Detail,
    names: Names,
}

impl Printer {
    /// Creates a printer with the given level of detail.
    pub fn new(detail: Detail) -> Self {
        Self { detail, names: Names::default() }
    }

    /// The line of an event, `None` if it is omitted.
    pub fn line(&mut self, record: &Record) -> Option<String> {
        match &record.event {
            Event::Write { offset, width, value } => self.write(*offset, *width, *value),
            Event::Command { input, output, delivery } => Some(self.command(input, output, *delivery)),
            Event::Request { queue, number, index, bytes } => {
                Some(self.request(*queue, *number, *index, bytes))
            }
            Event::Reset => Some("reset".into()),
            Event::Full => Some("full the-recording-ends-here".into()),
        }
    }

    fn compact(&self) -> bool {
        self.detail == Detail::Compact
    }

    /// Adds a field to `line`.
    fn field(&mut self, line: &mut String, path: &Path<'_>, value: Value<'_>) {
        let mut name = path.to_string();
        if self.compact() {
            if first_index(path).is_some_and(|i| i > 0) {
                return;
            }
            name = name.replace("[0]", "[]");
        }
        let _ = match (value, treat(path.name)) {
            (Value::Reserved { at, bits }, _) => write!(line, " {name}@{at:#x}:{bits:08x}=1"),
            (Value::Number(number), _) if self.detail == Detail::Raw => write!(line, " {name}={number:#x}"),
            (Value::Number(_), Treat::Object(_)) if self.compact() => write!(line, " {name}=#"),
            (Value::Number(number), Treat::Object(kind)) => {
                write!(line, " {name}={kind}#{}", self.names.place(kind, number))
            }
            (_, Treat::Varies) if self.detail != Detail::Raw => write!(line, " {name}=*"),
            (Value::Number(number), _) => write!(line, " {name}={number:#x}"),
            (Value::Bytes(bytes), _) => write!(line, " {name}={}", hex(bytes)),
        };
    }

    fn fields(&mut self, line: &mut String, table: &'static [Field], bytes: &[u8]) {
        let whole = Structure { name: "", at: 0, size: bytes.len(), count: None, fields: table };
        whole.walk(bytes, &mut |path, value| self.field(line, path, value));
    }

    fn write(&mut self, offset: u64, width: u8, value: u64) -> Option<String> {
        let bytes = value.to_be_bytes();
        let bytes = &bytes[8 - usize::from(width.min(8))..];
        let mut line = String::from("write");
        if offset < InitSegment::SIZE as u64 {
            let mut segment = InitSegment::zeroed();
            let from = offset as usize;
            if let Some(room) = segment.as_bytes_mut().get_mut(from..from + bytes.len()) {
                room.copy_from_slice(bytes);
            }
            // The doorbell of the command queue adds nothing to the commands themselves.
            let rings = segment.command_doorbell_vector() != 0;
            if rings && self.compact() {
                return None;
            }
            let empty = line.len();
            self.fields(&mut line, InitSegment::FIELDS, segment.as_bytes());
            if line.len() == empty {
                // Only zeros were written: name the register.
                let here = InitSegment::FIELDS.iter().find(|field| field.offset / 32 == from / 4);
                let name = here.map_or("reserved", |field| field.name);
                let varies = treat(name) == Treat::Varies && self.detail != Detail::Raw;
                let _ = write!(line, " {name}={}", if varies { "*" } else { "0x0" });
            }
            return Some(line);
        }
        if self.compact() {
            return None;
        }
        let _ = match UarRegister::at(offset as usize) {
            _ if offset >> UAR_SHIFT == 0 => write!(line, " offset={offset:#x} value={value:#x}"),
            UarRegister::CqArm if width == 8 => {
                self.fields(&mut line, CqArm::FIELDS, bytes);
                write!(line, " register=cq_arm")
            }
            UarRegister::EqArm | UarRegister::EqCi if width == 4 => {
                self.fields(&mut line, EqDoorbell::FIELDS, bytes);
                write!(line, " register=eq")
            }
            UarRegister::BlueFlame(0) if width == 8 => {
                self.fields(&mut line, SqDoorbell::FIELDS, bytes);
                write!(line, " register=send")
            }
            other => write!(line, " register={other:?} value={value:#x}"),
        };
        Some(line)
    }

    fn command(&mut self, input: &[u8], output: &[u8], delivery: Option<u8>) -> String {
        let header = CmdIn::read(input);
        let mut line = command_name(input);
        command::input(input).walk(input, &mut |path, value| {
            // These are already in the name.
            if path.to_string() != "opcode" && path.to_string() != "op_mod" {
                self.field(&mut line, path, value);
            }
        });
        let answer = CmdOut::read(output);
        let _ = match delivery {
            None => write!(line, " -> {UNANSWERED}"),
            Some(status) if status != 0 => write!(line, " -> delivery={status:#x}"),
            _ if answer.status() != Status::Ok => {
                write!(line, " -> {:?} syndrome={:#x}", answer.status(), answer.syndrome())
            }
            _ => {
                let mut found = String::new();
                // The values returned by a query are up to the device.
                let asks = self.compact() && is_query(header.opcode());
                command::output(input, output).walk(output, &mut |path, value| {
                    let object = matches!(treat(path.name), Treat::Object(_));
                    if !asks && (object || !self.compact()) {
                        self.field(&mut found, path, value);
                    }
                });
                if found.is_empty() { Ok(()) } else { write!(line, " ->{found}") }
            }
        };
        line
    }

    fn request(&mut self, queue: Queue, number: u32, index: u32, bytes: &[u8]) -> String {
        let mut line = match queue {
            Queue::Send(service) => {
                let opcode = CtrlSeg::read(bytes).opcode();
                format!("post:{}:{}", word(format!("{service:?}")), word(format!("{opcode:?}")))
            }
            Queue::Receive => "post:receive".into(),
            Queue::Shared => "post:shared".into(),
        };
        if self.detail == Detail::Raw {
            let _ = write!(line, " queue={number:#x} index={index:#x}");
        }
        wqe::walk(queue, bytes, &mut |path, value| {
            if path.to_string() != "ctrl.opcode" {
                self.field(&mut line, path, value);
            }
        });
        line
    }
}

/// The first index within a path.
fn first_index(path: &Path<'_>) -> Option<usize> {
    path.index.or_else(|| path.outer.and_then(first_index))
}

/// A name without blanks, also for unnamed values of an enumeration.
fn word(name: String) -> String {
    name.replace(' ', "")
}

fn is_query(opcode: Opcode) -> bool {
    word(format!("{opcode:?}")).starts_with("Query")
}

/// The command in capitals, with the selector of its variant.
fn command_name(input: &[u8]) -> String {
    let header = CmdIn::read(input);
    let mut name = String::new();
    for letter in word(format!("{:?}", header.opcode())).chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    if header.opcode() == Opcode::AccessReg {
        let id = AccessRegisterIn::read(input).register_id();
        let _ = match command::register(id) {
            Some((register, _)) => write!(name, "/{register}"),
            None => write!(name, "/{id:#x}"),
        };
    }
    if header.op_mod() != 0 {
        let _ = write!(name, "/{:#x}", header.op_mod());
    }
    name
}

/// True if a field name stands for bits outside all fields.
pub fn is_reserved(field: &str) -> bool {
    field.rsplit('.').next().is_some_and(|last| last.starts_with(RESERVED) && last.contains('@'))
}
