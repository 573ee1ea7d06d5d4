//! Receives: buffers posted for messages, messages that have arrived, and the futures that take them.
//!
//! Futures take messages in the order of their calls, whichever buffer a message is in. So a dropped future loses no message: the buffer that
//! was posted for it serves the next one.

use crate::{
    Buf, Error, Result,
    address::{GRH, Source},
    channel::{After, Channel, Queue, RECEIVE, State},
    requests::Hold,
    verbs::{Completion, RawCompletion, RecvWr, WcFlags},
};
use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

/// A message, in the buffer that was posted for it.
#[derive(Debug)]
pub struct Message {
    buffer: Buf,
    immediate: Option<u32>,
    written: Option<usize>,
    qpn: u32,
    source: Option<Source>,
}

impl Message {
    /// The buffer, with the message as its contents.
    pub fn into_buf(self) -> Buf {
        self.buffer
    }

    /// Immediate data.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// Number of bytes that the peer wrote to a [`Region`](crate::Region), if this announces such a write; the message itself is empty.
    pub fn written(&self) -> Option<usize> {
        self.written
    }

    /// Number of the queue pair that received it, which tells apart those that share a receive queue.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The sender of a datagram.
    pub fn source(&self) -> Option<Source> {
        self.source
    }

    fn of(mut buffer: Buf, wc: &Completion, raw: Option<&RawCompletion>) -> Result<Self> {
        let len = wc.byte_len as usize;
        let immediate = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm_or_inv);
        let written = (wc.opcode == crate::verbs::WcOpcode::RecvRdmaWithImm).then_some(len);
        buffer.resize(if written.is_some() { 0 } else { len })?;
        let mut source = None;
        if let (Some(raw), Some(header)) = (raw, buffer.first_chunk::<GRH>()) {
            source = Some(Source::of(wc, raw, header));
            buffer.copy_within(GRH.., 0);
            buffer.resize(len - GRH)?;
        }
        Ok(Self { buffer, immediate, written, qpn: wc.qpn, source })
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

/// The receives of a queue.
pub(crate) struct Inbox {
    /// Posted buffers; an index is the id of the work request.
    slots: Vec<Option<Buf>>,
    free: Vec<u32>,
    posted: usize,
    limit: usize,
    arrived: VecDeque<Result<Message>>,
    /// Futures, in the order of their calls.
    takers: VecDeque<(u64, Option<Waker>)>,
    tickets: u64,
}

impl Inbox {
    pub fn new(limit: usize) -> Self {
        let (slots, free, arrived, takers) = Default::default();
        Self { slots, free, posted: 0, limit, arrived, takers, tickets: 0 }
    }

    pub fn sleeps(&self) -> bool {
        self.takers.iter().any(|(_, waker)| waker.is_some())
    }

    /// Posts `buffer`, unless the queue is full, or has buffers of dropped futures, which then serve instead.
    fn offer(&mut self, queue: Option<&Queue>, buffer: &mut Option<Buf>, after: &mut After) -> Result<()> {
        if self.posted + self.arrived.len() >= self.takers.len() {
            after.give_back(Hold::of(buffer.take()));
        } else if self.posted < self.limit {
            if let Some(buffer) = buffer.take() {
                self.post(queue, buffer, after)?;
            }
        }
        Ok(())
    }

    fn post(&mut self, queue: Option<&Queue>, buffer: Buf, after: &mut After) -> Result<()> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let sge = [buffer.sge(buffer.capacity())];
        let wr = RecvWr { wr_id: RECEIVE | u64::from(slot), sge: &sge };
        let posted = match queue {
            Some(Queue::Pair(qp)) => qp.post_recv([wr]).is_ok(),
            Some(Queue::Shared(srq)) => srq.post_recv([wr]).is_ok(),
            None => false,
        };
        match posted {
            true => {
                self.posted += 1;
                self.slots[slot as usize] = Some(buffer);
                Ok(())
            }
            false => {
                self.free.push(slot);
                after.give_back(Hold::Buf(buffer));
                Err(Error::Closed)
            }
        }
    }

