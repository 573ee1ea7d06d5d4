//! Publishes this process's IDs on the connection manager boards of their nodes.

use super::id::{Id, State};
use super::manager::Manager;
use node::{CmId, Ports};

impl Manager {
    /// Publishes changes.
    pub fn show(&mut self) {
        let mut touched = std::mem::take(&mut self.ids.touched);
        touched.sort_unstable();
        touched.dedup();
        for number in touched {
            let rows = self.ids.get(number).map_or(Vec::new(), |id| self.rows(number, id));
            self.cm_board.update(number, rows);
        }
    }

    /// The rows of an ID: one at its port, or at each port if it listens on all of them.
    fn rows(&self, number: u32, id: &Id) -> Vec<(&'static Ports, CmId)> {
        let ports: Vec<usize> = match id.at {
            Some(at) => vec![at.port],
            None if id.state == State::Listen => {
                let ours = self.listening.iter().filter(|(_, listening)| listening.ids.contains(&number));
                ours.map(|((port, _), _)| *port).collect()
            }
            None => Vec::new(),
        };
        let [src, dst] = [id.src, id.dst].map(|address| address.map_or([0; 128], |a| a.storage()));
        let addresses = CmId::addresses(&src, &dst);
        let row = |port: usize| {
            let port = self.ports.get(port)?;
            let id = CmId {
                fid: port.info.fid,
                state: id.state.number(),
                qp_type: id.qp_type,
                port_space: id.ps,
                qpn: id.qp_num,
                addresses,
            };
            Some((port.ports, id))
        };
        ports.into_iter().filter_map(row).collect()
    }
}
