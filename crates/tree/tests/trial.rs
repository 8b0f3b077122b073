//! The tree under disasters.

use farbank_tree::trial::{Disaster, Trial};
use farbank_tree::{Config, Format, Layout};

/// Nodes of so few entries that splits, merges and new roots are many.
fn small(config: Config) -> Config {
    let layout = Layout {
        node_bytes: match config.layout.format {
            Format::Safe => 128,
            Format::Paper => 112,
        },
        ..config.layout
    };
    Config { layout, ..config }
}

fn tried(config: Config, disaster: Disaster, seeds: std::ops::Range<u64>) -> u64 {
    let trial = Trial {
        config: small(config),
        disaster,
        read_line_order: config.layout.format == Format::Paper,
    };
    let mut failed = 0;
    for seed in seeds {
        match trial.run(seed) {
            Ok(outcome) => failed += outcome.failed + outcome.cut_off,
            Err(violation) => panic!("{disaster:?}, seed {seed}: {violation}"),
        }
    }
    failed
}

#[test]
fn what_clients_are_told_can_be_explained() {
    for config in [
        Config::sherman(),
        Config::sherman_published(),
        Config::fg_plus(),
    ] {
        assert_eq!(tried(config, Disaster::None, 0..60), 0);
    }
}

#[test]
fn a_crashed_compute_server_loses_nothing_and_leaves_no_lock() {
    assert!(tried(Config::sherman(), Disaster::Crash, 0..150) > 100);
}

#[test]
fn a_compute_server_that_wakes_after_three_leases_does_no_harm() {
    assert!(tried(Config::sherman(), Disaster::Pause, 0..150) > 20);
}

#[test]
fn when_a_memory_server_is_gone_only_what_needs_it_fails() {
    assert!(tried(Config::sherman(), Disaster::Kill, 0..60) > 100);
    assert!(tried(Config::sherman(), Disaster::Empty, 0..60) > 100);
}
