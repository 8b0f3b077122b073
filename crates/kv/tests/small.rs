//! Tests of the engine that are short enough for the interpreter Miri; the suite `miri` runs them. They cover sessions
//! in threads, batches, groups, long values, cleaning, kills and closes, each on a small scale.

use std::collections::BTreeMap;
use std::sync::Arc;

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::pool::PoolIdentity;
use farbank_pm::sim::{Persistency, Sim};
use farbank_store::{
    ConflictPolicy, Error, GroupDecision, Key, Ops, ReadView, Session, StoredItem, UpdateDecision,
    Value, ValueMeta,
};

const SEGMENT_BYTES: u64 = 4 << 10;
const POOL_BYTES: u64 = 8192 + 16 * SEGMENT_BYTES;

fn config(cleaning: CleaningMode) -> Config {
    Config {
        clock: Arc::new(|| 1_000_000),
        uptime: Arc::new(|| 0),
        cleaning,
        open_threads: 2,
        ..Config::default()
    }
}

fn fresh(persistency: Persistency, cleaning: CleaningMode) -> Kv<Sim> {
    let sim = Sim::new(POOL_BYTES, persistency);
    Kv::create(sim, SEGMENT_BYTES, config(cleaning)).expect("a fresh store")
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn put(ops: &mut dyn Ops, k: &[u8], bytes: &[u8]) {
    let value = Value {
        bytes,
        ..Value::default()
    };
    ops.put(key(k), value).expect("a write");
}

fn commit(session: &mut dyn Session) {
    let ticket = session.commit().expect("a commit");
    session.wait(ticket).expect("a drain");
}

fn get(session: &mut dyn Session, k: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let found = session.get(
        key(k),
        ReadView::Durable,
        &mut out,
        &mut |_: &ValueMeta, _| true,
    );
    found.expect("a read").then_some(out)
}

#[test]
fn after_a_batch_that_could_not_be_drained_every_commit_of_its_session_fails() {
    let sim = Sim::new(POOL_BYTES, Persistency::Adr);
    let kv = Kv::create(sim.clone(), SEGMENT_BYTES, config(CleaningMode::Inline));
    let kv = kv.expect("a fresh store");
    let (mut one, mut other) = (kv.session(), kv.session());
    put(&mut *one, b"k", b"1");
    other.on_conflict(ConflictPolicy::Commit);
    put(&mut *other, b"x", b"2");
    sim.fail_drain(1);
    // Another session has staged k, so the put commits x first (KV-COMMIT-2).
    let refused = other.put(key(b"k"), Value::default());
    assert!(matches!(refused, Err(Error::Poisoned(_))), "{refused:?}");
    // The put of x must not be acknowledged (KV-COMMIT-5).
    for _ in 0..2 {
        let committed = other.commit();
        assert!(
            matches!(committed, Err(Error::Poisoned(_))),
            "{committed:?}"
        );
    }
    drop((one, other));
    assert_eq!(get(&mut *kv.session(), b"x"), None);
}

fn contents(kv: &Kv<Sim>, keys: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut session = kv.session();
    let read = |k: &Vec<u8>| Some((k.clone(), get(&mut *session, k)?));
    keys.keys().filter_map(read).collect()
}

/// Writes, cleans, kills and closes, and checks that all values are found each time.
fn keeps_everything(persistency: Persistency) {
    let kv = fresh(persistency, CleaningMode::Inline);
    let mut expected = BTreeMap::new();
    let mut session = kv.session();
    for n in 0..20_u8 {
        let k = format!("key {}", n % 5).into_bytes();
        let v = vec![n; 200 + usize::from(n)];
        put(&mut *session, &k, &v);
        expected.insert(k, v);
        if n % 3 == 0 {
            commit(&mut *session);
        }
    }
    put(&mut *session, b"long", &[7; 1_100]);
    expected.insert(b"long".to_vec(), vec![7; 1_100]);
    commit(&mut *session);
    drop(session);
    kv.clean().expect("cleaning");
    assert_eq!(kv.verify(), Ok(()));

    let sim = kv.into_medium().expect("no session is left");
    let kv = Kv::open(sim, config(CleaningMode::Inline)).expect("it opens after a kill");
    assert_eq!(contents(&kv, &expected), expected);
    let sim = kv.close().expect("it closes").expect("no session is left");
    let kv = Kv::open(sim, config(CleaningMode::Inline)).expect("it opens after a close");
    assert!(kv.opened().clean);
    assert_eq!(contents(&kv, &expected), expected);
}

#[test]
fn all_values_survive_cleaning_a_kill_and_a_close() {
    keeps_everything(Persistency::Adr);
}

#[test]
fn all_values_survive_on_a_medium_whose_tickets_become_durable_late() {
    keeps_everything(Persistency::Page);
}

#[test]
fn threads_that_count_read_and_write_groups_lose_nothing_and_see_groups_whole() {
    const ROUNDS: u32 = 4;
    let kv = fresh(Persistency::Adr, CleaningMode::Background);
    let count = |mut session: Box<dyn Session>| {
        for _ in 0..ROUNDS {
            let mut add = |item: Option<StoredItem<'_>>| {
                let old = item.map_or(0, |i| u32::from_le_bytes(i.bytes.try_into().expect("four")));
                UpdateDecision::Put {
                    bytes: (old + 1).to_le_bytes().to_vec(),
                    expires_ms: 0,
                    flags: 0,
                    kind: 0,
                }
            };
            session
                .update(key(b"counter"), &mut add)
                .expect("an update");
            commit(&mut *session);
        }
    };
    let write_pairs = |mut session: Box<dyn Session>| {
        for n in 0..ROUNDS {
            let value = n.to_le_bytes();
            let mut body = |ops: &mut dyn Ops| {
                put(ops, b"left", &value);
                put(ops, b"right", &value);
                Ok(GroupDecision::Apply)
            };
            let keys = [key(b"left"), key(b"right")];
            session.group(&keys, &mut body).expect("a group");
            commit(&mut *session);
        }
    };
    let read_pairs = |mut session: Box<dyn Session>| {
        for _ in 0..ROUNDS {
            let mut seen = Vec::new();
            let keys = [key(b"left"), key(b"right")];
            let mut each =
                |_, item: Option<StoredItem<'_>>| seen.push(item.map(|i| i.bytes.to_vec()));
            session
                .get_many(&keys, ReadView::Durable, &mut each)
                .expect("a read");
            assert_eq!(seen[0], seen[1], "half a group was seen");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| count(kv.session()));
        scope.spawn(|| count(kv.session()));
        scope.spawn(|| write_pairs(kv.session()));
        scope.spawn(|| read_pairs(kv.session()));
    });
    let counted = get(&mut *kv.session(), b"counter");
    assert_eq!(counted, Some((2 * ROUNDS).to_le_bytes().to_vec()));
}

