//! Experiments and their runs.

use farbank_fabric::sim::ClusterConstants;
use farbank_tree::{Config, NodeFormat};

use super::compare::{NEAR, PublishedOrders, SeriesTrend, share_near};
use super::load::TreeMix;
use super::run::{TreeOutcome, TreeSetup};
use super::{costs, ratios, sensitivity, sweeps};
use crate::figure::{Error, Figure, ProgressFn, Report, report_progress};

/// Tree under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeSystem {
    /// All techniques, on the layout with a version in each line.
    Sherman,
    /// All techniques, on the published layout.
    ShermanPublished,
    /// No technique except an index cache and a release by write.
    FgPlus,
    /// No technique.
    Fg,
}

impl TreeSystem {
    /// All variants.
    pub const ALL: [TreeSystem; 4] = [
        TreeSystem::Sherman,
        TreeSystem::ShermanPublished,
        TreeSystem::FgPlus,
        TreeSystem::Fg,
    ];

    /// Returns the name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TreeSystem::Sherman => "sherman",
            TreeSystem::ShermanPublished => "sherman, published layout",
            TreeSystem::FgPlus => "fg+",
            TreeSystem::Fg => "fg",
        }
    }

    /// Returns the name on the command line.
    #[must_use]
    pub const fn option_name(self) -> &'static str {
        match self {
            TreeSystem::ShermanPublished => "sherman-published",
            TreeSystem::Sherman | TreeSystem::FgPlus | TreeSystem::Fg => self.name(),
        }
    }

    /// Returns the description on the command line.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            TreeSystem::Sherman => {
                "Sherman with the safe node layout, which has a version in each line"
            }
            TreeSystem::ShermanPublished => "Sherman with the published node layout",
            TreeSystem::FgPlus => "FG+, the paper's improved baseline",
            TreeSystem::Fg => "FG, the baseline without an index cache",
        }
    }

    pub(super) fn config(self) -> Config {
        match self {
            TreeSystem::Sherman => Config::sherman(),
            TreeSystem::ShermanPublished => Config::sherman_published(),
            TreeSystem::FgPlus => Config::fg_plus(),
            TreeSystem::Fg => Config::fg(),
        }
    }
}

/// Experiment on the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeExperiment {
    /// One mix and skew on the selected systems.
    Mix,
    /// Costs of operations with the paper's setup.
    Counts,
    /// Locks alone: the calibration.
    Locks,
    /// Throughput by the size of messages: the other part of the calibration.
    Messages,
    /// Gain of each technique.
    Ablation,
    /// The paper's mixes.
    Paper,
    /// Range queries.
    Ranges,
    /// Number of clients.
    Scale,
    /// Length of keys.
    Keys,
    /// Size of index caches.
    Caches,
    /// Causes of figures that differ from the published ones.
    Causes,
    /// All held-out experiments: ablation, paper, ranges, scale, keys, caches.
    HeldOut,
    /// Every published value: locks, messages, counts, and the held-out experiments.
    Published,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// Experiment to run.
    pub experiment: TreeExperiment,
    /// Systems of [`TreeExperiment::Mix`].
    pub systems: Vec<TreeSystem>,
    /// Mix of [`TreeExperiment::Mix`].
    pub mix: TreeMix,
    /// Skew of [`TreeExperiment::Mix`].
    pub theta: f64,
    /// Number of compute servers, and of memory servers.
    pub servers: u16,
    /// Threads of each compute server.
    pub threads: u16,
    /// Clients of each thread.
    pub coroutines: u16,
    /// Entries at the start.
    pub entries: u64,
    /// Length of a key in bytes.
    pub key_bytes: usize,
    /// Size of each compute server's index cache in bytes. `None` scales the paper's cache to the size of the tree.
    pub cache_bytes: Option<usize>,
    /// Length of the measured window in virtual microseconds.
    pub window_us: u64,
    /// Seed of the random choices.
    pub seed: u64,
}

/// Size of the paper's tree, to which caches are scaled: room for a billion entries, filled to 80 %.
const PAPER_ENTRIES: u64 = 800_000_000;
const PAPER_CACHE_BYTES: u64 = 500 << 20;

