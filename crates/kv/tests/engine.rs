//! Tests of the engine on plain memory.
//!
//! * `full` tests full pools, `growing` pools that may grow.
//! * `closing` tests the index snapshot, `maps` segment maps.

use std::collections::HashMap;

use farbank_kv::Kv;
use farbank_pm::media::Mapped;
use farbank_pm::rng::Rng;
use farbank_pm::sim::{Persistency, Sim};
use farbank_store::{
    Absence, DATABASES, Error, GroupDecision, Key, Ops, ReadView, Store, Value, ValueMeta,
};
use support::{Time, User, key, kill, memory, reopen};

#[path = "engine/closing.rs"]
mod closing;
#[path = "engine/full.rs"]
mod full;
#[path = "engine/growing.rs"]
mod growing;
#[path = "engine/maps.rs"]
mod maps;
mod support;

fn value(rng: &mut Rng, max: u64) -> Vec<u8> {
    let len = rng.below(max) as usize;
    let seed = rng.below(256) as u8;
    (0..len).map(|n| seed.wrapping_add(n as u8)).collect()
}

#[test]
fn the_store_behaves_like_a_map_across_kills_and_closes() {
    let time = Time::new();
    let mut kv = memory(16 << 20, 16 << 10);
    let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut rng = Rng::new(7);
    for round in 0..12 {
        let mut user = User::of(&kv);
        for _ in 0..3_000 {
            let k = format!("key{}", rng.below(2_000)).into_bytes();
            match rng.below(10) {
                0..=5 => {
                    let v = value(&mut rng, 600);
                    user.set(&k, &v);
                    model.insert(k, v);
                }
                6 => {
                    let v = value(&mut rng, 20_000);
                    user.set(&k, &v);
                    model.insert(k, v);
                }
                7 => assert_eq!(user.delete(&k), model.remove(&k).is_some()),
                8 => {
                    user.update(&k, |old| {
                        [
                            old.unwrap_or(b"")
                                .split_at_checked(100)
                                .map_or(&b""[..], |h| h.0),
                            b"!",
                        ]
                        .concat()
                    });
                    let old = model.entry(k).or_default();
                    *old = [old.split_at_checked(100).map_or(&b""[..], |h| h.0), b"!"].concat();
                }
                _ => assert_eq!(user.get(&k).as_ref(), model.get(&k)),
            }
        }
        assert_eq!(user.0.len(0).unwrap(), model.len() as u64);
        drop(user);
        kv.verify().unwrap();
        kv = if round % 2 == 0 {
            kill(kv, time.config())
        } else {
            reopen(kv, time.config())
        };
        assert_eq!(kv.opened().clean, round % 2 == 1);
        assert_eq!(kv.opened().damage, Vec::<String>::new());
        kv.verify().unwrap();
        let mut user = User::of(&kv);
        for (k, v) in &model {
            assert_eq!(user.get(k).as_ref(), Some(v));
        }
        assert_eq!(user.0.len(0).unwrap(), model.len() as u64);
    }
}

#[test]
fn a_session_sees_its_staged_writes_and_others_see_them_after_the_commit() {
    let kv = memory(4 << 20, 64 << 10);
    let (mut one, mut other) = (kv.session(), User::of(&kv));
    one.put(
        key(b"a"),
        Value {
            bytes: b"1",
            ..Value::default()
        },
    )
    .unwrap();
    let mut out = Vec::new();
    assert!(
        one.get(key(b"a"), ReadView::Pending, &mut out, &mut |_, _| true)
            .unwrap()
    );
    assert_eq!(out, b"1");
    assert_eq!(other.get(b"a"), None);
    one.commit().unwrap();
    assert_eq!(other.get(b"a").unwrap(), b"1");
}

#[test]
fn an_update_in_a_batch_builds_on_the_write_before_it() {
    let kv = memory(4 << 20, 64 << 10);
    let mut session = kv.session();
    for _ in 0..100 {
        let mut add = |item: Option<farbank_store::StoredItem<'_>>| {
            let n: u64 = item.map_or(0, |i| String::from_utf8_lossy(i.bytes).parse().unwrap());
            farbank_store::UpdateDecision::Put {
                bytes: (n + 1).to_string().into_bytes(),
                expires_ms: 0,
                flags: 0,
                kind: 0,
            }
        };
        session.update(key(b"n"), &mut add).unwrap();
    }
    session.commit().unwrap();
    drop(session);
    assert_eq!(User::of(&kv).get(b"n").unwrap(), b"100");
    kv.verify().unwrap();
}

