//! BAR0: initialization segment, MSI-X table and pending bits, UAR pages.

use super::{init_segment, msix, slow};
use crate::{
    Adapter,
    engine::Runner,
    host::Host,
    identity::BAR0_SIZE,
    mlx5::Job,
    region::{Func, Memic, memic},
    state::Counters,
};
use hwspec::{
    doorbell::{UAR_SHIFT, UarRegister},
    init_segment::InitSegment,
    pcie::{FIRST_UAR, MEMIC_BAR, MSIX_PBA, MSIX_TABLE, MSIX_VECTORS},
};

/// The register or memory at an offset of BAR0.
enum Place {
    InitSegment(usize),
    MsixTable(usize),
    MsixPending(usize),
    Uar(u32, usize),
    /// Device memory: its bus address.
    Memic(u64),
    Nothing,
}

fn place(offset: u64) -> Place {
    if offset >= BAR0_SIZE {
        return Place::Nothing;
    }
    let at = offset as usize;
    match at {
        _ if at < InitSegment::SIZE => Place::InitSegment(at),
        _ if (MSIX_TABLE..MSIX_TABLE + 16 * MSIX_VECTORS).contains(&at) => Place::MsixTable(at - MSIX_TABLE),
        _ if (MSIX_PBA..MSIX_PBA + 8).contains(&at) => Place::MsixPending(at - MSIX_PBA),
        _ if (MEMIC_BAR..MEMIC_BAR + u64::from(memic::SIZE)).contains(&offset) => {
            Place::Memic(memic::WITHIN + (offset - MEMIC_BAR))
        }
        _ if at >> UAR_SHIFT >= FIRST_UAR as usize => {
            Place::Uar((at >> UAR_SHIFT) as u32, at & ((1 << UAR_SHIFT) - 1))
        }
        _ => Place::Nothing,
    }
}

/// The meaning of an 8-byte write to a register.
enum Bell {
    /// A doorbell that gives the device this job.
    Job(Job),
    /// The rest of a WQE written into the register; the device fetches the WQE from its ring instead.
    Rest,
    /// Neither of these.
    Other,
}

#[inline(always)]
fn bell(offset: u64, value: u64) -> Bell {
    let (high, low) = ((value >> 32) as u32, value as u32);
    let Place::Uar(uar, at) = place(offset) else { return Bell::Other };
    match UarRegister::at(at) {
        UarRegister::BlueFlame(0) => Bell::Job(Job::Doorbell { qpn: low >> 8, uar }),
        UarRegister::BlueFlame(_) => Bell::Rest,
        UarRegister::CqArm => Bell::Job(Job::ArmCq { cqn: low & 0xff_ffff, value: high }),
        _ => Bell::Other,
    }
}

/// The job that writing the 8-byte `value` to the doorbell register at `offset` of BAR0 gives the device. `None` if the register is not a
/// doorbell.
pub fn doorbell(offset: u64, value: u64) -> Option<Job> {
    match bell(offset, value) {
        Bell::Job(job) => Some(job),
        Bell::Rest | Bell::Other => None,
    }
}

/// Like [`doorbell`] for a 4-byte `value`. Registers of 8 bytes may be written in two halves: the second half acts; the first half of a
/// send doorbell repeats the contents of the doorbell record.
pub fn doorbell_half(offset: u64, value: u32) -> Option<Job> {
    let Place::Uar(uar, at) = place(offset) else { return None };
    let (eqn, ci) = (value >> 24, value & 0xff_ffff);
    match UarRegister::at(at) {
        UarRegister::BlueFlame(4) => Some(Job::Doorbell { qpn: value >> 8, uar }),
        UarRegister::EqArm => Some(Job::EqUpdate { eqn, uar, ci, arm: true }),
        UarRegister::EqCi => Some(Job::EqUpdate { eqn, uar, ci, arm: false }),
        _ => None,
    }
}

/// True if a write of 4 bytes (8 if `wide`) at `offset` of BAR0 rings a send queue.
pub(crate) fn rings(offset: u64, wide: bool) -> bool {
    let acts = if wide { 0 } else { 4 };
    matches!(place(offset), Place::Uar(_, at) if UarRegister::at(at) == UarRegister::BlueFlame(acts))
}

