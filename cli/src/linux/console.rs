//! The lines between the guest and this process; each is a terminal of the guest (`tty1` and up).
//!
//! If this process is at a terminal, the guest has one too, `tty1`: a pseudo-terminal with bytes passed through unchanged while the host's
//! is in raw mode. Otherwise `tty1` to `tty3` are the command's standard streams, so that its output can be piped and compared. `tty4` is a
//! control line: the guest reports there, and is asked to stop.
//!
//! Two bugs of user-mode Linux (7.3) shape this. When a line is closed, it corrupts its own memory, on multiple processors. And it never
//! again reads a line with a reader that has fallen 4 KiB behind. So no line is closed before the guest ends, and the command's input is
//! passed in files, one after the guest has taken the previous one, with their names sent over `tty1`.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::termios::{self, SetArg, Termios};

/// Time limit for the last bytes of a guest that has ended.
const DRAIN: Duration = Duration::from_secs(5);
/// Maximum size of a piece of input in bytes.
const PIECE: usize = 1 << 20;
/// Sent to the guest in place of a piece's name at the end of the input.
const END: &str = "end";
/// Interval of checks of the host terminal's size.
const RESIZE: Duration = Duration::from_millis(200);

/// A line that the guest writes to `tty4`.
#[derive(Debug, PartialEq, Eq)]
pub enum Report {
    /// The guest reads its lines, and starts the command.
    Ready,
    /// The command has exited with this status, and all files are written.
    Ended(u8),
    /// The guest cannot start.
    Failed(String),
}

impl Report {
    fn parse(line: &str) -> Option<Self> {
        match line.trim().split_once(' ').unwrap_or((line.trim(), "")) {
            ("ready", "") => Some(Self::Ready),
            ("ended", status) => status.parse().ok().map(Self::Ended),
            ("failed", why) => Some(Self::Failed(why.into())),
            _ => None,
        }
    }
}

/// Lines that are created but not connected yet.
pub struct Console {
    arguments: Vec<String>,
    /// The remote ends, which the kernel inherits.
    theirs: Vec<OwnedFd>,
    lines: Lines,
}

/// A line, and the local stream that receives its output.
type Output = (File, Box<dyn Write + Send>);

/// The local ends.
pub struct Lines {
    /// With a receiver that gets a message for each piece of input that the guest has taken.
    input: Option<(File, Receiver<()>)>,
    outputs: Vec<Output>,
    control: UnixStream,
    reports: Receiver<Report>,
    /// The terminal's original state, if this process is at one.
    terminal: Option<Terminal>,
    copied: Vec<Receiver<()>>,
}

impl Console {
    /// Creates the lines. The kernel's log goes to `log`.
    pub fn new(log: File) -> io::Result<Self> {
        let mut theirs = Vec::new();
        // user-mode Linux waits for its lines by epoll, so none of them may be a file or /dev/null.
        let mut line = || -> io::Result<UnixStream> {
            let (ours, their_end) = UnixStream::pair()?;
            theirs.push(OwnedFd::from(their_end));
            Ok(ours)
        };
        let printed = line()?;
        let (input, outputs, terminal): (OwnedFd, Vec<Output>, _) =
            if io::stdin().is_terminal() && io::stdout().is_terminal() {
                let pty = nix::pty::openpty(None, None)?;
                theirs.push(pty.slave);
                let terminal = Terminal {
                    as_it_was: termios::tcgetattr(io::stdin())?,
                    guest: pty.master.try_clone()?.into(),
                };
                let output: Output = (File::from(pty.master.try_clone()?), Box::new(io::stdout()));
                (pty.master, vec![output], Some(terminal))
            } else {
                let input = line()?;
                let out: Output = (OwnedFd::from(line()?).into(), Box::new(io::stdout()));
                let err: Output = (OwnedFd::from(line()?).into(), Box::new(io::stderr()));
                (input.into(), vec![out, err], None)
            };
        let control = UnixStream::pair()?;
        let numbers: &[u8] = if terminal.is_some() { &[0, 1] } else { &[0, 1, 2, 3] };
        let mut arguments: Vec<_> = numbers
            .iter()
            .zip(&theirs)
            .map(|(number, end)| format!("con{number}=fd:{}", end.as_raw_fd()))
            .collect();
        arguments.push(format!("con4=fd:{}", control.1.as_raw_fd()));
        theirs.push(control.1.into());
        let (reports, taken) = listen(control.0.try_clone()?);
        let copied = vec![carry(printed, log)];
        let lines = Lines {
            input: Some((input.into(), taken)),
            outputs,
            control: control.0,
            reports,
            terminal,
            copied,
        };
        Ok(Self { arguments, theirs, lines })
    }

    /// True if the guest has a terminal.
    pub fn is_terminal(&self) -> bool {
        self.lines.terminal.is_some()
    }

    /// The kernel's arguments.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Makes the remote ends inheritable only for the process that `start` starts.
    pub fn connect<T>(self, start: impl FnOnce() -> Result<T, String>) -> Result<(Lines, T), String> {
        for end in &self.theirs {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::empty()))
                .map_err(|e| format!("cannot hand a line over: {e}"))?;
        }
        start().map(|started| (self.lines, started))
    }
}

/// Receives the guest's reports, and its acknowledgements of pieces of input.
fn listen(from: impl Read + Send + 'static) -> (Receiver<Report>, Receiver<()>) {
    let ((say, reports), (take, taken)) = (mpsc::channel(), mpsc::channel());
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // A receiver that is gone has ended for another reason and needs no report.
            match Report::parse(&line) {
                Some(report) => drop(say.send(report)),
                None if line.trim() == "taken" => drop(take.send(())),
                None => {}
            }
        }
    });
    (reports, taken)
}

