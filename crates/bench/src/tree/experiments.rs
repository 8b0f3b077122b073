//! Which runs are made, and what is asked of them.

use farbank_fabric::sim::Constants;
use farbank_tree::{Config, Format, Layout, Local, Locks};

use super::load::Mix;
use super::run::{Outcome, Setup};
use crate::figure::{Error, Figure, Report, Step, Watch};

/// A tree by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// All techniques, on the layout with a version in each line.
    Sherman,
    /// All techniques, on the published layout.
    ShermanPublished,
    /// None of them, but an index cache and a release by write.
    FgPlus,
    /// None of them.
    Fg,
}

impl System {
    /// All of them.
    pub const ALL: [System; 4] = [
        System::Sherman,
        System::ShermanPublished,
        System::FgPlus,
        System::Fg,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            System::Sherman => "sherman",
            System::ShermanPublished => "sherman, published layout",
            System::FgPlus => "fg+",
            System::Fg => "fg",
        }
    }

    fn config(self) -> Config {
        match self {
            System::Sherman => Config::sherman(),
            System::ShermanPublished => Config::sherman_published(),
            System::FgPlus => Config::fg_plus(),
            System::Fg => Config::fg(),
        }
    }
}

/// What is found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// One mix and skew on the systems that were asked for.
    Mix,
    /// What operations cost at the paper's setup.
    Counts,
    /// One technique after another.
    Ablation,
    /// Locks alone: the calibration.
    Locks,
    /// The paper's ratios.
    Paper,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The experiment.
    pub experiment: Experiment,
    /// The systems of [`Experiment::Mix`].
    pub systems: Vec<System>,
    /// The mix of [`Experiment::Mix`].
    pub mix: Mix,
    /// Its skew.
    pub theta: f64,
    /// Compute servers, and memory servers.
    pub servers: u16,
    /// Clients of each compute server.
    pub clients: u16,
    /// Entries at the start.
    pub entries: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of internal nodes each compute server may keep; `None`: the paper's share of its tree's size.
    pub cache_bytes: Option<usize>,
    /// Virtual microseconds that are measured.
    pub window_us: u64,
    /// Decides everything that chance decides.
    pub seed: u64,
}

/// The paper's tree and cache: the cache of other trees is in proportion.
const PAPER_ENTRIES: u64 = 1_000_000_000;
const PAPER_CACHE_BYTES: u64 = 500 << 20;

impl Options {
    fn setup(&self, config: Config, mix: Mix, theta: f64) -> Setup {
        let in_proportion = PAPER_CACHE_BYTES * self.entries / PAPER_ENTRIES;
        let cache_bytes = match config.cache_bytes {
            0 => 0,
            _ => self.cache_bytes.unwrap_or(in_proportion as usize),
        };
        let layout = match self.key_bytes {
            8 => config.layout,
            // As many entries a node as with keys of 8 bytes.
            key_bytes => Layout {
                key_bytes,
                node_bytes: (key_bytes + 9).next_multiple_of(64) * config.layout.entries() + 128,
                ..config.layout
            },
        };
        Setup {
            servers: self.servers,
            clients: self.clients,
            entries: self.entries,
            mix,
            theta,
            config: Config {
                cache_bytes,
                layout,
                // Nobody dies here, and nobody renews a lease.
                doubt_ns: u64::MAX,
                ..config
            },
            constants: Constants {
                read_line_order: config.layout.format == Format::Paper,
                ..Constants::default()
            },
            window_ns: self.window_us * 1000,
            seed: self.seed,
        }
    }
}

/// Runs the experiment.
pub fn run(options: &Options, watch: Watch<'_>) -> Result<Report, Error> {
    let mut report = Report::default();
    match options.experiment {
        Experiment::Mix => mix(options, &mut report, watch)?,
        Experiment::Counts => counts(options, &mut report, watch)?,
        Experiment::Ablation => ablation(options, &mut report, watch)?,
        Experiment::Locks => locks(options, &mut report, watch)?,
        Experiment::Paper => paper(options, &mut report, watch)?,
    }
    report.notes.push(format!(
        "modelled: {} compute and memory servers, {} clients, {} entries, seed {}",
        options.servers,
        options.servers * options.clients,
        options.entries,
        options.seed
    ));
    Ok(report)
}

/// Runs one setup, as step `done` of `all`.
fn one(
    setup: &Setup,
    what: &str,
    (done, all): (usize, usize),
    watch: Watch<'_>,
) -> Result<Outcome, Error> {
    let (done, all) = (done as u64, all as u64);
    if !watch(Step { what, done, all }) {
        return Err(Error::Stopped);
    }
    setup
        .run()
        .map_err(|error| Error::Failed(format!("{what}: {error}")))
}

