//! Experiments on the engine alone: write amplification, the cost of a set, and the time to reopen a pool.
//!
//! | experiment    | does                                             | and measures                         |
//! |---------------|--------------------------------------------------|--------------------------------------|
//! | amplification | updates a nearly full pool for eight turns       | total writes per user write          |
//! |               | changes every value's size at constant fullness  | refused writes                       |
//! | load          | sets new keys, 1 and 16 per commit               | fences, reads, index bytes, slowest  |
//! | reopen        | reopens a pool after a kill and after a close    | time to open; see also `reopen.rs`   |
//! | full          | writes to a full pool; see `full.rs`             | slowest refused and accepted writes  |
//!
//! The first three run in one thread, and the cleaner runs only when a session finds no room. So the counts do not
//! depend on scheduling. Only the number of keys is checked here; tests and `farbank check` verify the data.

mod amplification;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farbank_check::explore::computed_by_thread;
use farbank_kv::{AnyKv, CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::grow_table::GrowTable;
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path, open_path};
use farbank_store::{Error as Refusal, Key, Session, Store, Value};

use crate::counted::{Counted, Meter};
use crate::figure::{
    Error, Figure, PROGRESS_EVERY, ProgressFn, Report, Step, median, report_progress,
};
use crate::stat;
use crate::temp::TempFile;

/// Size of a value in the load and reopen experiments, in bytes.
pub(crate) const LOAD_VALUE_BYTES: usize = 100;
/// Size of its record in bytes: header, an 8-byte key, the value.
pub(crate) const LOAD_RECORD_BYTES: u64 = 144;
/// How many times a pool is reopened after a kill, and after a close.
pub(crate) const OPENS: u64 = 5;
/// Smallest pool in bytes for [`KvExperiment::Amplification`]. In it the largest values still fit into the log.
pub const POOL_BYTES_MIN: u64 = 16 << 20;

/// Experiment on the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvExperiment {
    /// Bytes written to the medium per byte that users write, and refused writes.
    Amplification,
    /// Cost of setting new keys.
    Load,
    /// Time to reopen a pool.
    Reopen,
    /// Time of writes and reads while the pool is full.
    Full,
    /// Every other experiment, one after another.
    All,
}

/// Pattern of the updates of [`KvExperiment::Amplification`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdatePattern {
    /// Every key equally often.
    Uniform,
    /// Nine of ten updates change one tenth of the keys.
    Hot,
    /// Updates change the sizes of values.
    Sizes,
}

impl UpdatePattern {
    /// All patterns.
    pub const ALL: [UpdatePattern; 3] = [
        UpdatePattern::Uniform,
        UpdatePattern::Hot,
        UpdatePattern::Sizes,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            UpdatePattern::Uniform => "uniform",
            UpdatePattern::Hot => "hot",
            UpdatePattern::Sizes => "sizes",
        }
    }

    /// Returns the description on the command line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            UpdatePattern::Uniform => "Every key equally often",
            UpdatePattern::Hot => "Nine of ten updates go to one of ten keys",
            UpdatePattern::Sizes => "Updates change the size of values",
        }
    }
}

/// Medium of the pools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolPlace {
    /// Memory of this process; for [`KvExperiment::Reopen`] a file on tmpfs.
    Dram,
    /// A file, created and removed. It must not exist yet.
    File(PathBuf),
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct KvOptions {
    /// Experiment to run.
    pub experiment: KvExperiment,
    /// Medium of the pools.
    pub place: PoolPlace,
    /// Number of keys in [`KvExperiment::Load`] and [`KvExperiment::Reopen`].
    pub keys: u64,
    /// Size of the pool of [`KvExperiment::Amplification`], in bytes.
    pub pool_bytes: u64,
    /// Patterns that [`KvExperiment::Amplification`] runs, in any order.
    pub updates: Vec<UpdatePattern>,
}

/// Runs the experiment.
///
/// # Errors
/// A pool cannot be created, the store fails or holds wrong data, or `watch` stopped the run.
pub fn run(options: &KvOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut report = Report::default();
    options.experiment.run(options, &mut report, watch)?;
    Ok(report)
}

impl KvExperiment {
    fn run(
        self,
        options: &KvOptions,
        report: &mut Report,
        watch: ProgressFn<'_>,
    ) -> Result<(), Error> {
        match self {
            KvExperiment::Amplification => amplification::run(options, report, watch),
            KvExperiment::Load => load(options, report, watch),
            KvExperiment::Reopen => reopen(options, report, watch),
            KvExperiment::Full => crate::full::run(report, watch),
            KvExperiment::All => PARTS
                .into_iter()
                .try_for_each(|part| part.run(options, report, watch)),
        }
    }
}

