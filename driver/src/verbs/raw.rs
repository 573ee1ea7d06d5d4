//! Raw packet queue pairs: on this hardware, a send queue, a receive queue, and the transport interfaces of both
//! (PRM: SQ, RQ, TIS, TIR).

use super::{Pd, QpInit, QpState, RwqTable, RxHash, geometry::Geometry};
use crate::{
    dma::{DmaMem, page_list},
    error::Error,
    function::Function,
};
use hwspec::{
    cmd::{Opcode, rq_sq::*, tir::*},
    context::{rq_sq::*, tir::*, wq::*},
    wqe::{WQE_BB, WQE_DS},
};
use std::sync::Arc;

/// `tirc.self_lb_block`: multicasts sent in the same transport domain are received too. This is Linux's use of the
/// field (MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC), in spite of its name.
const ALLOW_MULTICAST: u8 = 2;

/// The queues and interfaces of one raw packet queue pair, destroyed with this value.
pub(super) struct RawQueues {
    function: Arc<Function>,
    uid: u16,
    /// The objects created so far, in order, with the commands to destroy them.
    made: Vec<(Opcode, u32)>,
    pub sqn: u32,
    rqn: Option<u32>,
    pub tirn: Option<u32>,
}

impl RawQueues {
    /// Creates the queues on the rings in `mem`: receive queue first, send queue on the next page.
    pub fn create(
        pd: &Pd,
        init: &QpInit,
        geometry: &Geometry,
        mem: &DmaMem,
        record: u64,
    ) -> Result<Self, Error> {
        let device = &pd.device;
        let uid = device.opener.uid();
        let mut this = Self::nothing(pd);
        let domain = device.opener.transport_domain();
        let place = |at: usize| (mem.iova() + at as u64, record);
        let mut tis = CreateTisIn::zeroed();
        let context = TisContext::with(|s| s.transport_domain(domain));
        tis.set().ctx(context);
        let out: CreateTisOut = this.function.call(Opcode::CreateTis, uid, &tis)?;
        this.made.push((Opcode::DestroyTis, out.tisn()));

        let (wq, pages) =
            ring(pd, place(geometry.sq_offset), geometry.sq_blocks.max(1) as usize * WQE_BB, WQE_BB);
        let context = SqContext::with(|s| {
            s.flush_in_error_en(true).cqn(init.send_cq.cqn()).tis_lst_sz(1).tis_num_0(out.tisn()).wq(wq)
        });
        let input = CreateSqIn::with(|s| s.ctx(context));
        let out: CreateSqOut = this.function.call_with(Opcode::CreateSq, uid, &input, &pages)?;
        this.made.push((Opcode::DestroySq, out.sqn()));
        this.sqn = out.sqn();
        if geometry.rq_entries == 0 {
            return Ok(this);
        }

        let stride = geometry.rq_stride.max(WQE_DS);
        let receives = Receives {
            cqn: init.recv_cq.cqn(),
            strip_vlan: init.strip_vlan,
            // A flushed receive has no flow tag, so polls find its queue pair by this index.
            user_index: this.sqn,
        };
        let rqn = create_rq(pd, place(0), geometry.rq_entries, stride, &receives)?;
        this.made.push((Opcode::DestroyRq, rqn));
        this.rqn = Some(rqn);
        let context = TirContext::with(|s| s.inline_rqn(rqn));
        this.add_tir(context, domain, init.block_multicast_loopback)?;
        Ok(this)
    }

    /// Creates a receive side only, spread over the queues of `table` by `hash`.
    pub fn spread(
        pd: &Pd,
        table: &RwqTable,
        hash: &RxHash,
        block_multicast_loopback: bool,
    ) -> Result<Self, Error> {
        let mut this = Self::nothing(pd);
        let mut context = TirContext::zeroed();
        context
            .set()
            .disp_type(INDIRECT)
            .indirect_table(table.number())
            .rx_hash_fn(TOEPLITZ)
            .rx_hash_toeplitz_key(hash.key)
            .rx_hash_field_selector_outer(hash.selector()?);
        let domain = pd.device.opener.transport_domain();
        this.add_tir(context, domain, block_multicast_loopback)?;
        Ok(this)
    }

    fn nothing(pd: &Pd) -> Self {
        let (function, uid) = (pd.device.function.clone(), pd.device.opener.uid());
        Self { function, uid, made: Vec::new(), sqn: 0, rqn: None, tirn: None }
    }

