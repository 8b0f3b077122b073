//! The engine on the model of far memory: media accesses, and the resulting throughput.
//!
//! Virtual workers, each with a session, run the contest's mix on a pool in memory. Every access becomes steps of
//! [`Machine`]. The mix has three reads for each write; three accesses in four go to the hottest 1 % of the keys; 43 %
//! of the writes replace a value. Each number of workers starts with a new pool that has a fixed identity, so that the
//! same seed gives the same figures.
//!
//! The other work of an operation is not modelled. It takes a given time, [`ModelledOptions::cpu_ns`].

use std::sync::Arc;
use std::time::Instant;

use farbank_kv::{CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::media::Mapped;
use farbank_pm::model::{self, Category, Hotspot, Machine, MachineOutcome, Modelled, Trace};
use farbank_pm::pool::PoolIdentity;
use farbank_pm::rng::Rng;
use farbank_pm::sim::brief;
use farbank_store::{Key, ReadView, Session, Store, Value};

use crate::figure::{
    Error, Figure, PROGRESS_EVERY, ProgressFn, Report, report_every, report_progress,
};
use crate::misses;
use crate::scale::DataScale;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct ModelledOptions {
    /// Number of keys loaded before counting starts, and number of operations of a run.
    pub keys: u64,
    /// Numbers of virtual workers, each for one run.
    pub workers: Vec<usize>,
    /// Number of DIMMs.
    pub dimms: u32,
    /// Seed of the model and of the mix.
    pub seed: u64,
    /// Nanoseconds of an operation without far memory: hashing, the index in DRAM, checksums, copying. This is an
    /// assumption. A durable set takes 135 to 190 ns on DRAM, of which one persist is 97 ns.
    pub cpu_ns: u32,
}

/// The mix has `READS` reads in this many operations.
const OPERATIONS: u64 = 4;
const READS: u64 = 3;
/// Writes in a thousand that replace a value.
const REPLACING: u64 = 431;
/// Number of hottest lines and pages that are reported.
const HOTTEST: usize = 5;

/// Result of a run with one number of workers.
struct WorkerRun {
    outcome: MachineOutcome,
    lines: Vec<(Hotspot, String)>,
    pages: Vec<(Hotspot, String)>,
    user_bytes: u64,
    label: String,
    scale: DataScale,
    seconds: f64,
}

/// Runs the mix with each number of workers.
///
/// # Errors
/// The store fails, memory cannot be mapped, or `watch` stopped the run.
pub fn run(options: &ModelledOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut report = Report::default();
    let (mut digest, mut rates) = (0, Vec::new());
    for (n, workers) in options.workers.iter().enumerate() {
        let run = run_one(options, *workers, watch)?;
        digest = farbank_pm::rng::Rng::new(digest ^ run.outcome.digest()).draw();
        rates.push((*workers as f64, run.outcome.throughput() / 1e6));
        modelled(&mut report, *workers, &run);
        if n + 1 == options.workers.len() {
            counted(&mut report, *workers, &run);
            by_category(&mut report, &run.outcome);
            hotspots(&mut report, &run);
            report.notes.push(format!(
                "all modelled figures: {}; {}",
                run.label,
                run.scale.note()
            ));
            report.notes.push(format!(
                "modelled with {} ns per operation without far memory, which is an assumption",
                options.cpu_ns
            ));
            let rate = run.outcome.steps as f64 / run.seconds / 1e6;
            report.notes.push(format!(
                "the model ran {:.2} million steps per second, engine included",
                rate
            ));
        }
    }
    let title = format!("the contest's mix on {} DIMMs", options.dimms);
    let axes = ("workers", "million operations a second");
    report.charts.line(&title, axes, "kv", rates);
    misses(&mut report, options, watch)?;
    report
        .notes
        .push(format!("digest of the runs: {digest:016x}"));
    Ok(report)
}

/// Generator of operations.
struct OperationMix {
    rng: Rng,
    keys: u64,
    next: u64,
    value: Vec<u8>,
}

/// An operation.
enum MixedOperation {
    Get(u64),
    Put(u64, usize),
}

impl OperationMix {
    fn new(seed: u64, keys: u64) -> OperationMix {
        OperationMix {
            rng: Rng::new(seed).fork(0x006d_6978),
            keys,
            next: keys,
            value: vec![7; 1024],
        }
    }

    /// Draws a value's length like the contest: 201 bytes on average.
    fn value_bytes(&mut self) -> usize {
        let (from, to) = match self.rng.below(100) {
            0..55 => (80, 129),
            55..80 => (129, 257),
            80..95 => (257, 513),
            _ => (513, 1025),
        };
        (from + self.rng.below(to - from)) as usize
    }

    fn old_key(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => self.rng.below(self.keys),
            // Hot keys are spread over the pool and are not only the first ones loaded.
            _ => self.rng.below((self.keys / 100).max(1)) * 97 % self.keys,
        }
    }

    fn draw(&mut self) -> MixedOperation {
        if self.rng.below(OPERATIONS) < READS {
            return MixedOperation::Get(self.old_key());
        }
        let key = if self.rng.below(1000) < REPLACING {
            self.old_key()
        } else {
            self.next += 1;
            self.next
        };
        MixedOperation::Put(key, self.value_bytes())
    }
}

