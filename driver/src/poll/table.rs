//! The queues that a CQE names.

use super::QpQueues;
use crate::shared_receive::SharedReceives;
use hwspec::cqe::{Cqe64, CqeOpcode};
use std::sync::Arc;

/// Queues by QP number: a tree of three levels of 8 bits, without hashing, that is small for few QPs whatever their
/// numbers.
pub struct QpTable {
    pub(super) root: [Option<Box<Branch>>; 256],
    /// SRQs of XRC. Their receives complete here, whichever target QP took them.
    srqs: Vec<Arc<SharedReceives>>,
    /// Work queues by user index, the only name that a CQE has for them when a hash spread its frame.
    pub(super) wqs: Vec<WqSlot>,
}

/// A user index of work queues.
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

/// Indices in root, branch and leaf.
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

    /// The SRQ of XRC `srqn`.
    pub fn srq(&self, srqn: u32) -> Option<&Arc<SharedReceives>> {
        self.srqs.iter().find(|srq| srq.srqn == srqn)
    }

    /// Enters an SRQ of XRC.
    pub fn insert_srq(&mut self, srq: Arc<SharedReceives>) {
        self.srqs.push(srq);
    }

    /// Removes an SRQ of XRC.
    pub fn remove_srq(&mut self, srqn: u32) {
        self.srqs.retain(|srq| srq.srqn != srqn);
    }

    /// A user index for a work queue that is about to be created.
    pub fn claim_wq(&mut self) -> u32 {
        let free = self.wqs.iter().position(|slot| matches!(slot, WqSlot::Free));
        let index = free.unwrap_or(self.wqs.len());
        if index == self.wqs.len() {
            self.wqs.push(WqSlot::Free);
        }
        self.wqs[index] = WqSlot::Claimed;
        index as u32
    }

    /// Enters a work queue, also under its number, which its failed receives name.
    pub fn insert_wq(&mut self, index: u32, wq: Arc<QpQueues>) {
        if let Some(slot) = self.wqs.get_mut(index as usize) {
            *slot = WqSlot::Taken(wq.clone());
            self.insert(wq);
        }
    }

    /// Gives a user index back, and removes the work queue that has it.
    pub fn remove_wq(&mut self, index: u32) {
        let slot = self.wqs.get_mut(index as usize).map(std::mem::take);
        if let Some(WqSlot::Taken(wq)) = slot {
            self.remove(wq.qpn);
        }
        while matches!(self.wqs.last(), Some(WqSlot::Free)) {
            self.wqs.pop();
        }
    }

    /// The work queue that a CQE names by user index, if a hash spread its frame.
    pub(super) fn wq(&self, cqe: &Cqe64) -> Option<&QpQueues> {
        match self.wqs.get((cqe.srqn_uidx() & 0xff_ffff) as usize) {
            Some(WqSlot::Taken(wq)) if is_spread(cqe) => Some(wq),
            _ => None,
        }
    }

    /// The shared queue whose receive a CQE completes: that of its QP, or the one that the CQE names itself (XRC).
    pub fn shared(&self, cqe: &Cqe64) -> Option<&Arc<SharedReceives>> {
        match self.get(cqe.qpn().0) {
            Some(qp) => qp.srq.as_ref(),
            None if is_spread(cqe) => None,
            None => self.srq(cqe.srqn_uidx() & 0xff_ffff),
        }
    }

    /// Enters a QP. Its number has 24 bits.
    pub fn insert(&mut self, qp: Arc<QpQueues>) {
        let [root, branch, leaf] = steps(qp.qpn);
        let branches = self.root[root].get_or_insert_with(|| Box::new([const { None }; 256]));
        let leaves = branches[branch].get_or_insert_with(|| Box::new([const { None }; 256]));
        leaves[leaf] = Some(qp);
    }

    /// Removes a QP, and the nodes that are empty without it.
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

/// True if a CQE is of a frame that a hash spread over work queues. Such a CQE has a flow tag in place of the QP
/// number, and flows to work queues have tag 0, which is no QP's number.
pub fn is_spread(cqe: &Cqe64) -> bool {
    cqe.qpn().0 == 0 && cqe.opcode() == CqeOpcode::RespSend
}