/// Experiments of [`KvExperiment::All`].
const PARTS: [KvExperiment; 4] = [
    KvExperiment::Amplification,
    KvExperiment::Load,
    KvExperiment::Reopen,
    KvExperiment::Full,
];

fn config() -> Config {
    Config {
        cleaning: CleaningMode::Inline,
        ..Config::default()
    }
}

impl PoolPlace {
    /// Creates a medium with all pages present. Also returns the guard that removes its file.
    ///
    /// # Errors
    /// The medium cannot be created, or `watch` stopped the run.
    pub fn make(
        &self,
        bytes: u64,
        watch: ProgressFn<'_>,
    ) -> Result<(Option<TempFile>, AnyMedium), Error> {
        report_progress(watch, "making the pool", 0, bytes)?;
        let (file, medium) = match self {
            PoolPlace::Dram => {
                let medium = Mapped::anonymous(bytes).map_err(Error::doing("map memory"))?;
                (None, AnyMedium::Mapped(medium))
            }
            PoolPlace::File(path) => {
                let (file, medium) = make_file(path, bytes, watch)?;
                (Some(file), medium)
            }
        };
        medium.prefault(&mut |_, _| {});
        report_progress(watch, "making the pool", bytes, bytes)?;
        Ok((file, medium))
    }
}

fn make_file(
    path: &Path,
    bytes: u64,
    watch: ProgressFn<'_>,
) -> Result<(TempFile, AnyMedium), Error> {
    // Checked before the path is touched: a device exists too, and must not be removed.
    if path.exists() {
        let path = path.display();
        return Err(Error::Failed(format!(
            "{path} exists already; name a path where a file can be created"
        )));
    }
    let mut go_on = true;
    let medium = create_path(path, bytes, &OpenOptions::default(), &mut |done, all| {
        go_on &= watch(Step {
            what: "making the pool",
            done,
            all,
        });
    })?;
    let file = TempFile::new(path);
    if go_on {
        Ok((file, medium))
    } else {
        Err(Error::Stopped)
    }
}

/// Creates an empty store on `medium`.
fn store_on(medium: AnyMedium) -> Result<Box<dyn Store>, Error> {
    store_with(medium, config())
}

/// Creates an empty store on `medium` with `config`.
pub(crate) fn store_with(medium: AnyMedium, config: Config) -> Result<Box<dyn Store>, Error> {
    let segment_bytes = segment_bytes_for(medium.bytes());
    Ok(AnyKv::create(medium, segment_bytes, config)?.into_store())
}

/// Creates an empty store and returns the meter that counts its medium's operations.
fn counted_store_on(medium: AnyMedium) -> Result<(Box<dyn Store>, Meter), Error> {
    let segment_bytes = segment_bytes_for(medium.bytes());
    Ok(match medium {
        AnyMedium::Mapped(medium) => {
            let medium = Counted::new(medium);
            let reads = medium.meter();
            (
                Box::new(Kv::create(medium, segment_bytes, config())?),
                reads,
            )
        }
        AnyMedium::File(medium) => {
            let medium = Counted::new(medium);
            let reads = medium.meter();
            (
                Box::new(Kv::create(medium, segment_bytes, config())?),
                reads,
            )
        }
    })
}

pub(crate) fn put(session: &mut dyn Session, key: u64, bytes: &[u8]) -> Result<(), Refusal> {
    let name = key.to_le_bytes();
    let value = Value {
        bytes,
        ..Value::default()
    };
    session
        .put(
            Key {
                db: 0,
                bytes: &name,
            },
            value,
        )
        .map(|_| ())
}

// ---------------------------------------------------------------------------------------------
// Load

/// Returns the size of a pool that holds `keys` keys without any cleaning.
fn pool_bytes_for(keys: u64) -> u64 {
    keys * LOAD_RECORD_BYTES / 3 * 4 + (32 << 20)
}

/// Longest processor time that a set may take because the index grows, in microseconds.
const SLOWEST_US_MAX: f64 = 1000.0;
/// Numbers of keys from which on the index size is checked. With fewer keys its first groups are mostly empty.
const INDEX_FROM_KEYS: [(u64, &str); 2] = [(100_000, "100 thousand"), (1_000_000, "a million")];

/// Cost of setting new keys.
struct LoadCost {
    fences_a_set: f64,
    reads_a_set: f64,
    /// Largest index size from 100,000 keys on, and from 1,000,000 keys on.
    index_bytes_a_key: [f64; 2],
    slowest: SlowestSet,
    nanoseconds_a_set: f64,
}

