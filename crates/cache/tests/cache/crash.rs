//! The cache under the crash explorer: no item it shows is ever old, deleted or expired.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use farbank_cache::target::MdbTarget;
use farbank_cache::{Cache, OpenError};
use farbank_check::explore::{ExploreConfig, explore};
use farbank_pm::pool::{PoolError, PoolIdentity};
use farbank_pm::sim::{CrashState, Persistency, Sim};

fn holds(persistency: Persistency, seeds: std::ops::Range<u64>) {
    let report = explore(
        &MdbTarget,
        &ExploreConfig::new(persistency),
        seeds,
        2,
        &mut |_| true,
    );
    assert!(report.holds(), "{report}");
    println!("{report}");
}

#[test]
fn no_old_item_comes_back_in_mode_adr() {
    holds(Persistency::Adr, 0..2);
}

#[test]
fn no_old_item_comes_back_in_mode_eadr() {
    holds(Persistency::Eadr, 0..1);
}

#[test]
fn no_old_item_comes_back_in_mode_word() {
    holds(Persistency::Word, 0..1);
}

#[test]
fn no_old_item_comes_back_in_mode_page() {
    holds(Persistency::Page, 0..3);
}

#[test]
fn a_crash_during_creation_leaves_a_cache_or_no_pool() {
    const BYTES: u64 = 256 << 10;
    const PAGE_BYTES: u64 = 16 << 10;
    let config = || farbank_cache::Config {
        background_maintenance: false,
        ..farbank_cache::Config::default()
    };
    let identity = PoolIdentity {
        id: [7; 16],
        created_unix_s: 1,
    };
    let near = |room: farbank_cache::MetadataRoom| Ok(Sim::new(room.bytes, Persistency::Eadr));
    for persistency in Persistency::ALL {
        let sim = Sim::new(BYTES, persistency);
        let counts = Arc::new([const { AtomicU32::new(0) }; 2]);
        let counted = Arc::clone(&counts);
        sim.observe(Some(Arc::new(move |state: CrashState| {
            let images = state.images(100, 1).map(|cut| state.image(&cut));
            let mut sims: Vec<Sim> = images.map(|i| Sim::from_image(i, persistency)).collect();
            sims.push(state.killed());
            for sim in sims {
                match Cache::open_on(sim, config(), near) {
                    Ok(_) => counted[0].fetch_add(1, Relaxed),
                    Err(OpenError::Pool(PoolError::NotAPool(_) | PoolError::Damaged(_))) => {
                        counted[1].fetch_add(1, Relaxed)
                    }
                    Err(error) => {
                        panic!("{persistency}: the pool was created, but is not a cache: {error}")
                    }
                };
            }
        })));
        let made = Cache::create_as(sim.clone(), PAGE_BYTES, identity, config(), near);
        sim.observe(None);
        drop(made.expect("there is room"));
        let [caches, none] = counts.each_ref().map(|count| count.load(Relaxed));
        assert!(caches > 0 && none > 0, "{persistency}: {caches} and {none}");
    }
}
