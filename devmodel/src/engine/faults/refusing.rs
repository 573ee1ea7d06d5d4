//! A bus that refuses a function's transfers.

use crate::host::{Abort, Host, Iova, Move, Party, Rid, forward};

/// A host with a bus that refuses all transfers.
pub(crate) struct Refusing<'h>(pub &'h mut dyn Host);

#[deny(clippy::missing_trait_methods)]
impl Host for Refusing<'_> {
    fn read(&mut self, _: Rid, _: Iova, _: &mut [u8]) -> Result<(), Abort> {
        Err(Abort::Source)
    }
    fn write(&mut self, _: Rid, _: Iova, _: &[u8]) -> Result<(), Abort> {
        Err(Abort::Destination)
    }
    fn copy(&mut self, _: &[u8], _: &[Move]) -> Result<(), Abort> {
        Err(Abort::Destination)
    }
    // Interrupts are writes, and are refused as well.
    fn msix(&mut self, _: Rid, _: u16, _: u64, _: u32) {}
    forward! { self.0:
        fn party(&self) -> Party;
        fn steady(&self) -> Option<Party>;
        fn barrier(&mut self);
        fn reaches(&mut self, party: Party) -> bool;
        fn by_reference(&mut self, from: Rid, to: Rid) -> bool;
        fn is_tended(&mut self, rid: Rid) -> bool;
        fn uplink_waits(&mut self);
        fn capture_waits(&mut self);
        fn keeper(&mut self, rid: Rid) -> Option<Party>;
        fn tends(&mut self, rid: Rid) -> bool;
        fn wake(&mut self, party: Party);
        fn uses(&mut self, rid: Rid) -> bool;
        fn leave_to_users(&mut self, rid: Rid) -> bool;
        fn alive(&mut self, party: Party) -> bool;
        fn relax(&mut self, holder: Party, times: u32) -> bool;
        fn is_stopped(&mut self, party: Party) -> bool;
        fn has_stopped_user(&mut self, rid: Rid) -> bool;
        fn entropy(&mut self) -> [u64; 2];
    }
}