/// Returns the size of a pool that holds the mix without being full.
fn pool_bytes(keys: u64) -> u64 {
    const RECORD_BYTES: u64 = 256;
    (keys * RECORD_BYTES * 2).next_multiple_of(2 << 20) + (32 << 20)
}

fn config() -> Config {
    Config {
        cleaning: CleaningMode::Inline,
        clock: Arc::new(|| 1_700_000_000_000),
        uptime: Arc::new(|| 0),
        ..Config::default()
    }
}

fn identity(seed: u64) -> PoolIdentity {
    let mut rng = Rng::new(seed).fork(0x6964);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&rng.draw().to_le_bytes());
    id[8..].copy_from_slice(&rng.draw().to_le_bytes());
    PoolIdentity {
        id,
        created_unix_s: 1_700_000_000,
    }
}

fn put(session: &mut dyn Session, key: u64, bytes: &[u8]) -> Result<(), Error> {
    let name = key.to_le_bytes();
    let value = Value {
        bytes,
        ..Value::default()
    };
    session.put(
        Key {
            db: 0,
            bytes: &name,
        },
        value,
    )?;
    let ticket = session.commit()?;
    session.wait(ticket)?;
    Ok(())
}

fn get(session: &mut dyn Session, key: u64, out: &mut Vec<u8>) -> Result<(), Error> {
    let name = key.to_le_bytes();
    out.clear();
    session.get(
        Key {
            db: 0,
            bytes: &name,
        },
        ReadView::Durable,
        out,
        &mut |_, _| true,
    )?;
    session.commit()?;
    Ok(())
}

/// Loads the keys. The seed determines the lengths of their values.
fn load(
    store: &dyn Store,
    options: &ModelledOptions,
    watch: ProgressFn<'_>,
) -> Result<OperationMix, Error> {
    let mut mix = OperationMix::new(options.seed, options.keys);
    let mut session = store.session();
    for key in 0..options.keys {
        report_every(watch, "loading", key, options.keys)?;
        let bytes = mix.value_bytes();
        put(&mut *session, key, &mix.value[..bytes])?;
    }
    Ok(mix)
}

fn run_one(
    options: &ModelledOptions,
    workers: usize,
    watch: ProgressFn<'_>,
) -> Result<WorkerRun, Error> {
    let bytes = pool_bytes(options.keys);
    let medium = Modelled::new(Mapped::anonymous(bytes).map_err(Error::doing("map memory"))?);
    let trace = medium.trace();
    trace.record(false);
    let segment_bytes = segment_bytes_for(bytes);
    let store = Kv::create_as(medium, segment_bytes, identity(options.seed), config())?;
    let mut mix = load(&store, options, watch)?;
    let before = store.stats().writes.user_bytes;
    let mut machine = Machine::new(model::MachineConfig {
        seed: options.seed,
        ..model::MachineConfig::study(options.dimms)
    });
    let mut sessions: Vec<_> = (0..workers).map(|_| store.session()).collect();
    trace.record(true);
    let started = Instant::now();
    let what = format!("{workers} workers");
    let (mut left, mut failed, mut out) = (options.keys, None, Vec::new());
    machine.run(workers, |worker, steps| {
        if left == 0 || failed.is_some() {
            return false;
        }
        left -= 1;
        trace.compute(options.cpu_ns);
        let spending = Category::KeyValue.scope();
        let session = &mut *sessions[worker];
        let done = match mix.draw() {
            MixedOperation::Get(key) => get(session, key, &mut out),
            MixedOperation::Put(key, bytes) => put(session, key, &mix.value[..bytes]),
        };
        drop(spending);
        let on = match left.is_multiple_of(PROGRESS_EVERY) {
            true => report_progress(watch, &what, options.keys - left, options.keys),
            false => Ok(()),
        };
        failed = done.and(on).err();
        trace.take(steps);
        true
    });
    let seconds = started.elapsed().as_secs_f64();
    match failed {
        Some(error) => Err(error),
        None => Ok(WorkerRun {
            lines: named(&trace, machine.hottest_lines(HOTTEST)),
            pages: named(&trace, machine.hottest_pages(HOTTEST)),
            user_bytes: store.stats().writes.user_bytes - before,
            label: machine.config().label(),
            scale: DataScale {
                data_bytes: store.stats().pool.live_bytes,
                cache_bytes: machine.config().cache_bytes,
            },
            outcome: machine.outcome(),
            seconds,
        }),
    }
}

