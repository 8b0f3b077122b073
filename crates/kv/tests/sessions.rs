//! Tests of sessions: closing a store with sessions, panics, conflicts, dropped sessions, and forks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farbank_kv::{CleaningMode, Config, Kv, segment_bytes_for};
use farbank_pm::Medium;
use farbank_pm::media::Mapped;
use farbank_pm::process_stamp::in_forked_child;
use farbank_store::{
    CONFLICT_WAIT, ConflictPolicy, DATABASES, Error, GroupDecision, Key, Ops, ReadView, Session,
    Store, UpdateDecision, Value, ValueMeta,
};

fn value(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn config() -> Config {
    Config {
        cleaning: CleaningMode::Inline,
        open_threads: 2,
        patience: 100,
        ..Config::default()
    }
}

fn memory(pool_bytes: u64, segment_bytes: u64) -> Kv<Mapped> {
    let medium = Mapped::anonymous(pool_bytes).unwrap();
    Kv::create(medium, segment_bytes, config()).unwrap()
}

fn reopen(kv: Kv<Mapped>) -> Kv<Mapped> {
    Kv::open(kv.close().unwrap().unwrap(), config()).unwrap()
}

/// A session that commits after every write.
struct User(Box<dyn Session>);

impl User {
    fn of<M: Medium>(kv: &Kv<M>) -> User {
        User(kv.session())
    }

    fn set(&mut self, k: &[u8], v: &[u8]) {
        put(&mut *self.0, k, v).unwrap();
        self.0.commit().unwrap();
    }

    fn get(&mut self, k: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let found = self
            .0
            .get(key(k), ReadView::Durable, &mut out, &mut |_, _| true);
        found.unwrap().then_some(out)
    }
}

fn put(session: &mut dyn Session, k: &[u8], v: &[u8]) -> Result<(), Error> {
    session.put(key(k), value(v)).map(drop)
}

fn small() -> Kv<Mapped> {
    memory(4 << 20, 64 << 10)
}

#[test]
fn a_store_with_sessions_is_not_closed_and_keeps_their_acknowledged_writes() {
    let kv = small();
    let mut session = kv.session();
    let mut other = kv.session();
    put(&mut *session, b"before", b"1").unwrap();
    session.commit().unwrap();
    put(&mut *other, b"staged", b"2").unwrap();
    let medium = Mapped::anonymous(4 << 20).unwrap();
    let alone = Kv::create(medium, 64 << 10, config()).unwrap();
    assert!(alone.close().unwrap().is_some());

    let closed = kv.close().err();
    assert_eq!(closed, Some(Error::SessionsAlive { sessions: 2 }));
    // The sessions can still use the store.
    put(&mut *session, b"after", b"3").unwrap();
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    let ticket = other.commit().unwrap();
    other.wait(ticket).unwrap();
    let mut user = User(session);
    assert_eq!(user.get(b"staged").unwrap(), b"2");
    assert_eq!(user.get(b"after").unwrap(), b"3");
}

#[test]
fn a_file_whose_close_was_refused_has_all_acknowledged_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let create = |size| {
        let how = farbank_pm::media::OpenOptions {
            medium: Some(farbank_pm::Kind::File),
            ..Default::default()
        };
        match size {
            0 => farbank_pm::media::open_path(&path, &how),
            size => farbank_pm::media::create_path(&path, size, &how, &mut |_, _| {}),
        }
    };
    let file = |medium| match medium {
        Ok(farbank_pm::media::AnyMedium::File(file)) => file,
        _ => panic!("no file"),
    };
    let kv = Kv::create(file(create(4 << 20)), 64 << 10, config()).unwrap();
    let mut session = kv.session();
    put(&mut *session, b"k", b"committed, not published").unwrap();
    let ticket = session.commit().unwrap();
    assert!(matches!(kv.close(), Err(Error::SessionsAlive { .. })));
    session.wait(ticket).unwrap();
    put(&mut *session, b"l", b"later").unwrap();
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    drop(session);
    let kv = Kv::open(file(create(0)), config()).unwrap();
    assert!(!kv.opened().clean);
    let mut user = User(kv.session());
    assert_eq!(user.get(b"k").unwrap(), b"committed, not published");
    assert_eq!(user.get(b"l").unwrap(), b"later");
}

