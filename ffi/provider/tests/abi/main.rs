//! The provider's structures, held to those of the installed rdma-core.

mod layouts;
mod public_layout;
