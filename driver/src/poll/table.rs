//! Lookup of the queues that CQEs name.

use super::QpQueues;
use crate::shared_receive::SharedReceives;
use hwspec::cqe::{Cqe64, CqeOpcode};
use std::sync::Arc;

/// Queues by QP number: a three-level radix tree of 8 bits each, without hashing; small for few QPs, regardless of
/// their numbers.
pub struct QpTable {
    pub(super) root: [Option<Box<Branch>>; 256],
    /// XRC SRQs. Their receives complete here, regardless of the target QP.
    srqs: Vec<Arc<SharedReceives>>,
    /// Work queues by user index, the only identification in a CQE when RSS spread its frame.
    pub(super) wqs: Vec<WqSlot>,
}

/// A user index for a work queue.
#[derive(Default)]
pub(super) enum WqSlot {
    #[default]
    Free,
    /// The queue is being created.
    Claimed,
    Taken(Arc<QpQueues>),
}

pub(super) type Branch = [Option<Box<Leaf>>; 256];
pub(super) type Leaf = [Option<Arc<QpQueues>>; 256];

/// Indices into root, branch and leaf.
#[inline(always)]
fn steps(qpn: u32) -> [usize; 3] {
    [qpn >> 16 & 0xff, qpn >> 8 & 0xff, qpn & 0xff].map(|step| step as usize)
}

impl Default for QpTable {
    fn default() -> Self {
        Self { root: [const { None }; 256], srqs: Vec::new(), wqs: Vec::new() }
    }
}

impl QpTable {
    /// The queues of `qpn`.
    #[inline(always)]
    pub fn get(&self, qpn: u32) -> Option<&Arc<QpQueues>> {
        let [root, branch, leaf] = steps(qpn);
        self.root[root].as_ref()?[branch].as_ref()?[leaf].as_ref()
    }

    /// The XRC SRQ `srqn`.
    pub fn srq(&self, srqn: u32) -> Option<&Arc<SharedReceives>> {
        self.srqs.iter().find(|srq| srq.srqn == srqn)
    }

    /// Adds an XRC SRQ.
    pub fn insert_srq(&mut self, srq: Arc<SharedReceives>) {
        self.srqs.push(srq);
    }

    /// Removes an XRC SRQ.
    pub fn remove_srq(&mut self, srqn: u32) {
        self.srqs.retain(|srq| srq.srqn != srqn);
    }

    /// Allocates a user index for a work queue that is about to be created.
    pub fn claim_wq(&mut self) -> u32 {
        let free = self.wqs.iter().position(|slot| matches!(slot, WqSlot::Free));
        let index = free.unwrap_or(self.wqs.len());
        if index == self.wqs.len() {
            self.wqs.push(WqSlot::Free);
        }
        self.wqs[index] = WqSlot::Claimed;
        index as u32
    }

    /// Adds a work queue, also under its number, which CQEs of its failed receives contain.
    pub fn insert_wq(&mut self, index: u32, wq: Arc<QpQueues>) {
        if let Some(slot) = self.wqs.get_mut(index as usize) {
            *slot = WqSlot::Taken(wq.clone());
            self.insert(wq);
        }
    }

    /// Frees a user index, and removes its work queue.
    pub fn remove_wq(&mut self, index: u32) {
        let slot = self.wqs.get_mut(index as usize).map(std::mem::take);
        if let Some(WqSlot::Taken(wq)) = slot {
            self.remove(wq.qpn);
        }
        while matches!(self.wqs.last(), Some(WqSlot::Free)) {
            self.wqs.pop();
        }
    }

    /// The work queue that a CQE names by user index, if RSS spread its frame.
    pub(super) fn wq(&self, cqe: &Cqe64) -> Option<&QpQueues> {
        match self.wqs.get((cqe.srqn_uidx() & 0xff_ffff) as usize) {
            Some(WqSlot::Taken(wq)) if is_spread(cqe) => Some(wq),
            _ => None,
        }
    }

    /// The shared queue of the receive that a CQE completes: that of its QP, or the one named in the CQE itself
    /// (XRC).
    pub fn shared(&self, cqe: &Cqe64) -> Option<&Arc<SharedReceives>> {
        match self.get(cqe.qpn().0) {
            Some(qp) => qp.srq.as_ref(),
            None if is_spread(cqe) => None,
            None => self.srq(cqe.srqn_uidx() & 0xff_ffff),
        }
    }

    /// Adds a QP. Its number has 24 bits.
    pub fn insert(&mut self, qp: Arc<QpQueues>) {
        let [root, branch, leaf] = steps(qp.qpn);
        let branches = self.root[root].get_or_insert_with(|| Box::new([const { None }; 256]));
        let leaves = branches[branch].get_or_insert_with(|| Box::new([const { None }; 256]));
        leaves[leaf] = Some(qp);
    }

    /// Removes a QP, and tree nodes that become empty.
    pub fn remove(&mut self, qpn: u32) {
        let [root, branch, leaf] = steps(qpn);
        let Some(branches) = &mut self.root[root] else { return };
        let Some(leaves) = &mut branches[branch] else { return };
        leaves[leaf] = None;
        if leaves.iter().all(Option::is_none) {
            branches[branch] = None;
            if branches.iter().all(Option::is_none) {
                self.root[root] = None;
            }
        }
    }
}

/// True if a CQE belongs to a frame that RSS spread over work queues. Such a CQE has a flow tag in place of the QP
/// number, and flows to work queues have tag 0, which is not a valid QP number.
pub fn is_spread(cqe: &Cqe64) -> bool {
    cqe.qpn().0 == 0 && cqe.opcode() == CqeOpcode::RespSend
}