#[test]
fn used_bytes_are_those_of_live_records_and_of_what_the_session_has_staged() {
    let kv = fresh(Persistency::Adr, CleaningMode::Inline);
    let (mut one, mut two) = (kv.session(), kv.session());
    assert_eq!((one.used_bytes(), two.used_bytes()), (0, 0));
    put(&mut *one, b"a", &[1; 100]);
    let staged = one.used_bytes();
    assert!(staged > 100, "{staged}");
    assert_eq!(two.used_bytes(), 0);
    commit(&mut *one);
    assert_eq!((one.used_bytes(), two.used_bytes()), (staged, staged));
    two.delete(key(b"a")).expect("a delete");
    commit(&mut *two);
    assert_eq!((one.used_bytes(), two.used_bytes()), (0, 0));
}

#[test]
fn used_bytes_fall_when_a_write_that_replaces_or_deletes_is_staged() {
    for persistency in [Persistency::Adr, Persistency::Page] {
        let kv = fresh(persistency, CleaningMode::Inline);
        let mut session = kv.session();
        put(&mut *session, b"a", &[1; 100]);
        commit(&mut *session);
        let one = session.used_bytes();
        put(&mut *session, b"b", &[1; 100]);
        put(&mut *session, b"b", &[2; 100]);
        assert_eq!(session.used_bytes(), 2 * one);
        put(&mut *session, b"a", &[2; 100]);
        assert_eq!(session.used_bytes(), 2 * one);
        session.commit().expect("a commit");
        assert_eq!(session.used_bytes(), 2 * one);
        commit(&mut *session);
        session.delete(key(b"a")).expect("a delete");
        session.delete(key(b"b")).expect("a delete");
        assert_eq!(session.used_bytes(), 0);
        commit(&mut *session);
        assert_eq!(session.used_bytes(), 0);
    }
}

