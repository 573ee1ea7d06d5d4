//! Programs' pointers, and the objects behind them. Verbs and the members of C structures have these types in place of pointers; they have
//! the form of a pointer, or with `Option` that of one that may be null. C upholds their invariants, so that only this file turns a pointer
//! to an object into a reference.
//!
//! Most objects are boxed by the verb that creates them, and programs hold a pointer to their first member until another verb destroys
//! them.

use crate::guard::{Birth, answer};
use driver::Error;
use libc::c_int;
use std::ops::Deref;
use std::ptr::NonNull;

/// A structure of the verbs interface that programs have pointers to. Pointers have its type and not the object's, so that structures with
/// such pointers do not depend on the objects.
///
/// # Safety
/// [`Object::behind`] returns the object.
pub unsafe trait Object: Sized {
    /// The object behind it.
    type Behind;

    /// Returns the object behind a program's pointer.
    ///
    /// # Safety
    /// V1 and V2 hold for `public`.
    unsafe fn behind(public: NonNull<Self>) -> NonNull<Self::Behind>;
}

/// The structure of an object that belongs to the process that created it.
pub trait Born: Object {
    /// That process.
    fn birth(of: Of<Self>) -> Birth;
}

/// The structure of a boxed object of this provider. [`ours!`] implements it.
///
/// # Safety
/// It is the first member of the object, and contains a pointer to an `ibv_context` at offset [`Ours::CONTEXT`].
pub unsafe trait Ours: Born {
    /// Offset of the pointer to the object's context.
    const CONTEXT: usize;
}

/// A program's pointer to an object: V1 and V2 hold for it, and V6 for those of one call.
#[repr(transparent)]
pub struct Of<T>(NonNull<T>);

impl<T> Clone for Of<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Of<T> {}

impl<T> PartialEq for Of<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Object> Deref for Of<T> {
    type Target = T::Behind;

    #[inline(always)]
    fn deref(&self) -> &T::Behind {
        // SAFETY: V1 and V2, by the invariant of the type.
        unsafe { T::behind(self.0).as_ref() }
    }
}

impl<T> Of<T> {
    /// # Safety
    /// The invariant of the type.
    pub unsafe fn new(public: NonNull<T>) -> Self {
        Self(public)
    }

    /// The program's pointer.
    pub fn raw(self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Ours> Of<T> {
    /// Hands a new object to the program.
    pub fn made(object: T::Behind) -> Self {
        Self::of_box(Box::new(object))
    }

    /// Hands a new object to the program.
    pub fn of_box(object: Box<T::Behind>) -> Self {
        Self(NonNull::from(Box::leak(object)).cast())
    }
}

/// A program's pointer to an object that one thread uses exclusively from one call to a later one. Programs uphold that.
#[repr(transparent)]
pub struct Held<T>(Of<T>);

impl<T> Held<T> {
    /// # Safety
    /// The invariant of the type.
    pub unsafe fn new(of: Of<T>) -> Self {
        Self(of)
    }

    /// The object.
    #[inline(always)]
    pub fn of(&self) -> Of<T> {
        self.0
    }
}

/// A list among the arguments of a verb.
///
/// # Safety
/// `first` is the first of `count` elements, or anything for none (V4).
#[inline(always)]
pub unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: guaranteed by the caller.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } }
}

/// Declares `$object` as a program-visible object: its first member is `public`, which begins with a `$public`. It belongs to the process
/// `$birth`, by default the one that opened its context.
macro_rules! ours {
    ($object:ident: $public:ident) => {
        ours!($object: $public, |of: $crate::ours::Of<$public>| of.context().birth);
    };
    ($object:ident: $public:ident, $birth:expr) => {
        const _: () = assert!(std::mem::offset_of!($object, public) == 0);
        // SAFETY: asserted above: the pointer to the first member is one to the object (repr(C)).
        unsafe impl $crate::ours::Object for $public {
            type Behind = $object;

            #[inline(always)]
            unsafe fn behind(public: std::ptr::NonNull<Self>) -> std::ptr::NonNull<$object> {
                public.cast()
            }
        }
        impl $crate::ours::Born for $public {
            fn birth(of: $crate::ours::Of<Self>) -> $crate::guard::Birth {
                ($birth)(of)
            }
        }
        // SAFETY: asserted above; `public` is a `$public`, or begins with one (repr(C)); its `context` points to an `ibv_context`.
        unsafe impl $crate::ours::Ours for $public {
            const CONTEXT: usize = std::mem::offset_of!($public, context);
        }
    };
}
pub(crate) use ours;

