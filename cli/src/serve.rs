//! `ironverbs serve`: functions of a node as vfio-user devices, for QEMU's guests.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use devmodel::serve::{Function, Misbehaving, Plug};
use node::runtime::link::Uplink;
use node::runtime::{Node, NodeError, NodeOptions, ServedFunction, Signals};

use crate::options::{PlugAt, Serve};
use crate::say::say_line;
use crate::{fail, place};

pub fn serve(serve: &Serve) -> ExitCode {
    // Before there are other threads.
    let signals = match Signals::hold() {
        Ok(signals) => signals,
        Err(e) => return fail(1, format!("cannot hold signals back: {e}")),
    };
    let options = serve.identity.over(NodeOptions { vfs: serve.vfs, ..NodeOptions::default() });
    let node = match place::open(&serve.node.path(), &options) {
        Ok(node) => node,
        Err(e) => return fail(1, e),
    };
    let mut plugs = Vec::new();
    for at in &serve.plugs {
        match plug(&node, at, serve) {
            Ok(plug) => plugs.push(plug),
            Err(why) => return fail(1, why),
        }
    }
    let uplink = match Uplink::hold(&node, &serve.links, serve.link_faults.unwrap_or_default()) {
        Ok(uplink) => Some(uplink),
        // Another server of the node answers for its programs already.
        Err(NodeError::OutletHeld { .. }) if serve.links.is_empty() => None,
        Err(e) => return fail(1, e),
    };
    for (at, plug) in serve.plugs.iter().zip(&plugs) {
        say_line!("iron{} at {}", at.function, plug.path().display());
    }
    for link in &serve.links {
        say_line!("linked by {link}");
    }
    let _ = std::io::stdout().flush();
    signals.wait();
    for link in uplink.iter().flat_map(Uplink::status) {
        say_line!("{link}");
    }
    ExitCode::SUCCESS
}

fn plug(node: &Arc<Node>, at: &PlugAt, serve: &Serve) -> Result<Plug, String> {
    let function = ServedFunction::claim(node, at.function).map_err(|e| e.to_string())?;
    let function: Arc<dyn Function> = match serve.misbehave {
        Some(how) => Arc::new(Misbehaving::new(function, how)),
        None => Arc::new(function),
    };
    let path = at.path.display();
    Plug::new(&at.path, function).map_err(|e| format!("cannot serve iron{} at {path}: {e}", at.function))
}