impl Lines {
    /// The next report, waiting at most for `most`.
    pub fn report(&mut self, most: Duration) -> Result<Report, RecvTimeoutError> {
        self.reports.recv_timeout(most)
    }

    /// Starts the transfer of bytes, once the guest's terminals are in the required mode. `world` is the folder that the guest started
    /// from.
    pub fn open(&mut self, world: &Path) -> io::Result<()> {
        if let Some(terminal) = &self.terminal {
            terminal.raw()?;
            terminal.follow_size()?;
        }
        if let Some((input, taken)) = self.input.take() {
            // Ends with this process: a read from standard input cannot be cancelled.
            match &self.terminal {
                Some(_) => thread::spawn(move || copy(io::stdin(), input)),
                None => {
                    let dir = world.join("in");
                    // Standard input without Rust's buffer of 8 KiB.
                    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                    thread::spawn(move || copy_in_pieces(stdin, input, &dir, &taken))
                }
            };
        }
        self.copied.extend(self.outputs.drain(..).map(|(from, to)| carry(from, to)));
        Ok(())
    }

    /// Asks the guest to stop its command.
    pub fn ask_to_stop(&mut self) {
        let _ = (&self.control).write_all(b"stop\n");
    }

    /// Waits for the last bytes of a guest that has ended.
    pub fn drain(&self) {
        for copied in &self.copied {
            let _ = copied.recv_timeout(DRAIN);
        }
    }
}

/// Copies bytes in a separate thread, which signals when it has ended.
fn carry(from: impl Read + Send + 'static, to: impl Write + Send + 'static) -> Receiver<()> {
    let (done, copied) = mpsc::channel();
    thread::spawn(move || {
        copy(from, to);
        let _ = done.send(());
    });
    copied
}

/// Copies bytes as they arrive until either side ends.
fn copy(mut from: impl Read, mut to: impl Write) {
    let mut bytes = [0; 64 << 10];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(len) if to.write_all(&bytes[..len]).and_then(|()| to.flush()).is_ok() => {}
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // A pseudo-terminal with its other end closed.
            Err(_) => break,
        }
    }
}

/// Like [`copy`], but in files in `dir`. Their names go to `to`, each after the previous file was `taken`. Never closes `to`.
fn copy_in_pieces(mut from: impl Read, mut to: impl Write + IntoRawFd, dir: &Path, taken: &Receiver<()>) {
    let mut bytes = vec![0; PIECE];
    for number in 0_u64.. {
        let len = match from.read(&mut bytes) {
            Ok(len) => len,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        let name = number.to_string();
        if len == 0 || fs::write(dir.join(&name), &bytes[..len]).is_err() {
            let _ = writeln!(to, "{END}");
            break;
        }
        if writeln!(to, "{name}").is_err() || taken.recv().is_err() {
            break;
        }
    }
    // Stays open until this process ends.
    let _ = to.into_raw_fd();
}

/// The host's and the guest's terminal. The host's is restored on drop.
struct Terminal {
    as_it_was: Termios,
    guest: File,
}

impl Terminal {
    fn raw(&self) -> io::Result<()> {
        let mut raw = self.as_it_was.clone();
        termios::cfmakeraw(&mut raw);
        Ok(termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?)
    }

    /// Sets the size of the guest's terminal to that of the host's, now and on every change.
    fn follow_size(&self) -> io::Result<()> {
        let guest = self.guest.try_clone()?;
        thread::spawn(move || {
            let mut last = None;
            loop {
                if let Some(size) = size(&io::stdin()) {
                    let now = Some((size.ws_row, size.ws_col));
                    if now != last {
                        set_size(&guest, &size);
                        last = now;
                    }
                }
                thread::sleep(RESIZE);
            }
        });
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.as_it_was);
    }
}

fn size(terminal: &impl AsFd) -> Option<libc::winsize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, which lives across the call.
    let done = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (done == 0).then_some(size)
}

fn set_size(terminal: &impl AsFd, size: &libc::winsize) {
    // SAFETY: TIOCSWINSZ reads one winsize, which lives across the call. If it fails, the size stays unchanged.
    unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const *size) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_as_the_guest_s_scripts_write_them() {
        assert_eq!(Report::parse("ready\r"), Some(Report::Ready));
        assert_eq!(Report::parse("ended 137"), Some(Report::Ended(137)));
        assert_eq!(Report::parse("failed no overlay here"), Some(Report::Failed("no overlay here".into())));
        for line in ["", "ended", "ended 256", "ended -1", "ready now", "[    0.1] a kernel's word"] {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }

    #[test]
    fn input_goes_in_pieces_and_its_end_closes_nothing() {
        let dir = &testkit::Scratch::made().0;
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (take, taken) = mpsc::channel();
        (0..2).for_each(|_| take.send(()).unwrap());
        let input: Vec<u8> = (0..PIECE + 7).map(|i| i as u8).collect();
        copy_in_pieces(&input[..], theirs, dir, &taken);
        let pieces = ["0", "1"].map(|name| fs::read(dir.join(name)).unwrap());
        assert!(pieces.concat() == input);
        ours.set_nonblocking(true).unwrap();
        let mut got = [0; 64];
        let len = ours.read(&mut got).unwrap();
        assert_eq!(&got[..len], b"0\n1\nend\n");
        assert_eq!(ours.read(&mut got).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn bytes_pass_unchanged_until_their_end() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let mut out = Vec::new();
        copy(&bytes[..], &mut out);
        assert_eq!(out, bytes);
    }
}
