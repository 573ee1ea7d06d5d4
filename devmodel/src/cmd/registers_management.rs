//! Adapter (not port) management registers for the PF's driver: the supported registers and the running firmware. Linux reads
//! them for `devlink dev info`.
//!
//! Dwords are big-endian.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::pcie;
use hwspec::layout::{load, store};

/// Register IDs: list of firmware components, information about one of them, list of supported registers.
const MCQS: u16 = 0x9060;
const MCQI: u16 = 0x9061;
const MCAM: u16 = 0x907f;

/// The bits of MCQI and MCQS in `mng_access_reg_cap_mask` of `MCAM`, at the end of the first group.
const ACCESS_REGS: u64 = 1 << 1 | 1 << 0;
/// `identifier` of `MCQS`: the boot image.
const BOOT_IMAGE: u64 = 1;
/// `info_type` of `MCQI`: the version, and its size in bytes.
const VERSION: u64 = 1;
const VERSION_SIZE: usize = 0x7c;
/// Offset of the version string.
const VERSION_STRING: usize = 0x20;

/// Size of a register in bytes as requested; `None` if it is not a management register.
pub(super) fn size(id: u16) -> Option<usize> {
    match id {
        MCQS => Some(0x10),
        MCQI => Some(0x18),
        MCAM => Some(0x48),
        _ => None,
    }
}

/// Reads management register `id` into `register`.
pub(super) fn read(call: &Call<'_, '_, '_>, id: u16, register: &mut Vec<u8>) -> Done {
    match id {
        MCAM => {
            let is_first_group = load(register, 0, 7, 0) == 0;
            register[4..].fill(0);
            store(register, 8, 31, 0, if is_first_group { ACCESS_REGS } else { 0 });
        }
        MCQS => {
            only_component(register)?;
            register[4..].fill(0);
            // The last component, because it is the only one.
            store(register, 0, 31, 31, 1);
            store(register, 4, 15, 0, BOOT_IMAGE);
        }
        _ => {
            only_component(register)?;
            Syndrome::Register.unless(load(register, 8, 4, 0) == VERSION)?;
            store(register, 0xc, 31, 0, VERSION_SIZE as u64);
            let (from, len) = (load(register, 0x10, 31, 0) as usize, load(register, 0x14, 15, 0) as usize);
            let version = version(pcie::firmware_version(call.step.config.strict.card));
            let Some(part) = version.get(from..).and_then(|rest| rest.get(..len)) else {
                return Syndrome::Register.refuse();
            };
            register.extend_from_slice(part);
        }
    }
    Ok(())
}

/// Checks that the requested component is the only existing one.
fn only_component(register: &[u8]) -> Done {
    Syndrome::Register.unless(load(register, 0, 15, 0) == 0)
}

/// `mcqi_version` of firmware `version`, as a number and as text.
fn version(version: u32) -> [u8; VERSION_SIZE] {
    let mut out = [0; VERSION_SIZE];
    let text = format!("{}.{}.{}", version >> 24, version >> 16 & 0xff, version & 0xffff);
    store(&mut out, 0, 7, 0, text.len() as u64);
    store(&mut out, 4, 31, 0, version.into());
    out[VERSION_STRING..VERSION_STRING + text.len()].copy_from_slice(text.as_bytes());
    out
}