/// Pairs each hotspot with the source line that causes most of its writes.
fn named(trace: &Trace, spots: Vec<Hotspot>) -> Vec<(Hotspot, String)> {
    let name = |spot: &Hotspot| {
        trace
            .place(spot.place)
            .map_or("an unknown source line".into(), brief)
    };
    spots.into_iter().map(|spot| (spot, name(&spot))).collect()
}

/// Returns a figure's name.
fn of(workers: usize, name: &str) -> String {
    let s = if workers == 1 { "" } else { "s" };
    format!("{workers} worker{s}: {name}")
}

fn modelled(report: &mut Report, workers: usize, run: &WorkerRun) {
    let figure = |name: &str, value| Figure::modelled("model", of(workers, name), value);
    let outcome = &run.outcome;
    report.figures.extend([
        figure("throughput", outcome.throughput() / 1e6).unit("M operations/s"),
        figure("p50", f64::from(outcome.quantile_ns(0.50))).unit("ns"),
        figure("p99", f64::from(outcome.quantile_ns(0.99))).unit("ns"),
        figure("write efficiency", outcome.total().write_efficiency()),
    ]);
}

/// Reports counts that depend on virtual time hardly or not at all. Only the combining of writes depends on their
/// order.
fn counted(report: &mut Report, workers: usize, run: &WorkerRun) {
    let outcome = &run.outcome;
    let total = outcome.total();
    let a_operation = |count: u64| count as f64 / outcome.operations as f64;
    let counted =
        |name: &str, count| Figure::counted("model", name, a_operation(count)).unit("an operation");
    report.figures.extend([
        counted("lines loaded", total.loads),
        counted("lines stored through the cache", total.stores),
        counted("lines flushed", total.flushes),
        counted("of them clean", total.flushes_clean),
        counted("of them again before a fence", total.flushes_again),
        counted("lines stored around the cache", total.around),
        counted("fences", total.fences),
        counted("of them idle", total.fences_idle),
    ]);
    let name = |name: &str| of(workers, name);
    let modelled = |what: &str, count| {
        Figure::modelled("model", name(what), a_operation(count)).unit("an operation")
    };
    let wear = outcome.wear;
    report.figures.extend([
        modelled("LLC misses", total.cache_misses),
        modelled("lines written", total.lines_written),
        modelled(
            "XPLines read",
            total.media_reads + total.media_reads_to_write,
        ),
        modelled("XPLines written", total.media_writes),
        modelled("XPLines written partially", total.partial),
        Figure::modelled(
            "model",
            name("write amplification"),
            total.write_amplification(run.user_bytes),
        ),
        Figure::modelled(
            "model",
            name("busiest DIMM, writes by the mean"),
            outcome.write_imbalance(),
        ),
        Figure::modelled("model", name("XPLine worn most"), f64::from(wear.max)).unit("writes"),
        Figure::modelled("model", name("XPLines worn, mean"), wear.mean).unit("writes"),
        Figure::modelled("model", name("until that one is worn out"), wear.years)
            .unit("years of this"),
    ]);
}

