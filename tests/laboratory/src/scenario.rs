//! A run: pairs of programs on a node, stopped, killed and restarted, all driven by one seed.
//!
//! Functions 1 to 3 belong to the pairs that are stopped, killed and restarted. Functions 4 and 5 belong to the bystanders, which share
//! nothing with these; in half of the runs the same happens to them.

use crate::{
    host::LabHost,
    machine::{Fault, Installed, Machine, WATCHER, functions, machine},
    program::Role,
    schedule::{Random, Tasks},
    transport::park,
};
use devmodel::{
    host::Party,
    region::{Func, Sync, WireRing},
    state::{CqRow, EqRow, MkeyRow, PdRow, QpRow, UarRow, UctxRow},
};
use std::sync::atomic::Ordering;

/// Maximum number of its own steps in which a program's call must end, as long as no program that it shares anything with is stopped.
const CALL: u64 = 20_000;
/// Calls that take the node's lock.
const TAKE_THE_NODES_LOCK: [&str; 3] = ["opening", "closing", "leaving"];
/// Maximum number of turns in a run.
const TURNS: u64 = 3_000_000;
/// Number of idle turns of all programs after which time jumps to the next timer.
const VAIN: u32 = 3;
/// Time of a turn in ps.
const TURN: u64 = 100_000;
/// Functions of the first group; the second has the rest.
const FIRST: [u8; 3] = [1, 2, 3];
const SECOND: [u8; 2] = [4, 5];

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of steps, and a hash of them in order.
    pub trace: (u64, u64),
    pub programs: usize,
    pub stops: usize,
    pub kills: usize,
    /// The longest call, in steps of its program.
    pub longest: u64,
}

struct Program {
    role: Role,
    group: usize,
    /// Its main thread and its parked thread.
    tasks: [usize; 2],
    alive: bool,
    /// If it is stopped, the step count at which it continues.
    stopped: Option<u64>,
}

struct Pair {
    group: usize,
    fids: [u8; 2],
    generation: u32,
    /// Number of restarts left.
    again: usize,
}

struct Run {
    random: Random,
    tasks: Tasks,
    programs: Vec<Program>,
    pairs: Vec<Pair>,
    outcome: Outcome,
    turn: u64,
    /// The step count at which programs notice the dead, even if they do not wait for them.
    noticed: Option<u64>,
    // Dropped after the tasks, which refer to it.
    _machine: Installed,
}

/// Runs `seed` on a machine, optionally with a deliberate fault. `Err` says what was wrong.
pub fn run(seed: u64, fault: Option<Fault>) -> Result<Outcome, String> {
    let mut run = Run::new(seed, fault);
    let mut result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.go()));
    if matches!(result, Ok(Ok(()))) {
        result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.judge()));
    }
    run.outcome.trace = run.tasks.trace();
    let fault = match result {
        Ok(Ok(())) => return Ok(run.outcome),
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
        }
    };
    Err(format!("seed {seed}, turn {}: {fault}\n{}", run.turn, run.report()))
}

impl Run {
    fn new(seed: u64, fault: Option<Fault>) -> Self {
        let installed = Installed::new(fault);
        let random = Random::new(seed);
        let mut pairs = Vec::new();
        let (first, second) = (1 + random.below(2), 1 + random.below(2));
        for group in std::iter::repeat_n(0, first).chain(std::iter::repeat_n(1, second)) {
            let of: &[u8] = if group == 0 { &FIRST } else { &SECOND };
            let fids = [of[random.below(of.len())], of[random.below(of.len())]];
            pairs.push(Pair { group, fids, generation: 0, again: if group == 0 { 2 } else { 1 } });
        }
        let mut run = Self {
            random,
            tasks: Tasks::new(),
            programs: Vec::new(),
            pairs,
            outcome: Outcome::default(),
            turn: 0,
            noticed: None,
            _machine: installed,
        };
        (0..run.pairs.len()).for_each(|pair| run.start(pair));
        run
    }

