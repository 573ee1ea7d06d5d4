//! Vectors of hosts that keep the MSI-X table to themselves.

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
    /// Where.
    pub address: u64,
    /// The value.
    pub data: u32,
}

impl Adapter {
    /// Programs a vector as the table does, for hosts that keep the table to themselves: its message, or `None` to
    /// mask it. Unmasking sends what is pending.
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
