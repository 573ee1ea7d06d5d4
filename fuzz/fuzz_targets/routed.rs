//! InfiniBand packets and management datagrams of any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::routed(data));