    /// Starts the two programs of `pair`.
    fn start(&mut self, pair: usize) {
        let Pair { group, fids, generation, .. } = self.pairs[pair];
        self.pairs[pair].generation += 1;
        let parties = fids.map(|_| machine().claim());
        let seed = self.random.next();
        for side in 0..2 {
            let other = parties[1 - side];
            let role = Role {
                party: parties[side],
                fid: fids[side],
                pair,
                generation,
                side,
                partner: (other, machine().place(other).generation.get()),
                seed: seed ^ (side as u64) << 63,
                rounds: 1 + (seed % 2) as u32,
            };
            let tasks = [self.tasks.add(move || role.live()), self.tasks.add(move || park(role.party))];
            self.programs.push(Program { role, group, tasks, alive: true, stopped: None });
            self.outcome.programs += 1;
        }
    }

    fn go(&mut self) -> Result<(), String> {
        let grain = [1, 2, 8, 32, 128, 512][self.random.below(6)];
        let both = self.random.one_in(2);
        let mut misfortunes = self.random.below(8);
        let mut next = self.random.below(8_000) as u64;
        while self.programs.iter().any(|program| program.alive) {
            self.turn += 1;
            if self.turn > TURNS {
                return Err("the run does not end".into());
            }
            machine().now.set(machine().now.get() + TURN);
            if misfortunes > 0 && self.tasks.steps() >= next {
                misfortunes -= 1;
                next = self.tasks.steps() + self.random.below(10_000) as u64;
                self.misfortune(if both { 2 } else { 1 });
            }
            self.look_after();
            let Some((program, task)) = self.choose() else {
                self.let_time_pass();
                continue;
            };
            let fuel = 1 + self.random.below(2 * grain) as u32;
            if !self.tasks.turn(self.programs[program].tasks[task], fuel) {
                self.ended(program, task);
            }
            self.judge_call(program, task)?;
        }
        Ok(())
    }

    /// Stops or kills one of the programs of the first `groups` groups.
    fn misfortune(&mut self, groups: usize) {
        let alive = |p: &usize| self.programs[*p].alive && self.programs[*p].group < groups;
        let candidates: Vec<usize> = (0..self.programs.len()).filter(alive).collect();
        if candidates.is_empty() {
            return;
        }
        let program = &mut self.programs[candidates[self.random.below(candidates.len())]];
        let place = machine().place(program.role.party);
        if self.random.one_in(3) {
            self.outcome.kills += 1;
            program.alive = false;
            program.tasks.iter().for_each(|task| self.tasks.kill(*task));
            machine().bury_process(program.role.party);
            self.noticed = Some(self.tasks.steps() + self.random.below(4_000) as u64);
        } else if program.stopped.is_none() {
            self.outcome.stops += 1;
            place.stopped.set(true);
            let long = [100, 4_000, 400_000][self.random.below(3)];
            program.stopped = Some(self.tasks.steps() + self.random.below(long) as u64);
        }
    }

    /// Continues stopped programs when their time has come, lets programs notice the dead, and restarts pairs that have ended.
    fn look_after(&mut self) {
        let steps = self.tasks.steps();
        for program in &mut self.programs {
            if program.stopped.is_some_and(|until| steps >= until) {
                go_on(program, &self.tasks);
            }
        }
        if self.noticed.is_some_and(|until| steps >= until) {
            self.noticed = None;
            self.programs.iter().for_each(|program| machine().wake(program.role.party.0));
        }
        if self.turn % 16 == 0 {
            let now = machine().now.get();
            for program in self.programs.iter().filter(|program| program.alive) {
                let place = machine().place(program.role.party);
                if functions(place.open.get()).any(|fid| machine().adapter.region().timer_due(fid, now)) {
                    place.woken.set(true);
                }
            }
            for pair in 0..self.pairs.len() {
                let through = !self.programs.iter().any(|p| p.alive && p.role.pair == pair);
                if through && self.pairs[pair].again > 0 {
                    self.pairs[pair].again -= 1;
                    self.start(pair);
                }
            }
        }
    }

