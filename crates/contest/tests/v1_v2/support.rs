//! The contest's mix, one thread's share of it.

use farbank_contest::{ContestLimits, Engine, Error, Key};
use farbank_pm::rng::Rng;

/// A thread's keys are its own: its number is in them.
pub(crate) fn key_of(thread: u64, number: u64) -> Key {
    let mut rng = Rng::new(thread << 48 | number);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&rng.draw().to_le_bytes());
    key[8..].copy_from_slice(&rng.draw().to_le_bytes());
    key
}

/// 80 to 128 bytes of 55 values of 100, to 256 of 25, to 512 of 15, to 1,024 of 5.
pub(crate) fn value_bytes(rng: &mut Rng) -> usize {
    let (least, most) = match rng.below(100) {
        0..55 => (80, 128),
        55..80 => (129, 256),
        80..95 => (257, 512),
        _ => (513, 1024),
    };
    (least + rng.below(most - least + 1)) as usize
}

/// A value that says which key's it is, and which of them.
pub(crate) fn value(key: &Key, turn: u64, bytes: usize) -> Vec<u8> {
    let first = u64::from_le_bytes(*key.first_chunk().unwrap());
    let mut rng = Rng::new(first ^ turn);
    let words = std::iter::repeat_with(|| rng.draw().to_le_bytes());
    words
        .take(bytes.div_ceil(8))
        .flatten()
        .take(bytes)
        .collect()
}

/// What a thread has stored: of each key, by number, its newest turn and length.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) keys: Vec<(u64, usize)>,
    pub(crate) live_bytes: u64,
}

/// Runs `operations` sets of thread `thread`: of new keys until it has `keys`, 43.1 of 100 of old ones.
pub(crate) fn set_phase(
    engine: &dyn Engine,
    terms: &ContestLimits,
    thread: u64,
    stored: &mut Stored,
) -> Result<(), Error> {
    let threads = terms.threads as u64;
    let (operations, keys) = (terms.operations / threads, terms.keys / threads);
    let mut worker = engine.worker();
    let mut rng = Rng::new(thread).fork(7);
    for turn in 1..=operations {
        let (left, new) = (operations - turn + 1, keys - stored.keys.len() as u64);
        let is_new = stored.keys.is_empty() || rng.below(left) < new;
        let number = match is_new {
            true => stored.keys.len() as u64,
            false => rng.below(stored.keys.len() as u64),
        };
        let (key, bytes) = (key_of(thread, number), value_bytes(&mut rng));
        worker.set(&key, &value(&key, turn, bytes))?;
        if is_new {
            stored.keys.push((turn, bytes));
            stored.live_bytes += bytes as u64;
        } else {
            let old = std::mem::replace(&mut stored.keys[number as usize], (turn, bytes));
            stored.live_bytes = stored.live_bytes + bytes as u64 - old.1 as u64;
        }
    }
    Ok(())
}

/// Runs a get phase of thread `thread`: three gets of four, the others sets of at most 128 bytes, of hot keys.
pub(crate) fn get_phase(
    engine: &dyn Engine,
    operations: u64,
    hot: u64,
    thread: u64,
    stored: &mut Stored,
) -> Result<(), Error> {
    let mut worker = engine.worker();
    let mut rng = Rng::new(thread).fork(8);
    let mut out = Vec::new();
    for turn in 1..=operations {
        let number = rng.below(hot.min(stored.keys.len() as u64));
        let (key, known) = (key_of(thread, number), &mut stored.keys[number as usize]);
        if rng.one_in(4) {
            let bytes = 80 + rng.below(49) as usize;
            let turn = turn << 32;
            worker.set(&key, &value(&key, turn, bytes))?;
            *known = (turn, bytes);
        } else {
            assert!(
                worker.get(&key, &mut out),
                "key {number} of thread {thread}"
            );
            assert_eq!(out, value(&key, known.0, known.1), "key {number}");
        }
    }
    Ok(())
}

/// Whether the engine has what the thread stored, and nothing under other keys.
pub(crate) fn check(engine: &dyn Engine, thread: u64, stored: &Stored) {
    let (mut worker, mut out) = (engine.worker(), Vec::new());
    for (number, (turn, bytes)) in stored.keys.iter().enumerate() {
        let key = key_of(thread, number as u64);
        assert!(
            worker.get(&key, &mut out),
            "key {number} of thread {thread}"
        );
        assert_eq!(out, value(&key, *turn, *bytes), "key {number} of {thread}");
    }
    for number in 0..1000 {
        let key = key_of(thread, stored.keys.len() as u64 + number);
        assert!(!worker.get(&key, &mut out), "a key that was never stored");
    }
}
