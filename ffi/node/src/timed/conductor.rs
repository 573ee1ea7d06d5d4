//! The process that advances time.

mod waiting;

use super::{
    effort::{Activity, Efforts, LOOK, activity, is_there},
    late::{Late, Written},
    limits::{Limit, Limits},
};
use crate::{NodeError, core::Core, dir, node::Node};
use clock::{Board, Costs, FILE, PLAYERS, Player, State};
use devmodel::{
    engine::{
        Ps,
        faults::{FaultPlan, FaultReport},
        spans::Cause,
        timed::{Ends, Happened, Timed},
        timing::{Dice, HostCosts, Spread, TimingProfile},
    },
    host::{Bus, Iova, Rid},
    mlx5::Job,
    pcie::{doorbell, doorbell_half},
};
use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use waiting::{LONG, look_again, looks};

/// Functions of an adapter, each of which is on its own card.
const FUNCTIONS: usize = 128;
/// Running time after which a program must have seen that a message is complete.
const LOOKS: Duration = Duration::from_micros(500);
/// Number of steps between two checks for running threads.
const STEPS: u32 = 256;
/// Interval between checks that threads still exist.
const ROLL_CALL: Duration = Duration::from_millis(100);
/// Interval between checks while nothing happens and no program reads a clock.
const IDLE: Duration = Duration::from_millis(2);
/// The conductor ends after this time without programs.
const LINGER: Duration = Duration::from_millis(300);
/// Maximum wait for a program that an interrupt resumed.
const WAKES: Duration = Duration::from_millis(2);
/// Time starts at a multiple of this, in picoseconds.
const EVEN: Ps = 1_000_000_000;
/// Cost of reading a clock, ps: that of reading the kernel's own page in a program.
const CLOCK: Ps = 50_000;
/// Cost of reading the processor's counter, ps: nearly none, but a program that waits for the counter must see it advance.
const COUNTER: Ps = 100;

/// An event other than the device's own work.
enum Soon {
    /// A queue entry becomes visible in memory.
    Entry(Rid, Iova, Vec<u8>),
    /// A function's data becomes visible.
    Data(Data),
    /// A function raises a vector.
    Interrupt(Rid, u16),
}

/// Data that a function wrote.
#[derive(Clone, Copy)]
struct Data {
    fid: u8,
    /// It ends with this packet.
    ends: Option<Ends>,
    /// A queue entry follows it.
    told: bool,
}

/// The rules of virtual time.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Costs of all steps.
    pub profile: TimingProfile,
    /// Seed of the random variation of programs' times.
    pub seed: u64,
    /// Faults of frames.
    pub faults: Option<FaultPlan>,
}

impl Rules {
    /// A number that identifies the rules.
    fn mark(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        format!("{self:?}").hash(&mut hash);
        hash.finish()
    }

    /// Takes a place on the board of the adapter in `dir` for the calling thread and the program that it executes. Returns `None` if the
    /// adapter has no conductor, and `false` if the conductor has other rules.
    pub fn sit_down(&self, dir: &Path) -> Option<bool> {
        let board = Board::find(&board_of(dir)).ok().flatten()?;
        if board.mark() != self.mark() {
            return Some(false);
        }
        board.player()?;
        // A conductor that is about to end checks for threads with a place.
        board.is_conducted().then_some(true)
    }
}

/// Advances an adapter's time.
pub struct Conductor {
    node: Arc<Node>,
    board: Board,
    engine: Timed<'static, Soon>,
    rules: Rules,
    written: Vec<Written>,
    /// For each function, the number of times that data is in memory but becomes visible later.
    early: Vec<u32>,
    /// The threads on the board at the last check.
    present: Vec<(u32, u32)>,
    /// For each function, the number of events that its program has seen so far, and the program's thread.
    seen: Vec<(u64, u32)>,
    /// For each player, by its place: how often in a row it was found to poll memory, and noticed a change.
    spinners: Vec<u32>,
    efforts: Efforts,
    /// A thread was resumed, or may notice something.
    shown: bool,
    /// Time of the last extra poll by all threads before much time passed.
    looked: Ps,
    /// For each player, the time at which it last was given time to run before much time passed, and its thread.
    thought: Vec<(Ps, u32)>,
    /// Time since which a program has read clocks between polls.
    measuring: Option<Ps>,
    /// [`looks`] at the last extra poll by all threads.
    looks: u64,
    /// Time since which threads have been about to receive a message without doing so.
    called: Option<Instant>,
    limits: Limits,
    /// [`looks`] when last nothing happened, and the duration of the next wait.
    quiet: (u64, Duration),
}