#[test]
fn counters_of_several_threads_lose_nothing() {
    let kv = memory(8 << 20, 64 << 10);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut user = User::of(&kv);
                for n in 0..2_000 {
                    let name = format!("n{}", n % 3);
                    user.update(name.as_bytes(), |old| {
                        let n: u64 = old.map_or(0, |o| String::from_utf8_lossy(o).parse().unwrap());
                        (n + 1).to_string().into_bytes()
                    });
                }
            });
        }
    });
    let mut user = User::of(&kv);
    let sum: u64 = (0..3)
        .map(|n| String::from_utf8(user.get(format!("n{n}").as_bytes()).unwrap()).unwrap())
        .map(|n| n.parse::<u64>().unwrap())
        .sum();
    assert_eq!(sum, 8_000);
    drop(user);
    kv.verify().unwrap();
}

#[test]
fn a_group_is_seen_whole_and_survives_whole() {
    let kv = memory(8 << 20, 64 << 10);
    let names: Vec<Vec<u8>> = (0..5).map(|n| format!("g{n}").into_bytes()).collect();
    let keys: Vec<Key<'_>> = names.iter().map(|n| key(n)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = kv.session();
            for n in 0..2_000_u32 {
                let mut body = |ops: &mut dyn Ops| {
                    for k in &keys {
                        ops.put(
                            *k,
                            Value {
                                bytes: &n.to_le_bytes(),
                                ..Value::default()
                            },
                        )?;
                    }
                    Ok(GroupDecision::Apply)
                };
                session.group(&keys, &mut body).unwrap();
                session.commit().unwrap();
            }
        });
        let mut session = kv.session();
        for _ in 0..2_000 {
            let mut seen = Vec::new();
            session
                .get_many(&keys, ReadView::Durable, &mut |_, item| {
                    seen.push(item.map(|i| i.bytes.to_vec()))
                })
                .unwrap();
            session.commit().unwrap();
            assert!(seen.iter().all(|s| s == &seen[0]), "{seen:?}");
        }
    });
    kv.verify().unwrap();
    let kv = kill(kv, Time::new().config());
    let mut user = User::of(&kv);
    for name in &names {
        assert_eq!(user.get(name).unwrap(), 1_999_u32.to_le_bytes());
    }
}

#[test]
fn a_group_larger_than_a_segment_is_whole_too_and_can_be_cleaned() {
    let kv = memory(8 << 20, 16 << 10);
    let names: Vec<Vec<u8>> = (0..400).map(|n| format!("group{n}").into_bytes()).collect();
    let keys: Vec<Key<'_>> = names.iter().map(|n| key(n)).collect();
    let mut session = kv.session();
    for round in 0..40_u8 {
        let mut body = |ops: &mut dyn Ops| {
            for k in &keys {
                ops.put(
                    *k,
                    Value {
                        bytes: &[round; 300],
                        ..Value::default()
                    },
                )?;
            }
            Ok(GroupDecision::Apply)
        };
        session.group(&keys, &mut body).unwrap();
        session.commit().unwrap();
    }
    drop(session);
    kv.verify().unwrap();
    let kv = kill(kv, Time::new().config());
    kv.verify().unwrap();
    let mut user = User::of(&kv);
    for name in &names {
        assert_eq!(user.get(name).unwrap(), [39; 300]);
    }
}