fn describe(report: &mut Report, experiment: &'static str, name: &str, outcome: &Outcome) {
    let tally = &outcome.tally;
    let mut modelled = |what: &str, value, unit| {
        let figure = Figure::modelled(experiment, format!("{name}: {what}"), value).unit(unit);
        report.figures.push(figure);
    };
    modelled("throughput", outcome.mops, "M operations a second");
    modelled(
        "half of all operations took at most",
        outcome.latency_us(0.5),
        "us",
    );
    modelled("99 of 100 took at most", outcome.latency_us(0.99), "us");
    modelled("slowest client over fastest", outcome.fairness, "");
    let mut counted = |what: &str, value, unit| {
        let figure = Figure::counted(experiment, format!("{name}: {what}"), value).unit(unit);
        report.figures.push(figure);
    };
    let all = tally.operations.max(1) as f64;
    counted(
        "led to the right leaf by the cache",
        tally.cache_hits as f64 / all,
        "of operations",
    );
    if tally.write_trips.count() > 0 {
        for trips in 2..=5 {
            let share = tally.write_trips.share(|n| n == trips);
            counted(
                &format!("writes of {trips} round trips"),
                share,
                "of writes",
            );
        }
        let split = tally.splits as f64 / tally.write_trips.count() as f64;
        counted("writes that split a node", split, "of writes");
        counted(
            "bytes of most writes",
            tally.write_bytes.quantile(0.5) as f64,
            "bytes",
        );
        let retries = tally.lock_retries.quantile(0.99) as f64;
        counted("lock retries of 99 of 100 writes, at most", retries, "");
    }
    if tally.read_retries.count() > 0 {
        counted(
            "lookups that read once",
            tally.read_retries.share(|n| n == 0),
            "of lookups",
        );
    }
}

fn mix(options: &Options, report: &mut Report, watch: Watch<'_>) -> Result<(), Error> {
    let all = options.systems.len();
    for (n, system) in options.systems.iter().enumerate() {
        let setup = options.setup(system.config(), options.mix, options.theta);
        let outcome = one(&setup, system.name(), (n, all), watch)?;
        describe(report, "mix", system.name(), &outcome);
        report
            .notes
            .push(format!("{}: digest {:016x}", system.name(), outcome.digest));
    }
    Ok(())
}

/// What operations cost, write-intensive at a skew of 0.99, with the bounds that the paper's figures give.
fn counts(options: &Options, report: &mut Report, watch: Watch<'_>) -> Result<(), Error> {
    let run = |system: System, n, watch: Watch<'_>| {
        let setup = options.setup(system.config(), Mix::WRITE_INTENSIVE, 0.99);
        one(&setup, system.name(), (n, 2), watch)
    };
    let sherman = run(System::ShermanPublished, 0, watch)?.tally;
    let fg = run(System::FgPlus, 1, watch)?.tally;
    let counted = |name: &str, value| Figure::counted("counts", name, value);
    let no_split = |tally: &farbank_tree::tally::Tally| {
        let small = tally.write_bytes.share(|bytes| bytes == 17);
        let split = tally.write_bytes.share(|bytes| bytes > 1024);
        (small, split)
    };
    let (small, split) = no_split(&sherman);
    report.figures.extend([
        counted(
            "sherman: writes of 3 round trips",
            sherman.write_trips.share(|n| n == 3),
        )
        .at_least(0.93)
        .published(0.936, f64::INFINITY),
        counted(
            "sherman: writes of 2 round trips",
            sherman.write_trips.share(|n| n == 2),
        )
        .at_least(0.03)
        .published(0.036, f64::INFINITY),
        counted(
            "fg+: writes of 4 round trips",
            fg.write_trips.share(|n| n == 4),
        )
        .at_least(0.93)
        .published(0.94, f64::INFINITY),
        counted(
            "sherman: lookups that read once",
            sherman.read_retries.share(|n| n == 0),
        )
        .at_least(0.999)
        .published(0.9998, f64::INFINITY),
        counted("sherman: writes that split", split)
            .at_most(0.01)
            .published(0.004, f64::INFINITY),
        counted("sherman: writes of 17 bytes", small).at_least(1.0 - split - 0.005),
        counted(
            "sherman: lock retries, 99 of 100 at most",
            sherman.lock_retries.quantile(0.99) as f64,
        )
        .at_most(99.0)
        .published(11.0, f64::INFINITY),
        counted(
            "fg+: lock retries, 99 of 100 at most",
            fg.lock_retries.quantile(0.99) as f64,
        )
        .at_least(100.0)
        .published(453.0, f64::INFINITY),
    ]);
    Ok(())
}

