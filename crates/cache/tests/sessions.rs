//! Sessions of a cache: closing, panics, conflicts, drops, forks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farbank_cache::{Cache, Config};
use farbank_pm::media::Mapped;
use farbank_pm::process_stamp::in_forked_child;
use farbank_pm::sim::{Persistency, Sim};
use farbank_store::{
    CONFLICT_WAIT, CacheStore, ConflictPolicy, DATABASES, Error, GroupDecision, Key, Ops, ReadView,
    Session, Store, UpdateDecision, Value, ValueMeta,
};

fn cache() -> Cache<Mapped> {
    let config = Config {
        background_maintenance: false,
        ..Config::default()
    };
    Cache::create(Mapped::anonymous(4 << 20).unwrap(), 64 << 10, config).unwrap()
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn value(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

fn put(session: &mut dyn Session, k: &[u8], v: &[u8]) -> Result<(), Error> {
    session.put(key(k), value(v)).map(drop)
}

fn get(cache: &Cache<Mapped>, k: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = cache
        .new_session()
        .get(key(k), ReadView::Durable, &mut out, &mut |_, _| true);
    found.unwrap().then_some(out)
}

#[test]
fn a_cache_with_sessions_is_not_closed() {
    let cache = cache();
    let mut session = cache.new_session();
    put(&mut session, b"k", b"1").unwrap();
    let closed = cache.close().err();
    assert_eq!(closed, Some(Error::SessionsAlive { sessions: 1 }));
    session.commit().unwrap();
}

#[test]
fn after_a_batch_that_could_not_be_written_every_commit_of_its_session_fails() {
    let config = Config {
        background_maintenance: false,
        ..Config::default()
    };
    let sim = Sim::new(4 << 20, Persistency::Adr);
    let cache = Cache::create(sim.clone(), 64 << 10, config).unwrap();
    let (mut one, mut other) = (cache.new_session(), cache.new_session());
    put(&mut one, b"k", b"1").unwrap();
    other.on_conflict(ConflictPolicy::Commit);
    put(&mut other, b"x", b"2").unwrap();
    sim.fail_drain(1);
    // Another session has locked k, so the put writes the batch with x first (MDB-BATCH-2).
    let refused = put(&mut other, b"k", b"3");
    assert!(matches!(refused, Err(Error::Poisoned(_))), "{refused:?}");
    // The put of x must not be acknowledged (MDB-BATCH-4).
    for _ in 0..2 {
        let committed = other.commit();
        assert!(
            matches!(committed, Err(Error::Poisoned(_))),
            "{committed:?}"
        );
    }
}

#[test]
fn a_panic_in_a_callers_function_releases_every_key_lock() {
    let cache = cache();
    let mut session = cache.new_session();
    let group = AssertUnwindSafe(|| {
        session.group(&[key(b"a"), key(b"b")], &mut |ops| {
            ops.put(key(b"a"), value(b"half"))?;
            panic!("the caller's");
        })
    });
    assert!(catch_unwind(group).is_err());
    let update = AssertUnwindSafe(|| session.update(key(b"c"), &mut |_| panic!("the caller's")));
    assert!(catch_unwind(update).is_err());
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut other = cache.new_session();
            for name in [b"a", b"b", b"c"] {
                put(&mut other, name, b"theirs").unwrap();
            }
            other.commit().unwrap();
        });
        other.join().unwrap();
    });
    session.commit().unwrap();
    assert_eq!(get(&cache, b"a").unwrap(), b"theirs");
}

#[test]
fn a_group_reads_and_replaces_what_its_session_has_staged() {
    let cache = cache();
    let mut session = cache.new_session();
    session.on_conflict(ConflictPolicy::Commit);
    put(&mut session, b"a", b"committed").unwrap();
    session.commit().unwrap();
    put(&mut session, b"a", b"staged").unwrap();
    let mut read = Vec::new();
    let done = session.group(&[key(b"a"), key(b"b")], &mut |ops| {
        assert!(ops.get(key(b"a"), ReadView::Durable, &mut read, &mut |_, _| true)?);
        ops.put(key(b"a"), value(b"grouped"))?;
        ops.put(key(b"b"), value(b"grouped"))?;
        Ok(GroupDecision::Apply)
    });
    assert_eq!(
        (done, &read[..]),
        (Ok(GroupDecision::Apply), &b"staged"[..])
    );
    session.commit().unwrap();
    for name in [b"a", b"b"] {
        assert_eq!(get(&cache, name).unwrap(), b"grouped");
    }
}