impl Conductor {
    /// Starts to advance the time of `node`, which has no other conductor.
    ///
    /// # Errors
    /// The board cannot be created.
    pub fn new(node: &Arc<Node>, rules: Rules) -> Result<Self, NodeError> {
        let profile = &rules.profile;
        let path = board_of(node.dir());
        let made = || {
            let board = Board::create(&path)?;
            dir::new_file(&File::open(&path)?, node.dir()).map(|()| board)
        };
        let board = made().map_err(NodeError::system(format!("make {}", path.display())))?;
        let mut engine = Timed::new(profile.clone(), (0..FUNCTIONS).collect());
        // Values that programs round are the same in every run.
        let now = node.core().now().next_multiple_of(EVEN);
        engine.begin(now);
        if let Some(plan) = &rules.faults {
            engine.inject(plan.clone());
        }
        let host = &profile.host;
        let costs = Costs {
            post: host.post.ps(),
            post_rate: host.post_rate.ps(),
            pio: host.pio.ps(),
            pio_block: host.pio_block.ps(),
            clock: CLOCK,
            counter: COUNTER,
        };
        board.open_up(now, node.core().epoch(), costs, rules.mark());
        node.core().conducted_by(board);
        let (node, written, seen) = (node.clone(), Vec::new(), vec![(0, 0); FUNCTIONS]);
        let (early, spinners) = (vec![0; FUNCTIONS], vec![0; PLAYERS]);
        let efforts = Efforts::default();
        Ok(Self {
            node,
            board,
            engine,
            rules,
            written,
            early,
            present: Vec::new(),
            seen,
            spinners,
            efforts,
            shown: false,
            looked: 0,
            thought: vec![(0, 0); PLAYERS],
            measuring: None,
            looks: 0,
            called: None,
            limits: Limits::default(),
            quiet: (0, LOOK),
        })
    }

