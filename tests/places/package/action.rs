//! The GitHub action of `action.yml`: its steps as a runner executes them, but without apt, followed by the workflow in README.md.

use super::{is_debian, pack, said, scratch, text, tree, yaml::Values};
use ironverbs_tests::program::built;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Output},
};

/// Replaces apt: unpacks packages given as files into `$ROOT`, and records everything else.
const APT: &str = r#"#!/bin/sh
echo "$*" >>"$ROOT/asked"
for word; do case $word in *.deb) dpkg-deb -x "$word" "$ROOT" ;; esac; done
"#;

/// A runner with its files in a folder.
struct Runner<'a> {
    folder: &'a Path,
}

/// A job's adapter disappears with its machine; here the machine stays, so the adapter is removed.
impl Drop for Runner<'_> {
    fn drop(&mut self) {
        let left = fs::read_to_string(self.folder.join("env")).unwrap_or_default();
        let node = left.lines().filter_map(|line| line.strip_prefix("IRONVERBS_NODE=")).next_back();
        let _ = node.map(fs::remove_dir_all);
    }
}

impl Runner<'_> {
    fn new(folder: &Path) -> Runner<'_> {
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).unwrap();
        // A test must not change the settings of the user.
        for (name, program) in
            [("apt-get", APT), ("sysctl", "#!/bin/sh\n"), ("sudo", "#!/bin/sh\nexec \"$@\"\n")]
        {
            fs::write(bin.join(name), program).unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        for file in ["env", "output"] {
            fs::write(folder.join(file), "").unwrap();
        }
        Runner { folder }
    }

    fn written(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap()
    }

    /// Runs a step with a shell that takes its script as {0}, and with the environment set by earlier steps.
    fn step(&self, shell: &str, run: &str, variables: &[(String, String)]) -> Output {
        let (script, at) = (self.folder.join("step"), self.folder.display());
        fs::write(&script, run).unwrap();
        let path = format!("{at}/bin:{at}/usr/bin:{}", std::env::var("PATH").unwrap());
        let mut words = shell.split(' ');
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60", words.next().unwrap()]);
        command.args(words.map(|word| if word == "{0}" { script.to_str().unwrap() } else { word }));
        command.env("PATH", path).env("ROOT", self.folder).env("GITHUB_ACTION_PATH", tree());
        command.env("RUNNER_TEMP", self.folder).env("GITHUB_JOB", format!("job-{}", std::process::id()));
        command.env("GITHUB_ENV", self.folder.join("env")).env("GITHUB_OUTPUT", self.folder.join("output"));
        let earlier = self.written("env");
        command.envs(earlier.lines().filter_map(|line| line.split_once('=')));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.folder).output().unwrap()
    }

    /// Runs the action's steps with these inputs until one fails. Returns their output, and true if all succeeded.
    fn action(&self, action: &Values, inputs: &[(&str, &str)]) -> (bool, String) {
        let mut all = String::new();
        for step in 0..action.all("runs.steps.", ".run").len() {
            let of = |name: &str| action.get(&format!("runs.steps.{step}.{name}")).unwrap_or_default();
            let given = |value: &str| {
                let name = value.trim_start_matches("${{ inputs.").trim_end_matches(" }}");
                let default = action.get(&format!("inputs.{name}.default")).expect("an input");
                inputs.iter().find(|(input, _)| *input == name).map_or(default, |(_, value)| value).to_owned()
            };
            let variables =
                ["IRONVERBS_DEB", "IRONVERBS_VFS", "IRONVERBS_LINK_LAYER"].iter().filter_map(|name| {
                    let value = action.get(&format!("runs.steps.{step}.env.{name}"))?;
                    Some((name.to_string(), given(value)))
                });
            assert_eq!(of("shell"), "sh");
            let out = self.step("sh -e {0}", of("run"), &variables.collect::<Vec<_>>());
            all += &text(&out.stdout);
            if !out.status.success() {
                return (false, all);
            }
        }
        (true, all)
    }
}

fn action() -> Option<Values> {
    Values::of(&fs::read_to_string(tree().join("action.yml")).unwrap())
}

/// The example of README.md.
fn workflow() -> Option<Values> {
    let page = fs::read_to_string(tree().join("README.md")).unwrap();
    let block = page.lines().skip_while(|line| !line.starts_with("    on: "));
    let block = block.take_while(|line| line.is_empty() || line.starts_with("    "));
    Values::of(&block.map(|line| format!("{}\n", line.get(4..).unwrap_or_default())).collect::<String>())
}

#[test]
fn later_steps_of_a_workflow_have_an_adapter() {
    let (true, Some(action), Some(workflow)) = (is_debian(), action(), workflow()) else { return };
    let scratch = scratch();
    let package = pack(scratch.dir(), "TZ", "UTC");
    let runner = Runner::new(scratch.dir());
    let step = |number: u32, what: &str| workflow.get(&format!("jobs.test.steps.{number}.{what}"));
    let vfs = step(0, "with.vfs").expect("the example's VFs");
    let (done, all) = runner.action(&action, &[("deb", package.to_str().unwrap()), ("vfs", vfs)]);
    assert!(done, "{all}");
    assert!(runner.written("asked").contains("perftest"), "{}", runner.written("asked"));
    let node = runner.written("env").trim().strip_prefix("IRONVERBS_NODE=").expect("a node").to_owned();
    assert_eq!(runner.written("output"), format!("node={node}\n"));

    let shell = workflow.get("jobs.test.defaults.run.shell").expect("the example's shell");
    let out = runner.step(shell, step(1, "run").expect("the example's step"), &[]);
    let devices = runner.step(shell, "ibv_devices | grep -c iron", &[]);
    said(Command::new(scratch.dir().join("usr/bin/ironverbs")).args(["node", "reset", "--adapter", &node]));
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    let row = |line: &str| line.split_whitespace().take(2).eq(["2", "1000"]);
    assert!(text(&out.stdout).lines().any(row), "{}", text(&out.stdout));
    let expected = vfs.parse::<u32>().unwrap() + 1;
    assert_eq!(text(&devices.stdout).trim(), expected.to_string());
}

#[test]
fn what_the_action_cannot_do_is_the_jobs_error_in_a_line() {
    let Some(action) = action() else { return };
    let scratch = scratch();
    let runner = Runner::new(scratch.dir());
    let refused = |inputs: &[(&str, &str)], why: &str| {
        let (done, all) = runner.action(&action, inputs);
        assert!(!done && all.lines().count() == 1 && all.starts_with("::error::ironverbs: "), "{all}");
        assert!(all.contains(why), "{all}");
    };
    refused(&[("deb", "/none.deb")], "no package at /none.deb");
    // It is empty, and the command is already installed.
    let package = scratch.dir().join("package");
    fs::write(&package, "").unwrap();
    symlink(built().join("ironverbs"), scratch.dir().join("bin/ironverbs")).unwrap();
    let deb = ("deb", package.to_str().unwrap());
    refused(&[deb, ("vfs", "900")], "invalid value '900'");
    refused(&[deb, ("link-layer", "token-ring")], "invalid value 'token-ring'");
    assert_eq!(runner.written("env"), "");
}
