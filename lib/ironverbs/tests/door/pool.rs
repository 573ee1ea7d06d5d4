//! The pool against a model of it.

use super::once;
use ironverbs::{Acquire, Buf, Pool, block_on, sim};
use proptest::prelude::*;
use std::{collections::VecDeque, pin::Pin};

const COUNT: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    Acquire,
    /// Returns the buffer at this place.
    Return(usize),
    /// Drops the waiter at this place.
    Leave(usize),
    /// Polls the waiter at this place.
    Poll(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Take),
        Just(Step::Acquire),
        (0..COUNT).prop_map(Step::Return),
        (0..4usize).prop_map(Step::Leave),
        (0..4usize).prop_map(Step::Poll),
    ];
    prop::collection::vec(step, 0..60)
}

/// Marks a buffer, which must not carry the mark of another that is in use.
fn mark(mut buffer: Buf, number: u8) -> Buf {
    buffer.fill(&[number; 8]).unwrap();
    buffer
}

async fn follow(pool: &Pool, steps: &[Step]) {
    let mut held: Vec<(Buf, u8)> = Vec::new();
    let mut waiting: VecDeque<Pin<Box<Acquire>>> = VecDeque::new();
    let mut number = 0;
    for step in steps {
        number += 1;
        match *step {
            Step::Take => {
                if let Ok(buffer) = pool.empty() {
                    held.push((mark(buffer, number), number));
                }
            }
            Step::Acquire => {
                let mut one = Box::pin(pool.acquire());
                match once(one.as_mut()).await {
                    Some(buffer) => held.push((mark(buffer, number), number)),
                    None => waiting.push_back(one),
                }
            }
            Step::Return(place) => drop((place < held.len()).then(|| held.remove(place))),
            Step::Leave(place) => drop(waiting.remove(place)),
            Step::Poll(place) => {
                let Some(one) = waiting.get_mut(place) else { continue };
                if let Some(buffer) = once(one.as_mut()).await {
                    assert_eq!(place, 0, "the first in line goes first");
                    held.push((mark(buffer, number), number));
                    waiting.pop_front();
                }
            }
        }
        assert_eq!(pool.free(), COUNT - held.len(), "after {step:?}");
        held.iter().for_each(|(buffer, number)| assert_eq!(**buffer, [*number; 8]));
    }
    // With nobody in front, a buffer is there for whoever waits.
    drop(held);
    while let Some(one) = waiting.pop_front() {
        drop(one.await);
    }
    assert_eq!(pool.free(), COUNT);
}

proptest! {
    #[test]
    fn no_buffer_is_lost_or_used_twice(steps in steps()) {
        thread_local! {
            static POOL: Pool = Pool::new(sim::pair().unwrap().0.device(), COUNT, 8).unwrap();
        }
        POOL.with(|pool| block_on(follow(pool, &steps)));
    }
}
