//! Memory the device also touches.