/// How an object is destroyed. If a step fails, the program still has the object and may call again (V5), so its memory and its references
/// stay. The steps may therefore be called again after they have succeeded.
pub trait Destroy: Ours {
    /// Fails while the object is in use, and removes it from the tables where it can be found.
    fn leave(_of: Of<Self>) -> Result<(), c_int> {
        Ok(())
    }

    /// Destroys it in the device: [`ends_inner`] for an object with an `inner` one there.
    fn end(_object: &mut Self::Behind) -> Result<(), Error> {
        Ok(())
    }
}

/// [`Destroy::end`] of an object that is `inner` in the device.
macro_rules! ends_inner {
    () => {
        fn end(object: &mut Self::Behind) -> Result<(), driver::Error> {
            driver::InPlace::destroy_in_place(&mut object.inner)
        }
    };
}
pub(crate) use ends_inner;

/// A program's pointer in a call that destroys the object: V5 holds, too. The object has its own box.
#[repr(transparent)]
pub struct Last<T: Born>(Of<T>);

impl<T: Born> Last<T> {
    /// The object.
    pub fn of(&self) -> Of<T> {
        self.0
    }

    /// Takes back the box.
    pub fn take(self) -> Box<T::Behind> {
        // SAFETY: by the invariant of the type, the object is in a box, and this is its last use.
        unsafe { Box::from_raw(T::behind(self.0.0).as_ptr()) }
    }
}

impl<T: Destroy> Last<T> {
    /// Destroys an object: the verb of every [`Destroy`]. A forked child only has a copy of the object, and leaves it alone.
    ///
    /// A lost device fails nothing: as in Linux, which completes destroy commands itself once a device is lost, the object is destroyed.
    pub extern "C" fn destroy(self) -> c_int {
        answer(|| {
            if !T::birth(self.0).is_here() {
                return Ok(());
            }
            T::leave(self.0)?;
            self.end()
        })
    }

    /// Destroys the object in the device and, on success, frees it.
    fn end(self) -> Result<(), c_int> {
        // SAFETY: V1, V2 and V5: this is the only reference.
        match T::end(unsafe { T::behind(self.0.0).as_mut() }) {
            Ok(()) => {}
            Err(error @ (Error::Command { .. } | Error::Delivery { .. } | Error::Invalid { .. })) => {
                return Err(error.errno());
            }
            Err(error) => tracing::warn!(%error, "an object was destroyed without the device"),
        }
        self.take();
        Ok(())
    }

    /// Frees an object that stays in the device: the verb of imported objects.
    pub extern "C" fn free(self) {
        answer(|| {
            if T::birth(self.0).is_here() {
                self.take();
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::public::ibv_context;
    use crate::users::{Use, Users};
    use std::ptr::null_mut;

    #[repr(C)]
    struct Public {
        context: *mut ibv_context,
        handle: u32,
    }

    /// An object on a device that returns the given results, and that uses another object.
    #[repr(C)]
    struct Refused {
        public: Public,
        answers: Vec<Result<(), Error>>,
        _uses: Use,
    }

    ours!(Refused: Public);

    impl Destroy for Public {
        fn end(refused: &mut Refused) -> Result<(), Error> {
            refused.answers.pop().unwrap_or(Ok(()))
        }
    }

    /// Destroys an object until the call succeeds. Returns the result of each call, and the use check of the used object afterwards.
    fn ended(answers: impl IntoIterator<Item = Error>) -> (Vec<Result<(), c_int>>, Result<(), c_int>) {
        let used = Users::default();
        let answers = answers.into_iter().map(Err).collect::<Vec<_>>();
        let calls = answers.len() + 1;
        let public = Public { context: null_mut(), handle: 7 };
        let object: Of<Public> = Of::made(Refused { public, answers, _uses: used.hold() });
        let mut said = Vec::new();
        for _ in 0..calls {
            assert_eq!(used.none(), Err(libc::EBUSY));
            assert_eq!(object.public.handle, 7);
            let result = Last(object).end();
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
