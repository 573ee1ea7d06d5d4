//! The allowed outcomes of a message, by its service and the faults of the wire.

use super::plan::{Plan, Request};
use devmodel::wire::Faults;
use driver::{Completion, Service, WcFlags, WcOpcode};

/// The effects that a wire may have on messages.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Maximum number of arrivals of an unreliable message: 2 if frames are duplicated.
    pub copies: u8,
    /// Unreliable messages may arrive out of order.
    pub reordered: bool,
    /// Loss is so high that a connection may run out of retries.
    pub wears_out: bool,
}

impl Rules {
    /// The rules for a wire with `faults`.
    pub fn of(faults: &Faults) -> Self {
        // A reordered frame waits for those after it, and is lost if there are none.
        let lost = faults.drop + faults.corrupt + faults.reorder;
        Self {
            copies: if faults.duplicate == 0 { 1 } else { 2 },
            // Only links delay frames, and the lanes to a link are not ordered with each other.
            reordered: faults.reorder != 0 || faults.delay != 0,
            wears_out: lost > 50_000,
        }
    }
}

/// The messages that have arrived on one lane.
pub struct Arrivals {
    plan: Plan,
    rules: Rules,
    reliable: bool,
    /// The next request that has not been seen.
    next: u64,
    /// Number of messages that arrived.
    pub count: u64,
    /// Number of arrivals of unreliable messages, by number.
    seen: Vec<u8>,
}

impl Arrivals {
    /// No arrivals yet of the messages in `plan`.
    pub fn new(plan: Plan, service: Service, rules: Rules) -> Self {
        let reliable = !matches!(service, Service::Uc | Service::Ud);
        Self { plan, rules, reliable, next: 0, count: 0, seen: Vec::new() }
    }

    /// Returns the number of the request that completion `wc` belongs to; `first` is the first word of its buffer. Requests before it that
    /// took no receive are appended to `before`.
    pub fn take(&mut self, wc: &Completion, first: u64, before: &mut Vec<u64>) -> Result<u64, String> {
        let n = if self.reliable { self.in_order(before) } else { self.named(wc, first)? };
        let request = self.plan.request(n);
        self.is_of(wc, &request, n)?;
        self.count += 1;
        Ok(n)
    }

    /// Returns the number after the last message seen.
    pub fn end(&self) -> u64 {
        self.next
    }

    fn in_order(&mut self, before: &mut Vec<u64>) -> u64 {
        let mut n = self.next;
        while !self.plan.request(n).kind.receives() {
            before.push(n);
            n += 1;
        }
        self.next = n + 1;
        n
    }

    fn named(&mut self, wc: &Completion, first: u64) -> Result<u64, String> {
        let n = match wc.flags.contains(WcFlags::WITH_IMM) {
            true => self.plan.number_of(wc.imm_or_inv)?,
            false => Plan::number_in(first),
        };
        if n > 1 << 24 {
            return Err(format!("no message has the number {n:#x}"));
        }
        let index = n as usize;
        if self.seen.len() <= index {
            self.seen.resize(index + 1, 0);
        }
        self.seen[index] += 1;
        let Rules { copies, reordered, .. } = self.rules;
        if self.seen[index] > copies {
            return Err(format!("message {n} came {} times, expected {copies} at most", self.seen[index]));
        }
        let last = self.next;
        if !reordered && n + 1 < last {
            return Err(format!("message {n} came behind message {}", last - 1));
        }
        self.next = last.max(n + 1);
        Ok(n)
    }

    fn is_of(&self, wc: &Completion, request: &Request, n: u64) -> Result<(), String> {
        let opcode = match request.kind.writes() {
            true => WcOpcode::RecvRdmaWithImm,
            false => WcOpcode::Recv,
        };
        let immediate = request.kind.has_immediate();
        let grh = if wc.flags.contains(WcFlags::GRH) { super::sizes::GRH } else { 0 };
        let found = (
            wc.opcode,
            wc.byte_len as usize,
            wc.flags.contains(WcFlags::WITH_IMM),
            if immediate { wc.imm_or_inv } else { 0 },
        );
        let expected =
            (opcode, request.len + grh, immediate, if immediate { self.plan.immediate(n) } else { 0 });
        match found == expected {
            true => Ok(()),
            false => Err(format!("message {n}, {request:?}: expected {expected:?}, found {found:?}")),
        }
    }
}
