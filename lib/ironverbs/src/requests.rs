//! Requests of a send queue: what they hold until they complete, and the futures of their results.

use crate::{
    Buf, Error, Pool, Result, Window,
    channel::{After, Channel, State},
    verbs::{Ah, Completion, Qp, SendFlags, SendOp, SendWr, Target},
};
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

/// Bytes of an atomic operation's result.
pub(crate) const WORD: usize = 8;

/// The buffer or window that a request owns until it completes.
pub(crate) enum Hold {
    Nothing,
    Buf(Buf),
    /// A word of this pool, once the request is posted.
    Word(Pool),
    WordBuf(Buf),
    Value(u64),
    Window(Box<Window>),
}

impl Hold {
    pub fn of(buffer: Option<Buf>) -> Self {
        buffer.map_or(Self::Nothing, Self::Buf)
    }
}

/// A request to post.
pub(crate) struct Work {
    pub op: SendOp,
    /// Bytes of the buffer that it sends or fills.
    pub len: usize,
    pub flags: SendFlags,
    /// The destination of a datagram: path, queue pair and Q_Key.
    pub to: Option<(Arc<Ah>, u32, u32)>,
}

impl Work {
    pub fn new(op: SendOp, len: usize) -> Self {
        Self { op, len, flags: SendFlags::SIGNALED, to: None }
    }

    fn post(&self, qp: &Qp, slot: usize, hold: &Hold) -> bool {
        let sge = match hold {
            Hold::Buf(buffer) | Hold::WordBuf(buffer) => Some(buffer.sge(self.len)),
            _ => None,
        };
        let wr = SendWr { wr_id: slot as u64, op: self.op, sge: sge.as_slice(), flags: self.flags };
        match &self.to {
            None => qp.post_send([wr]).is_ok(),
            Some((ah, qpn, qkey)) => {
                let target = Target::Datagram { ah, qpn: *qpn, qkey: *qkey };
                qp.post_send_to([(wr, target)]).is_ok()
            }
        }
    }
}

/// A slot of the table; its index is the id of the work request.
enum Slot {
    Free,
    Posted {
        hold: Hold,
        waker: Option<Waker>,
        /// Its future was dropped.
        dropped: bool,
    },
    Done(Result<(Completion, Hold)>),
}

/// The requests of a send queue.
pub(crate) struct Requests {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Requests that the queue still has room for.
    room: usize,
    /// Futures that wait for room, in the order of their calls.
    waiting: VecDeque<(u64, Option<Waker>)>,
    tickets: u64,
    sleepers: usize,
}

impl Requests {
    pub fn new(depth: usize) -> Self {
        let (slots, free) = Default::default();
        Self { slots, free, room: depth, waiting: VecDeque::new(), tickets: 0, sleepers: 0 }
    }

    pub fn sleeps(&self) -> bool {
        self.sleepers != 0 || self.waiting.iter().any(|(_, waker)| waker.is_some())
    }

