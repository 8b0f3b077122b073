//! Tests of full pools, with a cleaner in the background as in a server.

use std::time::Duration;

use farbank_kv::{CleaningMode, Config, Kv};
use farbank_pm::media::Mapped;
use farbank_store::{Error, RoomReply, Store, Value};

use crate::support::{Time, User, key, memory};

/// Returns a store of `pool_bytes` with a cleaner in the background.
fn in_background(pool_bytes: u64) -> Kv<Mapped> {
    patient(pool_bytes, Time::new().config().patience)
}

/// Like [`in_background`], with [`Config::patience`] set to `patience`.
fn patient(pool_bytes: u64, patience: u32) -> Kv<Mapped> {
    let medium = Mapped::anonymous(pool_bytes).unwrap();
    let config = Config {
        cleaning: CleaningMode::Background,
        patience,
        ..Time::new().config()
    };
    Kv::create(medium, farbank_kv::segment_bytes_for(pool_bytes), config).unwrap()
}

/// Writes values of `bytes` until one is refused. Returns the number of values stored.
fn fill(user: &mut User, bytes: usize) -> u32 {
    let value = vec![7; bytes];
    let mut stored = 0_u32;
    while user.try_set(&stored.to_le_bytes(), &value).is_ok() {
        stored += 1;
    }
    stored
}

#[test]
fn after_one_delete_in_a_full_pool_a_value_of_the_same_size_is_taken() {
    for bytes in [10, 500, 5_000, 10_000, 150_000] {
        let kv = in_background(32 << 20);
        let mut user = User::of(&kv);
        let stored = fill(&mut user, bytes);
        let value = vec![8; bytes];
        for n in 0..stored.min(2_000) {
            assert_eq!(
                user.try_set(&(stored + n).to_le_bytes(), &value),
                Err(Error::Full),
                "{bytes} bytes, {n}: the pool was full"
            );
            assert!(user.delete(&n.to_le_bytes()));
            let taken = user.try_set(&(stored + n).to_le_bytes(), &value);
            assert_eq!(taken, Ok(()), "{bytes} bytes, {n} of {stored}");
        }
    }
}

#[test]
fn a_refused_write_moves_no_record() {
    for (pool_bytes, bytes) in [(64 << 20, 150_000), (256 << 20, 150_000), (32 << 20, 9_000)] {
        let kv = in_background(pool_bytes);
        let mut user = User::of(&kv);
        let stored = fill(&mut user, bytes);
        std::thread::sleep(Duration::from_millis(300)); // The background thread has cleaned.
        let before = kv.stats();
        for n in 0..1_000 {
            let refused = user.try_set(&(stored + n).to_le_bytes(), &vec![8; bytes]);
            assert_eq!(refused, Err(Error::Full), "{bytes} bytes, {n}");
        }
        let after = kv.stats();
        let moved = after.writes.moved_bytes - before.writes.moved_bytes;
        assert!(
            moved <= before.pool.segment_bytes,
            "{moved} bytes were moved for nothing"
        );
    }
}

#[test]
fn idle_sessions_hold_no_segment() {
    let kv = in_background(256 << 20);
    let capacity = kv.stats().pool.capacity_bytes;
    let mut users: Vec<User> = (0..512).map(|_| User::of(&kv)).collect();
    for (n, user) in users.iter_mut().enumerate() {
        user.try_set(&(n as u32).to_le_bytes(), b"1").unwrap();
    }
    let crowded = kv.stats().pool.capacity_bytes;
    assert!(
        crowded > capacity / 10 * 9,
        "512 sessions take {capacity} bytes down to {crowded}"
    );
    // One session can fill the pool while the others are idle.
    let stored = u64::from(fill(&mut users[7], 10_000));
    assert!(
        stored * 10_000 > crowded / 10 * 9,
        "{stored} values of 10,000 bytes fit into {crowded}"
    );
    for (n, user) in users.iter_mut().enumerate().skip(8).step_by(50) {
        assert!(user.delete(&(n as u32).to_le_bytes()));
    }
}

/// A session used like that of a server's worker: it calls `prepare` before each write, until that returns `Ready`.
struct WorkerSession(User);

impl WorkerSession {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        while self.0.0.prepare(key.len() + value.len(), false)? == RoomReply::Wait {
            std::thread::yield_now();
        }
        self.0.try_set(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        while self.0.0.prepare(key.len(), true) == Ok(RoomReply::Wait) {
            std::thread::yield_now();
        }
        self.0.delete(key)
    }
}

/// Writes leave a reserve for deletes. So a session without an open segment deletes at once.
#[test]
fn a_delete_in_a_full_pool_does_not_wait_for_the_cleaner() {
    let kv = in_background(32 << 20);
    let mut worker = WorkerSession(User::of(&kv));
    let mut stored = 0_u32;
    while worker.set(&stored.to_le_bytes(), &[7; 500]).is_ok() {
        stored += 1;
    }
    let mut other = User::of(&kv);
    assert_eq!(other.0.prepare(4, true), Ok(RoomReply::Ready));
    assert!(other.delete(&0_u32.to_le_bytes()));
}

