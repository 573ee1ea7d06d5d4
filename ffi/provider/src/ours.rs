//! Objects as programs have them: a box of ours, of which the program knows the first member. A verb hands it out, and
//! another ends it.

use crate::abi::public::ibv_context;
use crate::context::Context;
use crate::guard::{Birth, guard_int};
use driver::Error;
use libc::c_int;

/// An object of ours, of which programs know the first member.
///
/// # Safety
/// A `Public` is the first member of the object, and a pointer to an [`ibv_context`] lies
/// at [`Ours::CONTEXT`] in it. [`ours!`] has the compiler check the first.
pub unsafe trait Ours: Sized {
    /// The structure that programs know.
    type Public;
    /// Where it names the context that the object was made in.
    const CONTEXT: usize;

    /// The object behind what the program holds.
    ///
    /// # Safety
    /// `public` came from [`Ours::into_public`], or a box of its own, and was not yet ended.
    #[inline]
    unsafe fn of<'a>(public: *const Self::Public) -> &'a Self
    where
        Self: 'a,
    {
        // SAFETY: V1, V2.
        unsafe { &*public.cast::<Self>() }
    }

    /// The context that it was made in.
    ///
    /// # Safety
    /// As [`Ours::of`].
    #[inline]
    unsafe fn context(public: *const Self::Public) -> &'static Context {
        // SAFETY: V1 and V2, by the invariant of the trait; V3 for the context.
        unsafe { Context::of(public.byte_add(Self::CONTEXT).cast::<*const ibv_context>().read()) }
    }

    /// The process that made it.
    ///
    /// # Safety
    /// As [`Ours::of`].
    unsafe fn birth(public: *const Self::Public) -> Birth {
        // SAFETY: the caller's promise.
        unsafe { Self::context(public) }.birth
    }

    /// Makes the object that the program knows.
    fn into_public(self) -> *mut Self::Public {
        Box::into_raw(Box::new(self)).cast()
    }
}

/// Declares that programs know `$object` by its first member, `public`, which begins with a `$public`.
macro_rules! ours {
    ($object:ident: $public:ident) => {
        const _: () = assert!(std::mem::offset_of!($object, public) == 0);
        // SAFETY: asserted above; `public` is a `$public`, or begins with one (repr(C)); the member is a context's.
        unsafe impl $crate::ours::Ours for $object {
            type Public = $public;
            const CONTEXT: usize = std::mem::offset_of!($public, context);
        }
    };
}
pub(crate) use ours;

/// Ends an object, the way all of them end. `leave` fails while the object is in use, and withdraws it from where others
/// would find it. `end` tells the device. If either refuses, the program still has the object and may call again (V5), so
/// its memory and what it counts on stay. The object may then have left and the device been told before, and both must
/// bear to be called again.
///
/// A device that is lost refuses nothing: as with Linux, which then answers the commands that destroy something itself,
/// the object is gone.
///
/// # Safety
/// V1, V2 and V5 for the object, V3 for its context; nobody uses it once `leave` has returned `Ok`.
pub unsafe fn destroy<T: Ours>(
    public: *mut T::Public,
    leave: impl FnOnce(&Context) -> Result<(), c_int>,
    end: impl FnOnce(&mut T) -> Result<(), Error>,
) -> c_int {
    guard_int(|| {
        // SAFETY: the caller's promise. A forked child has only a copy of it, and leaves that alone.
        unsafe {
            if !T::birth(public).is_here() {
                return Ok(());
            }
            leave(T::context(public))?;
            end_alone(public, end)
        }
    })
}

/// Tells the device and, unless refused, frees the object.
///
/// # Safety
/// V1, V2 and V5 for the object, which nobody uses.
unsafe fn end_alone<T: Ours>(
    public: *mut T::Public,
    end: impl FnOnce(&mut T) -> Result<(), Error>,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise: this is the only reference.
    match end(unsafe { &mut *public.cast::<T>() }) {
        Ok(()) => {}
        Err(error @ (Error::Command { .. } | Error::Delivery { .. } | Error::Invalid { .. })) => {
            return Err(error.errno());
        }
        Err(error) => tracing::warn!(%error, "an object was destroyed without the device"),
    }
    // SAFETY: the caller's promise: it came from a box of its own, and this is the last use of it.
    drop(unsafe { Box::from_raw(public.cast::<T>()) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::public::ibv_pd;
    use crate::users::Users;
    use std::ptr::null_mut;

    /// An object on a device that answers as it says, and another object that it uses.
    #[repr(C)]
    struct Object {
        public: ibv_pd,
        answers: Vec<Result<(), Error>>,
        _uses: crate::users::Use,
    }

    ours!(Object: ibv_pd);

    /// Ends an object until it is not refused. Returns what each call said, and what the used object says afterwards.
    fn ended(answers: impl IntoIterator<Item = Error>) -> (Vec<Result<(), c_int>>, Result<(), c_int>) {
        let used: &'static Users = Box::leak(Box::default());
        let answers = answers.into_iter().map(Err).collect::<Vec<_>>();
        let calls = answers.len() + 1;
        let public = ibv_pd { context: null_mut(), handle: 7 };
        let object = Object { public, answers, _uses: used.hold() }.into_public();
        let mut said = Vec::new();
        for _ in 0..calls {
            assert_eq!(used.none(), Err(libc::EBUSY));
            // SAFETY: the object of this test, which it stops using once it was not refused.
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