impl TreeOptions {
    /// Returns a run of `config` with mix `mix` and skew `theta`.
    pub(super) fn setup(&self, config: Config, mix: TreeMix, theta: f64) -> TreeSetup {
        let cache_bytes = match config.cache_bytes {
            0 => 0,
            _ => self
                .cache_bytes
                .unwrap_or_else(|| self.in_proportion(PAPER_CACHE_BYTES)),
        };
        let setup = TreeSetup {
            servers: self.servers,
            threads: self.threads,
            coroutines: self.coroutines,
            entries: self.entries,
            mix,
            theta,
            config: Config {
                cache_bytes,
                // No client dies here, and none renews a lease.
                doubt_ns: u64::MAX,
                ..config
            },
            constants: ClusterConstants {
                read_line_order: config.layout.format == NodeFormat::Paper,
                ..ClusterConstants::default()
            },
            window_ns: self.window_us * 1000,
            seed: self.seed,
        };
        match self.key_bytes {
            8 => setup,
            key_bytes => with_keys(setup, key_bytes),
        }
    }

    /// Scales the size of a cache of the paper's tree to this tree.
    pub(super) fn in_proportion(&self, cache_bytes: u64) -> usize {
        (cache_bytes * self.entries / PAPER_ENTRIES) as usize
    }
}

/// Changes a run to keys of `key_bytes`, with as many entries per node and as many cached nodes as before.
pub(super) fn with_keys(setup: TreeSetup, key_bytes: usize) -> TreeSetup {
    let layout = setup.config.layout;
    let layout = layout.with_keys(key_bytes, layout.entries());
    let cache_bytes = setup.config.cache_bytes / setup.config.layout.node_bytes * layout.node_bytes;
    TreeSetup {
        config: Config {
            layout,
            cache_bytes,
            ..setup.config
        },
        ..setup
    }
}

/// State of a running experiment.
pub(super) struct TreeBench<'a> {
    pub(super) options: &'a TreeOptions,
    pub(super) report: Report,
    orders: PublishedOrders,
    watch: ProgressFn<'a>,
    done: u64,
    all: u64,
}

impl TreeBench<'_> {
    /// Runs one setup.
    pub(super) fn run(&mut self, what: &str, setup: &TreeSetup) -> Result<TreeOutcome, Error> {
        self.step(what)?;
        setup
            .run()
            .map_err(|error| Error::Failed(format!("{what}: {error}")))
    }

    /// Reports that one more run begins.
    pub(super) fn step(&mut self, what: &str) -> Result<(), Error> {
        let (done, all) = (self.done, self.all);
        self.done += 1;
        report_progress(self.watch, what, done, all)
    }

    /// Adds a figure.
    pub(super) fn show(&mut self, figure: Figure) {
        self.report.figures.push(figure);
    }

    /// Adds a figure, scored against the published value if there is one.
    pub(super) fn scored(&mut self, figure: Figure, published: impl Into<Option<f64>>) {
        let figure = match published.into() {
            Some(value) => figure.compared(value, NEAR),
            None => figure,
        };
        self.show(figure);
    }

    /// Adds a published order, and whether it holds.
    pub(super) fn order(&mut self, experiment: &'static str, what: &str, holds: bool) {
        let figure = self.orders.order(experiment, what, holds);
        self.show(figure);
    }

    /// Adds a published order of a series, of which each step is checked.
    pub(super) fn series(
        &mut self,
        experiment: &'static str,
        what: &str,
        way: SeriesTrend,
        values: &[f64],
    ) {
        let figure = self.orders.series(experiment, what, way, values);
        self.show(figure);
    }
}

impl TreeExperiment {
    /// Returns the number of runs of the experiment.
    fn runs(self, options: &TreeOptions) -> u64 {
        match self {
            TreeExperiment::Mix => options.systems.len() as u64,
            TreeExperiment::Counts => costs::COUNTS_RUNS,
            TreeExperiment::Locks => costs::LOCKS_RUNS,
            TreeExperiment::Messages => costs::MESSAGES_RUNS,
            TreeExperiment::Ablation => ratios::ABLATION_RUNS,
            TreeExperiment::Paper => ratios::PAPER_RUNS,
            TreeExperiment::Ranges => ratios::RANGES_RUNS,
            TreeExperiment::Scale => sweeps::SCALE_RUNS,
            TreeExperiment::Keys => sweeps::KEYS_RUNS,
            TreeExperiment::Caches => sweeps::CACHES_RUNS,
            TreeExperiment::Causes => sensitivity::RUNS,
            TreeExperiment::HeldOut => HELD_OUT.iter().map(|part| part.runs(options)).sum(),
            TreeExperiment::Published => PUBLISHED.iter().map(|part| part.runs(options)).sum(),
        }
    }