#[test]
fn a_key_that_a_batch_updates_in_an_area_with_a_quota_is_unlocked_by_the_commit() {
    let cache = cache();
    cache.set_quota(0, Some(1 << 20)).unwrap();
    let (mut session, mut other) = (cache.new_session(), cache.new_session());
    for round in 0..10 {
        put(&mut session, b"k", b"1").unwrap();
        // With a quota the update first writes the batch, and keeps the lock of its own key.
        let mut found = Vec::new();
        let updated = session.update(key(b"k"), &mut |old| {
            found.extend_from_slice(old.unwrap().bytes);
            UpdateDecision::Put {
                bytes: b"2".to_vec(),
                expires_ms: 0,
                flags: 0,
                kind: 0,
            }
        });
        assert!(updated.is_ok(), "round {round}: {updated:?}");
        assert_eq!(found, b"1", "round {round}");
        session.commit().unwrap();
        assert_eq!(get(&cache, b"k"), Some(b"2".to_vec()), "round {round}");
        assert_eq!(put(&mut other, b"k", b"3"), Ok(()), "round {round}");
        other.commit().unwrap();
    }
}

#[test]
fn an_idle_session_keeps_no_slot_from_reuse_whatever_it_has_read() {
    /// Reads with a session that is idle afterwards.
    type Read = fn(&mut dyn Session) -> Result<(), Error>;
    const KEY: [u8; 8] = 1_u64.to_le_bytes();
    let reads: [(&str, Read); 6] = [
        ("get", |session| {
            let found = session.get(
                key(&KEY),
                ReadView::Durable,
                &mut Vec::new(),
                &mut |_, _| true,
            );
            found.map(|found| assert!(found))
        }),
        ("meta", |session| {
            session
                .meta(key(&KEY), ReadView::Durable)
                .map(|meta| assert!(meta.is_some()))
        }),
        ("get_many", |session| {
            session.get_many(&[key(&KEY)], ReadView::Durable, &mut |_, _| {})
        }),
        ("absence", |session| {
            session.absence(key(b"none"));
            Ok(())
        }),
        ("scan", |session| {
            session.scan(0, 0, 1_000, &mut |_, _| {}).map(drop)
        }),
        ("len", |session| {
            session.len(0).map(|keys| assert!(keys > 0))
        }),
    ];
    for (name, read) in reads {
        overwrite_beside(name, read);
    }
}

/// Overwrites items of which the pool has room for 4,000, after `read` with another session.
fn overwrite_beside(name: &str, read: impl Fn(&mut dyn Session) -> Result<(), Error>) {
    const KEYS: u64 = 100;
    const ROUNDS: u64 = 100;
    let cache = cache();
    let (mut idle, mut session) = (cache.new_session(), cache.new_session());
    for round in 0..ROUNDS {
        for number in 0..KEYS {
            let written = put(&mut session, &number.to_le_bytes(), &[7; 900]);
            assert_eq!(written, Ok(()), "{name}, round {round}");
        }
        session.commit().unwrap();
        if round == 0 {
            read(&mut idle).unwrap();
        }
    }
    // The slots of overwritten items are used again, so no item is evicted.
    assert_eq!(Store::stats(&cache).cache.unwrap().evictions, 0, "{name}");
}

#[test]
fn a_group_that_returns_an_error_leaves_nothing_staged() {
    let cache = cache();
    let mut session = cache.new_session();
    let too_long = vec![1; 1 << 20];
    let done = session.group(&[key(b"a"), key(b"b")], &mut |ops| {
        ops.put(key(b"a"), value(b"1"))?;
        ops.put(key(b"b"), value(&too_long))?;
        Ok(GroupDecision::Apply)
    });
    assert!(matches!(done, Err(Error::ItemTooLarge { .. })), "{done:?}");
    let strange = session.group(&[key(b"a")], &mut |ops| {
        ops.put(key(b"a"), value(b"1"))?;
        ops.put(key(b"x"), value(b"1"))?;
        Ok(GroupDecision::Apply)
    });
    assert_eq!(strange, Err(Error::NotInGroup));
    session.commit().unwrap();
    for name in [&b"a"[..], b"b", b"x"] {
        assert_eq!(get(&cache, name), None);
    }
}

#[test]
fn every_operation_refuses_a_database_that_does_not_exist() {
    let cache = cache();
    let mut session = cache.new_session();
    for db in [DATABASES as u8, u8::MAX] {
        let k = Key { db, bytes: b"k" };
        let mut head = |_: &ValueMeta, _: &mut Vec<u8>| true;
        let results: Vec<Result<(), Error>> = vec![
            session.put(k, value(b"1")).map(drop),
            session.delete(k).map(drop),
            session.update(k, &mut |_| UpdateDecision::Delete).map(drop),
            session
                .group(&[k], &mut |_| Ok(GroupDecision::Apply))
                .map(drop),
            session.meta(k, ReadView::Durable).map(drop),
            session
                .get(k, ReadView::Durable, &mut Vec::new(), &mut head)
                .map(drop),
            session.get_many(&[k], ReadView::Durable, &mut |_, _| {}),
            session.scan(db, 0, 1, &mut |_, _| {}).map(drop),
            session.len(db).map(drop),
        ];
        for (at, result) in results.into_iter().enumerate() {
            assert_eq!(result, Err(Error::NoDatabase { db }), "operation {at}");
        }
    }
}