    /// Posts `work`, unless the queue is full. The caller is the first in line.
    fn post(&mut self, qp: &Qp, work: &Work, hold: &mut Hold) -> Result<Option<u32>> {
        if self.room == 0 {
            return Ok(None);
        }
        if let Hold::Word(pool) = hold {
            let mut word = pool.empty()?;
            word.resize(WORD)?;
            *hold = Hold::WordBuf(word);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() as u32 - 1
        });
        if !work.post(qp, slot as usize, hold) {
            self.free.push(slot);
            return Err(Error::Closed);
        }
        self.room -= 1;
        let hold = std::mem::replace(hold, Hold::Nothing);
        self.slots[slot as usize] = Slot::Posted { hold, waker: None, dropped: false };
        Ok(Some(slot))
    }

    /// A request has completed.
    pub fn complete(&mut self, wc: &Completion, after: &mut After) {
        let index = wc.wr_id as usize;
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Slot::Posted { hold, waker, dropped } = std::mem::replace(slot, Slot::Free) else { return };
        self.room += 1;
        if let Some(waker) = waker {
            self.sleepers -= 1;
            after.wake([waker]);
        }
        let hold = match hold {
            Hold::WordBuf(word) => {
                let value = word.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                after.give_back(Hold::Buf(word));
                Hold::Value(value)
            }
            hold => hold,
        };
        match dropped {
            true => {
                after.give_back(hold);
                self.free.push(index as u32);
            }
            false => {
                *slot = Slot::Done(match Error::of(wc.status) {
                    None => Ok((*wc, hold)),
                    Some(error) => {
                        after.give_back(hold);
                        Err(error)
                    }
                });
            }
        }
        self.wake_next(after);
    }

    /// Wakes as many of those who wait for room as there is room for.
    fn wake_next(&mut self, after: &mut After) {
        let next = self.waiting.iter_mut().take(self.room);
        after.wake(next.filter_map(|(_, waker)| waker.take()));
    }

    pub fn wake_all(&mut self, after: &mut After) {
        for slot in &mut self.slots {
            if let Slot::Posted { waker, .. } = slot {
                let woken = waker.take();
                self.sleepers -= usize::from(woken.is_some());
                after.wake(woken);
            }
        }
        after.wake(self.waiting.iter_mut().filter_map(|(_, waker)| waker.take()));
    }
}

/// The progress of a request.
enum Progress {
    /// It waits for room in the queue.
    Waiting {
        work: Work,
        hold: Hold,
        ticket: u64,
    },
    Posted(u32),
    Failed(Error),
    Over,
}

/// A future of a request's result. The request is posted by the call that returns this, or, if the queue is full, when others have completed
/// and this is polled. Dropping it does not undo a request that was posted: the buffer goes back to its pool once the request has completed.
#[must_use = "the request's outcome is unknown until it is awaited"]
pub struct Request<T> {
    channel: Arc<Channel>,
    progress: Progress,
    result: PhantomData<fn() -> T>,
}

/// Results of requests.
pub(crate) trait Outcome: Sized {
    /// The result of a request that has succeeded.
    fn of(wc: &Completion, hold: Hold) -> Option<Self>;
}

impl Outcome for () {
    fn of(_: &Completion, _: Hold) -> Option<Self> {
        Some(())
    }
}

impl Outcome for Buf {
    fn of(_: &Completion, hold: Hold) -> Option<Self> {
        match hold {
            Hold::Buf(buffer) => Some(buffer),
            _ => None,
        }
    }
}

impl Outcome for u64 {
    fn of(_: &Completion, hold: Hold) -> Option<Self> {
        match hold {
            Hold::Value(value) => Some(value),
            _ => None,
        }
    }
}

impl Outcome for Window {
    fn of(_: &Completion, hold: Hold) -> Option<Self> {
        match hold {
            Hold::Window(window) => Some(*window),
            _ => None,
        }
    }
}

impl<T> Request<T> {
    /// Posts `work`, or waits for room.
    pub(crate) fn new(channel: &Arc<Channel>, work: Work, mut hold: Hold) -> Self {
        let progress = channel.act(|state, after| {
            let requests = &mut state.requests;
            let posted = match channel.qp() {
                Some(qp) if requests.waiting.is_empty() => requests.post(qp, &work, &mut hold),
                _ => Ok(None),
            };
            match posted {
                Ok(Some(slot)) => Progress::Posted(slot),
                Ok(None) => {
                    requests.tickets += 1;
                    let ticket = requests.tickets;
                    requests.waiting.push_back((ticket, None));
                    Progress::Waiting { work, hold, ticket }
                }
                Err(error) => {
                    after.give_back(hold);
                    Progress::Failed(error)
                }
            }
        });
        Self { channel: channel.clone(), progress, result: PhantomData }
    }

    /// A request that cannot be posted.
    pub(crate) fn failed(channel: &Arc<Channel>, error: Error) -> Self {
        Self { channel: channel.clone(), progress: Progress::Failed(error), result: PhantomData }
    }
}

