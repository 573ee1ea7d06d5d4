//! Many connections at once, with requests that are cancelled and connections that are killed at random, by a seed.

use super::{connected, once, places};
use futures_util::future::join_all;
use ironverbs::{Device, Error, Pool, Qp, Result, block_on, join};
use std::{cell::Cell, pin::pin, thread};
use testkit::Scratch;

const CONNECTIONS: usize = 64;
const MESSAGES: u32 = 1000;
/// Messages that a sender has under way.
const WINDOW: usize = 8;

/// Random numbers (xorshift64).
struct Dice(Cell<u64>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    fn one_in(&self, count: u64) -> bool {
        let mut state = self.0.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.set(state);
        (state >> 32) % count == 0
    }
}

struct Side {
    device: Device,
    pool: Pool,
}

impl Side {
    fn new(device: Device) -> Self {
        // Fewer buffers than the connections could use, so that they wait for each other.
        let pool = Pool::new(&device, CONNECTIONS * WINDOW / 2, 64).unwrap();
        Self { device, pool }
    }
}

fn pair(from: &Side, to: &Side) -> (Qp, Qp) {
    let depth = WINDOW as u32;
    let a = from.device.qp().sends(depth).build().unwrap();
    connected(a, to.device.qp().receives(depth).build().unwrap())
}

/// Sends numbers from `first` on, until the connection ends. Some futures are dropped, which sends their messages all the same.
async fn send(qp: &Qp, pool: &Pool, who: u32, first: u32, dice: &Dice) -> Result<()> {
    let mut under_way = Vec::new();
    for number in first..MESSAGES {
        let mut buffer = pool.acquire().await;
        buffer.fill(&[who.to_be_bytes(), number.to_be_bytes()].concat())?;
        let request = qp.send(buffer);
        match dice.one_in(10) {
            true => drop(request),
            false => under_way.push((number, request)),
        }
        // Dropped ones of the last batch may still be under way, so half of the queue is for this batch.
        if (number - first) % (WINDOW as u32 / 2) == 0 || number + 1 == MESSAGES {
            for (number, request) in under_way.drain(..) {
                assert_eq!(request.await?[4..], number.to_be_bytes(), "the buffer that was sent comes back");
            }
        }
    }
    Ok(())
}

/// Receives numbers from `next` on. Some receives are dropped while they wait. Returns early where the dice kill the connection.
async fn receive(qp: &Qp, pool: &Pool, who: u32, next: &mut u32, dice: &Dice) -> Result<bool> {
    while *next < MESSAGES {
        let mut receive = pin!(qp.recv(pool.acquire().await));
        if dice.one_in(10) {
            match once(receive.as_mut()).await {
                None => continue,
                Some(message) => check(&message?, who, next),
            }
        } else {
            check(&receive.await?, who, next);
        }
        if dice.one_in(700) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn check(message: &[u8], who: u32, next: &mut u32) {
    assert_eq!(
        message,
        [who.to_be_bytes(), next.to_be_bytes()].concat(),
        "in order, once, to this connection"
    );
    *next += 1;
}

/// One connection, made again each time it is killed: the sender goes on with what has not arrived.
async fn talk(from: &Side, to: &Side, who: u32, seed: u64) -> u32 {
    let dice = Dice::new(seed << 16 | u64::from(who));
    let (mut next, mut kills) = (0, 0);
    loop {
        let (a, b) = pair(from, to);
        let first = next;
        let receiving = async {
            let all = receive(&b, &to.pool, who, &mut next, &dice).await;
            if !matches!(all, Ok(true)) {
                a.close();
                b.close();
            }
            all
        };
        let (sent, received) = join(send(&a, &from.pool, who, first, &dice), receiving).await;
        match received {
            Ok(true) => {
                // The last message may have been sent by a dropped future, after which nobody waits.
                sent.unwrap();
                return kills;
            }
            Ok(false) => assert!(matches!(sent, Ok(()) | Err(Error::Closed | Error::PeerGone)), "{sent:?}"),
            Err(error) => panic!("{error}"),
        }
        kills += 1;
    }
}

fn crowd(threads: usize, seed: u64) {
    let scratch = Scratch::new();
    let _node = places::node(&scratch);
    let (from, to) = (Side::new(places::iron(&scratch, 1)), Side::new(places::iron(&scratch, 2)));
    let each = CONNECTIONS / threads;
    let kills: u32 = thread::scope(|scope| {
        let (from, to) = (&from, &to);
        let some = move |first: usize| {
            let talks = (first..first + each).map(|who| talk(from, to, who as u32, seed));
            block_on(join_all(talks)).into_iter().sum::<u32>()
        };
        let threads: Vec<_> = (0..threads).map(|one| scope.spawn(move || some(one * each))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(kills > 10, "{kills} connections were killed");
    assert_eq!((from.pool.free(), to.pool.free()), (from.pool.len(), to.pool.len()), "no buffer is lost");
}

#[test]
fn no_message_and_no_buffer_is_lost_on_one_thread() {
    crowd(1, 1);
}

#[test]
fn no_message_and_no_buffer_is_lost_on_four_threads() {
    crowd(4, 2);
}