    /// Chooses the program and the thread that run next. Returns `None` if all wait.
    fn choose(&self) -> Option<(usize, usize)> {
        let (mut busy, mut waiting) = (Vec::new(), Vec::new());
        let mut stalled = true;
        for (index, program) in self.programs.iter().enumerate() {
            if !program.alive || program.stopped.is_some() {
                continue;
            }
            let place = machine().place(program.role.party);
            for (thread, task) in program.tasks.into_iter().enumerate() {
                if !self.tasks.is_alive(task) {
                    continue;
                }
                let vain = self.tasks.in_vain(task);
                let asleep =
                    thread == 1 && self.tasks.is_parked(task) && !place.woken.get() && !place.ends.get();
                match vain {
                    _ if asleep => continue,
                    0 => busy.push((index, thread)),
                    _ => waiting.push((index, thread)),
                }
                stalled &= vain > VAIN;
            }
        }
        if stalled && self.random.one_in(8) {
            return None;
        }
        let of =
            if busy.is_empty() || (!waiting.is_empty() && self.random.one_in(4)) { &waiting } else { &busy };
        (!of.is_empty()).then(|| of[self.random.below(of.len())])
    }

    /// All wait for a timer or for a stopped program: advances time to the next timer, or lets the stopped programs continue.
    fn let_time_pass(&mut self) {
        let now = machine().now.get();
        let region = machine().adapter.region();
        // A timer that is due but not handled belongs to a function that a stopped program holds, or uses alone.
        let timers = (0..region.functions()).filter_map(|fid| region.timer_hint(fid, now));
        let next = timers.filter(|at| *at > now).min();
        if let Some(at) = next {
            machine().now.set(at + (1 << 20));
        }
        // A program in a call that shares nothing with stopped programs must continue without them, or `judge_call` reports it.
        let awaits = |program: &Program| {
            let (call, _) = self.tasks.call(program.tasks[0]);
            call.is_empty() || program.stopped.is_some() || self.is_excused(program)
        };
        if self.random.one_in(8) && self.programs.iter().filter(|program| program.alive).all(awaits) {
            self.programs
                .iter_mut()
                .filter(|program| program.stopped.is_some())
                .for_each(|p| p.stopped = Some(0));
        }
    }

    fn ended(&mut self, program: usize, task: usize) {
        if task == 0 {
            let program = &mut self.programs[program];
            program.alive = false;
            let place = machine().place(program.role.party);
            place.stopped.set(false);
            place.taken.set(place.dead.get());
        }
    }

    /// Checks that no call takes more steps than allowed.
    fn judge_call(&mut self, index: usize, task: usize) -> Result<(), String> {
        let program = &self.programs[index];
        let number = program.tasks[task];
        let (call, steps) = self.tasks.call(number);
        if task == 1 || call.is_empty() {
            return Ok(());
        }
        if self.is_excused(program) {
            self.tasks.excuse(number);
            return Ok(());
        }
        self.outcome.longest = self.outcome.longest.max(steps);
        if steps > CALL {
            let who = program.role.party.0;
            return Err(format!(
                "program {who} does not come to the end of {call}, and shares nothing with whoever is stopped"
            ));
        }
        Ok(())
    }

    /// Returns true if a stopped program shares something with `program`: a function, a peer, functions that either cleans up after the
    /// dead, or the node's lock in a call that takes it.
    fn is_excused(&self, program: &Program) -> bool {
        let stopped = |other: &&Program| other.alive && other.stopped.is_some();
        let (call, _) = self.tasks.call(program.tasks[0]);
        self.programs.iter().filter(stopped).any(|other| {
            let cleans = machine().place(other.role.party).cleans.get();
            let locked = machine().lock.get() == other.role.party.0 && TAKE_THE_NODES_LOCK.contains(&call);
            other.group == program.group || cleans != 0 || locked
        })
    }

