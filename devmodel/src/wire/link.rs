//! Hook into the wire.

use std::{borrow::Cow, iter::repeat_n};

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

/// The frames that come out of `link`, if there is one, after `whole` of function `from` has entered it.
pub(crate) fn pass<'f>(
    link: Option<&mut (dyn Link + 'static)>,
    from: u8,
    whole: &'f mut Vec<u8>,
) -> impl Iterator<Item = Cow<'f, [u8]>> + use<'f> {
    let mut more = Vec::new();
    let times = match link.map(|link| link.transmit(from, whole, &mut more)) {
        Some(Verdict::Drop) => 0,
        None | Some(Verdict::Deliver) => 1,
        Some(Verdict::Duplicate) => 2,
    };
    repeat_n(&**whole, times).map(Cow::Borrowed).chain(more.into_iter().map(Cow::Owned))
}
