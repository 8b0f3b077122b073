//! The engine under the crash explorer: a fixed set of seeds in every persistency mode.

use farbank_check::explore::{Config, explore};
use farbank_kv::target::KvTarget;
use farbank_pm::sim::Persistency;

fn holds(persistency: Persistency, seeds: std::ops::Range<u64>) {
    let report = explore(&KvTarget, &Config::new(persistency), seeds, 2, &mut |_| {
        true
    });
    assert!(report.holds(), "{report}");
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_not_durable() {
    holds(Persistency::Adr, 0..6);
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_durable() {
    holds(Persistency::Eadr, 0..2);
}

#[test]
fn nothing_acknowledged_is_lost_when_sectors_are_lost_between_syncs() {
    holds(Persistency::Page, 0..8);
}