impl Progress {
    /// Posts the request if it waited, and takes its result if it has completed.
    fn attempt(
        &mut self,
        channel: &Channel,
        state: &mut State,
        after: &mut After,
    ) -> Option<Result<(Completion, Hold)>> {
        let requests = &mut state.requests;
        if let Self::Waiting { work, hold, ticket } = self {
            if requests.waiting.front().is_some_and(|(first, _)| first == ticket) {
                let posted = channel.qp().map_or(Err(Error::Closed), |qp| requests.post(qp, work, hold));
                if !matches!(posted, Ok(None)) {
                    requests.waiting.pop_front();
                    requests.wake_next(after);
                }
                match posted {
                    Ok(Some(slot)) => *self = Self::Posted(slot),
                    Ok(None) => {}
                    Err(error) => {
                        after.give_back(std::mem::replace(hold, Hold::Nothing));
                        *self = Self::Failed(error);
                    }
                }
            }
        }
        match self {
            Self::Posted(slot) => {
                let place = requests.slots.get_mut(*slot as usize)?;
                let Slot::Done(_) = place else { return None };
                let Slot::Done(result) = std::mem::replace(place, Slot::Free) else { return None };
                requests.free.push(*slot);
                *self = Self::Over;
                Some(result)
            }
            Self::Failed(_) => match std::mem::replace(self, Self::Over) {
                Self::Failed(error) => Some(Err(error)),
                _ => None,
            },
            _ => None,
        }
    }

    fn enter(&self, state: &mut State, waker: &Waker) {
        let requests = &mut state.requests;
        match self {
            Self::Waiting { ticket, .. } => {
                let line = requests.waiting.iter_mut().find(|(other, _)| other == ticket);
                line.into_iter().for_each(|(_, known)| *known = Some(waker.clone()));
            }
            Self::Posted(slot) => {
                if let Some(Slot::Posted { waker: known, .. }) = requests.slots.get_mut(*slot as usize) {
                    requests.sleepers += usize::from(known.is_none());
                    *known = Some(waker.clone());
                }
            }
            _ => {}
        }
    }

    /// The future is dropped.
    fn leave(&mut self, state: &mut State, after: &mut After) {
        let requests = &mut state.requests;
        match std::mem::replace(self, Self::Over) {
            Self::Waiting { hold, ticket, .. } => {
                requests.waiting.retain(|(other, _)| *other != ticket);
                requests.wake_next(after);
                after.give_back(hold);
            }
            Self::Posted(slot) => {
                let Some(place) = requests.slots.get_mut(slot as usize) else { return };
                if let Slot::Posted { dropped, waker, .. } = place {
                    *dropped = true;
                    requests.sleepers -= usize::from(waker.take().is_some());
                } else if let Slot::Done(Ok((_, hold))) = std::mem::replace(place, Slot::Free) {
                    after.give_back(hold);
                    requests.free.push(slot);
                } else {
                    requests.free.push(slot);
                }
            }
            _ => {}
        }
    }
}

#[allow(private_bounds)] // results are those of this crate
impl<T: Outcome> Future for Request<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let Self { channel, progress, .. } = &mut *self;
        let progress = std::cell::RefCell::new(progress);
        let result = channel.poll(
            cx,
            |channel, state, after| progress.borrow_mut().attempt(channel, state, after),
            |state, waker| progress.borrow().enter(state, waker),
        );
        result.map(|result| result.and_then(|(wc, hold)| T::of(&wc, hold).ok_or(Error::Closed)))
    }
}

impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        let Self { channel, progress, .. } = self;
        if !matches!(progress, Progress::Over) {
            channel.act(|state, after| progress.leave(state, after));
        }
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = match self.progress {
            Progress::Waiting { .. } => "waiting for room",
            Progress::Posted(_) => "posted",
            Progress::Failed(_) => "failed",
            Progress::Over => "over",
        };
        f.debug_struct("Request").field("progress", &progress).finish()
    }
}
