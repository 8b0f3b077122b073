//! The tree under disasters, and the trials under faults.

use std::ops::Range;

use farbank_tree::trial::{Disaster, Trial};
use farbank_tree::{Config, Format};

fn trial(config: Config, disaster: Disaster) -> Trial {
    Trial {
        config: config.with_small_nodes(),
        disaster,
        read_line_order: config.layout.format == Format::Paper,
    }
}

/// Runs trials; how many calls of them did not succeed.
fn tried(trial: Trial, seeds: Range<u64>) -> u64 {
    let one = |seed| match trial.run(seed) {
        Ok(outcome) => outcome.failed + outcome.cut_off,
        Err(violation) => panic!("{:?}, seed {seed}: {violation}", trial.disaster),
    };
    seeds.map(one).sum()
}

#[test]
fn what_clients_are_told_can_be_explained() {
    for config in [
        Config::sherman(),
        Config::sherman_published(),
        Config::fg_plus(),
        Config::fg(),
    ] {
        assert_eq!(tried(trial(config, Disaster::None), 0..40), 0);
    }
}

#[test]
fn a_crashed_compute_server_loses_nothing_and_leaves_no_lock() {
    assert!(tried(trial(Config::sherman(), Disaster::Crash), 0..150) > 100);
}

#[test]
fn a_compute_server_that_wakes_after_three_leases_does_no_harm() {
    assert!(tried(trial(Config::sherman(), Disaster::Pause), 0..150) > 20);
}

#[test]
fn when_a_memory_server_is_gone_only_what_needs_it_fails() {
    assert!(tried(trial(Config::sherman(), Disaster::Kill), 0..60) > 100);
    assert!(tried(trial(Config::sherman(), Disaster::Empty), 0..60) > 100);
}

#[test]
fn the_published_layout_fails_where_lines_come_in_any_order_and_the_safe_one_does_not() {
    let fails = |config: Config, in_order| {
        let trial = Trial {
            read_line_order: in_order,
            ..trial(config, Disaster::None)
        };
        move |seed| trial.run(seed).is_err()
    };
    assert!((0..500).any(fails(Config::sherman_published(), false)));
    assert!(!(60..100).any(fails(Config::sherman_published(), true)));
    assert!(!(60..100).any(fails(Config::sherman(), false)));
}

#[test]
fn a_separator_that_comes_late_does_not_name_a_leaf_that_is_gone() {
    assert_eq!(
        tried(trial(Config::sherman_published(), Disaster::None), 89..90),
        0
    );
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let trial = trial(Config::sherman(), Disaster::Crash);
    let digests = [3, 3, 4].map(|seed| trial.run(seed).unwrap().digest);
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
}

#[test]
fn keys_of_many_bytes_change_nothing() {
    for config in [
        Config::sherman(),
        Config::sherman_published(),
        Config::fg_plus(),
    ] {
        for key_bytes in [9, 64, 1024] {
            let layout = config.layout.with_keys(key_bytes, 1);
            let config = Config { layout, ..config };
            assert_eq!(tried(trial(config, Disaster::None), 0..6), 0);
        }
    }
}
