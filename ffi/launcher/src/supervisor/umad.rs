//! Device files for management datagrams (ib_user_mad.h): a function's `umadN`. As with a card, Ethernet has no queue pair 0, and no agent
//! that answers at queue pair 1 by a LID.
//!
//! The file is `/dev/null` until a program's first ioctl; then the descriptor becomes a socket of ours, under the same number. The program
//! writes packets for the subnet and reads those that come back. Subnet management, performance management and the subnet's administrator
//! are answered here. Other classes are reported as not supported, and packets to missing ports time out at once, because no answer could
//! come later.
//!
//! The administrator's tables are returned in one piece, because the kernel assembles segments for programs. If a program's buffer holds
//! one datagram and the next is longer, it gets ENOSPC and a header with the length. A socket cannot return that, so reads of exactly this
//! length ([`ONE_DATAGRAM`]) are handled here too.

use super::process::{Piece, Process};
use super::sys;
use crate::nldev::Inventory;
use crate::notify::{Listener, Notice};
use crate::seccomp::{ENABLE_PKEY, ONE_DATAGRAM, REGISTER, REGISTER_2, UNREGISTER};
use devmodel::LinkLayer;
use hwspec::wire::mad::MAD_SIZE;
use node::devices::DeviceInfo;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Maximum number of agents of one file.
const AGENTS: usize = 32;
/// Length of the header before a packet's MAD: the old form, and the one with a P_Key index.
const OLD_HEADER: usize = 56;
const HEADER: usize = 64;
/// Bytes of a MAD's own header.
const MAD_HEADER: usize = 24;
/// Maximum number of packets handled in a row.
const BURST: usize = 64;

const _: () = assert!(ONE_DATAGRAM as usize == HEADER + MAD_SIZE);

/// An open file to which an ioctl was made.
struct File {
    ours: OwnedFd,
    /// The node of its function, and the function.
    node: PathBuf,
    fid: u8,
    /// True for a port with InfiniBand.
    infiniband: bool,
    agents: [bool; AGENTS],
    /// True if its packets have a P_Key index.
    wide: bool,
    used: bool,
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
    /// Answers an ioctl on one of the files, and passes others to the kernel.
    pub fn serve(&mut self, listener: &Listener, inventory: &Inventory, notice: &Notice) {
        let process = Process(notice.thread);
        let number = notice.args[0] as u32;
        let known = process.socket(number).filter(|inode| self.0.contains_key(inode));
        let inode = match known {
            Some(inode) => inode,
            None => {
                let Some(device) = function(inventory, process, number) else { return listener.pass(notice) };
                match self.open(listener, notice, process, number, device) {
                    Ok(inode) => inode,
                    Err(e) => {
                        listener.answer(notice, Err(e.raw_os_error().unwrap_or(libc::EIO)));
                        return;
                    }
                }
            }
        };
        let Some(file) = self.0.get_mut(&inode) else { return };
        let before = (file.agents, file.wide, file.used);
        let done = file.control(process, notice.args[1] as u32, notice.args[2]).map(|()| 0);
        if !listener.answer(notice, done) {
            // An interrupted program repeats its call.
            (file.agents, file.wide, file.used) = before;
        }
    }

    /// Handles a read with room for one datagram. If it is on one of the files and the next packet is longer, returns as much of the packet
    /// as fits, including a header with its length, and ENOSPC; the packet stays queued. Passes other reads to the kernel.
    pub fn read(&mut self, listener: &Listener, inventory: &Inventory, notice: &Notice) {
        if self.0.is_empty() {
            return listener.pass(notice);
        }
        let (process, number) = (Process(notice.thread), notice.args[0] as u32);
        let file = process.socket(number).and_then(|inode| self.0.get_mut(&inode));
        let longer = file.and_then(|file| {
            file.work(inventory);
            let its = process.descriptor(number).ok()?;
            let (packet, len) = sys::peek_packet(its.as_fd(), ONE_DATAGRAM as usize)?;
            (len > packet.len()).then_some(packet)
        });
        let buffer = Piece { address: notice.args[1], len: ONE_DATAGRAM as usize };
        match longer {
            Some(packet) => {
                let given = process.write(buffer, &packet);
                listener.answer(notice, Err(given.err().unwrap_or(libc::ENOSPC)));
            }
            None => listener.pass(notice),
        }
    }