    fn run(self, bench: &mut TreeBench<'_>) -> Result<(), Error> {
        match self {
            TreeExperiment::Mix => mix(bench),
            TreeExperiment::Counts => costs::counts(bench),
            TreeExperiment::Locks => costs::locks(bench),
            TreeExperiment::Messages => costs::messages(bench),
            TreeExperiment::Ablation => ratios::ablation(bench),
            TreeExperiment::Paper => ratios::paper(bench),
            TreeExperiment::Ranges => ratios::ranges(bench),
            TreeExperiment::Scale => sweeps::scale(bench),
            TreeExperiment::Keys => sweeps::keys(bench),
            TreeExperiment::Caches => sweeps::caches(bench),
            TreeExperiment::Causes => sensitivity::causes(bench),
            TreeExperiment::HeldOut => {
                for part in HELD_OUT {
                    part.run(bench)?;
                }
                bench.show(share_near(bench.report.figures.iter()));
                Ok(())
            }
            TreeExperiment::Published => PUBLISHED.iter().try_for_each(|part| part.run(bench)),
        }
    }
}

const HELD_OUT: [TreeExperiment; 6] = [
    TreeExperiment::Ablation,
    TreeExperiment::Paper,
    TreeExperiment::Ranges,
    TreeExperiment::Scale,
    TreeExperiment::Keys,
    TreeExperiment::Caches,
];

const PUBLISHED: [TreeExperiment; 4] = [
    TreeExperiment::Locks,
    TreeExperiment::Messages,
    TreeExperiment::Counts,
    TreeExperiment::HeldOut,
];

/// Runs the experiment.
///
/// # Errors
/// An operation failed, or `watch` stopped the run.
pub fn run(options: &TreeOptions, watch: ProgressFn<'_>) -> Result<Report, Error> {
    let mut bench = TreeBench {
        options,
        report: Report::default(),
        orders: PublishedOrders::default(),
        watch,
        done: 0,
        all: options.experiment.runs(options),
    };
    options.experiment.run(&mut bench)?;
    let TreeBench {
        mut report, orders, ..
    } = bench;
    report.notes.extend(orders.notes());
    report.notes.push(format!(
        "modelled: {} compute and memory servers, {} clients, {} entries, seed {}",
        options.servers,
        options.servers * options.threads * options.coroutines,
        options.entries,
        options.seed
    ));
    Ok(report)
}

/// Reports all results of one run.
pub(super) fn describe(
    report: &mut Report,
    experiment: &'static str,
    name: &str,
    outcome: &TreeOutcome,
) {
    let tally = &outcome.tally;
    let modelled = [
        ("throughput", outcome.mops, "M operations a second"),
        ("half took at most", outcome.latency_us(0.5), "us"),
        ("99 of 100 took at most", outcome.latency_us(0.99), "us"),
        ("half of inserts took at most", outcome.write_us(0.5), "us"),
        ("slowest client over fastest", outcome.fewest_over_most, ""),
        ("fairness of clients (Jain)", outcome.jain, ""),
    ];
    for (what, value, unit) in modelled {
        let figure = Figure::modelled(experiment, format!("{name}: {what}"), value).unit(unit);
        report.figures.push(figure);
    }
    let mut counted = |what: &str, value, unit| {
        let figure = Figure::counted(experiment, format!("{name}: {what}"), value).unit(unit);
        report.figures.push(figure);
    };
    if tally.operations > 0 {
        let hits = tally.cache_hits as f64 / tally.operations as f64;
        counted("led to the right leaf by the cache", hits, "of operations");
    }
    if tally.write_trips.count() > 0 {
        for trips in 2..=5 {
            let share = tally.write_trips.share(|n| n == trips);
            let what = format!("writes of {trips} round trips");
            counted(&what, share, "of writes");
        }
        let split = tally.splits as f64 / tally.write_trips.count() as f64;
        counted("writes that split a node", split, "of writes");
        let bytes = tally.write_bytes.quantile(0.5) as f64;
        counted("bytes of most writes", bytes, "bytes");
        let retries = tally.lock_retries.quantile(0.99) as f64;
        counted("lock retries of 99 of 100 writes, at most", retries, "");
    }
    if tally.read_retries.count() > 0 {
        let once = tally.read_retries.share(|n| n == 0);
        counted("lookups that read once", once, "of lookups");
    }
    if tally.range_trips > 0 {
        let again = tally.range_rereads as f64 / tally.range_trips as f64;
        counted("reads of ranges thrown away", again, "a round trip");
    }
}

fn mix(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let options = bench.options;
    for system in &options.systems {
        let setup = options.setup(system.config(), options.mix, options.theta);
        let outcome = bench.run(system.name(), &setup)?;
        describe(&mut bench.report, "mix", system.name(), &outcome);
        let digest = format!("{}: digest {:016x}", system.name(), outcome.digest);
        bench.report.notes.push(digest);
    }
    Ok(())
}
