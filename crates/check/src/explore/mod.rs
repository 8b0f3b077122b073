//! The crash explorer: runs a workload, crashes at every crash point, opens every image that a crash can leave, and
//! checks its contents.
//!
//! ```text
//!   create, then a run    ──●──────●──────●──▶    crash points: before drains, after operations
//!   of a seed               │      │              (depth 1)
//!                 images ┌──┼──┐   └─ kill ──▶ open, a few steps   ── a run of its own,
//!                        ▼  ▼  ▼               ●────●────●            with its own crash points
//!                      open, compare, check    │                      (depth 2)
//!                        └─ some: the crash    └─ and so on, to ExploreConfig::depth
//!                           points of this open, and their images in turn
//! ```
//!
//! An *eager* exploration opens every distinct image of a crash point once, up to a cap. It compares the contents
//! with the history at that moment. It compares them again, without opening the image, with every later history in
//! which a crash can still leave that image. A *nested run* starts from some images and some kills. Its recovery is
//! crashed in the middle, and compared with the outer history. What the recovery shows at its end counts as
//! acknowledged, and later crashes must leave exactly that.
//!
//! A *lazy* exploration makes no images. It decides the memory of a crash point word by word as recovery reads it,
//! and follows every decision. Images that recovery cannot tell apart are one leaf, so no crash point needs sampling.
//!
//! # Invariants
//! CHECK-EXPLORE-1  A run is a function of target, configuration and seed. Checking does not change it. So a crash point is named
//!     by its number, and an image by its number among the images of its point.
//! CHECK-EXPLORE-2  Random choices at a crash point depend on its own number, so that it can be checked alone:
//!     [`ExploreConfig::only`]. Choices in a nested run do not depend on results known before it.
//! CHECK-EXPLORE-3  The digest of a report is a function of target, configuration and seeds. It does not depend on threads.
//! CHECK-EXPLORE-4  Until `create` has returned, an open may refuse an image with an error. Later it must not.
//! CHECK-EXPLORE-5  Where tickets promise nothing ([`Persistency::Relaxed`]), the sync after its commit acknowledges a batch, and
//!     reads promise nothing. A kill loses nothing that was answered.
//! CHECK-EXPLORE-6  After an operation has failed with the medium, every session commits once more, as a server does for the
//!     other requests of the batch. What such a commit acknowledges survives the kill that follows.

mod judge;
mod lazy;
mod open_subject;
mod run;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farbank_pm::fault::{self, Fault};
use farbank_pm::sim::{CrashState, Persistency, Sim, SourceLines, UnitSurvivors, brief};
use farbank_pm::sync::unpoisoned;
use rustix::time::{ClockId, clock_gettime};

use crate::Violation;
use crate::digest::fold;
use crate::history::{AckRule, History};
use crate::report::{CrashCounts, CrashReport, CrashViolation, ImageChoice};
use crate::target::{Target, TargetShape, Value};

pub use lazy::{LeafCounts, lazily};

/// Configuration of an exploration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExploreConfig {
    /// Persistency mode: what a power cut may lose.
    pub persistency: Persistency,
    /// Rule that decides which data must survive.
    pub verdict: AckRule,
    /// Steps per run.
    pub steps: usize,
    /// Maximum images checked per crash point. If a point has more, they are sampled.
    pub cap: usize,
    /// Maximum images checked per crash point of nested runs.
    pub cap_nested: usize,
    /// Consecutive crashes: 1 crashes only runs, 2 also their recoveries, 3 also the recoveries from those.
    pub depth: usize,
    /// One of this many distinct images has its recovery crashed.
    pub nest_one_in: u64,
    /// Maximum number of runs nested in one nested run, which limits the cost of depth.
    pub nests_deeper: usize,
    /// The process is also killed at one of this many crash points.
    pub kill_one_in: u64,
    /// Steps after the open of a nested run.
    pub nested_steps: usize,
    /// One of this many distinct images is opened again, used, closed and opened.
    pub probe_one_in: u64,
    /// Whether some drains fail.
    pub io_errors: bool,
    /// Whether a compare-and-swap also drains, as on x86. Structures must not rely on it.
    pub locked_drains: bool,
    /// Whether to explore lazily: without sampling, but also without nested runs.
    pub lazy: bool,
    /// Lazy exploration: maximum leaves per crash point. The report counts the points that exceed it.
    pub leaves: usize,
    /// Maximum number of seeds after the given ones, one after another while a place has not been crashed at.
    pub more_seeds: u64,
    /// Fault that is enabled during the run.
    pub fault: Option<Fault>,
    /// If set, check only this crash point, and only this image, script or kill if one is given.
    pub only: Option<(u64, Option<ImageChoice>)>,
}

