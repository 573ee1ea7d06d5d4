//! One side of a torture run: `torture DIR FID listen|connect PORT SEED MILLISECONDS FAULTS`.
//!
//! Both sides get the same port of 127.0.0.1, over which they exchange lines, and the same seed, time and faults, in the format of
//! `--wire-faults`. Each prints a summary line and exits with 0, or prints the error and exits with 1.

use devmodel::wire::Faults;
use ironverbs_tests::torture::{Peer, Rules, Side, Sums};
use std::{
    error::Error,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    str::FromStr,
    time::{Duration, Instant},
};

type Done<T> = Result<T, Box<dyn Error>>;

/// Time limit for the peer to start, to connect, or to end, on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// Time limit for outstanding requests to finish: a hundred times the connections' timeout.
const DRAINED: Duration = Duration::from_secs(20);
/// After this time without a frame the wire is empty.
const QUIET: Duration = Duration::from_millis(50);

/// The line-based connection to the peer.
struct Peering {
    stream: TcpStream,
    heard: Vec<u8>,
}

impl Peering {
    fn meet(role: &str, port: u16) -> Done<Self> {
        let (at, begin) = ((Ipv4Addr::LOCALHOST, port), Instant::now());
        let listener = if role == "listen" { Some(TcpListener::bind(at)?) } else { None };
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        let stream = loop {
            let met = match &listener {
                Some(listener) => listener.accept().map(|(stream, _)| stream),
                None => TcpStream::connect(at),
            };
            match met {
                Ok(stream) => break stream,
                Err(e) if begin.elapsed() > SOON => return Err(format!("nobody at port {port}: {e}").into()),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, heard: Vec::new() })
    }

    fn tell(&mut self, line: impl std::fmt::Display) -> Done<()> {
        // A line is far shorter than the buffer of a socket.
        Ok(self.stream.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Returns the next line, if it has arrived.
    fn hear<T: FromStr<Err = String>>(&mut self) -> Done<Option<T>> {
        let mut some = [0; 4096];
        match self.stream.read(&mut some) {
            Ok(0) => return Err("the peer is gone".into()),
            Ok(n) => self.heard.extend_from_slice(&some[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(format!("the peer is gone: {e}").into()),
        }
        let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line: Vec<u8> = self.heard.drain(..=end).collect();
        Ok(Some(String::from_utf8_lossy(&line).trim().parse()?))
    }

    /// Waits for the next line within `limit`, while `meanwhile` keeps running.
    fn wait<T: FromStr<Err = String>>(
        &mut self,
        what: &str,
        limit: Duration,
        mut meanwhile: impl FnMut() -> Done<()>,
    ) -> Done<T> {
        let begin = Instant::now();
        loop {
            meanwhile()?;
            if let Some(line) = self.hear()? {
                return Ok(line);
            }
            if begin.elapsed() > limit {
                return Err(format!("the peer did not say {what} within {limit:?}").into());
            }
        }
    }
}

/// A line without content.
struct Word;

impl FromStr for Word {
    type Err = String;
    fn from_str(_: &str) -> Result<Self, String> {
        Ok(Self)
    }
}

fn main() -> Done<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, fid, role, port, seed, milliseconds, faults] = &args[..] else {
        return Err("usage: torture DIR FID listen|connect PORT SEED MILLISECONDS FAULTS".into());
    };
    let (fid, seed): (u8, u64) = (fid.parse()?, seed.parse()?);
    let faults: Faults = faults.parse()?;
    let mut peering = Peering::meet(role, port.parse()?)?;
    let device = node::open_device(&PathBuf::from(dir), fid)?;
    let which = usize::from(role == "listen");
    // The seed selects memory that can be lent or not, and a side that sleeps for events or polls.
    let mut side = Side::new(device, which, seed, Rules::of(&faults), seed & 1 == 0)?;
    let sleeps = seed >> 1 & 1 != 0 && which == 1;
    let nap = || {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    };
    peering.tell(side.card()?)?;
    let peer: Peer = peering.wait("who it is", SOON, nap)?;
    side.connect(&peer)?;
    peering.tell("ready")?;
    let _: Word = peering.wait("that it is ready", SOON, nap)?;

    let mut paced = Paced { side, sleeps, last: Instant::now(), longest: Duration::ZERO };
    let length = Duration::from_millis(milliseconds.parse()?);
    // If both sides fail, the one that was kept from running may merely have lost its peer.
    torment(&mut paced, &mut peering, length)
        .map_err(|what| format!("{what}; the longest turn took {:?}", paced.longest))?;
    println!("{}; the longest turn took {:?}", paced.side.summary(), paced.longest);
    Ok(())
}

/// Posts requests for `length`, then continues until everything has arrived and both sides have reported what they sent.
fn torment(paced: &mut Paced, peering: &mut Peering, length: Duration) -> Done<()> {
    let begin = Instant::now();
    while begin.elapsed() < length {
        paced.turn(false)?;
    }
    let end = Instant::now();
    while !paced.side.is_idle() {
        if end.elapsed() > DRAINED {
            return Err(format!("requests are under way after {DRAINED:?}: {}", paced.side.summary()).into());
        }
        paced.turn(true)?;
    }
    peering.tell(paced.side.sums())?;
    let sums: Sums = peering.wait("what it sent", length + DRAINED, || paced.turn(true).map(drop))?;
    let mut last = Instant::now();
    while last.elapsed() < QUIET {
        if paced.turn(true)? != 0 {
            last = Instant::now();
        }
    }
    paced.side.settle(&sums)?;
    peering.tell("over")?;
    let _: Word = peering.wait("that it is over", SOON, || paced.turn(true).map(drop))?;
    Ok(())
}

/// A side, and the longest time for which it did not run: neither its own retries nor its peer's outlast a long pause.
struct Paced {
    side: Side,
    sleeps: bool,
    last: Instant,
    longest: Duration,
}

impl Paced {
    /// Takes a turn; a turn without progress yields to other threads.
    fn turn(&mut self, last: bool) -> Done<usize> {
        let turned = self.side.turn(last);
        self.longest = self.longest.max(self.last.elapsed());
        let count = turned?;
        match (count, self.sleeps) {
            (0, true) => self.side.rest(Duration::from_millis(2))?,
            (0, false) => std::thread::yield_now(),
            _ => {}
        }
        self.last = Instant::now();
        Ok(count)
    }
}
