//! Every table under the crash explorer, with parts so small that it grows in every run.

use farbank_check::explore::{Config, explore};
use farbank_index::registry::Table;
use farbank_index::target::TableTarget;
use farbank_pm::sim::Persistency;

fn holds(persistency: Persistency, seeds: std::ops::Range<u64>) {
    for table in Table::ALL {
        let target = TableTarget(table);
        let config = Config::new(persistency);
        let report = explore(&target, &config, seeds.clone(), 2, &mut |_| true);
        assert!(report.holds(), "{report}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_not_durable() {
    holds(Persistency::Adr, 0..3);
}

/// A medium that fails, then a kill, then a power cut: runs that find a published segment freed if a split that failed frees it.
#[test]
fn what_a_failing_medium_left_is_freed_by_nobody() {
    for (table, seed) in [(Table::Cceh, 0xf7), (Table::DashEh, 0x9e8)] {
        let config = Config::new(Persistency::Adr);
        let seeds = seed..seed + 1;
        let report = explore(&TableTarget(table), &config, seeds, 1, &mut |_| true);
        assert!(report.violations.is_empty(), "{report}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_caches_are_durable() {
    holds(Persistency::Eadr, 0..1);
}

#[test]
fn nothing_acknowledged_is_lost_when_sectors_are_lost_between_syncs() {
    holds(Persistency::Page, 0..2);
}
