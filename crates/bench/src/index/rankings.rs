//! Rankings of the tables by throughput on the model, compared pair by pair with the study's.
//!
//! ```text
//!   each table, on 1, 8, 32 and 64 workers:  grow from empty ─▶ search ─▶ mixes ─▶ delete ─▶ rates
//!     (on 32 also from the other socket, and also on one DIMM)                                │
//!                                 the pairs of a published ranking that hold ◀────────────────┘
//! ```
//!
//! The model has six DIMMs of the study's machine, and keys are drawn as in the study. Its 200 million operations,
//! initial slots and cache are scaled down in proportion. An operation is executed as a whole. So the machine is
//! informed of costs that the medium does not see:
//!
//! * Level and P-CLHT block all workers during a resize: every worker waits for the end of the operation that resizes.
//! * Level takes a lock in DRAM for each bucket that it reads, and for a change one more that all workers share. A
//!   lock that another worker held last is fetched from that worker's processor.
//! * SOFT's lists are in DRAM: its head and each node on the way are a line that is loaded. The number of nodes
//!   follows from the number of keys in a list. Absent keys are larger than all others, as in the study.
//! * Clevel allocates each pair with libpmemobj, whose logs and bitmaps add lines and fences to an insert. An insert
//!   gets as many more than ours as were counted in the published code. They are lines of the worker, rewritten each
//!   time.
//! * All other work of an operation takes the same time for all tables, [`IndexOptions::cpu_ns`].
//!
//! Waits for locks are not modelled, nor is libpmemobj under Dash, which allocates segments with it.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;

use farbank_index::registry::{TableKind, TablePreset};
use farbank_index::{Index, IndexError, TableWorker};
use farbank_pm::model::{Machine, MachineConfig, MachineOutcome, Trace, constants};
use farbank_pm::{LINE, Off};

use super::IndexOptions;
use super::contender::{modelled_table, pool_bytes, refused};
use super::keys::{MinStdEngine, key_of};
use super::model::ALL_DIMMS;
use super::published::{
    self, DIMMS_INSERT_TIMES, NEAR, REMOTE_TIMES, RESIZE_PERCENT, compare_with_study,
};
use super::scale::{machine, of_table};
use crate::figure::{Error, Figure, PROGRESS_INTERVAL, ProgressFn, Report, report_progress};
use crate::scale::DataScale;

/// The study's tables.
const TABLES: [TableKind; 6] = [
    TableKind::Clht,
    TableKind::DashEh,
    TableKind::Cceh,
    TableKind::Soft,
    TableKind::Level,
    TableKind::Clevel,
];
/// Numbers of workers of the runs.
const THREADS: [u32; 4] = [1, 8, 32, 64];
/// Number of workers of the multi-threaded rankings, at which most tables are fastest.
const MANY: u32 = 32;
/// A phase between growth and the final deletes has one operation for this many records.
const PHASE_ONE_IN: u64 = 16;
/// Ids from here on are never inserted.
const NEVER: u64 = 1 << 40;
/// Lines that an insert of the published Clevel writes back, and its fences: counted, 13 and 9.
const CLEVEL_INSERT: (u64, u64) = (13, 9);
/// Lines and fences of an insert of our Clevel.
const OUR_CLEVEL_INSERT: (u64, u64) = (3, 2);
/// Largest ratio of two rates that the study calls alike.
const ALIKE: f64 = 1.25;
/// Smallest percentage of pairwise rankings that must match the study.
const BOUND_PERCENT: f64 = 80.0;

/// Phase of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RankedPhase {
    Insert,
    Positive,
    Negative,
    /// Mix with this percentage of inserts; the other operations are searches.
    Mix(u64),
    Delete,
}

/// Phases after the insert-only phase, on the table that it left.
const PHASES: [RankedPhase; 6] = [
    RankedPhase::Positive,
    RankedPhase::Negative,
    RankedPhase::Mix(80),
    RankedPhase::Mix(50),
    RankedPhase::Mix(20),
    RankedPhase::Delete,
];

impl RankedPhase {
    /// Returns whether every operation of the phase may change the table.
    fn changes(self) -> bool {
        matches!(self, RankedPhase::Insert | RankedPhase::Delete)
    }

    fn name(self) -> String {
        match self {
            RankedPhase::Insert => "insert".into(),
            RankedPhase::Positive => "positive search".into(),
            RankedPhase::Negative => "negative search".into(),
            RankedPhase::Mix(inserts) => format!("{inserts} % inserts"),
            RankedPhase::Delete => "delete".into(),
        }
    }
}

