//! BARs behind the socket: every access is a message.

use super::client::Client;
use crate::transport::Registers;
use std::sync::Arc;

/// A BAR.
pub struct Window {
    pub client: Arc<Client>,
    pub region: u32,
}

impl Registers for Window {
    fn read32(&self, offset: u32) -> u32 {
        let mut bytes = [0xff; 4];
        // Without an answer the register reads as all ones, as on a bus.
        match self.client.read(self.region, offset.into(), &mut bytes) {
            Ok(()) => u32::from_be_bytes(bytes),
            Err(error) => {
                tracing::debug!(offset, %error, "a register could not be read");
                u32::MAX
            }
        }
    }

    fn write32(&self, offset: u32, value: u32) {
        self.post(offset, &value.to_be_bytes());
    }

    fn write64(&self, offset: u32, value: u64) {
        self.post(offset, &value.to_be_bytes());
    }
}

impl Window {
    /// Writes are posted, as on a bus: the caller does not wait, and a later read is ordered after them.
    fn post(&self, offset: u32, bytes: &[u8]) {
        if let Err(error) = self.client.post(self.region, offset.into(), bytes) {
            tracing::debug!(offset, %error, "a register could not be written");
        }
    }
}
