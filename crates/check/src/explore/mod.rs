//! The explorer: run, crash everywhere, open what every crash can leave, judge.
//!
//! ```text
//!   create, then a run    ──●──────●──────●──▶    crash points: before drains, after operations
//!   of a seed               │      │              (depth 1)
//!                 images ┌──┼──┐   └─ kill ──▶ open, a few steps   ── a run of its own,
//!                        ▼  ▼  ▼               ●────●────●            with crash points of its own
//!                      open, judge, check      │                      (depth 2)
//!                        └─ some: the crash    └─ and so on, to Config::depth
//!                           points of this open, and their images in turn
//! ```
//!
//! *Eagerly*, every distinct image of a crash point is opened once, up to a cap; what it shows is
//! judged against the history at that moment, and again, without opening it, under every later
//! history in which it can still be left. From some images, and from some kills, a *nested run*
//! starts: its recovery is crashed in the middle (judged by the outer history), what it shows at the
//! end is from then on acknowledged, and crashes after it must leave exactly that.
//!
//! *Lazily*, no image is made: a crash point's memory is decided word by word as recovery reads it,
//! and every way to decide is followed. Images that recovery cannot tell apart are one leaf, so that
//! no crash point need be sampled.
//!
//! # Invariants
//! X1  A run is a function of target, configuration and seed; what is judged does not change it. So
//!     a crash point is named by its number, an image by its number among the point's images.
//! X2  What is drawn at a crash point is drawn from its own number, so that it can be looked at
//!     alone: [`Config::only`]. Nothing drawn in a nested run depends on what was known before it.
//! X3  The digest of a report is a function of target, configuration and seeds: not of threads.
//! X4  Until `create` has returned, an image may be refused, with an error; later, never.
//! X5  Where tickets promise nothing ([`Persistency::Relaxed`]), a batch is acknowledged by the sync after its
//!     commit, and reads promise nothing. A kill loses nothing that was answered.

mod judge;
mod lazy;
mod run;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farbank_pm::fault::{self, Fault};
use farbank_pm::sim::{CrashState, Persistency, Rng, Sim, SourceLines, UnitSurvivors, brief};
use rustix::time::{ClockId, clock_gettime};

use crate::history::{AckRule, History};
use crate::report::{CrashCounts, CrashReport, CrashViolation, ImageChoice};
use crate::target::{Target, TargetShape, Value};

pub use lazy::{LeafCounts, lazily};

/// How to explore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExploreConfig {
    /// What a power cut may take.
    pub persistency: Persistency,
    /// What counts as acknowledged.
    pub verdict: AckRule,
    /// Steps of a run.
    pub steps: usize,
    /// Most images judged at one crash point; a point with more is sampled.
    pub cap: usize,
    /// The same at the crash points of nested runs.
    pub cap_nested: usize,
    /// Crashes in a row: 1 crashes runs only, 2 their recoveries too, 3 the recoveries from those.
    pub depth: usize,
    /// Of so many distinct images, one has its recovery crashed.
    pub nest_one_in: u64,
    /// Most runs nested in one nested run, so that depth does not explode.
    pub nests_deeper: usize,
    /// At one of so many crash points the process is also killed.
    pub kill_one_in: u64,
    /// Steps after the open of a nested run.
    pub nested_steps: usize,
    /// Of so many distinct images, one is opened again, used, closed and opened.
    pub probe_one_in: u64,
    /// Whether drains fail now and then.
    pub io_errors: bool,
    /// Whether a compare-and-swap also drains, as on x86; structures must not need it.
    pub locked_drains: bool,
    /// Whether to explore lazily: no sampling, but no nested runs either.
    pub lazy: bool,
    /// Most leaves at one crash point, lazily; the report counts the points it cuts off.
    pub leaves: usize,
    /// What deviates while it runs.
    pub fault: Option<Fault>,
    /// Judge only this crash point, and there only this.
    pub only: Option<(u64, Option<ImageChoice>)>,
}

