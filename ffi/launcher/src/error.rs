//! Errors of launching a program. Each reads as one line.

use std::fs;
use std::io;

/// The reason why the program was not launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The node directory cannot be used.
    #[error(transparent)]
    NodeDir(#[from] node::dir::DirError),
    /// The status of a node cannot be read.
    #[error(transparent)]
    Node(#[from] node::NodeError),
    /// The provider's shared object is missing or cannot be linked.
    #[error("verbs provider: {0}")]
    Provider(String),
    /// No such program.
    #[error("program '{0}' not found")]
    NotFound(String),
    /// The program exists but cannot be executed.
    #[error("program '{program}' cannot be executed: {source}")]
    NotExecutable {
        /// As the user named it.
        program: String,
        /// The error from exec.
        source: io::Error,
    },
    /// The host forbids an operation that the launcher needs.
    #[error("this host forbids the namespaces a simulated adapter needs: {tried} failed: {source}; {remedy}")]
    Forbidden {
        /// The refused call.
        tried: String,
        /// The kernel's error.
        source: io::Error,
        /// The setting that would allow it.
        remedy: String,
    },
    /// A device of the host has the same name as one of the node.
    #[error(
        "this host has a device {0} of its own: `ironverbs adapter create --name` gives an adapter's devices other names"
    )]
    NameTaken(String),
    /// Two devices of different nodes have the same name or PCI address.
    #[error("{} and {} are both {what}: `ironverbs adapter create {option}` makes an adapter with another", places[0], places[1])]
    Twice {
        /// The name or the address.
        what: String,
        /// The devices.
        places: [String; 2],
        /// The option that would have distinguished them.
        option: &'static str,
    },
    /// Another step failed.
    #[error("cannot {what}: {source}")]
    Step {
        /// The step.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl LaunchError {
    /// For `map_err`: the error of the step `what`, to be read after "cannot".
    pub(super) fn step(what: String) -> impl Fn(io::Error) -> Self + Clone {
        move |source| {
            let what = what.clone();
            // A mount that is refused for lack of privileges has the same cause and remedy as a refused namespace.
            match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) if what.starts_with("mount") => {
                    Self::forbidden(&what, source)
                }
                _ => Self::Step { what, source },
            }
        }
    }

    /// The error when the call `tried` failed: the host forbids it, unless descriptors or memory ran out.
    pub(super) fn forbidden(tried: &str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
                Self::Step { what: tried.to_string(), source }
            }
            _ => Self::Forbidden { tried: tried.to_string(), source, remedy: remedy() },
        }
    }

    /// The underlying error of the system call.
    pub(super) fn into_io(self) -> io::Error {
        match self {
            Self::NotExecutable { source, .. }
            | Self::Forbidden { source, .. }
            | Self::Step { source, .. } => source,
            _ => io::Error::from(io::ErrorKind::Other),
        }
    }

    /// Exit status by the convention of env(1) and timeout(1): 127 not found, 126 not executable, else 125.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
            _ => 125,
        }
    }
}

/// True if the error is a shortage of descriptors, memory or processes, which may be temporary, rather than a missing or forbidden feature.
/// A process that ended before it was ready counts as a shortage too.
pub fn is_shortage(error: &io::Error) -> bool {
    const SHORT_OF: [i32; 5] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::ENOBUFS];
    let code = error.raw_os_error();
    code.map_or(error.kind() == io::ErrorKind::UnexpectedEof, |code| SHORT_OF.contains(&code))
}

/// The host setting that is the most likely obstacle, and how to change it.
pub fn remedy() -> String {
    let is = |file: &str, value: &str| fs::read_to_string(file).is_ok_and(|v| v.trim() == value);
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "allow it with: sysctl -w kernel.unprivileged_userns_clone=1, or run as root".into()
    } else if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "allow it with: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root".into()
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "allow it with: sysctl -w user.max_user_namespaces=10000, or run as root".into()
    } else {
        "in a container, start it with --cap-add SYS_ADMIN --security-opt apparmor=unconfined, or --privileged".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_mount_names_the_setting_and_stays_one_line() {
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        let e = LaunchError::step("mount a tmpfs over /sys/class".into())(refused);
        let said = e.to_string();
        assert!(said.contains("/sys/class") && said.contains("forbids") && !said.contains('\n'), "{said}");
        assert_eq!(e.exit_code(), 125);
    }

    #[test]
    fn a_host_that_is_out_of_descriptors_is_not_said_to_forbid_anything() {
        for lack in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            let said = LaunchError::forbidden("unshare(CLONE_NEWNS)", io::Error::from_raw_os_error(lack))
                .to_string();
            assert!(said.contains("cannot unshare(CLONE_NEWNS)") && !said.contains("forbids"), "{said}");
        }
    }
}
