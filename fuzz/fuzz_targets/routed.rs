//! Arbitrary InfiniBand packets and management datagrams.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::routed(data));
