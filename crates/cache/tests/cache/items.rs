//! Behaviour of a cache, one claim per test.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use farbank_cache::{Cache, CacheSession, Config, CounterBounds};
use farbank_pm::media::Mapped;
use farbank_pm::{Medium, Off, PersistCtx};
use farbank_store::{
    Absence, AreaUsage, CacheStore, Error, GroupDecision, ItemError, ItemKey, ItemSession, Ops,
    ReadView, Session, Store, UpdateDecision, Value,
};

use crate::support::{MIB, clock, config, key};

fn cache(pages: u64) -> Cache<Mapped> {
    let medium = Mapped::anonymous(MIB * (pages + 2)).expect("memory");
    let cache = Cache::create(medium, MIB, config(&clock())).expect("a cache");
    assert_eq!(u64::from(cache.pages()), pages);
    cache
}

fn put(door: &mut CacheSession<Mapped>, name: &[u8], bytes: &[u8]) -> u64 {
    let value = Value {
        bytes,
        ..Value::default()
    };
    door.put_durable(key(name), value).expect("room").0
}

fn get(door: &mut CacheSession<Mapped>, name: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    door.get(key(name), ReadView::Durable, &mut out, &mut |_, _| true)
        .expect("a read")
        .then_some(out)
}

#[test]
fn a_value_is_found_until_it_is_replaced_or_deleted() {
    let cache = cache(4);
    let mut door = cache.new_session();
    assert_eq!(get(&mut door, b"a"), None);
    let first = put(&mut door, b"a", b"one");
    let second = put(&mut door, b"a", b"two, and longer than the first by far");
    assert!(second > first);
    assert_eq!(
        get(&mut door, b"a").as_deref(),
        Some(&b"two, and longer than the first by far"[..])
    );
    assert!(door.delete(key(b"a")).unwrap());
    assert!(!door.delete(key(b"a")).unwrap());
    assert_eq!(get(&mut door, b"a"), None);
    drop(door);
    cache.verify().unwrap();
}

#[test]
fn an_item_larger_than_a_page_is_refused_and_the_old_value_is_kept() {
    let cache = cache(4);
    let mut door = cache.new_session();
    let largest = vec![7; MIB as usize - 64 - 48 - 1];
    put(&mut door, b"k", &largest);
    assert_eq!(get(&mut door, b"k"), Some(largest.clone()));
    let value = Value {
        bytes: &[&largest[..], b"x"].concat(),
        ..Value::default()
    };
    let refused = door.put(key(b"k"), value);
    assert!(
        matches!(refused, Err(Error::ItemTooLarge { .. })),
        "{refused:?}"
    );
    assert_eq!(get(&mut door, b"k"), Some(largest));
}

#[test]
fn least_recently_used_items_are_evicted_first_and_in_order() {
    let medium = Mapped::anonymous(MIB * 8).expect("memory");
    let exact = Config {
        slots_per_refill: 1,
        ..config(&clock())
    };
    let cache = Cache::create(medium, MIB, exact).expect("a cache");
    let mut door = cache.new_session();
    let value = vec![1; 100_000];
    let mut kept = 0_u32;
    while kept == 0
        || door
            .meta(key(&0_u32.to_le_bytes()), ReadView::Durable)
            .unwrap()
            .is_some()
    {
        put(&mut door, &kept.to_le_bytes(), &value);
        kept += 1;
    }
    // The class is full now. Evictions take the least recently used items first, and a read makes an item recently
    // used.
    let oldest: Vec<u32> = (0..kept)
        .filter(|n| get(&mut door, &n.to_le_bytes()).is_some())
        .collect();
    // These items were just read in this order, so they are evicted in this order.
    assert_eq!(
        get(&mut door, &oldest[0].to_le_bytes()),
        Some(value.clone())
    );
    for (step, next) in oldest.iter().enumerate().skip(1) {
        put(&mut door, &(kept + step as u32).to_le_bytes(), &value);
        let gone = door.meta(key(&next.to_le_bytes()), ReadView::Durable);
        assert_eq!(gone, Ok(None), "{step}");
    }
    assert!(
        door.meta(key(&oldest[0].to_le_bytes()), ReadView::Durable)
            .unwrap()
            .is_some()
    );
}

