//! Connections between threads, with the times at which bytes were sent. A receiver's time is at least the time at which its bytes were
//! sent; other messages sent meanwhile do not delay it.

use super::board::Board;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Maximum number of connections, each in one direction.
pub(crate) const CHANNELS: usize = 256;
/// Number of calls of each connection whose times are kept.
const CALLS: usize = 64;

/// One direction of a connection. Positions are bytes from its start.
#[repr(C)]
pub(crate) struct Channel {
    /// Its key; 0 if free.
    key: AtomicU64,
    /// Bytes sent and received.
    said: AtomicU64,
    heard: AtomicU64,
    /// Number of calls that sent something; the end position and time of each.
    calls: AtomicU64,
    ends: [AtomicU64; CALLS],
    times: [AtomicU64; CALLS],
}

impl Board {
    /// The direction with the nonzero `key`. `None` if there are too many.
    fn channel(&self, key: u64) -> Option<&'static Channel> {
        let channels = &self.0.channels;
        let mine = |channel: &&Channel| {
            let found = channel.key.compare_exchange(0, key, AcqRel, Acquire);
            found.is_ok() || found == Err(key)
        };
        let first = key as usize % CHANNELS;
        channels[first..].iter().chain(&channels[..first]).find(mine)
    }

    /// `len` bytes are about to be sent by the direction `key`, at `time`.
    pub fn say(&self, key: u64, len: u64, time: u64) {
        let Some(channel) = self.channel(key) else { return };
        let (call, end) = (channel.calls.load(Relaxed), channel.said.load(Relaxed) + len);
        let slot = call as usize % CALLS;
        channel.ends[slot].store(end, Relaxed);
        channel.times[slot].store(time, Relaxed);
        channel.said.store(end, Release);
        channel.calls.store(call + 1, Release);
    }

    /// `less` of the bytes that were about to be sent were not.
    pub fn unsay(&self, key: u64, less: u64) {
        let Some(channel) = self.channel(key) else { return };
        let said = channel.said.load(Relaxed).saturating_sub(less);
        channel.said.store(said, Relaxed);
        let slot = channel.calls.load(Relaxed).wrapping_sub(1) as usize % CALLS;
        channel.ends[slot].store(said, Release);
    }

    /// `len` bytes were received by the direction `key`. Returns the time at which the last one was sent, if known.
    pub fn hear(&self, key: u64, len: u64) -> Option<u64> {
        let channel = self.channel(key)?;
        let heard = channel.heard.fetch_add(len, AcqRel) + len;
        let calls = channel.calls.load(Acquire);
        let kept = calls.saturating_sub(CALLS as u64)..calls;
        let slot =
            kept.map(|call| call as usize % CALLS).find(|slot| channel.ends[*slot].load(Relaxed) >= heard)?;
        Some(channel.times[slot].load(Relaxed))
    }

    /// True if bytes sent by the direction `key` have not been received yet.
    pub(crate) fn has_unheard(&self, key: u64) -> bool {
        self.channel(key).is_some_and(|channel| channel.said.load(Acquire) > channel.heard.load(Acquire))
    }

    /// Forgets all connections.
    pub fn hang_up(&self) {
        for channel in &self.0.channels {
            for word in [&channel.said, &channel.heard, &channel.calls] {
                word.store(0, Relaxed);
            }
            channel.key.store(0, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(name: &str) -> (Board, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("ironverbs-clock-{}-{name}", std::process::id()));
        (Board::create(&path).unwrap(), path)
    }

    #[test]
    fn what_is_heard_has_the_time_at_which_its_last_byte_was_said() {
        let (board, path) = board("said");
        board.say(7, 100, 1000);
        board.say(7, 50, 2000);
        board.say(8, 1, 9000);
        assert_eq!(board.hear(7, 60), Some(1000));
        assert_eq!(board.hear(7, 40), Some(1000));
        assert_eq!(board.hear(7, 10), Some(2000));
        // Only a part was sent.
        board.say(7, 30, 3000);
        board.unsay(7, 20);
        board.say(7, 5, 4000);
        assert_eq!(board.hear(7, 50), Some(3000));
        assert_eq!(board.hear(7, 5), Some(4000));
        assert_eq!(board.hear(7, 1), None, "it was never said");
        for call in 0..200 {
            board.say(9, 1, call);
        }
        assert_eq!(board.hear(9, 1), Some(136), "the first that is kept");
        board.hang_up();
        assert_eq!(board.hear(8, 1), None);
        std::fs::remove_file(path).unwrap();
    }
}