impl Adapter {
    /// Reads the 32-bit register at `offset` (a multiple of 4) of BAR0.
    pub fn bar_read32(&self, host: &mut dyn Host, now: u64, fid: u8, offset: u64) -> u32 {
        if !self.is_there(fid) || offset % 4 != 0 || offset >= BAR0_SIZE {
            return u32::MAX;
        }
        let mut func = Func::lock(self.region(), fid, host);
        if !func.function().bar_answers() {
            return u32::MAX;
        }
        if self.config().strict.slow != 0 {
            let silent = slow::is_silent(&mut func, self.config(), now);
            func.commit(host);
            if silent {
                return u32::MAX;
            }
        }
        match place(offset) {
            Place::InitSegment(at) => init_segment::read(&func, self.config(), now, at),
            // PCI structures are little-endian.
            Place::MsixTable(at) => msix::read_table(&func, at).swap_bytes(),
            Place::MsixPending(at) => msix::read_pending(&func, at).swap_bytes(),
            Place::Memic(at) => {
                let mut word = [0; 4];
                let read = Memic::of(self.region(), fid).read(at, &mut word);
                read.map_or(u32::MAX, |()| u32::from_be_bytes(word))
            }
            Place::Uar(..) | Place::Nothing => 0,
        }
    }

    /// Writes the 32-bit register at `offset` (a multiple of 4) of BAR0 and runs the resulting work.
    pub fn bar_write32(
        &self,
        runner: &mut Runner,
        host: &mut dyn Host,
        now: u64,
        fid: u8,
        offset: u64,
        value: u32,
    ) {
        if !self.is_there(fid) || offset % 4 != 0 {
            return;
        }
        match doorbell_half(offset, value) {
            Some(job @ Job::Doorbell { .. }) => return runner.submit(self, host, now, fid, job),
            Some(job) => return self.submit_if(runner, host, now, fid, job),
            None => {}
        }
        match place(offset) {
            // The doorbell record also holds the contents of a CQ doorbell's first half.
            Place::Uar(_, at) if matches!(UarRegister::at(at.wrapping_sub(4)), UarRegister::CqArm) => {
                self.arm_from_record(runner, host, now, fid, value & 0xff_ffff);
            }
            Place::Uar(..) => {}
            Place::InitSegment(init_segment::COMMAND_DOORBELL) => {
                self.submit_if(runner, host, now, fid, Job::Command { slots: value });
            }
            other => {
                let mut func = Func::lock(self.region(), fid, host);
                if func.function().bar_answers() {
                    match other {
                        Place::InitSegment(at) => init_segment::write(&mut func, at, value),
                        Place::MsixTable(at) => msix::write_table(&mut func, at, value.swap_bytes()),
                        Place::Memic(at) => {
                            let _ = Memic::of(self.region(), fid).write(at, &value.to_be_bytes());
                        }
                        _ => {}
                    }
                    func.commit(host);
                }
            }
        }
    }

    /// Writes the 64-bit register at `offset` (a multiple of 8) of BAR0 and runs the resulting work.
    #[inline(always)]
    pub fn bar_write64(
        &self,
        runner: &mut Runner,
        host: &mut dyn Host,
        now: u64,
        fid: u8,
        offset: u64,
        value: u64,
    ) {
        if !self.is_there(fid) || offset % 8 != 0 {
            return;
        }
        match bell(offset, value) {
            Bell::Job(job @ Job::Doorbell { .. }) => return runner.submit(self, host, now, fid, job),
            Bell::Job(job) => return self.submit_if(runner, host, now, fid, job),
            Bell::Rest => return,
            Bell::Other => {}
        }
        let (high, low) = ((value >> 32) as u32, value as u32);
        self.bar_write_halves(runner, host, now, (fid, offset), [high, low]);
    }

    /// Writes two consecutive 32-bit registers.
    #[inline(never)]
    fn bar_write_halves(
        &self,
        runner: &mut Runner,
        host: &mut dyn Host,
        now: u64,
        (fid, offset): (u8, u64),
        [first, second]: [u32; 2],
    ) {
        self.bar_write32(runner, host, now, fid, offset, first);
        self.bar_write32(runner, host, now, fid, offset + 4, second);
    }

    /// Submits `job` if the function answers and may do DMA.
    #[inline(never)]
    fn submit_if(&self, runner: &mut Runner, host: &mut dyn Host, now: u64, fid: u8, job: Job) {
        let mut func = Func::lock(self.region(), fid, host);
        let admitted = func.function().rings();
        if !admitted {
            func.function_mut(|f| &mut f.counters)[Counters::BadDoorbells as usize] += 1;
            func.commit(host);
        }
        drop(func);
        if admitted {
            runner.submit(self, host, now, fid, job);
        }
    }

    /// Acts on the second half of a CQ doorbell; the doorbell record also holds the contents of the first half.
    fn arm_from_record(&self, runner: &mut Runner, host: &mut dyn Host, now: u64, fid: u8, cqn: u32) {
        let func = Func::lock(self.region(), fid, host);
        let Some(dbr) = func.get::<crate::state::CqRow>(cqn).map(|cq| cq.dbr) else { return };
        let rid = func.rid();
        drop(func);
        let mut word = [0; 4];
        if host.read(rid, dbr + 4, &mut word).is_ok() {
            let job = Job::ArmCq { cqn, value: u32::from_be_bytes(word) };
            self.submit_if(runner, host, now, fid, job);
        }
    }
}