/// Published rankings: number of workers, phases, and the tables from fast to slow. `~` joins tables that are alike.
const ORDERS: [(u32, &[RankedPhase], &str); 9] = [
    (
        1,
        &[RankedPhase::Positive],
        "clht > cceh > dash-eh > soft > level > clevel",
    ),
    (
        1,
        &[RankedPhase::Negative],
        "dash-eh > clht > cceh > level > soft > clevel",
    ),
    (
        1,
        &[RankedPhase::Insert],
        "cceh ~ soft > dash-eh ~ clht > level > clevel",
    ),
    (
        1,
        &[RankedPhase::Delete],
        "soft > dash-eh > cceh > clht > level > clevel",
    ),
    (
        MANY,
        &[RankedPhase::Positive],
        "clht > dash-eh ~ soft > cceh > level > clevel",
    ),
    (
        MANY,
        &[RankedPhase::Negative],
        "dash-eh ~ clht > cceh ~ soft > level > clevel",
    ),
    (
        MANY,
        &[RankedPhase::Insert],
        "soft > cceh ~ dash-eh > clht > level > clevel",
    ),
    (
        MANY,
        &[RankedPhase::Delete],
        "soft > clht > dash-eh > cceh > level > clevel",
    ),
    (
        MANY,
        &[
            RankedPhase::Mix(80),
            RankedPhase::Mix(50),
            RankedPhase::Mix(20),
        ],
        "clht > dash-eh ~ cceh ~ soft > level ~ clevel",
    ),
];

/// Published ranking by the speedup of inserts on all DIMMs over one, with [`MANY`] workers.
const SCALING_ORDER: &str = "cceh ~ dash-eh > clevel ~ clht > level ~ soft";

/// Millions of operations per second: of a table, on a number of workers, in a phase.
type RankedRates = Vec<(TableKind, u32, RankedPhase, f64)>;

/// Results of tables on the model.
#[derive(Default)]
struct ModelFigures {
    rates: RankedRates,
    /// Speedup of inserts on all DIMMs over one.
    scaling: Vec<(TableKind, f64)>,
    /// Reads per positive search with one worker: cache lines missed, and bytes read from the media.
    reads: Vec<(TableKind, f64, f64)>,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// A table on the model, and the state of its key generators.
struct TableRun<'a> {
    options: &'a IndexOptions,
    /// Set when the run is to stop.
    stop: &'a AtomicBool,
    table: TableKind,
    made: Box<dyn Index>,
    trace: Trace,
    /// Draws the ids that are inserted. Each phase restarts it, so searches draw the same ids again.
    ids: MinStdEngine,
    mixes: MinStdEngine,
    /// Number of keys in the table.
    keys: u64,
    /// Number of keys inserted so far beyond those of the growth phase.
    fresh: u64,
}

/// What an operation finds in a list, which decides how many nodes in DRAM it visits.
#[derive(Clone, Copy)]
enum DramVisits {
    Key,
    NoKey,
    /// Neither the key nor a larger one.
    Nothing,
}

