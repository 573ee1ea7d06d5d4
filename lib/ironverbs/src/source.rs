//! Where completions come from: the queues of a device, and its connection manager.

use crate::sim::machine::Machine;
use std::time::Duration;

/// A queue, or the connection manager.
pub(crate) trait Source: Send + Sync {
    /// Takes what has completed, and wakes its futures. Returns false if there was nothing.
    fn pump(&self) -> bool;
    /// True if a future waits.
    fn sleeps(&self) -> bool;
    /// Requests an event for the next completion, unless one is due.
    fn arm(&self);
    /// The event has come.
    fn fired(&self);
    /// Fails what waits, if the device is gone.
    fn check(&self);
    /// The machine that it is simulated on.
    fn machine(&self) -> Option<&Machine>;
    /// Starts the reactor of its device.
    fn react(&self);
    /// Time, on the device's clock, at which it wants to be pumped.
    fn deadline(&self) -> Option<Duration> {
        None
    }
}