    /// Creates the TIR that frames are steered to.
    fn add_tir(
        &mut self,
        mut context: TirContext,
        domain: u32,
        block_multicast_loopback: bool,
    ) -> Result<(), Error> {
        let allow = if block_multicast_loopback { 0 } else { ALLOW_MULTICAST };
        context.set().transport_domain(domain).self_lb_block(allow);
        let input = CreateTirIn::with(|s| s.ctx(context));
        let out: CreateTirOut = self.function.call(Opcode::CreateTir, self.uid, &input)?;
        self.made.push((Opcode::DestroyTir, out.tirn()));
        self.tirn = Some(out.tirn());
        Ok(())
    }

    /// Changes the states of both queues along with that of the queue pair.
    pub fn go(&self, from: QpState, to: QpState) -> Result<(), Error> {
        let [(sq, rq), (sq_to, rq_to)] = [states(from), states(to)];
        if sq != sq_to {
            step(&self.function, self.uid, (Opcode::ModifySq, self.sqn), sq, sq_to)?;
        }
        match self.rqn {
            Some(rqn) if rq != rq_to => step(&self.function, self.uid, (Opcode::ModifyRq, rqn), rq, rq_to),
            _ => Ok(()),
        }
    }

    /// Destroys all objects, in reverse order.
    pub fn end(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        for (op, number) in std::mem::take(&mut self.made).into_iter().rev() {
            first = first.and(self.function.destroy_object(op, self.uid, number));
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

/// A ring of `bytes` and its page list; `place` holds the IOVAs of ring and doorbell record.
fn ring(pd: &Pd, place: (u64, u64), bytes: usize, stride: usize) -> (WorkQueue, Vec<u64>) {
    let (log_page, pages) = page_list(place.0, bytes);
    let mut wq = WorkQueue::zeroed();
    wq.set()
        .wq_type(CYCLIC)
        .pd(pd.pdn)
        .uar_page(pd.device.opener.uar())
        .dbr_addr(place.1)
        .log_wq_stride(stride.trailing_zeros() as u8)
        .log_wq_pg_sz(log_page)
        .log_wq_sz((bytes / stride).trailing_zeros() as u8);
    (wq, pages)
}

/// Delivery settings of a receive queue.
pub(super) struct Receives {
    pub cqn: u32,
    pub strip_vlan: bool,
    /// The user index in its completions.
    pub user_index: u32,
}

/// Creates a receive queue in RESET, with `entries` of `stride` bytes (powers of two). `place` holds the IOVAs of
/// ring and doorbell record. Returns its number.
pub(super) fn create_rq(
    pd: &Pd,
    place: (u64, u64),
    entries: u32,
    stride: usize,
    receives: &Receives,
) -> Result<u32, Error> {
    let (wq, pages) = ring(pd, place, entries as usize * stride, stride);
    let context = RqContext::with(|s| {
        s.flush_in_error_en(true)
            .vsd(!receives.strip_vlan)
            .cqn(receives.cqn)
            .user_index(receives.user_index)
            .wq(wq)
    });
    let input = CreateRqIn::with(|s| s.ctx(context));
    let device = &pd.device;
    let out: CreateRqOut =
        device.function.call_with(Opcode::CreateRq, device.opener.uid(), &input, &pages)?;
    Ok(out.rqn())
}

/// Changes the state of a queue.
pub(super) fn step(
    function: &Function,
    uid: u16,
    (op, number): (Opcode, u32),
    from: u8,
    to: u8,
) -> Result<(), Error> {
    let order = |from: u8| {
        // The commands of both queues have the same layout in the fields used here.
        let mut input = ModifySqIn::zeroed();
        let context = SqContext::with(|s| s.state(to));
        input.set().sq_state(from).sqn(number).ctx(context);
        function.order(op, uid, &input)
    };
    match order(from) {
        // A queue may have entered the error state on its own.
        Err(Error::Command { .. }) if to != READY => order(ERROR),
        result => result,
    }
}

/// States of send and receive queue for a state of the queue pair.
fn states(state: QpState) -> (u8, u8) {
    match state {
        QpState::Reset | QpState::Init => (RESET, RESET),
        QpState::Rtr => (RESET, READY),
        QpState::Rts | QpState::Sqd => (READY, READY),
        QpState::Sqe => (ERROR, READY),
        QpState::Err => (ERROR, ERROR),
    }
}