#[test]
fn expired_items_are_absent_and_their_pages_are_freed() {
    let time = clock();
    let medium = Mapped::anonymous(MIB * 12).expect("memory");
    let cache = Cache::create(medium, MIB, config(&time)).expect("a cache");
    let mut door = cache.new_session();
    for n in 0..2_000_u32 {
        let value = Value {
            bytes: &[3; 1000],
            expires_ms: time.load(Relaxed) + 5_000,
            ..Value::default()
        };
        door.put(key(&n.to_le_bytes()), value).unwrap();
    }
    assert_eq!(door.len(0).unwrap(), 2_000);
    time.fetch_add(5_000, Relaxed);
    assert_eq!(get(&mut door, &7_u32.to_le_bytes()), None);
    time.fetch_add(2_000, Relaxed);
    cache.tidy().unwrap();
    assert_eq!(door.len(0).unwrap(), 0);
    drop(door);
    cache.tidy().unwrap();
    assert_eq!(cache.pages_free() as u32, cache.pages());
    cache.verify().unwrap();
}

#[test]
fn an_area_is_cleared_in_one_step_and_stays_cleared_after_a_restart() {
    let time = clock();
    let medium = Mapped::anonymous(MIB * 12).expect("memory");
    let cache = Cache::create(medium, MIB, config(&time)).expect("a cache");
    let mut door = cache.new_session();
    for area in [3_u16, 60_000] {
        for n in 0..500_u32 {
            let name = n.to_le_bytes();
            door.put_item(&ItemKey::new(area, &name), b"value", 0, None)
                .unwrap();
        }
    }
    cache.clear_area(60_000).unwrap();
    assert_eq!(
        (cache.area_usage(3).items, cache.area_usage(60_000).items),
        (500, 0)
    );
    let name = 7_u32.to_le_bytes();
    let mut out = Vec::new();
    assert_eq!(
        door.get_item(&ItemKey::new(60_000, &name), &mut out),
        Ok(None)
    );
    assert!(
        door.get_item(&ItemKey::new(3, &name), &mut out)
            .unwrap()
            .is_some()
    );
    door.put_item(&ItemKey::new(60_000, &name), b"new", 0, None)
        .unwrap();
    drop(door);
    let medium = cache.into_medium().expect("no session is left");
    let cache = Cache::open(medium, config(&time)).expect("it opens");
    assert_eq!(
        (cache.area_usage(3).items, cache.area_usage(60_000).items),
        (500, 1)
    );
    cache.verify().unwrap();
}

#[test]
fn an_area_that_does_not_exist_is_refused() {
    let cache = cache(4);
    let mut door = cache.new_session();
    let stored = door.put_item(&ItemKey::new(u16::MAX, b"k"), b"v", 0, None);
    assert!(
        matches!(stored, Err(ItemError::Store(Error::NoArea { .. }))),
        "{stored:?}"
    );
    assert!(cache.clear_area(u16::MAX).is_err() && cache.set_quota(u16::MAX, None).is_err());
    assert_eq!(
        door.get_item(&ItemKey::new(u16::MAX, b"k"), &mut Vec::new()),
        Ok(None)
    );
}

#[test]
fn absence_is_reported_with_its_reason_until_the_item_is_replaced() {
    let cache = cache(4);
    let mut door = cache.new_session();
    let over = Value {
        bytes: b"v",
        expires_ms: 1,
        ..Value::default()
    };
    door.put_durable(key(b"expired"), over).expect("room");
    put(&mut door, b"flushed", b"v");
    assert_eq!(door.absence(key(b"expired")), Absence::Expired);
    door.flush_all().unwrap();
    assert_eq!(door.absence(key(b"flushed")), Absence::Flushed);
    assert_eq!(door.absence(key(b"never")), Absence::Missing);
    assert_eq!(cache.stats().cache.unwrap().reclaimed, 0);
    put(&mut door, b"flushed", b"v");
    put(&mut door, b"flushed", b"w");
    assert_eq!(cache.stats().cache.unwrap().reclaimed, 1);
}

