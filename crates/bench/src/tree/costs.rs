//! Counted costs, and the calibration of the cluster: locks alone, and message sizes.

use farbank_tree::op_stats::TreeStats;
use farbank_tree::{Config, LocalLockMode, LockPlacement};

use super::bench::TreeBench;
use super::compare::SeriesTrend;
use super::load::TreeMix;
use super::options::TreeSystem;
use super::run::{TreeOutcome, TreeSetup};
use crate::figure::{Error, Figure};

pub(super) const COUNTS_RUNS: u64 = 2;

/// Counts the costs of operations, write-intensive with skew 0.99, and checks the bounds that the paper's figures give
/// (section 5.5). Round trips of failed lock attempts are left out and counted separately.
pub(super) fn counts(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut run = |system: TreeSystem| {
        let setup = bench
            .options
            .setup(system.config(), TreeMix::WRITE_INTENSIVE, 0.99);
        bench.run(system.name(), &setup)
    };
    let sherman = run(TreeSystem::ShermanPublished)?.tally;
    let fg = run(TreeSystem::FgPlus)?.tally;
    let counted = |name: &str, value| Figure::counted("counts", name, value);
    let of_trips = |tally: &TreeStats, trips| tally.write_trips.share(|n| n == trips);
    let retries = |tally: &TreeStats| tally.lock_retries.quantile(0.99) as f64;
    let split = sherman.write_bytes.share(|bytes| bytes > 1024);
    let small = sherman.write_bytes.share(|bytes| bytes == 17);
    let smallest = sherman.write_bytes.quantile(0.5) as f64;
    let once = sherman.read_retries.share(|n| n == 0);
    let fg_once = fg.read_retries.share(|n| n == 0);
    let fg_rereads = fg.read_retries.max() as f64;
    // Each row: a figure with its bound, where the paper's text gives one, and the published value.
    let rows = [
        (
            counted("sherman: writes of 3 round trips", of_trips(&sherman, 3)).at_least(0.93),
            0.936,
        ),
        (
            counted("sherman: writes of 2 round trips", of_trips(&sherman, 2)).at_least(0.03),
            0.036,
        ),
        (
            counted("fg+: writes of 4 round trips", of_trips(&fg, 4)).at_least(0.93),
            0.94,
        ),
        (
            counted("sherman: lookups that read once", once).at_least(0.999),
            0.9998,
        ),
        (
            counted("fg+: lookups that read once", fg_once).at_least(0.999),
            0.9998,
        ),
        (
            counted("fg+: read retries of a lookup, at most", fg_rereads),
            9.0,
        ),
        (
            counted("sherman: writes that split", split)
                .at_most(0.01)
                .of_events(sherman.splits),
            0.004,
        ),
        (
            counted("sherman: bytes of a write that does not split", smallest).unit("bytes"),
            17.0,
        ),
        (
            counted(
                "sherman: lock retries, 99 of 100 at most",
                retries(&sherman),
            )
            .at_most(99.0)
            .of_events(sherman.lock_retries.count()),
            11.0,
        ),
        (
            counted("fg+: lock retries, 99 of 100 at most", retries(&fg)).at_least(100.0),
            453.0,
        ),
    ];
    for (figure, published) in rows {
        bench.scored(figure, published);
    }
    bench.show(counted("sherman: writes of 17 bytes", small).at_least(1.0 - split));
    Ok(())
}

pub(super) const LOCKS_RUNS: u64 = 5;
/// Number of locks in the paper's micro-benchmark.
pub(super) const LOCKS: u64 = 10_240;
/// Largest relative distance of the calibrated gains from the published ones.
const CALIBRATED: f64 = 0.15;

/// Published gains of a way of locking, relative to the previous one (section 5.6).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LockGains {
    /// Throughput. The cluster was calibrated on these gains only.
    pub(super) throughput: Option<f64>,
    /// Factor by which the median latency is shorter.
    half: Option<f64>,
    /// Factor by which the 99th percentile of latency is shorter.
    tail: Option<f64>,
    /// 99th percentile of latency in microseconds.
    tail_us: Option<f64>,
}