impl<'a> TableRun<'a> {
    fn new(
        options: &'a IndexOptions,
        table: TableKind,
        stop: &'a AtomicBool,
    ) -> Result<TableRun<'a>, Error> {
        let most = THREADS[THREADS.len() - 1];
        let (made, trace) = modelled_table(options, table, most)?;
        trace.record(true);
        Ok(TableRun {
            options,
            stop,
            table,
            made,
            trace,
            ids: MinStdEngine::new(options.seed),
            mixes: MinStdEngine::new(options.seed),
            keys: 0,
            fresh: 0,
        })
    }

    /// Returns the sizes of the table and of the cache.
    fn scale(&self, cache_bytes: u64) -> Result<DataScale, Error> {
        let mut worker = self.made.worker().map_err(refused)?;
        of_table(&*self.made, &self.trace, &mut worker, cache_bytes)
    }

    /// Draws the next key like the growth phase.
    fn drawn(&mut self) -> u64 {
        key_of(1 + self.ids.up_to(self.options.records - 1))
    }

    /// Adds the allocator's work for an insert of worker `number`, which the medium does not see.
    fn allocator(&self, number: usize) {
        if (self.table, self.options.preset) != (TableKind::Clevel, TablePreset::Published) {
            return;
        }
        let (lines, fences) = CLEVEL_INSERT;
        let (lines, fences) = (lines - OUR_CLEVEL_INSERT.0, fences - OUR_CLEVEL_INSERT.1);
        let own = lines * LINE as u64 * (1 + number as u64);
        let from = Off(pool_bytes(self.options, self.options.records) - own);
        for n in 0..lines {
            self.trace.persist(from.plus(n * LINE as u64), n < fences);
        }
    }

    /// Executes one operation of a phase. Returns what it finds in a list.
    fn act(
        &mut self,
        (number, worker): (usize, &mut TableWorker),
        phase: RankedPhase,
        n: u64,
    ) -> Result<DramVisits, IndexError> {
        match phase {
            RankedPhase::Insert => {
                let key = self.drawn();
                self.insert(worker, number, key)
            }
            RankedPhase::Positive => {
                let key = self.drawn();
                self.search(worker, key)
            }
            RankedPhase::Negative => {
                self.made.get(worker, key_of(NEVER + n))?;
                Ok(DramVisits::Nothing)
            }
            RankedPhase::Mix(inserts) if self.mixes.up_to(99) < inserts => {
                self.fresh += 1;
                let key = key_of(self.options.records + self.fresh);
                self.insert(worker, number, key)
            }
            RankedPhase::Mix(_) => {
                let key = self.drawn();
                self.search(worker, key)
            }
            RankedPhase::Delete => {
                let key = self.drawn();
                let found = self.made.remove(worker, key)?;
                self.keys -= u64::from(found.is_some());
                Ok(found.map_or(DramVisits::NoKey, |_| DramVisits::Key))
            }
        }
    }

    fn insert(
        &mut self,
        worker: &mut TableWorker,
        number: usize,
        key: u64,
    ) -> Result<DramVisits, IndexError> {
        let found = self.made.insert(worker, key, key)?;
        if found.is_none() {
            self.allocator(number);
            self.keys += 1;
        }
        Ok(found.map_or(DramVisits::NoKey, |_| DramVisits::Key))
    }

    fn search(&mut self, worker: &mut TableWorker, key: u64) -> Result<DramVisits, IndexError> {
        let found = self.made.get(worker, key)?;
        Ok(found.map_or(DramVisits::NoKey, |_| DramVisits::Key))
    }

    /// Returns the nanoseconds that an operation spends in DRAM, for lists and locks.
    fn dram_ns(&self, met: DramVisits, threads: u32) -> f64 {
        match self.table {
            TableKind::Soft => self.lists_ns(met),
            TableKind::Level => {
                let locks = if matches!(met, DramVisits::Key) {
                    2.0
                } else {
                    4.0
                };
                let lock = match threads {
                    1 => constants::LOCK,
                    _ => constants::LOCK_HAND_OFF,
                };
                locks * lock.value
            }
            _ => 0.0,
        }
    }

    fn lists_ns(&self, met: DramVisits) -> f64 {
        let heads = 1_u64 << self.options.slots.ilog2();
        let list = self.keys as f64 / heads as f64;
        let passed = match met {
            DramVisits::Key => 1.0 + list / 2.0,
            DramVisits::NoKey => list / 2.0,
            DramVisits::Nothing => list,
        };
        constants::LOAD_DRAM.value * (1.0 + passed)
    }

    /// Returns whether a structure change of the table blocks all workers.
    fn blocks_during_resize(&self) -> bool {
        matches!(self.table, TableKind::Level | TableKind::Clht)
    }

    /// Runs a phase on a machine of its own. Returns its outcome, and how many operations changed the structure.
    fn play(
        &mut self,
        phase: RankedPhase,
        config: MachineConfig,
        threads: u32,
        operations: u64,
    ) -> Result<(MachineOutcome, u64), Error> {
        self.ids = MinStdEngine::new(self.options.seed);
        let workers: Result<Vec<TableWorker>, _> =
            (0..threads).map(|_| self.made.worker()).collect();
        let mut workers = workers.map_err(refused)?;
        let mut machine = Machine::new(config);
        let (mut next, mut reshaped, mut failed) = (0, 0, None);
        // How often the table was blocked, and for how many of these times each worker has waited.
        let (mut closed, mut waited) = (0, vec![0; workers.len()]);
        machine.run(workers.len(), |number, steps| {
            if next == operations || failed.is_some() {
                return false;
            }
            if self.stop.load(Relaxed) {
                failed = Some(Error::Stopped);
                return false;
            }
            let worker = &mut workers[number];
            for _ in waited[number]..closed {
                self.trace.stop_the_world();
            }
            self.trace.compute(self.options.cpu_ns);
            if self.table == TableKind::Level && phase.changes() {
                self.trace.lock_taken(0);
                self.trace.lock_dropped(0);
            }
            let before = worker.reshapes();
            let met = self.act((number, worker), phase, next);
            if worker.reshapes() > before {
                reshaped += 1;
                if self.blocks_during_resize() {
                    closed += 1;
                    self.trace.stop_the_world();
                }
            }
            waited[number] = closed;
            next += 1;
            match met {
                Ok(met) => self.trace.compute(self.dram_ns(met, threads) as u32),
                Err(why) => failed = Some(refused(why)),
            }
            self.trace.take(steps);
            true
        });
        failed.map_or(Ok((machine.outcome(), reshaped)), Err)
    }
}