#[test]
fn an_expired_item_stays_expired_when_the_clock_is_set_back() {
    let time = clock();
    let now = time.load(Relaxed);
    let medium = Mapped::anonymous(MIB * 8).expect("memory");
    let cache = Cache::create(medium, MIB, config(&time)).expect("a cache");
    let value = Value {
        bytes: b"v",
        expires_ms: now + 1_000,
        ..Value::default()
    };
    cache.new_session().put(key(b"k"), value).unwrap();
    time.store(now + 2_000, Relaxed);
    let medium = cache.close().unwrap().expect("no session is left");
    time.store(now, Relaxed);
    let cache = Cache::open(medium, config(&time)).unwrap();
    assert_eq!(get(&mut cache.new_session(), b"k"), None);
}

#[test]
fn a_quota_holds_for_items_of_all_sizes() {
    let cache = cache(32);
    let mut door = cache.new_session();
    cache.set_quota(5, Some(1 << 20)).unwrap();
    for n in 0..20_000_u32 {
        let name = n.to_le_bytes();
        let value = vec![1; 50 + (n as usize * 37) % 900];
        door.put_item(&ItemKey::new(5, &name), &value, 0, None)
            .unwrap();
        assert!(
            cache.area_usage(5).bytes <= 1 << 20,
            "{:?} after {n}",
            cache.area_usage(5)
        );
    }
    assert!(cache.area_usage(5).items > 500);
    cache.set_quota(5, None).unwrap();
    drop(door);
    cache.verify().unwrap();
}

#[test]
fn merging_sparse_pages_frees_pages() {
    let cache = cache(40);
    let mut door = cache.new_session();
    let total = 40_u32 << 20;
    for n in 0..total / 220 {
        put(&mut door, &n.to_le_bytes(), &[1; 100]);
    }
    // Delete nine of ten items: every page is sparse.
    for n in (0..total / 220).filter(|n| n % 10 != 0) {
        door.delete(key(&n.to_le_bytes())).unwrap();
    }
    drop(door);
    let before = cache.pages_free();
    cache.tidy().unwrap();
    cache.verify().unwrap();
    let used = u64::from(cache.pages()) - cache.pages_free() as u64;
    let live = cache.stats().pool.live_bytes.div_ceil(MIB);
    assert!(
        used <= live + 1,
        "{used} pages for {live}, {before} were free"
    );
    let mut door = cache.new_session();
    for n in (0..total / 220).step_by(10) {
        assert_eq!(get(&mut door, &n.to_le_bytes()), Some(vec![1; 100]), "{n}");
    }
}

#[test]
fn items_of_another_size_take_pages_from_an_idle_class() {
    let cache = cache(16);
    let mut door = cache.new_session();
    for n in 0..200_000_u32 {
        put(&mut door, &n.to_le_bytes(), &[1; 60]);
    }
    assert_eq!(cache.pages_free(), 0);
    for n in 0..2_000_u64 {
        put(&mut door, &n.to_le_bytes(), &[2; 9_000]);
        assert_eq!(get(&mut door, &n.to_le_bytes()), Some(vec![2; 9_000]));
    }
    drop(door);
    cache.verify().unwrap();
}

