//! Objects that verbs return to programs. Each is boxed, and programs hold a pointer to its first member. One verb creates an object,
//! another destroys it.

use crate::abi::public::ibv_context;
use crate::context::Context;
use crate::guard::{Birth, guard_int};
use driver::Error;
use libc::c_int;

/// An object of this provider, with a first member that programs hold a pointer to.
///
/// # Safety
/// A `Public` is the first member of the object and contains a pointer to an [`ibv_context`] at offset [`Ours::CONTEXT`]. [`ours!`] has the
/// compiler check the former.
pub unsafe trait Ours: Sized {
    /// The public structure of the verbs interface.
    type Public;
    /// Offset of the pointer to the object's context.
    const CONTEXT: usize;

    /// Returns the object behind a program's pointer.
    ///
    /// # Safety
    /// `public` was returned by [`Ours::into_public`] or comes from a box of the object, and the object is not destroyed.
    #[inline]
    unsafe fn of<'a>(public: *const Self::Public) -> &'a Self
    where
        Self: 'a,
    {
        // SAFETY: V1, V2.
        unsafe { &*public.cast::<Self>() }
    }

    /// The context that the object was created in.
    ///
    /// # Safety
    /// As for [`Ours::of`].
    #[inline]
    unsafe fn context(public: *const Self::Public) -> &'static Context {
        // SAFETY: V1 and V2, by the invariant of the trait; V3 for the context.
        unsafe { Context::of(public.byte_add(Self::CONTEXT).cast::<*const ibv_context>().read()) }
    }

    /// The process that created the object.
    ///
    /// # Safety
    /// As for [`Ours::of`].
    unsafe fn birth(public: *const Self::Public) -> Birth {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::context(public) }.birth
    }

    /// Boxes the object and returns the pointer for the program.
    fn into_public(self) -> *mut Self::Public {
        Box::into_raw(Box::new(self)).cast()
    }
}

/// Declares `$object` as a program-visible object: its first member is `public`, which begins with a `$public`.
macro_rules! ours {
    ($object:ident: $public:ident) => {
        const _: () = assert!(std::mem::offset_of!($object, public) == 0);
        // SAFETY: asserted above; `public` is a `$public`, or begins with one (repr(C)); its `context` points to an `ibv_context`.
        unsafe impl $crate::ours::Ours for $object {
            type Public = $public;
            const CONTEXT: usize = std::mem::offset_of!($public, context);
        }
    };
}
pub(crate) use ours;

/// Destroys an object; the common path of all destroy verbs. `leave` fails while the object is in use, and removes it from the tables where
/// it can be found. `end` destroys it in the device. If either fails, the program still has the object and may call again (V5), so its
/// memory and its references stay. `leave` and `end` may therefore be called again after they have succeeded.
///
/// A lost device fails nothing: as in Linux, which completes destroy commands itself once a device is lost, the object is destroyed.
///
/// # Safety
/// V1, V2 and V5 for the object, V3 for its context; it has no user once `leave` has returned `Ok`.
pub unsafe fn destroy<T: Ours>(
    public: *mut T::Public,
    leave: impl FnOnce(&Context) -> Result<(), c_int>,
    end: impl FnOnce(&mut T) -> Result<(), Error>,
) -> c_int {
    guard_int(|| {
        // SAFETY: guaranteed by the caller. A forked child only has a copy of the object, and leaves it alone.
        unsafe {
            if !T::birth(public).is_here() {
                return Ok(());
            }
            leave(T::context(public))?;
            end_alone(public, end)
        }
    })
}

/// Destroys the object in the device and, on success, frees it.
///
/// # Safety
/// V1, V2 and V5 for the object, which has no other user.
unsafe fn end_alone<T: Ours>(
    public: *mut T::Public,
    end: impl FnOnce(&mut T) -> Result<(), Error>,
) -> Result<(), c_int> {
    // SAFETY: guaranteed by the caller: this is the only reference.
    match end(unsafe { &mut *public.cast::<T>() }) {
        Ok(()) => {}
        Err(error @ (Error::Command { .. } | Error::Delivery { .. } | Error::Invalid { .. })) => {
            return Err(error.errno());
        }
        Err(error) => tracing::warn!(%error, "an object was destroyed without the device"),
    }
    // SAFETY: guaranteed by the caller: the object comes from a box of its own, and this is its last use.
    drop(unsafe { Box::from_raw(public.cast::<T>()) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::public::ibv_pd;
    use crate::users::Users;
    use std::ptr::null_mut;

    /// An object on a device that returns the given results, and that uses another object.
    #[repr(C)]
    struct Object {
        public: ibv_pd,
        answers: Vec<Result<(), Error>>,
        _uses: crate::users::Use,
    }

    ours!(Object: ibv_pd);

    /// Destroys an object until the call succeeds. Returns the result of each call, and the use check of the used object afterwards.
    fn ended(answers: impl IntoIterator<Item = Error>) -> (Vec<Result<(), c_int>>, Result<(), c_int>) {
        let used: &'static Users = Box::leak(Box::default());
        let answers = answers.into_iter().map(Err).collect::<Vec<_>>();
        let calls = answers.len() + 1;
        let public = ibv_pd { context: null_mut(), handle: 7 };
        let object = Object { public, answers, _uses: used.hold() }.into_public();
        let mut said = Vec::new();
        for _ in 0..calls {
            assert_eq!(used.none(), Err(libc::EBUSY));
            // SAFETY: the test's own object, which it does not use after a successful call.
            let result = unsafe {
                assert_eq!((*object).handle, 7);
                end_alone::<Object>(object, |object| object.answers.pop().unwrap_or(Ok(())))
            };
            said.push(result);
            if result.is_ok() {
                break;
            }
        }
        (said, used.none())
    }

    #[test]
    fn an_object_that_the_device_refuses_to_destroy_can_be_destroyed_again() {
        use hwspec::cmd::{Opcode, Status};
        let refused = Error::Command { op: Opcode::DestroyCq, status: Status::ResBusy, syndrome: 0 };
        let busy = Error::Invalid { what: "in use".into(), errno: libc::EBUSY };
        let both = [Err(libc::EBUSY), Err(libc::EBUSY), Ok(())];
        assert_eq!(ended([refused, busy]), (both.to_vec(), Ok(())));
    }

    #[test]
    fn an_object_of_a_lost_device_is_gone() {
        assert_eq!(ended([Error::Gone]), (vec![Ok(())], Ok(())));
    }
}
