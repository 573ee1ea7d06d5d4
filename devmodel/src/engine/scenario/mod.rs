//! Many hosts with a card each, switches between them, and traffic: reports flow completion times, queue lengths and pauses.
//!
//! ```
//! use ironverbs_devmodel::engine::{network::Topology, scenario::{Flow, Scenario}, timing::{TimingProfile, Rate}};
//!
//! // Three hosts at a switch, two of which write 100 kB to the third.
//! let topology = Topology::star(3, Rate(100.0), 500_000)?;
//! let mut scenario = Scenario::new(TimingProfile::load("direct-x16")?, topology);
//! scenario.flows = (0..2).map(|from| Flow::write(from, 2, 100_000)).collect();
//! let outcome = scenario.run()?;
//! // They share its link, so they take twice as long as one would.
//! let times: Vec<u64> = outcome.flows.iter().filter_map(|flow| flow.took()).collect();
//! assert!(times.iter().all(|ps| (16_000_000..22_000_000).contains(ps)), "{times:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod flows;
mod outcome;
mod run;
#[cfg(test)]
mod tests;

pub use flows::{all_to_all, hpcc, htsim, incast, permutation};
pub use outcome::{FlowOutcome, Outcome, Sample};

use super::{
    network::{Ecn, Pfc, Settings, Topology},
    sched::Ps,
    sim::Operation,
    timing::{Rate, TimingProfile},
};
use crate::{LinkLayer, transport::Dcqcn};

/// A transfer from one host to another, on its own queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// The requesting node.
    pub from: usize,
    /// The node at the other end.
    pub to: usize,
    /// Bytes, at least 1.
    pub bytes: u64,
    /// Start time, in picoseconds.
    pub start: Ps,
    /// WRITEs, SENDs, or READs; the data of READs comes from the other end.
    pub operation: Operation,
    /// Port number for the outputs.
    pub port: u16,
}

impl Flow {
    /// WRITEs of `bytes` in total, from the start on.
    pub fn write(from: usize, to: usize, bytes: u64) -> Self {
        Self { from, to, bytes, start: 0, operation: Operation::Write, port: 100 }
    }
}

/// Hosts, switches and flows.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Costs of cards, slots and programs. The port rate is that of the hosts' links.
    pub profile: TimingProfile,
    /// The nodes, and the links between them.
    pub topology: Topology,
    /// Settings of the switches.
    pub switches: Settings,
    /// The senders' reaction to congestion.
    pub dcqcn: Dcqcn,
    /// The flows.
    pub flows: Vec<Flow>,
    /// Maximum payload of a packet, in bytes.
    pub mtu: u16,
    /// Bytes of a message: a longer flow has several, of which [`Scenario::UNDER_WAY`] are outstanding.
    pub message: u64,
    /// Interval in messages between those that request a completion; at most the number of outstanding messages. The last message always
    /// requests one.
    pub moderation: u64,
    /// Time limit of the run, in picoseconds.
    pub until: Option<Ps>,
    /// Interval between samples of queues and rates, in picoseconds; 0 disables them.
    pub sample: Ps,
    /// Seed of the random numbers: the same seed gives the same outcome.
    pub seed: u64,
}

/// Error in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ScenarioError {
    #[error("flow {0}: expected the number of a host, found {1}")]
    NoHost(usize, usize),
    #[error("flow {0}: expected two hosts, found {1} twice")]
    ToItself(usize, usize),
    #[error("flow {0}: expected 1 byte to 2^40, found {1}")]
    Bytes(usize, u64),
    #[error("flow {0}: expected WRITEs, SENDs or READs, found atomics")]
    Atomics(usize),
    #[error("expected 1 to {most} flows, found {0}", most = Scenario::MOST_FLOWS)]
    Flows(usize),
    #[error("expected all hosts' links to have one rate, found {0} and {1} Gb/s")]
    Rates(String, String),
    #[error("expected a profile of Ethernet, found {0}, which is of InfiniBand")]
    LinkLayer(String),
    #[error("bytes of a message: expected 1 to {most}, found {0}", most = Scenario::MOST_MESSAGE)]
    Message(u64),
    #[error("messages from one completion to the next: expected 1 to {most}, found {0}", most = Scenario::UNDER_WAY)]
    Moderation(u64),
    #[error("MTU: expected 256, 512, 1024, 2048 or 4096, found {0}")]
    Mtu(u16),
    #[error("a switch's buffer: expected {1} bytes at least, which a packet takes, found {0}")]
    Buffer(u64, u64),
    #[error("ECN: expected kmin <= kmax and pmax from 0 to 1, found {0}, {1} and {2}")]
    Ecn(u64, u64, String),
    #[error("PFC: expected resume <= pause, and pause below the buffer, found {0} and {1}")]
    Pfc(u64, u64),
    #[error("samples: expected at most {most}, found more: the time between them is too short", most = Scenario::MOST_SAMPLES)]
    Samples,
}

impl Scenario {
    /// Maximum number of flows.
    pub const MOST_FLOWS: usize = 16384;
    /// Maximum bytes of a message.
    pub const MOST_MESSAGE: u64 = 1 << 20;
    /// Outstanding messages per flow.
    pub const UNDER_WAY: u64 = 4;
    /// Maximum number of samples.
    pub const MOST_SAMPLES: usize = 1 << 20;

