//! Arbitrary bytes in a node's file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::node_file(data));
