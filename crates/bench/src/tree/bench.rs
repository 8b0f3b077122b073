//! A running experiment: its progress, its figures and its published orders.

use super::compare::{NEAR, PublishedOrders, SeriesTrend};
use super::options::TreeOptions;
use super::run::{TreeOutcome, TreeSetup};
use crate::figure::{Error, Figure, ProgressFn, Report, report_progress};

/// State of a running experiment.
pub(super) struct TreeBench<'a> {
    pub(super) options: &'a TreeOptions,
    pub(super) report: Report,
    orders: PublishedOrders,
    watch: ProgressFn<'a>,
    done: u64,
    all: u64,
}

impl<'a> TreeBench<'a> {
    /// Begins an experiment that consists of `runs` runs.
    pub(super) fn new(options: &'a TreeOptions, runs: u64, watch: ProgressFn<'a>) -> TreeBench<'a> {
        TreeBench {
            options,
            report: Report::default(),
            orders: PublishedOrders::default(),
            watch,
            done: 0,
            all: runs,
        }
    }

    /// Ends the experiment. The notes say how many published orders hold, and describe the cluster.
    pub(super) fn into_report(self) -> Report {
        let TreeBench {
            options,
            mut report,
            orders,
            ..
        } = self;
        report.notes.extend(orders.notes());
        report.notes.push(format!(
            "modelled: {} compute and memory servers, {} clients, {} entries, seed {}",
            options.servers,
            options.servers * options.threads * options.coroutines,
            options.entries,
            options.seed
        ));
        report
    }

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
