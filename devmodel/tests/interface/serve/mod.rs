//! Functions on vfio-user and vhost-user sockets, from a client's side: well-behaved, broken and hostile ones.

mod client;
mod hostile;
mod memory;
mod misbehave;
mod session;
mod virtio;
