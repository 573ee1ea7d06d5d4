//! Enums with a row of facts for each variant, such as a name.

/// Declares an enum with a row per variant, and the function that returns the row. `, ALL` adds a list of all variants.
macro_rules! named {
    (
        $(#[$m:meta])* $vis:vis enum $E:ident, ALL;
        $(#[$rm:meta])* $rvis:vis fn $row:ident -> $Row:ty;
        $( $(#[$vm:meta])* $V:ident = $facts:expr, )*
    ) => {
        named! {
            $(#[$m])* $vis enum $E;
            $(#[$rm])* $rvis fn $row -> $Row;
            $( $(#[$vm])* $V = $facts, )*
        }

        impl $E {
            /// All variants, in order.
            pub const ALL: [Self; [$( stringify!($V) ),*].len()] = [$( Self::$V ),*];
        }
    };
    (
        $(#[$m:meta])* $vis:vis enum $E:ident;
        $(#[$rm:meta])* $rvis:vis fn $row:ident -> $Row:ty;
        $( $(#[$vm:meta])* $V:ident = $facts:expr, )*
    ) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $(#[$m])*
        $vis enum $E { $( $(#[$vm])* $V, )* }

        impl $E {
            $(#[$rm])*
            $rvis const fn $row(self) -> $Row {
                match self { $( Self::$V => $facts, )* }
            }
        }
    };
}
pub(crate) use named;