    /// Advances time until no thread has been on the board for a while. Returns the report of the fault plan, if there is one.
    pub fn run(mut self) -> Option<FaultReport> {
        let (mut deserted, mut called): (Option<Instant>, _) = (None, Instant::now());
        loop {
            let heard = self.board.heard();
            let players: Vec<Player> = self.board.players().collect();
            let threads: Vec<_> = players.iter().map(Player::thread).collect();
            if called.elapsed() > ROLL_CALL || threads != self.present {
                called = Instant::now();
                self.call_the_roll(&players);
                // A waiting thread may depend on a thread that received a message from elsewhere.
                self.board.speak();
                // A thread that has read a clock may be measuring.
                let knows =
                    |player: &Player| player.knows_time() && is_there(player.thread().0, player.thread().1);
                let idle = self.engine.next(&self.node.core().adapter).is_none();
                if threads != self.present && idle && !players.iter().any(knows) {
                    // Another run then rounds its times in the same way.
                    self.board.hang_up();
                    self.engine.begin(self.board.latest().next_multiple_of(EVEN));
                    self.board.set_now(self.engine.now());
                }
                self.present = threads;
            }
            if players.is_empty() {
                let since = *deserted.get_or_insert_with(Instant::now);
                if since.elapsed() > LINGER && self.board.close() {
                    return self.engine.found();
                }
                self.board.listen(heard, IDLE);
                continue;
            }
            deserted = None;
            // Other threads may only be waiting for one of these.
            if self.release(&players) || self.wait_for(&players, heard) || self.calls(&players, heard) {
                continue;
            }
            // Doorbells that threads wrote before they began to wait are visible now.
            players.iter().for_each(|player| self.collect(player));
            self.take_left();
            if look_again(&players) {
                continue;
            }
            let sleeper = players
                .iter()
                .filter(|player| player.state() == State::Sleeping)
                .min_by_key(|player| (player.until(), player.number()));
            let next = self.engine.next(&self.node.core().adapter);
            let soonest = next.into_iter().chain(sleeper.map(Player::until)).min();
            let limit = self.limits.due(&players, soonest, self.engine.now());
            let soonest = limit.map(|limit| limit.at).or(soonest);
            if soonest.is_some_and(|at| self.hesitates(at, &players)) {
                continue;
            }
            if let Some(limit) = limit {
                self.begin(limit.at);
                limit.pass(&self.board);
                continue;
            }
            match (next, sleeper) {
                (Some(at), sleeper) if sleeper.is_none_or(|sleeper| at <= sleeper.until()) => {
                    self.go_on(&players)
                }
                (_, Some(sleeper)) => {
                    self.begin(sleeper.until());
                    sleeper.rise(sleeper.until());
                    // Other threads may wait for something that it does before it rests again.
                    self.board.speak();
                }
                _ => {
                    // Time advances only by reads of clocks, so that a program that polls until a deadline is not kept waiting.
                    let (looks, (before, wait)) = (looks(&players), self.quiet);
                    let wait = if looks == before { (2 * wait).min(IDLE) } else { LOOK };
                    self.quiet = (looks, wait);
                    self.board.listen(heard, wait);
                    if self.board.heard() == heard {
                        // A thread that is not on the board may have sent a message.
                        self.board.speak();
                    }
                }
            }
        }
    }

    /// Sets the time to `at`.
    fn begin(&mut self, at: Ps) {
        self.engine.begin(at);
        self.board.set_now(self.engine.now());
    }

    /// Parts with all threads that are gone.
    fn call_the_roll(&mut self, players: &[Player]) {
        let is_gone = |player: &&Player| activity(player) == Activity::Ended;
        let gone: Vec<_> = players.iter().filter(is_gone).collect();
        if !gone.is_empty() {
            self.part_with(&gone);
        }
    }

    /// Takes the last doorbells of threads that are gone, frees their places, and cleans up after their programs.
    fn part_with(&mut self, gone: &[&Player]) {
        for player in gone {
            self.collect(player);
            self.efforts.forget(player);
            self.spinners[player.number()] = 0;
            player.free();
        }
        if let Err(error) = self.node.core().reap() {
            tracing::warn!(%error, "a program that died could not be cleaned up after");
        }
    }

    /// Takes a thread's doorbells.
    fn collect(&mut self, player: &Player) {
        let TimingProfile { slot, card, .. } = &self.rules.profile;
        while let Some(bell) = player.take() {
            let job = match bell.half {
                true => doorbell_half(bell.offset.into(), bell.value as u32),
                false => doorbell(bell.offset.into(), bell.value),
            };
            // A program may have written anything to the board.
            let region = self.node.core().adapter.region();
            let there = bell.fid < region.functions() && region.is_present(bell.fid);
            let Some(job) = job.filter(|_| there) else { continue };
            let more = Ps::from(bell.blocks.saturating_sub(1));
            let at = bell.at.saturating_add(slot.one_way.ps() + more * card.send_block.ps());
            match job {
                Job::Doorbell { .. } => self.engine.ring(Cause::new(at), bell.fid, job, bell.posted()),
                _ => self.engine.submit(Cause::new(at), bell.fid, job),
            }
        }
    }

    /// Takes work that calls of programs left: commands, whose queues may now have something to send, and written registers.
    fn take_left(&mut self) {
        let (left, region) = (self.board.take_left(), self.node.core().adapter.region());
        for fid in (0..region.functions()).filter(|fid| left & 1 << fid != 0 && region.is_present(*fid)) {
            // Without a frame, the function only continues work that is ready, and learns of timers.
            self.engine.submit(Cause::new(self.engine.now()), fid, Job::Arrive);
        }
    }