#[test]
fn a_panic_in_a_groups_body_leaves_nothing_of_the_group_and_no_key_locked() {
    let kv = small();
    let mut session = kv.session();
    put(&mut *session, b"own", b"staged before").unwrap();
    let keys = [key(b"a"), key(b"b")];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        session.group(&keys, &mut |ops| {
            ops.put(key(b"a"), value(b"half"))?;
            panic!("the caller's");
        })
    }));
    assert!(panicked.is_err());
    // Other threads can write those keys. This session stays usable and keeps its earlier staged writes.
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            let mut user = User::of(&kv);
            assert_eq!(user.get(b"a"), None);
            user.set(b"a", b"theirs");
            user.set(b"b", b"theirs");
        });
        user.join().unwrap();
    });
    session.commit().unwrap();
    let applied = session.group(&keys, &mut |ops| {
        ops.put(key(b"a"), value(b"whole"))?;
        Ok(GroupDecision::Apply)
    });
    assert_eq!(applied, Ok(GroupDecision::Apply));
    session.commit().unwrap();
    drop(session);
    let kv = reopen(kv);
    kv.verify().unwrap();
    let mut user = User::of(&kv);
    assert_eq!(user.get(b"own").unwrap(), b"staged before");
    assert_eq!(user.get(b"a").unwrap(), b"whole");
}

#[test]
fn a_panic_in_an_update_a_scan_or_a_read_leaves_session_and_store_usable() {
    let kv = small();
    let mut session = kv.session();
    put(&mut *session, b"k", b"1").unwrap();
    session.commit().unwrap();
    let update = AssertUnwindSafe(|| session.update(key(b"k"), &mut |_| panic!("the caller's")));
    assert!(catch_unwind(update).is_err());
    let scan = AssertUnwindSafe(|| session.scan(0, 0, 9, &mut |_, _| panic!("the caller's")));
    assert!(catch_unwind(scan).is_err());
    let mut out = Vec::new();
    let get = AssertUnwindSafe(|| {
        session.get(key(b"k"), ReadView::Pending, &mut out, &mut |_, _| {
            panic!("the caller's")
        })
    });
    assert!(catch_unwind(get).is_err());
    let many = AssertUnwindSafe(|| {
        session.get_many(&[key(b"k")], ReadView::Durable, &mut |_, _| {
            panic!("the caller's")
        })
    });
    assert!(catch_unwind(many).is_err());
    thread::scope(|scope| {
        scope
            .spawn(|| User::of(&kv).set(b"k", b"2"))
            .join()
            .unwrap()
    });
    put(&mut *session, b"k", b"3").unwrap();
    session.commit().unwrap();
    assert_eq!(User(session).get(b"k").unwrap(), b"3");
    kv.verify().unwrap();
}

#[test]
fn a_key_that_a_group_does_not_name_is_refused_and_nothing_is_written() {
    let kv = small();
    let mut session = kv.session();
    type Body<'a> = &'a mut dyn FnMut(&mut dyn Ops) -> Result<(), Error>;
    let strange: [Body<'_>; 5] = [
        &mut |ops| ops.put(key(b"x"), value(b"1")).map(drop),
        &mut |ops| ops.delete(key(b"x")).map(drop),
        &mut |ops| {
            ops.update(key(b"x"), &mut |_| UpdateDecision::Keep)
                .map(drop)
        },
        &mut |ops| ops.meta(key(b"x"), ReadView::Pending).map(drop),
        &mut |ops| {
            let mut head = |_: &ValueMeta, _: &mut Vec<u8>| true;
            ops.get(key(b"x"), ReadView::Pending, &mut Vec::new(), &mut head)
                .map(drop)
        },
    ];
    for touch in strange {
        let done = session.group(&[key(b"a")], &mut |ops| {
            ops.put(key(b"a"), value(b"1"))?;
            touch(ops)?;
            Ok(GroupDecision::Apply)
        });
        assert_eq!(done, Err(Error::NotInGroup));
    }
    session.commit().unwrap();
    assert_eq!(session.len(0), Ok(0));
}

