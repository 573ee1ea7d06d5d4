//! Tasks that take turns in one thread, step by step, as a seed dictates.
//!
//! A task is a coroutine with its own stack and represents a thread of a program. It runs until the fuel of its turn is used up, or until
//! it waits for others. A killed task never runs again and nothing of it is dropped: its stack is freed, and everything it was working on
//! stays as it was, as with `kill -9`.
#![allow(unsafe_code)] // a killed task's stack is freed without unwinding, and a step finds the task that it belongs to

use corosensei::{Coroutine, CoroutineResult, Yielder, stack::DefaultStack};
use devmodel::laboratory::{Site, set_hook};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt::Write,
};

/// A point at which a task can be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A step of the model.
    Model(Site),
    /// Before a copy between memories.
    Copy,
    /// Before a memory barrier in all threads.
    Barrier,
    /// An access to the node's shared state.
    Node,
    /// Waiting for the holder of a lock.
    Relax,
    /// An empty poll.
    Idle,
    /// Waiting for a program's lock or claim.
    Nap,
    /// Idle until woken.
    Parked,
}

impl Point {
    /// Returns a unique number.
    fn code(self) -> u64 {
        match self {
            Self::Model(site) => site as u64,
            Self::Copy => 32,
            Self::Barrier => 33,
            Self::Node => 34,
            Self::Relax => 35,
            Self::Idle => 36,
            Self::Nap => 37,
            Self::Parked => 38,
        }
    }

    /// Returns true if the task made progress. Checking a lock, or taking it and finding nothing to do, counts as waiting.
    fn changes(self) -> bool {
        !self.waits() && !matches!(self, Self::Node | Self::Model(Site::Lock))
    }
    /// Returns true if the task cannot continue until another task has done something.
    fn waits(self) -> bool {
        matches!(self, Self::Model(Site::Spin) | Self::Relax | Self::Idle | Self::Nap | Self::Parked)
    }
}

/// Bytes of a task's stack; the driver puts capability pages of 4 KiB on it.
const STACK: usize = 512 << 10;
/// Number of steps of each task that a report shows.
const REPORTED_STEPS: usize = 24;

/// Random number generator: SplitMix64.
#[derive(Clone)]
pub struct Random(Cell<u64>);

