//! A wire that is watched.

/// The verdict on a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It arrives.
    Deliver,
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
}

/// A wire that is watched, or leads out of the region. Frames are whole: Ethernet to ICRC.
pub trait Link: Send {
    /// Asked for every frame that enters the wire; may alter it, keep a copy, or release others kept back by pushing
    /// them to `more`.
    fn transmit(&mut self, from: u8, frame: &mut Vec<u8>, more: &mut Vec<Vec<u8>>) -> Verdict;
    /// A frame whose destination is no function of this adapter, or not only. True: it is taken care of; else it goes to
    /// the uplink.
    fn leave(&mut self, frame: &[u8]) -> bool {
        let _ = frame;
        false
    }
}
