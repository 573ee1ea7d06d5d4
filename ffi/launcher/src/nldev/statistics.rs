//! Statistics: the counters of a port. There are no counters bound to queue pairs.

use super::call::{Call, Done, PORT, Refused, handle};
use super::codes::attr;
use super::message::Attributes;
use super::resources;
use crate::counters::HARDWARE;

/// The kernel's error for a device that counts nothing.
const NOT_ON_NODE: Refused = Refused(libc::EINVAL, Some("only functions of an adapter have statistics here"));

/// `RDMA_COUNTER_MODE_NONE`.
const MODE_NONE: u32 = 0;

pub fn get(call: &mut Call<'_>) -> Done {
    match call.request.u32(attr::STAT_RES)? {
        None => of_port(call),
        Some(of) if of == u32::from(attr::RES_QP) => of_qps(call),
        Some(of) if of == u32::from(attr::RES_MR) => resources::get_statistics_of_mr(call),
        Some(_) => Err(Refused::INVALID),
    }
}

pub fn dump(call: &mut Call<'_>) -> Done {
    let of = call.request.u32(attr::STAT_RES)?;
    let (_, _) = call.device()?;
    if call.request.u32(attr::PORT_INDEX)?.is_some_and(|port| port != PORT) {
        return Err(Refused::INVALID);
    }
    match of {
        Some(of) if of == u32::from(attr::RES_QP) => Ok(()),
        Some(of) if of == u32::from(attr::RES_MR) => resources::dump_statistics_of_mrs(call),
        _ => Err(Refused::INVALID),
    }
}

fn of_port(call: &mut Call<'_>) -> Done {
    let (index, device) = call.port()?;
    let (observer, fid) = call.inventory.on_node(device).ok_or(NOT_ON_NODE)?;
    let values = observer.counters(fid);
    let mut out = Attributes::default();
    handle(&mut out, index, device);
    out.u32(attr::PORT_INDEX, PORT).nest(attr::STAT_HWCOUNTERS, |table| {
        for (name, value) in HARDWARE {
            table.nest(attr::STAT_HWCOUNTER_ENTRY, |entry| {
                entry
                    .text(attr::STAT_HWCOUNTER_ENTRY_NAME, name)
                    .u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, value(&values));
            });
        }
    });
    call.reply(&out);
    Ok(())
}

/// The mode in which counters are bound to queue pairs.
fn of_qps(call: &mut Call<'_>) -> Done {
    if call.request.has(attr::STAT_COUNTER_ID) {
        call.port()?;
        return Err(Refused(libc::ENOENT, None));
    }
    if !call.request.has(attr::STAT_MODE) {
        return Err(Refused::INVALID);
    }
    let (index, device) = call.port()?;
    let mut out = Attributes::default();
    handle(&mut out, index, device);
    out.u32(attr::PORT_INDEX, PORT).u32(attr::STAT_MODE, MODE_NONE);
    call.reply(&out);
    Ok(())
}

/// Lists the counters. None can be switched off.
pub fn get_status(call: &mut Call<'_>) -> Done {
    let (index, device) = call.port()?;
    let mut out = Attributes::default();
    handle(&mut out, index, device);
    out.u32(attr::PORT_INDEX, PORT).nest(attr::STAT_HWCOUNTERS, |table| {
        for (number, (name, _)) in (0..).zip(HARDWARE) {
            table.nest(attr::STAT_HWCOUNTER_ENTRY, |entry| {
                entry.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name).u32(attr::STAT_HWCOUNTER_INDEX, number);
            });
        }
    });
    call.reply(&out);
    Ok(())
}
