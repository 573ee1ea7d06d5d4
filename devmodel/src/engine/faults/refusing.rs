//! A bus that refuses a function's transfers.

use crate::host::{Abort, Bus, Host, Move, Parties, Party, Rid, forward_parties};

/// A host with a bus that refuses all transfers.
pub(crate) struct Refusing<'h>(pub &'h mut dyn Host);

// Nothing is attached to this bus. Interrupts are writes, and are refused as well.
impl Bus for Refusing<'_> {
    fn copy(&mut self, _: &[u8], _: &[Move]) -> Result<(), Abort> {
        Err(Abort::Destination)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Parties for Refusing<'_> {
    forward_parties! { self.0 }
}
