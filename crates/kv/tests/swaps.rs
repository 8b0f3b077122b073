//! Tests of swaps: two databases are exchanged at one moment for all sessions, durably.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farbank_kv::{CleaningMode, Config, Kv, OpenError, segment_bytes_for};
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path};
use farbank_pm::{Kind, Medium, Off, PersistCtx};
use farbank_store::{
    ConflictPolicy, Error, GroupDecision, Key, Ops, ReadView, RoomReply, Session, Store,
    UpdateDecision, Value,
};

const POOL_BYTES: u64 = 4 << 20;
/// Places in the first copy of the superblock: the incompatible features, and the word of the mapping.
const FEATURES_AT: Off = Off(32);
const MAPPING_AT: Off = Off(192);

fn key(db: u8, bytes: &[u8]) -> Key<'_> {
    Key { db, bytes }
}

fn value(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

fn config(cleaning: CleaningMode) -> Config {
    Config {
        cleaning,
        open_threads: 2,
        ..Config::default()
    }
}

fn memory() -> Kv<Mapped> {
    let medium = Mapped::anonymous(POOL_BYTES).expect("memory");
    let segment_bytes = segment_bytes_for(POOL_BYTES);
    Kv::create(medium, segment_bytes, config(CleaningMode::Inline)).expect("a fresh store")
}

fn open(medium: Mapped) -> Kv<Mapped> {
    Kv::open(medium, config(CleaningMode::Inline)).expect("it opens")
}

fn set(session: &mut dyn Session, key: Key<'_>, bytes: &[u8]) {
    session.put(key, value(bytes)).expect("a write");
    let ticket = session.commit().expect("a commit");
    session.wait(ticket).expect("the medium works");
}

fn get(session: &mut dyn Session, key: Key<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = session.get(key, ReadView::Durable, &mut out, &mut |_, _| true);
    found.expect("a read").then_some(out)
}

fn names(session: &mut dyn Session, db: u8) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let next = session.scan(db, 0, usize::MAX, &mut |name, _| names.push(name.to_vec()));
    assert_eq!(next.expect("a scan"), 0);
    names.sort();
    names
}

/// Checks that the store shows the keys of database 0 under 5, and the other way round.
fn is_swapped<M: Medium>(kv: &Kv<M>) {
    let mut session = kv.session();
    let session = &mut *session;
    assert_eq!(get(session, key(5, b"a")).as_deref(), Some(&b"zero"[..]));
    assert_eq!(get(session, key(0, b"a")).as_deref(), Some(&b"five"[..]));
    assert_eq!(get(session, key(0, b"only in zero")), None);
    assert_eq!(get(session, key(3, b"a")).as_deref(), Some(&b"three"[..]));
    assert_eq!(names(session, 0), [b"a"]);
    assert_eq!(names(session, 5), [&b"a"[..], b"only in zero"]);
    let counts = [0, 3, 5].map(|db| session.len(db).expect("a count"));
    assert_eq!(counts, [1, 1, 2]);
    assert_eq!(&kv.stats().keys[..6], [1, 0, 0, 1, 0, 2]);
}

fn fill(session: &mut dyn Session) {
    set(session, key(0, b"a"), b"zero");
    set(session, key(0, b"only in zero"), b"1");
    set(session, key(3, b"a"), b"three");
    set(session, key(5, b"a"), b"five");
}

#[test]
fn a_swap_survives_kills_and_closes_and_a_second_one_undoes_it() {
    let kv = memory();
    let mut session = kv.session();
    fill(&mut *session);
    session.swap_databases(0, 5).expect("a swap");
    drop(session);
    is_swapped(&kv);
    let kv = open(kv.into_medium().expect("no session is left"));
    is_swapped(&kv);
    kv.verify().expect("the counts are right");
    let kv = open(kv.close().expect("it closes").expect("no session is left"));
    assert!(kv.opened().clean);
    is_swapped(&kv);

    let mut session = kv.session();
    session.swap_databases(5, 0).expect("a swap");
    assert_eq!(
        get(&mut *session, key(0, b"a")).as_deref(),
        Some(&b"zero"[..])
    );
    session.swap_databases(4, 4).expect("nothing to do");
    assert_eq!(
        session.swap_databases(0, 16),
        Err(Error::NoDatabase { db: 16 })
    );
}

