//! The persistent hash indexes beside each other: throughput, latency, load factor, what far memory is asked for.
//!
//! Tables run on anonymous memory with real flushes and fences. Each phase is run by all threads at once, every thread
//! with a share of the keys. Published figures are those of the original codes as plug-ins of the study's benchmark,
//! 65,536 slots at first, on a quiet machine with two processors.

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
pub use farbank_pibench::MOST_BYTES;
use keys::Distribution;

/// What is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexExperiment {
    /// Inserts, lookups that find and that do not, deletes: millions a second, and how long one takes.
    Throughput,
    /// How long the slowest in a hundred thousand takes.
    Latency,
    /// One mix of operations, on ids that PiBench draws.
    Mix,
    /// Flushes, fences and bytes an operation.
    Counts,
    /// Load factor and utilisation while a table grows.
    LoadFactor,
    /// How long changes of the structure take, and what share of the run that is.
    Resize,
    /// Milliseconds from an open after a kill to the first answer, at several sizes.
    Recovery,
    /// Bytes written and read an operation on the model, by what they are for.
    Bytes,
    /// Throughput on one to six DIMMs of the model.
    Dimms,
    /// Throughput on the model, of workers beside the memory and on the other socket.
    Numa,
    /// Which table is faster than which, on the model, beside what was published; of all contenders the study's.
    Orders,
    /// No table: entries written anywhere into an array of the model, in several ways.
    Array,
}

/// Shares of operations in a mix; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixRatios {
    /// Lookups.
    pub read: f64,
    /// Inserts of new keys.
    pub insert: f64,
    /// Updates of keys that are there.
    pub update: f64,
    /// Removals.
    pub remove: f64,
    /// Scans, which only plug-ins can do.
    pub scan: f64,
}

/// How keys and values are made of numbers. Tables have keys and values of 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValueBytes {
    /// What each key begins with.
    pub prefix: String,
    /// Bytes of a key after that.
    pub key: usize,
    /// Bytes of a value.
    pub value: usize,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// What is found out.
    pub experiment: IndexExperiment,
    /// Who is measured, one after another. All but throughput, latency and mix are for tables only.
    pub contenders: Vec<IndexContender>,
    /// How tables are arranged.
    pub preset: TablePreset,
    /// The hash function of the tables. Published figures come out again only with the published one.
    pub hashing: Hashing,
    /// Whether lines are written back and fenced. If not, what tables say is durable is not.
    pub durable: bool,
    /// Keys that are loaded.
    pub records: u64,
    /// Operations of a mix.
    pub operations: u64,
    /// Of a mix: that it lasts so many seconds, whatever can be done in them.
    pub seconds: Option<u32>,
    /// What keys and values look like, in throughput, latency and mix.
    pub bytes: KeyValueBytes,
    /// Threads; on the model virtual ones.
    pub threads: u32,
    /// Slots of a new table.
    pub slots: u64,
    /// Of growth: whether keys are drawn with replacement, as the study's were.
    pub with_replacement: bool,
    /// Of a mix: shares of operations.
    pub ratios: MixRatios,
    /// Of a mix: most keys that a scan finds.
    pub scan_size: u32,
    /// Of a mix: how ids are drawn.
    pub distribution: Distribution,
    /// What draws start from; a thread's is this times its number from 1.
    pub seed: u64,
    /// Of a mix: one operation in so many is timed; 0: none.
    pub timed_one_in: u64,
    /// Of a mix: how often it is looked how far it is.
    pub sampling_ms: u32,
    /// Of a mix: whether the keys are there already.
    pub skip_load: bool,
    /// What a plug-in is told of its pool: where; empty: where it likes.
    pub pool: PathBuf,
    /// What a plug-in is told of its pool: bytes; 0: as it likes.
    pub pool_bytes: u64,
    /// On the model: nanoseconds an operation takes besides far memory.
    pub cpu_ns: u32,
    /// On the model: bytes of the processor's cache; `None`: the study's, as much smaller as there are fewer operations.
    pub cache_bytes: Option<u64>,
}

/// Runs it. `watch` answers whether to go on.
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
                "{}: only tables do this",
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
                unreachable!("they are of no one contender")
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
        let note = "the study's values are compared with --preset published only: other arrangements are not its tables";
        report.notes.push(note.into());
    }
    if !options.durable {
        report
            .notes
            .push("nothing was written back or fenced: nothing was durable".into());
    }
    Ok(report)
}

