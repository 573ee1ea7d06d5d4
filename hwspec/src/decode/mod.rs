//! Bytes that passed between driver and device, read with the names of the data sheet.
//!
//! [`command`] and [`wqe`] say which structures lie in a command or a work request; [`Structure::walk`] names every field that
//! is not zero, and every set bit that no field owns. Nothing here allocates, and any bytes can be read.

pub mod command;
pub mod wqe;

use crate::layout::Field;
use core::fmt;

/// One structure, or a list of equal ones, within a string of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Structure {
    /// Its name within the whole; empty for the head.
    pub name: &'static str,
    /// Its first byte.
    pub at: usize,
    /// Bytes of one.
    pub size: usize,
    /// How many there are, if it is a list.
    pub count: Option<usize>,
    /// The rows of its table; none means bytes without structure.
    pub fields: &'static [Field],
}

/// Where a field is: the names of the structures around it, outermost first.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// The path of the structure around it.
    pub outer: Option<&'a Path<'a>>,
    /// The field's own name.
    pub name: &'static str,
    /// Which one of a list.
    pub index: Option<usize>,
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(outer) = self.outer.filter(|outer| !outer.name.is_empty()) {
            write!(f, "{outer}.")?;
        }
        f.write_str(self.name)?;
        self.index.map_or(Ok(()), |i| write!(f, "[{i}]"))
    }
}

/// The value of a field. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A field of at most 64 bits.
    Number(u64),
    /// A longer one.
    Bytes(&'a [u8]),
    /// Bits of a dword that no field owns.
    Reserved {
        /// First byte of the dword, from the start of the whole.
        at: usize,
        /// The bits that are set.
        bits: u32,
    },
}

/// The name under which bits that no field owns are shown.
pub const RESERVED: &str = "reserved";

impl Structure {
    /// A single structure.
    pub(crate) const fn one(name: &'static str, at: usize, size: usize, fields: &'static [Field]) -> Self {
        Self { name, at, size, count: None, fields }
    }

    /// A list that ends where the bytes end, or after `count`.
    pub(crate) const fn list(
        name: &'static str,
        at: usize,
        size: usize,
        count: usize,
        fields: &'static [Field],
    ) -> Self {
        Self { name, at, size, count: Some(count), fields }
    }

    /// Tells `found` of every field of `whole` that is not zero, in the order of the table, and of every reserved bit that is
    /// set. Fields behind the end of `whole` are not there.
    pub fn walk(&self, whole: &[u8], found: &mut dyn FnMut(&Path<'_>, Value<'_>)) {
        let rest = whole.get(self.at..).unwrap_or_default();
        for (i, bytes) in rest.chunks(self.size.max(1)).take(self.count.unwrap_or(1)).enumerate() {
            let path = Path { outer: None, name: self.name, index: self.count.map(|_| i) };
            fields(&path, self.fields, bytes, self.at + i * self.size, found);
        }
    }
}

/// The value of `bits` bits from bit `offset` on; what lies behind the end reads as zero.
fn number(bytes: &[u8], offset: usize, bits: usize) -> u64 {
    (offset..offset + bits).fold(0, |value, bit| {
        let byte = bytes.get(bit / 8).copied().unwrap_or(0);
        value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
    })
}

/// [`Structure::walk`] for one structure, whose first byte is `at` of the whole.
fn fields(
    outer: &Path<'_>,
    table: &'static [Field],
    bytes: &[u8],
    at: usize,
    found: &mut dyn FnMut(&Path<'_>, Value<'_>),
) {
    if table.is_empty() {
        if bytes.iter().any(|byte| *byte != 0) {
            found(outer, Value::Bytes(bytes));
        }
        return;
    }
    for field in table {
        let path = Path { outer: Some(outer), name: field.name, index: None };
        let (first, last) = (field.offset / 8, (field.offset + field.width).div_ceil(8));
        let own = bytes.get(first..last.min(bytes.len())).unwrap_or_default();
        if !field.inner.is_empty() {
            fields(&path, field.inner, own, at + first, found);
        } else if field.width <= 64 {
            match number(bytes, field.offset, field.width) {
                0 => {}
                value => found(&path, Value::Number(value)),
            }
        } else if own.iter().any(|byte| *byte != 0) {
            found(&path, Value::Bytes(own));
        }
    }
    for (i, dword) in bytes.chunks(4).enumerate() {
        let set = number(dword, 0, 32) as u32;
        if set == 0 {
            continue;
        }
        let (first, mut bits) = (i * 32, set);
        for field in table.iter().filter(|f| f.offset < first + 32 && f.offset + f.width > first) {
            let (from, to) =
                (field.offset.max(first) - first, (field.offset + field.width).min(first + 32) - first);
            let below = if to == 32 { 0 } else { u32::MAX >> to };
            bits &= !(u32::MAX >> from & !below);
        }
        if bits != 0 {
            let path = Path { outer: Some(outer), name: RESERVED, index: None };
            found(&path, Value::Reserved { at: at + i * 4, bits });
        }
    }
}