#[test]
fn every_operation_refuses_a_database_that_does_not_exist() {
    let kv = small();
    let mut session = kv.session();
    for db in [DATABASES as u8, u8::MAX] {
        let k = Key { db, bytes: b"k" };
        let refused = Err(Error::NoDatabase { db });
        let mut head = |_: &ValueMeta, _: &mut Vec<u8>| true;
        let results: Vec<Result<(), Error>> = vec![
            session.put(k, value(b"1")).map(drop),
            session.put_durable(k, value(b"1")).map(drop),
            session.delete(k).map(drop),
            session.update(k, &mut |_| UpdateDecision::Delete).map(drop),
            session
                .group(&[key(b"a"), k], &mut |_| Ok(GroupDecision::Apply))
                .map(drop),
            session.meta(k, ReadView::Durable).map(drop),
            session
                .get(k, ReadView::Durable, &mut Vec::new(), &mut head)
                .map(drop),
            session.get_many(&[key(b"a"), k], ReadView::Durable, &mut |_, _| {}),
            session.scan(db, 0, 1, &mut |_, _| {}).map(drop),
            session.len(db).map(drop),
        ];
        for (at, result) in results.into_iter().enumerate() {
            assert_eq!(result, refused, "operation {at}");
        }
    }
    session.commit().unwrap();
    drop(session);
    reopen(kv).verify().unwrap();
}

#[test]
fn a_key_staged_by_another_session_of_the_thread_is_refused_at_once() {
    let kv = small();
    let (mut one, mut other) = (kv.session(), kv.session());
    put(&mut *one, b"k", b"1").unwrap();
    for conflicts in [ConflictPolicy::Refuse, ConflictPolicy::Commit] {
        other.on_conflict(conflicts);
        let begun = Instant::now();
        assert_eq!(put(&mut *other, b"k", b"2"), Err(Error::Conflict));
        assert_eq!(other.delete(key(b"k")), Err(Error::Conflict));
        let kept = other.update(key(b"k"), &mut |_| UpdateDecision::Delete);
        assert_eq!(kept, Err(Error::Conflict));
        let grouped = other.group(&[key(b"k")], &mut |_| Ok(GroupDecision::Apply));
        assert_eq!(grouped, Err(Error::Conflict));
        assert!(begun.elapsed() < CONFLICT_WAIT / 2);
    }
    put(&mut *other, b"l", b"2").unwrap();
    one.commit().unwrap();
    put(&mut *other, b"k", b"2").unwrap();
    other.commit().unwrap();
    assert_eq!(User(one).get(b"k").unwrap(), b"2");
}

#[test]
fn a_conflict_is_refused_at_once_if_the_session_has_staged_writes() {
    let kv = Arc::new(small());
    let mut one = kv.session();
    put(&mut *one, b"k", b"1").unwrap();
    let theirs = Arc::clone(&kv);
    let refused = thread::spawn(move || {
        let mut other = theirs.session();
        put(&mut *other, b"l", b"staged").unwrap();
        let begun = Instant::now();
        let refused = put(&mut *other, b"k", b"2");
        assert!(begun.elapsed() < CONFLICT_WAIT / 2);
        assert_eq!(User::of(&theirs).get(b"l"), None);
        refused
    });
    assert_eq!(refused.join().unwrap(), Err(Error::Conflict));
    assert_eq!(User::of(&kv).get(b"l"), None, "it was dropped");
}