#[test]
fn a_segment_taken_for_a_refused_group_holds_records_later() {
    let config = || Time::new().config();
    let put = |ops: &mut dyn Ops, k: &[u8], bytes: &[u8]| {
        let value = Value {
            bytes,
            ..Value::default()
        };
        ops.put(key(k), value).map(|_| ())
    };
    let sim = Sim::new(8192 + 12 * 4096, Persistency::Adr);
    let kv = Kv::create(sim.clone(), 4 << 10, config()).unwrap();
    let names: Vec<Vec<u8>> = (0..6).map(|n| format!("big{n}").into_bytes()).collect();
    let keys: Vec<Key<'_>> = names.iter().map(|n| key(n)).collect();
    // There is a free segment for the group's record, and not enough for its six extents.
    let refused = kv.session().group(&keys, &mut |ops| {
        names.iter().try_for_each(|n| put(ops, n, &[0; 2_100]))?;
        Ok(GroupDecision::Apply)
    });
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    let sim = sim.crash_state().killed();
    let kv = Kv::open(sim.clone(), config()).unwrap();
    let mut session = kv.session();
    put(&mut *session, b"small", b"value").unwrap();
    session.commit().unwrap();
    let kv = Kv::open(sim.crash_state().killed(), config()).unwrap();
    assert_eq!(kv.opened().keys, 1);
}

/// Two sessions on a medium whose tickets become durable late. The second session writes a member of the first
/// session's group, and publishes its write while the group is durable and not published.
#[test]
fn a_group_becomes_visible_before_a_later_write_of_its_member() {
    let put = |ops: &mut dyn Ops, k: &[u8], bytes: &[u8]| {
        let value = Value {
            bytes,
            ..Value::default()
        };
        ops.put(key(k), value).map(|_| ())
    };
    let sim = Sim::new(8192 + 12 * 4096, Persistency::Page);
    let kv = Kv::create(sim.clone(), 4 << 10, Time::new().config()).unwrap();
    let (mut first, mut second, mut reader) = (kv.session(), kv.session(), kv.session());
    let mut seen = |k: &[u8]| {
        let mut out = Vec::new();
        let found = reader.get(key(k), ReadView::Durable, &mut out, &mut |_, _| true);
        found.unwrap().then_some(out)
    };
    let large = [7; 1_500];
    let both = [key(b"a"), key(b"b")];
    let wrote = first.group(&both, &mut |ops| {
        put(ops, b"a", b"group")?;
        put(ops, b"b", b"group")?;
        Ok(GroupDecision::Apply)
    });
    wrote.unwrap();
    // This write replaces a member in the same batch, and lies in a different segment.
    put(&mut *first, b"b", &large).unwrap();
    let theirs = first.commit().unwrap();
    put(&mut *second, b"b", b"newer").unwrap();
    let ours = second.commit().unwrap();
    sim.sync().unwrap();
    assert!(second.durable(ours).unwrap());
    assert_eq!(seen(b"b").as_deref(), Some(&b"newer"[..]));
    assert_eq!(seen(b"a").as_deref(), Some(&b"group"[..]), "half a group");
    assert!(first.durable(theirs).unwrap());
    assert_eq!(seen(b"b").as_deref(), Some(&b"newer"[..]));
    drop((first, second, reader));
    kv.verify().unwrap();
    kv.clean().unwrap();
    kv.verify().unwrap();
}

#[test]
fn an_expired_value_stays_expired_when_the_clock_is_set_back() {
    let time = Time::new();
    let medium = farbank_pm::media::Mapped::anonymous(4 << 20).unwrap();
    let mut kv = farbank_kv::Kv::create(medium, 16 << 10, time.config()).unwrap();
    let mut user = User::of(&kv);
    user.set(b"k", b"old");
    user.set_until(b"k", b"new", time.now() + 10);
    assert_eq!(user.get(b"k").unwrap(), b"new");
    time.pass(11);
    assert_eq!(user.get(b"k"), None);
    let mut session = kv.session();
    let absences = [&b"k"[..], b"never"].map(|bytes| session.absence(Key { db: 0, bytes }));
    assert_eq!(absences, [Absence::Expired, Absence::Missing]);
    drop((user, session));
    time.set(1);
    for round in 0..3 {
        kv = if round % 2 == 0 {
            kill(kv, time.config())
        } else {
            reopen(kv, time.config())
        };
        assert_eq!(User::of(&kv).get(b"k"), None);
        kv.clean().unwrap();
        assert_eq!(User::of(&kv).get(b"k"), None);
    }
}

