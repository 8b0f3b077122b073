//! Tests on small clusters with short windows.

use farbank_tree::{Config, HOST_LOCKS_MAX};

use super::experiments::run;
use super::load::TreeMix;
use super::options::{TreeExperiment, TreeOptions, TreeSystem};
use super::run::{TreeOutcome, TreeSetup, fairness};
use crate::figure::{Figure, Report, Scores, Verdict};
use crate::registry::ExperimentKey as _;

fn options(experiment: TreeExperiment) -> TreeOptions {
    TreeOptions {
        experiment,
        systems: TreeSystem::ALL.to_vec(),
        mix: TreeMix::WRITE_INTENSIVE,
        theta: 0.99,
        servers: 2,
        threads: 3,
        coroutines: 1,
        entries: 4_000,
        key_bytes: 8,
        cache_bytes: None,
        window_us: 500,
        seed: 1,
    }
}

fn found(options: &TreeOptions) -> Report {
    run(options, &mut |_| true).unwrap()
}

fn figure<'a>(report: &'a Report, name: &str) -> &'a Figure {
    let figure = report.figures.iter().find(|figure| figure.name == name);
    figure.unwrap_or_else(|| panic!("figure {name} is missing in {:?}", report.figures))
}

fn one(system: TreeSystem, change: impl Fn(TreeSetup) -> TreeSetup) -> TreeOutcome {
    let setup = options(TreeExperiment::Mix).setup(system.config(), TreeMix::WRITE_INTENSIVE, 0.99);
    change(setup).run().unwrap()
}

#[test]
fn every_experiment_reports_its_exact_number_of_steps() {
    for experiment in [
        TreeExperiment::Mix,
        TreeExperiment::Successors,
        TreeExperiment::Counts,
        TreeExperiment::Locks,
        TreeExperiment::Messages,
        TreeExperiment::Causes,
        TreeExperiment::Published,
    ] {
        let mut steps = Vec::new();
        let report = run(&options(experiment), &mut |step| {
            steps.push((step.done, step.all));
            true
        });
        let report = report.unwrap();
        let all = steps.len() as u64;
        assert!(
            steps
                .iter()
                .enumerate()
                .all(|(n, step)| *step == (n as u64, all)),
            "{experiment:?}"
        );
        assert!(
            report.figures.iter().all(|figure| figure.value.is_finite()),
            "{experiment:?}"
        );
        let mut figures = report.figures.iter();
        let has_bounds = figures.any(|figure| figure.verdict().is_some());
        assert_eq!(
            has_bounds,
            !experiment.row().bounds.is_empty(),
            "{experiment:?}"
        );
        let stopped = run(&options(experiment), &mut |step| step.done == 0);
        assert!(
            stopped.is_err(),
            "{experiment:?} continues after it was stopped"
        );
    }
}

#[test]
fn every_published_value_of_the_paper_is_scored() {
    // Throughput of three ways of locking, two medians, three 99th percentiles, and two of them in microseconds.
    let rows = |experiment| Scores::of(&found(&options(experiment)).figures).all();
    assert_eq!(rows(TreeExperiment::Locks), 3 + 2 + 3 + 2);
    // Four gains, two medians, three 99th percentiles, and the median in microseconds before and after versions.
    assert_eq!(rows(TreeExperiment::Ablation), 4 + 2 + 3 + 2);
    // Four mixes with three ratios each.
    assert_eq!(rows(TreeExperiment::Paper), 4 * 3);
    assert_eq!(rows(TreeExperiment::Ranges), 3);
    assert_eq!(rows(TreeExperiment::Keys), 3);
    // Round trips 3, lookups 2, rereads 1, splits 1, bytes 1, retries 2.
    assert_eq!(rows(TreeExperiment::Counts), 10);
}

#[test]
fn a_bound_on_splits_is_not_measured_if_no_node_was_split() {
    let report = found(&options(TreeExperiment::Counts));
    let splits = figure(&report, "sherman: writes that split");
    assert_eq!((splits.value, splits.events), (0.0, Some(0)));
    assert_eq!(splits.verdict(), Some(Verdict::NotMeasured));
}

#[test]
fn with_warm_caches_operations_have_the_costs_of_the_paper() {
    let sherman = one(TreeSystem::ShermanPublished, |setup| setup);
    let fg = one(TreeSystem::FgPlus, |setup| setup);
    for tally in [&sherman.tally, &fg.tally] {
        assert!(tally.operations > 100);
        assert_eq!(tally.cache_hits, tally.operations);
    }
    assert_eq!(sherman.tally.write_trips.share(|n| n == 2 || n == 3), 1.0);
    assert_eq!(sherman.tally.write_bytes.share(|n| n == 17), 1.0);
    assert_eq!(fg.tally.write_trips.share(|n| n == 4), 1.0);
    assert_eq!(fg.tally.write_bytes.share(|n| n == 1024), 1.0);
}

#[test]
fn extra_round_trips_before_a_release_reduce_throughput() {
    let held = |lone_release_trips| {
        one(TreeSystem::FgPlus, |setup| TreeSetup {
            config: Config {
                lone_release_trips,
                ..setup.config
            },
            ..setup
        })
    };
    let (short, long) = (held(0), held(3));
    assert_eq!(long.tally.write_trips.share(|n| n == 7), 1.0);
    assert!(long.mops < short.mops, "{}, {}", long.mops, short.mops);
}

#[test]
fn nodes_that_share_few_locks_wait_for_each_other() {
    let retries = |host_locks| {
        let few = one(TreeSystem::FgPlus, |setup| TreeSetup {
            config: Config {
                host_locks,
                ..setup.config
            },
            theta: 0.0,
            ..setup
        });
        few.tally.lock_retries.share(|n| n > 0)
    };
    let (many, few) = (retries(HOST_LOCKS_MAX), retries(4));
    assert!(many < 0.05 && few > 0.1, "{many}, {few}");
}

#[test]
fn the_seed_determines_the_digest() {
    let digest = |seed| one(TreeSystem::Sherman, |setup| TreeSetup { seed, ..setup }).digest;
    assert_eq!(digest(3), digest(3));
    assert_ne!(digest(3), digest(4));
}

#[test]
fn several_clients_of_a_thread_do_more_than_one_but_less_than_clients_on_threads_of_their_own() {
    let mops = |threads, coroutines| {
        let change = |setup| TreeSetup {
            threads,
            coroutines,
            theta: 0.0,
            ..setup
        };
        one(TreeSystem::Sherman, change).mops
    };
    let (one, three, apart) = (mops(1, 1), mops(1, 3), mops(3, 1));
    assert!(
        one * 1.3 < three && three * 1.05 < apart,
        "{one}, {three}, {apart}"
    );
}

#[test]
fn a_small_cache_costs_round_trips() {
    let small = TreeOptions {
        cache_bytes: Some(1 << 10),
        systems: vec![TreeSystem::ShermanPublished],
        theta: 0.0,
        entries: 40_000,
        ..options(TreeExperiment::Mix)
    };
    let report = found(&small);
    let name = "sherman, published layout: led to the right leaf by the cache";
    assert!(figure(&report, name).value < 0.5);
    let name = "sherman, published layout: writes of 3 round trips";
    assert!(figure(&report, name).value < 0.5);
}

#[test]
fn jains_index_is_one_for_equal_clients_and_one_nth_for_a_single_active_one() {
    assert_eq!(fairness(&[5, 5, 5, 5]), (1.0, 1.0));
    assert_eq!(fairness(&[8, 0, 0, 0]), (0.0, 0.25));
    assert_eq!(fairness(&[0, 0]), (0.0, 0.0));
}
