//! The bring-up harness on a good function and on functions that misbehave: it reports the failed step and its observation.

use driver::{
    harness::{self, Outcome, Plan, Report, STEPS},
    transport::{
        Access, Bar, Combining, DmaBlock, Interrupt, Iova, Registers, Scope, Transport, Width, forward,
    },
};
use ironverbs_tests::program::Scratch;
use node::{Node, NodeOptions, NodeTransport, open_device_of};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

/// Registers of the initialization segment.
const DOORBELL: u32 = 0x18;
const HEALTH: u32 = 0x1010;

/// A fault of the device, inserted between the driver and the real one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    /// The health counter stops.
    Stands,
    /// The health counter has a fatal syndrome.
    Fatal,
    /// Commands from this one on, counted from 0, never complete.
    Stuck(u32),
    /// Interrupts are lost.
    Silent,
    /// A reset is refused.
    NoReset,
    /// Registers read as all ones.
    Gone,
}

struct Liar {
    inner: Arc<dyn Transport>,
    lie: Lie,
}

struct LyingBar {
    inner: Bar,
    lie: Lie,
    commands: AtomicU32,
}

impl Registers for LyingBar {
    fn read32(&self, offset: u32) -> u32 {
        match (self.lie, offset) {
            (Lie::Gone, _) => u32::MAX,
            (Lie::Stands, HEALTH) => 17,
            (Lie::Fatal, HEALTH) => self.inner.read32(offset) | 0x0b << 24,
            _ => self.inner.read32(offset),
        }
    }
    fn write32(&self, offset: u32, value: u32) {
        if let (Lie::Stuck(from), DOORBELL) = (self.lie, offset) {
            if self.commands.fetch_add(1, Relaxed) >= from {
                return;
            }
        }
        self.inner.write32(offset, value);
    }
    fn write64(&self, offset: u32, value: u64) {
        self.inner.doorbell(offset, value);
    }
}

#[allow(unsafe_code)] // passes on the caller's promise
#[deny(clippy::missing_trait_methods)]
// SAFETY: memory is that of the transport within.
unsafe impl Transport for Liar {
    fn bar(&self, index: u8) -> io::Result<Bar> {
        let commands = AtomicU32::new(0);
        Ok(Bar::Trapped(Arc::new(LyingBar { inner: self.inner.bar(index)?, lie: self.lie, commands })))
    }
    /// Returns `None`, because doorbells in such pages would bypass the lies about registers.
    fn combining(&self) -> Option<Arc<dyn Combining>> {
        None
    }
    unsafe fn dma_map_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
        // SAFETY: the caller's guarantee is passed on unchanged.
        unsafe { self.inner.dma_map_paged(base, len) }
    }
    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        // SAFETY: the caller upholds the contract of `dma_map`.
        unsafe { self.inner.dma_map(base, len, access) }
    }
    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        match self.lie {
            // Connects a vector that the device does not raise.
            Lie::Silent => self.inner.interrupt(vector + 8),
            _ => self.inner.interrupt(vector),
        }
    }
    fn reset(&self) -> io::Result<()> {
        match self.lie {
            Lie::NoReset => Err(io::ErrorKind::PermissionDenied.into()),
            _ => self.inner.reset(),
        }
    }
    /// Returns false: the driver must wait for delayed work, as with a card.
    fn acts_at_once(&self) -> bool {
        false
    }
    forward! { self.inner:
        fn config_read(&self, offset: u16, width: Width) -> io::Result<u32>;
        fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()>;
        fn page_size(&self) -> usize;
        fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()>;
        fn pages_on_demand(&self) -> bool;
        fn dma_unmap_paged(&self, iova: Iova, len: usize) -> io::Result<()>;
        fn populate(&self, base: *mut u8, len: usize, write: bool) -> io::Result<()>;
        fn dma_alloc(&self, len: usize, scope: Scope) -> io::Result<DmaBlock>;
        fn dma_free(&self, block: DmaBlock);
        fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock>;
        fn dma_detach(&self, block: DmaBlock);
        fn shares_vectors(&self) -> bool;
        fn shared(&self) -> io::Result<DmaBlock>;
        fn opener(&self) -> u32;
        fn name(&self) -> Option<String>;
        fn alive(&self, opener: u32) -> bool;
        fn idle(&self);
        fn empty_poll(&self);
        fn nap(&self, time: Duration);
        fn noticed(&self);
        fn is_gone(&self) -> bool;
        fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]>;
    }
}

struct Place {
    node: Arc<Node>,
    _dir: Scratch,
}

fn place() -> Place {
    place_of("none")
}

/// Makes a node with an adapter as strict as `switches` say.
fn place_of(switches: &str) -> Place {
    let dir = Scratch::new();
    let strict = Some(switches.parse().expect("known switches"));
    let node = dir.node_with(&NodeOptions { vfs: Some(2), strict, ..NodeOptions::default() });
    Place { node, _dir: dir }
}

impl Place {
    fn function(&self, fid: u8) -> Arc<dyn Transport> {
        Arc::new(NodeTransport::open(&self.node, fid).expect("a function"))
    }

    /// Runs all steps on VF 1 of a device that lies.
    fn run(&self, lie: Lie) -> Report {
        let transport: Arc<dyn Transport> = Arc::new(Liar { inner: self.function(1), lie });
        let plan = Plan { write: true, ..Plan::default() }.within(Duration::from_millis(300));
        harness::run(&transport, &plan, &mut |_| ())
    }
}

