//! Tests of the read cache: gets are served from it, and return the same values as without it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::media::Mapped;
use farbank_store::{GroupDecision, Key, ReadCacheStats, ReadView, Session, Store, Value};

const SEGMENT_BYTES: u64 = 64 << 10;
const POOL_BYTES: u64 = 8192 + 64 * SEGMENT_BYTES;
/// Number of gets after which the cache certainly holds a key, unless its row is full.
const MANY: u64 = 16;

fn store(config: Config) -> Kv<Mapped> {
    let medium = Mapped::anonymous(POOL_BYTES).expect("memory");
    Kv::create(medium, SEGMENT_BYTES, config).expect("a fresh store")
}

fn figures(kv: &Kv<Mapped>) -> ReadCacheStats {
    kv.stats().read_cache.expect("the store has a read cache")
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn plain(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

fn get(session: &mut dyn Session, name: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = session.get(key(name), ReadView::Durable, &mut out, &mut |_, _| true);
    found.expect("nothing is damaged").then_some(out)
}

fn set(session: &mut dyn Session, name: &[u8], bytes: &[u8]) {
    let done = session.put_durable(key(name), plain(bytes));
    done.expect("the pool has room");
}

/// Reads a key until the cache holds it.
fn warm(kv: &Kv<Mapped>, session: &mut dyn Session, name: &[u8]) {
    let before = figures(kv).hits;
    (0..MANY).for_each(|_| drop(get(session, name)));
    assert!(figures(kv).hits > before, "the key is read from the cache");
}

#[test]
fn a_value_that_the_reader_does_not_want_is_not_cached() {
    let kv = store(Config::default());
    let mut session = kv.session();
    set(&mut *session, b"k", b"value");
    for earlier in [&b"another reply"[..], b""] {
        for _ in 0..MANY {
            let mut out = earlier.to_vec();
            let found = session.get(key(b"k"), ReadView::Durable, &mut out, &mut |_, _| false);
            assert_eq!(found, Ok(true));
            assert_eq!(out, earlier);
        }
        assert_eq!(get(&mut *session, b"k").as_deref(), Some(&b"value"[..]));
    }
}

#[test]
fn a_key_that_is_read_often_is_read_from_the_cache() {
    let kv = store(Config::default());
    let mut session = kv.session();
    set(&mut *session, b"hot", b"value");
    for n in 0..100 {
        assert_eq!(
            get(&mut *session, b"hot").as_deref(),
            Some(&b"value"[..]),
            "{n}"
        );
    }
    let stats = figures(&kv);
    assert!(stats.hits >= 90, "{} hits", stats.hits);
    assert_eq!(stats.hits + stats.misses, 100);
}

/// Reads all keys twice in the same order. A cache that admits every key would evict each before its second read.
#[test]
fn one_read_of_every_key_leaves_most_of_a_full_cache_unchanged() {
    const KEYS: u32 = 4_000;
    const SLOT_BYTES: u64 = 260;
    let kv = store(Config {
        read_cache_bytes: 1,
        ..Config::default()
    });
    let mut session = kv.session();
    (0..KEYS).for_each(|n| set(&mut *session, &n.to_le_bytes(), b"value"));
    let slots = figures(&kv).bytes / SLOT_BYTES;
    assert!(u64::from(KEYS) > 2 * slots, "{slots} slots");
    let mut scan = || {
        let before = figures(&kv).hits;
        (0..KEYS).for_each(|n| assert!(get(&mut *session, &n.to_le_bytes()).is_some()));
        figures(&kv).hits - before
    };
    assert_eq!(scan(), 0);
    let hits = scan();
    assert!(hits > slots / 2, "{hits} hits of {slots} slots");
}

#[test]
fn a_size_of_0_disables_the_cache() {
    let kv = store(Config {
        read_cache_bytes: 0,
        ..Config::default()
    });
    let mut session = kv.session();
    set(&mut *session, b"hot", b"value");
    (0..MANY).for_each(|_| assert!(get(&mut *session, b"hot").is_some()));
    let stats = figures(&kv);
    assert_eq!((stats.hits, stats.bytes), (0, 0));
}

#[test]
fn every_kind_of_write_is_seen_by_the_next_get() {
    let kv = store(Config::default());
    let mut session = kv.session();
    type Change = fn(&mut dyn Session);
    let changes: [(&str, Option<&[u8]>, Change); 5] = [
        ("a write of its own", Some(b"one"), |session| {
            set(session, b"k", b"one")
        }),
        ("a batch", Some(b"two"), |session| {
            session.put(key(b"k"), plain(b"two")).expect("room");
            session.commit().expect("memory does not fail");
        }),
        ("a group", Some(b"three"), |session| {
            let done = session.group(&[key(b"k")], &mut |ops| {
                ops.put(key(b"k"), plain(b"three"))?;
                Ok(GroupDecision::Apply)
            });
            done.expect("room");
            session.commit().expect("memory does not fail");
        }),
        ("a delete", None, |session| {
            session.delete(key(b"k")).expect("room");
            session.commit().expect("memory does not fail");
        }),
        ("FLUSHALL", None, |session| {
            session.flush_all().expect("memory does not fail")
        }),
    ];
    for (what, then, change) in changes {
        set(&mut *session, b"k", b"zero");
        warm(&kv, &mut *session, b"k");
        change(&mut *session);
        for n in 0..2 * MANY {
            assert_eq!(get(&mut *session, b"k").as_deref(), then, "{what}, get {n}");
        }
    }
}

#[test]
fn an_expired_value_is_not_read_from_the_cache() {
    let time = Arc::new(AtomicU64::new(1_000));
    let clock = Arc::clone(&time);
    let clock: farbank_store::clock::ClockFn = Arc::new(move || clock.load(Relaxed));
    let kv = store(Config {
        clock: Arc::clone(&clock),
        uptime: clock,
        ..Config::default()
    });
    let mut session = kv.session();
    let value = Value {
        expires_ms: 2_000,
        ..plain(b"value")
    };
    session.put_durable(key(b"k"), value).expect("room");
    warm(&kv, &mut *session, b"k");
    time.store(1_999, Relaxed);
    assert!(get(&mut *session, b"k").is_some());
    time.store(2_000, Relaxed);
    assert_eq!(get(&mut *session, b"k"), None);
}

#[test]
fn flags_and_version_are_the_same_from_the_cache() {
    let kv = store(Config::default());
    let mut session = kv.session();
    let value = Value {
        flags: 77,
        kind: 3,
        ..plain(b"value")
    };
    let (version, _) = session.put_durable(key(b"k"), value).expect("room");
    for n in 0..2 * MANY {
        let (mut out, mut seen) = (Vec::new(), None);
        let mut head = |meta: &farbank_store::ValueMeta, _: &mut Vec<u8>| {
            seen = Some(*meta);
            true
        };
        let found = session.get(key(b"k"), ReadView::Durable, &mut out, &mut head);
        assert_eq!(found, Ok(true));
        let meta = seen.expect("the head runs for what is found");
        assert_eq!(
            (meta.flags, meta.kind, meta.version),
            (77, 3, version),
            "get {n}"
        );
        assert_eq!(meta.value_bytes, 5);
    }
    assert!(figures(&kv).hits > 0);
}

/// The cache has few rows, so that keys evict each other. Cleaning moves records while the cache holds copies of them.
#[test]
fn a_cache_smaller_than_the_key_set_returns_the_same_values_as_the_log() {
    let kv = store(Config {
        read_cache_bytes: 1,
        cleaning: CleaningMode::Inline,
        ..Config::default()
    });
    let mut session = kv.session();
    let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for n in 0..200_000_u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(n | 1);
        let name = (random >> 33) % 4_000;
        let bytes = name.to_le_bytes();
        match random >> 60 {
            0..3 => {
                let len = (random >> 40) as usize % 300;
                let value = vec![n as u8; len];
                set(&mut *session, &bytes, &value);
                model.insert(name, value);
            }
            3 => {
                session.delete(key(&bytes)).expect("room");
                session.commit().expect("memory does not fail");
                model.remove(&name);
            }
            _ => assert_eq!(
                get(&mut *session, &bytes).as_ref(),
                model.get(&name),
                "step {n}"
            ),
        }
    }
    session.commit().expect("memory does not fail");
    assert!(kv.stats().writes.segments_cleaned > 0, "records were moved");
    assert!(figures(&kv).hits > 1_000);
    kv.verify().expect("every byte is accounted for");
}

#[test]
fn no_reader_sees_a_value_older_than_one_that_was_seen() {
    const WRITES: u64 = 30_000;
    let kv = store(Config::default());
    let newest_seen = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    set(&mut *kv.session(), b"k", &0_u64.to_le_bytes().repeat(8));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = kv.session();
            for n in 1..=WRITES {
                set(&mut *session, b"k", &n.to_le_bytes().repeat(8));
            }
            done.store(true, Relaxed);
        });
        for reader in 0..2 {
            let (kv, newest_seen, done) = (&kv, &newest_seen, &done);
            scope.spawn(move || {
                let mut session = kv.session();
                while !done.load(Relaxed) {
                    let before = newest_seen.load(Relaxed);
                    // A get of one key uses the cache, a get of several keys does not.
                    let bytes = if reader == 0 {
                        get(&mut *session, b"k").expect("it is never deleted")
                    } else {
                        let mut bytes = Vec::new();
                        let mut each = |_, item: Option<farbank_store::StoredItem<'_>>| {
                            bytes = item.expect("it is never deleted").bytes.to_vec();
                        };
                        let read = session.get_many(&[key(b"k")], ReadView::Durable, &mut each);
                        read.expect("nothing is damaged");
                        bytes
                    };
                    let (words, _) = bytes.as_chunks();
                    let numbers: Vec<u64> = words.iter().map(|w| u64::from_le_bytes(*w)).collect();
                    assert!(
                        numbers.iter().all(|n| *n == numbers[0]),
                        "torn: {numbers:?}"
                    );
                    assert!(numbers[0] >= before, "{} after {before}", numbers[0]);
                    newest_seen.fetch_max(numbers[0], Relaxed);
                }
            });
        }
    });
}
