//! Enums whose variants have a row each: a name, or other facts.

/// Declares an enum with the row of each variant behind it, and the function that yields the row. With `, ALL` there is a list
/// of the variants too.
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
            /// All of them, in order.
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