/// Grows and uses one table with a number of workers.
fn found(
    options: &IndexOptions,
    (table, threads): (TableKind, u32),
    stop: &AtomicBool,
) -> Result<ModelFigures, Error> {
    let study = || machine(options, ALL_DIMMS);
    let mut table_run = TableRun::new(options, table, stop)?;
    let (mut rates, mut figures) = (RankedRates::new(), Vec::new());
    let (grown, reshaped) =
        table_run.play(RankedPhase::Insert, study(), threads, options.records)?;
    let scale = table_run.scale(study().cache_bytes)?;
    let mut tell = |phase: RankedPhase, outcome: &MachineOutcome| {
        let rate = outcome.throughput() / 1e6;
        let name = format!("{}, threads: {threads}", phase.name());
        let figure = Figure::modelled(table.name(), name, rate).unit("M/s");
        figures.push(figure.caveat(scale.caveat()));
        rates.push((table, threads, phase, rate));
    };
    tell(RankedPhase::Insert, &grown);
    let mut reads = Vec::new();
    for phase in PHASES {
        let operations = match phase {
            RankedPhase::Delete => options.records, // lists get shorter during the phase
            _ => options.records / PHASE_ONE_IN,
        };
        let (outcome, _) = table_run.play(phase, study(), threads, operations)?;
        tell(phase, &outcome);
        if (phase, threads) == (RankedPhase::Positive, 1) {
            let total = outcome.total();
            let each = |count: u64| count as f64 / outcome.operations as f64;
            let xplines = total.media_reads + total.media_reads_to_write;
            reads.push((table, each(total.cache_misses), 256.0 * each(xplines)));
        }
    }
    let beside = |name: &str, value: f64, published: f64| {
        compare_with_study(
            options,
            Figure::modelled(table.name(), name, value),
            published,
            NEAR,
        )
    };
    if let (1, Some(percent)) = (threads, published::of(&RESIZE_PERCENT, table)) {
        let longest_ps = grown.longest_ns(reshaped) as f64 * 1e3;
        let share = 100.0 * longest_ps / grown.elapsed_ps as f64;
        figures.push(beside("changes of structure, share of the run", share, percent).unit("%"));
    }
    let mut scaling = Vec::new();
    if threads == MANY {
        let times = |config| {
            let mut table_run = TableRun::new(options, table, stop)?;
            let (other, _) =
                table_run.play(RankedPhase::Insert, config, threads, options.records)?;
            Ok::<f64, Error>(grown.throughput() / other.throughput())
        };
        if let Some(published) = published::of(&REMOTE_TIMES, table) {
            let remote = MachineConfig {
                remote_from: 0,
                ..study()
            };
            let name = "insert, remote, times slower than local";
            figures.push(beside(name, times(remote)?, published));
        }
        let wider = times(machine(options, 1))?;
        let name = format!("insert, {ALL_DIMMS} DIMMs, times one");
        let figure = Figure::modelled(table.name(), name, wider);
        let published = published::of(&DIMMS_INSERT_TIMES, table);
        figures.push(self::compare_with_study(options, figure, published, NEAR));
        scaling.push((table, wider));
    }
    let notes = (threads == 1).then(|| format!("{table}: {}", scale.text()));
    Ok(ModelFigures {
        rates,
        scaling,
        reads,
        figures,
        notes: notes.into_iter().collect(),
    })
}