/// More workers than CPUs write in pipelines. So other workers take the free segments after `prepare` has returned
/// `Ready`, and the cleaner waits for a CPU.
#[test]
fn a_worker_is_refused_no_write_that_fits_when_others_take_the_free_segments() {
    const WORKERS: u32 = 11;
    const WRITES: usize = 100_000;
    const PIPELINE: usize = 64;
    // A session that is preempted within an operation pins an epoch, and holds the cleaner up.
    let kv = patient(16 << 20, Config::default().patience);
    let value = [7; 400];
    let mut user = User::of(&kv);
    let stored = fill(&mut user, value.len());
    for n in (0..stored).step_by(4) {
        assert!(user.delete(&n.to_le_bytes()));
    }
    let mut workers: Vec<_> = (0..WORKERS).map(|_| WorkerSession(User::of(&kv))).collect();
    std::thread::scope(|scope| {
        for (number, worker) in (0..WORKERS).zip(&mut workers) {
            scope.spawn(move || {
                // Each worker overwrites existing keys of its own, so the live bytes do not grow.
                let mine = (number..stored).step_by(WORKERS as usize);
                let mine: Vec<_> = mine.filter(|n| n % 4 != 0).collect();
                for n in 0..WRITES {
                    let key = mine[n % mine.len()].to_le_bytes();
                    let written = match n % PIPELINE {
                        0 => worker.set(&key, &value),
                        _ => worker.0.try_set(&key, &value),
                    };
                    assert_eq!(written, Ok(()), "write {n}");
                }
            });
        }
    });
}

/// A session in the middle of a batch holds its open segments, and these are not parked. Other writers wait until the
/// batch ends.
#[test]
fn a_write_waits_for_segments_that_other_sessions_hold_within_a_batch() {
    const SESSIONS: usize = 40;
    let stored_beside = |batches_last: Duration| {
        let kv = patient(1 << 20, Config::default().patience);
        let mut others: Vec<User> = (0..SESSIONS).map(|_| User::of(&kv)).collect();
        let mut user = User::of(&kv);
        for (n, other) in others.iter_mut().enumerate() {
            let value = Value {
                bytes: &[7; 100],
                ..Value::default()
            };
            other.0.put(key(&[b'h', n as u8]), value).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(batches_last);
                for other in &mut others {
                    other.0.commit().unwrap();
                }
            });
            if batches_last.is_zero() {
                std::thread::sleep(Duration::from_millis(50));
            }
            fill(&mut user, 500)
        })
    };
    let (short, long) = (
        stored_beside(Duration::ZERO),
        stored_beside(Duration::from_millis(200)),
    );
    assert!(
        long >= short - short / 50,
        "{long} values beside batches of 200 ms, {short} without"
    );
}

#[test]
fn a_worker_that_calls_prepare_is_refused_only_writes_that_do_not_fit() {
    for (bytes, part) in [(10, 3), (500, 3), (10_000, 3), (150_000, 2)] {
        let kv = in_background(32 << 20);
        let mut worker = WorkerSession(User::of(&kv));
        let value = vec![7; bytes];
        let mut stored = 0_u32;
        while worker.set(&stored.to_le_bytes(), &value).is_ok() {
            stored += 1;
        }
        // Deletes a part of the keys and stores as many others, so that tombstones must be removed.
        for n in (0..stored).step_by(part) {
            assert!(worker.delete(&n.to_le_bytes()));
        }
        let freed = stored.div_ceil(part as u32);
        for n in 0..freed {
            let taken = worker.set(&(stored + n).to_le_bytes(), &value);
            assert_eq!(
                taken,
                Ok(()),
                "{bytes} bytes, {n} of {freed}: {:?}",
                kv.stats()
            );
        }
        for n in 0..1_000.min(freed) {
            assert!(worker.delete(&(stored + n).to_le_bytes()));
            let taken = worker.set(&(stored + freed + n).to_le_bytes(), &value);
            assert_eq!(taken, Ok(()), "{bytes} bytes, {n}: {:?}", kv.stats());
        }
    }
}

#[test]
fn a_segment_sealed_early_costs_a_pool_of_large_values_no_capacity() {
    const SEGMENT: u64 = 32 << 10;
    // Number of records that fill a segment to four fifths.
    const WRITES: u32 = 520;
    let stored_with = |writes_per_session: u32| {
        let kv = memory(32 << 20, SEGMENT);
        let (mut user, mut stored) = (User::of(&kv), 0_u32);
        while user.try_set(&stored.to_le_bytes(), &[7; 10_000]).is_ok() {
            stored += 1;
            if stored.is_multiple_of(writes_per_session) {
                drop(user);
                user = User::of(&kv); // Dropping the session seals its open segment.
            }
        }
        (stored, kv.stats().pool.capacity_bytes)
    };
    let (whole, early) = (stored_with(u32::MAX), stored_with(WRITES));
    assert!(
        early.0 >= whole.0 - whole.0 / 50,
        "{early:?} with segments sealed early, {whole:?} without"
    );
}
