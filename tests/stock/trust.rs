//! Members of a node's group, and programs in containers, may put anything into its directory, which they share with root. It is treated as
//! data, and cannot affect the host ([security](../../docs/security.md)).
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), root, setpriv and a C compiler. Tests with requirements that are not
//! met say so, and are skipped.

use ironverbs_tests::{program::is_root, stock::Node};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    process::{Command, Output},
    time::{Duration, Instant},
};

/// A group that need not exist on this machine.
pub const GROUP: &str = "4321";
/// Files of a node's directory, and names used in the past.
const NAMES: [&str; 8] =
    ["adapter", "parties", "ports", "userns", "clock", "conductor", "containers", "cpuinfo"];
/// Time limit for a command of root, whatever the directory contains.
const LIMIT: Duration = Duration::from_secs(10);

/// Targets of an attack on root: a file, a name at which nothing exists, and root's rights for code of the attacker.
pub struct Treasure {
    home: PathBuf,
}

impl Treasure {
    /// The attacker's code is in the directory of `node`, where they can put it themselves.
    pub fn beside(node: &Node) -> Self {
        let home = node.dir().with_extension("treasure");
        fs::create_dir(&home).expect("a directory");
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("its mode");
        let treasure = Self { home };
        fs::write(treasure.file(), "root's").expect("a file");
        fs::set_permissions(treasure.file(), fs::Permissions::from_mode(0o600)).expect("its mode");
        let source = treasure.home.join("code.c");
        let code = format!(
            "#include <fcntl.h>\n__attribute__((constructor)) static void go(void) {{ creat(\"{}\", 0600); }}\n",
            treasure.mark().display()
        );
        fs::write(&source, code).expect("a source");
        let library = node.dir().join("code.so");
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        assert!(made.expect("cc").success());
        treasure
    }

    fn file(&self) -> PathBuf {
        self.home.join("file")
    }

    fn gone(&self) -> PathBuf {
        self.home.join("nothing")
    }

    fn mark(&self) -> PathBuf {
        self.home.join("mark")
    }

    /// Returns a script that leaves code wherever a launcher has looked for some.
    pub fn code(&self, node: &Node) -> String {
        format!(
            "cd {} && mkdir -p lib && for name in libironverbs libironverbs-rdmav34 libironverbs-rdmav57 libironverbs-rdmav59 \
             libironverbs-rdmav64 libironverbs-rdmav65; do ln -sfn $PWD/code.so lib/$name.so; done; \
             echo driver $PWD/lib/libironverbs >ironverbs.driver",
            node.dir().display()
        )
    }

    /// Returns scripts that replace `name` by a link to root's file, by a dangling link, by a FIFO, or by a directory.
    pub fn in_place_of(&self, node: &Node, name: &str) -> Vec<String> {
        let [dir, file, gone] =
            [node.dir().to_path_buf(), self.file(), self.gone()].map(|p| p.display().to_string());
        let put = |how: String| format!("cd {dir} && rm -rf {name} && {how}");
        vec![
            put(format!("ln -s {file} {name}")),
            put(format!("ln -s {gone} {name}")),
            put(format!("mkfifo -m 666 {name}")),
            put(format!("mkdir -m 777 {name}")),
        ]
    }

    /// Checks that root's commands on such a node take no longer than usual, change nothing of root's, and run no foreign code.
    pub fn stays_whole(&self, node: &Node, when: &str) {
        let dir = node.dir().display().to_string();
        let timed = &["run", "--clock", "timed", "--node", &dir, "--", "true"][..];
        let conducted = ["code", "clock", "conductor", "cpuinfo"].iter().any(|name| when.ends_with(name));
        let always = [
            &["run", "--node", &dir, "--", "ibv_devinfo", "-d", "iron1"][..],
            &["node", "status", "--node", &dir],
            &["node", "create", "--node", &dir, "--vfs", "2", "--group", GROUP],
        ];
        for command in always.into_iter().chain(conducted.then_some(timed)) {
            let (begin, words) = (Instant::now(), command.join(" "));
            let out = Command::new(node.binary()).args(command).output().expect("ironverbs");
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(begin.elapsed() < LIMIT, "{when}: {words}: {:?}", begin.elapsed());
            assert!(!said.contains("panicked"), "{when}: {words}: {said}");
            assert!(out.status.code().is_some(), "{when}: {words}: {:?}", out.status);
            let file = fs::metadata(self.file()).expect("root's file");
            assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (0, 0, 0o600), "{when}: {words}");
            assert_eq!(fs::read(self.file()).expect("root's file"), b"root's", "{when}: {words}");
            assert!(!self.gone().exists(), "{when}: {words} made a file");
            assert!(!self.mark().exists(), "{when}: {words} ran code of others");
        }
    }
}

impl Drop for Treasure {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// Runs a script as a user with no rights except membership of the group.
fn as_member(script: &str) -> Output {
    let member = ["--reuid=65534", "--regid=65534", "--groups", GROUP, "--", "sh", "-ec", script];
    Command::new("setpriv").args(member).output().expect("setpriv")
}

#[test]
fn what_a_member_of_the_group_puts_in_the_directory_does_nothing_to_root() {
    let node = Node::new("trust", 2);
    if !is_root() {
        return println!("skipped: needs root");
    }
    let create = ["--vfs", "2", "--group", GROUP];
    node.ironverbs(&["node", "create"], &create).finish();
    let treasure = Treasure::beside(&node);
    let done = as_member(&treasure.code(&node));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    treasure.stays_whole(&node, "code");
    let info = node.run(&["ibv_devinfo", "-d", "iron1"]);
    assert!(info.contains("PORT_ACTIVE"), "a node with such things is as good as others: {info}");
    for name in NAMES {
        for script in treasure.in_place_of(&node, name) {
            let done = as_member(&script);
            assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
            treasure.stays_whole(&node, &script);
        }
        fs::remove_dir_all(node.dir()).expect("the node's directory");
        node.ironverbs(&["node", "create"], &create).finish();
    }
}
