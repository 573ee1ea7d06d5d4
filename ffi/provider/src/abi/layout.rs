//! Declares structures and constants of C together with a list of them, by which a test compares them with a header.

/// A structure: its name, its size, and the names and offsets of its members.
pub type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

macro_rules! c_structs {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            pub struct $name { $($(#[$doc])* pub $field: $kind,)* }
        )*
        pub const LAYOUTS: &[$crate::abi::layout::Layout] = &[$((
            stringify!($name),
            size_of::<$name>(),
            &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
        )),*];
    };
}
pub(crate) use c_structs;

macro_rules! c_codes {
    ($($(#[$doc:meta])* pub const $name:ident: $kind:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $kind = $value;)*
        pub const CODES: &[(&str, usize)] = &[$((stringify!($name), $name as usize)),*];
    };
}
pub(crate) use c_codes;