#[test]
fn a_flush_empties_every_database_for_good() {
    let mut kv = memory(4 << 20, 16 << 10);
    let mut session = kv.session();
    for db in 0..DATABASES as u8 {
        for n in 0..50_u32 {
            let k = Key {
                db,
                bytes: &n.to_le_bytes(),
            };
            session
                .put(
                    k,
                    Value {
                        bytes: &[db; 1000],
                        ..Value::default()
                    },
                )
                .unwrap();
        }
    }
    session.flush_all().unwrap();
    session
        .put(
            key(b"after"),
            Value {
                bytes: b"1",
                ..Value::default()
            },
        )
        .unwrap();
    session.commit().unwrap();
    assert_eq!(session.len(3).unwrap(), 0);
    drop(session);
    kv.verify().unwrap();
    kv = kill(kv, Time::new().config());
    assert_eq!(kv.opened().keys, 1);
    assert_eq!(User::of(&kv).get(b"after").unwrap(), b"1");
}

/// Writes `hot` 60 times, which fills several segments, and cleans after every fourth write.
fn churn(kv: &farbank_kv::Kv<farbank_pm::media::Mapped>, user: &mut User, hot: &[u8]) {
    for n in 0..60_u8 {
        user.set(hot, &[n; 400]);
        if n % 4 == 0 {
            kv.clean().expect("it cleans");
        }
    }
}

#[test]
fn a_delete_staged_before_its_value_is_moved_hides_the_copy_for_good() {
    let kv = memory(8192 + 24 * 4096, 4096);
    let (mut a, mut b) = (User::of(&kv), User::of(&kv));
    a.set(b"k", &[1; 400]);
    b.0.delete(key(b"k")).unwrap();
    // The delete that `b` has staged is not visible yet. The value is live, and is moved when its segment is cleaned.
    churn(&kv, &mut a, b"hot");
    assert_eq!(a.get(b"k").unwrap(), [1; 400]);
    assert!(
        kv_stats(&kv).writes.moved_bytes > 400,
        "the value has not moved"
    );
    b.0.commit().unwrap();
    assert_eq!(a.get(b"k"), None);
    // The tombstone's segment is filled and cleaned, while the copy of the value is still on the medium.
    churn(&kv, &mut b, b"hot");
    churn(&kv, &mut a, b"hot");
    drop((a, b));
    let kv = kill(kv, Time::new().config());
    assert_eq!(User::of(&kv).get(b"k"), None);
}

#[test]
fn a_record_is_not_overwritten_while_a_reader_copies_it() {
    let kv = memory(8192 + 24 * 4096, 4096);
    let (mut writer, mut reader) = (User::of(&kv), kv.session());
    writer.set(b"k", &[1; 400]);
    let mut out = Vec::new();
    // The reader has read the header and not the value. Meanwhile the record moves, and the pool needs all segments.
    let mut refused = None;
    let mut meanwhile = |_: &ValueMeta, _: &mut Vec<u8>| {
        let write = |n: u16| {
            let written = writer.try_set(b"hot", &[n as u8; 400]);
            kv.clean().and(written)
        };
        refused = (0..1_000).map(write).find_map(Result::err);
        true
    };
    let found = reader.get(key(b"k"), ReadView::Durable, &mut out, &mut meanwhile);
    assert_eq!((found, out), (Ok(true), vec![1; 400]));
    assert_eq!(
        refused,
        Some(Error::Full),
        "a segment that the reader pins was reused"
    );
    assert!(
        kv_stats(&kv).writes.moved_bytes > 400,
        "the value has not moved"
    );
    reader.commit().unwrap();
    writer.set(b"hot", &[1; 400]);
}

/// A small pool that is three quarters full, with a model of its contents.
struct NearlyFullPool {
    kv: Kv<Mapped>,
    rng: Rng,
    model: HashMap<u32, Vec<u8>>,
}

impl NearlyFullPool {
    const KEYS: u32 = 6_500;

    fn new() -> NearlyFullPool {
        NearlyFullPool {
            kv: memory(8192 + 300 * 4096, 4096),
            rng: Rng::new(5),
            model: HashMap::new(),
        }
    }

