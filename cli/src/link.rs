//! `ironverbs link`: holds a node's uplink until it is told to end.

use std::io::Write;
use std::process::ExitCode;

use node::runtime::link::{LinkStatus, Uplink};
use node::runtime::{NodeError, NodeOptions, Signals};

use crate::options::Link;
use crate::{fail, place};

pub fn link(link: &Link) -> ExitCode {
    match hold(link) {
        Ok(links) => {
            for link in links {
                println!("{}: sent {}, received {}, lost {}", link.link, link.sent, link.received, link.lost);
            }
            ExitCode::SUCCESS
        }
        Err(error) => fail(1, error),
    }
}

fn hold(link: &Link) -> Result<Vec<LinkStatus>, NodeError> {
    // Before there are other threads.
    let signals = Signals::hold().map_err(NodeError::system("hold signals back"))?;
    let node = place::open(&link.node.path(), &link.identity.over(NodeOptions::default()))?;
    let uplink = Uplink::hold(&node, &link.links, link.faults.unwrap_or_default())?;
    println!("the uplink of the node in {} is up", node.dir().display());
    let _ = std::io::stdout().flush();
    signals.wait();
    Ok(uplink.status())
}
