//! Adapters in virtual time: the process that conducts one, and programs that need one.

use crate::{faults, options::TimeRules};
use devmodel::{LinkLayer, engine::timing::TimingProfile};
use launcher::supervisor::fork_apart;
use nix::fcntl::{Flock, FlockArg};
use node::{
    Node, NodeError,
    timed::{Conductor, Rules},
};
use std::{
    env,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// Time limit for a conductor to start.
const BEGINS: Duration = Duration::from_secs(5);

fn rules(options: &TimeRules, fault: Option<&Path>, link_layer: LinkLayer) -> Result<Rules, String> {
    let name = options.profile.name(link_layer);
    let profile = TimingProfile::load(name).map_err(|e| e.to_string())?;
    if profile.wire.link_layer != link_layer {
        let found = profile.wire.link_layer;
        return Err(format!(
            "--profile: expected one of {link_layer}, as the adapter is, found {name}, of {found}"
        ));
    }
    let faults =
        faults::wanted(fault, options.timeline.as_deref(), options.seed).map_err(|e| e.to_string())?;
    Ok(Rules { profile, seed: options.seed, faults })
}

/// Conducts `node` unless another process does.
pub fn conduct(node: &Arc<Node>, options: &TimeRules, fault: Option<&Path>) -> Result<String, NodeError> {
    let failed = |why: String| NodeError::system("conduct the adapter")(std::io::Error::other(why));
    let rules = rules(options, fault, node.link_layer()).map_err(failed)?;
    let path = node.dir().join("conductor");
    let file =
        node::data::open_or_make(&path).map_err(NodeError::system(format!("make {}", path.display())))?;
    // Held until this process exits.
    let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(String::new()) };
    let plan = rules.faults.clone();
    let found = Conductor::new(node, rules)?.run();
    if let Some((plan, found)) = plan.zip(found) {
        if fault.is_some() {
            // On the programs' standard error.
            eprint!("{}", faults::table(&plan, &found));
        }
        faults::finish(&plan, &found, options.timeline.as_deref()).map_err(|e| failed(e.to_string()))?;
    }
    Ok(String::new())
}

/// Makes sure that the adapter in `dir` is conducted with `options` and the plan in the file `fault`.
pub fn begin(
    dir: &Path,
    options: &TimeRules,
    fault: Option<&Path>,
    link_layer: LinkLayer,
) -> Result<(), String> {
    let (rules, profile) = (rules(options, fault, link_layer)?, options.profile.name(link_layer));
    let other = || {
        format!(
            "the adapter in {} is in virtual time with other rules than '{profile}' with seed {}{}: wait for its programs to end",
            dir.display(),
            options.seed,
            fault.map_or(String::new(), |path| format!(" and faults of {}", path.display()))
        )
    };
    match rules.sit_down(dir) {
        Some(true) => return Ok(()),
        Some(false) => return Err(other()),
        None => {}
    }
    let exe = env::current_exe().map_err(|e| format!("cannot find this command's file: {e}"))?;
    let mut command = Command::new(exe);
    command.args(["adapter", "conduct", "--profile", profile, "--seed", &options.seed.to_string()]);
    // The conductor has another working directory.
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    if let Some(path) = fault {
        command.arg("--fault").arg(whole(path));
    }
    if let Some(path) = &options.timeline {
        command.arg("--timeline").arg(whole(path));
    }
    command.arg("--adapter").arg(dir).stdin(Stdio::null()).stdout(Stdio::null());
    // It is not a child of the program that this process execs.
    fork_apart(|| Err(command.exec())).map_err(|e| format!("cannot start the adapter's conductor: {e}"))?;
    let since = Instant::now();
    loop {
        match rules.sit_down(dir) {
            Some(true) => return Ok(()),
            Some(false) => return Err(other()),
            None => {}
        }
        if since.elapsed() > BEGINS {
            return Err(format!("the adapter in {} has no conductor", dir.display()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
