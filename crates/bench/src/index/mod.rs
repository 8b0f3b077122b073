//! Comparison of the persistent hash indexes: throughput, latency, load factor and far-memory accesses.
//!
//! Tables run on anonymous memory with real flushes and fences. All threads run each phase together, each with a share
//! of the keys. The published figures are from the original implementations as plug-ins of the study's benchmark, with
//! 65,536 initial slots, on an idle machine with two processors.

mod array;
mod bytes;
mod contender;
pub mod keys;
mod model;
mod phase;
mod pibench;
mod published;
mod rankings;
mod run;
mod scale;
mod study;

use std::path::PathBuf;

use farbank_index::hash::Hashing;
use farbank_index::registry::TablePreset;

use crate::figure::{Error, ProgressFn, Report, Step};
pub use contender::IndexContender;
pub use farbank_pibench::BYTES_MAX;
use keys::Distribution;

/// Experiment on the indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexExperiment {
    /// Rates and times of inserts, positive and negative searches, and deletes.
    Throughput,
    /// Times of the slowest operations, up to the slowest in a hundred thousand.
    Latency,
    /// One mix of operations, on ids drawn like PiBench's.
    Mix,
    /// Flushes, fences and bytes per operation.
    Counts,
    /// Load factor and memory utilisation while a table grows.
    LoadFactor,
    /// Times of structure changes, and their share of the run.
    Resize,
    /// Milliseconds from an open after a kill to the first answer, at several sizes.
    Recovery,
    /// Bytes written and read per operation on the model, by purpose.
    Bytes,
    /// Throughput on one to six DIMMs of the model.
    Dimms,
    /// Throughput on the model, for workers on the memory's socket and on the other socket.
    Numa,
    /// Ranking of the tables by throughput on the model, compared with the published one. Runs the study's tables
    /// only.
    Orders,
    /// Writes of entries at random places of an array on the model, in several ways. Uses no table.
    Array,
}

/// Shares of operations in a mix. They add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixRatios {
    /// Lookups.
    pub read: f64,
    /// Inserts of new keys.
    pub insert: f64,
    /// Updates of existing keys.
    pub update: f64,
    /// Removals.
    pub remove: f64,
    /// Scans, which only plug-ins support.
    pub scan: f64,
}

/// Sizes of keys and values. Tables support only keys and values of 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValueBytes {
    /// Prefix of every key.
    pub prefix: String,
    /// Bytes of a key after the prefix.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// Experiment to run.
    pub experiment: IndexExperiment,
    /// Indexes to measure, one after another. Experiments other than throughput, latency and mix support tables only.
    pub contenders: Vec<IndexContender>,
    /// Configuration of the tables.
    pub preset: TablePreset,
    /// Hash function of the tables. Published figures can be reproduced only with the published one.
    pub hashing: Hashing,
    /// Whether lines are flushed and fenced. If not, nothing is durable.
    pub durable: bool,
    /// Number of keys loaded.
    pub records: u64,
    /// Number of operations of a mix.
    pub operations: u64,
    /// For a mix: its duration in seconds, instead of a number of operations.
    pub seconds: Option<u32>,
    /// Sizes of keys and values, in throughput, latency and mix.
    pub bytes: KeyValueBytes,
    /// Number of threads; on the model, of virtual workers.
    pub threads: u32,
    /// Initial number of slots of a table.
    pub slots: u64,
    /// For growth: whether keys are drawn with replacement, as in the study.
    pub with_replacement: bool,
    /// For a mix: shares of operations.
    pub ratios: MixRatios,
    /// For a mix: largest number of keys that a scan returns.
    pub scan_size: u32,
    /// For a mix: distribution of ids.
    pub distribution: Distribution,
    /// Seed. A thread's seed is this times its number, counted from 1.
    pub seed: u64,
    /// For a mix: one of this many operations is timed; 0 for none.
    pub timed_one_in: u64,
    /// For a mix: interval at which completed operations are sampled.
    pub sampling_ms: u32,
    /// For a mix: whether to skip loading the keys.
    pub skip_load: bool,
    /// Path of the pool that a plug-in is given; empty for the plug-in's default.
    pub pool: PathBuf,
    /// Size in bytes of the pool that a plug-in is given; 0 for the plug-in's default.
    pub pool_bytes: u64,
    /// On the model: nanoseconds of an operation without far memory.
    pub cpu_ns: u32,
    /// On the model: size of the processor's cache in bytes. `None` scales the study's cache down with the operations.
    pub cache_bytes: Option<u64>,
}

