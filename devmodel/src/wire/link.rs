//! Hook into the wire.

/// The verdict on a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Deliver it.
    Deliver,
    /// Drop it.
    Drop,
    /// Deliver it twice.
    Duplicate,
}

/// A wire with an observer, or one that leads out of the region. Frames are whole, from Ethernet header to ICRC.
pub trait Link: Send {
    /// Called for every frame that enters the wire; may alter it, copy it, or release held frames by appending them to `more`.
    fn transmit(&mut self, from: u8, frame: &mut Vec<u8>, more: &mut Vec<Vec<u8>>) -> Verdict;
    /// Handles a frame for destinations outside this adapter (or inside and outside). Returns true if it was handled; otherwise
    /// the frame goes to the uplink.
    fn leave(&mut self, frame: &[u8]) -> bool {
        let _ = frame;
        false
    }
}