/// Result of comparing rates with a ranking: pairs, those that hold, and descriptions of those that do not.
pub(super) struct PairScore {
    pub(super) pairs: u32,
    pub(super) hold: u32,
    pub(super) misses: Vec<String>,
}

/// Compares a published ranking with the rates of its tables.
pub(super) fn score_pairs(order: &str, rate: impl Fn(&str) -> f64) -> PairScore {
    let groups: Vec<Vec<&str>> = order
        .split(" > ")
        .map(|group| group.split(" ~ ").collect())
        .collect();
    let ranked: Vec<(usize, &str)> = (0..)
        .zip(&groups)
        .flat_map(|(rank, group)| group.iter().map(move |name| (rank, *name)))
        .collect();
    let mut judged = PairScore {
        pairs: 0,
        hold: 0,
        misses: Vec::new(),
    };
    for (n, (rank, faster)) in ranked.iter().enumerate() {
        for (other, slower) in &ranked[n + 1..] {
            let (fast, slow) = (rate(faster), rate(slower));
            let (sign, holds) = match rank == other {
                true => ("~", fast.max(slow) <= ALIKE * fast.min(slow)),
                false => (">", fast > slow),
            };
            judged.pairs += 1;
            judged.hold += u32::from(holds);
            if !holds {
                let miss = format!("{faster} {sign} {slower} ({fast:.2} and {slow:.2})");
                judged.misses.push(miss);
            }
        }
    }
    judged
}

/// Returns the rate of a table over several phases with equally many operations.
fn together(rates: &RankedRates, table: &str, threads: u32, phases: &[RankedPhase]) -> f64 {
    let of = rates.iter().filter(|(of, on, phase, _)| {
        of.name() == table && *on == threads && phases.contains(phase)
    });
    let seconds: f64 = of.map(|(_, _, _, rate)| 1.0 / rate).sum();
    phases.len() as f64 / seconds
}

/// Runs each table with each number of workers. Independent runs use all processors.
fn side_by_side(options: &IndexOptions, watch: ProgressFn<'_>) -> Result<ModelFigures, Error> {
    let jobs = TABLES.map(|table| THREADS.map(|threads| (table, threads)));
    let (jobs, next) = (jobs.as_flattened(), &AtomicUsize::new(0));
    let stop = &AtomicBool::new(false);
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..processors.min(jobs.len()) {
            let tell = tell.clone();
            scope.spawn(move || {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    let Some(job) = jobs.get(n) else { return };
                    // The receiver is gone, because another run failed.
                    if tell.send((n, found(options, *job, stop))).is_err() {
                        return;
                    }
                }
            });
        }
        let mut done = Vec::new();
        while done.len() < jobs.len() {
            let what = "pairs of a table and a number of threads";
            let wanted = report_progress(watch, what, done.len() as u64, jobs.len() as u64);
            let found = match told.recv_timeout(PROGRESS_INTERVAL) {
                Ok((n, found)) => found.map(|found| done.push((n, found))),
                Err(_) => Ok(()),
            };
            if let Err(error) = wanted.and(found) {
                next.store(jobs.len(), Relaxed);
                stop.store(true, Relaxed);
                return Err(error);
            }
        }
        done.sort_by_key(|(n, _)| *n);
        let mut all = ModelFigures::default();
        for (_, found) in done {
            all.rates.extend(found.rates);
            all.scaling.extend(found.scaling);
            all.reads.extend(found.reads);
            all.figures.extend(found.figures);
            all.notes.extend(found.notes);
        }
        Ok(all)
    })
}

