//! `bind!`: the fields of a context and those of a row that keep each other's values. `select!`: the fields that a command changes.

use hwspec::layout::Bits;

/// A row that keeps fields of a context `C`.
pub(super) trait Bound<C> {
    /// Takes the fields of `context` that the row keeps as they are.
    fn take(&mut self, context: &C);
    /// The context shown by a query.
    fn show(&self) -> C;
}

/// Converts between the types of a field in a context and in a row.
pub(super) fn cast<A: Bits, B: Bits>(value: A) -> B {
    B::from_bits(value.into_bits())
}

/// States which field of a context is which of a row: `field <-> place`, where a place may be an element (`moderation[0]`) or a bit of
/// flags (`flags[RqRow::RLKY]`). `shows row { field = value }` has the fields that a query shows in another way.
macro_rules! bind {
    ($C:ident <-> $R:ident {
        $( $field:ident <-> $place:ident $([$($at:tt)+])? ),* $(,)?
    } $( shows $row:ident { $( $only:ident = $value:expr ),* $(,)? } )?) => {
        impl Bound<$C> for $R {
            fn take(&mut self, context: &$C) {
                let row = self;
                $( bind!(@take row context $field $place $([$($at)+])?); )*
            }
            fn show(&self) -> $C {
                let row = self;
                let mut context = $C::zeroed();
                $( context.set().$field(bind!(@show row $place $([$($at)+])?)); )*
                $( let $row = self; context.set()$( .$only($value) )*; )?
                context
            }
        }
    };
    (@take $row:ident $context:ident $field:ident $place:ident $([$at:literal])?) => {
        $row.$place $([$at])? = cast($context.$field())
    };
    (@take $row:ident $context:ident $field:ident $place:ident [$flag:path]) => {
        if $context.$field() { $row.$place |= $flag } else { $row.$place &= !$flag }
    };
    (@show $row:ident $place:ident $([$at:literal])?) => { cast($row.$place $([$at])?) };
    (@show $row:ident $place:ident [$flag:path]) => { $row.$place & $flag != 0 };
}

/// Executes the statements whose bits `has` finds among those that the driver selected.
macro_rules! select {
    ($has:ident: $( $bit:path => $change:expr; )*) => { $( if $has($bit) { $change; } )* };
}
