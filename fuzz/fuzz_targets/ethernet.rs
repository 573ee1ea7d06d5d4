//! Arbitrary frames, send WQEs and flow tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::ethernet(data));
