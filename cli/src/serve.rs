//! `ironverbs serve`: functions of a node as vfio-user devices, for QEMU's guests.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use devmodel::serve::{Function, Misbehaving, Plug};
use link::Uplink;
use node::jail::{self, Jail, Role};
use node::{Node, NodeError, ServedFunction, Signals};
use stream::{Recording, file::Recorder};

use crate::options::{PlugAt, Serve};
use crate::say::say_line;
use crate::{place, say::fail};

pub fn serve(serve: &Serve) -> ExitCode {
    // Before there are other threads.
    let signals = match Signals::hold() {
        Ok(signals) => signals,
        Err(e) => return fail(1, format!("cannot hold signals back: {e}")),
    };
    let jail = jail(serve);
    // Opened before the jail, in which no file is opened.
    let recorder = match serve.record.as_deref().map(Recorder::create).transpose() {
        Ok(recorder) => recorder,
        Err(why) => return fail(1, why),
    };
    let node = match place::open(&serve.node.path(), &serve.wanted.options()) {
        Ok(node) => node,
        Err(e) => return fail(1, e),
    };
    if let Ok(jail) = &jail {
        jail.build(link::needs(&node, &serve.links));
    }
    let mut plugs = Vec::new();
    for at in &serve.plugs {
        match plug(&node, at, serve, recorder.as_ref()) {
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
    let jailed = match jail.as_ref().map(Jail::close) {
        Ok(Ok(threads)) => format!("jailed: {threads} threads and an asker"),
        Ok(Err(e)) => return fail(1, format!("cannot go to jail ({e}); --no-jail serves without")),
        Err(why) => format!("not jailed: {why}"),
    };
    for (at, plug) in serve.plugs.iter().zip(&plugs) {
        say_line!("iron{} at {}", at.function, plug.path().display());
    }
    for link in &serve.links {
        say_line!("linked by {link}");
    }
    say_line!("{jailed}");
    let _ = std::io::stdout().flush();
    signals.wait();
    for link in uplink.iter().flat_map(Uplink::status) {
        say_line!("{link}");
    }
    ExitCode::SUCCESS
}

/// What the threads go to jail in, or why they do not.
#[allow(unsafe_code)]
fn jail(serve: &Serve) -> Result<Jail, String> {
    if serve.no_jail {
        return Err("as asked".into());
    }
    // SAFETY: the process has begun just now: one thread, which has opened nothing.
    unsafe { Jail::prepare() }.map_err(|e| format!("the kernel refuses: {e}"))
}

fn plug(
    node: &Arc<Node>,
    at: &PlugAt,
    serve: &Serve,
    recorder: Option<&Arc<Recorder>>,
) -> Result<Plug, String> {
    let function = ServedFunction::claim(node, at.function).map_err(|e| e.to_string())?;
    let function: Arc<dyn Function> = match serve.misbehave.is_empty() {
        true => Arc::new(function),
        false => Arc::new(Misbehaving::new(function, serve.misbehave.clone())),
    };
    let function = match recorder {
        Some(recorder) => Arc::new(Recording::new(function, at.function, recorder.clone())),
        None => function,
    };
    let path = at.path.display();
    let enter = || jail::enter(Role::Client);
    Plug::after(&at.path, function, enter)
        .map_err(|e| format!("cannot serve iron{} at {path}: {e}", at.function))
}