/// The five ways of locking of the micro-benchmark, with the published gains.
pub(super) fn ways_to_lock() -> [(&'static str, Config, LockGains); 5] {
    let in_host = Config {
        locks: LockPlacement::Host,
        local: LocalLockMode::None,
        ..Config::sherman()
    };
    let on_chip = Config {
        locks: LockPlacement::OnChip,
        ..in_host
    };
    let with = |local| Config { local, ..on_chip };
    let gains = |throughput, half, tail, tail_us| LockGains {
        throughput,
        half,
        tail,
        tail_us,
    };
    let chip = gains(Some(2.89), Some(3.01), Some(2.88), None);
    let table = gains(Some(3.85), Some(5.39), Some(3.65), Some(414.0));
    let queue = gains(None, None, None, Some(372.0));
    let hand_over = gains(Some(2.34), None, Some(3.19), None);
    [
        ("locks in host memory", in_host, LockGains::default()),
        ("on chip", on_chip, chip),
        ("+ local table", with(LocalLockMode::Table), table),
        ("+ queue", with(LocalLockMode::Queue), queue),
        ("+ hand-over", with(Config::sherman().local), hand_over),
    ]
}

/// Runs the paper's micro-benchmark of locks. The cluster was calibrated on the throughput gains; latencies are held
/// out.
pub(super) fn locks(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut before: Option<TreeOutcome> = None;
    let mut tails = Vec::new();
    for (name, config, published) in ways_to_lock() {
        bench.step(name)?;
        let setup = bench.options.setup(config, TreeMix::WRITE_ONLY, 0.99);
        let outcome = setup
            .run_locks(LOCKS)
            .map_err(|error| Error::Failed(format!("{name}: {error}")))?;
        let modelled =
            |what: &str, value| Figure::modelled("locks", format!("{name}: {what}"), value);
        let tail = modelled("99 of 100 took at most", outcome.latency_us(0.99)).unit("us");
        bench.show(modelled("throughput", outcome.mops).unit("M locks a second"));
        bench.show(modelled("half took at most", outcome.latency_us(0.5)).unit("us"));
        bench.scored(tail, published.tail_us);
        bench.show(modelled("fairness of clients (Jain)", outcome.jain));
        tails.push(outcome.latency_us(0.99));
        if let Some(before) = before.replace(outcome.clone()) {
            let shorter = |part| before.latency_us(part) / outcome.latency_us(part);
            let gain = modelled("gain", outcome.mops / before.mops).unit("times");
            bench.show(match published.throughput {
                Some(value) => gain.published(value, CALIBRATED * value),
                None => gain,
            });
            let half = modelled("half: times shorter", shorter(0.5)).unit("times");
            bench.scored(half, published.half);
            let tail = modelled("99 of 100: times shorter", shorter(0.99)).unit("times");
            bench.scored(tail, published.tail);
        }
    }
    let what = "each way of locking has a shorter tail";
    bench.series("locks", what, SeriesTrend::Falls, &tails);
    Ok(())
}

/// Message sizes in bytes.
const SIZES: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];
pub(super) const MESSAGES_RUNS: u64 = SIZES.len() as u64;
/// Message size in bytes from which on bandwidth is the limit.
const KNEE: usize = 256;

/// Measures writes of several sizes to one memory server at full speed. Below the knee the number of messages is the
/// limit, from the knee on bandwidth (section 3).
pub(super) fn messages(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut rates = Vec::new();
    for bytes in SIZES {
        bench.step("messages")?;
        let setup = bench
            .options
            .setup(Config::sherman(), TreeMix::WRITE_ONLY, 0.0);
        // A tenth of the window is enough, as all clients do the same.
        let setup = TreeSetup {
            window_ns: setup.window_ns / 10,
            ..setup
        };
        let outcome = setup.run_messages(bytes);
        let mops = outcome
            .map_err(|error| Error::Failed(format!("messages: {error}")))?
            .mops;
        let name = format!("writes of {bytes} bytes to one server");
        bench.show(Figure::modelled("messages", &*name, mops).unit("M a second"));
        let gigabytes = mops * bytes as f64 / 1000.0;
        bench.show(Figure::modelled("messages", name, gigabytes).unit("GB a second"));
        rates.push((bytes, mops));
    }
    let small = rates[0].1;
    let flat = rates.iter().filter(|(bytes, _)| *bytes < KNEE);
    let least = flat.map(|(_, mops)| mops / small).fold(1.0, f64::min);
    let at = |size| rates.iter().find(|(bytes, _)| *bytes == size);
    let beyond = at(2 * KNEE)
        .zip(at(KNEE))
        .map_or(0.0, |(two, one)| two.1 / one.1);
    bench.show(
        Figure::modelled(
            "messages",
            "below 256 bytes: the slowest over 16 bytes",
            least,
        )
        .unit("times")
        .at_least(0.9),
    );
    bench.show(
        Figure::modelled("messages", "512 bytes over 256", beyond)
            .unit("times")
            .at_least(0.4)
            .at_most(0.6),
    );
    Ok(())
}
