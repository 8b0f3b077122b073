//! The cache under the crash explorer: what it shows is never old, deleted or expired.

use farbank_cache::target::MdbTarget;
use farbank_check::explore::{Config, explore};
use farbank_pm::sim::Persistency;

fn holds(persistency: Persistency, seeds: std::ops::Range<u64>) {
    let report = explore(&MdbTarget, &Config::new(persistency), seeds, 2, &mut |_| {
        true
    });
    assert!(report.holds(), "{report}");
    println!("{report}");
}

#[test]
fn nothing_old_comes_back_when_caches_are_not_durable() {
    holds(Persistency::Adr, 0..3);
}

#[test]
fn nothing_old_comes_back_when_caches_are_durable() {
    holds(Persistency::Eadr, 0..1);
}

#[test]
fn nothing_old_comes_back_when_words_are_lost_one_by_one() {
    holds(Persistency::Word, 0..2);
}

#[test]
fn nothing_old_comes_back_when_sectors_are_lost_between_syncs() {
    holds(Persistency::Page, 0..4);
}