/// Runs a mix of one contender and answers with what PiBench prints of it.
pub fn pibench(options: &IndexOptions) -> Result<String, Error> {
    match options.contenders.as_slice() {
        [contender] => pibench::run(options, contender),
        several => Err(Error::Failed(format!(
            "PiBench's output is of one index, not of {}",
            several.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use farbank_index::registry::TableKind;

    use super::*;
    use crate::figure::Figure;

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
        let report = run(options, &mut |_| true).expect("it can be run");
        assert_eq!(report.broken(), None);
        report.figures
    }

    #[test]
    fn every_contender_answers_right_in_every_phase() {
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
                .expect("there is memory");
            let mixed = run::mixed(&options, &*subject, &mut |_| true).expect("it can be run");
            assert_eq!(mixed.run.ends.iter().sum::<u64>(), options.operations);
            assert_eq!(mixed.run.samples.iter().sum::<u64>(), options.operations);
            assert_eq!(mixed.run.times_ns.len() as u64, options.operations / 10);
            mixed.tally(run::DrawnOp::Insert)
        });
        // Ids that are drawn to be inserted are new: all of them are.
        assert!(tallies.clone().all(|(all, done)| all == done && all > 800));
    }

    #[test]
    fn a_mix_by_time_ends_after_its_seconds_and_finds_what_it_inserted() {
        let mut options = options(IndexExperiment::Mix);
        options.seconds = Some(1);
        options.sampling_ms = 300;
        let subject =
            IndexContender::Papaya.make(&options, run::most_records(&options), &mut |_| true);
        let mixed = run::mixed(&options, &*subject.expect("there is memory"), &mut |_| true)
            .expect("it can be run");
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
        // A key in five or so has been removed, or is about to be inserted by another thread.
        let (reads, found) = mixed.tally(run::DrawnOp::Read);
        assert!(found > reads / 2, "{found} of {reads}");
    }

    #[test]
    fn keys_with_a_prefix_are_found_by_it() {
        let mut options = options(IndexExperiment::Throughput);
        options.bytes.prefix = "key:".into();
        options.bytes.key = 4;
        for contender in [
            IndexContender::Papaya,
            IndexContender::Table(TableKind::Clht),
        ] {
            let subject = contender
                .make(&options, 10, &mut |_| true)
                .expect("there is memory");
            let mut session = subject.session().expect("one more");
            assert_eq!(session.insert(0x11_2233_4455, 7), Ok(true));
            // Its low four bytes are what counts.
            assert_eq!(session.get(0x2233_4455), Ok(Some(7)));
        }
        figures(&options);
    }

    #[test]
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
        let orders = || run(&options, &mut |_| true).expect("it can be run").figures;
        assert_eq!(orders(), orders());
    }

    #[test]
    fn without_flushes_the_model_has_nothing_written_back_of_what_the_cache_holds() {
        let mut options = options(IndexExperiment::Bytes);
        options.cache_bytes = Some(22 << 20);
        let lines = |options: &IndexOptions| {
            let found = figures(options).into_iter();
            let lines = found.filter(|figure| figure.name == "insert: lines written");
            lines.map(|figure| figure.value).collect::<Vec<_>>()
        };
        // Two keys in three are new, as they are drawn with replacement.
        assert!(lines(&options).iter().all(|bytes| *bytes >= 32.0));
        options.durable = false;
        assert_eq!(lines(&options), [0.0; TableKind::ALL.len()]);
    }

    #[test]
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
        // All of a line was counted as key and value, 87 %, and nothing as locks or others.
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
    fn tables_that_fit_the_modelled_cache_say_that_they_are_no_measurement_of_memory() {
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
    fn a_search_of_soft_says_that_it_reads_no_far_memory() {
        let mut options = options(IndexExperiment::Numa);
        options.contenders = vec![IndexContender::Table(TableKind::Soft)];
        let found = figures(&options);
        let caveat = |name: &str| {
            let figure = found.iter().find(|figure| figure.name == name);
            figure.and_then(|figure| figure.caveat.as_deref())
        };
        let search = caveat("search, local").expect("its lists are in DRAM");
        assert!(search.contains("no operation touched it"), "{search}");
        assert_eq!(caveat("insert, local"), None);
    }

    #[test]
    fn every_experiment_ends_when_nobody_wants_it_any_more() {
        use IndexExperiment::{
            Array, Bytes, Counts, Dimms, Latency, LoadFactor, Mix, Numa, Orders, Recovery, Resize,
            Throughput,
        };
        for experiment in [
            Throughput, Latency, Mix, Counts, LoadFactor, Resize, Recovery, Bytes, Dimms, Numa,
            Orders, Array,
        ] {
            let stopped = run(&options(experiment), &mut |_| false);
            assert!(matches!(stopped, Err(Error::Stopped)), "{experiment:?}");
        }
    }
}