    /// Sets and deletes random keys until `refusals_max` writes were refused, `ops` times at most. Returns the number
    /// of refused writes.
    fn set_and_delete(&mut self, ops: u32, refusals_max: u32) -> u32 {
        let (mut user, mut refused) = (User::of(&self.kv), 0);
        for _ in 0..ops {
            let k = self.rng.below(u64::from(Self::KEYS)) as u32;
            let done = if self.rng.below(8) == 0 {
                let deleted = user.0.delete(key(&k.to_le_bytes()));
                user.0.commit().expect("a commit");
                deleted.map(|_| drop(self.model.remove(&k)))
            } else {
                let v = value(&mut self.rng, 200);
                let set = user.try_set(&k.to_le_bytes(), &v);
                set.map(|()| drop(self.model.insert(k, v)))
            };
            refused += u32::from(done == Err(Error::Full));
            if refused == refusals_max {
                break;
            }
        }
        refused
    }

    /// Like [`NearlyFullPool::set_and_delete`], while a reader pins an epoch: segments emptied meanwhile do not become free.
    fn set_and_delete_while_one_reads(&mut self) {
        let mut reader = self.kv.session();
        User::of(&self.kv).set(b"held", b"1");
        let mut meanwhile = |_: &ValueMeta, _: &mut Vec<u8>| {
            assert_eq!(self.set_and_delete(10_000, 20), 20, "nothing was refused");
            true
        };
        let mut out = Vec::new();
        let found = reader.get(key(b"held"), ReadView::Durable, &mut out, &mut meanwhile);
        assert_eq!(found, Ok(true));
    }

    /// Reopens the pool as after a kill, and compares it with the model.
    fn killed(mut self) -> NearlyFullPool {
        self.kv.verify().unwrap();
        self.kv = kill(self.kv, Time::new().config());
        self.kv.verify().unwrap();
        let mut user = User::of(&self.kv);
        for k in 0..Self::KEYS {
            let expected = self.model.get(&k).cloned();
            assert_eq!(user.get(&k.to_le_bytes()), expected, "{k}");
        }
        drop(user);
        self
    }
}

/// A pass that runs out of free segments has copied some tombstones of a victim and not the others.
#[test]
fn a_delete_survives_repeated_partial_cleaning_of_its_segment() {
    let mut crowded = NearlyFullPool::new();
    for _ in 0..20 {
        crowded.set_and_delete_while_one_reads();
        crowded.set_and_delete(300, u32::MAX);
        crowded = crowded.killed();
    }
}

/// All free segments are used up for copies of records, while readers still pin the emptied segments.
#[test]
fn a_pool_that_is_killed_with_no_segment_free_takes_writes_again() {
    let mut crowded = NearlyFullPool::new();
    for _ in 0..40 {
        crowded.set_and_delete_while_one_reads();
        crowded = crowded.killed();
        assert_eq!(crowded.set_and_delete(100, 1), 0, "one was refused");
    }
}

#[test]
fn a_full_pool_refuses_writes_takes_deletes_and_keeps_every_byte() {
    let kv = memory(2 << 20, 16 << 10);
    let mut user = User::of(&kv);
    let mut stored = 0_u32;
    let refused = loop {
        match user.try_set(&stored.to_le_bytes(), &[stored as u8; 500]) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::Full);
    assert!(stored > 2_500, "only {stored} of about 3,500 fit");
    for n in 0..stored {
        assert_eq!(user.get(&n.to_le_bytes()).unwrap(), [n as u8; 500]);
    }
    for n in 0..stored {
        assert!(user.delete(&n.to_le_bytes()), "delete {n} of {stored}");
    }
    assert_eq!(user.0.len(0).unwrap(), 0);
    for n in 0..stored {
        if let Err(e) = user.try_set(&n.to_le_bytes(), &[1; 500]) {
            panic!("{n} {e} {:?}", kv_stats(&kv));
        }
    }
    drop(user);
    kv.verify().unwrap();
}

