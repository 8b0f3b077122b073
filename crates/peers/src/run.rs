//! How a contender is run: phases, slices, threads, a clock.
//!
//! ```text
//!   papaya  ├─ slice ─┤                               ├─ slice ─┤
//!   dashmap           ├─ slice ─┤                               ├─ ...
//!   farbank                     ├─ slice ─┤ ...
//! ```
//!
//! All contenders are there from the beginning to the end, and take turns, a slice of a phase each. What the machine's
//! other guests do so meets all of them alike, and what is compared are slices that were neighbours.

use std::hint::black_box;
use std::sync::{Barrier, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::mix::{Mix, Name, VALUE_BYTES_MAX};

/// The phases, as they are printed.
pub(crate) const PHASES: [&str; 4] = ["load", "mix", "get", "get, 16 at a time"];
/// Gets that are asked for at once.
pub(crate) const BATCH: usize = 16;
/// Operations between two looks at the clock.
const LOOK_EVERY: u64 = 256;

/// What everyone is run with.
#[derive(Clone, Copy)]
pub(crate) struct Settings<'a> {
    pub(crate) mix: &'a Mix,
    pub(crate) threads: u64,
    pub(crate) live: f64,
    pub(crate) limit: Duration,
    pub(crate) slices: u64,
    pub(crate) turn: Turn<'a>,
}

/// Whose turn it is, and who still takes turns.
pub(crate) struct Ring {
    state: Mutex<(usize, Vec<bool>)>,
    changed: Condvar,
    /// Everyone is done.
    end: Barrier,
}

/// A contender's place in the ring.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    ring: &'a Ring,
    place: usize,
}

impl Ring {
    pub(crate) fn of(contenders: usize) -> Ring {
        Ring {
            state: Mutex::new((0, vec![true; contenders])),
            changed: Condvar::new(),
            end: Barrier::new(contenders),
        }
    }

    pub(crate) fn turn(&self, place: usize) -> Turn<'_> {
        Turn { ring: self, place }
    }
}

impl Turn<'_> {
    /// Waits until it is this one's turn, if it is not.
    pub(crate) fn take(&self) {
        let others = |(whose, _): &mut (usize, Vec<bool>)| *whose != self.place;
        let waited = self.ring.changed.wait_while(self.state(), others);
        drop(waited.expect("no holder panics"));
    }

    /// The next one's.
    fn pass(&self) {
        self.pass_on(self.state());
    }

    /// The next one's, and never again this one's. Waits for all: what is freed is work for the allocator that everyone
    /// shares.
    pub(crate) fn leave(&self) {
        self.take();
        let mut state = self.state();
        state.1[self.place] = false;
        self.pass_on(state);
        self.ring.end.wait();
    }

    fn pass_on(&self, mut state: MutexGuard<'_, (usize, Vec<bool>)>) {
        let (whose, present) = &mut *state;
        let all = present.len();
        let next = (1..=all).map(|n| (self.place + n) % all);
        *whose = next.into_iter().find(|n| present[*n]).unwrap_or(self.place);
        drop(state);
        self.ring.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, (usize, Vec<bool>)> {
        self.ring.state.lock().expect("no holder panics")
    }
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

    /// Others have their turn: lets go of what it holds.
    fn rest(&mut self) {}
}

/// One contender: its name, what it is, how it is made and run.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Settings<'_>) -> Result<Outcome, String>,
}

/// Millions of operations a second in each slice of each phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rates: [Vec<f64>; PHASES.len()],
}

/// Runs `peer` through all phases.
pub(crate) fn run(peer: &impl Peer, settings: &Settings<'_>) -> Result<Outcome, String> {
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
    outcome.rates[0] = rates(&loaded);
    let whole = loaded.iter().map(|slice| slice.done).sum::<u64>() == mix.keys;
    if whole && peer.count().is_some_and(|count| count != mix.keys) {
        let count = peer.count();
        return Err(format!("{} keys were set, {count:?} are there", mix.keys));
    }
    settings.turn.take();
    peer.age(mix);
    settings.turn.pass();
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
    outcome.rates[1] = rates(&mixed);
    let gets = phase(peer, settings, |door, thread, n| {
        let op = mix.op(thread + *threads, n);
        read(door, op.key, &mix.name(op.key));
        1
    });
    outcome.rates[2] = rates(&gets);
    if peer.door().get_batch(&[mix.name(0); BATCH], &mut |_, _| {}) {
        let gets = phase(peer, settings, |door, thread, n| {
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
        outcome.rates[3] = rates(&gets);
    }
    settings.turn.leave();
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

/// What was done in a slice.
struct Done {
    done: u64,
    took: Duration,
}

fn rates(slices: &[Done]) -> Vec<f64> {
    slices
        .iter()
        .filter(|slice| slice.done > 0)
        .map(|slice| slice.done as f64 / slice.took.as_secs_f64() / 1e6)
        .collect()
}

/// Has every thread do its share of as many operations as there are keys, or as many as the time
/// allows, slice by slice. `step` answers how many it did.
fn phase<P: Peer>(
    peer: &P,
    settings: &Settings<'_>,
    step: impl Fn(&mut dyn Door, u64, u64) -> u64 + Sync,
) -> Vec<Done> {
    let each = settings.mix.keys.div_ceil(settings.threads);
    let Settings { slices, turn, .. } = *settings;
    let together = Barrier::new(settings.threads as usize + 1);
    let limit = settings.limit.div_f64(slices as f64);
    let work = |thread: u64| {
        let mut door = peer.door();
        let share = |slice: u64| {
            together.wait();
            let began = Instant::now();
            let mut done = 0;
            for n in each * slice / slices..each * (slice + 1) / slices {
                let more = step(&mut door, thread, n);
                done += more;
                if more == 0 || n % LOOK_EVERY == 0 && began.elapsed() > limit {
                    break;
                }
            }
            let ended = Instant::now();
            door.rest();
            together.wait();
            (done, began, ended)
        };
        (0..slices).map(share).collect::<Vec<_>>()
    };
    let shares: Vec<Vec<(u64, Instant, Instant)>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..settings.threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        for _ in 0..slices {
            turn.take();
            together.wait();
            together.wait();
            turn.pass();
        }
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread that works does not panic"))
            .collect()
    });
    (0..slices as usize)
        .map(|slice| {
            let of_slice = || shares.iter().map(|thread| thread[slice]);
            let began = of_slice().map(|s| s.1).min().expect("there are threads");
            let ended = of_slice().map(|s| s.2).max().expect("there are threads");
            Done {
                done: of_slice().map(|s| s.0).sum(),
                took: ended - began,
            }
        })
        .collect()
}
