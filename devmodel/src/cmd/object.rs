//! Objects: what all kinds have in common. `kinds` is the table of kinds.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{
    host::Host,
    region::{Func, MttRange, Row},
    state::Head,
};
use zerocopy::FromZeros;

/// Number of objects destroyed between two commits: as many as the journal surely holds.
const CHUNK: usize = 16;

/// A kind of object.
pub(super) trait Object: Row + FromZeros + 'static {
    /// Refuses a number that is not that of an object of the caller.
    const MISSING: Syndrome;
    /// The first index that is allocated.
    const FIRST: u32;
    /// Destroys an object without any notification, even if others refer to it.
    const END: fn(&mut Func<'_>, u32);
    /// The objects it refers to, which can't be destroyed before it.
    fn refers(&self) -> impl Iterator<Item = Ref>;
    /// The translation entries it owns.
    fn entries(&self) -> MttRange;
}

/// A reference to an object: its number, and the function that finds its head.
pub(super) struct Ref(u32, fn(&mut Func<'_>, u32, fn(&mut Head)));

/// A reference to the object `number` of kind `R`, if there is a number.
pub(super) fn to<R: Row>(number: impl Into<Option<u32>>) -> Option<Ref> {
    let change = |func: &mut Func<'_>, number, change: fn(&mut Head)| {
        if let Some(row) = func.get_mut::<R>(number) {
            change(row.head_mut());
        }
    };
    number.into().map(|number| Ref(number, change))
}

impl Ref {
    /// Counts the reference.
    pub fn take(self, func: &mut Func<'_>) {
        self.1(func, self.0, |head| head.refs += 1);
    }

    /// Ends the reference.
    pub fn drop(self, func: &mut Func<'_>) {
        self.1(func, self.0, |head| head.refs = head.refs.saturating_sub(1));
    }
}

/// Frees an object, even if others refer to it: its translation entries, its references, and its row.
pub(super) fn end<R: Object>(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<R>(index).copied() else { return };
    func.free_mtt(row.entries());
    row.refers().for_each(|reference| reference.drop(func));
    func.free::<R>(index);
}

/// Destroys all objects of a kind that match `pick`. Commits on the way.
pub(super) fn end_some<R: Object>(
    func: &mut Func<'_>,
    host: &mut dyn Host,
    pick: impl Fn(&Func<'_>, &R) -> bool,
) {
    for some in func.which::<R>(|row| pick(func, row)).chunks(CHUNK) {
        for index in some {
            (R::END)(func, *index);
            // An object with many dependents may fill the journal alone.
            if !func.has_room() {
                func.commit(host);
            }
        }
        func.commit(host);
    }
}

/// The handler of commands that allocate an object without properties.
pub(super) fn alloc<R: Object>(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.make::<R>(|_| {})?;
    call.created::<R>(index)
}

/// The handler of commands that destroy an object to which nothing refers (PRM: command status 0x9, "object is referenced by
/// another").
pub(super) fn destroy<R: Object>(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.named::<R>()?;
    call.end::<R>(index)
}
