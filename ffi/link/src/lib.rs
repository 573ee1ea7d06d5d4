//! The uplink: one party of the node carries outgoing frames to other guests, nodes and machines, and delivers incoming ones.
//!
//! ```
//! use ironverbs_link::LinkSpec;
//!
//! // A value of `ironverbs serve --link`; `Uplink::hold` joins a node to it.
//! let spec: LinkSpec = "udp:10.0.0.5,peer=10.0.0.6".parse()?;
//! assert!(matches!(&spec, LinkSpec::Udp { local, peers } if local.len() == 1 && peers.len() == 1));
//! assert_eq!(spec.to_string(), "udp:10.0.0.5,peer=10.0.0.6");
//! assert!("tcp:10.0.0.5".parse::<LinkSpec>().is_err());
//! # Ok::<(), ironverbs_link::LinkSpecError>(())
//! ```
//!
//! Read in this order: `spec` (where a link leads), `port` (frames out and in; `hwspec::wire::discovery` parses address discovery),
//! `subnet` (InfiniBand), then the bearers: `dgram`, `stream`, `udp` with `outer`, `tap`, `joined`.

mod bearer;
mod dgram;
mod joined;
mod outer;
mod port;
mod schedule;
mod sockets;
mod spec;
mod stream;
mod subnet;
mod tap;
#[cfg(test)]
mod tests;
mod udp;

pub use spec::{LinkSpec, LinkSpecError};

use ::sync::Eager;
use bearer::Bearer;
use devmodel::{LinkLayer, wire::Faults};
use driver::transport::Quiet;
use joined::Joined;
use node::{
    Frames, Node, NodeError, UplinkHold,
    jail::{self, Needs, Role},
};
use port::{BATCH, LOOK, Port, PortLink};
use std::{
    fmt,
    io::{self, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Time in which a program that polls takes the frames that are left to it.
const PROMPT: Duration = Duration::from_micros(20);

/// The privileges that a server of `node` with `links` needs in its [jail].
pub fn needs(node: &Node, links: &[LinkSpec]) -> Needs {
    let unix_stream = links.iter().any(|link| matches!(link, LinkSpec::Stream { listen: false, .. }));
    Needs {
        copies: node.copies_directly(),
        unix_peer: unix_stream || links.iter().any(|link| matches!(link, LinkSpec::Dgram { .. })),
        unix_stream,
        udp: links.iter().any(|link| matches!(link, LinkSpec::Udp { local, .. } if local.is_empty())),
    }
}

/// Traffic of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// The link's specification.
    pub link: String,
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Frames dropped because the peer had no room.
    pub lost: u64,
    /// Number of faults applied to frames.
    pub faults: u64,
}

impl fmt::Display for LinkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { link, sent, received, lost, faults } = self;
        write!(f, "{link}: sent {sent}, received {received}, lost {lost}, faults {faults}")
    }
}

/// The uplink of a node, held by this process until this is dropped.
pub struct Uplink {
    port: Arc<Port>,
    stop: Arc<AtomicBool>,
    /// Writing to it ends the threads' waiting.
    bell: UnixStream,
    ended: Arc<UnixStream>,
    threads: Vec<JoinHandle<()>>,
    /// The uplinks of nodes that are joined to this one.
    joined: Vec<Uplink>,
}

impl Uplink {
    /// Takes the uplink of `node` and joins it to `specs`. `faults` are applied to their frames in both directions. Without any links it
    /// still answers the node's guests for functions that programs drive.
    pub fn hold(node: &Arc<Node>, specs: &[LinkSpec], faults: Faults) -> Result<Self, NodeError> {
        let infiniband = node.adapter().config().link_layer == LinkLayer::Infiniband;
        if let Some(link) = specs.iter().find(|spec| infiniband && !matches!(spec, LinkSpec::Node(_))) {
            return Err(NodeError::NotCarried { dir: node.dir().into(), link: link.to_string() });
        }
        let mut ids = vec![node.adapter().config().node_id];
        let held = UplinkHold::new(node)?;
        let (mut links, mut ends, mut joined) = (Vec::new(), Vec::new(), Vec::new());
        for spec in specs {
            let which = links.len() as u32;
            let link = |bearer| PortLink::new(spec.to_string(), bearer, faults, which);
            let LinkSpec::Node(dir) = spec else {
                let bearer = bear(node, spec).map_err(NodeError::system(format!("link {spec}")))?;
                links.push(link(bearer));
                continue;
            };
            let other = Node::open(dir)?;
            let (a, b) = (node.adapter().config(), other.adapter().config());
            if a.link_layer != b.link_layer || ids.contains(&b.node_id) {
                return Err(NodeError::NotJoined {
                    dir: other.dir().into(),
                    id: b.node_id,
                    layer: b.link_layer,
                });
            }
            let (here, there) = (Arc::new(Joined::default()), Arc::new(Joined::default()));
            ids.push(b.node_id);
            let mut to = link(Box::new(here.clone()));
            to.peer = infiniband.then_some(b.node_id);
            links.push(to);
            let back = format!("node:{}", node.dir().display());
            let far = PortLink::new(back, Box::new(there.clone()), Faults::default(), 0);
            let far = Self::start(Port::new(UplinkHold::new(&other)?, vec![far]))?;
            here.tie(Arc::downgrade(&far.port), 0);
            // Faults, and switching between several links, are this process's work.
            if !infiniband && specs.len() == 1 && faults.is_none() {
                held.join(far.port.hold());
            }
            ends.push((there, links.len() - 1));
            joined.push(far);
        }
        let mut made = Self::start(Port::new(held, links))?;
        ends.iter().for_each(|(end, link)| end.tie(Arc::downgrade(&made.port), *link));
        if infiniband && !joined.is_empty() {
            let ports: Vec<_> = [&made].into_iter().chain(&joined).map(|up| up.port.clone()).collect();
            let (stop, ended) = (made.stop.clone(), made.ended.clone());
            let swept = made.spawn(move || subnet::sweep(&ports, &stop, &ended));
            swept.map_err(NodeError::system("start the uplink's threads"))?;
        }
        made.joined = joined;
        Ok(made)
    }

