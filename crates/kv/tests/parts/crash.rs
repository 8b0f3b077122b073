//! The engine under the crash explorer, with a fixed seed in every persistency mode. The suite `crash` runs more seeds,
//! and those of these tests, with more images of each crash point.

use farbank_check::explore::{ExploreConfig, explore, explore_seed};
use farbank_check::target::Target;
use farbank_kv::target::{KvTarget, segments_mapped};
use farbank_pm::sim::Persistency;

/// Images of a crash point in tests that cover a mode or a target, not a certain fault.
const IMAGES_MAX: usize = 4;

fn holds(persistency: Persistency, seeds: std::ops::Range<u64>) {
    holds_of(&KvTarget::Plain, persistency, seeds);
}

fn holds_of(target: &dyn Target, persistency: Persistency, seeds: std::ops::Range<u64>) {
    let config = ExploreConfig {
        cap: IMAGES_MAX,
        ..ExploreConfig::new(persistency)
    };
    let report = explore(target, &config, seeds, 2, &mut |_| true);
    assert!(report.holds(), "{report}");
}

#[test]
fn nothing_acknowledged_is_lost_when_every_operation_is_a_batch() {
    for persistency in [Persistency::Adr, Persistency::Page] {
        holds_of(&KvTarget::Alone, persistency, 0..1);
    }
}

#[test]
fn nothing_acknowledged_is_lost_between_slices_of_a_pass() {
    for persistency in [Persistency::Adr, Persistency::Page] {
        holds_of(&KvTarget::Slices, persistency, 0..1);
    }
}

#[test]
fn nothing_acknowledged_is_lost_with_checkpoints_of_the_index() {
    for persistency in [Persistency::Adr, Persistency::Page, Persistency::Relaxed] {
        holds_of(&KvTarget::Checkpoint, persistency, 0..1);
    }
}

/// In seed 12 a session changes a key that another session's group has staged because of KV-GROUP-6.
#[test]
fn a_key_that_a_group_has_added_is_no_violation() {
    let config = ExploreConfig {
        cap: 1,
        ..ExploreConfig::new(Persistency::Page)
    };
    let report = explore_seed(&KvTarget::Plain, &config, 12);
    assert!(report.holds(), "{report}");
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_not_durable() {
    holds(Persistency::Adr, 0..1);
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn nothing_acknowledged_is_lost_when_caches_are_durable() {
    holds(Persistency::Eadr, 0..1);
}

/// The other tests here cover segment maps only if opens use them.
#[test]
fn opens_that_are_explored_read_segments_by_their_maps() {
    let before = segments_mapped();
    holds(Persistency::Page, 2..3);
    let mapped = segments_mapped() - before;
    assert!(mapped > 50, "{mapped} segments");
}

#[test]
fn nothing_acknowledged_is_lost_when_words_overtake_each_other() {
    holds(Persistency::Word, 0..1);
}

#[test]
#[ignore = "the suite `long-tests` runs it"]
fn nothing_acknowledged_is_lost_in_any_crash_image_that_recovery_can_tell_apart() {
    for persistency in [Persistency::Adr, Persistency::Word, Persistency::Page] {
        let config = ExploreConfig {
            lazy: true,
            steps: 40,
            ..ExploreConfig::new(persistency)
        };
        let report = explore(&KvTarget::Plain, &config, 0..1, 1, &mut |_| true);
        assert!(report.holds() && report.counts.cut_off == 0, "{report}");
        assert!(report.counts.leaves > 100, "{report}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_sectors_are_lost_between_syncs() {
    holds(Persistency::Page, 7..8);
}

#[test]
fn nothing_synced_is_lost_where_drains_are_relaxed() {
    holds(Persistency::Relaxed, 5..6);
}

#[test]
fn nothing_acknowledged_is_lost_of_values_with_several_extents() {
    holds_of(&KvTarget::Large, Persistency::Adr, 0..1);
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    for persistency in Persistency::ALL {
        let config = ExploreConfig {
            steps: 12,
            ..ExploreConfig::new(persistency)
        };
        let explored = |seed| explore_seed(&KvTarget::Plain, &config, seed).digest;
        let digest = explored(0x51);
        assert_eq!(explored(0x51), digest, "{persistency}");
        assert_ne!(explored(0x52), digest, "{persistency}");
    }
}

/// A segment is used after a kill, while its head is visible and not durable. A power cut during the open after a
/// second kill must not lose both its head and its tail. The last seed covers a check of the engine: a delete in a
/// group that is not committed yet is not lost.
#[test]
#[ignore = "the suite `long-tests` runs it"]
fn a_segments_head_survives_two_kills_and_a_power_cut() {
    let seeds = [
        (Persistency::Adr, 0x46),
        (Persistency::Adr, 0xb3),
        (Persistency::Page, 0x20),
    ];
    for (persistency, seed) in seeds {
        let config = ExploreConfig {
            cap: 12,
            ..ExploreConfig::new(persistency)
        };
        let report = explore_seed(&KvTarget::Plain, &config, seed);
        assert!(report.holds(), "{report}");
    }
}
