//! Interrupt vectors of a function: one for asynchronous events, which all openers receive, and those that openers
//! claim for their completions.

use crate::{
    async_queue,
    common::Common,
    error::Error,
    function::Function,
    transport::{Interrupt, Transport},
};
use std::sync::Arc;

/// The interrupts for asynchronous events of openers in this process, by transport.
static COMMON: Common<usize, Interrupt> = Common::new();

/// The interrupt for asynchronous events. If openers cannot share a vector, all openers in this process that share
/// `transport` get the same interrupt.
pub fn common_interrupt(transport: &Arc<dyn Transport>) -> Result<Arc<Interrupt>, Error> {
    let connect = || {
        let interrupt = transport.interrupt(async_queue::VECTOR);
        interrupt.map_err(Error::io("cannot get the interrupt vector of events"))
    };
    if transport.shares_vectors() {
        return connect().map(Arc::new);
    }
    let key = Arc::as_ptr(transport).cast::<()>() as usize;
    COMMON.get(key, |_| true, connect)
}

/// The vectors available for completions. Excludes the first, used for asynchronous events, if there are others.
pub fn of_completions(function: &Function) -> std::ops::Range<u16> {
    let vectors = function.identity.msix_vectors;
    u16::from(vectors > 1)..vectors
}

/// A vector claimed by an opener for its completions, released on drop.
pub struct Claim {
    function: Arc<Function>,
    vector: u16,
    /// Not shared with other openers. The interrupt of a shared vector may be for another opener, with no event for us.
    own: bool,
}

impl Claim {
    /// Claims a vector. If it is still connected to its previous owner, which is about to exit, tries the next. When
    /// all are claimed they are shared, if the transport supports that. EBUSY if not.
    pub fn new(function: &Arc<Function>) -> Result<(Self, Interrupt), Error> {
        let all = of_completions(function);
        let mut busy = Vec::new();
        let found = loop {
            let claim = |vector, own| Self { function: function.clone(), vector, own };
            let Some(vector) = function.shared.claim_vector(all.clone()) else {
                let common =
                    function.transport.shares_vectors().then(|| function.shared.common_vector(all.clone()));
                if let Some(vector) = common.flatten() {
                    let interrupt = function.transport.interrupt(vector);
                    let interrupt = interrupt.map_err(Error::io("cannot get the interrupt vector"));
                    break interrupt.map(|interrupt| (claim(vector, false), interrupt));
                }
                break Err(Error::busy(format!(
                    "all {} interrupt vectors of the function are taken by other openers",
                    function.identity.msix_vectors
                )));
            };
            let claim = claim(vector, true);
            match function.transport.interrupt(vector) {
                Ok(interrupt) => break Ok((claim, interrupt)),
                Err(error) => {
                    // Kept until another is found; otherwise the next claim would return it again.
                    busy.push(claim);
                    if error.kind() != std::io::ErrorKind::ResourceBusy {
                        break Err(Error::io("cannot get the interrupt vector")(error));
                    }
                }
            }
        };
        drop(busy);
        found
    }

    /// Its number.
    pub fn vector(&self) -> u16 {
        self.vector
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // In a child of fork the vector belongs to the parent.
        if self.own && !crate::cmd::is_gone(&self.function.bar) {
            self.function.shared.release_vector(self.vector);
        }
    }
}