#[test]
fn programs_that_do_not_know_swaps_refuse_a_pool_while_databases_are_swapped() {
    let kv = memory();
    kv.session().swap_databases(1, 2).expect("a swap");
    let medium = kv.into_medium().expect("no session is left");
    let read = |medium: &Mapped, at| {
        let mut bytes = [0; 8];
        medium.copy_out(at, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    assert_eq!(read(&medium, FEATURES_AT), 1);
    assert_eq!(read(&medium, MAPPING_AT), 0x330);
    let kv = open(medium);
    kv.session().swap_databases(1, 2).expect("a swap");
    let medium = kv.into_medium().expect("no session is left");
    assert_eq!(
        [FEATURES_AT, MAPPING_AT].map(|at| read(&medium, at)),
        [0; 2]
    );
}

#[test]
fn a_pool_with_a_wrong_mapping_is_refused() {
    let kv = memory();
    let medium = kv.into_medium().expect("no session is left");
    let mut ctx = PersistCtx::new(0);
    let pool = farbank_pm::pool::Pool::open(medium, &mut ctx).expect("it opens");
    let mut root = pool.root();
    root[8] = 1;
    pool.set_root(&mut ctx, &root).expect("the medium works");
    let opened = Kv::open(pool.into_medium(), config(CleaningMode::Inline));
    match opened {
        Err(OpenError::DatabaseMap(1)) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it opens"),
    }
}

#[test]
fn a_swap_waits_for_the_staged_writes_of_other_threads_and_holds_later_writes() {
    let kv = memory();
    let mut writer = kv.session();
    writer.on_conflict(ConflictPolicy::Commit);
    writer.put(key(0, b"k"), value(b"early")).expect("a write");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let swapped = kv.session().swap_databases(0, 1);
            is_done.store(true, Ordering::Release);
            swapped
        });
        thread::sleep(Duration::from_millis(50));
        assert!(
            !is_done.load(Ordering::Acquire),
            "a staged write is not visible yet"
        );
        // This write finds the hold: the session commits, waits, and writes to the database as it is then.
        writer.put(key(0, b"k"), value(b"late")).expect("a write");
        let databases = kv.databases().expect("an engine swaps databases");
        assert_eq!(databases.swaps(0), 1);
        writer.commit().expect("a commit");
        swapping.join().expect("no panic").expect("a swap");
    });
    assert_eq!(
        get(&mut *writer, key(1, b"k")).as_deref(),
        Some(&b"early"[..])
    );
    assert_eq!(
        get(&mut *writer, key(0, b"k")).as_deref(),
        Some(&b"late"[..])
    );
}

#[test]
fn a_swap_fails_if_a_session_keeps_its_staged_writes() {
    let kv = memory();
    let mut writer = kv.session();
    writer.put(key(0, b"k"), value(b"1")).expect("a write");
    assert_eq!(kv.session().swap_databases(0, 1), Err(Error::Conflict));
    thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let began = Instant::now();
            let swapped = kv.session().swap_databases(0, 1);
            (swapped, began.elapsed())
        });
        let (swapped, took) = swapping.join().expect("no panic");
        assert_eq!(swapped, Err(Error::Unsettled));
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
    // Neither attempt has exchanged the databases or holds writes.
    writer.commit().expect("a commit");
    set(&mut *writer, key(0, b"other"), b"2");
    assert_eq!(names(&mut *writer, 0), [&b"k"[..], b"other"]);
}

#[test]
fn a_backup_shows_the_databases_of_its_moment() {
    let kv = memory();
    let mut session = kv.session();
    fill(&mut *session);
    session.swap_databases(3, 4).expect("a swap");
    let mut backup = kv.backup().expect("a backup");
    session.swap_databases(0, 5).expect("a swap");
    set(&mut *session, key(0, b"a"), b"later");
    assert_eq!(&backup.keys()[..6], [2, 0, 0, 0, 1, 1]);
    let mut found = Vec::new();
    let mut each = |key: Key<'_>, item: farbank_store::StoredItem<'_>| {
        found.push((key.db, key.bytes.to_vec(), item.bytes.to_vec()));
    };
    while backup.step(1, &mut each).expect("a step") {}
    found.sort();
    let expected: [(u8, &[u8], &[u8]); 4] = [
        (0, b"a", b"zero"),
        (0, b"only in zero", b"1"),
        (4, b"a", b"three"),
        (5, b"a", b"five"),
    ];
    let expected = expected.map(|(db, key, value)| (db, key.to_vec(), value.to_vec()));
    assert_eq!(found, expected);
}

#[test]
fn versions_of_one_name_differ_between_databases() {
    let kv = memory();
    let mut session = kv.session();
    let mut versions = Vec::new();
    for name in 0..200_u32 {
        let name = name.to_le_bytes();
        for db in [0, 7] {
            let stored = session.put(key(db, &name), value(b"x")).expect("a write");
            session.commit().expect("a commit");
            let meta = session.meta(key(db, &name), ReadView::Durable);
            assert_eq!(meta.expect("a read").map(|meta| meta.version), Some(stored));
            versions.push(stored);
        }
        assert_ne!(versions[versions.len() - 2], versions[versions.len() - 1]);
    }
}