fn load(options: &KvOptions, report: &mut Report, watch: ProgressFn<'_>) -> Result<(), Error> {
    let counted = |name: String, value| Figure::counted("load", name, value);
    let measured = |name: String, value| Figure::measured("load", name, value);
    for (batch, how, fences) in [(1, "alone", 1.0), (16, "16 a commit", 1.0 / 15.0)] {
        let (_file, medium) = options.place.make(pool_bytes_for(options.keys), watch)?;
        let (store, reads) = counted_store_on(medium)?;
        let what = format!("new keys, {how}");
        let found = load_new(&*store, &reads, options.keys, batch, &mut |done, all| {
            report_progress(watch, &what, done, all)
        })?;
        report.figures.extend([
            counted(format!("{how}: fences"), found.fences_a_set)
                .unit("a set")
                .at_most(fences),
            counted(format!("{how}: far-memory reads"), found.reads_a_set)
                .unit("a set")
                .at_most(0.01),
        ]);
        for ((from, what), bytes) in INDEX_FROM_KEYS.into_iter().zip(found.index_bytes_a_key) {
            if options.keys > from {
                let name = format!("{how}: index at its largest, from {what} keys");
                let figure = counted(name, bytes).unit("bytes a key").at_most(12.0);
                report.figures.push(figure);
            }
        }
        if batch > 1 {
            let figure = measured(format!("{how}: time"), found.nanoseconds_a_set);
            report.figures.push(figure.unit("ns a set"));
            continue;
        }
        let touch = first_touch_us();
        let SlowestSet {
            cpu_us,
            wall_us,
            key,
            faults,
        } = found.slowest;
        let slowest = measured(format!("{how}: slowest, CPU time"), cpu_us);
        let slowest = slowest.unit("us").at_most(SLOWEST_US_MAX);
        if !slowest.holds() {
            report.notes.push(format!(
                "the slowest set, of key {key}, took {cpu_us:.0} us of CPU time, with {faults} page \
                 faults since the last sample: a handful is the first touch of fresh \
                 index pages (up to {touch:.0} us here, see the figure), hundreds are caused by the growth itself"
            ));
        }
        report.figures.extend([
            slowest,
            measured(format!("{how}: slowest, wall time"), wall_us).unit("us"),
            measured("slowest first touch of a page of the index".into(), touch).unit("us"),
        ]);
    }
    Ok(())
}

/// Sets `keys` new keys, `batch` per commit, and waits for each commit.
fn load_new(
    store: &dyn Store,
    reads: &Meter,
    keys: u64,
    batch: u64,
    look: &mut dyn FnMut(u64, u64) -> Result<(), Error>,
) -> Result<LoadCost, Error> {
    let value = [7; LOAD_VALUE_BYTES];
    let mut session = store.session();
    let (fences, reads_before) = (store.stats().persistence.fences, reads.total().reads);
    let mut slowest = SlowestSet::default();
    let mut faults_before = thread_faults();
    let mut index_bytes_a_key = [0.0_f64; 2];
    let started = Instant::now();
    for first in (0..keys).step_by(batch as usize) {
        let end = (first + batch).min(keys);
        // Reading a thread's clock is a system call, so it is left out where the total time is measured.
        let before = (batch == 1).then(|| (computed_by_thread(), Instant::now()));
        for key in first..end {
            put(&mut *session, key, &value)?;
        }
        let ticket = session.commit()?;
        session.wait(ticket)?;
        if let Some((cpu, wall)) = before {
            slowest.wall_us = slowest.wall_us.max(wall.elapsed().as_secs_f64() * 1e6);
            let cpu_us = computed_by_thread().saturating_sub(cpu).as_secs_f64() * 1e6;
            if cpu_us > slowest.cpu_us {
                let faults = if cpu_us > SLOWEST_US_MAX {
                    thread_faults() - faults_before
                } else {
                    0
                };
                let wall_us = slowest.wall_us;
                slowest = SlowestSet {
                    cpu_us,
                    wall_us,
                    key: first,
                    faults,
                };
            }
        }
        if first % PROGRESS_EVERY < batch {
            look(first, keys)?;
            faults_before = thread_faults();
            let now = store.stats().index_bytes as f64 / end as f64;
            for ((from, _), worst) in INDEX_FROM_KEYS.iter().zip(&mut index_bytes_a_key) {
                if end >= *from {
                    *worst = worst.max(now);
                }
            }
        }
    }
    let elapsed = started.elapsed();
    let a_set = |count: u64| count as f64 / keys as f64;
    Ok(LoadCost {
        fences_a_set: a_set(store.stats().persistence.fences - fences),
        reads_a_set: a_set(reads.total().reads - reads_before),
        index_bytes_a_key,
        slowest,
        nanoseconds_a_set: elapsed.as_nanos() as f64 / keys as f64,
    })
}

/// The set with the most CPU time.
#[derive(Default)]
struct SlowestSet {
    cpu_us: f64,
    /// Longest wall-clock time of any set, possibly of another set.
    wall_us: f64,
    key: u64,
    /// Page faults since the last sample, if this set took longer than its bound.
    faults: u64,
}