#[test]
fn a_key_that_a_staged_group_has_read_is_not_written_before_the_group_is_drained() {
    let kv = small();
    User::of(&kv).set(b"gone", b"1");
    let (mut one, mut other) = (kv.session(), kv.session());
    // The group finds no `k`, and its answer says so.
    let deleted = one.group(&[key(b"k"), key(b"gone")], &mut |ops| {
        assert!(!ops.delete(key(b"k"))?);
        assert!(ops.delete(key(b"gone"))?);
        Ok(GroupDecision::Apply)
    });
    assert_eq!(deleted, Ok(GroupDecision::Apply));
    assert_eq!(put(&mut *other, b"k", b"2"), Err(Error::Conflict));
    let durable = other.put_durable(key(b"k"), value(b"2"));
    assert_eq!(durable.map(drop), Err(Error::Conflict));
    let keys = [key(b"k"), key(b"l")];
    let mut written = |name: &'static [u8]| {
        other.group(&keys, &mut |ops| {
            assert!(ops.meta(key(b"k"), ReadView::Durable)?.is_none());
            ops.put(key(name), value(b"3"))?;
            Ok(GroupDecision::Apply)
        })
    };
    assert_eq!(written(b"k"), Err(Error::Conflict));
    assert_eq!(
        written(b"l"),
        Ok(GroupDecision::Apply),
        "groups that read a key exclude no others"
    );
    put(&mut *one, b"k", b"4").expect_err("both groups guard the key");
    other.commit().unwrap();
    put(&mut *one, b"k", b"4").unwrap();
    one.commit().unwrap();
    put(&mut *other, b"k", b"5").unwrap();
    other.commit().unwrap();
    drop(other);
    assert_eq!(User(one).get(b"k").unwrap(), b"5");
    reopen(kv).verify().unwrap();
}

/// Puts `k` in another thread while the caller's session has it staged, and calls `end` while that thread waits.
/// Returns the result of the put and its duration.
fn put_behind(
    kv: &Kv<Mapped>,
    conflicts: ConflictPolicy,
    end: impl FnOnce(),
) -> (Result<(), Error>, Duration) {
    let ready = Barrier::new(2);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut other = kv.session();
            other.on_conflict(conflicts);
            let begun = Instant::now();
            ready.wait();
            let done = put(&mut *other, b"k", b"2");
            let took = begun.elapsed();
            other.commit().unwrap();
            (done, took)
        });
        ready.wait();
        thread::sleep(Duration::from_millis(50));
        end();
        waiter.join().unwrap()
    })
}

#[test]
fn a_put_waits_for_the_session_that_has_staged_its_key_to_commit_or_to_be_dropped() {
    for conflicts in [ConflictPolicy::Refuse, ConflictPolicy::Commit] {
        let kv = small();
        let mut one = kv.session();
        put(&mut *one, b"k", b"1").unwrap();
        let (done, took) = put_behind(&kv, conflicts, || {
            one.commit().unwrap();
        });
        assert_eq!(done, Ok(()));
        assert!(took >= Duration::from_millis(40), "{took:?}");
        put(&mut *one, b"k", b"1").unwrap();
        let (done, _) = put_behind(&kv, conflicts, || drop(one));
        assert_eq!(done, Ok(()));
        assert_eq!(User::of(&kv).get(b"k").unwrap(), b"2");
    }
}

#[test]
fn a_put_is_refused_when_the_other_session_takes_too_long() {
    let kv = small();
    let mut one = kv.session();
    put(&mut *one, b"k", b"1").unwrap();
    let wait = || thread::sleep(CONFLICT_WAIT + Duration::from_millis(300));
    let (done, took) = put_behind(&kv, ConflictPolicy::Refuse, wait);
    assert_eq!(done, Err(Error::Conflict));
    assert!(took >= CONFLICT_WAIT, "{took:?}");
}