    /// Checks that the node is as it was before: no lock is held and no objects or memory are left.
    fn judge(&mut self) -> Result<(), String> {
        let Machine { adapter, .. } = machine();
        for _ in 0..4 {
            machine().reap(WATCHER, 0);
        }
        let mut host = LabHost { party: WATCHER, steady: false };
        let region = adapter.region();
        for fid in 0..region.functions() {
            for lock in [region.function_lock(fid), region.ring_lock(fid)] {
                if let Some(party) = lock.holder() {
                    return Err(format!("a lock of function {fid} is still held by party {}", party.0));
                }
            }
            let func = Func::lock(region, fid, &mut host);
            let used = [
                func.used::<QpRow>(),
                func.used::<CqRow>(),
                func.used::<EqRow>(),
                func.used::<MkeyRow>(),
                func.used::<PdRow>(),
                func.used::<UarRow>(),
                func.used::<UctxRow>(),
            ];
            if used.iter().any(|n| *n != 0) {
                return Err(format!(
                    "objects are left in function {fid}: QPs, CQs, EQs, keys, PDs, UARs, contexts {used:?}"
                ));
            }
            if func.journal_stats().overflows != 0 {
                return Err(format!("the journal of function {fid} overflowed"));
            }
            drop(func);
            if WireRing::of(region, fid).waits() && fid != 0 {
                return Err(format!("frames wait in function {fid}"));
            }
        }
        let taken = machine().places.iter().filter(|place| place.taken.get()).count();
        if taken != 1 {
            return Err(format!("{} places of programs are still taken", taken - 1));
        }
        let blocks = machine().blocks();
        if !blocks.is_empty() || !machine().memory.borrow().mapped.is_empty() {
            return Err(format!("memory is left: {blocks:?}"));
        }
        Ok(())
    }

    /// Describes the state of every program and function.
    fn report(&self) -> String {
        let mut text = String::new();
        for program in &self.programs {
            let Role { party: Party(slot), fid, pair, .. } = program.role;
            let how = match (program.alive, program.stopped) {
                (false, _) => continue,
                (_, Some(_)) => "stopped",
                _ => "runs",
            };
            text += &format!("  program {slot} of pair {pair} on function {fid} {how}\n");
            for task in program.tasks {
                text += &format!("    {}\n", self.tasks.report(task));
            }
        }
        let region = machine().adapter.region();
        for fid in 0..region.functions() {
            let openers: Vec<u16> = machine().openers(fid).collect();
            let holders = [region.function_lock(fid).holder(), region.ring_lock(fid).holder()];
            if openers.is_empty() && holders == [None; 2] {
                continue;
            }
            let [lock, ring] = holders.map(|holder| holder.map_or(0, |party| party.0));
            text += &format!("  function {fid}: open in {openers:?}, lock held by {lock}, ring by {ring}");
            if WireRing::of(region, fid).waits() {
                text += ", frames wait";
            }
            if region.sync(fid, Sync::Ready).load(Ordering::Relaxed) != 0 {
                text += ", queues are ready";
            }
            if let Some(at) = region.timer_hint(fid, machine().now.get()) {
                text += &format!(", timer in {} us", (at as i64 - machine().now.get() as i64) / 1_000_000);
            }
            text += "\n";
        }
        text + &format!(
            "  the node's lock is held by {}, dead are {:?}",
            machine().lock.get(),
            machine().dead()
        )
    }
}

fn go_on(program: &mut Program, tasks: &Tasks) {
    program.stopped = None;
    machine().place(program.role.party).stopped.set(false);
    program.tasks.iter().for_each(|task| tasks.excuse(*task));
}