    /// Lets events happen until one may be noticed, or until the time of a thread that does not wait for the device.
    fn go_on(&mut self, players: &[Player]) {
        self.shown = false;
        let sleepers = players.iter().filter(|player| player.state() == State::Sleeping);
        let until = sleepers.map(Player::until).chain(Limit::first(players).map(|limit| limit.at)).min();
        for step in 0..STEPS {
            let next = self.engine.next(&self.node.core().adapter);
            let is_far = step > 0 && next.is_some_and(|next| next > self.engine.now() + LONG);
            if self.shown || is_far || next.zip(until).is_some_and(|(next, until)| next > until) {
                return;
            }
            let Self { engine, node, written, .. } = self;
            let core = node.core();
            let happened =
                core.drive(engine.now(), |_, host| engine.step(&core.adapter, &mut Late { host, written }));
            self.board.set_now(self.engine.now());
            match happened {
                None => return,
                Some(Happened::Function { fid, cause, ends }) => self.function(fid, cause, ends),
                Some(Happened::Other(soon)) => self.soon(soon, players),
            }
        }
    }

    /// Schedules the visibility of data, entries and interrupts that a function wrote.
    fn function(&mut self, fid: u8, cause: Cause, ends: Option<Ends>) {
        let all = std::mem::take(&mut self.written);
        let told = all.iter().any(|written| matches!(written, Written::Entry(..)));
        for written in all {
            let seen = |this: &mut Self, len, entry| this.engine.written(fid, len, entry, cause).at;
            match written {
                Written::Data(len) => {
                    let at = seen(self, len, false);
                    self.early[usize::from(fid) % FUNCTIONS] += 1;
                    self.engine.at(at, Soon::Data(Data { fid, ends, told }));
                }
                Written::Entry(rid, iova, data) => {
                    let at = seen(self, data.len() as u32, true);
                    self.engine.at(at, Soon::Entry(rid, iova, data));
                }
                Written::Interrupt(rid, vector) => {
                    let at = seen(self, 4, true);
                    self.engine.at(at, Soon::Interrupt(rid, vector));
                }
            }
        }
    }

    /// Extra time until a write of `fid` is noticed. It depends only on the number of events that the program could see before, so another
    /// run has the same times.
    fn spread(&mut self, fid: u8, players: &[Player], of: fn(&HostCosts) -> &Spread) -> Ps {
        let uses =
            |player: &&Player| player.fid() == Some(fid) && is_there(player.thread().0, player.thread().1);
        let thread = players.iter().find(uses).map(|player| player.thread().0);
        let (seen, by) = &mut self.seen[usize::from(fid) % FUNCTIONS];
        if let Some(thread) = thread.filter(|thread| thread != by) {
            (*seen, *by) = (0, thread);
        }
        *seen += 1;
        let mut dice = Dice::new(self.rules.seed.wrapping_add(*seen << 8 | u64::from(fid)));
        of(&self.rules.profile.host).draw(&mut dice)
    }

    fn soon(&mut self, soon: Soon, players: &[Player]) {
        let (now, core) = (self.engine.now(), self.node.core());
        match soon {
            Soon::Entry(rid, at, data) => {
                // An entry of a queue without memory is lost, as on a bus.
                let _ = core.drive(now, |_, host| host.write(rid, at, &data));
                let host = &self.rules.profile.host;
                let notice = host.poll_cq.ps() + self.spread(rid.0, players, |host| &host.spread_cq);
                self.board.entry(rid.0);
                for player in players.iter().filter(|player| player.fid() == Some(rid.0)) {
                    if player.state() == State::Waiting {
                        player.show(now, notice);
                        player.wake();
                        self.shown = true;
                    }
                }
            }
            Soon::Data(Data { fid, ends, told }) => {
                let early = &mut self.early[usize::from(fid) % FUNCTIONS];
                *early -= 1;
                let host = &self.rules.profile.host;
                let notice = host.poll_memory.ps() + self.spread(fid, players, |host| &host.spread_memory);
                for player in players.iter().filter(|player| ends.is_some() && player.fid() == Some(fid)) {
                    let looks = self.efforts.noticed(&self.board, player, LOOKS);
                    self.spinners[player.number()] += u32::from(looks);
                    // Between two reads of memory it may poll for completions, and no completion announces a WRITE.
                    let may_look = ends == Some(Ends::Message) && !told;
                    if looks || (player.state() == State::Waiting && may_look) {
                        player.show(now, notice);
                        player.wake();
                        self.shown = true;
                    }
                }
            }
            Soon::Interrupt(rid, vector) => {
                core.drive(now, |_, host| host.msix(rid, vector, 0, 0));
                // A thread that sleeps on the vector wakes up immediately, and then time stands still.
                let asleep =
                    |player: &Player| player.state() != State::Running || activity(player) != Activity::Runs;
                let begin = Instant::now();
                while players.iter().all(asleep) && begin.elapsed() < WAKES {
                    std::thread::yield_now();
                }
                self.shown = true;
            }
        }
    }
}

