//! How a contender is run: phases, threads, a clock.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::mix::{Mix, Name, VALUE_BYTES_MAX};

/// The phases, as they are printed.
pub(crate) const PHASES: [&str; 4] = ["load", "mix", "get", "get, 16 at a time"];
/// Gets that are asked for at once.
pub(crate) const BATCH: usize = 16;
/// Operations between two looks at the clock.
const LOOK_EVERY: u64 = 256;

/// What everyone is run with.
pub(crate) struct Settings {
    pub(crate) mix: Mix,
    pub(crate) threads: u64,
    pub(crate) live: f64,
    pub(crate) limit: Duration,
}

/// A table or an engine.
pub(crate) trait Peer: Sync {
    /// What a thread uses it by.
    fn door(&self) -> impl Door + '_;

    /// Keys it says it has, if it can say so.
    fn count(&self) -> Option<u64>;

    /// Brings it to where it stays: called once, between the load and the rest.
    fn age(&self, mix: &Mix) {
        let _ = mix;
    }
}

/// One thread's way in. What cannot be done panics: there is nothing to be measured then.
pub(crate) trait Door {
    /// Sets a key; durable, where the contender is, when it returns.
    fn set(&mut self, name: &Name, value: &[u8]);

    /// Appends a key's value to `out`; false if it has none.
    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool;

    /// Has `each` called with every key's position and value; false if that is nothing of its own.
    fn get_batch(&mut self, names: &[Name; BATCH], each: &mut dyn FnMut(usize, &[u8])) -> bool {
        let _ = (names, each);
        false
    }
}

/// One contender: its name, what it is, how it is made and run.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Settings) -> Result<Outcome, String>,
}

/// Millions of operations a second in each phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rates: [Option<f64>; PHASES.len()],
}

impl Outcome {
    pub(crate) fn line(&self) -> String {
        let rates = PHASES.iter().zip(self.rates);
        let rates = rates.filter_map(|(phase, rate)| Some(format!("{phase} {:.3}", rate?)));
        rates.collect::<Vec<_>>().join(", ")
    }
}

/// Runs `peer` through all phases.
pub(crate) fn run(peer: &impl Peer, settings: &Settings) -> Result<Outcome, String> {
    let Settings { mix, threads, .. } = settings;
    let mut outcome = Outcome::default();
    let each = mix.keys.div_ceil(*threads);
    let loaded = phase(peer, settings, |door, thread, n| {
        let key = thread * each + n;
        if key < mix.keys {
            door.set(&mix.name(key), mix.loaded(key));
        }
        u64::from(key < mix.keys)
    });
    outcome.rates[0] = Some(loaded.rate());
    let whole = loaded.done == mix.keys;
    if whole && peer.count().is_some_and(|count| count != mix.keys) {
        let count = peer.count();
        return Err(format!("{} keys were set, {count:?} are there", mix.keys));
    }
    peer.age(mix);
    // Who did not finish the load has fewer keys, and finds fewer.
    let read = |door: &mut dyn Door, key: u64, name: &Name| read(door, mix, key, name, whole);
    let mixed = phase(peer, settings, |door, thread, n| {
        let op = mix.op(thread, n);
        let name = mix.name(op.key);
        if op.is_set {
            door.set(&name, mix.updated(&op));
        } else {
            read(door, op.key, &name);
        }
        1
    });
    outcome.rates[1] = Some(mixed.rate());
    let gets = phase(peer, settings, |door, thread, n| {
        let op = mix.op(thread + *threads, n);
        read(door, op.key, &mix.name(op.key));
        1
    });
    outcome.rates[2] = Some(gets.rate());
    if peer.door().get_batch(&[mix.name(0); BATCH], &mut |_, _| {}) {
        let gets = phase(peer, settings, |door, thread, n| {
            if n * BATCH as u64 >= each {
                return 0;
            }
            let first = n * BATCH as u64;
            let keys: [u64; BATCH] =
                std::array::from_fn(|i| mix.op(thread + *threads, first + i as u64).key);
            let names = keys.map(|key| mix.name(key));
            let mut found = 0;
            door.get_batch(&names, &mut |place, value| {
                assert!(mix.is_of(keys[place], value), "not its value");
                found += 1;
            });
            assert!(found == BATCH as u64 || !whole, "a key is missing");
            BATCH as u64
        });
        outcome.rates[3] = Some(gets.rate());
    }
    Ok(outcome)
}

/// Gets one key and checks what comes.
#[inline]
fn read(door: &mut dyn Door, mix: &Mix, key: u64, name: &Name, all_there: bool) {
    SCRATCH.with_borrow_mut(|out| {
        out.clear();
        let right = match door.get(name, out) {
            true => mix.is_of(key, out),
            false => !all_there,
        };
        assert!(right, "key {key}: not its value");
        black_box(&out);
    });
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Vec<u8>> =
        std::cell::RefCell::new(Vec::with_capacity(2 * VALUE_BYTES_MAX));
}

struct Done {
    done: u64,
    took: Duration,
}

impl Done {
    fn rate(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64() / 1e6
    }
}

/// Has every thread do its share of as many operations as there are keys, or as many as the time
/// allows. `step` answers how many it did.
fn phase<P: Peer>(
    peer: &P,
    settings: &Settings,
    step: impl Fn(&mut dyn Door, u64, u64) -> u64 + Sync,
) -> Done {
    let each = settings.mix.keys.div_ceil(settings.threads);
    let start = Barrier::new(settings.threads as usize);
    let work = |thread: u64| {
        let mut door = peer.door();
        start.wait();
        let began = Instant::now();
        let mut done = 0;
        for n in 0..each {
            let more = step(&mut door, thread, n);
            done += more;
            if more == 0 || n % LOOK_EVERY == 0 && began.elapsed() > settings.limit {
                break;
            }
        }
        (done, began, Instant::now())
    };
    let shares: Vec<(u64, Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.threads)
            .map(|thread| {
                scope.spawn({
                    let work = &work;
                    move || work(thread)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread that works does not panic"))
            .collect()
    });
    let began = shares.iter().map(|s| s.1).min().expect("there are threads");
    let ended = shares.iter().map(|s| s.2).max().expect("there are threads");
    Done {
        done: shares.iter().map(|s| s.0).sum(),
        took: ended - began,
    }
}
