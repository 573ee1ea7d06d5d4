//! Room in shared memory: what is asked for ahead, so that a file system that is full shows itself in an error.
//!
//! The node's file is sparse. A page that is touched without memory behind it ends no program (`file::Mapped`), but it costs the
//! program its devices; so what every use of a function touches is asked for when the function is opened, and the model asks for
//! rows and payloads as they come into use (`devmodel::region::Memory`).

use super::{NodeError, core::Core, dir};
use devmodel::{host::Party, region::Outlet};

/// What a function with one program takes, about: registers, receive ring, a journal.
const FUNCTION: u64 = 192 << 10;

impl Core {
    /// Sees to it that there is room for what every use of function `fid` by this program touches.
    pub fn make_room_for(&self, fid: u8) -> Result<(), NodeError> {
        let (region, me) = (self.adapter.region(), Party(self.me.slot));
        // All functions have dealings with the PF.
        match region.back_function(fid, me) && region.back_journal(0, me) {
            true => Ok(()),
            false => Err(dir::no_room(&self.dir, FUNCTION)),
        }
    }

    /// Sees to it that there is room for all that waits in an outlet.
    pub fn make_room_for_outlet(&self, which: Outlet) -> Result<(), NodeError> {
        let need = self.adapter.region().back_outlet(which);
        need.map_err(|len| dir::no_room(&self.dir, len as u64))
    }
}
