//! Events, and their format as lines of JSON.

use hwspec::{context::ServiceType, decode::wqe::Queue};
use serde_json::{Value, json};

/// An event of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A register of BAR0 was written.
    Write {
        /// Offset in BAR0.
        offset: u64,
        /// Width in bytes: 4 or 8.
        width: u8,
        /// The value, in the register's byte order.
        value: u64,
    },
    /// A command was sent, and possibly answered.
    Command {
        /// Complete input, including mailboxes.
        input: Vec<u8>,
        /// Complete output. Empty if the answer was not seen.
        output: Vec<u8>,
        /// Delivery status. `None` if the answer was not seen.
        delivery: Option<u8>,
    },
    /// A work request was posted.
    Request {
        /// Kind of its queue.
        queue: Queue,
        /// Number of the queue.
        number: u32,
        /// Its index in the queue.
        index: u32,
        /// The request as in the ring.
        bytes: Vec<u8>,
    },
    /// The function was reset.
    Reset,
    /// The file reached its limit: later events were not recorded.
    Full,
}

/// An event with its time and position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Position in the stream. A command's position is that of its sending; its line is written when it is
    /// answered.
    pub place: u64,
    /// Nanoseconds since the start of the recording.
    pub nanoseconds: u64,
    /// The function: 0 is the PF.
    pub function: u8,
    /// The event.
    pub event: Event,
}

/// The first line of every file.
pub const HEAD: &str = r#"{"stream":"ironverbs","version":1}"#;

impl Record {
    /// The line, without the newline.
    pub fn line(&self) -> String {
        let mut line = json!({ "n": self.place, "ns": self.nanoseconds, "function": self.function });
        let mut set = |name: &str, value: Value| line[name] = value;
        match &self.event {
            Event::Write { offset, width, value } => {
                set("event", "write".into());
                set("offset", (*offset).into());
                set("width", (*width).into());
                set("value", (*value).into());
            }
            Event::Command { input, output, delivery } => {
                set("event", "command".into());
                set("delivery", (*delivery).into());
                set("input", hex(input).into());
                set("output", hex(output).into());
            }
            Event::Request { queue, number, index, bytes } => {
                set("event", "request".into());
                let (name, service) = match queue {
                    Queue::Send(service) => ("send", Some(service.raw())),
                    Queue::Receive => ("receive", None),
                    Queue::Shared => ("shared", None),
                };
                set("queue", name.into());
                if let Some(service) = service {
                    set("service", service.into());
                }
                set("number", (*number).into());
                set("index", (*index).into());
                set("bytes", hex(bytes).into());
            }
            Event::Reset => set("event", "reset".into()),
            Event::Full => set("event", "full".into()),
        }
        line.to_string()
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The expected part that is missing.
    pub fn parse(line: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(line).map_err(|e| format!("expected an object of JSON ({e})"))?;
        let number = |name: &str| {
            value[name]
                .as_u64()
                .ok_or_else(|| format!("expected a number as {name:?}, found {}", value[name]))
        };
        let small = |name: &str, most: u64| {
            number(name)?
                .try_into()
                .ok()
                .filter(|n: &u32| u64::from(*n) <= most)
                .ok_or_else(|| format!("expected at most {most} as {name:?}, found {}", value[name]))
        };
        let bytes = |name: &str| {
            unhex(value[name].as_str().unwrap_or("?"))
                .ok_or_else(|| format!("expected hexadecimal bytes as {name:?}"))
        };
        let event = match value["event"].as_str() {
            Some("write") => Event::Write {
                offset: number("offset")?,
                width: small("width", 8)? as u8,
                value: number("value")?,
            },
            Some("command") => Event::Command {
                input: bytes("input")?,
                output: bytes("output")?,
                delivery: match value["delivery"].is_null() {
                    true => None,
                    false => Some(small("delivery", 0xff)? as u8),
                },
            },
            Some("request") => Event::Request {
                queue: match value["queue"].as_str() {
                    Some("send") => Queue::Send(ServiceType::from_raw(small("service", 0xff)? as u8)),
                    Some("receive") => Queue::Receive,
                    Some("shared") => Queue::Shared,
                    _ => {
                        return Err(format!(
                            "expected send, receive or shared as \"queue\", found {}",
                            value["queue"]
                        ));
                    }
                },
                number: small("number", u64::from(u32::MAX))?,
                index: small("index", u64::from(u32::MAX))?,
                bytes: bytes("bytes")?,
            },
            Some("reset") => Event::Reset,
            Some("full") => Event::Full,
            _ => {
                return Err(format!(
                    "expected write, command, request, reset or full, found {}",
                    value["event"]
                ));
            }
        };
        Ok(Self {
            place: number("n")?,
            nanoseconds: number("ns")?,
            function: small("function", 0xff)? as u8,
            event,
        })
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('?');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}
