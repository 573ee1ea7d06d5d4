//! ironverbs_fuzz