#[test]
fn a_key_staged_by_another_session_is_waited_for_or_refused() {
    let cache = cache();
    let (mut one, mut other) = (cache.new_session(), cache.new_session());
    put(&mut one, b"k", b"1").unwrap();
    for conflicts in [ConflictPolicy::Refuse, ConflictPolicy::Commit] {
        other.on_conflict(conflicts);
        let begun = Instant::now();
        assert_eq!(put(&mut other, b"k", b"2"), Err(Error::Conflict));
        let grouped = other.group(&[key(b"k")], &mut |_| Ok(GroupDecision::Apply));
        assert_eq!(grouped, Err(Error::Conflict));
        assert_eq!(other.flush_all(), Err(Error::Conflict));
        assert!(begun.elapsed() < CONFLICT_WAIT / 2);
    }
    // Another thread waits until the session commits or is dropped.
    for dropped in [false, true] {
        let ready = Barrier::new(2);
        let took = thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut other = cache.new_session();
                let begun = Instant::now();
                ready.wait();
                put(&mut other, b"k", b"2").unwrap();
                other.commit().unwrap();
                begun.elapsed()
            });
            ready.wait();
            thread::sleep(Duration::from_millis(50));
            match dropped {
                true => one = cache.new_session(),
                false => drop(one.commit()),
            }
            waiter.join().unwrap()
        });
        assert!(took >= Duration::from_millis(40), "{took:?}");
        put(&mut one, b"k", b"1").unwrap();
    }
    // A session with staged writes gets the error at once, one without after `CONFLICT_WAIT`.
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut other = cache.new_session();
            let begun = Instant::now();
            put(&mut other, b"l", b"2").unwrap();
            assert_eq!(put(&mut other, b"k", b"2"), Err(Error::Conflict));
            assert!(begun.elapsed() < CONFLICT_WAIT / 2);
            assert_eq!(get(&cache, b"l"), None);
            other.commit().unwrap();
            assert_eq!(put(&mut other, b"k", b"2"), Err(Error::Conflict));
            assert!(begun.elapsed() >= CONFLICT_WAIT);
        });
        waiter.join().unwrap();
    });
}

#[test]
fn a_dropped_session_discards_its_staged_writes() {
    let cache = cache();
    let mut session = cache.new_session();
    put(&mut session, b"kept", b"old").unwrap();
    session.commit().unwrap();
    put(&mut session, b"kept", b"new").unwrap();
    put(&mut session, b"fresh", b"new").unwrap();
    session.delete(key(b"kept")).unwrap();
    drop(session);
    assert_eq!(get(&cache, b"kept").unwrap(), b"old");
    assert_eq!(get(&cache, b"fresh"), None);
    for _ in 0..2_000 {
        let mut session = cache.new_session();
        put(&mut session, b"kept", &[1; 30_000]).unwrap();
    }
    cache.verify().unwrap();
    assert_eq!(get(&cache, b"kept").unwrap(), b"old");
}

#[test]
fn a_forked_child_gets_errors_and_does_not_affect_its_parent() {
    let config = Config {
        background_maintenance: true,
        ..Config::default()
    };
    let medium = Mapped::anonymous(4 << 20).unwrap();
    let cache = Cache::create(medium, 64 << 10, config).unwrap();
    let mut session = cache.new_session();
    put(&mut session, b"k", b"1").unwrap();
    let shared = Arc::new(Mutex::new(Some((session, cache))));
    let theirs = Arc::clone(&shared);
    let refused = in_forked_child(move || {
        let Some((mut session, cache)) = theirs.lock().ok().and_then(|mut s| s.take()) else {
            return false;
        };
        let forked = |done: Result<(), Error>| matches!(done, Err(Error::Poisoned(_)));
        let mut all = forked(put(&mut session, b"k", b"2"));
        all &= forked(session.commit().map(drop));
        all &= forked(session.meta(key(b"k"), ReadView::Durable).map(drop));
        drop(session);
        all & forked(cache.close().map(drop))
    });
    assert!(refused.unwrap());
    let (mut session, cache) = shared.lock().unwrap().take().unwrap();
    session.commit().unwrap();
    drop(session);
    assert_eq!(get(&cache, b"k").unwrap(), b"1");
    cache.close().unwrap();
}