    /// A scenario without flows. The switches are those of the profile's wire, with a buffer of 16 MB, and neither mark nor
    /// pause. The MTU is the profile's.
    pub fn new(profile: TimingProfile, topology: Topology) -> Self {
        let wire = &profile.wire;
        let latency = wire.switch.ps();
        let switches = Settings {
            buffer: 16 << 20,
            latency,
            store_and_forward: wire.store_and_forward || latency == 0,
            ecn: None,
            pfc: None,
        };
        let (mtu, message, moderation) = (wire.mtu, Self::MOST_MESSAGE, 1);
        let dcqcn = Dcqcn { burst: 0, ..Dcqcn::default() };
        Self {
            profile,
            topology,
            switches,
            dcqcn,
            flows: Vec::new(),
            mtu,
            message,
            moderation,
            until: None,
            sample: 0,
            seed: 1,
        }
    }

    /// Enables ECN marking with the parameters of the DCQCN paper for 40 Gb/s (section 5.2 there), scaled to the link rate.
    #[must_use]
    pub fn with_ecn(mut self) -> Self {
        let share = self.link_rate().map_or(1.0, |rate| rate.0 / 40.0);
        let bytes = |kb: f64| (kb * share * 1e3) as u64;
        self.switches.ecn = Some(Ecn { kmin: bytes(5.0), kmax: bytes(200.0), pmax: 0.01 });
        self
    }

    /// Enables PFC: switches pause senders before the ports' shares of the buffer are full.
    #[must_use]
    pub fn with_pfc(mut self) -> Self {
        let switches = self.topology.switches();
        let ports =
            |node: usize| self.topology.links().iter().filter(|link| link.ends.contains(&node)).count();
        let most = (0..switches.len()).filter(|node| switches[*node]).map(ports).max().unwrap_or(1);
        // Half of each port's share is reserved for data in flight when the pause is sent.
        let pause = (self.switches.buffer / (2 * most.max(1) as u64)).min(256 << 10);
        self.switches.pfc = Some(Pfc { pause, resume: pause - pause / 4 });
        self
    }

    /// The common rate of the hosts' links.
    fn link_rate(&self) -> Result<Rate, ScenarioError> {
        let is_host = |node: &usize| !self.topology.switches()[*node];
        let mut rates =
            self.topology.links().iter().filter(|link| link.ends.iter().any(is_host)).map(|link| link.gbps);
        let first = rates.next().unwrap_or(Rate(100.0));
        match rates.find(|rate| *rate != first) {
            Some(other) => Err(ScenarioError::Rates(first.0.to_string(), other.0.to_string())),
            None => Ok(first),
        }
    }

    /// Runs the scenario.
    ///
    /// # Errors
    ///
    /// A parameter is invalid.
    pub fn run(&self) -> Result<Outcome, ScenarioError> {
        let rate = self.check()?;
        Ok(run::Run::new(self, rate).run())
    }

    fn check(&self) -> Result<Rate, ScenarioError> {
        if !(1..=Self::MOST_FLOWS).contains(&self.flows.len()) {
            return Err(ScenarioError::Flows(self.flows.len()));
        }
        if self.profile.wire.link_layer != LinkLayer::Ethernet {
            return Err(ScenarioError::LinkLayer(self.profile.name.clone()));
        }
        let switches = self.topology.switches();
        for (number, flow) in self.flows.iter().enumerate() {
            let is_host = |node: &usize| switches.get(*node) == Some(&false);
            if let Some(other) = [flow.from, flow.to].into_iter().find(|node| !is_host(node)) {
                return Err(ScenarioError::NoHost(number, other));
            }
            if flow.from == flow.to {
                return Err(ScenarioError::ToItself(number, flow.from));
            }
            if !(1..=1 << 40).contains(&flow.bytes) {
                return Err(ScenarioError::Bytes(number, flow.bytes));
            }
            if flow.operation.is_atomic() {
                return Err(ScenarioError::Atomics(number));
            }
        }
        if !matches!(self.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(ScenarioError::Mtu(self.mtu));
        }
        if !(1..=Self::MOST_MESSAGE).contains(&self.message) {
            return Err(ScenarioError::Message(self.message));
        }
        if !(1..=Self::UNDER_WAY).contains(&self.moderation) {
            return Err(ScenarioError::Moderation(self.moderation));
        }
        let Settings { buffer, ecn, pfc, .. } = self.switches;
        // The headers of a packet are less than 128 bytes.
        let packet = u64::from(self.mtu) + 128;
        if buffer < packet {
            return Err(ScenarioError::Buffer(buffer, packet));
        }
        if let Some(Ecn { kmin, kmax, pmax }) =
            ecn.filter(|e| e.kmin > e.kmax || !(0.0..=1.0).contains(&e.pmax))
        {
            return Err(ScenarioError::Ecn(kmin, kmax, pmax.to_string()));
        }
        if let Some(Pfc { pause, resume }) = pfc.filter(|p| p.resume > p.pause || p.pause >= buffer) {
            return Err(ScenarioError::Pfc(resume, pause));
        }
        let first = self.flows.iter().map(|flow| flow.start).min().unwrap_or(0);
        let samples =
            self.until.map(|until| until.saturating_sub(first).checked_div(self.sample).unwrap_or(0));
        if samples.is_some_and(|samples| samples > Self::MOST_SAMPLES as u64) {
            return Err(ScenarioError::Samples);
        }
        self.link_rate()
    }
}
