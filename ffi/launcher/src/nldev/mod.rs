//! The answers of the kernel's RDMA netlink (client NLDEV), about the devices that a program sees.
//!
//! [`answer`] takes a datagram from a program and returns the datagrams for it to read, without access to a socket. Commands that change
//! something are refused as the kernel refuses them for devices of the mlx5 driver.

mod call;
pub mod codes;
mod devices;
mod host;
mod inventory;
pub mod message;
mod resources;
mod statistics;

pub use host::Host;
pub use inventory::{Follows, Inventory};
pub use message::{Asker, Replies};

use call::{Call, Refused};
use codes::*;
use message::{Request, requests};

/// The answers to the requests in `datagram`.
pub fn answer(inventory: &Inventory, datagram: &[u8], asker: &Asker) -> Replies {
    let mut out = Replies::default();
    for request in requests(datagram) {
        // Requests without the flag, and netlink's own control messages, get nothing but an acknowledgement.
        let silent = request.header.flags & NLM_F_REQUEST == 0 || request.header.kind < NLMSG_MIN_TYPE;
        let result = match silent {
            true => Ok(Ended::Answered),
            false => one(inventory, request, asker, &mut out),
        };
        match result {
            Err(Refused(errno, why)) => out.error(&request, asker, errno, why),
            Ok(Ended::Answered) if request.header.flags & NLM_F_ACK != 0 => {
                out.error(&request, asker, 0, None)
            }
            Ok(_) => {}
        }
    }
    out
}

/// The outcome of a request that was not refused.
enum Ended {
    /// An acknowledgement may follow.
    Answered,
    /// Nothing may follow: a dump ends by itself.
    Dumped,
}

fn one(
    inventory: &Inventory,
    request: Request<'_>,
    asker: &Asker,
    out: &mut Replies,
) -> Result<Ended, Refused> {
    let header = request.header;
    if header.client() != CLIENT_NLDEV {
        return Err(Refused::INVALID);
    }
    let (command, dump) = (header.command(), header.flags & NLM_F_DUMP != 0);
    let changes = matches!(
        command,
        cmd::SET | cmd::NEWLINK | cmd::DELLINK | cmd::SYS_SET | cmd::STAT_SET | cmd::STAT_DEL
    );
    let raw = matches!(command, cmd::RES_QP_GET_RAW | cmd::RES_CQ_GET_RAW | cmd::RES_MR_GET_RAW);
    if (changes || raw) && !asker.admin {
        return Err(Refused(libc::EPERM, None));
    }
    let mut call = Call { inventory, request, asker, out };
    if changes && call.ordered_of_host()? {
        return Ok(Ended::Answered);
    }
    if let Some(answers) = call.of_host()? {
        call.out.datagrams.extend(answers);
        return Ok(Ended::Dumped);
    }
    if dump {
        let result = match command {
            cmd::GET => devices::dump(&mut call),
            cmd::PORT_GET => devices::dump_ports(&mut call),
            cmd::RES_GET => resources::dump_summary(&mut call),
            cmd::RES_QP_GET..=cmd::RES_PD_GET | cmd::RES_CTX_GET | cmd::RES_SRQ_GET => {
                resources::dump(&mut call, command)
            }
            cmd::STAT_GET => statistics::dump(&mut call),
            _ if raw => Err(Refused::INVALID),
            // No such dump.
            _ => return Err(Refused::INVALID),
        };
        call.out.done(&request, asker, result.err().map_or(0, |refused| refused.0));
        return Ok(Ended::Dumped);
    }
    match command {
        cmd::GET => devices::get(&mut call),
        cmd::PORT_GET => devices::get_port(&mut call),
        cmd::GET_CHARDEV => devices::get_chardev(&mut call),
        cmd::SYS_GET => devices::get_system(&mut call),
        cmd::SET | cmd::DELLINK | cmd::NEWLINK | cmd::SYS_SET => devices::change(&call, command),
        cmd::RES_GET => resources::get_summary(&mut call),
        cmd::RES_QP_GET..=cmd::RES_PD_GET | cmd::RES_CTX_GET | cmd::RES_SRQ_GET => {
            resources::get(&mut call, command)
        }
        cmd::STAT_GET => statistics::get(&mut call),
        cmd::STAT_GET_STATUS => statistics::get_status(&mut call),
        cmd::STAT_SET | cmd::STAT_DEL => {
            call.port()?;
            Err(Refused::UNSUPPORTED)
        }
        _ => Err(Refused::INVALID),
    }?;
    Ok(Ended::Answered)
}

#[cfg(test)]
mod tests;