#[test]
fn a_class_that_evicts_gets_pages_from_an_idle_class_whose_oldest_items_are_evicted() {
    let cache = cache(16);
    let mut door = cache.new_session();
    let pages_of = |least: u64| {
        let classes = cache.slab_classes();
        let of_size = classes.iter().filter(|class| class.slot_bytes >= least);
        of_size.map(|class| class.pages).sum::<u64>()
    };
    let large = |n: u32| (u64::from(n) << 32).to_le_bytes();
    for n in 0..1_000 {
        put(&mut door, &large(n), &[2; 9_000]);
    }
    let before = pages_of(9_000);
    assert!(before >= 8, "{before}");
    assert!(!cache.balance().unwrap(), "no class has evicted anything");
    let mut given = 0;
    for n in 0..1_000_000_u32 {
        put(&mut door, &n.to_le_bytes(), &[1; 60]);
        if n % 10_000 == 0 {
            given += u64::from(cache.balance().unwrap());
        }
    }
    drop(door);
    cache.verify().unwrap();
    let after = pages_of(9_000);
    assert!(
        given >= 3 && after + given == before,
        "{before} to {after}, {given} given"
    );
    let mut door = cache.new_session();
    let kept = |n: &u32| get(&mut door, &large(*n)).is_some();
    let kept: Vec<u32> = (0..1_000).filter(kept).collect();
    let oldest = 1_000 - kept.len() as u32;
    assert!(
        kept.into_iter().eq(oldest..1_000),
        "the newest items are present"
    );
}

#[test]
fn a_cache_shrinks_and_grows_again_within_its_pool() {
    let cache = cache(20);
    let mut door = cache.new_session();
    for n in 0..100_000_u32 {
        put(&mut door, &n.to_le_bytes(), &[1; 150]);
    }
    assert_eq!(cache.resize(8).unwrap(), 8);
    cache.verify().unwrap();
    for n in 0..20_000_u32 {
        put(&mut door, &n.to_le_bytes(), &[2; 150]);
    }
    assert!(cache.stats().pool.live_bytes <= 8 * MIB);
    assert_eq!(cache.resize(20).unwrap(), 20);
    drop(door);
    cache.verify().unwrap();
    assert_eq!(cache.pages_free(), 12);
}

#[test]
fn a_write_with_an_expected_version_fails_on_another_version() {
    let cache = cache(4);
    let mut door = cache.new_session();
    let name = ItemKey::new(0, b"k");
    let first = door.put_item(&name, b"1", 0, None).unwrap();
    let second = door.put_item(&name, b"2", 0, Some(first)).unwrap();
    assert_eq!(
        door.put_item(&name, b"3", 0, Some(first)),
        Err(ItemError::Version(second))
    );
    assert_eq!(
        door.put_item(&ItemKey::new(0, b"x"), b"3", 0, Some(1)),
        Err(ItemError::Absent)
    );
    assert_eq!(get(&mut door, b"k").as_deref(), Some(&b"2"[..]));
}

#[test]
fn counters_stay_within_their_bounds() {
    let cache = cache(4);
    let mut door = cache.new_session();
    let name = ItemKey::new(0, b"stock");
    let bounds = CounterBounds { low: 0, high: 10 };
    assert_eq!(door.add_count(&name, -3, 10, bounds, 0), Ok(7));
    assert_eq!(
        door.add_count(&name, -8, 10, bounds, 0),
        Err(ItemError::OutOfBounds(7))
    );
    assert_eq!(
        door.add_count(&name, i64::MAX, 0, bounds, 0),
        Err(ItemError::OutOfBounds(7))
    );
    assert_eq!(door.add_count(&name, 3, 10, bounds, 0), Ok(10));
    door.set_count(&name, -5, 0).unwrap();
    assert_eq!(
        door.add_count(&name, 1, 0, CounterBounds::default(), 0),
        Ok(-4)
    );
    put(&mut door, b"text", b"12345678");
    assert_eq!(
        door.add_count(&ItemKey::new(0, b"text"), 1, 0, CounterBounds::default(), 0),
        Err(ItemError::NotACounter)
    );
}

