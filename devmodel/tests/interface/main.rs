//! The model from outside: through a client of its sockets.

mod serve;
