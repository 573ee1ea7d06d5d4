//! Two programs that connect by communication management: `meet DIR FID listen` and `meet DIR FID connect`.
//!
//! Both print `port GID LID`. The connecting one reads that line of the other and the number of a service; the listening one reads the
//! service. Once connected they print `connected`, exchange a message, print `heard`, and the active side disconnects. Both print `ended`;
//! a refused connection prints `rejected REASON`. With the argument `anything` the other's message may have any contents, for peers that
//! are other programs. DIR may also describe a place without a node, in the format of `node::place` with semicolons between its lines; FID
//! is then ignored.

use cm::{Accept, Command, ConnId, Connect, Event, Service};
use driver::{SendOp, WcStatus};
use hwspec::wire::{
    IpPair,
    mad::cm::{CmaHeader, PortSpace, service_id},
};
use ironverbs_tests::{
    end::{End, queue_pair},
    manager::{Manager, start},
    program::{hear, say},
};
use node::place::Place;
use std::{error::Error, path::PathBuf, time::Duration};

const SOON: Duration = Duration::from_secs(20);
const WORDS: &[u8; 16] = b"we have met here";

type Done<T> = Result<T, Box<dyn Error>>;

fn heard() -> Done<String> {
    hear().ok_or_else(|| "nobody speaks to me".into())
}

fn main() -> Done<()> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: meet DIR FID listen|connect [anything]";
    let dir = PathBuf::from(args.next().ok_or(usage)?);
    let fid: u8 = args.next().ok_or(usage)?.parse()?;
    let role = args.next().ok_or(usage)?;
    let anything = args.next().is_some();
    let place = match dir.to_str().filter(|dir| dir.contains('=')) {
        Some(place) => Place::parse(place.replace(';', "\n").as_bytes())?,
        None => Place::Node { dir, fid },
    };
    let device = place.open()?;
    let mut manager = Manager::open(&device, std::process::id() as u16)?;
    // The manager waits for events, the other end polls; where a function may have two openers each has its own device.
    let device = if matches!(place, Place::Node { .. }) { place.open()? } else { device };
    let mut end = End::new(device.clone(), 4096)?;
    let port = device.port()?;
    say(format!("port {:032x} {}", u128::from_be_bytes(device.gid((port.lid == 0).into())?), port.lid));
    match role.as_str() {
        "listen" => listen(&mut manager, &mut end, anything),
        _ => {
            // If they share a function, the listening one answers for services without a listener.
            manager.agent.set_elder(false);
            connect(&mut manager, &mut end, anything)
        }
    }
}

fn next(manager: &mut Manager) -> Done<(ConnId, Event)> {
    manager.event(SOON)?.ok_or_else(|| "no event came".into())
}

fn listen(manager: &mut Manager, end: &mut End, anything: bool) -> Done<()> {
    let service_id = service_id(PortSpace::Tcp, heard()?.parse()?);
    let listener = manager.agent.open()?;
    manager.command(listener, Command::Listen { service_id })?;
    say("listening");
    loop {
        let (id, event) = next(manager)?;
        let Event::Request(request) = event else {
            return Err(format!("expected a REQ, found {event:?}").into());
        };
        let (qpn, own) = (end.qp.qpn(), 0x77_7777);
        let accept = Accept {
            qpn,
            starting_psn: own,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            rnr_retry_count: 7,
            ..Accept::default()
        };
        // The queue pair must be ready before the peer learns of it. The agent knows our PSN only from the accept command.
        let mut parameters = manager.agent.qp_parameters(id).ok_or("no parameters")?;
        parameters.rq_psn = own;
        start(&end.qp, &end.device, &parameters)?;
        end.receive(1, 0, 64);
        manager.command(id, Command::Accept(Box::new(accept)))?;
        let (_, event) = next(manager)?;
        let Event::Established { .. } = event else {
            return Err(format!("expected an RTU, found {event:?}").into());
        };
        talk(end, anything)?;
        match anything {
            true => part(manager, id)?,
            false => {
                let (_, event) = next(manager)?;
                let Event::Disconnect { .. } = event else {
                    return Err(format!("expected a DREQ, found {event:?}").into());
                };
                manager.command(id, Command::DisconnectReply { private_data: Vec::new() })?;
            }
        }
        finish(manager, end, id)?;
    }
}

fn connect(manager: &mut Manager, end: &mut End, anything: bool) -> Done<()> {
    loop {
        let line = heard()?;
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or("GID, LID and service are missing");
        let gid = u128::from_str_radix(word()?, 16)?.to_be_bytes();
        let (lid, service) = (word()?.parse()?, word()?.parse()?);
        let path = manager.path(u16::from(lid == 0), gid, lid)?;
        let id = manager.agent.open()?;
        let connect = Connect {
            qpn: end.qp.qpn(),
            starting_psn: 0x33_3333,
            responder_resources: 4,
            initiator_depth: 4,
            private_data: CmaHeader::new(IpPair::from_gids(path.local_gid, gid), 0xc000).as_bytes().to_vec(),
            ..Connect::new(service_id(PortSpace::Tcp, service), Service::Rc, path)
        };
        manager.command(id, Command::Connect(Box::new(connect)))?;
        match next(manager)?.1 {
            Event::Reply(_) => {}
            Event::Rejected { reason, .. } => {
                say(format!("rejected {reason:?}"));
                manager.command(id, Command::Destroy)?;
                continue;
            }
            event => return Err(format!("expected a REP, found {event:?}").into()),
        }
        let parameters = manager.agent.qp_parameters(id).ok_or("no parameters")?;
        start(&end.qp, &end.device, &parameters)?;
        end.receive(1, 0, 64);
        manager.command(id, Command::Ready { private_data: Vec::new() })?;
        talk(end, anything)?;
        part(manager, id)?;
        finish(manager, end, id)?;
    }
}

/// Exchanges a message each way.
fn talk(end: &End, anything: bool) -> Done<()> {
    say("connected");
    end.words.put(64, WORDS);
    end.post(2, SendOp::Send, &[end.sge(64, WORDS.len())]);
    for _ in 0..2 {
        let wc = end.next(SOON).ok_or("no completion")?;
        if wc.status != WcStatus::Success {
            return Err(format!("{wc:?}").into());
        }
    }
    if !anything && end.words.bytes(0, WORDS.len()) != WORDS {
        return Err("another message was expected".into());
    }
    say("heard");
    Ok(())
}

/// Disconnects, even if the other side does so too.
fn part(manager: &mut Manager, id: ConnId) -> Done<()> {
    let private_data = Vec::new();
    if manager.command(id, Command::Disconnect { private_data }).is_err() {
        let private_data = Vec::new();
        manager.command(id, Command::DisconnectReply { private_data })?;
    }
    match next(manager)?.1 {
        Event::Disconnect { .. } | Event::Disconnected { .. } => Ok(()),
        event => Err(format!("expected a DREQ or DREP, found {event:?}").into()),
    }
}

fn finish(manager: &mut Manager, end: &mut End, id: ConnId) -> Done<()> {
    manager.command(id, Command::Destroy)?;
    let old = std::mem::replace(&mut end.qp, queue_pair(&end.pd, &end.cq)?);
    old.destroy()?;
    end.words.put(0, &[0; 16]);
    say("ended");
    Ok(())
}