    fn start(port: Port) -> Result<Self, NodeError> {
        let failed = || NodeError::system("start the uplink's threads");
        let (bell, ended) = UnixStream::pair().map_err(failed())?;
        let mut made = Self {
            port: Arc::new(port),
            stop: Arc::default(),
            bell,
            ended: Arc::new(ended),
            threads: Vec::new(),
            joined: Vec::new(),
        };
        for link in 0..made.port.links().len() {
            let (port, stop, ended) = (made.port.clone(), made.stop.clone(), made.ended.clone());
            made.spawn(move || listen(&port, link, &stop, &ended)).map_err(failed())?;
        }
        let (port, stop) = (made.port.clone(), made.stop.clone());
        made.spawn(move || port.run(&stop)).map_err(failed())?;
        Ok(made)
    }

    fn spawn(&mut self, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let builder = std::thread::Builder::new().name("ironverbs-link".into()).stack_size(512 << 10);
        let _quiet = Quiet::new();
        let body = move || {
            schedule::be_prompt();
            jail::enter(Role::Link);
            body();
        };
        self.threads.push(builder.spawn(body)?);
        Ok(())
    }

    /// The links' traffic so far.
    pub fn status(&self) -> Vec<LinkStatus> {
        // Only a single link has frames that bypass it.
        let [sent, received] =
            [Some(self), self.joined.first()].map(|end| end.map_or(0, |end| end.port.hold().passed()));
        let of = |link: &PortLink| LinkStatus {
            link: link.spec.clone(),
            sent: sent + link.sent.load(Relaxed),
            received: received + link.received.load(Relaxed),
            lost: link.lost.load(Relaxed),
            faults: link.hits(),
        };
        self.port.links().iter().map(of).collect()
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        // Eight bytes always fit; the threads check within a tenth of a second anyway.
        let _ = (&self.bell).write(&[0; 8]);
        self.port.hold().wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn bear(node: &Arc<Node>, spec: &LinkSpec) -> io::Result<Box<dyn Bearer>> {
    Ok(match spec {
        LinkSpec::Dgram { local, peer } => Box::new(dgram::Dgram::new(local, peer)?),
        LinkSpec::Stream { listen, path } => Box::new(stream::Stream::new(path, *listen)?),
        LinkSpec::Udp { local, peers } => Box::new(udp::Udp::new(node, local, peers)?),
        LinkSpec::Tap(name) => Box::new(tap::Tap::new(name)?),
        LinkSpec::Node(_) => Box::new(Arc::new(Joined::default())),
    })
}

/// Delivers the frames that arrive over a link, until `stop`.
fn listen(port: &Port, link: usize, stop: &AtomicBool, ended: &UnixStream) {
    let Some(bearer) = port.links().get(link).map(PortLink::bearer) else { return };
    let (mut batch, mut eager) = (Frames::default(), Eager::default());
    while !stop.load(Acquire) {
        batch.clear();
        while batch.len() < BATCH && bearer.receive(&mut batch).is_ok() {}
        let idle = batch.is_empty();
        if !idle {
            eager.end();
            port.arrive(link, &batch, true);
            port.answer();
        }
        let next = port.arrive_late(link);
        port.hold().sweep();
        if !idle {
            continue;
        }
        let mut fds = bearer.incoming();
        fds.push(ended.as_raw_fd());
        let wait = |most| sockets::wait(&fds, None, Some(most));
        if let left @ Some(_) = port.hold().left_to_pollers() {
            // Sleeps rather than polls, because that program may need this processor.
            if !wait(PROMPT) && port.hold().left_to_pollers() == left {
                port.hold().take_back();
            }
            continue;
        }
        // Late frames have deadlines, which eager polling could miss.
        if next.is_some() || eager.look(|| wait(Duration::ZERO).then_some(())).is_none() {
            let late = next.map(|at| Duration::from_nanos(at.saturating_sub(port.hold().now()) / 1000));
            wait(late.map_or(LOOK, |late| late.min(LOOK)));
        }
    }
}