fn by_category(report: &mut Report, outcome: &MachineOutcome) {
    for category in Category::ALL {
        let counts = outcome.counts[category];
        report.notes.push(format!(
            "{:>9}: {} lines loaded, {} flushed, {} around the cache, {} fences; {} XPLines read, {} \
             written, write efficiency {:.2}",
            category.name(),
            counts.loads,
            counts.flushes,
            counts.around,
            counts.fences,
            counts.media_reads + counts.media_reads_to_write,
            counts.media_writes,
            counts.write_efficiency(),
        ));
    }
    for (n, dimm) in outcome.dimms.iter().enumerate() {
        let share = dimm.busy_ps as f64 / outcome.elapsed_ps as f64 * 100.0;
        let busiest = dimm
            .series
            .iter()
            .map(|[_, writes]| *writes)
            .max()
            .unwrap_or_default();
        report.notes.push(format!(
            "DIMM {n}: {} XPLines read, {} written, at most {busiest} in 15 ms; busy {share:.0} %",
            dimm.reads, dimm.writes
        ));
    }
}

fn hotspots(report: &mut Report, run: &WorkerRun) {
    for (what, spots) in [("line", &run.lines), ("page", &run.pages)] {
        for (spot, place) in spots {
            report.notes.push(format!(
                "hot {what} {:#x}: {} writes, most of them {} at {place}",
                spot.at.0,
                spot.writes,
                spot.category.name()
            ));
        }
    }
}

/// Measures cache misses of the same operations without the model, in one thread, with the processor's counter.
fn misses(
    report: &mut Report,
    options: &ModelledOptions,
    watch: ProgressFn<'_>,
) -> Result<(), Error> {
    let mut counter = match misses::MissCounter::new() {
        Ok(counter) => counter,
        Err(why) => {
            report.notes.push(format!(
                "LLC misses counted by the processor: not available here (perf_event_open: {why})"
            ));
            return Ok(());
        }
    };
    let bytes = pool_bytes(options.keys);
    let medium = Mapped::anonymous(bytes).map_err(Error::doing("map memory"))?;
    let store = Kv::create_as(
        medium,
        segment_bytes_for(bytes),
        identity(options.seed),
        config(),
    )?;
    let mut mix = load(&store, options, watch)?;
    let mut session = store.session();
    let mut out = Vec::new();
    counter.start()?;
    for _ in 0..options.keys {
        match mix.draw() {
            MixedOperation::Get(key) => get(&mut *session, key, &mut out)?,
            MixedOperation::Put(key, bytes) => put(&mut *session, key, &mix.value[..bytes])?,
        }
    }
    let found = counter.stop()? as f64 / options.keys as f64;
    let name = "LLC misses on this machine's DRAM, 1 thread, index included";
    report
        .figures
        .push(Figure::measured("model", name, found).unit("an operation"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ModelledOptions {
        ModelledOptions {
            keys: 4000,
            workers: vec![1, 4],
            dimms: 6,
            seed: 3,
            cpu_ns: 100,
        }
    }

    fn figure(report: &Report, name: &str) -> f64 {
        let found = report.figures.iter().find(|figure| figure.name == name);
        found
            .unwrap_or_else(|| panic!("{name}: {:?}", report.figures))
            .value
    }

    #[test]
    fn the_same_seed_gives_the_same_figures_and_four_workers_do_more_than_one() {
        let report = run(&options(), &mut |_| true).unwrap();
        let again = run(&options(), &mut |_| true).unwrap();
        let modelled = |report: &Report| {
            let by_clock = |figure: &&Figure| figure.kind != crate::figure::Kind::Measured;
            report
                .figures
                .iter()
                .filter(by_clock)
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(modelled(&report), modelled(&again));
        let digest = |report: &Report| {
            report
                .notes
                .iter()
                .find(|n| n.starts_with("digest"))
                .cloned()
        };
        assert!(digest(&report).is_some());
        assert_eq!(digest(&report), digest(&again));
        let [one, four] = [1, 4].map(|n| figure(&report, &of(n, "throughput")));
        assert!(four > 2.0 * one, "{one}, {four}");
    }

    #[test]
    fn one_set_in_four_operations_gives_one_fence_in_four_operations() {
        let report = run(&options(), &mut |_| true).unwrap();
        let fences = figure(&report, "fences");
        assert!((0.2..0.3).contains(&fences), "{fences}");
        assert!(figure(&report, "lines loaded") > 1.0);
        assert!(
            report
                .notes
                .iter()
                .any(|note| note.contains(" at kv/session_log.rs:")),
            "{:?}",
            report.notes
        );
    }
}
