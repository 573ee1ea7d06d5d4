//! A connection manager: the protocol's state machine on queue pair 1 of a function.

use cm::{Agent, Command, Config, ConnId, Event, Input, Output, Path, QpParameters};
use driver::{AccessFlags, AddressHandle, Device, Error, Gsi, LinkLayer, Qp, QpAttr, QpState};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest single wait for a MAD.
const TURN: Duration = Duration::from_millis(50);

/// An agent and the queue pair that it uses.
pub struct Manager {
    /// Queue pair 1.
    pub gsi: Gsi,
    /// The state machine.
    pub agent: Agent,
    events: VecDeque<(ConnId, Event)>,
    start: Instant,
}

impl Manager {
    /// Opens a manager on `device`, with communication ids that begin with `tag`.
    pub fn open(device: &Arc<Device>, tag: u16) -> Result<Self, Error> {
        let attr = device.attr();
        let config = Config {
            tag,
            first: std::process::id() as u16,
            ca_guid: u64::from_be_bytes(attr.node_guid),
            ack_delay: attr.local_ca_ack_delay,
        };
        let gsi = Gsi::open(device, 0)?;
        Ok(Self { gsi, agent: Agent::new(config), events: VecDeque::new(), start: Instant::now() })
    }

    /// Issues a command.
    pub fn command(&mut self, id: ConnId, command: Command) -> Result<(), String> {
        self.take(Input::Command(id, command))
    }

    fn take(&mut self, input: Input<'_>) -> Result<(), String> {
        let done = self.agent.handle(self.start.elapsed(), input);
        while let Some(output) = self.agent.poll() {
            match output {
                Output::Send { to, mad } => self.gsi.send(&to, &mad).map_err(|error| error.to_string())?,
                Output::Event(id, event) => self.events.push_back((id, event)),
                Output::Unclaimed(unclaimed) => self.agent.refuse(&unclaimed),
            }
        }
        done.map_err(|refused| refused.to_string())
    }

    /// Returns the next event, or `None` if there is none within `limit`.
    pub fn event(&mut self, limit: Duration) -> Result<Option<(ConnId, Event)>, String> {
        let begin = Instant::now();
        loop {
            while let Some((from, mad)) = self.gsi.next().map_err(|error| error.to_string())? {
                self.take(Input::Mad { from, bytes: &mad[..] })?;
            }
            self.take(Input::Tick)?;
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if begin.elapsed() >= limit {
                return Ok(None);
            }
            let due = self.agent.deadline().map(|due| due.saturating_sub(self.start.elapsed()));
            self.gsi.wait(due.unwrap_or(TURN).min(TURN)).map_err(|error| error.to_string())?;
        }
    }

    /// Returns the path from GID `index` of this port to a peer.
    pub fn path(&self, index: u16, gid: [u8; 16], lid: u16) -> Result<Path, Error> {
        let port = self.gsi.device().port()?;
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        Ok(Path {
            local_gid: self.gsi.device().gid(index)?,
            remote_gid: gid,
            local_lid: port.lid,
            remote_lid: lid,
            grh: ethernet,
            hop_limit: if ethernet { 64 } else { 0 },
            ..Path::default()
        })
    }
}

/// Moves `qp` from RESET to RTS with a connection's parameters.
pub fn start(qp: &Qp, device: &Device, parameters: &QpParameters) -> Result<(), Error> {
    let (path, p) = (&parameters.path, parameters);
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let gids = device.port()?.gid_tbl_len.min(16) as u16;
    let mut index = 0;
    for entry in 0..gids {
        if device.gid(entry)? == path.local_gid {
            index = entry;
        }
    }
    let ah = AddressHandle {
        dgid: path.remote_gid,
        sgid_index: index as u8,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        flow_label: path.flow_label,
        dlid: path.remote_lid,
        sl: path.sl,
        is_global: path.grh,
        port_num: 1,
        ..AddressHandle::default()
    };
    let attr = QpAttr {
        qp_access_flags: access,
        port_num: 1,
        ah,
        path_mtu: 128 << path.mtu,
        dest_qp_num: p.remote_qpn,
        rq_psn: p.rq_psn,
        sq_psn: p.sq_psn,
        max_dest_rd_atomic: p.responder_resources,
        max_rd_atomic: p.initiator_depth,
        min_rnr_timer: 1,
        timeout: p.ack_timeout,
        retry_cnt: p.retry_count,
        rnr_retry: p.rnr_retry_count,
        ..QpAttr::default()
    };
    qp.advance_to(QpState::Rts, &attr)
}
