//! Shared parts of the engines' tests: self-identifying values, a model, and the contest's mix of operations.

use std::collections::HashMap;

use farbank_pm::rng::Rng;

use crate::engine::{Engine, Worker};
use crate::limits::ContestLimits;
use crate::target::key_of;

/// Returns the `write`-th value of key `number`, of `bytes` bytes. Two values of the same length always differ.
pub(crate) fn value_of(number: u64, write: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(number).fork(write);
    let mut value = Vec::with_capacity(bytes + 8);
    value.extend_from_slice(&number.to_le_bytes());
    while value.len() < bytes {
        value.extend_from_slice(&rng.draw().to_le_bytes());
    }
    value.truncate(bytes);
    value
}

/// A model of the engine's contents: for each key, the number of its last write and the value's length in bytes.
#[derive(Default)]
pub(crate) struct StoredModel(HashMap<u64, (u64, usize)>);

impl StoredModel {
    /// Stores the `write`-th value of key `number` in the engine and in the model.
    pub(crate) fn set(&mut self, worker: &mut dyn Worker, number: u64, write: u64, bytes: usize) {
        let value = value_of(number, write, bytes);
        worker.set(&key_of(number), &value).unwrap();
        self.0.insert(number, (write, bytes));
    }

    /// Returns whether key `number` has been stored.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }

    /// Returns the keys whose newest value `worker` does not find.
    pub(crate) fn wrong(&self, worker: &mut dyn Worker) -> Vec<u64> {
        let mut out = Vec::new();
        let mut is_wrong = |(number, (write, bytes)): (&u64, &(u64, usize))| {
            let found = worker.get(&key_of(*number), &mut out);
            (!found || out != value_of(*number, *write, *bytes)).then_some(*number)
        };
        let mut wrong: Vec<u64> = self.0.iter().filter_map(&mut is_wrong).collect();
        wrong.sort_unstable();
        wrong
    }

    /// Asserts that `worker` finds every key of the model with its newest value, and no other key of `numbers`.
    pub(crate) fn check(&self, worker: &mut dyn Worker, numbers: std::ops::Range<u64>) {
        assert_eq!(self.wrong(worker), []);
        let mut out = Vec::new();
        for number in numbers.filter(|n| !self.0.contains_key(n)) {
            assert!(
                !worker.get(&key_of(number), &mut out),
                "key {number} was found but never stored"
            );
        }
    }
}

/// Returns a value length from the final round's four ranges, which end at 128, 256, 512 and 1,024 bytes.
pub(crate) fn value_bytes(rng: &mut Rng) -> usize {
    let (from, to) = match rng.below(100) {
        0..55 => (80, 128),
        55..80 => (129, 256),
        80..95 => (257, 512),
        _ => (513, 1024),
    };
    (from + rng.below(to - from + 1)) as usize
}

/// Runs the final round's set phase and one get phase. Each worker has keys of its own, and the workers take turns.
/// The get phase checks every value it reads; all keys are checked at the end.
pub(crate) fn contest_mix(engine: &dyn Engine, terms: &ContestLimits, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut workers: Vec<_> = (0..terms.threads).map(|_| engine.worker()).collect();
    let mut model = StoredModel::default();
    let (mut keys, mut out) = (0, Vec::new());
    for write in 0..terms.operations {
        let new_keys_left = terms.keys - keys;
        let new = keys < 16 || rng.below(terms.operations - write) < new_keys_left;
        let number = if new { keys } else { rng.below(keys) };
        keys += u64::from(new);
        let worker = &mut *workers[number as usize % terms.threads];
        model.set(worker, number, write, value_bytes(&mut rng));
    }
    assert_eq!(keys, terms.keys);
    for write in terms.operations..terms.operations + terms.operations / 4 {
        let number = rng.below(keys);
        let worker = &mut *workers[number as usize % terms.threads];
        if rng.one_in(4) {
            let bytes = 80 + rng.below(49) as usize;
            model.set(worker, number, write, bytes);
        } else {
            let (write, bytes) = model.0[&number];
            assert!(worker.get(&key_of(number), &mut out), "{number}");
            assert_eq!(out, value_of(number, write, bytes), "{number}");
        }
    }
    model.check(&mut *workers[0], 0..keys + 1000);
}

/// Runs `writers` threads, each writing keys of its own repeatedly, while another thread reads all keys. The reader
/// must find only whole values of the right key, and never an older value than before. At the end every key must
/// have its newest value.
pub(crate) fn threads_with_a_reader(engine: &dyn Engine, writers: u64, value_bytes: (u64, u64)) {
    const KEYS: u64 = 40;
    const WRITES: u64 = 4000;
    let (from, to) = value_bytes;
    let bytes_of =
        |number: u64, write: u64| (from + (number * 31 + write * 17) % (to - from + 1)) as usize;
    let stamped = |number: u64, write: u64| {
        let mut value = value_of(number, write, bytes_of(number, write));
        value[8..16].copy_from_slice(&write.to_le_bytes());
        value
    };
    let left = std::sync::atomic::AtomicU64::new(writers);
    let left = &left;
    std::thread::scope(|scope| {
        for thread in 0..writers {
            let mut worker = engine.worker();
            scope.spawn(move || {
                for write in 0..WRITES {
                    let number = thread * KEYS + write % KEYS;
                    worker
                        .set(&key_of(number), &stamped(number, write))
                        .unwrap();
                }
                left.fetch_sub(1, std::sync::atomic::Ordering::Release);
            });
        }
        let mut worker = engine.worker();
        let mut newest = vec![None; (writers * KEYS) as usize];
        let mut out = Vec::new();
        loop {
            let last = left.load(std::sync::atomic::Ordering::Acquire) == 0;
            for (number, newest) in (0..).zip(&mut newest) {
                if !worker.get(&key_of(number), &mut out) {
                    assert_eq!(
                        *newest, None,
                        "key {number} was found before and is now missing"
                    );
                    continue;
                }
                let write = u64::from_le_bytes(out[8..16].try_into().unwrap());
                assert_eq!(out, stamped(number, write), "key {number}");
                assert!(
                    *newest <= Some(write),
                    "key {number}: write {write} was read after {newest:?}"
                );
                *newest = Some(write);
            }
            if last {
                break;
            }
        }
        for (number, newest) in (0..).zip(newest) {
            assert_eq!(newest, Some(WRITES - KEYS + number % KEYS), "key {number}");
        }
    });
}
