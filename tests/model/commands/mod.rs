//! The device by its commands and registers: configuration space, BAR0, command queue.

use devmodel::{Config, cmd::Syndrome};
use hwspec::{
    cmd::{CmdIn, Opcode, Status, cq::*, eq::*, mkey::*, qp::*, resource::*, uctx::*},
    context::{cq::CqContext, eq::EqContext, mkey::MkeyContext, qp::QpContext},
    layout::{Layout, Set},
};
use ironverbs_tests::bed::{Bed, Reply};

mod bring_up;
mod functions;
mod mailboxes;
mod memic;
mod objects;
mod ownership;
mod pci;
mod properties;
mod queue_pairs;
mod shown;
mod strict;
mod table;
mod umem;

const PAGE: usize = 4096;

/// Overwrites fields of a valid command, so that it becomes invalid in one respect.
type Change<'f, T> = &'f dyn for<'s, 'x> Fn(&'s mut Set<'x, T>) -> &'s mut Set<'x, T>;
/// Such changes, each with the syndrome of the refusal, or `None` if the command is still accepted.
type Refusals<'f, T> = &'f [(Change<'f, T>, Option<Syndrome>)];

/// An initialized PF.
fn up() -> Bed {
    let mut bed = Bed::cx5();
    bed.bring_up(0);
    bed
}

/// An initialized PF, and the objects that most others need.
fn ready() -> (Bed, Base) {
    let mut bed = up();
    let base = bed.base(0);
    (bed, base)
}

/// A PF and two VFs, all initialized.
fn with_vfs() -> Bed {
    let mut bed = Bed::cx5();
    bed.set_vfs(2);
    (0..3).for_each(|fid| bed.bring_up(fid));
    bed
}

/// An adapter with the strictness of `switches` that was just powered on.
fn powered(switches: &str) -> Bed {
    Bed::new(Config { strict: switches.parse().unwrap(), ..Config::default() })
}

/// `input` followed by a list of 64-bit entries.
fn with_list<I: Layout>(input: &I, list: &[u64]) -> Vec<u8> {
    let mut bytes = input.bytes().to_vec();
    list.iter().for_each(|e| bytes.extend_from_slice(&e.to_be_bytes()));
    bytes
}

/// The objects that most other objects need.
#[derive(Clone, Copy, Debug)]
struct Base {
    pd: u32,
    uar: u32,
    eqn: u32,
    eq_memory: u64,
}

/// Commands that create, show and destroy one object each, for any user context, whether or not they are granted.
trait Commands {
    fn bed(&mut self) -> &mut Bed;

    /// Runs a command that must succeed and returns its output.
    #[track_caller]
    fn ok<I: Layout>(&mut self, fid: u8, op: Opcode, input: &I, out: usize) -> Vec<u8> {
        let result = self.bed().command_with(fid, op, 0, input, &[], out);
        result.unwrap_or_else(|e| panic!("{op:?}: {e:x?}"))
    }

    /// Runs a command and returns its status.
    fn status<I: Layout>(&mut self, fid: u8, op: Opcode, input: &I, out: usize) -> Status {
        self.bed().reply_to(fid, op, 0, input.bytes(), out).status()
    }

    /// Runs a command that names one object at offset 8.
    fn name(&mut self, fid: u8, op: Opcode, uid: u16, number: u32) -> Reply {
        let mut bytes = [0; 16];
        bytes[8..12].copy_from_slice(&number.to_be_bytes());
        self.bed().reply_to(fid, op, uid, &bytes, 16)
    }

    /// The output of a query of object `number`.
    fn object<O: Layout>(&mut self, fid: u8, op: Opcode, number: u32) -> O {
        let mut input = [0; 16];
        input[8..12].copy_from_slice(&number.to_be_bytes());
        O::read(&self.ok(fid, op, &input, O::SIZE))
    }

    fn uid(&mut self, fid: u8) -> u16 {
        CreateUctxOut::read(&self.ok(fid, Opcode::CreateUctx, &CreateUctxIn::zeroed(), 16)).uid()
    }

    fn pd_by(&mut self, fid: u8, uid: u16) -> u32 {
        self.bed().reply_to(fid, Opcode::AllocPd, uid, CmdIn::zeroed().as_bytes(), 16).made()
    }

    fn uar_by(&mut self, fid: u8, uid: u16) -> u32 {
        self.bed().reply_to(fid, Opcode::AllocUar, uid, CmdIn::zeroed().as_bytes(), 16).made()
    }

    /// Creates an event queue of 16 entries for the event types in `mask`. Returns its number and the address of its entries.
    fn eq_by(&mut self, fid: u8, uid: u16, uar: u32, mask: u64, vector: u16) -> (u32, u64) {
        let (reply, at) = self.eq_reply(fid, uid, uar, [mask, 0], vector);
        assert_eq!(reply.status(), Status::Ok);
        (CreateEqOut::read(&reply.output).eq_number().into(), at)
    }

    fn eq_reply(&mut self, fid: u8, uid: u16, uar: u32, mask: [u64; 2], vector: u16) -> (Reply, u64) {
        let at = self.bed().memory.alloc(fid, PAGE);
        let context = EqContext::with(|s| s.log_eq_size(4).uar_page(uar).intr(vector));
        let mut bits = [0; 32];
        bits[..8].copy_from_slice(&mask[0].to_be_bytes());
        bits[8..16].copy_from_slice(&mask[1].to_be_bytes());
        let input = CreateEqIn::with(|s| s.eq_context_entry(context).event_bitmask(bits));
        (self.bed().reply_to(fid, Opcode::CreateEq, uid, &with_list(&input, &[at]), 16), at)
    }

    fn base(&mut self, fid: u8) -> Base {
        let uar = self.uar_by(fid, 0);
        let (eqn, eq_memory) = self.eq_by(fid, 0, uar, 0, 1);
        Base { pd: self.pd_by(fid, 0), uar, eqn, eq_memory }
    }

    fn cq_reply(&mut self, fid: u8, uid: u16, base: &Base, change: Change<'_, CqContext>) -> Reply {
        let input = self.cq_input(fid, base, change);
        self.bed().reply_to(fid, Opcode::CreateCq, uid, &input, 16)
    }

    fn cq_input(&mut self, fid: u8, base: &Base, change: Change<'_, CqContext>) -> Vec<u8> {
        let at = self.bed().memory.alloc(fid, 2 * PAGE);
        let context = CqContext::with(|c| {
            change(c.log_cq_size(6).uar_page(base.uar).c_eqn_or_apu_element(base.eqn).dbr_addr(at + 4096))
        });
        with_list(&CreateCqIn::with(|s| s.cq_context(context)), &[at])
    }

    fn cq_by(&mut self, fid: u8, uid: u16, base: &Base) -> u32 {
        self.cq_reply(fid, uid, base, &|c| c).made()
    }

    fn mkey_reply(&mut self, fid: u8, uid: u16, pages: &[u64], change: Change<'_, MkeyContext>) -> Reply {
        let octowords = pages.len().div_ceil(2) as u32;
        let context = MkeyContext::with(|c| {
            c.access_mode_1_0(1).lr(true).lw(true).qpn(0xff_ffff).mkey_7_0(0x5a).log_page_size(12);
            change(c.len(4096 * pages.len() as u64).translations_octword_size(octowords))
        });
        let input = CreateMkeyIn::with(|s| {
            s.memory_key_mkey_entry(context).translations_octword_actual_size(octowords)
        });
        let mut list = pages.to_vec();
        list.resize(pages.len().next_multiple_of(2), 0);
        self.bed().reply_to(fid, Opcode::CreateMkey, uid, &with_list(&input, &list), 16)
    }

    /// Creates a queue pair with an RQ of 4 KiB and an SQ of 1 KiB.
    fn qp_reply(&mut self, fid: u8, uid: u16, base: &Base, cqn: u32, change: Change<'_, QpContext>) -> Reply {
        let at = self.bed().memory.alloc(fid, 3 * PAGE);
        let context = QpContext::with(|c| {
            c.pd(base.pd).uar_page(base.uar).cqn_snd(cqn).cqn_rcv(cqn).dbr_addr(at + 0x2000);
            change(c.log_rq_size(6).log_rq_stride(2).log_sq_size(4))
        });
        let input = CreateQpIn::with(|s| s.qpc(context));
        self.bed().reply_to(fid, Opcode::CreateQp, uid, &with_list(&input, &[at, at + 4096]), 16)
    }
}

impl Commands for Bed {
    fn bed(&mut self) -> &mut Bed {
        self
    }
}