    /// Replaces the descriptor by a socket.
    fn open(
        &mut self,
        listener: &Listener,
        notice: &Notice,
        process: Process,
        number: u32,
        device: &DeviceInfo,
    ) -> io::Result<u64> {
        let flags = process.file_flags(number).unwrap_or(0);
        let (ours, its) = sys::packet_pair(flags & libc::O_NONBLOCK != 0)?;
        let inode = nix::sys::stat::fstat(&its)?.st_ino;
        listener.place(notice, its.as_fd(), number, flags & libc::O_CLOEXEC != 0)?;
        let file = File {
            ours,
            node: device.node().map(PathBuf::from).unwrap_or_default(),
            fid: device.fid,
            infiniband: device.link_layer == LinkLayer::Infiniband,
            agents: [false; AGENTS],
            wide: false,
            used: false,
        };
        self.0.insert(inode, file);
        Ok(inode)
    }

    /// The descriptors to wait for.
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.0.values().map(|file| file.ours.as_fd()).collect()
    }

    /// Handles the packets that programs wrote, and reports requests without an answer in time. Drops closed files.
    pub fn work(&mut self, inventory: &Inventory) {
        self.0.retain(|_, file| file.work(inventory));
    }
}

/// The device with the file behind a descriptor, if it is one of ours.
fn function(inventory: &Inventory, process: Process, number: u32) -> Option<&DeviceInfo> {
    let path = process.file(number);
    let name = path.as_deref().and_then(|path| path.strip_prefix("/dev/infiniband/umad"));
    let id: Option<u32> = name.and_then(|id| id.parse().ok());
    let device = |id| inventory.devices().iter().find(|d| d.has_umad() && d.uverbs == id);
    id.and_then(device)
}

impl File {
    /// Executes an ioctl.
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
                // The only flag says that the program does RMPP itself.
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
        if qpn == 0 && !self.infiniband {
            return Err(libc::EPROTONOSUPPORT);
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

    fn work(&mut self, inventory: &Inventory) -> bool {
        for _ in 0..BURST {
            match sys::receive_packet(self.ours.as_fd(), HEADER + MAD_SIZE) {
                Ok(Some(packet)) => self.sent(inventory, packet),
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        true
    }

    /// Handles a packet that a program sent.
    fn sent(&mut self, inventory: &Inventory, packet: Vec<u8>) {
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
            _ if !self.infiniband => None,
            0 => {
                let observer = inventory.observer(&self.node);
                observer.and_then(|observer| observer.management(self.fid, lid, &mad)).map(|mad| mad.to_vec())
            }
            1 => inventory.observer(&self.node).and_then(|observer| observer.general(self.fid, lid, &mad)),
            _ => None,
        };
        let back = |status: i32, mad: &[u8]| {
            let mut back = packet[..header].to_vec();
            let len = if status == 0 { header + mad.len() } else { MAD_HEADER };
            back[4..8].copy_from_slice(&status.to_ne_bytes());
            back[16..20].copy_from_slice(&(len as u32).to_ne_bytes());
            back.extend(mad);
            back
        };
        if let Some(answer) = answer {
            let mut answer = back(0, &answer);
            answer[8..16].fill(0);
            // An answer larger than the socket accepts is lost.
            if sys::send_packet(self.ours.as_fd(), &answer) {
                return;
            }
        }
        // A sender that gives no timeout does not wait for an answer.
        if ne32(&packet, 8) != 0 {
            // Returns the part of the sent packet that identifies the request.
            let lost = back(libc::ETIMEDOUT, &packet[header..header + MAD_HEADER]);
            sys::send_packet(self.ours.as_fd(), &lost);
        }
    }
}
