//! Functions on vfio-user and vhost-user sockets, tested by clients: well-behaved, broken and hostile ones.

mod client;
mod hostile;
mod memory;
mod misbehave;
mod session;
mod virtio;
