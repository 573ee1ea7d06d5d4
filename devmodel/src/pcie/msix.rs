//! MSI-X vectors of hosts that keep the MSI-X table to themselves.

use crate::{
    Adapter,
    host::Host,
    mlx5::interrupt::{MASKED, control_changed},
    region::Func,
    state::MSIX_VECTORS,
};

/// The message that a vector sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixMessage {
    /// The address it writes to.
    pub address: u64,
    /// The value it writes.
    pub data: u32,
}

impl Adapter {
    /// Programs a vector as a write to the table does, for hosts that keep the table to themselves: sets its
    /// message, or masks it if `None`. Unmasking sends a pending message.
    pub fn msix_program(&self, host: &mut dyn Host, fid: u8, vector: u16, message: Option<MsixMessage>) {
        if !self.is_there(fid) || usize::from(vector) >= MSIX_VECTORS {
            return;
        }
        let mut func = Func::lock(self.region(), fid, host);
        let entry = &mut func.function_mut(|f| &mut f.msix)[usize::from(vector)];
        match message {
            Some(MsixMessage { address, data }) => {
                (entry.address, entry.data, entry.control) = (address, data, 0);
            }
            None => entry.control = MASKED,
        }
        control_changed(&mut func);
        func.commit(host);
    }
}