impl ExploreConfig {
    /// Returns the default configuration for a persistency mode.
    #[must_use]
    pub fn new(persistency: Persistency) -> ExploreConfig {
        ExploreConfig {
            persistency,
            verdict: AckRule::Strict,
            steps: 120,
            cap: 128,
            cap_nested: 12,
            depth: 2,
            nest_one_in: 24,
            nests_deeper: 2,
            kill_one_in: 12,
            nested_steps: 4,
            probe_one_in: 16,
            io_errors: true,
            locked_drains: false,
            lazy: false,
            leaves: 65_536,
            more_seeds: 0,
            fault: None,
            only: None,
        }
    }

    /// Returns the rule in use. Where tickets promise nothing, readers see data that may be lost.
    fn verdict(&self) -> AckRule {
        match self.persistency {
            Persistency::Relaxed => AckRule::Acknowledged,
            _ => self.verdict,
        }
    }

    pub(crate) fn new_report(&self, target: &dyn Target) -> CrashReport {
        let name = target.name().into();
        CrashReport::new(name, self.persistency, self.verdict, self.lazy)
    }

    /// Returns how to reproduce one crash of one seed with this configuration: a command, or a call for a target
    /// without a command line.
    fn again(&self, target: &dyn Target, seed: u64, crash: Option<&(u64, ImageChoice)>) -> String {
        if !target.has_command() {
            let only =
                crash.map(|(crash, pick)| format!("only: Some(({crash}, Some({pick:?}))), "));
            let only = only.unwrap_or_default();
            return format!(
                "explore_seed(&target, &ExploreConfig {{ {only}..config }}, {seed:#x})"
            );
        }
        let usual = ExploreConfig::new(self.persistency);
        let mut command = format!(
            "farbank check crash --target {} --persistency {} --seeds {seed:#x}",
            target.name(),
            self.persistency
        );
        let mut add = |differs: bool, option: String| {
            if differs {
                command += &option;
            }
        };
        if let Some((crash, pick)) = crash {
            add(true, format!(" --crash {crash} --image {pick}"));
        }
        add(self.lazy, " --lazy".into());
        add(
            self.verdict != usual.verdict,
            format!(" --verdict {}", self.verdict),
        );
        add(
            self.depth != usual.depth,
            format!(" --depth {}", self.depth),
        );
        add(
            self.steps != usual.steps,
            format!(" --steps {}", self.steps),
        );
        add(self.locked_drains, " --locked-drains".into());
        add(self.cap != usual.cap, format!(" --cap {}", self.cap));
        if let Some(fault) = &self.fault {
            add(true, format!(" --fault '{fault}'"));
        }
        command
    }
}