impl ExploreConfig {
    /// The usual.
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
            fault: None,
            only: None,
        }
    }

    /// What counts as acknowledged: where tickets promise nothing, readers see what may be lost.
    fn verdict(&self) -> AckRule {
        match self.persistency {
            Persistency::Relaxed => AckRule::Acknowledged,
            _ => self.verdict,
        }
    }

    /// How to look at one crash of one seed again, under this configuration: a command, or for a
    /// target that is on no command line, a call.
    fn again(&self, target: &dyn Target, seed: u64, crash: Option<&(u64, ImageChoice)>) -> String {
        if !target.has_command() {
            let only =
                crash.map(|(crash, pick)| format!("only: Some(({crash}, Some({pick:?}))), "));
            let only = only.unwrap_or_default();
            return format!("explore_seed(&target, &Config {{ {only}..config }}, {seed:#x})");
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

/// Explores `target` under every seed of `seeds`, on `threads` threads, and reports. A seed ends at
/// its first violation. `progress` is told the counts so far, and says whether to go on.
pub fn explore(
    target: &dyn Target,
    config: &ExploreConfig,
    seeds: Range<u64>,
    threads: usize,
    progress: &mut dyn FnMut(&CrashReport) -> bool,
) -> CrashReport {
    /// Seeds between two looks at the progress: fixed, so that figures do not depend on threads.
    const TURN: u64 = 8;
    let (start, computed_before) = (Instant::now(), computed(ClockId::ProcessCPUTime));
    let mut report = CrashReport::new(target.name().into(), config);
    let mut images = HashSet::new();
    let mut next = seeds.start;
    while next < seeds.end {
        let turn: Vec<u64> = (next..seeds.end.min(next.saturating_add(TURN))).collect();
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

/// The time this thread, or process, has spent computing: no other program makes it longer.
pub(crate) fn computed(by: ClockId) -> Duration {
    let now = clock_gettime(by);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The time this thread has spent computing; waiting and being preempted do not count.
#[must_use]
pub fn computed_by_thread() -> Duration {
    computed(ClockId::ThreadCPUTime)
}

/// The hashes of the images a seed has opened.
type ImageHashes = HashSet<u64>;

/// Explores these seeds; the results are in their order.
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
                    let taken = queue.lock().expect("no holder panics").next().copied();
                    let Some(seed) = taken else { return };
                    let result = explore_one(target, config, seed);
                    let mut results = results.lock().expect("no holder panics");
                    results.push((seed, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no holder panics");
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
    let mut report = CrashReport::new(target.name().into(), config);
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

/// Judges what strictly fails again, by acknowledgements alone: what is wrong then, if anything.
fn classify(
    target: &dyn Target,
    config: &ExploreConfig,
    seed: u64,
    failure: &SeedFailure,
) -> Option<Result<(), String>> {
    if config.verdict() != AckRule::Strict {
        return None;
    }
    let crash = failure.crash.clone();
    let config = ExploreConfig {
        verdict: AckRule::Acknowledged,
        // Without a crash there is nothing but the run itself to judge.
        only: crash.map_or(Some((u64::MAX, None)), |(n, pick)| Some((n, Some(pick)))),
        ..config.clone()
    };
    let mut explorer = Explorer::new(target, &config);
    let again = fault::with(config.fault.as_ref(), || explorer.run(seed));
    Some(again.map_err(|failure| failure.what))
}

/// What went wrong, on its way up.
#[derive(Debug, Default)]
struct SeedFailure {
    crash: Option<(u64, ImageChoice)>,
    trail: Vec<String>,
    what: String,
    history: Vec<String>,
    survivors: Vec<String>,
}

impl SeedFailure {
    fn new(history: &History, key: Option<u64>, what: String) -> Box<SeedFailure> {
        Box::new(SeedFailure {
            what,
            history: history.tail(key, 24),
            ..SeedFailure::default()
        })
    }

    /// Prepends where it came from.
    fn after(mut self: Box<SeedFailure>, step: String) -> Box<SeedFailure> {
        self.trail.insert(0, step);
        self
    }

    /// Prepends the crash it came from, and which way was taken there.
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

    /// Adds what was volatile, unless a crash nearer to the failure has.
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

type Contents = Arc<[(u64, Value)]>;
/// What opening an image shows, or the error it is refused with (X4).
type Shown = Result<Contents, String>;

/// One seed's exploration.
struct Explorer<'a> {
    target: &'a dyn Target,
    config: &'a ExploreConfig,
    shape: TargetShape,
    places: Arc<SourceLines>,
    /// What each image shows, by its hash and the time it was opened at.
    known: HashMap<(u64, u64), Shown>,
    /// The leaves of each crash point, by its digest and the time.
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

    /// X3.
    fn fold(&mut self, more: u64) {
        self.digest = fold(self.digest, more);
    }

    /// What a power cut left, as this configuration has it.
    fn sim(&self, image: farbank_pm::sim::PoolImage) -> Sim {
        let sim = Sim::from_image(image, self.config.persistency);
        sim.drain_on_cas(self.config.locked_drains);
        sim
    }
}

/// A digest that takes in one more number; the order matters.
pub(crate) fn fold(digest: u64, more: u64) -> u64 {
    Rng::new(digest ^ Rng::new(more).draw()).draw()
}