/// FG+ with one technique after another, until it is Sherman.
fn steps() -> [(&'static str, Config, f64); 5] {
    let fg_plus = Config::fg_plus();
    let combined = Config {
        combine: true,
        ..fg_plus
    };
    let on_chip = Config {
        locks: Locks::OnChip,
        ..combined
    };
    let local = Config {
        local: Config::sherman().local,
        ..on_chip
    };
    [
        ("fg+", fg_plus, 1.0),
        ("+ command combination", combined, 3.37),
        ("+ locks on chip", on_chip, 3.06),
        ("+ hierarchical locks", local, 2.22),
        (
            "+ two levels of versions",
            Config::sherman_published(),
            1.03,
        ),
    ]
}

fn ablation(options: &Options, report: &mut Report, watch: Watch<'_>) -> Result<(), Error> {
    let mut before: Option<Outcome> = None;
    for (n, (name, config, published)) in steps().into_iter().enumerate() {
        let setup = options.setup(config, Mix::WRITE_INTENSIVE, 0.99);
        let outcome = one(&setup, name, (n, 5), watch)?;
        describe(report, "ablation", name, &outcome);
        if let Some(before) = before {
            let gain = outcome.mops / before.mops;
            report.figures.push(
                Figure::modelled("ablation", format!("{name}: gain"), gain)
                    .unit("times")
                    .published(published, f64::INFINITY),
            );
        }
        before = Some(outcome);
    }
    Ok(())
}

/// The paper's micro-benchmark of locks, on which the rack was calibrated.
fn locks(options: &Options, report: &mut Report, watch: Watch<'_>) -> Result<(), Error> {
    const LOCKS: u64 = 10_240;
    let in_host = Config {
        locks: Locks::Host,
        local: Local::None,
        ..Config::sherman()
    };
    let on_chip = Config {
        locks: Locks::OnChip,
        ..in_host
    };
    let with = |local| Config { local, ..on_chip };
    let steps = [
        ("locks in host memory", in_host, 1.0),
        ("on chip", on_chip, 2.89),
        ("+ local table", with(Local::Table), 3.85),
        ("+ queue", with(Local::Queue), 1.0),
        ("+ hand-over", with(Config::sherman().local), 2.34),
    ];
    let mut before = None;
    for (n, (name, config, published)) in steps.into_iter().enumerate() {
        let (done, all) = (n as u64, 5);
        if !watch(Step {
            what: name,
            done,
            all,
        }) {
            return Err(Error::Stopped);
        }
        let setup = options.setup(config, Mix::WRITE_ONLY, 0.99);
        let outcome = setup.run_locks(LOCKS);
        let outcome = outcome.map_err(|error| Error::Failed(format!("{name}: {error}")))?;
        let modelled =
            |what: &str, value| Figure::modelled("locks", format!("{name}: {what}"), value);
        report.figures.extend([
            modelled("throughput", outcome.mops).unit("M locks a second"),
            modelled("half took at most", outcome.latency_us(0.5)).unit("us"),
            modelled("99 of 100 took at most", outcome.latency_us(0.99)).unit("us"),
        ]);
        if let Some(before) = before {
            report.figures.push(
                modelled("gain", outcome.mops / before)
                    .unit("times")
                    .published(published, f64::INFINITY),
            );
        }
        before = Some(outcome.mops);
    }
    Ok(())
}

/// Sherman over FG+ on the paper's mixes.
fn paper(options: &Options, report: &mut Report, watch: Watch<'_>) -> Result<(), Error> {
    /// Mix, skew, and what was published: throughput, and how much longer FG+ takes at 50 and 99 of 100.
    const PUBLISHED: [(Mix, f64, [Option<f64>; 3]); 7] = [
        (Mix::WRITE_ONLY, 0.99, [Some(24.7), Some(1.2), Some(35.8)]),
        (
            Mix::WRITE_INTENSIVE,
            0.99,
            [Some(23.6), Some(1.4), Some(30.2)],
        ),
        (Mix::READ_INTENSIVE, 0.99, [None, None, None]),
        (Mix::WRITE_ONLY, 0.0, [Some(1.24), Some(1.24), Some(2.01)]),
        (
            Mix::WRITE_INTENSIVE,
            0.0,
            [Some(1.15), Some(1.19), Some(1.27)],
        ),
        (Mix::RANGE_ONLY, 0.0, [Some(0.98), None, None]),
        (Mix::RANGE_WRITE, 0.0, [Some(1.82), None, None]),
    ];
    let all = 2 * PUBLISHED.len();
    for (n, (mix, theta, published)) in PUBLISHED.into_iter().enumerate() {
        let name = format!("{}, skew {theta}", mix.name);
        let setup = options.setup(Config::sherman_published(), mix, theta);
        let sherman = one(&setup, &name, (2 * n, all), watch)?;
        let setup = options.setup(Config::fg_plus(), mix, theta);
        let fg = one(&setup, &name, (2 * n + 1, all), watch)?;
        let ratios = [
            sherman.mops / fg.mops,
            fg.latency_us(0.5) / sherman.latency_us(0.5),
            fg.latency_us(0.99) / sherman.latency_us(0.99),
        ];
        let whats = [
            "throughput over fg+",
            "half: times shorter",
            "99 of 100: times shorter",
        ];
        for ((what, ratio), published) in whats.into_iter().zip(ratios).zip(published) {
            let figure = Figure::modelled("paper", format!("{name}: {what}"), ratio).unit("times");
            report.figures.push(match published {
                Some(value) => figure.published(value, f64::INFINITY),
                None => figure,
            });
        }
        let throughput = Figure::modelled("paper", format!("{name}: sherman"), sherman.mops);
        report
            .figures
            .push(throughput.unit("M operations a second"));
    }
    Ok(())
}
