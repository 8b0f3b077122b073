//! Tests of the clean close: it writes the index snapshot, or returns an error.

use std::time::{Duration, Instant};

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::media::Mapped;
use farbank_pm::sim::{Persistency, Sim};
use farbank_store::{Error, Store};

use crate::support::{self, Time, User};

const SEGMENT_BYTES: u64 = 16 << 10;
const POOL_BYTES: u64 = 8 << 20;
const VALUE_BYTES: usize = 200;

fn value(key: u32, round: u32) -> Vec<u8> {
    let mut value = vec![key as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&(u64::from(key) << 32 | u64::from(round)).to_le_bytes());
    value
}

fn pool(cleaning: CleaningMode) -> Kv<Mapped> {
    pool_with(Config {
        cleaning,
        ..Time::new().config()
    })
}

fn pool_with(config: Config) -> Kv<Mapped> {
    let medium = Mapped::anonymous(POOL_BYTES).expect("memory");
    Kv::create(medium, SEGMENT_BYTES, config).expect("a fresh store")
}

/// Fills `percent` of the pool's capacity. Then overwrites random keys, until three times the pool's size is written.
/// Returns the last round of each key.
fn age(kv: &Kv<Mapped>, percent: u64) -> Vec<u32> {
    let mut user = User::of(kv);
    user.set(&u32::MAX.to_le_bytes(), &value(0, 0));
    let record_bytes = kv.stats().pool.live_bytes;
    let keys = (kv.stats().pool.capacity_bytes * percent / 100 / record_bytes) as u32;
    let mut rounds = vec![0; keys as usize];
    for key in 0..keys {
        user.set(&key.to_le_bytes(), &value(key, 0));
    }
    let writes = 3 * POOL_BYTES / record_bytes;
    let mut drawn = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 1..=writes as u32 {
        drawn = drawn.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let key = ((drawn >> 33) % u64::from(keys)) as u32;
        user.set(&key.to_le_bytes(), &value(key, round));
        rounds[key as usize] = round;
    }
    rounds
}

fn expect_all(kv: &Kv<Mapped>, rounds: &[u32]) {
    let mut user = User::of(kv);
    for (key, round) in (0_u32..).zip(rounds) {
        let found = user.get(&key.to_le_bytes());
        assert_eq!(found, Some(value(key, *round)), "key {key}");
    }
    kv.verify().expect("it adds up");
}

fn closes_with_a_snapshot(percent: u64, cleaning: CleaningMode) {
    let mut kv = pool(cleaning);
    let rounds = age(&kv, percent);
    for _ in 0..3 {
        kv = support::reopen(kv, Time::new().config());
        let opened = kv.opened();
        assert!(opened.clean, "{percent} % live: {opened:?}");
        assert_eq!(opened.damage, [""; 0]);
        expect_all(&kv, &rounds);
    }
    // The snapshot's segments are free again, so the pool accepts the same writes.
    let mut user = User::of(&kv);
    for round in 0..2 {
        for key in 0..rounds.len() as u32 {
            user.set(&key.to_le_bytes(), &value(key, round));
        }
    }
}

#[test]
fn a_pool_that_was_overwritten_closes_with_a_snapshot() {
    for percent in [30, 60, 90] {
        closes_with_a_snapshot(percent, CleaningMode::Inline);
        closes_with_a_snapshot(percent, CleaningMode::Background);
    }
}

/// Overwrites a key until a checkpoint is written, and reopens the store as after a kill.
fn killed_after_a_checkpoint(kv: Kv<Mapped>, round: u32, config: Config) -> Kv<Mapped> {
    let written = || kv.stats().log.expect("it has a log").checkpoints_written;
    let (before, started) = (written(), Instant::now());
    let mut user = User::of(&kv);
    while written() == before {
        assert!(started.elapsed() < Duration::from_secs(60), "no checkpoint");
        user.set(&0_u32.to_le_bytes(), &value(0, round));
    }
    drop(user);
    let medium = kv.into_medium().expect("no session is left");
    Kv::open(medium, config).expect("it opens")
}

/// A pool that is 85 % live has no room for two checkpoints. Each takes the segments of the one before it. While it is
/// written there is none, so an open after one kill may find none.
#[test]
fn a_pool_that_was_overwritten_opens_after_a_kill_by_a_checkpoint() {
    const KILLS: u32 = 20;
    let config = || Config {
        cleaning: CleaningMode::Background,
        checkpoint_bytes: 64 << 10,
        ..Time::new().config()
    };
    let mut kv = pool_with(config());
    let rounds = age(&kv, 85);
    // The first checkpoint was begun while the pool was overwritten. The next ones cover nearly all of the log.
    for _ in 0..KILLS {
        kv = killed_after_a_checkpoint(kv, rounds[0], config());
        assert_eq!(kv.opened().damage, [""; 0]);
        expect_all(&kv, &rounds);
        if kv.opened().keys_checkpointed > rounds.len() as u64 / 2 {
            return;
        }
    }
    panic!("no kill left a checkpoint: {:?}", kv.opened());
}

/// Returns a pool full of short values, and the number of its keys. The index is a third as long as the log, and
/// cleaning cannot make space for its snapshot.
fn full() -> (Kv<Sim>, u32) {
    let sim = Sim::new(1 << 20, Persistency::Adr);
    let kv = Kv::create(sim, 4 << 10, Time::new().config()).expect("a fresh store");
    let mut user = User::of(&kv);
    let mut keys = 0_u32;
    while user.try_set(&keys.to_le_bytes(), b"short").is_ok() {
        keys += 1;
    }
    drop(user);
    (kv, keys)
}

fn expect_short(kv: &Kv<Sim>, keys: u32) {
    assert_eq!(kv.opened().damage, [""; 0]);
    let mut user = User::of(kv);
    for key in 0..keys {
        let found = user.get(&key.to_le_bytes());
        assert_eq!(found.as_deref(), Some(&b"short"[..]), "key {key}");
    }
    assert!(user.delete(&0_u32.to_le_bytes()), "deletes find room");
    kv.verify().expect("it adds up");
}

#[test]
fn a_close_of_a_full_pool_reports_the_missing_snapshot_and_loses_nothing() {
    let (kv, keys) = full();
    let sim = kv.into_medium().expect("no session is left");
    let kv = Kv::open(sim.clone(), Time::new().config()).expect("it opens");
    match kv.close() {
        Err(Error::NoSnapshot { needed, free }) => assert!(needed > free, "{needed}, {free}"),
        other => panic!("{:?}", other.map(|_| "closed")),
    }
    let kv = Kv::open(sim, Time::new().config()).expect("it opens");
    assert!(!kv.opened().clean);
    expect_short(&kv, keys);
}

#[test]
fn a_full_pool_that_may_grow_does_so_for_its_snapshot() {
    let (kv, keys) = full();
    let sim = kv.into_medium().expect("no session is left");
    let config = Config {
        pool_bytes_max: 4 << 20,
        ..Time::new().config()
    };
    let kv = Kv::open(sim, config).expect("it opens");
    let sim = kv.close().expect("it closes").expect("no session is left");
    let kv = Kv::open(sim, Time::new().config()).expect("it opens");
    assert!(kv.opened().clean);
    expect_short(&kv, keys);
}