#[test]
fn hidden_items_are_returned_only_by_get_hidden() {
    let cache = cache(4);
    let mut door = cache.new_session();
    let name = ItemKey::new(0, b"k");
    put(&mut door, b"k", b"value");
    door.hide(&name).unwrap();
    assert_eq!(get(&mut door, b"k"), None);
    let mut out = Vec::new();
    assert_eq!(door.get_item(&name, &mut out), Err(ItemError::Hidden));
    assert!(out.is_empty());
    assert!(
        door.get_hidden(&name, &mut out)
            .unwrap()
            .is_some_and(|(_, hidden)| hidden)
    );
    assert_eq!(out, b"value");
    put(&mut door, b"k", b"again");
    assert_eq!(get(&mut door, b"k").as_deref(), Some(&b"again"[..]));
}

#[test]
fn a_locked_item_refuses_writes() {
    let cache = cache(4);
    let mut door = cache.new_session();
    let name = ItemKey::new(0, b"k");
    put(&mut door, b"k", b"value");
    door.lock(&name).unwrap();
    assert_eq!(door.lock(&name), Err(ItemError::LockState));
    let value = Value {
        bytes: b"other",
        ..Value::default()
    };
    assert_eq!(door.put(key(b"k"), value), Err(Error::Locked));
    assert_eq!(door.delete(key(b"k")), Err(Error::Locked));
    assert_eq!(
        door.update(key(b"k"), &mut |_| UpdateDecision::Delete),
        Err(Error::Locked)
    );
    assert_eq!(get(&mut door, b"k").as_deref(), Some(&b"value"[..]));
    door.unlock(&name).unwrap();
    assert!(door.delete(key(b"k")).unwrap());
}

#[test]
fn keys_of_a_prefix_are_listed_and_removed_together() {
    let cache = cache(4);
    let mut door = cache.new_session();
    for (key, prefix_bytes) in [
        (&b"user:1:name"[..], 6),
        (b"user:1:mail", 6),
        (b"user:2:name", 6),
        (b"user:1x", 0),
    ] {
        let name = ItemKey {
            area: 1,
            key,
            prefix_bytes,
        };
        door.put_item(&name, b"v", 0, None).unwrap();
    }
    let mut keys = Vec::new();
    let listed = door.prefix_keys(1, b"user:1", &mut |key| keys.push(key.to_vec()));
    listed.unwrap();
    keys.sort();
    assert_eq!(keys, [b"user:1:mail".to_vec(), b"user:1:name".to_vec()]);
    assert_eq!(door.clear_prefix(1, b"user:1"), Ok(2));
    assert_eq!(cache.area_usage(1).items, 2);
}

#[test]
fn a_group_sees_its_own_writes() {
    let cache = cache(4);
    let mut door = cache.new_session();
    put(&mut door, b"a", b"1");
    let keys = [key(b"a"), key(b"b")];
    let verdict = door.group(&keys, &mut |ops| {
        let value = Value {
            bytes: b"2",
            ..Value::default()
        };
        ops.put(keys[1], value)?;
        assert!(ops.meta(keys[1], ReadView::Pending)?.is_some());
        assert!(ops.delete(keys[0])?);
        assert!(ops.meta(keys[0], ReadView::Pending)?.is_none());
        Ok(GroupDecision::Apply)
    });
    assert_eq!(verdict, Ok(GroupDecision::Apply));
    assert_eq!(
        (get(&mut door, b"a"), get(&mut door, b"b")),
        (None, Some(b"2".to_vec()))
    );
}