#[test]
fn sessions_that_commit_before_they_wait_never_deadlock() {
    let kv = small();
    thread::scope(|scope| {
        for turn in 0..4_u8 {
            let kv = &kv;
            scope.spawn(move || {
                let mut session = kv.session();
                session.on_conflict(ConflictPolicy::Commit);
                for round in 0..500_u32 {
                    for step in 0..4_u8 {
                        let name = match turn % 2 {
                            0 => [step],
                            _ => [3 - step],
                        };
                        put(&mut *session, &name, &round.to_le_bytes()).unwrap();
                    }
                    session.commit().unwrap();
                }
            });
        }
    });
    kv.verify().unwrap();
}

/// A value whose bytes differ from their neighbours and from those of other values.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + len * 7 + salt) as u8).collect()
}

/// Values around the length from which on they are copied to the medium when they are staged, at every alignment.
#[test]
fn long_values_are_read_while_staged_and_after_a_reopen() {
    let mut kv = memory(4 << 20, 4 << 10);
    // The limit is 505 bytes in segments of this size, and values above 1,011 bytes take extents.
    for round in 0..2 {
        let names: Vec<Vec<u8>> = (0..1_100_usize)
            .map(|len| format!("{len}{}", "k".repeat(len % 61)).into_bytes())
            .collect();
        let lens = (440..1_100).chain([440, 700, 1_000]);
        let mut session = kv.session();
        for (i, len) in lens.enumerate() {
            let (name, bytes) = (&names[len], pattern(len, round + i));
            session.put(key(name), value(&bytes)).unwrap();
            let mut out = b"before".to_vec();
            let found = session.get(key(name), ReadView::Pending, &mut out, &mut |_, _| true);
            assert_eq!(found, Ok(true), "{len} bytes");
            assert_eq!(out[6..], bytes, "{len} bytes");
            if i % 7 == 0 {
                session.commit().unwrap();
            }
        }
        session.commit().unwrap();
        drop(session);
        kv = match round {
            0 => Kv::open(kv.into_medium().unwrap(), config()).unwrap(),
            _ => reopen(kv),
        };
        kv.verify().unwrap();
        let mut user = User::of(&kv);
        for (len, name) in names.iter().enumerate().skip(441) {
            if ![700, 1_000].contains(&len) {
                assert_eq!(user.get(name).unwrap(), pattern(len, round + len - 440));
            }
        }
        assert_eq!(
            user.get(&names[1_000]).unwrap(),
            pattern(1_000, round + 662)
        );
    }
}

#[test]
fn an_abandoned_long_value_is_overwritten_by_the_next_records() {
    let mut kv = small();
    User::of(&kv).set(b"a", &pattern(9_000, 1));
    for salt in 0..40 {
        let mut session = kv.session();
        for name in [&b"a"[..], b"b", b"c"] {
            put(&mut *session, name, &pattern(9_000 + 64 * salt, salt)).unwrap();
        }
        drop(session);
        let mut user = User::of(&kv);
        user.set(b"d", &pattern(20 * salt, salt)); // It ends within the abandoned values.
        if salt % 4 == 0 {
            drop(user);
            kv = Kv::open(kv.into_medium().unwrap(), config()).unwrap();
            kv.verify().unwrap();
            user = User::of(&kv);
        }
        assert_eq!(user.get(b"a").unwrap(), pattern(9_000, 1));
        assert_eq!(user.get(b"b"), None);
        assert_eq!(user.get(b"d").unwrap(), pattern(20 * salt, salt));
    }
}

