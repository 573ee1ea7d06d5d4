//! Our own programs on a node, in real time.

mod adapters;
mod bringup;
mod end_to_end;
mod kill;
mod link;
mod meeting;
mod memory;
mod netlink;
mod over_vfio_user;
mod passive;
mod programs;
mod queues;
mod room;
mod services;
mod shared_receives;
mod shortage;
mod spread;
mod stop;
mod stream;
mod torture;
mod views;
