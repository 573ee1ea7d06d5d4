//! Recording of a served function.

use crate::{
    file::Recorder,
    tap::{Memory, Tap},
};
use devmodel::{
    host::forward,
    serve::{Function, Guest, GuestMemory},
};
use std::sync::Arc;

impl Memory for GuestMemory {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        Self::read(self, at, into).is_ok()
    }
}

/// A function that records the stream of its client.
pub struct Recording {
    function: Arc<dyn Function>,
    tap: Arc<Tap>,
}

impl Recording {
    /// Records the messages to `function`, with number `fid`.
    pub fn new(function: Arc<dyn Function>, fid: u8, recorder: Arc<Recorder>) -> Self {
        let tap = Arc::new(Tap::new(recorder, fid));
        let told = tap.clone();
        function.guest().memory.watch(move |memory, at, data| told.gives(memory, at, data));
        Self { function, tap }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Function for Recording {
    fn bar_read32(&self, offset: u64) -> u32 {
        let value = self.function.bar_read32(offset);
        self.tap.read(&self.guest().memory, offset, value);
        value
    }
    fn bar_write32(&self, offset: u64, value: u32) {
        self.tap.write(&self.guest().memory, offset, 4, value.into());
        self.function.bar_write32(offset, value);
        self.tap.after(&self.guest().memory);
    }
    fn bar_write64(&self, offset: u64, value: u64) {
        self.tap.write(&self.guest().memory, offset, 8, value);
        self.function.bar_write64(offset, value);
        self.tap.after(&self.guest().memory);
    }
    fn reset(&self) {
        self.tap.after(&self.guest().memory);
        self.tap.reset();
        self.function.reset();
    }
    forward! { self.function:
        fn guest(&self) -> &Guest;
        fn config_read(&self, offset: usize, width: usize) -> u32;
        fn config_write(&self, offset: usize, width: usize, value: u32);
        fn vector(&self, vector: u16, sends: bool);
        fn ask_pages(&self, pages: i32) -> bool;
    }
}
