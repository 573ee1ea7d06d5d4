//! Commands with arbitrary contents.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::command_mailbox(data));