/// Explores `target` under every seed of `seeds` with `threads` threads. A seed ends at its first violation. Calls
/// `progress` with the report so far; the exploration stops if it returns false.
pub fn explore(
    target: &dyn Target,
    config: &ExploreConfig,
    seeds: Range<u64>,
    threads: usize,
    progress: &mut dyn FnMut(&CrashReport) -> bool,
) -> CrashReport {
    /// Seeds between two calls of `progress`. The number is fixed, so that results do not depend on threads.
    const TURN: u64 = 8;
    let (start, computed_before) = (Instant::now(), computed(ClockId::ProcessCPUTime));
    let mut report = config.new_report(target);
    let mut images = HashSet::new();
    let mut next = seeds.start;
    let last = seeds.end.saturating_add(config.more_seeds);
    let needs_more =
        |report: &CrashReport| report.violations.is_empty() && report.uncovered().next().is_some();
    while next < seeds.end || next < last && needs_more(&report) {
        let end = match next < seeds.end {
            true => seeds.end.min(next.saturating_add(TURN)),
            false => next + 1,
        };
        let turn: Vec<u64> = (next..end).collect();
        next += turn.len() as u64;
        for (one, its_images) in explore_turn(target, config, &turn, threads) {
            report.add(one);
            images.extend(its_images);
        }
        report.counts.distinct_images = images.len() as u64;
        report.elapsed = start.elapsed();
        report.cpu = computed(ClockId::ProcessCPUTime) - computed_before;
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Returns the CPU time of this thread or process, which other load on the machine does not increase.
pub(crate) fn computed(by: ClockId) -> Duration {
    let now = clock_gettime(by);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns the CPU time of this thread. Waiting and preemption do not count.
#[must_use]
pub fn computed_by_thread() -> Duration {
    computed(ClockId::ThreadCPUTime)
}

/// Hashes of the images that a seed has opened.
type ImageHashes = HashSet<u64>;

/// Explores `seeds`. Returns the results in their order.
fn explore_turn(
    target: &dyn Target,
    config: &ExploreConfig,
    seeds: &[u64],
    threads: usize,
) -> Vec<(CrashReport, ImageHashes)> {
    let results = Mutex::new(Vec::new());
    let queue = Mutex::new(seeds.iter());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, seeds.len()) {
            scope.spawn(|| {
                loop {
                    let taken = unpoisoned(queue.lock()).next().copied();
                    let Some(seed) = taken else { return };
                    let result = explore_one(target, config, seed);
                    let mut results = unpoisoned(results.lock());
                    results.push((seed, result));
                }
            });
        }
    });
    let mut results = unpoisoned(results.into_inner());
    results.sort_by_key(|(seed, _)| *seed);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Explores one seed.
pub fn explore_seed(target: &dyn Target, config: &ExploreConfig, seed: u64) -> CrashReport {
    explore_one(target, config, seed).0
}

fn explore_one(
    target: &dyn Target,
    config: &ExploreConfig,
    seed: u64,
) -> (CrashReport, ImageHashes) {
    let start = Instant::now();
    let mut explorer = Explorer::new(target, config);
    let failure = fault::with(config.fault.as_ref(), || explorer.run(seed)).err();
    if let Some(failure) = &failure {
        failure
            .what
            .bytes()
            .for_each(|byte| explorer.fold(u64::from(byte)));
    }
    let images: ImageHashes = explorer.known.keys().map(|(hash, _)| *hash).collect();
    let mut report = config.new_report(target);
    report.digest = explorer.digest;
    report.counts = explorer.counts;
    report.counts.distinct_images = images.len() as u64;
    report.places = explorer.places.list();
    report
        .violations
        .extend(failure.map(|failure| CrashViolation {
            seed,
            command: config.again(target, seed, failure.crash.as_ref()),
            acknowledged: classify(target, config, seed, &failure),
            crash: failure.crash,
            trail: failure.trail,
            what: failure.what,
            history: failure.history,
            survivors: failure.survivors,
            distinct: images.len() as u64,
        }));
    report.elapsed = start.elapsed();
    (report, images)
}

/// Repeats a failure of the strict rule with the acknowledged rule. Returns the violation under that rule, if any.
fn classify(
    target: &dyn Target,
    config: &ExploreConfig,
    seed: u64,
    failure: &SeedFailure,
) -> Option<Result<(), Violation>> {
    if config.verdict() != AckRule::Strict {
        return None;
    }
    let crash = failure.crash.clone();
    let config = ExploreConfig {
        verdict: AckRule::Acknowledged,
        // A failure without a crash needs only the run itself.
        only: crash.map_or(Some((u64::MAX, None)), |(n, pick)| Some((n, Some(pick)))),
        ..config.clone()
    };
    let mut explorer = Explorer::new(target, &config);
    let again = fault::with(config.fault.as_ref(), || explorer.run(seed));
    Some(again.map_err(|failure| Violation::new(failure.what)))
}

/// A failure, to which each caller adds its context.
#[derive(Debug, Default)]
struct SeedFailure {
    crash: Option<(u64, ImageChoice)>,
    trail: Vec<String>,
    what: String,
    history: Vec<String>,
    survivors: Vec<String>,
}

impl SeedFailure {
    fn new(history: &History, key: Option<u64>, what: impl Into<String>) -> Box<SeedFailure> {
        Box::new(SeedFailure {
            what: what.into(),
            history: history.tail(key, 24),
            ..SeedFailure::default()
        })
    }

    /// Prepends a step to the trail.
    fn after(mut self: Box<SeedFailure>, step: String) -> Box<SeedFailure> {
        self.trail.insert(0, step);
        self
    }

    /// Prepends the crash and what followed it to the trail.
    fn after_crash(
        mut self: Box<SeedFailure>,
        number: u64,
        state: &CrashState,
        pick: ImageChoice,
    ) -> Box<SeedFailure> {
        let place = state
            .place()
            .map_or(String::new(), |at| format!(", {}", brief(at)));
        let way = match &pick {
            ImageChoice::Kill => "kill".into(),
            pick => format!("image {pick}"),
        };
        self.crash = Some((number, pick));
        self.after(format!(
            "crash {number} ({}{place}), {way}",
            state.moment.name()
        ))
    }

    /// Adds the volatile data and its survivors, unless a later crash has already added them.
    fn surviving(mut self: Box<SeedFailure>, all: &[UnitSurvivors]) -> Box<SeedFailure> {
        const SHOWN: usize = 16;
        if self.survivors.is_empty() {
            self.survivors = all.iter().take(SHOWN).map(ToString::to_string).collect();
            if all.len() > SHOWN {
                self.survivors
                    .push(format!("and {} more", all.len() - SHOWN));
            }
        }
        self
    }
}

/// Keys and values, sorted.
type Pairs = Vec<(u64, Value)>;
type Contents = Arc<[(u64, Value)]>;
/// Contents that opening an image shows, or the error with which the open refused it (CHECK-EXPLORE-4).
type ShownContents = Result<Contents, Violation>;

fn sorted(mut contents: Pairs) -> Pairs {
    contents.sort_unstable();
    contents
}

/// Exploration of one seed.
struct Explorer<'a> {
    target: &'a dyn Target,
    config: &'a ExploreConfig,
    shape: TargetShape,
    places: Arc<SourceLines>,
    /// Contents of each image, by its hash and the time of the open.
    known: HashMap<(u64, u64), ShownContents>,
    /// Leaves of each crash point, by its digest and the time.
    trees: HashMap<(u64, u64), Arc<lazy::DecisionTree>>,
    digest: u64,
    counts: CrashCounts,
}

impl<'a> Explorer<'a> {
    fn new(target: &'a dyn Target, config: &'a ExploreConfig) -> Explorer<'a> {
        Explorer {
            target,
            config,
            shape: target.shape(),
            places: Arc::new(SourceLines::new()),
            known: HashMap::new(),
            trees: HashMap::new(),
            digest: 0,
            counts: CrashCounts {
                seeds: 1,
                ..CrashCounts::default()
            },
        }
    }

    /// Adds a number to the digest (CHECK-EXPLORE-3).
    fn fold(&mut self, more: u64) {
        self.digest = fold(self.digest, more);
    }

    /// Returns a simulated medium with `image`, in this configuration's mode.
    fn sim(&self, image: farbank_pm::sim::PoolImage) -> Sim {
        let sim = Sim::from_image(image, self.config.persistency);
        sim.drain_on_cas(self.config.locked_drains);
        sim
    }
}