#[test]
fn a_full_pool_refuses_writes_at_once_and_takes_values_after_deletes_with_little_cleaning() {
    let kv = memory(8 << 20, 16 << 10);
    let mut user = User::of(&kv);
    let mut stored = 0_u32;
    while user.try_set(&stored.to_le_bytes(), &[1; 500]).is_ok() {
        stored += 1;
    }
    let before = kv_stats(&kv);
    for n in 0..100 {
        let refused = user.try_set(&(stored + n).to_le_bytes(), &[1; 500]);
        assert_eq!(refused, Err(Error::Full));
    }
    assert_eq!(kv_stats(&kv).writes.moved_bytes, before.writes.moved_bytes);
    for n in 0..30_000_u32 {
        assert!(user.delete(&n.to_le_bytes()), "delete {n}");
        user.try_set(&(stored + n).to_le_bytes(), &[1; 500])
            .unwrap();
    }
    let after = kv_stats(&kv);
    let moved = after.writes.moved_bytes - before.writes.moved_bytes;
    let written = after.writes.user_bytes - before.writes.user_bytes;
    println!("{moved} bytes moved, {written} written");
    assert!(
        moved < 16 * written,
        "{moved} bytes moved, {written} written"
    );
    drop(user);
    kv.verify().unwrap();
}

#[test]
fn uniform_updates_and_a_change_of_sizes_are_never_refused_while_the_data_fits() {
    let kv = memory(8 << 20, 16 << 10);
    let mut user = User::of(&kv);
    let mut rng = Rng::new(3);
    let mut before = 0;
    for (bytes, rounds) in [
        (200_u64, 200_000),
        (3_000, 20_000),
        (60, 300_000),
        (1_500, 40_000),
    ] {
        let keys = kv_stats(&kv).pool.bytes * 78 / 100 / (bytes + 48);
        for n in keys..before {
            user.delete(&n.to_le_bytes());
        }
        for n in (0..keys).chain((0..rounds).map(|_| rng.below(keys))) {
            if let Err(e) = user.try_set(&n.to_le_bytes(), &vec![1; bytes as usize]) {
                panic!("{bytes} {n} {e} {:?}", kv_stats(&kv));
            }
        }
        before = keys;
    }
    drop(user);
    kv.verify().unwrap();
}

fn kv_stats(kv: &farbank_kv::Kv<farbank_pm::media::Mapped>) -> farbank_store::Stats {
    Store::stats(kv)
}

#[test]
fn large_values_are_read_back_and_their_space_is_reused() {
    let mut kv = memory(4 << 20, 16 << 10);
    let big: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
    for round in 0..30 {
        let mut user = User::of(&kv);
        user.set(b"big", &big[round..]);
        assert_eq!(user.get(b"big").unwrap(), &big[round..]);
        drop(user);
        kv.verify().unwrap();
        if round % 10 == 0 {
            kv = kill(kv, Time::new().config());
            assert_eq!(User::of(&kv).get(b"big").unwrap(), &big[round..]);
        }
    }
    assert!(User::of(&kv).delete(b"big"));
    kv.clean().unwrap();
    kv.verify().unwrap();
}

#[test]
fn a_scan_visits_every_key_of_its_database() {
    let kv = memory(4 << 20, 16 << 10);
    let mut session = kv.session();
    for n in 0..3_000_u32 {
        let db = (n % 2) as u8;
        session
            .put(
                Key {
                    db,
                    bytes: &n.to_le_bytes(),
                },
                Value::default(),
            )
            .unwrap();
    }
    let (mut seen, mut cursor) = (std::collections::HashSet::new(), 0);
    loop {
        cursor = session
            .scan(1, cursor, 10, &mut |k, _| {
                seen.insert(k.to_vec());
            })
            .unwrap();
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen.len(), 1_500);
}

#[test]
fn a_set_costs_one_fence_and_a_batch_of_sixteen_one_too() {
    let kv = memory(64 << 20, 2 << 20);
    let mut user = User::of(&kv);
    let fences = |kv: &farbank_kv::Kv<farbank_pm::media::Mapped>| kv_stats(kv).persistence.fences;
    user.set(b"warm", b"up");
    let before = fences(&kv);
    for n in 0..1_000_u32 {
        user.set(&n.to_le_bytes(), &[7; 100]);
    }
    assert_eq!(fences(&kv) - before, 1_000);
    let before = fences(&kv);
    for batch in 0..100_u32 {
        for n in 0..16 {
            let name = (batch * 16 + n).to_le_bytes();
            user.0
                .put(
                    key(&name),
                    Value {
                        bytes: &[7; 100],
                        ..Value::default()
                    },
                )
                .unwrap();
        }
        user.0.commit().unwrap();
    }
    assert_eq!(fences(&kv) - before, 100);
}
