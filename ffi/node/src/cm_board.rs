//! Publishes the connection identifiers of the node's programs, for observers.
//!
//! They are in the file `ports`, in rows of [`ROW`] bytes; [`ROWS`] of them form a block. A block belongs to a process for as long as the
//! process holds the block's locks (see `ports`), so the rows of dead processes disappear. Only the owner writes. Readers take no lock, and
//! read a block again if it changed meanwhile.

use super::data;
use super::ports::{self, Hold, Matter, PortAt, Ports};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

/// Bytes of a row, and of an address in it (`struct sockaddr_ib`, the longest).
const ROW: usize = 128;
const ADDRESS: usize = 48;
/// Rows of a block.
const ROWS: u32 = 64;
const BLOCK: usize = ROW * ROWS as usize;
/// How often to retry reading a block that keeps changing.
const TRIES: usize = 4;

/// A connection identifier at one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmId {
    /// The function.
    pub fid: u8,
    /// Its state (Linux' `enum rdma_cm_state`).
    pub state: u8,
    /// Type of its queue pair (`enum ib_qp_type`).
    pub qp_type: u8,
    /// Port space (`enum rdma_port_space`).
    pub port_space: u16,
    /// Its queue pair number; 0 if it has none yet.
    pub qpn: u32,
    /// Source and destination as `struct sockaddr` of their family, padded with zeros; all zero if there is none.
    pub addresses: [[u8; ADDRESS]; 2],
}

impl CmId {
    /// Truncates addresses from structures with room for any family.
    pub fn addresses(src: &[u8; 128], dst: &[u8; 128]) -> [[u8; ADDRESS]; 2] {
        [src, dst].map(|address| std::array::from_fn(|at| address[at]))
    }

    fn bytes(&self) -> [u8; ROW] {
        let mut row = [0; ROW];
        row[..4].copy_from_slice(&[1, self.fid, self.state, self.qp_type]);
        row[4..6].copy_from_slice(&self.port_space.to_ne_bytes());
        row[8..12].copy_from_slice(&self.qpn.to_ne_bytes());
        row[16..16 + ADDRESS].copy_from_slice(&self.addresses[0]);
        row[16 + ADDRESS..16 + 2 * ADDRESS].copy_from_slice(&self.addresses[1]);
        row
    }

    fn read(row: &[u8]) -> Option<Self> {
        let [1, fid, state, qp_type, ps0, ps1, _, _, q0, q1, q2, q3, ..] = *row else { return None };
        let address = |from: usize| row.get(from..from + ADDRESS)?.try_into().ok();
        Some(Self {
            fid,
            state,
            qp_type,
            port_space: u16::from_ne_bytes([ps0, ps1]),
            qpn: u32::from_ne_bytes([q0, q1, q2, q3]),
            addresses: [address(16)?, address(16 + ADDRESS)?],
        })
    }
}

/// The two locks of a block: the first marks its owner, the second that its contents are the owner's.
fn taken(block: u16) -> PortAt {
    PortAt { space: 0, port: block, address: Some(0) }
}

fn readable(block: u16) -> PortAt {
    PortAt { space: 0, port: block, address: Some(1) }
}

/// The rows of this process on one node.
pub struct CmBoard {
    ports: &'static Ports,
    /// Blocks of this process, each with a bitmap of the rows in use.
    blocks: Vec<(u16, u64)>,
}

impl CmBoard {
    /// Creates a board without rows. A process has one for each node.
    pub fn new(ports: &'static Ports) -> Self {
        Self { ports, blocks: Vec::new() }
    }

    /// True if this is the board of the node with these `ports`.
    pub fn is_of(&self, ports: &Ports) -> bool {
        std::ptr::eq(self.ports, ports)
    }

    /// Publishes a connection identifier and returns its number, which is unique on the node. `None` if there is no room for it.
    pub fn put(&mut self, id: &CmId) -> Option<u32> {
        if self.blocks.iter().all(|(_, used)| *used == u64::MAX) {
            let block = self.another_block()?;
            self.blocks.push((block, 0));
        }
        let (block, used) = self.blocks.iter_mut().find(|(_, used)| *used != u64::MAX)?;
        let row = used.trailing_ones();
        *used |= 1 << row;
        let number = u32::from(*block) * ROWS + row;
        self.set(number, id);
        Some(number)
    }

    /// Publishes a new state.
    pub fn set(&self, number: u32, id: &CmId) {
        self.write(number, &id.bytes());
    }

