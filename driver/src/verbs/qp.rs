//! Queue pairs.

use super::{Pd, QpAttr, QpAttrMask, QpCap, QpInit, QpState, RecvWr, SendWr};
use crate::error::{Error, PostError};
use std::{marker::PhantomData, sync::Arc};

/// A queue pair.
pub struct Qp {
    cap: QpCap,
}

/// Send work requests in the making: nothing is visible to the device before [`SendBatch::commit`]. Holds the send
/// queue's lock; dropping it forgets them.
pub struct SendBatch<'a>(PhantomData<&'a Qp>);

impl SendBatch<'_> {
    /// Adds one. After a failure the batch can only be aborted (`ibv_wr_complete` reports the errno).
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), i32> {
        let _ = wr;
        Err(libc::EINVAL)
    }
    /// Rings the doorbell.
    pub fn commit(self) {}
    /// Forgets all of the batch.
    pub fn abort(self) {}
}

impl Qp {
    /// Creates a queue pair in RESET.
    pub fn create(pd: &Arc<Pd>, init: &QpInit) -> Result<Arc<Qp>, Error> {
        let _ = (pd, init);
        Err(Error::invalid("not built"))
    }

    /// Its number.
    pub fn qpn(&self) -> u32 {
        0
    }

    /// Sizes actually given.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// State as this side last set it.
    pub fn state(&self) -> QpState {
        QpState::Reset
    }

    /// Moves it to another state or changes attributes (`ibv_modify_qp`); EINVAL leaves it as it was.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let _ = (attr, mask);
        Err(Error::invalid("not built"))
    }

    /// Asks the device.
    pub fn query(&self) -> Result<QpAttr, Error> {
        Err(Error::invalid("not built"))
    }

    /// Posts in order, one doorbell for all. On an error those before it are posted.
    pub fn post_send<'w>(&self, wrs: impl IntoIterator<Item = SendWr<'w>>) -> Result<(), PostError> {
        let _ = wrs.into_iter();
        Err(PostError { index: 0, errno: libc::EINVAL })
    }

    /// Posts receives in order. On an error those before it are posted.
    pub fn post_recv<'w>(&self, wrs: impl IntoIterator<Item = RecvWr<'w>>) -> Result<(), PostError> {
        let _ = wrs.into_iter();
        Err(PostError { index: 0, errno: libc::EINVAL })
    }

    /// Begins a batch (`ibv_wr_start`).
    pub fn begin(&self) -> SendBatch<'_> {
        SendBatch(PhantomData)
    }

    /// Destroys it and removes its completions from its CQs. Dropping the last reference does the same silently.
    pub fn destroy(self: Arc<Self>) -> Result<(), Error> {
        Err(Error::invalid("not built"))
    }
}