/// Returns figures for the study's published ratios and counts of searches, mixes and inserts.
fn ratios(options: &IndexOptions, found: &ModelFigures) -> Vec<Figure> {
    let rate =
        |table: TableKind, threads, phase| together(&found.rates, table.name(), threads, &[phase]);
    let read = |table: TableKind| {
        let read = found.reads.iter().find(|(of, ..)| *of == table);
        read.map_or((f64::NAN, f64::NAN), |(_, misses, bytes)| (*misses, *bytes))
    };
    let insert = |table| rate(table, MANY, RankedPhase::Insert);
    let soft = |phase| rate(TableKind::Soft, 1, phase);
    let rows = [
        (
            "soft by level: insert, threads: 32",
            insert(TableKind::Soft) / insert(TableKind::Level),
            "times",
            14.7,
        ),
        (
            "soft: positive search by negative, threads: 1",
            soft(RankedPhase::Positive) / soft(RankedPhase::Negative),
            "times",
            1.4,
        ),
        (
            "clht: lines a positive search misses, threads: 1",
            read(TableKind::Clht).0,
            "lines",
            1.4,
        ),
        (
            "dash-eh by cceh: bytes a positive search reads, threads: 1",
            read(TableKind::DashEh).1 / read(TableKind::Cceh).1,
            "times",
            1.3,
        ),
        (
            "soft: bytes of far memory a positive search reads, threads: 1",
            read(TableKind::Soft).1,
            "B",
            0.0,
        ),
        (
            "clht: 80 % inserts, threads: 64",
            rate(TableKind::Clht, 64, RankedPhase::Mix(80)),
            "M/s",
            19.0,
        ),
        (
            "clht: 20 % inserts, threads: 64",
            rate(TableKind::Clht, 64, RankedPhase::Mix(20)),
            "M/s",
            32.0,
        ),
    ];
    let figure = |(name, value, unit, published): (&str, f64, &'static str, f64)| {
        let figure = Figure::modelled("orders", name, value).unit(unit);
        compare_with_study(options, figure, published, NEAR)
    };
    rows.map(figure).to_vec()
}

/// Compares the speedup of six DIMMs over one with the published ranking, if the report has all tables.
pub(super) fn scaling(report: &mut Report) {
    let name = format!("insert, DIMMs: {ALL_DIMMS}, times one");
    let times = |table: &str| {
        let mut figures = report.figures.iter();
        let found = figures.find(|figure| figure.experiment == table && figure.name == name);
        found.map(|figure| figure.value)
    };
    if !TABLES.iter().all(|table| times(table.name()).is_some()) {
        return;
    }
    let judged = score_pairs(SCALING_ORDER, |table| times(table).unwrap_or(f64::NAN));
    let name = format!("{name}, pairs of {} as published", judged.pairs);
    let misses = judged.misses.join(", ");
    report
        .notes
        .push(format!("{name}: {SCALING_ORDER}; not: {misses}"));
    let figure = Figure::modelled("dimms", name, f64::from(judged.hold));
    report.figures.push(figure);
}

/// Runs all tables and compares all rankings.
pub(super) fn orders(options: &IndexOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let found = side_by_side(options, watch)?;
    let ratios = ratios(options, &found);
    let mut report = Report {
        figures: found.figures,
        notes: vec![machine(options, ALL_DIMMS).label()],
        ..Report::default()
    };
    report.notes.extend(found.notes);
    report.figures.extend(ratios);
    let mut tell = |what: String, order: &str, judged: &PairScore| {
        let name = format!("{what}, pairs of {}", judged.pairs);
        let figure = Figure::modelled("orders", &*name, f64::from(judged.hold));
        report.figures.push(figure);
        report.notes.push(format!(
            "{name}: {order}; not: {}",
            judged.misses.join(", ")
        ));
    };
    let (mut pairs, mut hold) = (0, 0);
    for (threads, phases, order) in ORDERS {
        let judged = score_pairs(order, |table| {
            together(&found.rates, table, threads, phases)
        });
        let name = match phases {
            [phase] => phase.name(),
            _ => "mixes".into(),
        };
        tell(format!("{name}, threads: {threads}"), order, &judged);
        pairs += judged.pairs;
        hold += judged.hold;
    }
    let judged = score_pairs(SCALING_ORDER, |name| {
        let of = found.scaling.iter().find(|(table, _)| table.name() == name);
        of.map_or(f64::NAN, |(_, times)| *times)
    });
    let what = format!("insert, {ALL_DIMMS} DIMMs by one, threads: {MANY}");
    tell(what, SCALING_ORDER, &judged);
    let percent = 100.0 * f64::from(hold) / f64::from(pairs);
    let figure = Figure::modelled("orders", "pairs as published", percent).unit("%");
    report.figures.push(figure.at_least(BOUND_PERCENT));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ranking_is_compared_pair_by_pair() {
        let rate = |name: &str| match name {
            "a" => 4.0,
            "b" => 3.9,
            "c" => 3.0,
            _ => 3.5,
        };
        let judged = score_pairs("a ~ b > c > d", rate);
        assert_eq!((judged.pairs, judged.hold), (6, 5));
        assert_eq!(judged.misses, ["c > d (3.00 and 3.50)"]);
        let judged = score_pairs("b ~ c", rate);
        assert_eq!((judged.pairs, judged.hold), (1, 0));
    }
}