/// Runs an experiment. `watch` returns whether to continue.
///
/// # Errors
/// An index fails or does not support the experiment, memory cannot be mapped, or `watch` stopped the run.
pub fn run(options: &IndexOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    if options.experiment == IndexExperiment::Array {
        return array::array(options, watch);
    }
    if options.experiment == IndexExperiment::Orders {
        return rankings::orders(options, watch);
    }
    let (mut report, mut beside) = (Report::default(), Vec::new());
    let mut parts = bytes::Parts::new();
    for contender in &options.contenders {
        let watch: ProgressFn<'_> = &mut |step: Step<'_>| {
            let what = format!("{}: {}", contender.name(), step.what);
            watch(Step {
                what: &what,
                ..step
            })
        };
        let table = || match contender {
            IndexContender::Table(table) => Ok(*table),
            other => Err(Error::Failed(format!(
                "{}: only tables support this experiment",
                other.name()
            ))),
        };
        let figures = match options.experiment {
            IndexExperiment::Throughput => run::throughput(options, contender, &mut beside, watch)?,
            IndexExperiment::Latency => {
                run::latency(options, contender, &mut report.charts, watch)?
            }
            IndexExperiment::Mix => run::mix(options, contender, watch)?,
            IndexExperiment::Counts => study::counts(options, table()?, watch)?,
            IndexExperiment::LoadFactor => {
                study::load_factor(options, table()?, &mut report.charts, watch)?
            }
            IndexExperiment::Resize => study::resize(options, table()?, watch)?,
            IndexExperiment::Recovery => study::recovery(options, table()?, watch)?,
            IndexExperiment::Bytes => {
                bytes::table(options, table()?, &mut parts, &mut report, watch)?;
                Vec::new()
            }
            IndexExperiment::Dimms => model::dimms(options, table()?, &mut report, watch)?,
            IndexExperiment::Numa => model::numa(options, table()?, &mut report, watch)?,
            IndexExperiment::Orders | IndexExperiment::Array => {
                unreachable!("these experiments are not run for each contender")
            }
        };
        report.figures.extend(figures);
    }
    bytes::together(options, &parts, &mut report);
    if matches!(
        options.experiment,
        IndexExperiment::Bytes | IndexExperiment::Dimms | IndexExperiment::Numa
    ) {
        report
            .notes
            .push(scale::machine(options, model::ALL_DIMMS).label());
    }
    if options.experiment == IndexExperiment::Dimms {
        rankings::scaling(&mut report);
    }
    let compares = matches!(
        options.experiment,
        IndexExperiment::Bytes
            | IndexExperiment::Dimms
            | IndexExperiment::Numa
            | IndexExperiment::LoadFactor
            | IndexExperiment::Resize
            | IndexExperiment::Orders
    );
    if compares && options.preset != TablePreset::Published {
        let note = "the study's values are compared only with --preset published, because other presets are not its tables";
        report.notes.push(note.into());
    }
    if !options.durable {
        report
            .notes
            .push("no line was flushed or fenced, so nothing was durable".into());
    }
    Ok(report)
}

