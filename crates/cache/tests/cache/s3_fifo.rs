//! The order of eviction S3-FIFO.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farbank_cache::{Cache, CacheSession, Config, EvictionOrder};
use farbank_pm::media::Mapped;
use farbank_store::{CacheStore, Ops, ReadView, Session, Store, Value};

use crate::support::{MIB, clock, config, key};

const PAGES: u64 = 4;
/// Items of one class that fill the cache.
const ITEMS: u32 = 4_000;
const VALUE: [u8; 900] = [7; 900];

fn config_of(eviction: EvictionOrder) -> Config {
    Config {
        eviction,
        ..config(&clock())
    }
}

fn create(config: Config) -> Cache<Mapped> {
    let medium = Mapped::anonymous(MIB * (PAGES + 2)).expect("memory");
    Cache::create(medium, MIB, config).expect("a cache")
}

fn name(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn put(session: &mut CacheSession<Mapped>, number: u32) {
    let value = Value {
        bytes: &VALUE,
        ..Value::default()
    };
    let put = session.put_durable(key(&name(number)), value);
    put.expect("room");
}

fn has(session: &mut CacheSession<Mapped>, number: u32) -> bool {
    let mut out = Vec::new();
    let found = session.get(
        key(&name(number)),
        ReadView::Durable,
        &mut out,
        &mut |_, _| true,
    );
    let is_found = found.expect("a read");
    assert!(!is_found || out == VALUE);
    is_found
}

/// Stores items, reads the first 100 often, and then stores many items that are never read. Returns how many of the 100
/// are found afterwards.
fn kept_after_a_scan(eviction: EvictionOrder) -> usize {
    let cache = create(config_of(eviction));
    let mut session = cache.new_session();
    for number in 0..ITEMS / 2 {
        put(&mut session, number);
    }
    for _ in 0..3 {
        for number in 0..100 {
            assert!(has(&mut session, number));
        }
    }
    for number in ITEMS..5 * ITEMS {
        put(&mut session, number);
    }
    let kept = (0..100).filter(|number| has(&mut session, *number)).count();
    drop(session);
    cache.verify().unwrap();
    kept
}

#[test]
fn items_that_are_read_again_survive_a_scan_that_evicts_them_from_an_lru_list() {
    assert_eq!(kept_after_a_scan(EvictionOrder::Lru), 0);
    assert_eq!(kept_after_a_scan(EvictionOrder::S3Fifo), 100);
}

#[test]
fn a_key_that_returns_soon_after_its_eviction_stays_longer_than_new_keys() {
    let cache = create(config_of(EvictionOrder::S3Fifo));
    let mut session = cache.new_session();
    for number in 0..2 * ITEMS {
        put(&mut session, number);
    }
    // It was evicted from the small queue, so it begins on the main one.
    let back = (0..2 * ITEMS)
        .rev()
        .find(|number| !has(&mut session, *number));
    let back = back.expect("an evicted key");
    put(&mut session, back);
    for number in 0..ITEMS {
        put(&mut session, 3 * ITEMS + number);
    }
    assert!(has(&mut session, back));
    drop(session);
    cache.verify().unwrap();
}

/// Acquisitions of the lock while 10,000 items are read.
fn locks_of_reads(eviction: EvictionOrder) -> u64 {
    let locks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&locks);
    let config = Config {
        lock_watch: Some(Arc::new(move |is_acquired| {
            counted.fetch_add(u64::from(is_acquired), Relaxed);
        })),
        ..config_of(eviction)
    };
    let cache = create(config);
    let mut session = cache.new_session();
    for number in 0..100 {
        put(&mut session, number);
    }
    let before = locks.load(Relaxed);
    for number in 0..10_000 {
        assert!(has(&mut session, number % 100));
    }
    locks.load(Relaxed) - before
}

#[test]
fn reads_take_no_lock() {
    assert!(locks_of_reads(EvictionOrder::Lru) > 100);
    assert_eq!(locks_of_reads(EvictionOrder::S3Fifo), 0);
}

#[test]
fn a_cache_whose_items_were_all_read_often_evicts() {
    let cache = create(config_of(EvictionOrder::S3Fifo));
    let mut session = cache.new_session();
    let evictions = || cache.stats().cache.expect("a cache").evictions;
    let mut stored = 0;
    while evictions() == 0 {
        put(&mut session, stored);
        stored += 1;
    }
    for _ in 0..4 {
        for number in 0..stored {
            has(&mut session, number);
        }
    }
    let before = evictions();
    for number in 2 * ITEMS..2 * ITEMS + 64 {
        put(&mut session, number);
    }
    assert!(evictions() > before);
    drop(session);
    cache.verify().unwrap();
}

#[test]
fn lists_agree_after_updates_deletes_resizes_and_clears() {
    let cache = create(config_of(EvictionOrder::S3Fifo));
    let mut session = cache.new_session();
    let mut state = 1_u64;
    let mut draw = |end: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % end
    };
    for round in 0..8 {
        for _ in 0..4_000 {
            let number = draw(2 * u64::from(ITEMS)) as u32;
            match draw(10) {
                0..5 => put(&mut session, number),
                5 => drop(session.delete(key(&name(number))).unwrap()),
                _ => drop(has(&mut session, number / 8)),
            }
        }
        match round {
            2 => drop(cache.resize(PAGES as u32 - 2).unwrap()),
            4 => drop(cache.resize(PAGES as u32).unwrap()),
            6 => cache.clear_area(0).unwrap(),
            _ => drop(cache.tidy().unwrap()),
        }
        cache.verify().unwrap();
    }
}

#[test]
fn a_pool_may_be_opened_with_another_order() {
    let mut medium = None;
    for eviction in [
        EvictionOrder::S3Fifo,
        EvictionOrder::Lru,
        EvictionOrder::S3Fifo,
    ] {
        let config = config_of(eviction);
        let cache = match medium.take() {
            None => create(config),
            Some(medium) => Cache::open(medium, config).expect("the same cache"),
        };
        let mut session = cache.new_session();
        let is_new = cache.opened().keys == 0;
        for number in 0..500 {
            if is_new {
                put(&mut session, number);
            }
            assert!(has(&mut session, number), "{eviction:?}: {number}");
        }
        for number in 0..2 * ITEMS {
            put(&mut session, 1_000 + number);
        }
        for number in 0..500 {
            put(&mut session, number);
        }
        drop(session);
        cache.verify().unwrap();
        medium = cache.into_medium();
    }
}
