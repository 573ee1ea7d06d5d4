//! Raw packet queue pairs: on this hardware a send queue, a receive queue, and the transport interfaces of both
//! (PRM: SQ, RQ, TIS, TIR).

use super::{Pd, QpInit, QpState, geometry::Geometry};
use crate::{
    dma::{DmaMem, page_list},
    error::Error,
    function::Function,
    stand_ins::end,
};
use hwspec::{
    cmd::{Opcode, rq_sq::*, tir::*},
    context::{
        rq_sq::{RqContext, SqContext},
        tir::{TirContext, TisContext},
        wq::WorkQueue,
    },
    wqe::{WQE_BB, WQE_DS},
};
use std::sync::Arc;

/// `wq.wq_type`: a ring.
const CYCLIC: u8 = 1;
/// `tirc.self_lb_block`: the function's own frames to groups are not for this queue.
const BLOCK_MULTICAST: u8 = 2;
/// States of both queues.
const RESET: u8 = 0;
const READY: u8 = 1;
const ERROR: u8 = 3;

/// The queues and interfaces of one raw packet queue pair; they end with this value.
pub(super) struct RawQueues {
    function: Arc<Function>,
    uid: u16,
    /// What was made so far and how it ends, in this order.
    made: Vec<(Opcode, u32)>,
    pub sqn: u32,
    rqn: Option<u32>,
    pub tirn: Option<u32>,
}

impl RawQueues {
    /// Makes them on the rings in `mem`: receive queue first, send queue on the next page.
    pub fn create(
        pd: &Pd,
        init: &QpInit,
        geometry: &Geometry,
        mem: &DmaMem,
        record: u64,
    ) -> Result<Self, Error> {
        let device = &pd.device;
        let uid = device.opener.uid();
        let function = device.function.clone();
        let mut this = Self { function, uid, made: Vec::new(), sqn: 0, rqn: None, tirn: None };
        let domain = device.opener.transport_domain();
        let mut tis = CreateTisIn::zeroed();
        let mut context = TisContext::zeroed();
        context.set().transport_domain(domain);
        tis.set().ctx(context);
        let out: CreateTisOut = this.function.call(Opcode::CreateTis, uid, &tis)?;
        this.made.push((Opcode::DestroyTis, out.tisn()));

        let ring = |at: usize, bytes: usize, stride: usize| {
            let (log_page, pages) = page_list(mem.iova() + at as u64, bytes);
            let mut wq = WorkQueue::zeroed();
            wq.set()
                .wq_type(CYCLIC)
                .pd(pd.pdn)
                .uar_page(device.opener.uar())
                .dbr_addr(record)
                .log_wq_stride(stride.trailing_zeros() as u8)
                .log_wq_pg_sz(log_page)
                .log_wq_sz((bytes / stride).trailing_zeros() as u8);
            (wq, pages)
        };
        let (wq, pages) = ring(geometry.sq_offset, geometry.sq_blocks.max(1) as usize * WQE_BB, WQE_BB);
        let mut context = SqContext::zeroed();
        context
            .set()
            .flush_in_error_en(true)
            .cqn(init.send_cq.cqn())
            .tis_lst_sz(1)
            .tis_num_0(out.tisn())
            .wq(wq);
        let mut input = CreateSqIn::zeroed();
        input.set().ctx(context);
        let out: CreateSqOut = this.function.call_with(Opcode::CreateSq, uid, &input, &pages)?;
        this.made.push((Opcode::DestroySq, out.sqn()));
        this.sqn = out.sqn();
        if geometry.rq_entries == 0 {
            return Ok(this);
        }

        let stride = geometry.rq_stride.max(WQE_DS);
        let (wq, pages) = ring(0, geometry.rq_entries as usize * stride, stride);
        let mut context = RqContext::zeroed();
        context.set().flush_in_error_en(true).vsd(!init.strip_vlan).cqn(init.recv_cq.cqn()).wq(wq);
        // By it a flushed receive finds its queue pair: no flow led it here.
        context.set().user_index(this.sqn);
        let mut input = CreateRqIn::zeroed();
        input.set().ctx(context);
        let out: CreateRqOut = this.function.call_with(Opcode::CreateRq, uid, &input, &pages)?;
        this.made.push((Opcode::DestroyRq, out.rqn()));
        this.rqn = Some(out.rqn());
        let mut context = TirContext::zeroed();
        let block = if init.block_multicast_loopback { BLOCK_MULTICAST } else { 0 };
        context.set().inline_rqn(out.rqn()).transport_domain(domain).self_lb_block(block);
        let mut input = CreateTirIn::zeroed();
        input.set().ctx(context);
        let out: CreateTirOut = this.function.call(Opcode::CreateTir, uid, &input)?;
        this.made.push((Opcode::DestroyTir, out.tirn()));
        this.tirn = Some(out.tirn());
        Ok(this)
    }

    /// Moves both queues as the queue pair moves.
    pub fn go(&self, from: QpState, to: QpState) -> Result<(), Error> {
        let [(sq, rq), (sq_to, rq_to)] = [states(from), states(to)];
        if sq != sq_to {
            self.step(Opcode::ModifySq, self.sqn, sq, sq_to)?;
        }
        match self.rqn {
            Some(rqn) if rq != rq_to => self.step(Opcode::ModifyRq, rqn, rq, rq_to),
            _ => Ok(()),
        }
    }

    fn step(&self, op: Opcode, number: u32, from: u8, to: u8) -> Result<(), Error> {
        let order = |from: u8| {
            // Both commands have the same layout as far as it is used here.
            let mut input = ModifySqIn::zeroed();
            let mut context = SqContext::zeroed();
            context.set().state(to);
            input.set().sq_state(from).sqn(number).ctx(context);
            self.function.order(op, self.uid, &input)
        };
        match order(from) {
            // A queue may have gone into the error state of its own accord.
            Err(Error::Command { .. }) if to != READY => order(ERROR),
            result => result,
        }
    }

    /// Ends all of it, last made first.
    pub fn end(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        for (op, number) in std::mem::take(&mut self.made).into_iter().rev() {
            first = first.and(end(&self.function, op, self.uid, number));
        }
        first
    }
}

impl Drop for RawQueues {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(sqn = self.sqn, %error, "a raw packet queue pair could not be destroyed whole");
        }
    }
}

/// States of send and receive queue of a queue pair in a state.
fn states(state: QpState) -> (u8, u8) {
    match state {
        QpState::Reset | QpState::Init => (RESET, RESET),
        QpState::Rtr => (RESET, READY),
        QpState::Rts | QpState::Sqd => (READY, READY),
        QpState::Sqe => (ERROR, READY),
        QpState::Err => (ERROR, ERROR),
    }
}
