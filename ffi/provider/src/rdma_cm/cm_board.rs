//! What others see of this process's ids (`rdma resource show cm_id`): rows on the boards of the nodes they are on.

use super::id::{Id, State};
use super::manager::Manager;
use super::slab::Slab;
use node::{CmBoard, CmId, Ports};
use std::collections::HashMap;

/// Ids by their handles, and which of them may have changed since they were shown.
#[derive(Default)]
pub struct Ids {
    ids: Slab<Id>,
    touched: Vec<u32>,
}

impl Ids {
    /// As [`Slab::insert`].
    pub fn insert(&mut self, id: Id) -> u32 {
        let number = self.ids.insert(id);
        self.touch(number);
        number
    }

    /// As [`Slab::get`].
    pub fn get(&self, number: u32) -> Option<&Id> {
        self.ids.get(number)
    }

    /// As [`Slab::get_mut`].
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Id> {
        self.touch(number);
        self.ids.get_mut(number)
    }

    /// As [`Slab::remove`].
    pub fn remove(&mut self, number: u32) -> Option<Id> {
        self.touch(number);
        self.ids.remove(number)
    }

    /// As [`Slab::iter`].
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Id)> {
        self.ids.iter()
    }

    fn touch(&mut self, number: u32) {
        if self.touched.last() != Some(&number) {
            self.touched.push(number);
        }
    }
}

/// A row: the board, the number on it, and what it says.
type Row = (usize, u32, CmId);

/// The rows of this process on the boards.
#[derive(Default)]
pub struct CmBoardRows {
    boards: Vec<CmBoard>,
    /// Rows by the handles of ids.
    rows: HashMap<u32, Vec<Row>>,
}

impl CmBoardRows {
    fn board(&mut self, ports: &'static Ports) -> usize {
        self.boards.iter().position(|board| board.is_of(ports)).unwrap_or_else(|| {
            self.boards.push(CmBoard::new(ports));
            self.boards.len() - 1
        })
    }

    /// Shows id `number` as `wanted` from now on.
    fn update(&mut self, number: u32, wanted: Vec<(&'static Ports, CmId)>) {
        let mut before = self.rows.remove(&number).unwrap_or_default().into_iter();
        let mut now = Vec::new();
        for (ports, id) in wanted {
            let board = self.board(ports);
            match before.next() {
                Some((there, row, was)) if there == board => {
                    if was != id {
                        self.boards[board].set(row, &id);
                    }
                    now.push((board, row, id));
                }
                other => {
                    other.into_iter().for_each(|(board, row, _)| self.boards[board].remove(row));
                    now.extend(self.boards[board].put(&id).map(|row| (board, row, id)));
                }
            }
        }
        before.for_each(|(board, row, _)| self.boards[board].remove(row));
        if !now.is_empty() {
            self.rows.insert(number, now);
        }
    }
}

impl Manager {
    /// Shows what has changed.
    pub fn show(&mut self) {
        let mut touched = std::mem::take(&mut self.ids.touched);
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            let rows = self.ids.get(number).map_or(Vec::new(), |id| self.rows(number, id));
            self.cm_board.update(number, rows);
        }
    }

    /// An id is seen at its port; who listens at all of them, at each.
    fn rows(&self, number: u32, id: &Id) -> Vec<(&'static Ports, CmId)> {
        let ports: Vec<usize> = match id.at {
            Some(at) => vec![at.port],
            None if id.state == State::Listen => {
                let ours = self.listening.iter().filter(|(_, listening)| listening.ids.contains(&number));
                ours.map(|((port, _), _)| *port).collect()
            }
            None => Vec::new(),
        };
        let [src, dst] = [id.src, id.dst].map(|address| address.map_or([0; 128], |a| a.storage()));
        let addresses = CmId::addresses(&src, &dst);
        let row = |port: usize| {
            let port = self.ports.get(port)?;
            let id = CmId {
                fid: port.info.fid,
                state: id.state.number(),
                qp_type: id.qp_type,
                port_space: id.ps,
                qpn: id.qp_num,
                addresses,
            };
            Some((port.ports, id))
        };
        ports.into_iter().filter_map(row).collect()
    }
}
