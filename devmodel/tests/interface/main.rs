//! The model from outside: as a driver's commands meet it, and as a client of its sockets does.

mod commands;
mod serve;
