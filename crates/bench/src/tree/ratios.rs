//! Sherman compared with FG+: the paper's mixes, one technique after another, and ranges.

use farbank_tree::{Config, LockPlacement};

use super::bench::{TreeBench, describe};
use super::compare::SeriesTrend;
use super::load::TreeMix;
use super::run::{TreeOutcome, TreeSetup};
use crate::figure::{Error, Figure};

/// Divisor of the window of uniform runs. Skewed runs use the whole window: they have long tails, and contention takes
/// long to build up.
const EVEN_SHORTER: u64 = 5;

/// Shortens the window of a uniform run.
pub(super) fn shorter(setup: TreeSetup) -> TreeSetup {
    let parts = if setup.theta > 0.0 { 1 } else { EVEN_SHORTER };
    TreeSetup {
        window_ns: setup.window_ns / parts,
        ..setup
    }
}

/// Published gains of a technique, relative to the step before it (section 5.2).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TechniqueGains {
    /// Throughput.
    pub(super) throughput: Option<f64>,
    /// Factor by which the median latency is shorter.
    half: Option<f64>,
    /// Factor by which the 99th percentile of latency is shorter.
    pub(super) tail: Option<f64>,
    /// Median latency in microseconds.
    half_us: Option<f64>,
}

/// Steps from FG+ to Sherman, each adding one technique, with the published gains.
pub(super) fn steps() -> [(&'static str, Config, TechniqueGains); 5] {
    let fg_plus = Config::fg_plus();
    let combined = Config {
        combine: true,
        ..fg_plus
    };
    let on_chip = Config {
        locks: LockPlacement::OnChip,
        ..combined
    };
    let local = Config {
        local: Config::sherman().local,
        ..on_chip
    };
    let all = Config::sherman_published();
    let gained = |throughput, half, tail, half_us| TechniqueGains {
        throughput: Some(throughput),
        half,
        tail,
        half_us,
    };
    let combination = gained(3.37, Some(1.14), Some(3.18), None);
    let chip = gained(3.06, None, Some(3.48), None);
    let hierarchy = gained(2.22, Some(1.12), Some(2.68), Some(7.2));
    let versions = gained(1.03, None, None, Some(6.9));
    [
        ("fg+", fg_plus, TechniqueGains::default()),
        ("+ command combination", combined, combination),
        ("+ locks on chip", on_chip, chip),
        ("+ hierarchical locks", local, hierarchy),
        ("+ two levels of versions", all, versions),
    ]
}

pub(super) const ABLATION_RUNS: u64 = 5;

/// Measures the gain of each technique. In a mix of lookups and inserts the median lies in the gap between the two, so
/// the median of inserts is compared.
pub(super) fn ablation(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut before: Option<TreeOutcome> = None;
    let mut gains = Vec::new();
    for (name, config, published) in steps() {
        let setup = bench.options.setup(config, TreeMix::WRITE_INTENSIVE, 0.99);
        let outcome = bench.run(name, &setup)?;
        describe(&mut bench.report, "ablation", name, &outcome);
        let modelled = |what: &str, value, unit| {
            Figure::modelled("ablation", format!("{name}: {what}"), value).unit(unit)
        };
        if let Some(us) = published.half_us {
            let figure = modelled("half of inserts", outcome.write_us(0.5), "us");
            bench.scored(figure, us);
        }
        if let Some(before) = before {
            let gain = outcome.mops / before.mops;
            bench.scored(modelled("gain", gain, "times"), published.throughput);
            gains.push(gain);
            let half = before.write_us(0.5) / outcome.write_us(0.5);
            let half = modelled("half of inserts: times shorter", half, "times");
            bench.scored(half, published.half);
            let tail = before.latency_us(0.99) / outcome.latency_us(0.99);
            let tail = modelled("99 of 100: times shorter", tail, "times");
            bench.scored(tail, published.tail);
        }
        before = Some(outcome);
    }
    bench.order(
        "ablation",
        "every technique gains",
        gains.iter().all(|gain| *gain > 1.0),
    );
    let what = "each technique gains more than the next";
    bench.series("ablation", what, SeriesTrend::Falls, &gains);
    Ok(())
}

/// A mix, its skew, and the published ratios of Sherman to FG+: throughput, and how much longer FG+'s p50 and p99 are.
type RatioRow = (TreeMix, f64, [Option<f64>; 3]);

const PAPER: [RatioRow; 5] = [
    (
        TreeMix::WRITE_ONLY,
        0.99,
        [Some(24.7), Some(1.2), Some(35.8)],
    ),
    (
        TreeMix::WRITE_INTENSIVE,
        0.99,
        [Some(23.6), Some(1.4), Some(30.2)],
    ),
    (TreeMix::READ_INTENSIVE, 0.99, [None, None, None]),
    (
        TreeMix::WRITE_ONLY,
        0.0,
        [Some(1.24), Some(1.24), Some(2.01)],
    ),
    (
        TreeMix::WRITE_INTENSIVE,
        0.0,
        [Some(1.15), Some(1.19), Some(1.27)],
    ),
];
pub(super) const PAPER_RUNS: u64 = 2 * PAPER.len() as u64;

/// Runs Sherman and FG+, one after the other.
pub(super) fn both(
    bench: &mut TreeBench<'_>,
    name: &str,
    change: impl Fn(TreeSetup) -> TreeSetup,
    (mix, theta): (TreeMix, f64),
) -> Result<[TreeOutcome; 2], Error> {
    let sherman = bench.options.setup(Config::sherman_published(), mix, theta);
    let sherman = bench.run(name, &change(sherman))?;
    let fg = bench.options.setup(Config::fg_plus(), mix, theta);
    let fg = bench.run(name, &change(fg))?;
    Ok([sherman, fg])
}

/// Compares Sherman with FG+ on the paper's mixes (sections 5.2 and 5.3).
pub(super) fn paper(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut skewed = Vec::new();
    for (mix, theta, published) in PAPER {
        let name = format!("{}, skew {theta}", mix.name);
        let [sherman, fg] = both(bench, &name, shorter, (mix, theta))?;
        let mixed = mix.inserts < 100;
        // In a mix of lookups and inserts the median falls on either side of the gap between the two by chance.
        let half = match mixed {
            true => fg.write_us(0.5) / sherman.write_us(0.5),
            false => fg.latency_us(0.5) / sherman.latency_us(0.5),
        };
        let ratios = [
            sherman.mops / fg.mops,
            half,
            fg.latency_us(0.99) / sherman.latency_us(0.99),
        ];
        let whats = [
            "throughput over fg+",
            if mixed {
                "half of inserts: times shorter"
            } else {
                "half: times shorter"
            },
            "99 of 100: times shorter",
        ];
        for ((what, ratio), published) in whats.into_iter().zip(ratios).zip(published) {
            let figure = Figure::modelled("paper", format!("{name}: {what}"), ratio).unit("times");
            bench.scored(figure, published);
        }
        for (system, outcome) in [("sherman", &sherman), ("fg+", &fg)] {
            let throughput = Figure::modelled("paper", format!("{name}: {system}"), outcome.mops);
            bench.show(throughput.unit("M operations a second"));
        }
        if theta > 0.0 {
            skewed.push(ratios[0]);
        }
        if published[0].is_some() {
            let better = ratios.iter().all(|ratio| *ratio > 1.0);
            bench.order(
                "paper",
                &format!("{name}: sherman is faster in all three"),
                better,
            );
        }
    }
    // According to the paper lookups gain little, because the techniques speed up writes.
    let [writes @ .., reads] = skewed.as_slice() else {
        return Ok(());
    };
    let least = writes.iter().all(|gain| gain > reads);
    let what = "skew 0.99: sherman gains least where most operations are lookups";
    bench.order("paper", what, least);
    Ok(())
}

/// Mix, range length, skew, and the published ratio of Sherman to FG+. The paper gives the mix but not the skew. Its
/// remarks on locks make sense only with contention.
const RANGES: [(TreeMix, usize, f64, Option<f64>); 5] = [
    (TreeMix::RANGE_ONLY, 100, 0.99, Some(0.98)),
    (TreeMix::RANGE_ONLY, 1000, 0.99, Some(1.0)),
    (TreeMix::RANGE_ONLY, 100, 0.0, None),
    (TreeMix::RANGE_WRITE, 100, 0.99, Some(1.82)),
    (TreeMix::RANGE_WRITE, 100, 0.0, None),
];
pub(super) const RANGES_RUNS: u64 = 2 * RANGES.len() as u64 + 1;

/// Measures range queries (section 5.3), and the cost of the rule that discards late reads.
pub(super) fn ranges(bench: &mut TreeBench<'_>) -> Result<(), Error> {
    let mut by_length = [Vec::new(), Vec::new()];
    for (mix, range_len, theta, published) in RANGES {
        let mix = mix.with_range(range_len);
        let name = format!("{} of {range_len}, skew {theta}", mix.name);
        let outcomes = both(bench, &name, shorter, (mix, theta))?;
        for (system, outcome) in ["sherman", "fg+"].into_iter().zip(&outcomes) {
            describe(
                &mut bench.report,
                "ranges",
                &format!("{name}: {system}"),
                outcome,
            );
        }
        if published.is_some() && mix.rangers == 100 {
            for (mops, outcome) in by_length.iter_mut().zip(&outcomes) {
                mops.push(outcome.mops);
            }
        }
        let ratio = outcomes[0].mops / outcomes[1].mops;
        let figure = Figure::modelled("ranges", format!("{name}: throughput over fg+"), ratio);
        bench.scored(figure.unit("times"), published);
        if mix.inserts > 0 && mix.rangers < 100 && theta > 0.0 {
            bench.order("ranges", &format!("{name}: sherman is faster"), ratio > 1.0);
        }
    }
    for (system, mops) in ["sherman", "fg+"].into_iter().zip(&by_length) {
        let what = format!("range-only: the longer the range, the fewer a second: {system}");
        bench.series("ranges", &what, SeriesTrend::Falls, mops);
    }
    // The layout with a version in each line detects torn reads for sixteen times as long.
    let mix = TreeMix::RANGE_ONLY.with_range(1000);
    let name = "range-only of 1000, skew 0.99: safe layout";
    let setup = shorter(bench.options.setup(Config::sherman(), mix, 0.99));
    let outcome = bench.run(name, &setup)?;
    describe(&mut bench.report, "ranges", name, &outcome);
    Ok(())
}
