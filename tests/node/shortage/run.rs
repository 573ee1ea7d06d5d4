//! One run of a program in which a call fails, and its outcome.

use std::{
    fmt,
    fs::{self, File},
    io::Read,
    os::unix::{fs::FileExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};

/// Time limit for a program, and for processes that it leaves.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of the file in which `tests/programs/shortage.c` counts calls.
const COUNTS: usize = 512;

/// The exit status of a Rust program that panicked.
const PANIC: i32 = 101;

/// The exit status of `ironverbs run` when it cannot launch the program.
const LAUNCHER: i32 = 125;

/// A kind of call, and the errors it fails with.
pub struct Kind {
    pub name: &'static str,
    errnos: &'static [i32],
}

/// In the order of `kinds` in `shortage.c`.
pub const KINDS: [Kind; 10] = [
    Kind { name: "open", errnos: &[libc::EMFILE, libc::ENFILE, libc::ENOMEM] },
    Kind { name: "fallocate", errnos: &[libc::ENOSPC, libc::ENOMEM] },
    // A full file system can still punch holes; a failure means a lack of memory or of permission.
    Kind { name: "hole", errnos: &[libc::ENOMEM, libc::EPERM] },
    Kind { name: "mmap", errnos: &[libc::ENOMEM] },
    Kind { name: "memfd", errnos: &[libc::EMFILE, libc::ENOMEM] },
    Kind { name: "socket", errnos: &[libc::EMFILE, libc::ENFILE, libc::ENOBUFS] },
    Kind { name: "descriptor", errnos: &[libc::EMFILE, libc::ENFILE, libc::ENOMEM] },
    Kind { name: "write", errnos: &[libc::ENOSPC] },
    Kind { name: "thread", errnos: &[libc::EAGAIN] },
    Kind { name: "fork", errnos: &[libc::EAGAIN, libc::ENOMEM] },
];

/// The calls that fail.
pub struct Shortage {
    kind: &'static Kind,
    first: u32,
    last: u32,
    errno: i32,
}

impl Shortage {
    fn of(kind: &'static Kind, first: u32, last: u32) -> Self {
        Self { kind, first, last, errno: kind.errnos[first as usize % kind.errnos.len()] }
    }

    /// A single failing call.
    pub fn once(kind: &'static Kind, number: u32) -> Self {
        Self::of(kind, number, number)
    }

    /// Returns true if a program reports the shortage, in our words or in the system's.
    fn is_reported_in(&self, said: &str) -> bool {
        let causes =
            KINDS.iter().flat_map(|kind| kind.errnos).map(|errno| std::io::Error::from_raw_os_error(*errno));
        let mut words =
            causes.map(|cause| cause.to_string().split(" (os").next().unwrap_or_default().to_owned());
        said.contains("ironverbs: ") || words.any(|words| said.contains(&words))
    }

    /// Returns true if a stock program or library may have failed, which does not report the cause; `code` is the exit code. A frame that
    /// finds no memory is lost, as on a network, so its receiver reports a timeout.
    fn is_anybodys(&self, code: i32, said: &str) -> bool {
        let kind = self.kind.name;
        code != LAUNCHER
            && (["open", "socket"].contains(&kind) || kind == "fallocate" && said.contains("timed out"))
    }

    /// All calls from one on.
    pub fn lasting(kind: &'static Kind, first: u32) -> Self {
        Self::of(kind, first, u32::MAX)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, first, last, errno } = self;
        let on = if first == last { "" } else { " and all later ones" };
        write!(f, "{} {first}{on}, {}", kind.name, std::io::Error::from_raw_os_error(*errno))
    }
}

/// The outcome of a run.
pub struct Outcome {
    /// `None` if it did not end in time.
    pub status: Option<ExitStatus>,
    /// Output on stdout and stderr.
    pub said: String,
    /// The part on stdout.
    pub out: String,
    /// The call that failed, if any.
    pub failed: String,
}

impl Outcome {
    /// Returns true if the failing call was one of `ironverbs` itself or of its supervisor.
    pub fn failed_in_ironverbs(&self) -> bool {
        self.failed.starts_with("ironverbs:")
    }

