//! More clients, longer keys, larger caches (sections 5.4 and 5.6).

use farbank_tree::Config;

use super::experiments::{Bench, with_keys};
use super::load::Mix;
use super::ratios::{both, shorter};
use super::run::Setup;
use crate::figure::{Error, Figure};

/// Threads of each compute server and clients of each thread: in even steps up to where FG+ breaks down, which it does from one
/// step to the next.
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

/// Throughput by the number of clients.
pub(super) fn scale(bench: &mut Bench<'_>) -> Result<(), Error> {
    let mut peaks = Vec::new();
    for theta in SKEWS {
        let mut found = Vec::new();
        for (threads, coroutines) in CLIENTS {
            let clients = bench.options.servers * threads * coroutines;
            let name = format!("skew {theta}, {clients} clients");
            let change = |setup: Setup| Setup {
                threads,
                coroutines,
                ..shorter(setup)
            };
            let mops = both(bench, &name, change, (Mix::WRITE_INTENSIVE, theta))?
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
        let peak = |n: usize| found.iter().map(|mops| mops[n]).fold(0.0, f64::max);
        let last = found[found.len() - 1];
        let modelled =
            |what: &str, value| Figure::modelled("scale", format!("skew {theta}: {what}"), value);
        if theta == 0.0 {
            let most = modelled("sherman, most clients", last[0]).unit("M operations a second");
            bench.held_out(most, 44.0);
            let ratio = modelled("most clients, over fg+", last[0] / last[1]).unit("times");
            bench.held_out(ratio, 1.14);
        } else {
            let (published, over) = if theta < 0.95 {
                (21.0, 1.44)
            } else {
                (9.0, 1.4)
            };
            let most = modelled("sherman at its best", peak(0)).unit("M operations a second");
            bench.held_out(most, published);
            let ratio = modelled("both at their best, over fg+", peak(0) / peak(1)).unit("times");
            bench.held_out(ratio, over);
        }
        if theta > 0.95 {
            let lasts = last[0] >= 0.75 * peak(0);
            bench.order(
                "scale",
                "skew 0.99: sherman keeps what it had with fewer clients",
                lasts,
            );
            let falls = last[1] <= 0.75 * peak(1);
            bench.order("scale", "skew 0.99: fg+ does not", falls);
        }
        peaks.push(peak(0));
    }
    let falling = peaks.windows(2).all(|pair| pair[0] > pair[1]);
    bench.order("scale", "the more skewed, the lower the peak", falling);
    Ok(())
}

/// Bytes of keys, and what was published of Sherman over FG+: even, and skewed.
const KEYS: [(usize, Option<f64>, Option<f64>); 4] = [
    (16, Some(1.17), None),
    (64, None, None),
    (256, None, None),
    (1024, Some(1.47), Some(1.4)),
];
pub(super) const KEYS_RUNS: u64 = 4 * KEYS.len() as u64;
/// Bytes of leaves at most: trees of long keys have fewer entries.
const LEAVES_BYTES_MAX: u64 = 64 << 20;

/// Sherman on the layout with a version in each line. Nodes of keys of a kilobyte have 60: on a crowded card the published layout's
/// reads all come later than its versions allow, and are made again without end.
fn to_be_read_slowly(setup: Setup) -> Setup {
    if setup.config.layout.checked {
        return setup;
    }
    Setup {
        config: Config {
            layout: Config::sherman().layout,
            ..setup.config
        },
        ..setup
    }
}

/// Throughput by the length of keys. A node has as many entries as with short ones, and is so much longer.
pub(super) fn keys(bench: &mut Bench<'_>) -> Result<(), Error> {
    let mut gains = Vec::new();
    for (key_bytes, even, skewed) in KEYS {
        for (theta, published) in [(0.0, even), (0.99, skewed)] {
            let name = format!("keys of {key_bytes} bytes, skew {theta}");
            let change = |setup: Setup| {
                let setup = shorter(with_keys(to_be_read_slowly(setup), key_bytes));
                let node_bytes = setup.config.layout.node_bytes as u64;
                let fit = LEAVES_BYTES_MAX / node_bytes * setup.config.layout.entries() as u64;
                let entries = setup.entries.min(fit * 8 / 10);
                let cache_bytes = setup.config.cache_bytes as u64 * entries / setup.entries;
                Setup {
                    entries,
                    config: Config {
                        cache_bytes: cache_bytes as usize,
                        ..setup.config
                    },
                    ..setup
                }
            };
            let [sherman, fg] = both(bench, &name, change, (Mix::WRITE_INTENSIVE, theta))?;
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
            if theta == 0.0 {
                gains.push(ratio.value);
            }
            match published {
                Some(value) => bench.held_out(ratio, value),
                None => bench.show(ratio),
            }
        }
    }
    let grows = gains[gains.len() - 1] > gains[0];
    bench.order(
        "keys",
        "even: the longer the keys, the more sherman gains",
        grows,
    );
    Ok(())
}

/// MiB of index cache, if the tree were the paper's, and how often it leads to the right leaf.
const CACHES: [(u64, Option<f64>); 5] = [
    (100, None),
    (200, None),
    (300, None),
    (400, Some(0.98)),
    (500, None),
];
pub(super) const CACHES_RUNS: u64 = 2 * CACHES.len() as u64;

/// Cache hits and throughput by the size of the index cache, in proportion to the paper's tree of a billion entries.
pub(super) fn caches(bench: &mut Bench<'_>) -> Result<(), Error> {
    for theta in [0.0, 0.99] {
        let mut found = Vec::new();
        for (mib, published) in CACHES {
            let name = format!("skew {theta}, cache of {mib} MiB in proportion");
            let config = Config::sherman_published();
            let setup = shorter(bench.options.setup(config, Mix::WRITE_INTENSIVE, theta));
            let cache_bytes = bench.options.in_proportion(mib << 20);
            let setup = Setup {
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
            match published.filter(|_| theta > 0.0) {
                Some(value) => bench.held_out(figure.unit("of operations"), value),
                None => bench.show(figure.unit("of operations")),
            }
            let mops = Figure::modelled("caches", format!("{name}: throughput"), outcome.mops);
            bench.show(mops.unit("M operations a second"));
            found.push(hits);
        }
        let rises = found.windows(2).all(|pair| pair[1] >= pair[0]);
        let what = format!("skew {theta}: the larger the cache, the more hits");
        bench.order("caches", &what, rises);
    }
    Ok(())
}