fn key_of((db, bytes): &(u8, Vec<u8>)) -> Key<'_> {
    Key { db: *db, bytes }
}

/// Samples `visits` keys from `position`. Returns their names, and where the next sample goes on.
fn sample(session: &mut dyn Session, position: u64, visits: usize) -> (Vec<(u8, Vec<u8>)>, u64) {
    let mut seen = Vec::new();
    let next = session.sample(position, visits, &mut |key, meta| {
        assert_eq!(meta.value_bytes, 10);
        seen.push((key.db, key.bytes.to_vec()));
        true
    });
    (seen, next)
}

/// Samples from the first position until the last key.
fn sample_all(session: &mut dyn Session) -> Vec<(u8, Vec<u8>)> {
    let (mut all, mut position) = (Vec::new(), 0);
    loop {
        let (seen, next) = sample(session, position, 1);
        all.extend(seen);
        position = next;
        if position == 0 {
            all.sort();
            return all;
        }
    }
}

#[test]
fn samples_visit_every_key_of_every_database_once_except_those_with_pending_writes() {
    let kv = fresh(Persistency::Adr, CleaningMode::Inline);
    let (mut one, mut two) = (kv.session(), kv.session());
    let mut expected = Vec::new();
    let mut store = |db, n: u8, expires_ms| {
        let bytes = vec![n; 5];
        let key = Key { db, bytes: &bytes };
        let value = Value {
            bytes: &[7; 10],
            expires_ms,
            ..Value::default()
        };
        one.put(key, value).expect("a write");
        (db, bytes)
    };
    for n in 0..30 {
        expected.push(store(n % 3, n, 0));
    }
    store(0, 30, 999_999);
    expected.push(store(0, 31, 2_000_000));
    assert_eq!(sample_all(&mut *two), []);
    commit(&mut *one);
    expected.sort();
    assert_eq!(sample_all(&mut *two), expected);
    // A pending write of any session hides its key.
    let (replaced, deleted) = (expected[3].clone(), expected[9].clone());
    let value = Value {
        bytes: &[8; 10],
        ..Value::default()
    };
    two.put(key_of(&replaced), value).expect("a write");
    two.delete(key_of(&deleted)).expect("a delete");
    expected.retain(|name| *name != deleted && *name != replaced);
    assert_eq!(sample_all(&mut *two), expected);
    assert_eq!(sample_all(&mut *one), expected);
    commit(&mut *two);
    expected.push(replaced);
    expected.sort();
    assert_eq!(sample_all(&mut *one), expected);
}

#[test]
fn a_sample_ends_when_its_caller_has_enough() {
    let kv = fresh(Persistency::Adr, CleaningMode::Inline);
    let mut session = kv.session();
    for n in 0..30 {
        put(&mut *session, &[n], &[7; 10]);
    }
    commit(&mut *session);
    let mut visited = 0;
    session.sample(0, 1000, &mut |_, _| {
        visited += 1;
        visited < 3
    });
    assert_eq!(visited, 3);
}

#[test]
fn samples_from_random_positions_begin_with_every_key() {
    // The identity is constant, because the hashes of keys depend on it, and the counts on the hashes.
    let identity = PoolIdentity {
        id: [7; 16],
        created_unix_s: 1_700_000_000,
    };
    let sim = Sim::new(POOL_BYTES, Persistency::Adr);
    let kv = Kv::create_as(sim, SEGMENT_BYTES, identity, config(CleaningMode::Inline));
    let kv = kv.expect("a fresh store");
    let mut session = kv.session();
    for n in 0..20 {
        put(&mut *session, &[n], &[7; 10]);
    }
    commit(&mut *session);
    let mut first = BTreeMap::new();
    for n in 1..=400_u64 {
        let position = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        session.sample(position, 1000, &mut |key, _| {
            *first.entry(key.bytes.to_vec()).or_insert(0) += 1;
            false
        });
    }
    assert_eq!(first.len(), 20, "{first:?}");
    // Keys behind empty groups come first more often.
    assert!(first.values().all(|count| *count < 150), "{first:?}");
}