impl Random {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }
    /// Returns the next number.
    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// Returns one of `0..n`.
    pub fn below(&self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    /// Returns true once in `n` times.
    pub fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// State of a task, kept after it ends.
#[derive(Default)]
struct Record {
    steps: u64,
    /// Steps since its call began.
    in_call: u64,
    call: &'static str,
    /// Number of consecutive turns that ended in a wait without progress.
    vain: u32,
    last: VecDeque<Point>,
}

struct Running {
    task: Cell<Option<usize>>,
    yielder: Cell<*const Yielder<(), ()>>,
    fuel: Cell<u32>,
    hash: Cell<u64>,
    steps: Cell<u64>,
    records: RefCell<Vec<Record>>,
}

thread_local! {
    static RUNNING: Running = const { Running {
        task: Cell::new(None),
        yielder: Cell::new(std::ptr::null()),
        fuel: Cell::new(0),
        hash: Cell::new(0),
        steps: Cell::new(0),
        records: RefCell::new(Vec::new()),
    } };
}

/// Marks that the running task reached `point`. Other tasks may run before it continues.
pub fn visit(point: Point) {
    RUNNING.with(|running| {
        let Some(task) = running.task.get() else { return };
        let step = (task as u64) << 8 | point.code();
        // FNV, a word at a time.
        running.hash.set((running.hash.get() ^ step).wrapping_mul(0x100_0000_01b3).rotate_left(23));
        running.steps.set(running.steps.get() + 1);
        {
            let mut records = running.records.borrow_mut();
            let record = &mut records[task];
            record.steps += 1;
            record.in_call += 1;
            if point.changes() {
                record.vain = 0;
            }
            if record.last.len() == REPORTED_STEPS {
                record.last.pop_front();
            }
            record.last.push_back(point);
        }
        let fuel = running.fuel.get();
        if fuel > 1 && !point.waits() {
            running.fuel.set(fuel - 1);
        } else if !std::thread::panicking() {
            // SAFETY: a task runs, so `Tasks::turn` has set this to the yielder of the coroutine that we are in.
            unsafe { (*running.yielder.get()).suspend(()) }
        }
    });
}

/// Marks that the running task's poll found something: it can continue without time passing.
pub fn found() {
    with_record(|record| record.vain = 0);
}

/// Marks that the running task begins a call of that name, which must end within a bounded number of its own steps.
pub fn begin_call(call: &'static str) {
    with_record(|record| (record.call, record.in_call, record.vain) = (call, 0, 0));
}

fn with_record(f: impl FnOnce(&mut Record)) {
    RUNNING.with(|running| {
        if let Some(task) = running.task.get() {
            f(&mut running.records.borrow_mut()[task]);
        }
    });
}

fn step_of_model(site: Site) {
    visit(Point::Model(site));
}

/// All tasks of a run.
pub struct Tasks {
    tasks: Vec<Task>,
    stacks: Vec<DefaultStack>,
}

struct Task {
    coroutine: Option<Coroutine<(), (), (), DefaultStack>>,
    yielder: *const Yielder<(), ()>,
}

impl Tasks {
    /// Starts without tasks; this thread's steps are recorded here from now on.
    pub fn new() -> Self {
        RUNNING.with(|running| {
            running.hash.set(0);
            running.steps.set(0);
            running.records.borrow_mut().clear();
        });
        set_hook(Some(step_of_model));
        Self { tasks: Vec::new(), stacks: Vec::new() }
    }

    /// Adds a task that executes `body`. Returns its number.
    pub fn add(&mut self, body: impl FnOnce() + 'static) -> usize {
        let stack =
            self.stacks.pop().unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            RUNNING.with(|running| running.yielder.set(yielder));
            body();
        });
        self.tasks.push(Task { coroutine: Some(coroutine), yielder: std::ptr::null() });
        RUNNING.with(|running| running.records.borrow_mut().push(Record::default()));
        self.tasks.len() - 1
    }

    /// Lets `task` run for `fuel` steps, or until it waits. Returns false when it has ended.
    pub fn turn(&mut self, task: usize, fuel: u32) -> bool {
        let Task { coroutine, yielder } = &mut self.tasks[task];
        let Some(running_task) = coroutine else { return false };
        let result = RUNNING.with(|running| {
            running.task.set(Some(task));
            running.fuel.set(fuel);
            running.yielder.set(*yielder);
            let result = running_task.resume(());
            running.task.set(None);
            *yielder = running.yielder.get();
            let last = running.records.borrow()[task].last.back().is_some_and(|point| point.waits());
            if last {
                running.records.borrow_mut()[task].vain += 1;
            }
            result
        });
        let goes_on = matches!(result, CoroutineResult::Yield(()));
        if !goes_on {
            self.stacks.extend(coroutine.take().map(Coroutine::into_stack));
        }
        goes_on
    }

    /// Returns true if the task has neither ended nor been killed.
    pub fn is_alive(&self, task: usize) -> bool {
        self.tasks[task].coroutine.is_some()
    }

    /// Kills the task: it never runs again.
    pub fn kill(&mut self, task: usize) {
        if let Some(mut coroutine) = self.tasks[task].coroutine.take() {
            if coroutine.started() {
                // SAFETY: references into the stack exist only on the stack itself: tasks reach each other through the machine, by number.
                // A value that is not dropped is leaked, like a killed program's memory.
                unsafe { coroutine.force_reset() };
                self.stacks.push(coroutine.into_stack());
            }
        }
    }

    /// Returns the number of consecutive turns in which the task could only wait.
    pub fn in_vain(&self, task: usize) -> u32 {
        RUNNING.with(|running| running.records.borrow()[task].vain)
    }

    /// Returns true if the task sleeps until woken.
    pub fn is_parked(&self, task: usize) -> bool {
        RUNNING.with(|running| running.records.borrow()[task].last.back() == Some(&Point::Parked))
    }

    /// Returns the current call and the steps taken in it.
    pub fn call(&self, task: usize) -> (&'static str, u64) {
        RUNNING.with(|running| {
            let record = &running.records.borrow()[task];
            (record.call, record.in_call)
        })
    }

    /// Restarts the step count of the current call, because its wait is legitimate.
    pub fn excuse(&self, task: usize) {
        RUNNING.with(|running| running.records.borrow_mut()[task].in_call = 0);
    }

    /// Returns the total number of steps.
    pub fn steps(&self) -> u64 {
        RUNNING.with(|running| running.steps.get())
    }

    /// Returns the total number of steps, and a hash of them in order.
    pub fn trace(&self) -> (u64, u64) {
        RUNNING.with(|running| (running.steps.get(), running.hash.get()))
    }

    /// Describes the last steps of a task.
    pub fn report(&self, task: usize) -> String {
        RUNNING.with(|running| {
            let record = &running.records.borrow()[task];
            let mut text = format!("{} ({} steps of {}):", record.call, record.in_call, record.steps);
            for point in &record.last {
                let _ = match point {
                    Point::Model(site) => write!(text, " {site:?}"),
                    point => write!(text, " {point:?}"),
                };
            }
            text
        })
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        (0..self.tasks.len()).for_each(|task| self.kill(task));
        set_hook(None);
        RUNNING.with(|running| running.task.set(None));
    }
}
