//! Decodes bytes exchanged between driver and device, with the field names of the data sheet.
//!
//! [`command`] and [`wqe`] determine the structures in a command or a work request; [`Structure::walk`] reports every
//! nonzero field, and every set bit outside all fields. Nothing here allocates, and any bytes can be decoded.

pub mod command;
pub mod wqe;

use crate::layout::Field;
use core::fmt;

/// One structure, or a list of equal ones, within a byte string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Structure {
    /// Its name within the whole, empty for the head.
    pub name: &'static str,
    /// Offset of its first byte.
    pub at: usize,
    /// Size of one structure in bytes.
    pub size: usize,
    /// Number of structures, for a list.
    pub count: Option<usize>,
    /// The rows of its table; none for unstructured bytes.
    pub fields: &'static [Field],
}

/// Path to a field: the names of the enclosing structures, outermost first.
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    /// Path of the enclosing structure.
    pub outer: Option<&'a Path<'a>>,
    /// The field's own name.
    pub name: &'static str,
    /// Index, for an element of a list.
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
    /// A longer field.
    Bytes(&'a [u8]),
    /// Bits of a dword outside all fields.
    Reserved {
        /// Offset of the dword from the start of the whole.
        at: usize,
        /// The set bits.
        bits: u32,
    },
}

/// The name shown for bits outside all fields.
pub const RESERVED: &str = "reserved";

impl Structure {
    /// A single structure.
    pub(crate) const fn one(name: &'static str, at: usize, size: usize, fields: &'static [Field]) -> Self {
        Self { name, at, size, count: None, fields }
    }

    /// A list that ends at the end of the bytes, or after `count`.
    pub(crate) const fn list(
        name: &'static str,
        at: usize,
        size: usize,
        count: usize,
        fields: &'static [Field],
    ) -> Self {
        Self { name, at, size, count: Some(count), fields }
    }

    /// Reports to `found` every nonzero field of `whole`, in the order of the table, and every reserved bit that is
    /// set. Skips fields beyond the end of `whole`.
    pub fn walk(&self, whole: &[u8], found: &mut dyn FnMut(&Path<'_>, Value<'_>)) {
        let rest = whole.get(self.at..).unwrap_or_default();
        for (i, bytes) in rest.chunks(self.size.max(1)).take(self.count.unwrap_or(1)).enumerate() {
            let path = Path { outer: None, name: self.name, index: self.count.map(|_| i) };
            fields(&path, self.fields, bytes, self.at + i * self.size, found);
        }
    }
}

/// The value of `bits` bits at bit `offset`; bits beyond the end read as zero.
fn number(bytes: &[u8], offset: usize, bits: usize) -> u64 {
    (offset..offset + bits).fold(0, |value, bit| {
        let byte = bytes.get(bit / 8).copied().unwrap_or(0);
        value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
    })
}

/// [`Structure::walk`] for one structure with its first byte at offset `at` of the whole.
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
