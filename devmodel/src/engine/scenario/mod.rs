//! Many hosts with a card each, switches between them, and traffic: how long flows take, how long queues get, who is paused.
//!
//! ```
//! use devmodel::engine::{network::Topology, scenario::{Flow, Scenario}, timing::{Profile, Rate}};
//!
//! // Three hosts at a switch, two of which write 100 kB to the third.
//! let topology = Topology::star(3, Rate(100.0), 500_000)?;
//! let mut scenario = Scenario::new(Profile::load("direct-x16")?, topology);
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
    timing::{Profile, Rate},
};
use crate::{LinkLayer, transport::Dcqcn};

/// Bytes that one host moves to another, on a queue pair of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// The node that asks for it.
    pub from: usize,
    /// The node at the other end.
    pub to: usize,
    /// Bytes, 1 at least.
    pub bytes: u64,
    /// When it begins, in picoseconds.
    pub start: Ps,
    /// WRITEs, SENDs, or READs, whose bytes come from the other end.
    pub operation: Operation,
    /// The port that an output names.
    pub port: u16,
}

impl Flow {
    /// WRITEs of `bytes` in all, from the beginning on.
    pub fn write(from: usize, to: usize, bytes: u64) -> Self {
        Self { from, to, bytes, start: 0, operation: Operation::Write, port: 100 }
    }
}

/// Hosts, switches and flows.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The costs of cards, slots and programs. The port's rate is that of the hosts' links.
    pub profile: Profile,
    /// The nodes, and the links that join them.
    pub topology: Topology,
    /// The settings of switches.
    pub switches: Settings,
    /// How senders react to congestion.
    pub dcqcn: Dcqcn,
    /// The flows that are moved.
    pub flows: Vec<Flow>,
    /// Bytes of a packet's payload at most.
    pub mtu: u16,
    /// Bytes of a message: a longer flow has several, of which [`Scenario::UNDER_WAY`] are under way.
    pub message: u64,
    /// Messages from one that asks for a completion to the next, no more than are under way; the last does.
    pub moderation: u64,
    /// Nothing happens any more at this time, in picoseconds, if the flows are not done before.
    pub until: Option<Ps>,
    /// Time between two looks at queues and rates, in picoseconds; 0 is never.
    pub sample: Ps,
    /// Chance goes by this number: the same one gives the same outcome.
    pub seed: u64,
}

/// A scenario that can't be.
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
    /// Of a scenario.
    pub const MOST_FLOWS: usize = 16384;
    /// Bytes of a message.
    pub const MOST_MESSAGE: u64 = 1 << 20;
    /// Messages of a flow under way.
    pub const UNDER_WAY: u64 = 4;
    /// Looks at queues and rates.
    pub const MOST_SAMPLES: usize = 1 << 20;

    /// Nothing is moved yet. Switches are those of the profile's wire, with a buffer of 16 MB; they mark and pause nobody. The MTU is the
    /// profile's.
    pub fn new(profile: Profile, topology: Topology) -> Self {
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

    /// Switches mark packets, as DCQCN's paper has it for 40 Gb/s and in proportion (section 5.2 there).
    #[must_use]
    pub fn with_ecn(mut self) -> Self {
        let share = self.link_rate().map_or(1.0, |rate| rate.0 / 40.0);
        let bytes = |kb: f64| (kb * share * 1e3) as u64;
        self.switches.ecn = Some(Ecn { kmin: bytes(5.0), kmax: bytes(200.0), pmax: 0.01 });
        self
    }

    /// Switches pause who sends, before the ports' shares of the buffer are full.
    #[must_use]
    pub fn with_pfc(mut self) -> Self {
        let switches = self.topology.switches();
        let ports =
            |node: usize| self.topology.links().iter().filter(|link| link.ends.contains(&node)).count();
        let most = (0..switches.len()).filter(|node| switches[*node]).map(ports).max().unwrap_or(1);
        // Half of each port's share is for what is on its way when the pause is told.
        let pause = (self.switches.buffer / (2 * most.max(1) as u64)).min(256 << 10);
        self.switches.pfc = Some(Pfc { pause, resume: pause - pause / 4 });
        self
    }

    /// The rate of the hosts' links, if they have one.
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

    /// Runs it.
    ///
    /// # Errors
    ///
    /// Something of it is not as it can be.
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