/// Returns the page faults of this thread so far.
fn thread_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    stat::faults(&stat).unwrap_or_default()
}

/// Returns the longest time that the kernel takes for the first touch of a page of a table like the index's, in
/// microseconds. The kernel allocates and clears the page, 2 MiB at a time for huge pages.
fn first_touch_us() -> f64 {
    const BYTES: usize = 64 << 20;
    const PAGE_BYTES: usize = 4096;
    let table: GrowTable<AtomicU64> = GrowTable::new(BYTES / size_of::<u64>());
    table.reserve(BYTES / size_of::<u64>());
    let touches = (0..BYTES / PAGE_BYTES).map(|page| {
        let before = computed_by_thread();
        table
            .get(page * (PAGE_BYTES / size_of::<u64>()))
            .store(1, Ordering::Relaxed);
        computed_by_thread().saturating_sub(before)
    });
    touches.max().unwrap_or_default().as_secs_f64() * 1e6
}

// ---------------------------------------------------------------------------------------------
// Reopen

fn reopen(options: &KvOptions, report: &mut Report, watch: ProgressFn<'_>) -> Result<(), Error> {
    let path = match &options.place {
        PoolPlace::Dram => TempFile::on_tmpfs("kv")?,
        PoolPlace::File(path) => path.clone(),
    };
    let (file, medium) = PoolPlace::File(path.clone()).make(pool_bytes_for(options.keys), watch)?;
    // As in a server: the background thread writes checkpoints.
    let mut store = store_with(medium, Config::default())?;
    fill(&*store, options.keys, watch)?;
    for (clean, how, bound) in [
        (false, "after a kill", 500.0),
        (true, "after a close", 100.0),
    ] {
        let mut times = Vec::new();
        for open in 0..OPENS {
            report_progress(watch, &format!("opening {how}"), open, OPENS)?;
            if clean {
                store.close()?;
            } else {
                drop(store);
            }
            let started = Instant::now();
            store = open_again(&path)?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
            let opened = store.opened();
            if opened.keys != options.keys || opened.clean != clean {
                return Err(Error::Failed(format!(
                    "the reopened store differs from the state {how}: {opened:?}"
                )));
            }
        }
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let figure = |name, value| Figure::measured("reopen", name, value).unit("ms");
        report.figures.extend([
            figure(format!("{how}: median"), median(&times))
                .spread(&times)
                .at_most(bound),
            figure(format!("{how}: best"), best),
        ]);
    }
    drop((store, file));
    crate::reopen::run(options.keys, &path, report, watch)
}

pub(crate) fn fill(store: &dyn Store, keys: u64, watch: ProgressFn<'_>) -> Result<(), Error> {
    const BATCH: u64 = 64;
    let value = [7; LOAD_VALUE_BYTES];
    let mut session = store.session();
    for first in (0..keys).step_by(BATCH as usize) {
        for key in first..(first + BATCH).min(keys) {
            put(&mut *session, key, &value)?;
        }
        let ticket = session.commit()?;
        session.wait(ticket)?;
        if first % PROGRESS_EVERY < BATCH {
            report_progress(watch, "filling the pool", first, keys)?;
        }
    }
    Ok(())
}

/// Maps the file at `path` again and opens the store.
fn open_again(path: &Path) -> Result<Box<dyn Store>, Error> {
    let medium = open_path(path, &OpenOptions::default())?;
    Ok(AnyKv::open(medium, Config::default())?.into_store())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny(experiment: KvExperiment, place: PoolPlace) -> KvOptions {
        KvOptions {
            experiment,
            place,
            keys: 20_000,
            pool_bytes: POOL_BYTES_MIN,
            updates: UpdatePattern::ALL.to_vec(),
        }
    }

    #[test]
    #[ignore = "the suite `long-tests` runs it"]
    fn no_write_is_refused_while_value_sizes_change() {
        let options = tiny(KvExperiment::Amplification, PoolPlace::Dram);
        let report = run(&options, &mut |_| true).unwrap();
        let names: Vec<_> = report.figures.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names.len(), 5, "{names:?}");
        assert_eq!(report.figures[4].value, 0.0, "{:?}", report.figures[4]);
        assert!(
            report.figures[..4].iter().all(|f| f.value > 1.0),
            "{:?}",
            report.figures
        );
    }

    #[test]
    fn a_stopped_run_leaves_no_file_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let options = tiny(KvExperiment::Load, PoolPlace::File(path.clone()));
        let stopped = run(&options, &mut |step| step.what == "making the pool");
        assert!(matches!(stopped, Err(Error::Stopped)));
        assert!(!path.exists());
    }

    #[test]
    fn an_existing_file_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        std::fs::write(&path, "mine").unwrap();
        let options = tiny(KvExperiment::Load, PoolPlace::File(path.clone()));
        assert!(run(&options, &mut |_| true).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
