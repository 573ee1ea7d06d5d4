//! Device files for management datagrams (ib_user_mad.h): a function's `umadN` on InfiniBand.
//!
//! The file is `/dev/null` until a program asks it something; then its descriptor becomes a socket of ours, under the same
//! number. What a program writes are packets to the subnet, what it reads are those that come back. Performance
//! and subnet management of the node is answered here; whatever else is asked finds nobody, as on a port whose packets are lost.

use super::process::{Piece, Process};
use super::sys;
use crate::devices::DeviceInfo;
use crate::launcher::nldev::World;
use crate::launcher::notify::{Listener, Notice};
use crate::launcher::seccomp::{ENABLE_PKEY, REGISTER, REGISTER_2, UNREGISTER};
use crate::runtime::Observer;
use hwspec::wire::mad::MAD_SIZE;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Agents one file may have.
const AGENTS: usize = 32;
/// Bytes before a packet's MAD: as of old, and with a P_Key index.
const OLD_HEADER: usize = 56;
const HEADER: usize = 64;
/// Bytes of a MAD's own header.
const MAD_HEADER: usize = 24;
/// Questions that wait for nobody, per file.
const MANY: usize = 1024;
/// Packets taken at once.
const BURST: usize = 64;

/// A file that was opened and asked something.
struct File {
    ours: OwnedFd,
    /// The function it is of.
    fid: u8,
    agents: [bool; AGENTS],
    /// Its packets have a P_Key index.
    wide: bool,
    used: bool,
    /// Packets without an answer, and when their senders hear of it.
    lost: Vec<(Instant, Vec<u8>)>,
}

/// All such files.
#[derive(Default)]
pub struct Umads(BTreeMap<u64, File>);

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn ne32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

impl Umads {
    /// Answers a call to one of the files' ioctls; other files' are passed on.
    pub fn serve(&mut self, listener: &Listener, world: &World, notice: &Notice) {
        let process = Process(notice.thread);
        let number = notice.args[0] as u32;
        let known = process.socket(number).filter(|inode| self.0.contains_key(inode));
        let inode = match known {
            Some(inode) => inode,
            None => {
                let Some(fid) = function(world, process, number) else { return listener.pass(notice) };
                match self.open(listener, notice, process, number, fid) {
                    Ok(inode) => inode,
                    Err(e) => {
                        listener.answer(notice, Err(e.raw_os_error().unwrap_or(libc::EIO)));
                        return;
                    }
                }
            }
        };
        let Some(file) = self.0.get_mut(&inode) else { return };
        listener.answer(notice, file.control(process, notice.args[1] as u32, notice.args[2]).map(|()| 0));
    }

    /// Puts a socket in the place of the descriptor.
    fn open(
        &mut self,
        listener: &Listener,
        notice: &Notice,
        process: Process,
        number: u32,
        fid: u8,
    ) -> io::Result<u64> {
        let flags = process.file_flags(number).unwrap_or(0);
        let (ours, its) = sys::packet_pair(flags & libc::O_NONBLOCK != 0)?;
        let inode = sys::inode(its.as_fd())?;
        listener.place(notice, its.as_fd(), number, flags & libc::O_CLOEXEC != 0)?;
        let file = File { ours, fid, agents: [false; AGENTS], wide: false, used: false, lost: Vec::new() };
        self.0.insert(inode, file);
        Ok(inode)
    }

    /// What to wait for.
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.0.values().map(|file| file.ours.as_fd()).collect()
    }

    /// Takes what programs wrote, and tells of what had no answer. Files that were closed go.
    pub fn work(&mut self, world: &World) {
        self.0.retain(|_, file| file.work(world));
    }

    /// When the next question has waited long enough.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.0.values().flat_map(|file| file.lost.iter().map(|(until, _)| *until)).min()
    }
}

/// The function whose stand-in a descriptor is, if it is one of ours.
fn function(world: &World, process: Process, number: u32) -> Option<u8> {
    let path = process.file(number);
    let name = path.as_deref().and_then(|path| path.strip_prefix("/dev/infiniband/umad"));
    let id: Option<u32> = name.and_then(|id| id.parse().ok());
    let device = |id| world.devices().iter().find(|d| d.has_umad() && d.uverbs == id);
    id.and_then(device).map(|device| device.fid)
}

