//! Small worlds explored whole: every order in which packets can be sent, delayed, lost and copied, timers run out and
//! receives be posted.

use super::world::{MTU, Scene, Step, World};
use crate::transport::Status;
use std::collections::HashMap;

/// What an exploration met.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    steps: usize,
    /// Ends in which all completed, and in which the requester gave up.
    whole: usize,
    gave_up: usize,
}

impl Found {
    /// Says what was met: some worlds must end well and some must not.
    fn tell(&self) {
        let Self { states, steps, whole, gave_up } = self;
        println!(
            "{states} states, {steps} steps, {whole} ends in which all completed, {gave_up} in which the requester gave up"
        );
        assert!(*whole > 0 && *gave_up > 0, "{self:?}");
    }
}

/// What holds in every state.
fn check(world: &World, gives_up: &[Status]) {
    let in_order = |list: &[u8]| list.iter().enumerate().all(|(i, message)| usize::from(*message) == i);
    assert!(in_order(&world.delivered), "each message once, in order: {world:?}");
    assert!(in_order(&world.completed), "each completion once, in order: {world:?}");
    assert!(
        world.completed.len() <= world.delivered.len(),
        "nothing completes that was not delivered: {world:?}"
    );
    assert!(!world.refused, "no request is refused for good: {world:?}");
    assert!(world.failed.is_none_or(|status| gives_up.contains(&status)), "{world:?}");
}

/// Explores all states from the first on; from each of them an end can be reached.
fn explore(scene: Scene, gives_up: &[Status]) -> Found {
    let mut found = Found::default();
    let mut known = HashMap::new();
    let mut worlds = vec![World::new(scene)];
    // Which states lead to a state.
    let mut before: Vec<Vec<u32>> = vec![Vec::new()];
    let mut ends = Vec::new();
    known.insert(worlds[0].key(), 0u32);
    let mut open = vec![(0u32, worlds.remove(0))];
    while let Some((at, world)) = open.pop() {
        check(&world, gives_up);
        let steps: Vec<Step> = world.steps();
        if steps.is_empty() {
            assert!(world.is_over(), "nothing can happen any more: {world:?}");
            ends.push(at);
            found.whole += usize::from(world.failed.is_none());
            found.gave_up += usize::from(world.failed.is_some());
        }
        found.steps += steps.len();
        for step in steps {
            let next = world.after(step);
            let number = known.len() as u32;
            let number = *known.entry(next.key()).or_insert(number);
            if number as usize == before.len() {
                before.push(Vec::new());
                open.push((number, next));
            }
            before[number as usize].push(at);
        }
    }
    found.states = before.len();
    let mut leads = vec![false; before.len()];
    while let Some(at) = ends.pop() {
        if !std::mem::replace(&mut leads[at as usize], true) {
            ends.extend_from_slice(&before[at as usize]);
        }
    }
    assert!(leads.iter().all(|leads| *leads), "an end can be reached from everywhere");
    found
}

const LAST_PSN: u32 = 0xff_ffff;

#[test]
fn sends_arrive_once_and_in_order_whatever_is_lost_copied_and_delayed() {
    let scene = Scene {
        messages: &[MTU + 1, 0],
        first_psn: LAST_PSN,
        retry_count: 1,
        rnr_retry: 7,
        receives: 2,
        losses: 1,
        copies: 1,
    };
    let found = explore(scene, &[Status::RetryExceeded]);
    found.tell();
}

#[test]
fn sends_without_receives_wait_and_arrive_once() {
    let scene = Scene {
        messages: &[1, MTU + 1],
        first_psn: LAST_PSN,
        retry_count: 1,
        rnr_retry: 7,
        receives: 0,
        losses: 1,
        copies: 0,
    };
    let found = explore(scene, &[Status::RetryExceeded]);
    found.tell();
}

#[test]
fn a_responder_that_is_never_ready_ends_the_connection_after_as_many_retries_as_were_asked_for() {
    let scene = Scene {
        messages: &[1, 1],
        first_psn: 0,
        retry_count: 1,
        rnr_retry: 1,
        receives: 0,
        losses: 0,
        copies: 0,
    };
    let found = explore(scene, &[Status::RetryExceeded, Status::RnrRetryExceeded]);
    found.tell();
}
