//! A launched program that sends arbitrary requests to its supervisor.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::launched(data));
