//! The lines of all ports: opening, sending and receiving.

use super::id::Conn;
use super::line;
use super::line::Line;
use super::manager::Manager;
use cm::{Input, Output, Unclaimed, Wanted};
use hwspec::wire::mad::MgmtClass;
use libc::c_int;
use node::{Hold, Matter};

impl Manager {
    /// Returns the line of a port, and opens it if necessary.
    ///
    /// # Errors
    /// Those of opening the function; ENODEV; EBUSY: all tags are taken.
    pub fn line(&mut self, number: usize) -> Result<&mut Line, c_int> {
        if !self.lines.contains_key(&number) {
            // First, because a line without the thread would receive nothing.
            self.start_thread()?;
            let random = self.random();
            let (low, high) = (random as u16, (random >> 16) as u16);
            let port = self.ports.get(number).ok_or(libc::ENODEV)?;
            let tag = line::take_tag(port, high).ok_or(libc::EBUSY)?;
            let line = line::open(port, tag, low)
                .inspect_err(|_| port.ports.release(Matter::Agent, port.whole(tag)))?;
            self.lines.insert(number, line);
        }
        self.lines.get_mut(&number).ok_or(libc::ENODEV)
    }

    /// Receives from all ports, and does the work that is due.
    pub fn work(&mut self) {
        let numbers: Vec<usize> = self.lines.keys().copied().collect();
        for number in numbers {
            self.receive(number);
            self.pump(number);
        }
        self.ask_again();
    }

    fn receive(&mut self, number: usize) {
        let now = self.now();
        let Some(line) = self.lines.get_mut(&number) else { return };
        line.device().events().drain(drop);
        // MADs that arrive after the check make the descriptor readable.
        line.gsi.arm();
        let mut administered = Vec::new();
        loop {
            match line.gsi.next() {
                Ok(Some((_, mad))) if mad[1] == MgmtClass::SubnAdm.raw() => administered.push(mad),
                Ok(Some((from, mad))) => {
                    let _ = line.agent.handle(now, Input::Mad { from, bytes: &mad[..] });
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "queue pair 1");
                    break;
                }
            }
        }
        let _ = line.agent.handle(now, Input::Tick);
        administered.iter().for_each(|mad| self.administrator_says(number, mad));
    }

    /// Handles the outputs of the protocol at a port.
    pub fn pump(&mut self, number: usize) {
        let Some(line) = self.lines.get_mut(&number) else { return };
        if std::mem::replace(&mut line.pumping, true) {
            return;
        }
        self.see_to(number);
        if let Some(line) = self.lines.get_mut(&number) {
            line.pumping = false;
        }
    }

    fn see_to(&mut self, number: usize) {
        while let Some(output) = self.lines.get_mut(&number).and_then(|line| line.agent.poll()) {
            match output {
                Output::Send { to, mad } => {
                    let Some(line) = self.lines.get(&number) else { return };
                    if let Err(error) = line.gsi.send(&to, &mad) {
                        // The protocol repeats it if no response comes.
                        tracing::debug!(%error, "a MAD was not sent");
                    }
                }
                Output::Event(conn, event) => self.handle_event((number, conn), event),
                Output::Unclaimed(unclaimed) => self.unclaimed(number, &unclaimed),
            }
        }
    }

    /// Answers a MAD that does not belong to this process.
    fn unclaimed(&mut self, number: usize, unclaimed: &Unclaimed) {
        let Some(port) = self.ports.get(number) else { return };
        let elsewhere = match unclaimed.wanted {
            Wanted::Service(service) => {
                let gid = port.info.gids.iter().position(|gid| *gid == unclaimed.from.local_gid).unwrap_or(0);
                let at = super::ports::At { port: number, gid: gid as u8 };
                self.is_listened_to_elsewhere(at, service)
            }
            Wanted::Connection(id) => port.ports.held_elsewhere(Matter::Agent, port.whole((id >> 16) as u16)),
        };
        let elder = || port.ports.take(Matter::Elder, port.whole(0), Hold::Alone).unwrap_or(false);
        if elsewhere || !elder() {
            return;
        }
        if let Some(line) = self.lines.get_mut(&number) {
            line.agent.refuse(unclaimed);
        }
    }

    /// True if the process at the other end of a connection within this node is alive. `None` if it is elsewhere.
    pub fn peer_lives(&self, conn: Conn, remote_gid: &[u8; 16]) -> Option<bool> {
        let there = super::ports::with_gid(&self.ports, remote_gid)?;
        let tag = (self.lines.get(&conn.0)?.agent.remote_id(conn.1)? >> 16) as u16;
        let port = &self.ports[there.port];
        let ours = self.lines.get(&there.port).is_some_and(|line| line.tag == tag);
        let lives = ours || port.ports.held_elsewhere(Matter::Agent, port.whole(tag));
        // A guest's connection manager has no tag.
        (lives || !port.is_served()).then_some(lives)
    }
}
