//! Placeholder objects for XRC QPs, with contexts that must name objects they do not use: a CQ, an SRQ, a protection
//! domain and an XRC domain, owned by the function. The first opener that needs them creates them, and they are
//! destroyed with the function.

use crate::{
    dma::{DmaMem, PAGE_SIZE, page_list},
    error::Error,
    function::Function,
    shared_area::FunctionLock,
    transport::Scope,
};
use hwspec::{
    cmd::{CmdIn, Opcode, cq::*, eq::*, resource::*, srq::*},
    context::{cq::CqContext, eq::EqContext, qp::NO_USER_INDEX, srq::XrcSrqContext},
    layout::Layout,
};

/// Pages of their memory, in order: event queue, CQ, SRQ, doorbell records.
const PAGES: usize = 4;
/// log2 of the number of entries of both queues, one page each.
const LOG_ENTRIES: u8 = 6;
/// Bytes of an SRQ entry: a next segment and a data segment.
const SRQ_ENTRY: usize = 32;

/// The numbers of the placeholders of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placeholders {
    pub pdn: u32,
    pub cqn: u32,
    pub xrcdn: u32,
    pub srqn: u32,
}

/// The objects created so far, destroyed again if a later creation fails.
struct Making<'a> {
    function: &'a Function,
    made: Vec<(Opcode, u32)>,
}

impl Making<'_> {
    fn make<I: Layout, O: Layout>(
        &mut self,
        op: Opcode,
        input: &I,
        pages: &[u64],
        number: impl Fn(&O) -> u32,
        end: Opcode,
    ) -> Result<u32, Error> {
        let out: O = self.function.call_with(op, 0, input, pages)?;
        self.made.push((end, number(&out)));
        Ok(number(&out))
    }

    fn undo(self) {
        for (op, number) in self.made.into_iter().rev() {
            if let Err(error) = self.function.destroy_object(op, 0, number) {
                tracing::warn!(?op, number, %error, "a placeholder could not be destroyed");
            }
        }
    }
}

impl Placeholders {
    /// Returns the function's placeholders, creating them if there are none.
    pub fn of(function: &Function, lock: &FunctionLock<'_>) -> Result<Self, Error> {
        let [there, pdn, cqn, xrcdn, srqn, ..] = lock.placeholders();
        if there != 0 {
            return Ok(Self { pdn, cqn, xrcdn, srqn });
        }
        let mem = DmaMem::alloc(&function.transport, PAGES * PAGE_SIZE, Scope::Function)?;
        let at = mem.iova();
        function.pages()?.keep(mem)?;
        let mut making = Making { function, made: Vec::new() };
        let made = Self::make(&mut making, at);
        match &made {
            Ok(made) => {
                let [.., flows, _, _] = lock.placeholders();
                lock.set_placeholders([1, made.pdn, made.cqn, made.xrcdn, made.srqn, flows, 0, 0]);
            }
            Err(error) if error.is_uncertain() => {} // the device may still create the object
            Err(_) => {
                making.undo();
                function.pages()?.give_up(at);
            }
        }
        made
    }

    fn make(making: &mut Making<'_>, at: u64) -> Result<Self, Error> {
        let page = |index: usize| at + (index * PAGE_SIZE) as u64;
        let list = |index: usize| page_list(page(index), PAGE_SIZE).1;
        let uar = making.make(
            Opcode::AllocUar,
            &CmdIn::zeroed(),
            &[],
            |o: &AllocUarOut| o.uar(),
            Opcode::DeallocUar,
        )?;
        // This event queue subscribes to no events and is never armed.
        let eq = EqContext::with(|s| s.log_eq_size(LOG_ENTRIES).uar_page(uar));
        let input = CreateEqIn::with(|s| s.eq_context_entry(eq));
        let number = |o: &CreateEqOut| o.eq_number().into();
        let eqn = making.make(Opcode::CreateEq, &input, &list(0), number, Opcode::DestroyEq)?;
        let mut cq = CqContext::zeroed();
        cq.set().log_cq_size(LOG_ENTRIES).uar_page(uar).c_eqn_or_apu_element(eqn).dbr_addr(page(3)).oi(true);
        let mut input = CreateCqIn::zeroed();
        input.set().cq_context(cq);
        let number = |o: &CreateCqOut| o.cqn();
        let cqn = making.make(Opcode::CreateCq, &input, &list(1), number, Opcode::DestroyCq)?;
        let number = |o: &AllocPdOut| o.pd();
        let pdn = making.make(Opcode::AllocPd, &CmdIn::zeroed(), &[], number, Opcode::DeallocPd)?;
        let number = |o: &AllocXrcdOut| o.xrcd();
        let xrcdn = making.make(Opcode::AllocXrcd, &CmdIn::zeroed(), &[], number, Opcode::DeallocXrcd)?;
        let record = page(3) + 64;
        let srq = XrcSrqContext::with(|s| {
            s.log_xrc_srq_size(LOG_ENTRIES)
                .log_rq_stride((SRQ_ENTRY / 16).trailing_zeros() as u8)
                .xrcd(xrcdn)
                .cqn(cqn)
                .user_index(NO_USER_INDEX)
                .pd(pdn)
                .db_record_addr_h((record >> 32) as u32)
                .db_record_addr_l(record as u32 >> 2)
        });
        let input = CreateXrcSrqIn::with(|s| s.xrc_srq_context_entry(srq));
        let number = |o: &CreateXrcSrqOut| o.xrc_srqn();
        let srqn = making.make(Opcode::CreateXrcSrq, &input, &list(2), number, Opcode::DestroyXrcSrq)?;
        Ok(Self { pdn, cqn, xrcdn, srqn })
    }
}