#[test]
fn a_dropped_session_abandons_its_staged_writes_and_frees_their_space() {
    let mut kv = memory(16 << 20, 64 << 10);
    let mut user = User::of(&kv);
    user.set(b"kept", b"old");
    user.set(b"deleted", b"old");
    user.set(b"large", &[7; 300_000]);
    user.set(b"grouped", b"old");
    drop(user);
    for way in 0..2 {
        let free = kv.stats().pool.segments_free;
        let mut session = kv.session();
        put(&mut *session, b"kept", b"new").unwrap();
        put(&mut *session, b"kept", b"newer").unwrap();
        session.delete(key(b"deleted")).unwrap();
        put(&mut *session, b"large", &[8; 200_000]).unwrap();
        put(&mut *session, b"large", &[9; 400_000]).unwrap();
        let keys = [key(b"grouped"), key(b"fresh")];
        let applied = session.group(&keys, &mut |ops| {
            ops.put(key(b"grouped"), value(&[1; 30_000]))?;
            ops.put(key(b"fresh"), value(&[2; 30_000]))?;
            Ok(GroupDecision::Apply)
        });
        assert_eq!(applied, Ok(GroupDecision::Apply));
        assert_eq!(
            session
                .meta(key(b"large"), ReadView::Pending)
                .unwrap()
                .unwrap()
                .value_bytes,
            400_000
        );
        match way {
            0 => drop(session),
            _ => {
                let unwinding = thread::scope(|scope| {
                    let panics = scope.spawn(move || {
                        let _session = session;
                        panic!("the caller's");
                    });
                    panics.join()
                });
                assert!(unwinding.is_err());
            }
        }
        kv.clean().unwrap();
        kv.verify().unwrap();
        assert!(kv.stats().pool.segments_free >= free - 1, "way {way}");
        for open in 0..3 {
            let mut user = User::of(&kv);
            assert_eq!(user.get(b"kept").unwrap(), b"old");
            assert_eq!(user.get(b"deleted").unwrap(), b"old");
            assert_eq!(user.get(b"large").unwrap(), [7; 300_000]);
            assert_eq!(user.get(b"grouped").unwrap(), b"old");
            assert_eq!(user.get(b"fresh"), None);
            user.set(b"kept", b"old");
            drop(user);
            kv = match open {
                0 => Kv::open(kv.into_medium().unwrap(), config()).unwrap(),
                _ => reopen(kv),
            };
            kv.verify().unwrap();
        }
    }
}

#[test]
fn sessions_dropped_with_staged_writes_by_the_thousand_cost_no_space() {
    let kv = memory(4 << 20, 64 << 10);
    User::of(&kv).set(b"k", b"kept");
    for _ in 0..2_000 {
        let mut session = kv.session();
        put(&mut *session, b"k", &[1; 40_000]).unwrap();
        put(&mut *session, b"l", &[1; 10_000]).unwrap();
    }
    kv.verify().unwrap();
    let mut user = User::of(&kv);
    assert_eq!(user.get(b"k").unwrap(), b"kept");
    user.set(b"l", &[2; 100_000]);
}

#[test]
fn a_forked_child_gets_errors_and_does_not_affect_its_parents_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let how = farbank_pm::media::OpenOptions {
        medium: Some(farbank_pm::Kind::File),
        ..Default::default()
    };
    let create = || farbank_pm::media::create_path(&path, 4 << 20, &how, &mut |_, _| {});
    let Ok(farbank_pm::media::AnyMedium::File(file)) = create() else {
        panic!("no file");
    };
    let kv = Kv::create(file, 64 << 10, farbank_kv::Config::default()).unwrap();
    let mut session = kv.session();
    put(&mut *session, b"k", b"1").unwrap();
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    put(&mut *session, b"k", b"staged").unwrap();
    let shared = Arc::new(Mutex::new(Some((session, kv))));
    let theirs = Arc::clone(&shared);
    let refused = in_forked_child(move || {
        let Some((mut session, kv)) = theirs.lock().ok().and_then(|mut s| s.take()) else {
            return false;
        };
        let forked = |done: Result<(), Error>| matches!(done, Err(Error::Poisoned(_)));
        let mut all = forked(put(&mut *session, b"k", b"2"));
        all &= forked(session.commit().map(drop));
        all &= session.wait(ticket).is_err();
        all &= forked(session.len(0).map(drop));
        all &= forked(session.meta(key(b"k"), ReadView::Durable).map(drop));
        drop(session);
        all &= forked(put(&mut *kv.session(), b"k", b"3"));
        all & forked(kv.close().map(drop))
    });
    assert!(refused.unwrap());
    // The parent still has its session, its store and the lock of the file.
    let (mut session, kv) = shared.lock().unwrap().take().unwrap();
    let again = farbank_pm::media::open_path(&path, &how);
    assert!(again.is_err_and(|e| e.to_string().contains("is in use")));
    let ticket = session.commit().unwrap();
    session.wait(ticket).unwrap();
    drop(session);
    let file = kv.close().unwrap().unwrap();
    let kv = Kv::open(file, farbank_kv::Config::default()).unwrap();
    assert_eq!(User(kv.session()).get(b"k").unwrap(), b"staged");
}