impl File {
    /// One ioctl.
    fn control(&mut self, process: Process, command: u32, argument: u64) -> Result<(), i32> {
        match command {
            ENABLE_PKEY if self.used => Err(libc::EINVAL),
            ENABLE_PKEY => {
                (self.wide, self.used) = (true, true);
                Ok(())
            }
            REGISTER => {
                let request = process.read(Piece { address: argument, len: 28 })?;
                self.register(process, argument, request[20].into())
            }
            REGISTER_2 => {
                let request = process.read(Piece { address: argument, len: 40 })?;
                // The only flag is that the program does RMPP itself.
                if ne32(&request, 12) & !1 != 0 {
                    process.put_u32(argument + 12, 1)?;
                    return Err(libc::EINVAL);
                }
                self.wide |= !self.used;
                self.register(process, argument, ne32(&request, 4))
            }
            UNREGISTER => {
                let id = process.u32(argument)? as usize;
                let agent = self.agents.get_mut(id).filter(|there| **there).ok_or(libc::EINVAL)?;
                *agent = false;
                Ok(())
            }
            _ => Err(libc::ENOTTY),
        }
    }

    fn register(&mut self, process: Process, argument: u64, qpn: u32) -> Result<(), i32> {
        if qpn > 1 {
            return Err(libc::EINVAL);
        }
        let free = self.agents.iter().position(|there| !there).ok_or(libc::ENOMEM)?;
        process.put_u32(argument, free as u32)?;
        self.agents[free] = true;
        self.used = true;
        Ok(())
    }

    fn header(&self) -> usize {
        if self.wide { HEADER } else { OLD_HEADER }
    }

    fn work(&mut self, world: &World) -> bool {
        for _ in 0..BURST {
            match sys::receive_packet(self.ours.as_fd(), HEADER + MAD_SIZE) {
                Ok(Some(packet)) => self.sent(world, packet),
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        let now = Instant::now();
        let header = self.header();
        let (over, waiting) =
            std::mem::take(&mut self.lost).into_iter().partition(|(until, _)| *until <= now);
        self.lost = waiting;
        for (_, mut packet) in over {
            // Back comes what was sent, as far as it tells which it was.
            packet.truncate(header + MAD_HEADER);
            packet[4..8].copy_from_slice(&libc::ETIMEDOUT.to_ne_bytes());
            packet[16..20].copy_from_slice(&(MAD_HEADER as u32).to_ne_bytes());
            sys::send_packet(self.ours.as_fd(), &packet);
        }
        true
    }

    /// A packet that a program sends.
    fn sent(&mut self, world: &World, packet: Vec<u8>) {
        let header = self.header();
        let agent = self.agents.get(ne32(&packet, 0) as usize).is_some_and(|there| *there);
        if !agent || packet.len() < header + MAD_HEADER {
            return;
        }
        let mut mad = [0; MAD_SIZE];
        let len = (packet.len() - header).min(MAD_SIZE);
        mad[..len].copy_from_slice(&packet[header..header + len]);
        let (qpn, lid) = (ne32(&packet, 20).to_be(), be16(&packet, 28));
        let answer = match qpn {
            0 => world.observer().and_then(|observer| observer.management(self.fid, lid, &mad)),
            1 => port(world, lid).and_then(|(observer, fid)| observer.performance(fid, &mad)),
            _ => None,
        };
        if let Some(answer) = answer {
            let mut back = packet[..header].to_vec();
            back[4..16].fill(0);
            back[16..20].copy_from_slice(&((header + MAD_SIZE) as u32).to_ne_bytes());
            back.extend(answer);
            return sys::send_packet(self.ours.as_fd(), &back);
        }
        let (timeout, retries) = (ne32(&packet, 8), ne32(&packet, 12));
        // Who names no time does not wait for an answer.
        if timeout != 0 && self.lost.len() < MANY {
            let time = Duration::from_millis(timeout.into()).saturating_mul(retries.saturating_add(1));
            self.lost.push((Instant::now() + time.min(Duration::from_secs(600)), packet));
        }
    }
}

/// The port of a LID.
fn port(world: &World, lid: u16) -> Option<(&Observer, u8)> {
    let device: &DeviceInfo = world.devices().iter().find(|d| d.has_umad() && d.lid == lid)?;
    world.observer().map(|observer| (observer, device.fid))
}
