//! Runs an arbitrary program so that it sees the simulated devices where the kernel would show real ones.
