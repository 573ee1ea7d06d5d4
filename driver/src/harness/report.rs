//! The report of the harness, step by step.

use super::{
    pages::Page,
    plan::{STEPS, StepName},
};
use crate::{
    bringup::{Step, Watch},
    error::Error,
};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// One value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Its name.
    pub what: &'static str,
    /// The value found.
    pub found: String,
    /// The value expected, if only one is correct.
    pub expected: Option<String>,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Passed.
    Passed,
    /// Failed, with the expected and the actual result.
    Failed(String),
    /// Skipped, with the reason.
    Skipped(String),
}

/// One step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The step.
    pub name: StepName,
    /// The values read, in order.
    pub readings: Vec<Reading>,
    /// Structures read whole.
    pub pages: Vec<Page>,
    /// Its outcome.
    pub outcome: Outcome,
    /// Its duration.
    pub took: Duration,
}

/// All steps, in order.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One for each entry of [`STEPS`].
    pub steps: Vec<StepReport>,
}

impl Report {
    /// Structures read whole in all steps.
    pub fn pages(&self) -> impl Iterator<Item = &Page> {
        self.steps.iter().flat_map(|step| &step.pages)
    }

    /// The first step that failed.
    pub fn failure(&self) -> Option<&StepReport> {
        self.steps.iter().find(|step| matches!(step.outcome, Outcome::Failed(_)))
    }
}

impl StepReport {
    fn new(name: StepName, outcome: Outcome) -> Self {
        Self { name, readings: Vec::new(), pages: Vec::new(), outcome, took: Duration::ZERO }
    }
}

impl fmt::Display for StepReport {
    /// Writes each step, then a line for each reading, then the failure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match &self.outcome {
            Outcome::Passed => "ok",
            Outcome::Failed(_) => "FAILED",
            Outcome::Skipped(_) => "skipped",
        };
        writeln!(f, "{word:8}{} ({}; {:.1?})", self.name.name, self.name.source, self.took)?;
        for reading in &self.readings {
            write!(f, "          {}: {}", reading.what, reading.found)?;
            match &reading.expected {
                Some(expected) if *expected != reading.found => writeln!(f, " (expected {expected})")?,
                _ => writeln!(f)?,
            }
        }
        match &self.outcome {
            Outcome::Passed => Ok(()),
            Outcome::Failed(why) | Outcome::Skipped(why) => writeln!(f, "          {why}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| step.fmt(f))
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A step begins.
    Begins(StepName),
    /// A step ended.
    Ended(&'a StepReport),
}

/// A callback for the progress of a run.
pub type Follow<'a> = &'a mut dyn FnMut(Progress<'_>);

/// Writes the report while the steps run.
pub struct Recorder<'a> {
    follow: Follow<'a>,
    report: Report,
    /// The current step, and the time it began.
    open: Option<(StepReport, Instant)>,
}

impl<'a> Recorder<'a> {
    pub fn new(follow: Follow<'a>) -> Self {
        Self { follow, report: Report::default(), open: None }
    }

    /// Begins the next step; the current one passed.
    pub fn begin(&mut self, name: &'static str) {
        self.end(Outcome::Passed);
        let name = STEPS.iter().copied().find(|step| step.name == name);
        let Some(name) = name else { return };
        (self.follow)(Progress::Begins(name));
        let report = StepReport::new(name, Outcome::Passed);
        self.open = Some((report, Instant::now()));
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some((mut step, began)) = self.open.take() {
            step.outcome = outcome;
            step.took = began.elapsed();
            (self.follow)(Progress::Ended(&step));
            self.report.steps.push(step);
        }
    }

    /// Runs `work` as step `name`. Returns `None` if it failed.
    pub fn step<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Option<T> {
        self.begin(name);
        let result = work(self);
        self.settle(result)
    }

    /// Ends the current step, which `work` may have advanced, with `result`.
    pub fn settle<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => {
                self.end(Outcome::Passed);
                Some(value)
            }
            Err(error) => {
                self.end(Outcome::Failed(error.to_string()));
                None
            }
        }
    }

    /// Records a reading.
    pub fn note(&mut self, what: &'static str, found: impl fmt::Display) {
        self.put(what, found.to_string(), None);
    }

    /// Records a reading. Any value but `expected` fails the step.
    pub fn expect<T: fmt::Display + PartialEq>(
        &mut self,
        what: &'static str,
        found: T,
        expected: T,
    ) -> Result<(), Error> {
        self.put(what, found.to_string(), Some(expected.to_string()));
        match found == expected {
            true => Ok(()),
            false => Err(Error::device(format!("{what} {expected}"), found.to_string())),
        }
    }

    /// Records a structure.
    pub fn page(&mut self, page: Page) {
        if let Some((step, _)) = &mut self.open {
            step.pages.push(page);
        }
    }

    /// Marks a step as skipped, with the reason.
    pub fn skip(&mut self, name: &'static str, why: &str) {
        self.begin(name);
        self.end(Outcome::Skipped(why.into()));
    }

    fn put(&mut self, what: &'static str, found: String, expected: Option<String>) {
        if let Some((step, _)) = &mut self.open {
            step.readings.push(Reading { what, found, expected });
        }
    }

    /// Returns the report, with a reason for each skipped step.
    pub fn finish(mut self, may_write: bool) -> Report {
        self.end(Outcome::Passed);
        let failed = self.report.failure().map(|step| step.name.name);
        let mut done = std::mem::take(&mut self.report.steps);
        for name in STEPS.iter().copied() {
            let at = done.iter().position(|step| step.name == name);
            let step = match at {
                Some(at) => done.remove(at),
                None => {
                    let why = match failed {
                        Some(failed) => format!("not tried: {failed} failed"),
                        None if name.writes && !may_write => "not tried without --write".into(),
                        None => "does not apply to this function".into(),
                    };
                    let outcome = Outcome::Skipped(why);
                    let step = StepReport::new(name, outcome);
                    (self.follow)(Progress::Ended(&step));
                    step
                }
            };
            self.report.steps.push(step);
        }
        self.report
    }
}

impl Watch for Recorder<'_> {
    fn step(&mut self, step: Step) {
        self.begin(match step {
            Step::ConfigSpace => "bus master and MSI-X",
            Step::InitSegment => "firmware ready",
            Step::CommandQueue => "command queue",
            Step::Issi => "interface step",
            Step::BootPages => "boot pages",
            Step::SetCaps => "capabilities",
            Step::InitPages => "init pages",
            Step::InitHca => "start",
            Step::Describe => "identity",
            Step::Addresses => "addresses",
            Step::EventQueue => "event queue",
        });
    }

    fn read(&mut self, what: &'static str, found: String) {
        self.put(what, found, None);
    }
}
