//! Tasks that take turns in one thread, from step to step, as a seed says.
//!
//! A task is a coroutine with a stack of its own: a thread of a program. It runs until the fuel of its turn is used up, or until it
//! comes to a point where it waits for others. One that is killed never runs again and nothing of it is dropped: its stack
//! goes, and what it was at stays as it was, as with `kill -9`.
#![allow(unsafe_code)] // a killed task's stack goes without being unwound, and a step finds the task that it is a step of

use corosensei::{Coroutine, CoroutineResult, Yielder, stack::DefaultStack};
use devmodel::laboratory::{Site, set_hook};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt::Write,
};

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// At a step of the model.
    Model(Site),
    /// About to copy between memories.
    Copy,
    /// Having a barrier in all threads.
    Barrier,
    /// At a word of the node's books.
    Node,
    /// Waiting for the holder of a lock.
    Relax,
    /// Polled in vain.
    Idle,
    /// Waiting for a program's lock or claim.
    Nap,
    /// Nothing to do until it is woken.
    Parked,
}

impl Point {
    /// A number of its own.
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

    /// True if something is different behind it: whoever only looks at a lock, or takes it and finds nothing to do, has waited.
    fn changes(self) -> bool {
        !self.waits() && !matches!(self, Self::Node | Self::Model(Site::Lock))
    }
    /// True if the task can do nothing before another has done something.
    fn waits(self) -> bool {
        matches!(self, Self::Model(Site::Spin) | Self::Relax | Self::Idle | Self::Nap | Self::Parked)
    }
}

/// Bytes of a task's stack; the driver keeps capability pages of 4 KiB on it.
const STACK: usize = 512 << 10;
/// Steps of each task that a report shows.
const REPORTED_STEPS: usize = 24;

/// Random numbers: SplitMix64.
#[derive(Clone)]
pub struct Random(Cell<u64>);

impl Random {
    /// Those of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }
    /// The next.
    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// One of `0..n`.
    pub fn below(&self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    /// True once in `n` times.
    pub fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The facts known of a task while it runs and after.
#[derive(Default)]
struct Record {
    steps: u64,
    /// Steps since its call began.
    in_call: u64,
    call: &'static str,
    /// Turns in a row that ended where it waits, and in which it did nothing but look.
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

/// The running task comes to `point`. Others may go on before it does.
pub fn visit(point: Point) {
    RUNNING.with(|running| {
        let Some(task) = running.task.get() else { return };
        let step = (task as u64) << 8 | point.code();
        // As FNV does, a word at a time.
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

/// The running task polled something and found it: time need not pass for it to go on.
pub fn found() {
    with_record(|record| record.vain = 0);
}

/// The running task begins a call of that name, which must end within a bounded number of its own steps.
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
    /// None yet; this thread's steps are ours from now on.
    pub fn new() -> Self {
        RUNNING.with(|running| {
            running.hash.set(0);
            running.steps.set(0);
            running.records.borrow_mut().clear();
        });
        set_hook(Some(step_of_model));
        Self { tasks: Vec::new(), stacks: Vec::new() }
    }

    /// A task that will carry out `body`. Its number.
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

    /// Lets `task` go on for `fuel` steps, or until it waits. False when it is through.
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

    /// True if it is neither through nor killed.
    pub fn is_alive(&self, task: usize) -> bool {
        self.tasks[task].coroutine.is_some()
    }

    /// It never runs again.
    pub fn kill(&mut self, task: usize) {
        if let Some(mut coroutine) = self.tasks[task].coroutine.take() {
            if coroutine.started() {
                // SAFETY: nothing borrows from the stack but what lies on it: tasks reach each other through the machine,
                // by number. A value that is not dropped is lost, as a killed program's memory is.
                unsafe { coroutine.force_reset() };
                self.stacks.push(coroutine.into_stack());
            }
        }
    }

    /// Turns in a row in which it could only wait.
    pub fn in_vain(&self, task: usize) -> u32 {
        RUNNING.with(|running| running.records.borrow()[task].vain)
    }

    /// True if it sleeps until it is woken.
    pub fn is_parked(&self, task: usize) -> bool {
        RUNNING.with(|running| running.records.borrow()[task].last.back() == Some(&Point::Parked))
    }

    /// Its call and the steps it has taken in it.
    pub fn call(&self, task: usize) -> (&'static str, u64) {
        RUNNING.with(|running| {
            let record = &running.records.borrow()[task];
            (record.call, record.in_call)
        })
    }

    /// The cause of its wait is no fault: its call is counted anew.
    pub fn excuse(&self, task: usize) {
        RUNNING.with(|running| running.records.borrow_mut()[task].in_call = 0);
    }

    /// Steps of all.
    pub fn steps(&self) -> u64 {
        RUNNING.with(|running| running.steps.get())
    }

    /// Steps of all, and what stands for each of them in order.
    pub fn trace(&self) -> (u64, u64) {
        RUNNING.with(|running| (running.steps.get(), running.hash.get()))
    }

    /// The last steps of a task, in words.
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
