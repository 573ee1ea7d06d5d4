//! The model from outside: through a driver's commands, and through a client of its sockets.

mod commands;
mod serve;