/// True if the adapter in `dir` has a conductor.
pub fn is_conducted(dir: &Path) -> bool {
    Board::find(&board_of(dir)).ok().flatten().is_some()
}

/// The board of the adapter in `dir`, for programs in virtual time.
pub fn board_of(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

impl Core {
    /// CLOCK_MONOTONIC at the adapter's time 0, in nanoseconds.
    fn epoch(&self) -> u64 {
        self.map.header().epoch.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Takes the time from `board` from now on.
    fn conducted_by(&self, board: Board) {
        let _ = self.board.set(board);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::bed::{OnNode, Scratch};
    use hwspec::{doorbell::UAR_SHIFT, pcie::FIRST_UAR};

    #[test]
    fn what_a_call_of_a_program_finds_to_do_is_left_to_the_conductor() {
        let scratch = Scratch::new();
        let node = scratch.node();
        let rules = Rules { profile: TimingProfile::load("direct-x16").unwrap(), seed: 1, faults: None };
        let mut conductor = Conductor::new(&node, rules).unwrap();
        let (core, now) = (node.core(), conductor.engine.now());
        core.drive(now, |runner, host| runner.run_busy(&core.adapter, host, now, 1));
        assert_eq!(conductor.engine.next(&core.adapter), None);
        conductor.take_left();
        assert_eq!(conductor.engine.next(&core.adapter), Some(now));
        assert_eq!(conductor.board.take_left(), 0);
    }

    #[test]
    fn doorbells_of_a_thread_that_has_ended_are_taken_and_its_place_is_free() {
        let scratch = Scratch::new();
        let rules = Rules { profile: TimingProfile::load("direct-x16").unwrap(), seed: 1, faults: None };
        let mut conductor = Conductor::new(&scratch.node(), rules).unwrap();
        let board = conductor.board;
        // A send doorbell of 8 bytes in a UAR page.
        let doorbell = (FIRST_UAR << UAR_SHIFT) + 0x800;
        let rings = move || board.player().expect("a place").ring(0, doorbell, 0, clock::Written::Whole);
        std::thread::spawn(rings).join().expect("a thread");
        // A thread that was joined may still be on its way out of the kernel.
        testkit::until("its place is free", Duration::from_secs(20), || {
            let players: Vec<_> = board.players().collect();
            let again = conductor.wait_for(&players, board.heard());
            assert!(again || players.is_empty(), "it may have resumed another thread");
            players.is_empty()
        });
        assert!(conductor.engine.next(&conductor.node.core().adapter).is_some(), "the doorbell");
    }

    #[test]
    fn a_notification_during_the_check_of_threads_has_all_checked_again() {
        let scratch = Scratch::new();
        let rules = Rules { profile: TimingProfile::load("direct-x16").unwrap(), seed: 1, faults: None };
        let mut conductor = Conductor::new(&scratch.node(), rules).unwrap();
        let heard = conductor.board.heard();
        assert!(!conductor.wait_for(&[], heard));
        conductor.board.speak();
        assert!(conductor.wait_for(&[], heard));
    }
}
