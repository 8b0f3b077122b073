//! Sweeps over numbers of clients, lengths of keys and sizes of caches (sections 5.4 and 5.6).

use farbank_tree::Config;

use super::bench::TreeBench;
use super::compare::{NEAR, SeriesTrend};
use super::load::TreeMix;
use super::options::with_keys;
use super::ratios::{both, shorter};
use super::run::TreeSetup;
use crate::figure::{Error, Figure, spread};

/// Threads of each compute server, and clients of each thread. The steps are equal up to the point where FG+
/// collapses, which happens from one step to the next.
const CLIENTS: [(u16, u16); 12] = [
    (2, 1),
    (4, 1),
    (6, 1),
    (8, 1),
    (10, 1),
    (12, 1),
    (14, 1),
    (16, 1),
    (18, 1),
    (20, 1),
    (22, 1),
    (22, 3),
];
const SKEWS: [f64; 3] = [0.0, 0.9, 0.99];
pub(super) const SCALE_RUNS: u64 = 2 * (CLIENTS.len() * SKEWS.len()) as u64;

/// Measures throughput by the number of clients.
pub(super) fn scale(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut peaks = Vec::new();
    for theta in SKEWS {
        let mut found = Vec::new();
        for (threads, coroutines) in CLIENTS {
            let clients = bench.options.servers * threads * coroutines;
            let name = format!("skew {theta}, {clients} clients");
            let change = |setup: TreeSetup| TreeSetup {
                threads,
                coroutines,
                ..shorter(setup)
            };
            let mops = both(bench, &name, change, (TreeMix::WRITE_INTENSIVE, theta))?
                .map(|outcome| outcome.mops);
            for (system, mops) in ["sherman", "fg+"].into_iter().zip(mops) {
                let figure = Figure::modelled("scale", format!("{name}: {system}"), mops);
                bench.show(figure.unit("M operations a second"));
            }
            found.push(mops);
        }
        for (n, system) in ["sherman", "fg+"].into_iter().enumerate() {
            let clients = CLIENTS.map(|(threads, coroutines)| {
                f64::from(bench.options.servers * threads * coroutines)
            });
            let points = clients.into_iter().zip(found.iter().map(|mops| mops[n]));
            let axes = ("clients", "million operations a second");
            let title = format!("half writes, skew {theta}");
            bench
                .report
                .charts
                .line(&title, axes, system, points.collect());
        }
        compare_scale(bench, theta, &found);
        peaks.push(peak(&found, SHERMAN));
    }
    let what = "the more skewed, the lower sherman's peak";
    bench.series("scale", what, SeriesTrend::Falls, &peaks);
    Ok(())
}

const SHERMAN: usize = 0;
const FG: usize = 1;
/// A system keeps its throughput if it has at least this share of its best.
const KEPT: f64 = 0.75;

fn peak(found: &[[f64; 2]], system: usize) -> f64 {
    found.iter().map(|mops| mops[system]).fold(0.0, f64::max)
}

/// Returns how many of the client numbers after the best one keep the system's throughput, and how many there are.
fn kept_after_peak(found: &[[f64; 2]], system: usize) -> (usize, usize) {
    let best = peak(found, system);
    let after = found.iter().map(|mops| mops[system]);
    let after: Vec<f64> = after.skip_while(|mops| *mops < best).skip(1).collect();
    let kept = after.iter().filter(|mops| **mops >= KEPT * best).count();
    (kept, after.len())
}

/// Scores the throughputs of both systems by the number of clients (section 5.4).
fn compare_scale(bench: &mut TreeBench<'_>, theta: f64, found: &[[f64; 2]]) {
    let last = found[found.len() - 1];
    let modelled =
        |what: &str, value| Figure::modelled("scale", format!("skew {theta}: {what}"), value);
    if theta == 0.0 {
        let most = modelled("sherman, most clients", last[SHERMAN]);
        bench.scored(most.unit("M operations a second"), 44.0);
        let ratio = modelled("most clients, over fg+", last[SHERMAN] / last[FG]);
        bench.scored(ratio.unit("times"), 1.14);
        for (n, system) in ["sherman", "fg+"].into_iter().enumerate() {
            let mops: Vec<f64> = found.iter().map(|mops| mops[n]).collect();
            let what = format!("even: the more clients, the more a second: {system}");
            bench.series("scale", &what, SeriesTrend::Rises, &mops);
        }
        return;
    }
    let (published, over) = match theta < 0.95 {
        true => (21.0, 1.44),
        false => (9.0, 1.4),
    };
    let [best, best_of_fg] = [SHERMAN, FG].map(|system| peak(found, system));
    let most = modelled("sherman at its best", best);
    bench.scored(most.unit("M operations a second"), published);
    let ratio = modelled("both at their best, over fg+", best / best_of_fg);
    bench.scored(ratio.unit("times"), over);
    let (kept, steps) = kept_after_peak(found, SHERMAN);
    let what =
        format!("skew {theta}: sherman keeps its best with more clients ({kept} of {steps})");
    bench.order("scale", &what, kept == steps);
    let (kept, steps) = kept_after_peak(found, FG);
    let fallen = last[FG] < KEPT * best_of_fg;
    let what =
        format!("skew {theta}: fg+ loses its best with more clients (kept by {kept} of {steps})");
    bench.order("scale", &what, fallen);
}

/// Key lengths in bytes, with the published gain of Sherman over FG+: uniform, and skewed.
const KEYS: [(usize, Option<f64>, Option<f64>); 4] = [
    (16, Some(1.17), None),
    (64, None, None),
    (256, None, None),
    (1024, Some(1.47), Some(1.4)),
];
pub(super) const KEYS_RUNS: u64 = 4 * KEYS.len() as u64;
/// Largest total size of leaves in bytes. Trees with long keys get fewer entries.
const LEAVES_BYTES_MAX: u64 = 64 << 20;

