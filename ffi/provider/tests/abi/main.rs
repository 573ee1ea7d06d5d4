//! Checks the provider's structures against those of the installed rdma-core.

mod layouts;
mod public_layout;
