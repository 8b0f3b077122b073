//! Batches: writes of a session that are not committed yet.

use std::sync::Barrier;

use farbank_cache::{Cache, CacheSession, Config};
use farbank_pm::media::Mapped;
use farbank_store::{
    ConflictPolicy, GroupDecision, Key, Ops, ReadView, Session, Store, UpdateDecision, Value,
};

const MIB: u64 = 1 << 20;

fn cache() -> Cache<Mapped> {
    let medium = Mapped::anonymous(8 * MIB).expect("memory");
    let config = Config {
        background_maintenance: false,
        ..Config::default()
    };
    Cache::create(medium, MIB, config).expect("a cache")
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key { db: 0, bytes }
}

fn put(door: &mut CacheSession<Mapped>, name: &[u8], bytes: &[u8]) {
    let value = Value {
        bytes,
        ..Value::default()
    };
    door.put(key(name), value).expect("room");
}

fn get(door: &mut CacheSession<Mapped>, name: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    door.get(key(name), ReadView::Pending, &mut out, &mut |_, _| true)
        .expect("a read")
        .then_some(out)
}

/// Adds one to a number. Returns the new number.
fn count(door: &mut CacheSession<Mapped>, name: &[u8]) -> u64 {
    let mut count = 0;
    let counted = door.update(key(name), &mut |item| {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a number"));
        count = 1 + item.map_or(0, |item| number(item.bytes));
        UpdateDecision::Put {
            bytes: count.to_le_bytes().to_vec(),
            expires_ms: 0,
            flags: 0,
            kind: 0,
        }
    });
    counted.expect("room");
    count
}

#[test]
fn only_the_last_write_of_a_key_in_a_batch_reaches_far_memory() {
    let cache = cache();
    let mut door = cache.new_session();
    // Give the session slots of both sizes.
    put(&mut door, b"cold", &[1; 100]);
    count(&mut door, b"hits");
    door.commit().unwrap();
    let before = cache.stats();
    for n in 0..50 {
        put(&mut door, b"hot", &[n; 100]);
        assert_eq!(count(&mut door, b"hits"), u64::from(n) + 2);
    }
    door.commit().unwrap();
    let after = cache.stats();
    assert_eq!(after.cache.unwrap().merged_writes, 2 * 49);
    assert_eq!(after.persistence.fences - before.persistence.fences, 1);
    let heads_and_keys = 2 * 48 + 3 + 4;
    assert_eq!(
        after.writes.user_bytes - before.writes.user_bytes,
        heads_and_keys + 100 + 8
    );
    assert_eq!(get(&mut door, b"hot"), Some(vec![49; 100]));
    assert_eq!(get(&mut door, b"hits"), Some(51_u64.to_le_bytes().to_vec()));
    drop(door);
    cache.verify().unwrap();
}

#[test]
fn other_sessions_see_a_batch_after_its_commit_and_its_own_session_before() {
    let cache = cache();
    let (mut writer, mut reader) = (cache.new_session(), cache.new_session());
    put(&mut writer, b"a", b"old");
    put(&mut writer, b"b", b"old");
    writer.commit().unwrap();
    put(&mut writer, b"a", b"new");
    assert!(writer.delete(key(b"b")).unwrap());
    assert!(!writer.delete(key(b"b")).unwrap());
    assert_eq!(get(&mut reader, b"a").as_deref(), Some(&b"old"[..]));
    assert_eq!(get(&mut reader, b"b").as_deref(), Some(&b"old"[..]));
    assert_eq!(get(&mut writer, b"a").as_deref(), Some(&b"new"[..]));
    assert_eq!(get(&mut writer, b"b"), None);
    writer.commit().unwrap();
    assert_eq!(get(&mut reader, b"a").as_deref(), Some(&b"new"[..]));
    assert_eq!(get(&mut reader, b"b"), None);
    // A key that was stored and deleted in the same batch never existed.
    put(&mut writer, b"c", b"short");
    assert!(writer.delete(key(b"c")).unwrap());
    writer.commit().unwrap();
    assert_eq!(get(&mut reader, b"c"), None);
    drop((writer, reader));
    cache.verify().unwrap();
}

#[test]
fn a_session_dropped_without_a_commit_holds_up_no_other_session() {
    let cache = cache();
    let mut door = cache.new_session();
    put(&mut door, b"a", b"1");
    drop(door);
    let mut door = cache.new_session();
    put(&mut door, b"a", b"2");
    door.commit().unwrap();
    assert_eq!(get(&mut door, b"a").as_deref(), Some(&b"2"[..]));
}

#[test]
fn batches_with_the_same_keys_in_any_order_lose_no_update() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 400;
    let cache = cache();
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, start) = (&cache, &start);
            scope.spawn(move || {
                let mut door = cache.new_session();
                door.on_conflict(ConflictPolicy::Commit);
                start.wait();
                for round in 0..ROUNDS {
                    // Each thread uses another order. A session that would wait for another one writes its own batch
                    // first.
                    for step in 0..20_u64 {
                        let name = (step * (2 * thread + 1) % 20).to_le_bytes();
                        count(&mut door, &name);
                    }
                    let (one, two) = (key(b"one"), key(b"two"));
                    let both = door.group(&[one, two], &mut |ops| {
                        for key in [one, two] {
                            let value = Value {
                                bytes: &round.to_le_bytes(),
                                ..Value::default()
                            };
                            ops.put(key, value)?;
                        }
                        Ok(GroupDecision::Apply)
                    });
                    both.unwrap();
                    door.commit().unwrap();
                }
            });
        }
    });
    let mut door = cache.new_session();
    for n in 0..20_u64 {
        let found = get(&mut door, &n.to_le_bytes()).expect("it was counted");
        let orders = (0..THREADS).map(|thread| {
            let meets = |step: &u64| step * (2 * thread + 1) % 20 == n;
            (0..20).filter(meets).count() as u64
        });
        assert_eq!(found, (ROUNDS * orders.sum::<u64>()).to_le_bytes());
    }
    assert_eq!(get(&mut door, b"one"), get(&mut door, b"two"));
    drop(door);
    cache.verify().unwrap();
}