/// Turns off the rule that discards late reads, like the published code. Nodes with keys of a kilobyte have 60 kB. On
/// a busy NIC all their reads come later than the rule allows and would be repeated forever. The layout with a version
/// in each line allows longer reads, but it rounds an entry up to whole lines: an entry with a key of 64 bytes takes
/// 128 bytes there and 73 here.
fn read_slowly(setup: TreeSetup) -> TreeSetup {
    TreeSetup {
        config: Config {
            discards_late_reads: false,
            ..setup.config
        },
        ..setup
    }
}

/// Measures throughput by the length of keys. Nodes keep their number of entries, so they get longer with the keys.
pub(super) fn keys(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut gains = Vec::new();
    let mut even = [Vec::new(), Vec::new()];
    let mut fg_skewed = Vec::new();
    for (key_bytes, published_even, skewed) in KEYS {
        for (theta, published) in [(0.0, published_even), (0.99, skewed)] {
            let name = format!("keys of {key_bytes} bytes, skew {theta}");
            let change = |setup: TreeSetup| {
                let setup = shorter(with_keys(read_slowly(setup), key_bytes));
                let node_bytes = setup.config.layout.node_bytes as u64;
                let fit = LEAVES_BYTES_MAX / node_bytes * setup.config.layout.entries() as u64;
                let entries = setup.entries.min(fit * 8 / 10);
                let cache_bytes = setup.config.cache_bytes as u64 * entries / setup.entries;
                TreeSetup {
                    entries,
                    config: Config {
                        cache_bytes: cache_bytes as usize,
                        ..setup.config
                    },
                    ..setup
                }
            };
            let [sherman, fg] = both(bench, &name, change, (TreeMix::WRITE_INTENSIVE, theta))?;
            let modelled =
                |what: &str, value| Figure::modelled("keys", format!("{name}: {what}"), value);
            for (system, outcome) in [("sherman", &sherman), ("fg+", &fg)] {
                let figure = modelled(system, outcome.mops);
                bench.show(figure.unit("M operations a second"));
                let half = modelled(
                    &format!("{system}, half took at most"),
                    outcome.latency_us(0.5),
                );
                bench.show(half.unit("us"));
            }
            let once = sherman.tally.read_retries.share(|n| n == 0);
            let figure = format!("{name}: sherman, lookups that read once");
            bench.show(Figure::counted("keys", figure, once).unit("of lookups"));
            let ratio = modelled("throughput over fg+", sherman.mops / fg.mops).unit("times");
            match theta > 0.0 {
                true => fg_skewed.push(fg.mops),
                false => {
                    gains.push(ratio.value);
                    even[0].push(sherman.mops);
                    even[1].push(fg.mops);
                }
            }
            bench.scored(ratio, published);
        }
    }
    let what = "even: the longer the keys, the more sherman gains";
    bench.series("keys", what, SeriesTrend::Rises, &gains);
    for (system, mops) in ["sherman", "fg+"].into_iter().zip(&even) {
        let what = format!("even: the longer the keys, the fewer a second: {system}");
        bench.series("keys", &what, SeriesTrend::Falls, mops);
    }
    let (least, most) = spread(&fg_skewed);
    let what = format!("skewed: fg+ does not depend on the keys' length ({least:.2} to {most:.2})");
    bench.order("keys", &what, most - least <= NEAR * most);
    Ok(())
}

/// Sizes of the index cache in MiB, relative to the paper's tree, and the published hit ratio.
const CACHES: [(u64, Option<f64>); 5] = [
    (100, None),
    (200, None),
    (300, None),
    (400, Some(0.98)),
    (500, None),
];
pub(super) const CACHES_RUNS: u64 = 2 * CACHES.len() as u64;

/// Measures hit ratio and throughput by the size of the index cache, scaled from the paper's tree of a billion
/// entries.
pub(super) fn caches(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    for theta in [0.0, 0.99] {
        let (mut found, mut rates) = (Vec::new(), Vec::new());
        for (mib, published) in CACHES {
            let name = format!("skew {theta}, cache of {mib} MiB in proportion");
            let config = Config::sherman_published();
            let setup = shorter(bench.options.setup(config, TreeMix::WRITE_INTENSIVE, theta));
            let cache_bytes = bench.options.in_proportion(mib << 20);
            let setup = TreeSetup {
                config: Config {
                    cache_bytes,
                    ..setup.config
                },
                ..setup
            };
            let outcome = bench.run(&name, &setup)?;
            let tally = &outcome.tally;
            let hits = tally.cache_hits as f64 / tally.operations.max(1) as f64;
            let figure = Figure::counted("caches", format!("{name}: hits"), hits);
            let published = published.filter(|_| theta > 0.0);
            bench.scored(figure.unit("of operations"), published);
            let mops = Figure::modelled("caches", format!("{name}: throughput"), outcome.mops);
            bench.show(mops.unit("M operations a second"));
            found.push(hits);
            rates.push(outcome.mops);
        }
        // Once the cache leads to every leaf, a larger one cannot have more hits.
        let full = found.iter().filter(|hits| **hits < 1.0).count();
        let shown = (full + 1).min(found.len());
        let what = format!("skew {theta}: the larger the cache, the more hits");
        bench.series("caches", &what, SeriesTrend::Rises, &found[..shown]);
        let what = format!("skew {theta}: the larger the cache, the more a second");
        bench.series("caches", &what, SeriesTrend::Rises, &rates[..shown]);
    }
    Ok(())
}