#[test]
fn all_acknowledged_items_are_found_after_a_kill() {
    let time = clock();
    let medium = Mapped::anonymous(MIB * 24).expect("memory");
    let cache = Cache::create(medium, MIB, config(&time)).expect("a cache");
    let mut door = cache.new_session();
    for n in 0..30_000_u32 {
        put(
            &mut door,
            &n.to_le_bytes(),
            &n.to_le_bytes().repeat(1 + n as usize % 40),
        );
    }
    for n in (0..30_000_u32).step_by(3) {
        put(&mut door, &n.to_le_bytes(), b"second");
    }
    for n in (0..30_000_u32).step_by(7) {
        door.delete(key(&n.to_le_bytes())).unwrap();
    }
    door.commit().unwrap();
    drop(door);
    let medium = cache.into_medium().expect("no session is left");
    let cache = Cache::open(medium, config(&time)).expect("it opens");
    assert!(!cache.opened().clean);
    cache.verify().unwrap();
    let mut door = cache.new_session();
    for n in 0..30_000_u32 {
        let expected = match (n % 7, n % 3) {
            (0, _) => None,
            (_, 0) => Some(b"second".to_vec()),
            _ => Some(n.to_le_bytes().repeat(1 + n as usize % 40)),
        };
        assert_eq!(get(&mut door, &n.to_le_bytes()), expected, "{n}");
    }
    drop(door);
    let medium = cache.close().unwrap().expect("no session is left");
    assert!(
        Cache::open(medium, config(&time))
            .expect("it opens")
            .opened()
            .clean
    );
}

#[test]
fn after_a_reboot_an_unclosed_pool_in_memory_is_empty() {
    let time = clock();
    let booted = |boot: u8| Config {
        boot: Some([boot; 16]),
        ..config(&time)
    };
    let medium = Mapped::anonymous(MIB * 8).expect("memory");
    let cache = Cache::create(medium, MIB, booted(1)).expect("a cache");
    put(&mut cache.new_session(), b"k", b"value");
    let cache = Cache::open(cache.into_medium().unwrap(), booted(1)).unwrap();
    assert_eq!(
        get(&mut cache.new_session(), b"k").as_deref(),
        Some(&b"value"[..])
    );
    let closed = cache.close().unwrap().unwrap();
    let cache = Cache::open(closed, booted(2)).unwrap();
    assert_eq!(
        get(&mut cache.new_session(), b"k").as_deref(),
        Some(&b"value"[..])
    );
    let cache = Cache::open(cache.into_medium().unwrap(), booted(3)).unwrap();
    assert_eq!(get(&mut cache.new_session(), b"k"), None);
    assert_eq!(cache.pages_free() as u32, cache.pages());
}

#[test]
fn quotas_clears_and_resizes_work_during_concurrent_writes() {
    const QUOTA: u64 = 2 << 20;
    // Each writer may exceed the quota by one item.
    const SLACK: u64 = 24 << 10;
    let cache = cache(16);
    cache.set_quota(1, Some(QUOTA)).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                let (mut door, mut state) = (cache.new_session(), thread + 1);
                while !done.load(Relaxed) {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let name = ((state >> 33) % 20_000).to_le_bytes();
                    let (area, len) = ((state >> 60) as u16 % 3, 1 + (state >> 40) as usize % 500);
                    let name = ItemKey::new(area, &name);
                    door.put_item(&name, &name.key.repeat(len), 0, None)
                        .unwrap();
                    let mut out = Vec::new();
                    if door.get_item(&name, &mut out).unwrap().is_some() {
                        assert!(out.chunks(8).all(|chunk| chunk == name.key));
                    }
                    assert!(
                        cache.area_usage(1).bytes <= QUOTA + SLACK,
                        "{:?}",
                        cache.area_usage(1)
                    );
                }
            });
        }
        for turn in 0..30 {
            let pages = [16, 9, 12][turn % 3];
            assert!(cache.resize(pages).unwrap() >= pages, "turn {turn}");
            cache.clear_area((turn % 3) as u16).unwrap();
            cache.tidy().unwrap();
        }
        done.store(true, Relaxed);
    });
    cache.verify().unwrap();
    assert_eq!(cache.resize(8).unwrap(), 8);
    for area in 0..3 {
        cache.clear_area(area).unwrap();
        assert_eq!(cache.area_usage(area), AreaUsage::default());
    }
    cache.tidy().unwrap();
    cache.verify().unwrap();
    assert_eq!(cache.pages_free(), 8);
    assert_eq!(cache.stats().damaged_records, 0);
}