#[track_caller]
fn failed_at(report: &Report, step: &str, saying: &str) {
    let failure = report.failure().expect("a step that failed");
    assert_eq!(failure.name.name, step, "{report}");
    let Outcome::Failed(why) = &failure.outcome else { unreachable!() };
    assert!(why.contains(saying), "{why:?} should say {saying:?}");
    let tried_after = report.steps.iter().skip_while(|s| s.name != failure.name).skip(1);
    assert!(tried_after.clone().all(|s| matches!(s.outcome, Outcome::Skipped(_))), "{report}");
}

/// Checks that the PF and a VF of the node pass every step, and can be used afterwards.
#[track_caller]
fn passes(place: &Place, about: &str) {
    for fid in [0, 1] {
        let transport = place.function(fid);
        let plan = Plan { write: true, ..Plan::default() };
        let report = harness::run(&transport, &plan, &mut |_| ());
        // No peer outside was named.
        let alone = |s: &harness::StepReport| s.name.name == "frame from outside";
        assert!(report.steps.iter().all(|s| alone(s) || s.outcome == Outcome::Passed), "{about}: {report}");
        assert_eq!(report.steps.len(), STEPS.len());
        drop(transport);
        open_device_of(&place.node, fid).expect("bring-up").close().expect("close");
    }
}

#[test]
fn physical_and_virtual_function_pass_every_step_and_can_be_used_afterwards() {
    passes(&place(), "none");
}

#[test]
fn they_pass_on_an_adapter_that_is_as_strict_as_a_card() {
    for switches in [
        "owner=pf",
        "pages=real",
        "events=strict",
        "uid=strict",
        "reserved=zero",
        "slow=0.01",
        "all",
        "all,ids=cx4lx",
        "all,ids=cx7",
    ] {
        passes(&place_of(switches), switches);
    }
}

/// `cli/src/model.txt`, the text that reports compare a function with: the model's VF, page by page. If the model's answers change, running
/// this test with IRONVERBS_RENEW set updates the file.
#[test]
fn the_models_pages_are_those_that_reports_compare_with() {
    let place = place();
    let plan = Plan { write: true, ..Plan::default() };
    let report = harness::run(&place.function(1), &plan, &mut |_| ());
    let mut text = String::new();
    for page in report.pages() {
        for (field, value) in &page.fields {
            text += &format!("{}\t{field}\t{value}\n", page.name);
        }
    }
    for page in ["general, maximum", "general, current", "RoCE, current", "vport context"] {
        assert!(report.pages().any(|p| p.name == page), "{page}: {report}");
    }
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/src/model.txt");
    if std::env::var_os("IRONVERBS_RENEW").is_some() {
        std::fs::write(&file, &text).expect("a table that may be written");
    }
    let known = std::fs::read_to_string(&file).expect("the table");
    let other = known.lines().zip(text.lines()).find(|(known, now)| known != now);
    assert!(known == text, "expected {:?}, the model says {:?}", other.map(|o| o.0), other.map(|o| o.1));
}

#[test]
fn without_leave_to_write_a_running_function_is_only_looked_at() {
    let place = place();
    let device = open_device_of(&place.node, 1).expect("bring-up");
    let report = harness::run(&place.function(1), &Plan::default(), &mut |_| ());
    for step in &report.steps {
        match step.name.writes {
            false => assert_eq!(step.outcome, Outcome::Passed, "{report}"),
            true => assert!(matches!(&step.outcome, Outcome::Skipped(why) if why.contains("--write"))),
        }
    }
    assert!(device.port().expect("still at work").active);
}

#[test]
fn a_function_in_use_is_not_taken_from_its_program() {
    let place = place();
    let device = open_device_of(&place.node, 1).expect("bring-up");
    let plan = Plan { write: true, ..Plan::default() };
    let report = harness::run(&place.function(1), &plan, &mut |_| ());
    failed_at(&report, "function level reset", "other programs have open");
    assert!(device.port().expect("still at work").active);
}

#[test]
fn each_misbehaviour_is_found_at_its_step() {
    let place = place();
    let cases = [
        (Lie::Gone, "initialization segment", "all ones"),
        (Lie::Stands, "health", "0x11 all the time"),
        (Lie::Fatal, "health", "0xb"),
        (Lie::NoReset, "function level reset", "cannot reset"),
        (Lie::Stuck(0), "command queue", "EnableHca did not finish"),
        (Lie::Stuck(1), "interface step", "QueryIssi did not finish"),
        (Lie::Silent, "interrupt", "the interrupt itself was lost"),
    ];
    for (lie, step, saying) in cases {
        let report = place.run(lie);
        failed_at(&report, step, saying);
    }
    // The next driver can bring the function up, whatever state the lies left it in.
    open_device_of(&place.node, 1).expect("bring-up").close().expect("close");
}

#[test]
fn a_command_that_sticks_anywhere_fails_one_step_and_leaves_nothing_behind() {
    let place = place();
    let mut seen = Vec::new();
    for from in (0..).step_by(23) {
        let report = place.run(Lie::Stuck(from));
        // Ends when the number exceeds that of the commands.
        let Some(failure) = report.failure() else { break };
        if seen.last() != Some(&failure.name.name) {
            seen.push(failure.name.name);
        }
    }
    let order: Vec<_> = STEPS.iter().map(|s| s.name).filter(|name| seen.contains(name)).collect();
    assert_eq!(seen, order, "later commands belong to later steps");
    assert!(seen.len() >= 4, "{seen:?}");
    open_device_of(&place.node, 1).expect("bring-up").close().expect("close");
}
