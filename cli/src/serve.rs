//! `ironverbs serve` and `ironverbs link`: functions of an adapter for QEMU guests (vfio-user) and user-mode Linux (vhost-user), and links
//! of its wire.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use devmodel::serve::{Function, Misbehaving, Plug, vhost::Sriov};
use link::Uplink;
use node::jail::{self, Jail, Role};
use node::{Node, NodeError, ServedFunction, Signals};
use stream::{Recording, file::Recorder};

use crate::options::{Link, PlugAt, Serve, Wanted};
use crate::say::say_line;
use crate::{place, say::fail};

/// Links the wire, as a server without functions.
pub fn link(link: Link) -> ExitCode {
    let Link { node, id, fault, no_jail, links } = link;
    serve(&Serve {
        node,
        wanted: Wanted::numbered(id),
        plugs: Vec::new(),
        virtio: Vec::new(),
        links,
        link_fault: fault,
        misbehave: Vec::new(),
        record: None,
        no_jail,
    })
}

pub fn serve(serve: &Serve) -> ExitCode {
    if let Err(why) = serve.wanted.identity.without_plan() {
        return fail(1, why);
    }
    // Before other threads are started.
    let signals = match Signals::hold() {
        Ok(signals) => signals,
        Err(e) => return fail(1, format!("cannot hold signals back: {e}")),
    };
    let jail = jail(serve);
    // Opened before the jail, where files cannot be opened.
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
    match plug_virtio(&node, serve, recorder.as_ref()) {
        Ok(more) => plugs.extend(more),
        Err(why) => return fail(1, why),
    }
    let uplink = match Uplink::hold(&node, &serve.links, serve.link_fault.unwrap_or_default()) {
        Ok(uplink) => Some(uplink),
        // Another server of the node already answers for its programs.
        Err(NodeError::OutletHeld { .. }) if serve.links.is_empty() => None,
        Err(e) => return fail(1, e),
    };
    let jailed = match jail.as_ref().map(Jail::close) {
        Ok(Ok(threads)) => format!("jailed: {threads} threads and an asker"),
        Ok(Err(e)) => return fail(1, format!("cannot go to jail ({e}); --no-jail serves without")),
        Err(why) => format!("not jailed: {why}"),
    };
    for (at, plug) in serve.plugs.iter().chain(&serve.virtio).zip(&plugs) {
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

/// The jail that the threads enter, or the reason why there is none.
#[allow(unsafe_code)]
fn jail(serve: &Serve) -> Result<Jail, String> {
    if serve.no_jail {
        return Err("as asked".into());
    }
    // SAFETY: the process has just started: it has one thread and has not opened any file.
    unsafe { Jail::prepare() }.map_err(|e| format!("the kernel refuses: {e}"))
}

/// Claims the function of `at`, configured for its client.
fn claim(
    node: &Arc<Node>,
    at: &PlugAt,
    serve: &Serve,
    recorder: Option<&Arc<Recorder>>,
) -> Result<Arc<dyn Function>, String> {
    let function = ServedFunction::claim(node, at.function).map_err(|e| e.to_string())?;
    let function: Arc<dyn Function> = match serve.misbehave.is_empty() {
        true => Arc::new(function),
        false => Arc::new(Misbehaving::new(function, serve.misbehave.clone())),
    };
    Ok(match recorder {
        Some(recorder) => Arc::new(Recording::new(function, at.function, recorder.clone())),
        None => function,
    })
}

fn cannot(at: &PlugAt, why: impl std::fmt::Display) -> String {
    format!("cannot serve iron{} at {}: {why}", at.function, at.path.display())
}

fn plug(
    node: &Arc<Node>,
    at: &PlugAt,
    serve: &Serve,
    recorder: Option<&Arc<Recorder>>,
) -> Result<Plug, String> {
    let function = claim(node, at, serve, recorder)?;
    Plug::after(&at.path, function, || jail::enter(Role::Client)).map_err(|e| cannot(at, e))
}

/// Claims the functions at vhost-user sockets. If the PF is among them, the client sees the others as its VFs.
fn plug_virtio(
    node: &Arc<Node>,
    serve: &Serve,
    recorder: Option<&Arc<Recorder>>,
) -> Result<Vec<Plug>, String> {
    let mut ats: Vec<&PlugAt> = serve.virtio.iter().collect();
    ats.sort_by_key(|at| at.function);
    let has_pf = ats.first().is_some_and(|at| at.function == 0);
    if let Some((_, at)) = ats.iter().enumerate().find(|(i, at)| has_pf && usize::from(at.function) != *i) {
        return Err(cannot(
            at,
            "expected functions without a gap beside the PF, whose VFs they are for its client",
        ));
    }
    let functions: Result<Vec<_>, _> = ats.iter().map(|at| claim(node, at, serve, recorder)).collect();
    let functions = functions?;
    let sriov = match functions.split_first() {
        Some((pf, vfs)) if has_pf => Some(Sriov::new(&**pf, vfs.to_vec())),
        _ => None,
    };
    // In the order of the command line, in which they are reported.
    let plug = |at: &PlugAt| {
        let index = ats.iter().position(|other| other.function == at.function).unwrap_or_default();
        let (function, place) = (functions[index].clone(), (at.function, sriov.clone()));
        Plug::virtio(&at.path, function, place, || jail::enter(Role::Client)).map_err(|e| cannot(at, e))
    };
    serve.virtio.iter().map(plug).collect()
}
