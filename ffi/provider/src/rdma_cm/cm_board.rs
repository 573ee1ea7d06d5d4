//! Publishes this process's IDs (`rdma resource show cm_id`) as rows on the connection manager boards of their nodes.

use super::id::Id;
use super::slab::Slab;
use node::{CmBoard, CmId, Ports};
use std::collections::HashMap;

/// IDs by handle, and those that may have changed since they were published.
#[derive(Default)]
pub struct Ids {
    ids: Slab<Id>,
    pub(super) touched: Vec<u32>,
}

impl Ids {
    /// Like [`Slab::insert`].
    pub fn insert(&mut self, id: Id) -> u32 {
        let number = self.ids.insert(id);
        self.touch(number);
        number
    }

    /// Like [`Slab::get`].
    pub fn get(&self, number: u32) -> Option<&Id> {
        self.ids.get(number)
    }

    /// Like [`Slab::get_mut`]; marks the ID as changed.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Id> {
        self.touch(number);
        self.ids.get_mut(number)
    }

    /// Like [`Slab::remove`]; marks the ID as changed.
    pub fn remove(&mut self, number: u32) -> Option<Id> {
        self.touch(number);
        self.ids.remove(number)
    }

    /// Like [`Slab::iter`].
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Id)> {
        self.ids.iter()
    }

    fn touch(&mut self, number: u32) {
        if self.touched.last() != Some(&number) {
            self.touched.push(number);
        }
    }
}

/// A row: its board, its number there, and its contents.
type Row = (usize, u32, CmId);

/// The rows of this process on the boards.
#[derive(Default)]
pub struct CmBoardRows {
    boards: Vec<CmBoard>,
    /// Rows by ID handle.
    rows: HashMap<u32, Vec<Row>>,
}

impl CmBoardRows {
    fn board(&mut self, ports: &'static Ports) -> usize {
        self.boards.iter().position(|board| board.is_of(ports)).unwrap_or_else(|| {
            self.boards.push(CmBoard::new(ports));
            self.boards.len() - 1
        })
    }

    /// Publishes ID `number` as `wanted`.
    pub(super) fn update(&mut self, number: u32, wanted: Vec<(&'static Ports, CmId)>) {
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
