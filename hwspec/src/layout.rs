//! `hw_layout!`: hardware structures in the notation of the data sheet.
//!
//! One line per field: byte offset of its dword, bit range in that dword, name, type. Memory is big-endian. The macro
//! generates a newtype over `[u8; SIZE]` with getters (`x.state()`), a chained writer (`x.set().state(..).pd(..)`), a
//! constructor that takes such a chain (`X::with(|s| s.state(..).pd(..))`), `Debug`, and `FIELDS`: the table itself, as
//! data. A field that overlaps another, extends past the end, or is wider than its type does not compile.

/// One row of a layout table, in bits from the start of the structure, most significant first (the numbering of
/// `mlx5_ifc.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name as spelled in the data sheet.
    pub name: &'static str,
    /// First bit.
    pub offset: usize,
    /// Number of bits.
    pub width: usize,
    /// The rows of the field's own structure; none for a number or bytes.
    pub inner: &'static [Field],
}

/// A type that accepts any pattern of `WIDTH` bits.
pub trait Bits: Copy {
    /// Number of bits.
    const WIDTH: usize;
    /// Converts the low `WIDTH` bits; the others are zero.
    fn from_bits(raw: u64) -> Self;
    /// The bits, right-aligned.
    fn into_bits(self) -> u64;
}

/// A type that accepts any string of `SIZE` bytes.
pub trait Layout: Copy + 'static {
    /// Number of bytes.
    const SIZE: usize;
    /// The rows of its table; none for unstructured bytes.
    const FIELDS: &'static [Field] = &[];
    /// For tests: one function per row of `FIELDS`, which sets all bits of the field through its writer.
    #[doc(hidden)]
    const FILL: &'static [fn(&mut Self)] = &[];
    /// Offset of the first byte with a reserved bit set; unstructured bytes have none.
    fn reserved_set(&self) -> Option<usize> {
        None
    }
    /// The bytes, in memory order.
    fn bytes(&self) -> &[u8];
    /// Reads the first `SIZE` bytes of `bytes`; a short slice is zero-padded.
    fn read(bytes: &[u8]) -> Self;
}

impl<const N: usize> Layout for [u8; N] {
    const SIZE: usize = N;
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self
    }
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        prefix(bytes)
    }
}

impl Bits for bool {
    const WIDTH: usize = 1;
    #[inline(always)]
    fn from_bits(raw: u64) -> Self {
        raw & 1 != 0
    }
    #[inline(always)]
    fn into_bits(self) -> u64 {
        self as u64
    }
}

macro_rules! impl_bits { ($($t:ty)*) => { $(
    impl Bits for $t {
        const WIDTH: usize = <$t>::BITS as usize;
        #[inline(always)]
        fn from_bits(raw: u64) -> Self { raw as $t }
        #[inline(always)]
        fn into_bits(self) -> u64 { self as u64 }
    }
)* } }
impl_bits!(u8 u16 u32 u64);

/// The first `N` bytes of `bytes`, zero-padded if there are fewer.
#[inline(always)]
pub fn prefix<const N: usize>(bytes: &[u8]) -> [u8; N] {
    match bytes.first_chunk::<N>() {
        Some(whole) => *whole,
        None => {
            let mut out = [0; N];
            out[..bytes.len()].copy_from_slice(bytes);
            out
        }
    }
}

/// The writer of a structure declared with [`hw_layout!`](crate::hw_layout).
pub struct Set<'a, T>(pub(crate) &'a mut T);

/// Checks one row against its word and its type. On an error the build fails with the field's name.
pub const fn row(name: &'static str, off: usize, hi: usize, lo: usize, type_width: usize) -> Field {
    let word = if hi > 31 { 64 } else { 32 };
    assert!(lo <= hi && hi < 64, "{}", name);
    assert!(off % 4 == 0, "{}", name);
    assert!(hi - lo < type_width, "{}", name);
    Field { name, offset: off * 8 + word - 1 - hi, width: hi - lo + 1, inner: &[] }
}

/// The bits that belong to `fields`. On overlap or overrun the build fails with the field's name.
pub const fn claim<const N: usize>(fields: &[Field]) -> [u8; N] {
    let mut owned = [0u8; N];
    let mut i = 0;
    while i < fields.len() {
        let mut bit = fields[i].offset;
        while bit < fields[i].offset + fields[i].width {
            let mask = 0x80u8 >> (bit % 8);
            assert!(bit / 8 < N && owned[bit / 8] & mask == 0, "{}", fields[i].name);
            owned[bit / 8] |= mask;
            bit += 1;
        }
        i += 1;
    }
    owned
}

/// Reads bits `hi..=lo` of the big-endian word at byte `off` (64 bits wide if `hi` is above 31).
#[inline(always)]
pub fn load(b: &[u8], off: usize, hi: usize, lo: usize) -> u64 {
    let word = match hi > 31 {
        true => u64::from_be_bytes(prefix(&b[off..off + 8])),
        false => u32::from_be_bytes(prefix(&b[off..off + 4])).into(),
    };
    (word >> lo) & (u64::MAX >> (63 - (hi - lo)))
}

