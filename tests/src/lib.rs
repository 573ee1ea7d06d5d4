//! ironverbs_tests