/// Names of the two sets of keys that swaps exchange. Each value begins with the name of its set.
const SETS: [&[u8]; 2] = [b"X", b"Y"];
const KEYS: u64 = 40;

fn name(number: u64) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

/// One operation of a client: a read of two keys, an update, or a group. Each must see one set only.
fn step(session: &mut dyn Session, number: u64, round: u64) {
    let (one, other) = (name(number % KEYS), name((number + 7) % KEYS));
    let db = (number % 2) as u8;
    let both = [key(db, &one), key(db, &other)];
    let tagged = |tag: u8| [&[tag][..], &vec![b'.'; (round % 400) as usize]].concat();
    match round % 4 {
        0 => {
            let mut tags = Vec::new();
            let read = session.get_many(&both, ReadView::Durable, &mut |_, item| {
                tags.push(item.expect("it is never deleted").bytes[0]);
            });
            read.expect("a read");
            assert_eq!(tags[0], tags[1], "a read has seen two sets");
        }
        1 => {
            let mut change = |item: Option<farbank_store::StoredItem<'_>>| UpdateDecision::Put {
                bytes: tagged(item.expect("it is never deleted").bytes[0]),
                expires_ms: 0,
                flags: 0,
                kind: 0,
            };
            session.update(both[0], &mut change).expect("an update");
        }
        2 => {
            let mut body = |ops: &mut dyn Ops| {
                let mut out = Vec::new();
                ops.get(both[0], ReadView::Pending, &mut out, &mut |_, _| true)?;
                ops.put(both[1], value(&tagged(out[0])))?;
                Ok(GroupDecision::Apply)
            };
            session.group(&both, &mut body).expect("a group");
        }
        _ => {
            let mut tags = Vec::new();
            let mut each = |name: &[u8], _: &_| tags.push(name.len());
            session
                .scan(db, round << 40, 20, &mut each)
                .expect("a scan");
        }
    }
}

fn swaps_are_seen_at_one_moment<M: Medium>(kv: Kv<M>, swaps: usize) {
    let mut session = kv.session();
    for (db, set_name) in (0..).zip(SETS) {
        for number in 0..KEYS {
            set(&mut *session, key(db, &name(number)), set_name);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in 0..3 {
            let (kv, is_over) = (&kv, &is_over);
            scope.spawn(move || {
                let mut session = kv.session();
                session.on_conflict(ConflictPolicy::Commit);
                let mut round = client;
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    while session.prepare(500, false) == Ok(RoomReply::Wait) {
                        let ticket = session.commit().expect("a commit");
                        session.wait(ticket).expect("the medium works");
                        thread::yield_now();
                    }
                    step(&mut *session, round * 31 + client, round);
                    if round % 3 == 0 {
                        let ticket = session.commit().expect("a commit");
                        session.wait(ticket).expect("the medium works");
                    }
                }
            });
        }
        for _ in 0..swaps {
            session.swap_databases(0, 1).expect("a swap");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (db, tag) in (0..).zip(SETS) {
        let of = usize::from(swaps % 2 == 1);
        let tag = [tag, SETS[1 - usize::from(db)]][of];
        for number in 0..KEYS {
            let found = get(&mut *session, key(db, &name(number)));
            assert_eq!(
                &found.expect("it is never deleted")[..1],
                tag,
                "database {db}"
            );
        }
    }
    drop(session);
    kv.verify().expect("the counts are right");
}

#[test]
fn sessions_see_swaps_at_one_moment_in_memory() {
    let medium = Mapped::anonymous(16 << 20).expect("memory");
    let config = config(CleaningMode::Background);
    let kv = Kv::create(medium, segment_bytes_for(16 << 20), config).expect("a fresh store");
    swaps_are_seen_at_one_moment(kv, 301);
}

#[test]
fn sessions_see_swaps_at_one_moment_on_a_file() {
    let folder = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder");
    let how = OpenOptions {
        medium: Some(Kind::File),
        ..OpenOptions::default()
    };
    let created = create_path(&folder.path().join("pool"), 16 << 20, &how, &mut |_, _| {});
    let AnyMedium::File(medium) = created.expect("a file") else {
        panic!("no file");
    };
    let config = config(CleaningMode::Background);
    let kv = Kv::create(medium, segment_bytes_for(16 << 20), config).expect("a fresh store");
    swaps_are_seen_at_one_moment(kv, 40);
}