#[test]
fn damage_anywhere_is_a_miss_after_an_open() {
    let time = clock();
    let medium = Mapped::anonymous(MIB * 8).expect("memory");
    let cache = Cache::create(medium, MIB, config(&time)).expect("a cache");
    let mut door = cache.new_session();
    let value = |n: u32| n.to_le_bytes().repeat(20);
    for n in 0..2_000_u32 {
        put(&mut door, &n.to_le_bytes(), &value(n));
    }
    drop(door);
    let mut medium = cache.into_medium().expect("no session is left");
    let (mut ctx, mut state) = (PersistCtx::new(0), 7_u64);
    // The damaged words are in the area table, in item headers, keys and values, and in page heads.
    for round in 0..40 {
        let cache = Cache::open(medium, config(&time)).expect("damage is not an error");
        let mut door = cache.new_session();
        for n in 0..2_000_u32 {
            if let Some(found) = get(&mut door, &n.to_le_bytes()) {
                assert_eq!(found, value(n), "round {round}, key {n}");
            }
            if n % 50 == 0 {
                put(&mut door, &n.to_le_bytes(), &value(n));
            }
        }
        door.scan(0, 0, usize::MAX, &mut |_, _| {}).unwrap();
        drop(door);
        cache.tidy().unwrap();
        medium = cache.into_medium().expect("no session is left");
        for _ in 0..100 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Segment 0, the area table, starts at 1 MiB. Pages follow.
            let at = Off(MIB + (state >> 20) % (MIB + MIB / 4) / 8 * 8);
            let word = medium.load(at) ^ (1 << (state >> 58));
            medium.store(&mut ctx, at, word);
        }
    }
}

#[test]
fn damage_under_a_running_cache_is_a_miss() {
    let medium = Arc::new(Mapped::anonymous(MIB * 8).expect("memory"));
    let shared = Arc::clone(&medium);
    let cache = Cache::create(shared, MIB, config(&clock())).expect("a cache");
    let mut door = cache.new_session();
    let value = |n: u32| n.to_le_bytes().repeat(20);
    let (mut ctx, mut state) = (PersistCtx::new(9), 3_u64);
    for round in 0..400_u32 {
        for n in 0..200_u32 {
            let (name, mut out) = (n.to_le_bytes(), Vec::new());
            let found = door.get(key(&name), ReadView::Durable, &mut out, &mut |_, _| true);
            if found.unwrap() {
                assert_eq!(out, value(n), "round {round}, key {n}");
            } else {
                let bytes = value(n);
                let value = Value {
                    bytes: &bytes,
                    ..Value::default()
                };
                door.put(key(&name), value).unwrap();
            }
        }
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let at = Off(2 * MIB + 64 + (state >> 20) % 40_000 / 8 * 8);
        medium.store(&mut ctx, at, medium.load(at) ^ (1 << (state >> 58)));
        if round % 50 == 0 {
            drop(door);
            cache.tidy().unwrap();
            door = cache.new_session();
        }
    }
    assert!(cache.stats().damaged_records > 0);
}

#[test]
fn threads_never_read_a_value_that_was_not_written_for_the_key() {
    let cache = cache(6);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut door = cache.new_session();
                let mut state = thread + 1;
                for _ in 0..60_000 {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let n = (state >> 33) % 5_000;
                    let name = n.to_le_bytes();
                    match state >> 60 {
                        0 => {
                            door.delete(key(&name)).unwrap();
                        }
                        1..=6 => {
                            let len = 1 + (state >> 40) as usize % 200;
                            put(&mut door, &name, &name.repeat(len));
                        }
                        _ => {
                            if let Some(value) = get(&mut door, &name) {
                                assert!(value.chunks(8).all(|chunk| chunk == name), "key {n}");
                            }
                        }
                    }
                }
            });
        }
    });
    cache.verify().unwrap();
    assert_eq!(cache.stats().damaged_records, 0);
}
