//! The engine under the crash explorer: a fixed set of seeds in every persistency mode. The lane `crash` has more.

use farbank_check::explore::{ExploreConfig, explore, explore_seed};
use farbank_check::target::Target;
use farbank_kv::target::{KvTarget, segments_mapped};
use farbank_pm::sim::Persistency;

fn holds(persistency: Persistency, seeds: std::ops::Range<u64>) {
    holds_of(&KvTarget::Plain, persistency, seeds);
}

fn holds_of(target: &dyn Target, persistency: Persistency, seeds: std::ops::Range<u64>) {
    let report = explore(
        target,
        &ExploreConfig::new(persistency),
        seeds,
        2,
        &mut |_| true,
    );
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
        holds_of(&KvTarget::Slices, persistency, 0..2);
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_not_durable() {
    holds(Persistency::Adr, 0..2);
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_durable() {
    holds(Persistency::Eadr, 0..1);
}

/// What the other tests here say of segment maps counts only if opens read by them.
#[test]
fn opens_that_are_explored_read_segments_by_their_maps() {
    for persistency in [Persistency::Adr, Persistency::Word, Persistency::Page] {
        let before = segments_mapped();
        holds(persistency, 2..3);
        let mapped = segments_mapped() - before;
        assert!(mapped > 50, "{persistency}: {mapped} segments");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_words_overtake_each_other() {
    holds(Persistency::Word, 0..2);
}

#[test]
fn nothing_acknowledged_is_lost_however_a_crash_looks_to_recovery() {
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

/// Seed 7 once lost what lay beyond a stale `sealed` of a segment that had never been opened.
#[test]
fn nothing_acknowledged_is_lost_when_sectors_are_lost_between_syncs() {
    holds(Persistency::Page, 6..8);
}

/// Under `everysec`, seed 5 once lost large values that had been synced: their extents were reborn before what had
/// replaced the values was durable, and copies of records vouched for extents that were not.
#[test]
fn nothing_synced_is_lost_where_tickets_promise_nothing() {
    holds(Persistency::Relaxed, 5..7);
}

#[test]
fn nothing_acknowledged_is_lost_of_values_with_several_extents() {
    holds_of(&KvTarget::Large, Persistency::Adr, 0..1);
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    for persistency in Persistency::ALL {
        let config = ExploreConfig {
            steps: 20,
            ..ExploreConfig::new(persistency)
        };
        let explored = |seed| explore_seed(&KvTarget::Plain, &config, seed).digest;
        assert_eq!(explored(0x51), explored(0x51), "{persistency}");
        assert_ne!(explored(0x51), explored(0x52), "{persistency}");
    }
}

/// A segment that was handed out after a kill, while its head was visible and not durable, lost both copies of its header in a
/// power cut during the open after a second kill. And a check took a delete in a group that was not committed yet for forgotten.
#[test]
fn a_header_outlives_two_kills_and_a_power_cut() {
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