    /// Withdraws an identifier; its number becomes free.
    pub fn remove(&mut self, number: u32) {
        self.write(number, &[0; ROW]);
        let of = |block: u16| u32::from(block) == number / ROWS;
        if let Some((_, used)) = self.blocks.iter_mut().find(|(block, _)| of(*block)) {
            *used &= !(1 << (number % ROWS));
        }
    }

    fn write(&self, number: u32, row: &[u8; ROW]) {
        // If there is no room left in the file, other processes do not see the row.
        let _ = self.ports.write(row, u64::from(number) * ROW as u64);
    }

    fn another_block(&self) -> Option<u16> {
        let ours = |block: &u16| self.blocks.iter().any(|(own, _)| own == block);
        let take = |at| self.ports.take(Matter::CmBoard, at, Hold::Alone).unwrap_or(false);
        let block = (0..=u16::MAX).filter(|block| !ours(block)).find(|block| take(taken(*block)))?;
        // Clears the previous owner's rows.
        self.ports.write(&[0; BLOCK], u64::from(block) * BLOCK as u64).ok()?;
        take(readable(block)).then_some(block)
    }
}

/// The connection identifiers of all programs on the node in `dir`: number, process and identifier. The process is 0 if it is hidden by
/// another PID namespace.
pub fn cm_ids(dir: &Path) -> io::Result<Vec<(u32, u32, CmId)>> {
    let file = data::open(&dir.join(ports::NAME), OpenOptions::new().read(true))?;
    let blocks = (file.metadata()?.len() / BLOCK as u64).min(u64::from(u16::MAX) + 1);
    let mut all = Vec::new();
    for block in 0..blocks as u32 {
        let Some(pid) = Ports::holder(&file, Matter::CmBoard, readable(block as u16)) else { continue };
        let rows = read_block(&file, u64::from(block) * BLOCK as u64)?;
        let rows = (block * ROWS..).zip(rows.chunks_exact(ROW));
        all.extend(rows.filter_map(|(number, row)| Some((number, pid, CmId::read(row)?))));
    }
    Ok(all)
}

fn read_block(file: &File, at: u64) -> io::Result<[u8; BLOCK]> {
    let (mut one, mut two) = ([0; BLOCK], [0; BLOCK]);
    file.read_exact_at(&mut one, at)?;
    for _ in 0..TRIES {
        file.read_exact_at(&mut two, at)?;
        if one == two {
            break;
        }
        std::mem::swap(&mut one, &mut two);
    }
    Ok(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    fn id(qpn: u32) -> CmId {
        let addresses = CmId::addresses(&[2; 128], &[0; 128]);
        CmId { fid: 3, state: 8, qp_type: 2, port_space: 0x106, qpn, addresses }
    }

    #[test]
    fn others_see_what_a_process_shows_as_long_as_it_lives() {
        let dir = &testkit::Scratch::made().0;
        let seen = || cm_ids(dir).map(|all| all.len()).unwrap_or(0);
        let ports = Ports::open(dir).unwrap();
        assert_eq!(seen(), 0);
        let mut board = CmBoard::new(ports);
        let numbers: Vec<u32> = (0..70).map(|qpn| board.put(&id(qpn)).unwrap()).collect();
        assert_eq!((numbers[0], numbers[69]), (0, 69));
        board.remove(5);
        board.set(6, &CmId { state: 5, ..id(1000) });
        assert_eq!(board.put(&id(2000)), Some(5));
        let me = std::process::id();
        assert!(sys::in_child(|| {
            let all = cm_ids(dir).unwrap_or_default();
            let row =
                |number| all.iter().find(|(n, pid, _)| *n == number && *pid == me).map(|(_, _, id)| *id);
            all.len() == 70
                && row(5) == Some(id(2000))
                && row(6) == Some(CmId { state: 5, ..id(1000) })
                && row(69) == Some(id(69))
        }));
        // A child takes its own block. The next owner of that block finds none of the first owner's rows.
        assert!(sys::in_child(|| {
            let Ok(ports) = Ports::open(dir) else { return false };
            let mut board = CmBoard::new(ports);
            board.put(&id(1)) == Some(128) && board.put(&id(2)) == Some(129)
        }));
        assert!(sys::in_child(|| cm_ids(dir).is_ok_and(|all| all.len() == 70)));
        assert!(sys::in_child(|| {
            let Ok(ports) = Ports::open(dir) else { return false };
            let there = CmBoard::new(ports).put(&id(3)) == Some(128);
            let mut byte = [0; 1];
            there && ports.file().unwrap().read_exact_at(&mut byte, 129 * ROW as u64).is_ok() && byte == [0]
        }));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