/// Runs a mix on one contender and returns PiBench's output for it.
pub fn pibench(options: &IndexOptions) -> Result<String, Error> {
    match options.contenders.as_slice() {
        [contender] => pibench::run(options, contender),
        several => Err(Error::Failed(format!(
            "PiBench's output describes one index, but {} were given",
            several.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use farbank_index::registry::TableKind;

    use super::*;
    use crate::figure::Figure;
    use crate::registry::ExperimentKey as _;

    pub(super) fn options(experiment: IndexExperiment) -> IndexOptions {
        IndexOptions {
            experiment,
            contenders: TableKind::ALL.map(IndexContender::Table).to_vec(),
            preset: TablePreset::Farbank,
            hashing: Hashing::Published,
            durable: true,
            records: 3_000,
            operations: 3_000,
            seconds: None,
            bytes: KeyValueBytes {
                prefix: String::new(),
                key: 8,
                value: 8,
            },
            threads: 2,
            slots: 1_000,
            with_replacement: false,
            ratios: MixRatios {
                read: 0.4,
                insert: 0.3,
                update: 0.2,
                remove: 0.1,
                scan: 0.0,
            },
            scan_size: 100,
            distribution: Distribution::Uniform,
            seed: 1729,
            timed_one_in: 10,
            sampling_ms: 1,
            skip_load: false,
            pool: PathBuf::new(),
            pool_bytes: 0,
            cpu_ns: 50,
            cache_bytes: None,
        }
    }

    fn figures(options: &IndexOptions) -> Vec<Figure> {
        let report = run(options, &mut |_| true).expect("the experiment runs");
        assert_eq!(report.broken(), None);
        report.figures
    }

    #[test]
    fn every_contender_answers_correctly_in_every_phase() {
        let mut options = options(IndexExperiment::Throughput);
        options.contenders.insert(0, IndexContender::Papaya);
        let wrong = |figure: &&Figure| figure.name.ends_with("answers wrong");
        let found = figures(&options);
        assert_eq!(
            found.iter().filter(wrong).count(),
            4 * options.contenders.len()
        );
    }

    #[test]
    fn the_mix_is_the_same_for_every_contender() {
        let mut options = options(IndexExperiment::Mix);
        options.contenders.push(IndexContender::Papaya);
        let tallies = options.contenders.iter().map(|contender| {
            let subject = contender
                .make(&options, 6_000, &mut |_| true)
                .expect("the index can be created");
            let mixed = run::mixed(&options, &*subject, &mut |_| true).expect("the mix runs");
            assert_eq!(mixed.run.ends.iter().sum::<u64>(), options.operations);
            assert_eq!(mixed.run.samples.iter().sum::<u64>(), options.operations);
            assert_eq!(mixed.run.times_ns.len() as u64, options.operations / 10);
            mixed.tally(run::DrawnOp::Insert)
        });
        // Inserted ids are always new, so all inserts succeed.
        assert!(tallies.clone().all(|(all, done)| all == done && all > 800));
    }

    #[test]
    fn a_mix_by_time_ends_after_its_seconds_and_finds_what_it_inserted() {
        let mut options = options(IndexExperiment::Mix);
        options.seconds = Some(1);
        options.sampling_ms = 300;
        let subject =
            IndexContender::Papaya.make(&options, run::most_records(&options), &mut |_| true);
        let mixed = run::mixed(
            &options,
            &*subject.expect("the index can be created"),
            &mut |_| true,
        )
        .expect("the mix runs");
        let run = &mixed.run;
        assert_eq!(run.samples.len(), 3, "windows of 300 ms in a second");
        assert!(
            (0.9..5.0).contains(&run.took.as_secs_f64()),
            "{:?}",
            run.took
        );
        let (inserted, done) = mixed.tally(run::DrawnOp::Insert);
        assert!(inserted > options.records, "{inserted}");
        assert_eq!(inserted, done);
        // About one key in five has been removed, or is not yet inserted by another thread.
        let (reads, found) = mixed.tally(run::DrawnOp::Read);
        assert!(found > reads / 2, "{found} of {reads}");
    }

    #[test]
    fn keys_with_a_prefix_are_found() {
        let mut options = options(IndexExperiment::Throughput);
        options.bytes.prefix = "key:".into();
        options.bytes.key = 4;
        for contender in [
            IndexContender::Papaya,
            IndexContender::Table(TableKind::Clht),
        ] {
            let subject = contender
                .make(&options, 10, &mut |_| true)
                .expect("the index can be created");
            let mut session = subject.session().expect("a session can be opened");
            assert_eq!(session.insert(0x11_2233_4455, 7), Ok(true));
            // Only the low four bytes of the key are used.
            assert_eq!(session.get(0x2233_4455), Ok(Some(7)));
        }
        figures(&options);
    }

    #[test]
    #[ignore = "the suite `long-tests` runs it"]
    fn modelled_figures_are_a_function_of_the_options() {
        for experiment in [
            IndexExperiment::Bytes,
            IndexExperiment::Dimms,
            IndexExperiment::Numa,
        ] {
            let mut options = options(experiment);
            options.contenders.truncate(2);
            assert_eq!(figures(&options), figures(&options));
        }
        let options = options(IndexExperiment::Orders);
        let orders = || {
            run(&options, &mut |_| true)
                .expect("the experiment runs")
                .figures
        };
        assert_eq!(orders(), orders());
    }

    #[test]
    fn without_flushes_lines_in_the_modelled_cache_are_not_written_back() {
        let mut options = options(IndexExperiment::Bytes);
        options.cache_bytes = Some(22 << 20);
        let lines = |options: &IndexOptions| {
            let found = figures(options).into_iter();
            let lines = found.filter(|figure| figure.name == "insert: lines written");
            lines.map(|figure| figure.value).collect::<Vec<_>>()
        };
        // Keys are drawn with replacement, so only two in three are new.
        assert!(lines(&options).iter().all(|bytes| *bytes >= 32.0));
        options.durable = false;
        assert_eq!(lines(&options), [0.0; TableKind::ALL.len()]);
    }

    #[test]
    #[ignore = "the suite `long-tests` runs it"]
    fn locks_of_the_published_tables_are_a_third_of_what_inserts_write() {
        let mut options = options(IndexExperiment::Bytes);
        options.preset = TablePreset::Published;
        (options.records, options.slots) = (50_000, 4_096);
        let found = figures(&options);
        let share = |part: &str| {
            let name = format!("insert: {part}, share, mean of cceh, dash-eh, clht");
            let figure = found.iter().find(|figure| figure.name.starts_with(&name));
            figure.unwrap_or_else(|| panic!("{name}: {found:?}"))
        };
        // Each part must get its own share of the lines written.
        for (part, published, from, to) in [
            ("locks", 32.0, 25.0, 50.0),
            ("key and value", 10.0, 5.0, 20.0),
            ("others", 40.0, 20.0, 50.0),
        ] {
            let figure = share(part);
            assert!((from..to).contains(&figure.value), "{figure:?}");
            assert_eq!(figure.published.map(|of| of.value), Some(published));
        }
    }

    #[test]
    fn figures_of_tables_that_fit_the_modelled_cache_have_a_caveat() {
        for experiment in [
            IndexExperiment::Bytes,
            IndexExperiment::Dimms,
            IndexExperiment::Numa,
        ] {
            let mut options = options(experiment);
            options.contenders.truncate(1);
            assert!(figures(&options).iter().all(Figure::is_measured));
            options.cache_bytes = Some(22 << 20);
            assert!(!figures(&options).iter().any(Figure::is_measured));
        }
    }

    #[test]
    fn a_search_of_soft_has_the_caveat_that_it_reads_no_far_memory() {
        let mut options = options(IndexExperiment::Numa);
        options.contenders = vec![IndexContender::Table(TableKind::Soft)];
        let found = figures(&options);
        let caveat = |name: &str| {
            let figure = found.iter().find(|figure| figure.name == name);
            figure.and_then(|figure| figure.caveat.as_deref())
        };
        let search = caveat("search, local").expect("SOFT's lists are in DRAM");
        assert!(search.contains("no operation touched it"), "{search}");
        assert_eq!(caveat("insert, local"), None);
    }

    #[test]
    fn every_experiment_stops_on_request() {
        for row in IndexExperiment::ROWS {
            let stopped = run(&options(row.run), &mut |_| false);
            assert!(matches!(stopped, Err(Error::Stopped)), "{}", row.name);
        }
    }

    #[test]
    #[ignore = "the suite `long-tests` runs it"]
    fn an_experiment_has_bounds_if_its_row_names_some() {
        for row in IndexExperiment::ROWS {
            let mut options = options(row.run);
            options.contenders.truncate(1);
            (options.records, options.operations) = (300, 300);
            let report = run(&options, &mut |_| true).expect("the experiment runs");
            let mut figures = report.figures.iter();
            let has_bounds = figures.any(|figure| figure.verdict().is_some());
            assert_eq!(has_bounds, !row.bounds.is_empty(), "{}", row.name);
        }
    }
}
