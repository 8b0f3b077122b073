//! Tests of cleaning in slices: the cleaning work of a writer, and events between two slices of a pass.

use farbank_kv::{Config, Kv};
use farbank_pm::media::Mapped;
use farbank_pm::rng::Rng;
use farbank_store::{Store, Value};

use crate::support::{Time, User, key, kill, memory, reopen};

/// Maximum bytes that a slice copies, including the record that exceeds the limit.
const SLICE_BYTES: u64 = (256 << 10) + 2_000;
const VALUE_BYTES: usize = 1_000;

fn value(bytes: &[u8]) -> Value<'_> {
    Value {
        bytes,
        ..Value::default()
    }
}

/// Fills a store until `percent` of its capacity is live. Returns the number of its keys.
fn fill(kv: &Kv<Mapped>, user: &mut User, percent: u64) -> u64 {
    let mut keys = 0;
    loop {
        let stats = Store::stats(kv);
        if stats.pool.live_bytes * 100 >= stats.pool.capacity_bytes * percent {
            return keys;
        }
        for _ in 0..256 {
            set(user, keys, 0);
            keys += 1;
        }
    }
}

fn set(user: &mut User, number: u64, fill: u8) {
    let name = number.to_le_bytes();
    let stored = user.0.put_durable(key(&name), value(&[fill; VALUE_BYTES]));
    stored.expect("there is room");
}

/// Returns a store of 32 segments of 64 KiB whose cleaner works in slices of three records, and its configuration.
fn in_small_slices() -> (Kv<Mapped>, Config) {
    let config = Config {
        slice_records: 3,
        ..Time::new().config()
    };
    let medium = Mapped::anonymous(2 << 20).expect("memory");
    let kv = Kv::create(medium, 64 << 10, config.clone()).expect("a fresh store");
    (kv, config)
}

#[test]
fn a_write_moves_a_slice_of_records_at_most() {
    let kv = memory(256 << 20, 1 << 20);
    let mut user = User::of(&kv);
    let keys = fill(&kv, &mut user, 85);
    let mut rng = Rng::new(28);
    let mut slowest = 0;
    let mut moved = Store::stats(&kv).writes.moved_bytes;
    for turn in 0..3 * keys {
        set(&mut user, rng.below(keys), turn as u8);
        let now = Store::stats(&kv).writes.moved_bytes;
        slowest = slowest.max(now - moved);
        moved = now;
    }
    assert!(moved > keys * VALUE_BYTES as u64, "the cleaner was at work");
    assert!(slowest <= SLICE_BYTES, "one write moved {slowest} bytes");
    drop(user);
    kv.verify().unwrap();
}

#[test]
fn a_pass_that_is_cut_off_anywhere_loses_nothing() {
    const KEYS: u64 = 700;
    for writes in [1, 7, 40, 200, 900] {
        let (kv, config) = in_small_slices();
        let mut user = User::of(&kv);
        let mut stored = vec![0; KEYS as usize];
        let mut rng = Rng::new(writes);
        // Writes until the cleaner has moved records, and then `writes` more.
        let mut left = writes;
        let mut turn = 0_u64;
        while left > 0 {
            let number = match turn {
                0..KEYS => turn,
                _ => rng.below(KEYS),
            };
            stored[number as usize] = turn as u8;
            set(&mut user, number, turn as u8);
            turn += 1;
            left -= u64::from(Store::stats(&kv).writes.moved_bytes > 0);
            assert!(turn < 100 * KEYS, "the cleaner has moved nothing");
        }
        drop(user);
        let kv = kill(kv, config);
        kv.verify().unwrap();
        let mut user = User::of(&kv);
        for (number, fill) in (0..KEYS).zip(&stored) {
            let found = user.get(&number.to_le_bytes());
            assert_eq!(found, Some(vec![*fill; VALUE_BYTES]), "key {number}");
        }
    }
}

#[test]
fn a_flush_and_a_close_end_the_current_pass() {
    let (kv, config) = in_small_slices();
    let mut user = User::of(&kv);
    let mut rng = Rng::new(5);
    for round in 0..20 {
        for number in 0..700 {
            set(&mut user, number, round);
        }
        for _ in 0..rng.below(1_500) {
            set(&mut user, rng.below(700), round);
        }
        if round % 3 == 2 {
            user.0.flush_all().unwrap();
            assert_eq!(user.0.len(0).unwrap(), 0);
        }
        kv.verify().unwrap();
    }
    assert!(
        Store::stats(&kv).writes.moved_bytes > 0,
        "the cleaner was at work"
    );
    for number in 0..700 {
        set(&mut user, number, 99);
    }
    drop(user);
    let kv = reopen(kv, config);
    let mut user = User::of(&kv);
    for number in 0..700_u64 {
        let found = user.get(&number.to_le_bytes());
        assert_eq!(found, Some(vec![99; VALUE_BYTES]), "key {number}");
    }
}
