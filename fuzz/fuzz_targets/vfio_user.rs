//! Messages of any bytes to a served function.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::vfio_user(data));
