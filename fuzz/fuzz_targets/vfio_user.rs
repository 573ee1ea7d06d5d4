//! Arbitrary messages to the vfio-user server of a function.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ironverbs_fuzz::vfio_user(data));