#[test]
fn an_error_names_the_limit_that_was_exceeded() {
    let pool_bytes = 64 << 20;
    let kv = memory(pool_bytes, segment_bytes_for(pool_bytes));
    let mut session = kv.session();
    let long = vec![b'k'; 65_535];
    let refused = put(&mut *session, &long, b"v");
    let Err(Error::KeyTooLong { bytes, bytes_max }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(bytes, 65_535);
    assert!(put(&mut *session, &long[..bytes_max], b"v").is_ok());
    assert!(put(&mut *session, &long[..bytes_max + 1], b"v").is_err());
    let too_long = vec![b'k'; 65_537];
    let refused = put(&mut *session, &too_long, b"v").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the key has 65537 bytes; the limit is 65536"
    );

    // A member of a group has to fit into one segment.
    let mut group = |bytes: usize| {
        let written = vec![1; bytes];
        session.group(&[key(b"a")], &mut |ops| {
            ops.put(key(b"a"), value(&written))?;
            Ok(GroupDecision::Apply)
        })
    };
    let refused = group(1 << 20);
    let Err(Error::ValueTooLong { bytes, bytes_max }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(bytes, 1 << 20);
    assert!(bytes_max < 64 << 10);
    assert_eq!(group(bytes_max), Ok(GroupDecision::Apply));
    assert!(group(bytes_max + 1).is_err());
}

#[test]
fn a_group_too_long_for_a_record_is_refused_with_its_limit() {
    let kv = memory(64 << 20, 4 << 10);
    let mut session = kv.session();
    let names: Vec<[u8; 4]> = (0..400_u32).map(u32::to_le_bytes).collect();
    let keys: Vec<Key<'_>> = names.iter().map(|name| key(name)).collect();
    let written = [1; 3_000];
    let mut body = |ops: &mut dyn Ops| {
        keys.iter()
            .try_for_each(|k| ops.put(*k, value(&written)).map(drop))?;
        Ok(GroupDecision::Apply)
    };
    let refused = session.group(&keys, &mut body);
    let Err(Error::GroupTooLong { bytes, bytes_max }) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        bytes > bytes_max && bytes_max > 500_000,
        "{bytes} {bytes_max}"
    );
    session.commit().unwrap();
    assert_eq!(session.len(0), Ok(0));
}

/// The counts of segments are read at different moments. So a checkpoint that takes segments meanwhile would look like damage.
#[test]
fn a_verification_excludes_checkpoints_in_the_background() {
    const ROUNDS: u32 = 400;
    let config = Config {
        cleaning: CleaningMode::Background,
        checkpoint_bytes: 16 << 10,
        checkpoint_share: 1,
        ..config()
    };
    let medium = Mapped::anonymous(8 << 20).unwrap();
    let kv = Kv::create(medium, 4 << 10, config).unwrap();
    let mut user = User::of(&kv);
    for round in 0..ROUNDS {
        for n in 0..40_u32 {
            put(&mut *user.0, &n.to_le_bytes(), &[7; 900]).unwrap();
        }
        user.0.commit().unwrap();
        kv.verify().unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    drop(user);
    assert!(kv.stats().log.expect("it has a log").checkpoints_written > 0);
}
