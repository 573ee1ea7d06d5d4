//! Destruction of objects: each is destroyed once, by a call that reports errors or with its last reference.

/// Implements the destruction of an object with a method `release` and a flag `live` that is true until the first call
/// of it. Generates a method with the given name, documentation and EBUSY message (while there are other references);
/// an object held by value (`self`) cannot be busy. Also implements [`InPlace`](super::InPlace), and `Drop`, which logs
/// an error with the object's number, if it has one.
macro_rules! ends {
    ($(#[$doc:meta])* $object:ident.$end:ident: $in_use:literal, $failed:literal $(, $key:ident = $number:ident)?) => {
        impl $object {
            $(#[$doc])*
            pub fn $end(self: std::sync::Arc<Self>) -> Result<(), $crate::error::Error> {
                let alone = std::sync::Arc::into_inner(self);
                alone.ok_or_else(|| $crate::error::Error::busy($in_use))?.release_once()
            }
        }
        ends!(@dropped $object: $failed $(, $key = $number)?);
    };
    ($(#[$doc:meta])* $object:ident.$end:ident(self): $failed:literal $(, $key:ident = $number:ident)?) => {
        impl $object {
            $(#[$doc])*
            pub fn $end(mut self) -> Result<(), $crate::error::Error> {
                self.release_once()
            }
        }
        ends!(@dropped $object: $failed $(, $key = $number)?);
    };
    (@dropped $object:ident: $failed:literal $(, $key:ident = $number:ident)?) => {
        impl $object {
            fn release_once(&mut self) -> Result<(), $crate::error::Error> {
                if std::mem::take(&mut self.live) { self.release() } else { Ok(()) }
            }
        }
        impl $crate::verbs::InPlace for $object {
            fn destroy_in_place(&mut self) -> Result<(), $crate::error::Error> {
                self.release_once()
            }
        }
        impl Drop for $object {
            fn drop(&mut self) {
                if let Err(error) = self.release_once() {
                    tracing::warn!($($key = self.$number(),)? %error, $failed);
                }
            }
        }
    };
}
pub(super) use ends;
