//! A command in execution: its input, its access rights and its output.

use super::{
    object::Object,
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    host::Party,
    mlx5::Step,
    region::{Func, MttRange, Shortage},
    state::UctxRow,
};
use hwspec::{
    cmd::{CmdOut, Opcode},
    decode::command,
    layout::{Layout, prefix},
};

/// The uid of resources shared by all user contexts (Linux: MLX5_SHARED_RESOURCE_UID).
pub(super) const SHARED_UID: u16 = 0xffff;

pub(super) struct Call<'a, 'r, 'h> {
    pub func: &'a mut Func<'r>,
    pub step: &'a mut Step<'h>,
    /// Complete input.
    pub input: &'a [u8],
    /// Complete output; its length is the space provided by the driver.
    pub output: &'a mut Vec<u8>,
    /// User context that the command was sent for.
    pub uid: u16,
    /// Objects created by the command are usable by all user contexts ([`SHARED_UID`]).
    pub for_all: bool,
    /// The command.
    pub opcode: Opcode,
    /// `op_mod`.
    pub op_mod: u16,
    /// Set when the completion must wait until nothing refers to the function's memory through the destroyed object.
    pub quiesce: bool,
}

impl Call<'_, '_, '_> {
    /// The input as a `T`.
    pub fn input<T: Layout>(&self) -> Done<T> {
        Syndrome::InputLength.unless(self.input.len() >= T::SIZE)?;
        Ok(T::read(self.input))
    }

    /// The `count` big-endian 64-bit entries at `offset` of the input.
    pub fn list(&self, offset: usize, count: usize) -> Done<impl Iterator<Item = u64> + use<'_>> {
        let len = count.checked_mul(8).ok_or(Refused(Syndrome::InputLength))?;
        let Some(bytes) = self.input.get(offset..).and_then(|b| b.get(..len)) else {
            return Syndrome::InputLength.refuse();
        };
        Ok(bytes.chunks_exact(8).map(|b| u64::from_be_bytes(prefix(b))))
    }

    /// Sets the output to `out`; status and syndrome are its zeros.
    pub fn answer<T: Layout>(&mut self, out: &T) -> Done {
        self.answer_bytes(out.bytes())
    }

    /// Like [`answer`](Self::answer), with raw bytes.
    pub fn answer_bytes(&mut self, bytes: &[u8]) -> Done {
        match self.output.get_mut(..bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => return Syndrome::OutputLength.refuse(),
        }
        Ok(())
    }

    /// Like [`answer`](Self::answer), with a list after it.
    pub fn answer_list<T: Layout, E: Layout>(&mut self, out: &T, list: impl IntoIterator<Item = E>) -> Done {
        let mut bytes = out.bytes().to_vec();
        list.into_iter().for_each(|entry| bytes.extend_from_slice(entry.bytes()));
        self.answer_bytes(&bytes)
    }

    /// Party that sent the command.
    pub fn party(&self) -> Party {
        self.step.host.party()
    }

    /// True if the caller may use an object of `uid`.
    pub fn may_use(&self, uid: u16) -> bool {
        self.uid == 0 || uid == self.uid
    }

    /// True if the caller's user context has the right `cap`.
    pub fn has_right(&self, cap: u32) -> bool {
        self.func.row::<UctxRow>(self.uid.into()).is_some_and(|row| row.cap & cap == cap)
    }

    /// The index of object `number`, if the caller may use it.
    pub fn own<R: Object>(&self, number: u32) -> Done<u32> {
        self.find::<R>(number, |uid| self.may_use(uid))
    }

    /// Like [`own`](Self::own), for objects that the function's driver shares with all contexts (UAR pages, XRC domains).
    /// A strict adapter does not share them: Linux creates each with the uid that uses it.
    pub fn shared<R: Object>(&self, number: u32) -> Done<u32> {
        self.find::<R>(number, |uid| self.is_shared(uid) || self.may_use(uid))
    }

    fn find<R: Object>(&self, number: u32, usable: impl Fn(u16) -> bool) -> Done<u32> {
        let found = self.func.index::<R>(number);
        found
            .filter(|i| self.func.row::<R>(*i).is_some_and(|row| usable(row.head().uid)))
            .ok_or(Refused(R::MISSING))
    }

    /// The index of the object that the command names, if the caller may use it.
    pub fn named<R: Object>(&self) -> Done<u32> {
        self.own::<R>(command::object(self.input).ok_or(Refused(Syndrome::InputLength))?)
    }

    /// Row `index`.
    pub fn row<R: Object>(&self, index: u32) -> Done<&R> {
        self.func.row::<R>(index).ok_or(Refused(R::MISSING))
    }

    /// Row `index`, mutable.
    pub fn row_mut<R: Object>(&mut self, index: u32) -> Done<&mut R> {
        self.func.row_mut::<R>(index).ok_or(Refused(R::MISSING))
    }

    /// True if objects of the function's driver are shared with all contexts.
    fn is_shared(&self, uid: u16) -> bool {
        uid == 0 && !self.step.config.strict.uid
    }

    /// Allocates a row for the caller.
    pub fn alloc<R: Object>(&mut self) -> Done<u32> {
        let party = self.party();
        self.func.alloc_from::<R>(self.uid, party, R::FIRST).map_err(Refused::from)
    }

    /// Creates an object of the caller. `fill` sets the fields of its row after the head, and each object that it then refers to
    /// counts the reference.
    pub fn make<R: Object>(&mut self, fill: impl FnOnce(&mut R)) -> Done<u32> {
        let index = self.alloc::<R>()?;
        self.fill(index, fill)?;
        Ok(index)
    }

    /// Like [`make`](Self::make), in row `index` that was allocated.
    pub fn fill<R: Object>(&mut self, index: u32, fill: impl FnOnce(&mut R)) -> Done {
        let row = self.row_mut::<R>(index)?;
        let head = *row.head();
        fill(row);
        *row.head_mut() = head;
        let row = *row;
        row.refers().for_each(|reference| reference.take(self.func));
        Ok(())
    }

    /// Answers with the number of the object that was created. All outputs have it in the third dword.
    pub fn created<R: Object>(&mut self, index: u32) -> Done {
        let mut out = [0; CmdOut::SIZE];
        out[8..12].copy_from_slice(&self.func.number::<R>(index).to_be_bytes());
        self.answer(&out)
    }

    /// Destroys an object of the caller, if nothing refers to it.
    pub fn end<R: Object>(&mut self, index: u32) -> Done {
        Syndrome::InUse.unless(self.row::<R>(index)?.head().refs == 0)?;
        (R::END)(self.func, index);
        Ok(())
    }

    /// Allocates `len` translation entries.
    pub fn alloc_mtt(&mut self, len: u32) -> Done<MttRange> {
        self.func.alloc_mtt(len).map_err(|short| match short {
            Shortage::Full => Refused(Syndrome::NoTranslation),
            short => short.into(),
        })
    }

    /// Stores `list` in new translation entries.
    pub fn store(&mut self, list: &[u64]) -> Done<MttRange> {
        self.store_in(list, list.len() as u32)
    }

    /// Like [`store`](Self::store), with zeros behind the list: `room` entries in all.
    pub fn store_in(&mut self, list: &[u64], room: u32) -> Done<MttRange> {
        let range = self.alloc_mtt(room)?;
        let entries = list.iter().copied().chain(std::iter::repeat(0));
        (range.first..range.first + range.len)
            .zip(entries)
            .for_each(|(at, entry)| self.func.set_mtt(at, entry));
        Ok(range)
    }

    /// Tells runners that their copies of the e-switch are stale.
    pub fn switch_changed(&self) {
        self.func.region().switch_changed();
    }
}
