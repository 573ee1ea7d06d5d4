//! Exhaustive exploration of two endpoints: every order in which packets can be sent, delayed, lost and copied, timers
//! can expire and receives can be posted.

use super::endpoints::{Endpoints, Scenario, Step};
use super::pair::MTU;
use crate::transport::{Kind, Status};
use std::collections::HashMap;

/// Numbers of states, steps and ends found by an exploration.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    steps: usize,
    /// Ends in which all requests completed, and in which the requester gave up.
    whole: usize,
    gave_up: usize,
}

impl Found {
    /// Prints the numbers: some orders end well and some do not.
    fn report(&self) {
        let Self { states, steps, whole, gave_up } = self;
        println!(
            "{states} states, {steps} steps, {whole} ends in which all completed, {gave_up} in which the requester gave up"
        );
        assert!(*whole > 0 && *gave_up > 0, "{self:?}");
    }
}

/// Checks the invariants of every state.
fn check(state: &Endpoints, gives_up: &[Status]) {
    state.check_effects();
    assert!(!state.is_refused(), "no request is refused for good: {state:?}");
    assert!(state.failure().is_none_or(|status| gives_up.contains(&status)), "{state:?}");
}

/// Explores all states reachable from the first, and asserts that an end is reachable from each of them.
fn explore(scenario: Scenario, gives_up: &[Status]) -> Found {
    let mut found = Found::default();
    let first = Endpoints::new(scenario);
    let mut known = HashMap::from([(first.key(), 0u32)]);
    // The predecessors of each state.
    let mut before: Vec<Vec<u32>> = vec![Vec::new()];
    let mut ends = Vec::new();
    let mut open = vec![(0u32, first)];
    while let Some((at, state)) = open.pop() {
        check(&state, gives_up);
        let steps: Vec<Step> = state.steps();
        if steps.is_empty() {
            assert!(state.is_over(), "nothing can happen any more: {state:?}");
            ends.push(at);
            found.whole += usize::from(state.failure().is_none());
            found.gave_up += usize::from(state.failure().is_some());
        }
        found.steps += steps.len();
        for step in steps {
            let next = state.after(step);
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

/// Across the wrap of PSNs, with one retry and unlimited RNR retries; no packet is lost or copied.
const PLAIN: Scenario = Scenario {
    messages: &[],
    first_psn: LAST_PSN,
    retry_count: 1,
    rnr_retry: 7,
    receives: 0,
    losses: 0,
    copies: 0,
};

#[test]
fn sends_arrive_once_and_in_order_whatever_is_lost_copied_and_delayed() {
    let scenario = Scenario {
        messages: &[(Kind::Send, MTU + 1), (Kind::Send, 0)],
        receives: 2,
        losses: 1,
        copies: 1,
        ..PLAIN
    };
    let found = explore(scenario, &[Status::RetryExceeded]);
    found.report();
}

#[test]
fn sends_without_receives_wait_and_arrive_once() {
    let scenario = Scenario { messages: &[(Kind::Send, 1), (Kind::Send, MTU + 1)], losses: 1, ..PLAIN };
    let found = explore(scenario, &[Status::RetryExceeded]);
    found.report();
}

#[test]
fn a_responder_that_is_never_ready_ends_the_connection_after_as_many_retries_as_were_asked_for() {
    let scenario =
        Scenario { messages: &[(Kind::Send, 1), (Kind::Send, 1)], first_psn: 0, rnr_retry: 1, ..PLAIN };
    let found = explore(scenario, &[Status::RetryExceeded, Status::RnrRetryExceeded]);
    found.report();
}

#[test]
fn writes_land_once_and_in_order_whatever_is_lost_copied_and_delayed() {
    let scenario =
        Scenario { messages: &[(Kind::Write, MTU + 1), (Kind::Write, 1)], losses: 1, copies: 1, ..PLAIN };
    explore(scenario, &[Status::RetryExceeded]).report();
}

#[test]
fn a_read_whose_request_or_responses_are_lost_is_asked_for_again_and_replayed() {
    let scenario = Scenario { messages: &[(Kind::Read, 2 * MTU + 1)], losses: 1, copies: 1, ..PLAIN };
    explore(scenario, &[Status::RetryExceeded]).report();
}

#[test]
fn reads_between_sends_and_writes_keep_their_order() {
    let scenario = Scenario {
        messages: &[(Kind::Write, 1), (Kind::Read, 1), (Kind::Send, 1)],
        receives: 1,
        losses: 1,
        ..PLAIN
    };
    explore(scenario, &[Status::RetryExceeded]).report();
}
