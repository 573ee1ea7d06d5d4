//! A command in execution: its input, its access rights and its output.

use super::refusal::{Done, Refused, Syndrome};
use crate::{
    host::Party,
    mlx5::Step,
    region::{Func, MttRange, Row, Shortage},
    state::UctxRow,
};
use hwspec::{
    cmd::Opcode,
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

    /// Sets the output to a header alone.
    pub fn done(&mut self) -> Done {
        self.answer_bytes(&[0; 8])
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
    pub fn own<R: Row>(&self, number: u32, otherwise: Syndrome) -> Done<u32> {
        match self.func.index::<R>(number).and_then(|i| self.func.row::<R>(i).map(|row| (i, row.head().uid)))
        {
            Some((index, uid)) if self.may_use(uid) => Ok(index),
            _ => otherwise.refuse(),
        }
    }

    /// Like [`own`](Self::own), for objects that the function's driver shares with all contexts (UAR pages, XRC domains).
    /// A strict adapter does not share them: Linux creates each with the uid that uses it.
    pub fn shared<R: Row>(&self, number: u32, otherwise: Syndrome) -> Done<u32> {
        match self.func.index::<R>(number).and_then(|i| self.func.row::<R>(i).map(|row| (i, row.head().uid)))
        {
            Some((index, uid)) if self.is_shared(uid) || self.may_use(uid) => Ok(index),
            _ => otherwise.refuse(),
        }
    }

    /// True if objects of the function's driver are shared with all contexts.
    fn is_shared(&self, uid: u16) -> bool {
        uid == 0 && !self.step.config.strict.uid
    }

    /// Allocates a row for the caller, with an index of at least `first`.
    pub fn alloc<R: Row + zerocopy::FromZeros>(&mut self, first: u32) -> Done<u32> {
        let party = self.party();
        self.func.alloc_from::<R>(self.uid, party, first).map_err(|short| match short {
            Shortage::Full => Refused(Syndrome::TableFull),
            Shortage::NoMemory => Refused(Syndrome::NoMemory),
        })
    }

    /// Allocates `len` translation entries.
    pub fn alloc_mtt(&mut self, len: u32) -> Done<MttRange> {
        self.func.alloc_mtt(len).map_err(|short| match short {
            Shortage::Full => Refused(Syndrome::NoTranslation),
            Shortage::NoMemory => Refused(Syndrome::NoMemory),
        })
    }

    /// Tells runners that their copies of the e-switch are stale.
    pub fn switch_changed(&self) {
        self.func.region().switch_changed();
    }

    /// Adds a reference to row `index` of `R`.
    pub fn hold<R: Row>(&mut self, index: u32) {
        if let Some(row) = self.func.row_mut::<R>(index) {
            row.head_mut().refs += 1;
        }
    }

    /// Frees the caller's row `number` if nothing refers to it.
    pub fn release<R: Row>(&mut self, number: u32, otherwise: Syndrome) -> Done {
        let index = self.own::<R>(number, otherwise)?;
        let refs = self.func.row::<R>(index).map_or(0, |row| row.head().refs);
        Syndrome::InUse.unless(refs == 0)?;
        self.func.free::<R>(index);
        Ok(())
    }
}

/// Drops a reference to the row of `number`.
pub(super) fn let_go<R: Row>(func: &mut Func<'_>, number: u32) {
    if let Some(row) = func.get_mut::<R>(number) {
        let head = row.head_mut();
        head.refs = head.refs.saturating_sub(1);
    }
}
