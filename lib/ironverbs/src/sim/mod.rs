//! A simulated machine in this process, for tests: an adapter of eight functions, in virtual time, on a wire with a plan of faults. It needs
//! no card, no root and no files.
//!
//! ```
//! use ironverbs::{Error, Pool, block_on, sim::Sim};
//!
//! let sim = Sim::new().faults("drop=10%").seed(7);
//! let (a, b) = sim.pair()?;
//! let (ours, theirs) = (Pool::new(a.device(), 8, 64)?, Pool::new(b.device(), 8, 64)?);
//! block_on(async {
//!     for _ in 0..20 {
//!         let message = b.recv(theirs.empty()?);
//!         a.send(ours.take(b"through a bad wire")?).await?;
//!         assert_eq!(&*message.await?, b"through a bad wire");
//!     }
//!     Ok::<_, Error>(())
//! })?;
//! assert!(sim.now() > std::time::Duration::from_millis(1), "packets were lost and repeated");
//! # Ok::<(), Error>(())
//! ```
//!
//! Under [`block_on`](crate::block_on) a run is deterministic: with the same seed it has the same outcome and takes the same virtual time. Time
//! moves only while all futures wait, to the next timer or delayed frame; the card's own work takes none (`ironverbs sim` models that). Under
//! another executor, or with several threads, a run is not repeatable.

#[doc(hidden)]
pub mod machine;

use crate::{Device, Error, Qp, Result};
use devmodel::{Config, engine::faults::FaultPlan, region::Geometry, wire::Faults};
use machine::Machine;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Number of devices.
const DEVICES: u8 = 8;

/// A simulated machine. Clones are the same machine.
#[derive(Clone)]
pub struct Sim {
    machine: Machine,
    faults: Arc<Mutex<Option<String>>>,
    seed: u64,
}

/// Two connected queue pairs, on two devices of a new machine.
///
/// # Errors
/// There is no memory for the machine.
pub fn pair() -> Result<(Qp, Qp)> {
    Sim::new().pair()
}

impl Default for Sim {
    fn default() -> Self {
        Self::new()
    }
}

impl Sim {
    /// A machine with a perfect wire.
    pub fn new() -> Self {
        let size = Geometry {
            functions: DEVICES + 1,
            log_qp: 10,
            log_cq: 10,
            log_mkey: 10,
            log_mtt: 16,
            ..Geometry::SMALL
        };
        let machine = Machine::with(size, Config::default());
        machine.hold();
        Self { machine, faults: Arc::default(), seed: 1 }
    }

    /// Applies a plan of faults to frames, from the opening of the first device: a list of probabilities (`drop=1%,delay=20us`), or
    /// `[[fault]]` tables, as for `ironverbs run --fault`.
    #[must_use]
    pub fn faults(self, plan: &str) -> Self {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan.into());
        self
    }

    /// The seed of the plan's probabilities.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Opens device `number`, below 8. Its address is 127.0.0.(2 + `number`).
    ///
    /// # Errors
    /// [`Error::NotADevice`], [`Error::Plan`].
    pub fn device(&self, number: u8) -> Result<Device> {
        if number >= DEVICES {
            return Err(Error::NotADevice(format!("device {number} of {DEVICES}")));
        }
        if let Some(text) = self.faults.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.machine.inject(plan(&text, self.seed)?).map_err(|error| Error::Plan(error.to_string()))?;
        }
        Device::of(self.machine.open(number + 1)?, None, Some(self.machine.clone()))
    }

    /// Two connected queue pairs, on devices 0 and 1.
    ///
    /// # Errors
    /// As for [`device`](Self::device).
    pub fn pair(&self) -> Result<(Qp, Qp)> {
        let (a, b) = (self.device(0)?.qp().build()?, self.device(1)?.qp().build()?);
        a.connect(&b.local()?)?;
        b.connect(&a.local()?)?;
        Ok((a, b))
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.machine.now() / 1000)
    }

    /// Pulls device `number` out, as by a hot-unplug.
    pub fn unplug(&self, number: u8) {
        self.machine.unplug(number + 1);
    }
}

fn plan(text: &str, seed: u64) -> Result<FaultPlan> {
    if text.contains("[[fault]]") {
        return FaultPlan::parse("faults", text, seed).map_err(|error| Error::Plan(error.to_string()));
    }
    let faults: Faults =
        text.parse().map_err(|error: devmodel::wire::FaultsError| Error::Plan(error.to_string()))?;
    Ok(FaultPlan::by_chance(&faults, seed as u32))
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("seed", &self.seed).field("now", &self.now()).finish()
    }
}