    /// A receive has completed.
    pub fn complete(&mut self, wc: &Completion, raw: Option<&RawCompletion>, after: &mut After) {
        let slot = (wc.wr_id & !RECEIVE) as usize;
        let Some(buffer) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        self.free.push(slot as u32);
        self.posted -= 1;
        let message = match Error::of(wc.status) {
            None => Message::of(buffer, wc, raw),
            Some(error) => {
                after.give_back(Hold::Buf(buffer));
                Err(error)
            }
        };
        self.arrived.push_back(message);
        self.wake(self.arrived.len() - 1, after);
    }

    /// Wakes the taker at `place` in the line.
    fn wake(&mut self, place: usize, after: &mut After) {
        after.wake(self.takers.get_mut(place).and_then(|(_, waker)| waker.take()));
    }

    pub fn wake_all(&mut self, after: &mut After) {
        after.wake(self.takers.iter_mut().filter_map(|(_, waker)| waker.take()));
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.takers.iter().position(|(other, _)| *other == ticket)
    }
}

/// A future of the next message. Its buffer is posted by the call that returns this, or, if the queue is full, when messages have arrived and
/// this is polled. Dropping it loses no message: the next call takes it.
#[must_use = "a message that arrives goes to the future that is awaited"]
pub struct Recv {
    channel: Arc<Channel>,
    taking: Taking,
}

struct Taking {
    ticket: u64,
    /// A buffer that is not posted yet.
    buffer: Option<Buf>,
    failed: Option<Error>,
    over: bool,
}

impl Recv {
    pub(crate) fn new(channel: &Arc<Channel>, buffer: Buf) -> Self {
        let taking = channel.act(|state, after| {
            let inbox = &mut state.inbox;
            inbox.tickets += 1;
            let ticket = inbox.tickets;
            inbox.takers.push_back((ticket, None));
            let mut buffer = Some(buffer);
            let failed = inbox.offer(channel.queue(), &mut buffer, after).err();
            Taking { ticket, buffer, failed, over: false }
        });
        Self { channel: channel.clone(), taking }
    }
}

impl Taking {
    fn attempt(
        &mut self,
        channel: &Channel,
        state: &mut State,
        after: &mut After,
    ) -> Option<Result<Message>> {
        let inbox = &mut state.inbox;
        let place = inbox.place(self.ticket)?;
        let arrived = if place == 0 { inbox.arrived.pop_front() } else { inbox.arrived.remove(place) };
        let mut found = arrived.or_else(|| self.failed.take().map(Err));
        if found.is_none() && self.buffer.is_some() {
            found = inbox.offer(channel.queue(), &mut self.buffer, after).err().map(Err);
        }
        if found.is_some() {
            self.leave(state, after);
        }
        found
    }

    /// Leaves the line. Those behind move up, so one of them may now have a message.
    fn leave(&mut self, state: &mut State, after: &mut After) {
        let inbox = &mut state.inbox;
        self.over = true;
        after.give_back(Hold::of(self.buffer.take()));
        let Some(place) = inbox.place(self.ticket) else { return };
        inbox.takers.remove(place);
        if let Some(last) = inbox.arrived.len().checked_sub(1).filter(|last| *last >= place) {
            inbox.wake(last, after);
        }
    }
}

impl Future for Recv {
    type Output = Result<Message>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Message>> {
        let Self { channel, taking } = &mut *self;
        let taking = RefCell::new(taking);
        channel.poll(
            cx,
            |channel, state, after| taking.borrow_mut().attempt(channel, state, after),
            |state, waker| {
                if let Some(place) = state.inbox.place(taking.borrow().ticket) {
                    state.inbox.takers[place].1 = Some(waker.clone());
                }
            },
        )
    }
}

impl Drop for Recv {
    fn drop(&mut self) {
        let Self { channel, taking } = self;
        if !taking.over {
            channel.act(|state, after| taking.leave(state, after));
        }
    }
}

impl fmt::Debug for Recv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").field("posted", &self.taking.buffer.is_none()).finish()
    }
}