    /// Returns true on success and false on a reported error; any other outcome of a run with `shortage` is an error.
    pub fn judge(&self, shortage: Option<&Shortage>) -> Result<bool, String> {
        let Self { status, said, failed, .. } = self;
        let wrong = |what: String| Err(format!("{failed}: {what}:\n{said}"));
        let Some(status) = status else { return wrong(format!("no end within {LIMIT:?}")) };
        let code = status.code().unwrap_or(PANIC);
        match () {
            () if status.signal().is_some() || code == PANIC || said.contains("panicked") => {
                wrong(status.to_string())
            }
            // The exit status of our own programs for a violated invariant.
            () if code == 3 => wrong("a broken promise".into()),
            () if code != 0 && said.trim().is_empty() => wrong(format!("{status} without a word")),
            () if code != 0
                && shortage.is_some_and(|s| !(s.is_reported_in(said) || s.is_anybodys(code, said))) =>
            {
                wrong(format!("{status} without the cause"))
            }
            () => Ok(code == 0),
        }
    }
}

/// The library that makes calls fail, and the file in which it counts them.
pub struct Shim {
    library: PathBuf,
    counts: PathBuf,
}

impl Shim {
    /// Uses `library` with the private file `counts`.
    pub fn new(library: PathBuf, counts: PathBuf) -> Self {
        Self { library, counts }
    }

    fn reset(&self) {
        let file =
            File::options().write(true).create(true).truncate(false).open(&self.counts).expect("counts");
        file.write_all_at(&[0; COUNTS], 0).expect("counts");
    }

    /// Returns the number of calls since the last start, by kind.
    pub fn counts(&self) -> [u32; KINDS.len()] {
        let bytes = fs::read(&self.counts).expect("counts");
        std::array::from_fn(|i| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[i * 4 + byte])))
    }

    fn failed(&self) -> String {
        let bytes = fs::read(&self.counts).expect("counts");
        let name = &bytes[(KINDS.len() + 1) * 4..];
        String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
    }

    /// Starts `command` with the calls in `shortage` failing.
    pub fn start(&self, command: &mut Command, shortage: Option<&Shortage>) -> Running<'_> {
        self.reset();
        let how = match shortage {
            Some(s) => {
                format!("{} {} {} {} {}", self.counts.display(), s.kind.name, s.first, s.last, s.errno)
            }
            None => format!("{} none 0 0 0", self.counts.display()),
        };
        command.env("SHORTAGE", how).env("LD_PRELOAD", &self.library);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start a program");
        let texts = [read(child.stdout.take().expect("piped")), read(child.stderr.take().expect("piped"))];
        Running { shim: self, child, texts }
    }

    /// Removes the file.
    pub fn forget(&self) {
        let _ = fs::remove_file(&self.counts);
    }

    /// Waits until all processes of this lab are gone; remaining ones are reported and killed.
    pub fn all_gone(&self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > LIMIT / 4 {
                let names: Vec<_> = left.iter().map(|(pid, name)| format!("{pid} {name}")).collect();
                for (pid, _) in left {
                    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
                }
                return Err(format!("processes left behind: {}", names.join(", ")));
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// Processes with our file in their environment: those started here, and their supervisors.
    fn processes(&self) -> Vec<(u32, String)> {
        let ours = self.counts.to_str().expect("a path in UTF-8").as_bytes();
        let of_us = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(ours.len()).any(|part| part == ours)
        };
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let name =
            |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
        numbers.filter(of_us).map(|pid| (pid, name(pid))).collect()
    }
}

/// A running program.
pub struct Running<'a> {
    shim: &'a Shim,
    child: Child,
    texts: [JoinHandle<String>; 2],
}

fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Running<'_> {
    /// Returns true if it ended before `there` existed.
    pub fn ended_before(&mut self, there: &Path) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < LIMIT && !there.exists() {
            if self.child.try_wait().expect("wait").is_some() {
                return true;
            }
            sleep(Duration::from_millis(1));
        }
        false
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
    }

    /// Waits for its end.
    pub fn end(mut self) -> Outcome {
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => break Some(status),
                None if begin.elapsed() > LIMIT => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    break None;
                }
                None => sleep(Duration::from_millis(1)),
            }
        };
        // A process that still has their ends open is found later.
        let texts = status.map(|_| self.texts.map(|text| text.join().expect("reader")));
        let [out, errors] = texts.unwrap_or_default();
        Outcome { status, said: format!("{out}{errors}"), out, failed: self.shim.failed() }
    }
}
