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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::FlatMachine;

    #[test]
    fn no_transfer_and_no_interrupt_passes() {
        let mut machine = FlatMachine { memory: vec![0; 64], ..FlatMachine::default() };
        let mut bus = Refusing(&mut machine);
        assert!(bus.read(Rid(1), 0, &mut [0; 8]).is_err() && bus.write(Rid(1), 0, &[1; 8]).is_err());
        assert!(bus.copy(&[1], &[]).is_err());
        bus.msix(Rid(1), 0, 0, 1);
        assert!(machine.memory.iter().all(|byte| *byte == 0) && machine.interrupts.is_empty());
    }
}