/// Writes bits `hi..=lo` of the word at byte `off`. Truncates `v` to the width of the field.
#[inline(always)]
pub fn store(b: &mut [u8], off: usize, hi: usize, lo: usize, v: u64) {
    let mask = u64::MAX >> (63 - (hi - lo));
    debug_assert!(v <= mask, "{v:#x} does not fit bits [{hi}:{lo}] at {off:#x}");
    if hi > 31 {
        let word = load(b, off, 63, 0) & !(mask << lo) | (v & mask) << lo;
        b[off..off + 8].copy_from_slice(&word.to_be_bytes());
    } else {
        let word = load(b, off, 31, 0) & !(mask << lo) | (v & mask) << lo;
        b[off..off + 4].copy_from_slice(&(word as u32).to_be_bytes());
    }
}

/// Declares hardware structures in the notation of the [module](crate::layout), and enumerated fields with the values
/// that have names, as [`hw_enum!`](crate::hw_enum) describes them.
#[macro_export]
macro_rules! hw_layout {
    ($( $(#[$m:meta])* $v:vis $kind:ident $name:ident: $size:tt $(, $width:literal bits)? { $($row:tt)* } )+) =>
        { $( $crate::hw_layout! { @$kind $(#[$m])* $v $name $size $($width)? { $($row)* } } )+ };

    (@enum $(#[$m:meta])* $v:vis $E:ident $raw:tt $width:literal { $($value:tt)* }) =>
        { $crate::hw_enum! { $(#[$m])* $v enum $E: $raw, $width bits { $($value)* } } };

    (@struct $(#[$m:meta])* $v:vis $S:ident $size:literal {
        $( $(#[$fm:meta])* $off:literal $([$hi:literal : $lo:literal])? $name:ident: $ty:ty ),* $(,)?
    }) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(transparent)]
        $v struct $S([u8; $size]);

        #[allow(missing_docs, clippy::len_without_is_empty)]
        impl $S {
            pub const SIZE: usize = $size;
            /// The layout table, in declaration order.
            pub const FIELDS: &'static [$crate::layout::Field] =
                &[ $( $crate::hw_layout!(@row $off $([$hi $lo])? $name $ty) ),* ];
            /// The bits that belong to fields; the others are reserved.
            pub const OWNED: [u8; $size] = $crate::layout::claim(Self::FIELDS);

            #[inline(always)]
            pub const fn zeroed() -> Self { Self([0; $size]) }
            #[inline(always)]
            pub const fn from_bytes(bytes: [u8; $size]) -> Self { Self(bytes) }
            #[inline(always)]
            pub const fn as_bytes(&self) -> &[u8; $size] { &self.0 }
            #[inline(always)]
            pub const fn as_bytes_mut(&mut self) -> &mut [u8; $size] { &mut self.0 }
            /// The writer: `x.set().a(1).b(2);`
            #[inline(always)]
            pub const fn set(&mut self) -> $crate::layout::Set<'_, Self> { $crate::layout::Set(self) }
            /// A structure that is zero except for the fields written by `fill`: `X::with(|s| s.a(1).b(2))`.
            #[inline(always)]
            pub fn with(
                fill: impl for<'s, 'x> FnOnce(
                    &'s mut $crate::layout::Set<'x, Self>,
                ) -> &'s mut $crate::layout::Set<'x, Self>,
            ) -> Self {
                let mut x = Self::zeroed();
                fill(&mut x.set());
                x
            }
            /// True if all reserved bits are 0.
            #[inline(always)]
            pub fn is_clean(&self) -> bool {
                self.0.iter().zip(&Self::OWNED).fold(0, |set, (byte, owned)| set | byte & !owned) == 0
            }
            $( $(#[$fm])* #[inline(always)]
               pub fn $name(&self) -> $ty { $crate::hw_layout!(@load self.0, $off $([$hi $lo])? $ty) } )*
        }
        const _: [u8; $size] = $S::OWNED; // the compile-time checks

        #[allow(missing_docs)]
        impl $crate::layout::Set<'_, $S> {
            $( $(#[$fm])* #[inline(always)]
               pub fn $name(&mut self, v: $ty) -> &mut Self {
                   $crate::hw_layout!(@store self.0.0, $off $([$hi $lo])? v $ty); self
               } )*
        }

        impl $crate::layout::Layout for $S {
            const SIZE: usize = $size;
            const FIELDS: &'static [$crate::layout::Field] = Self::FIELDS;
            const FILL: &'static [fn(&mut Self)] =
                &[ $( |x| { x.set().$name($crate::hw_layout!(@ones $([$hi $lo])? $ty)); } ),* ];
            fn reserved_set(&self) -> Option<usize> {
                (0..$size).find(|&i| self.0[i] & !Self::OWNED[i] != 0)
            }
            #[inline(always)]
            fn bytes(&self) -> &[u8] { &self.0 }
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self { Self($crate::layout::prefix(bytes)) }
        }

        impl Default for $S {
            fn default() -> Self { Self::zeroed() }
        }

        impl ::core::fmt::Debug for $S {
            /// Prints the nonzero fields.
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                let mut d = f.debug_struct(stringify!($S));
                $( if $crate::hw_layout!(@nonzero self.0, $off $([$hi $lo])? $ty) {
                    d.field(stringify!($name), &self.$name());
                } )*
                d.finish_non_exhaustive()
            }
        }
    };

    (@row $off:literal [$hi:literal $lo:literal] $name:ident $ty:ty) =>
        { $crate::layout::row(stringify!($name), $off, $hi, $lo, <$ty as $crate::layout::Bits>::WIDTH) };
    (@row $off:literal $name:ident $ty:ty) =>
        { $crate::layout::Field {
            name: stringify!($name),
            offset: $off * 8,
            width: <$ty as $crate::layout::Layout>::SIZE * 8,
            inner: <$ty as $crate::layout::Layout>::FIELDS,
        } };

    (@ones [$hi:literal $lo:literal] $ty:ty) =>
        { <$ty as $crate::layout::Bits>::from_bits(u64::MAX >> (63 - ($hi - $lo))) };
    (@ones $ty:ty) => { <$ty as $crate::layout::Layout>::read(&[0xff; <$ty as $crate::layout::Layout>::SIZE]) };

    (@load $b:expr, $off:literal [$hi:literal $lo:literal] $ty:ty) =>
        { <$ty as $crate::layout::Bits>::from_bits($crate::layout::load(&$b, $off, $hi, $lo)) };
    (@load $b:expr, $off:literal $ty:ty) =>
        { <$ty as $crate::layout::Layout>::read(&$b[$off..]) };

    (@store $b:expr, $off:literal [$hi:literal $lo:literal] $v:ident $ty:ty) =>
        { $crate::layout::store(&mut $b, $off, $hi, $lo, <$ty as $crate::layout::Bits>::into_bits($v)) };
    (@store $b:expr, $off:literal $v:ident $ty:ty) =>
        { $b[$off..$off + <$ty as $crate::layout::Layout>::SIZE].copy_from_slice(<$ty as $crate::layout::Layout>::bytes(&$v)) };

    (@nonzero $b:expr, $off:literal [$hi:literal $lo:literal] $ty:ty) => { $crate::layout::load(&$b, $off, $hi, $lo) != 0 };
    (@nonzero $b:expr, $off:literal $ty:ty) => { $b[$off..$off + <$ty as $crate::layout::Layout>::SIZE].iter().any(|b| *b != 0) };
}

/// Declares an enumerated field: a number, with names for some of its values. Unnamed values are valid too, so one side
/// may send a value unknown to the other, without loss or panics. Conversions are free.
#[macro_export]
macro_rules! hw_enum {
    ($(#[$m:meta])* $v:vis enum $E:ident: $raw:ty, $width:literal bits {
        $( $(#[$vm:meta])* $name:ident = $val:literal, )*
    }) => {
        $crate::hw_enum! {
            $(#[$m])*
            $v enum $E: $raw, $width bits, named by &[ $( (stringify!($name), $val) ),* ]
        }

        #[allow(missing_docs, non_upper_case_globals)]
        impl $E {
            $( $(#[$vm])* pub const $name: Self = Self($val); )*
        }
    };

    // The constants are declared elsewhere.
    ($(#[$m:meta])* $v:vis enum $E:ident: $raw:ty, $width:literal bits, named by $names:expr) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        $v struct $E($raw);

        impl $crate::layout::Bits for $E {
            const WIDTH: usize = $width;
            #[inline(always)]
            fn from_bits(raw: u64) -> Self { Self(raw as $raw) }
            #[inline(always)]
            fn into_bits(self) -> u64 { self.0.into() }
        }
        #[allow(missing_docs, non_snake_case)]
        impl $E {
            /// The named values, in declaration order.
            pub const NAMED: &'static [(&'static str, $raw)] = $names;
            /// The values of [`NAMED`](Self::NAMED).
            pub const ALL: &'static [Self] = &{
                let mut all = [Self(0); Self::NAMED.len()];
                let mut i = 0;
                while i < all.len() {
                    all[i] = Self(Self::NAMED[i].1);
                    i += 1;
                }
                all
            };

            /// A value, named or not.
            #[inline(always)]
            pub const fn Other(raw: $raw) -> Self { Self(raw) }
            #[inline(always)]
            pub const fn from_raw(raw: $raw) -> Self { Self(raw) }
            #[inline(always)]
            pub const fn raw(self) -> $raw { self.0 }
            /// True if the value has a name.
            pub fn is_named(self) -> bool { Self::NAMED.iter().any(|(_, raw)| *raw == self.0) }
        }

        impl ::core::fmt::Debug for $E {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match Self::NAMED.iter().find(|(_, raw)| *raw == self.0) {
                    Some((name, _)) => f.write_str(name),
                    None => f.debug_tuple("Other").field(&self.0).finish(),
                }
            }
        }
    };
}
