//! Results: CQEs and EQEs, consumed from their rings as a driver does.

use super::{Bed, Cq, Eq, Qp, objects::ENTRY};
use hwspec::{
    cqe::{Cqe64, CqeOpcode, CqeSyndrome},
    doorbell::{CQ_DOORBELL, CqArm, EQ_ARM, EqDoorbell},
    eqe::{Eqe, EventType, QpEvent},
    handle::{Cqn, Eqn},
    layout::Layout,
};

/// The contents of a CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Kind.
    pub opcode: CqeOpcode,
    /// QP number.
    pub qpn: u32,
    /// First block of the send WQE, or index of the receive WQE.
    pub wqe: u16,
    /// Bytes received, read, or fetched.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub imm: u32,
    /// Error syndrome, if any.
    pub error: Option<CqeSyndrome>,
    /// Vendor error syndrome.
    pub vendor_err: u8,
    /// Solicited.
    pub solicited: bool,
}

impl Wc {
    fn of(cqe: &Cqe64) -> Self {
        let failed = matches!(cqe.opcode(), CqeOpcode::ReqErr | CqeOpcode::RespErr);
        let error = cqe.as_error();
        Self {
            opcode: cqe.opcode(),
            qpn: cqe.qpn().0,
            wqe: cqe.wqe_counter(),
            byte_len: if failed { 0 } else { cqe.byte_cnt() },
            imm: if failed { 0 } else { cqe.imm_inval_pkey() },
            error: failed.then(|| error.syndrome()),
            vendor_err: if failed { error.vendor_err_synd() } else { 0 },
            solicited: cqe.se(),
        }
    }

    /// Returns true if it reports success.
    pub fn is_ok(&self) -> bool {
        self.error.is_none()
    }
    /// Returns true if it belongs to the send queue.
    pub fn is_send(&self) -> bool {
        matches!(self.opcode, CqeOpcode::Req | CqeOpcode::ReqErr)
    }
}

impl Bed {
    /// Returns the next CQE, if there is one, and updates the consumer index in the doorbell record.
    pub fn poll_raw(&mut self, cq: Cq) -> Option<Cqe64> {
        let ring = self.queues.cqs[&cq];
        let slot = u64::from(ring.ci) & ((1 << ring.log) - 1);
        let cqe = Cqe64::read(self.memory.get(ring.at + slot * ENTRY as u64, ENTRY));
        let parity = ring.ci >> ring.log & 1 == 1;
        if cqe.owner() != parity || cqe.opcode() == CqeOpcode::Invalid {
            return None;
        }
        let ci = ring.ci.wrapping_add(1);
        self.memory.put(ring.record, &(ci & 0xff_ffff).to_be_bytes());
        if let Some(ring) = self.queues.cqs.get_mut(&cq) {
            ring.ci = ci;
        }
        if !Wc::of(&cqe).is_send() && cqe.opcode() != CqeOpcode::RespErr {
            let least = Cq { fid: 0, cqn: 0 };
            let first = Qp { fid: cq.fid, qpn: cqe.qpn().0, send_cq: least, recv_cq: least };
            let qp = self.queues.qps.range(first..).next().filter(|(qp, _)| qp.qpn == first.qpn);
            if let Some(srq) = qp.and_then(|(_, q)| q.srq) {
                self.recycle(srq, cqe.wqe_counter());
            }
        }
        Some(cqe)
    }

    /// Returns the next completion, if there is one.
    pub fn poll(&mut self, cq: Cq) -> Option<Wc> {
        self.poll_raw(cq).map(|cqe| Wc::of(&cqe))
    }

    /// Returns all available completions.
    pub fn completions(&mut self, cq: Cq) -> Vec<Wc> {
        std::iter::from_fn(|| self.poll(cq)).collect()
    }

    /// Returns the only available completion. Fails on any other number.
    #[track_caller]
    pub fn one(&mut self, cq: Cq) -> Wc {
        let all = self.completions(cq);
        assert_eq!(all.len(), 1, "completions: {all:?}");
        all[0]
    }

    /// Returns true if a CQE is available.
    pub fn has_completion(&self, cq: Cq) -> bool {
        let ring = self.queues.cqs[&cq];
        let slot = u64::from(ring.ci) & ((1 << ring.log) - 1);
        let cqe = Cqe64::read(self.memory.get(ring.at + slot * ENTRY as u64, ENTRY));
        cqe.owner() == (ring.ci >> ring.log & 1 == 1) && cqe.opcode() != CqeOpcode::Invalid
    }

    /// Requests an event at the next (solicited) completion.
    pub fn arm_cq(&mut self, cq: Cq, solicited: bool) {
        let ring = self.queues.cqs[&cq];
        let mut arm = CqArm::zeroed();
        arm.set().cmd_sn(ring.arm_sn & 3).solicited(solicited).ci(ring.ci & 0xff_ffff).cqn(Cqn(cq.cqn));
        self.memory.put(ring.record + 4, &arm.as_bytes()[..4]);
        let register = self.uar_register(cq.fid, CQ_DOORBELL);
        self.write64(cq.fid, register, u64::from_be_bytes(*arm.as_bytes()));
        self.run();
    }

    /// Returns the next event, if there is one, and rings its doorbell, which arms the EQ again.
    pub fn poll_eq(&mut self, eq: Eq) -> Option<Eqe> {
        let ring = self.queues.eqs[&eq];
        let slot = u64::from(ring.ci) & ((1 << ring.log) - 1);
        let eqe = Eqe::read(self.memory.get(ring.at + slot * ENTRY as u64, ENTRY));
        if eqe.owner() != (ring.ci >> ring.log & 1 == 1) {
            return None;
        }
        if let Some(ring) = self.queues.eqs.get_mut(&eq) {
            ring.ci = ring.ci.wrapping_add(1);
        }
        self.arm_eq(eq);
        // A completion event disarms its CQ.
        if eqe.event_type() == EventType::Comp {
            let cqn = eqe.data::<hwspec::eqe::CompEvent>().cq_number().0;
            if let Some(ring) = self.queues.cqs.get_mut(&Cq { fid: eq.fid, cqn }) {
                ring.arm_sn = ring.arm_sn.wrapping_add(1);
            }
        }
        Some(eqe)
    }

    /// Returns all events of the EQ that the function's CQs report to.
    pub fn events(&mut self, fid: u8) -> Vec<Eqe> {
        let eq = self.eq(fid);
        std::iter::from_fn(|| self.poll_eq(eq)).collect()
    }

    /// Counts events of `kind` for `qp` among `events`.
    pub fn qp_events(events: &[Eqe], qp: Qp, kind: EventType) -> usize {
        let for_qp = |e: &&Eqe| e.data::<QpEvent>().qpn_rqn_sqn().0 == qp.qpn;
        events.iter().filter(|e| e.event_type() == kind).filter(for_qp).count()
    }

    /// Reports the consumer index of an EQ to the chip and requests the next interrupt.
    pub fn arm_eq(&mut self, eq: Eq) {
        let ring = self.queues.eqs[&eq];
        let arm = EqDoorbell::with(|s| s.eqn(Eqn(eq.eqn.into())).ci(ring.ci & 0xff_ffff));
        self.write32(eq.fid, self.uar_register(eq.fid, EQ_ARM), u32::from_be_bytes(*arm.as_bytes()));
    }
}
