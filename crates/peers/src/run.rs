//! Runs a contender: phases, slices, threads and timing.
//!
//! ```text
//!   papaya  ├─ slice ─┤                               ├─ slice ─┤
//!   dashmap           ├─ slice ─┤                               ├─ ...
//!   farbank                     ├─ slice ─┤ ...
//! ```
//!
//! All contenders exist during the whole run and take turns, one slice of a phase each. So other load on the machine
//! affects all of them alike, and adjacent slices are compared.

use std::hint::black_box;
use std::sync::{Barrier, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farbank_pm::sync::unpoisoned;

use crate::mix::{Mix, Name, VALUE_BYTES_MAX};

/// Names of the phases, as printed.
pub(crate) const PHASES: [&str; 4] = ["load", "mix", "get", "get, 16 at a time"];
/// Number of gets in a batch.
pub(crate) const BATCH: usize = 16;
/// Number of operations between two reads of the clock.
const LOOK_EVERY: u64 = 256;

/// Settings for a contender's run.
#[derive(Clone, Copy)]
pub(crate) struct Settings<'a> {
    pub(crate) mix: &'a Mix,
    pub(crate) threads: u64,
    pub(crate) live: f64,
    pub(crate) limit: Duration,
    pub(crate) slices: u64,
    pub(crate) turn: Turn<'a>,
}

/// The order of turns: the contender that runs now, and the contenders that have not finished.
pub(crate) struct Ring {
    state: Mutex<(usize, Vec<bool>)>,
    changed: Condvar,
    /// Reached when all contenders have finished.
    end: Barrier,
}

/// A contender's position in the ring.
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
    /// Waits until it is this contender's turn.
    pub(crate) fn take(&self) {
        let others = |(whose, _): &mut (usize, Vec<bool>)| *whose != self.place;
        let waited = self.ring.changed.wait_while(self.state(), others);
        drop(unpoisoned(waited));
    }

    /// Passes the turn to the next contender.
    fn pass(&self) {
        self.pass_on(self.state());
    }

    /// Passes the turn to the next contender, and takes no further turns. Then waits until all contenders have
    /// finished, because freeing memory would slow down the shared allocator.
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
        unpoisoned(self.ring.state.lock())
    }
}

/// A table or an engine under test.
pub(crate) trait Peer: Sync {
    /// Returns a handle for one thread.
    fn session(&self) -> impl PeerSession + '_;

    /// Returns the number of keys, if the table can count them.
    fn count(&self) -> Option<u64>;

    /// Brings the table to a steady state. Called once, after the load.
    fn age(&self, mix: &Mix) {
        let _ = mix;
    }
}

/// One thread's handle on a table. Its methods panic on errors, because a failed operation must not be measured.
pub(crate) trait PeerSession {
    /// Sets a key. If the contender is durable, the write is durable on return.
    fn set(&mut self, name: &Name, value: &[u8]);

    /// Appends a key's value to `out`. Returns false if the key is absent.
    fn get(&mut self, name: &Name, out: &mut Vec<u8>) -> bool;

    /// Calls `each` with the position and the value of every key found. Returns false if the table has no batch
    /// operation.
    fn get_batch(&mut self, names: &[Name; BATCH], each: &mut dyn FnMut(usize, &[u8])) -> bool {
        let _ = (names, each);
        false
    }

    /// Releases all held resources before other contenders take their turns.
    fn rest(&mut self) {}
}

/// A contender: its name, its description, and the function that creates and runs it.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Settings<'_>) -> Result<Outcome, String>,
}

/// Millions of operations per second, in each slice of each phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) rates: [Vec<f64>; PHASES.len()],
}

/// Runs `peer` through all phases.
pub(crate) fn run(peer: &impl Peer, settings: &Settings<'_>) -> Result<Outcome, String> {
    let Settings { mix, threads, .. } = settings;
    let mut outcome = Outcome::default();
    let each = mix.keys.div_ceil(*threads);
    let loaded = phase(peer, settings, |session, thread, n| {
        let key = thread * each + n;
        if key < mix.keys {
            session.set(&mix.name(key), mix.loaded(key));
        }
        u64::from(key < mix.keys)
    });
    outcome.rates[0] = rates(&loaded);
    let whole = loaded.iter().map(|slice| slice.done).sum::<u64>() == mix.keys;
    if whole && peer.count().is_some_and(|count| count != mix.keys) {
        let count = peer.count();
        return Err(format!(
            "{} keys were set, but the table counts {count:?}",
            mix.keys
        ));
    }
    settings.turn.take();
    peer.age(mix);
    settings.turn.pass();
    // A contender that did not finish the load has fewer keys, so gets may miss.
    let read =
        |session: &mut dyn PeerSession, key: u64, name: &Name| read(session, mix, key, name, whole);
    let mixed = phase(peer, settings, |session, thread, n| {
        let op = mix.op(thread, n);
        let name = mix.name(op.key);
        if op.is_set {
            session.set(&name, mix.updated(&op));
        } else {
            read(session, op.key, &name);
        }
        1
    });
    outcome.rates[1] = rates(&mixed);
    let gets = phase(peer, settings, |session, thread, n| {
        let op = mix.op(thread + *threads, n);
        read(session, op.key, &mix.name(op.key));
        1
    });
    outcome.rates[2] = rates(&gets);
    if peer
        .session()
        .get_batch(&[mix.name(0); BATCH], &mut |_, _| {})
    {
        let gets = phase(peer, settings, |session, thread, n| {
            let first = n * BATCH as u64;
            let keys: [u64; BATCH] =
                std::array::from_fn(|i| mix.op(thread + *threads, first + i as u64).key);
            let names = keys.map(|key| mix.name(key));
            let mut found = 0;
            session.get_batch(&names, &mut |place, value| {
                assert!(
                    mix.is_of(keys[place], value),
                    "a batch returned a wrong value"
                );
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

/// Gets one key and checks its value.
#[inline]
fn read(session: &mut dyn PeerSession, mix: &Mix, key: u64, name: &Name, all_there: bool) {
    SCRATCH.with_borrow_mut(|out| {
        out.clear();
        let right = match session.get(name, out) {
            true => mix.is_of(key, out),
            false => !all_there,
        };
        assert!(right, "key {key}: wrong value, or the key is missing");
        black_box(&out);
    });
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Vec<u8>> =
        std::cell::RefCell::new(Vec::with_capacity(2 * VALUE_BYTES_MAX));
}

/// Result of one slice: the number of operations and the time.
struct SliceResult {
    done: u64,
    took: Duration,
}

fn rates(slices: &[SliceResult]) -> Vec<f64> {
    slices
        .iter()
        .filter(|slice| slice.done > 0)
        .map(|slice| slice.done as f64 / slice.took.as_secs_f64() / 1e6)
        .collect()
}

/// Runs one phase, slice by slice. Each thread does its share of as many operations as there are keys, or fewer if the
/// time limit is reached. `step` returns the number of operations that it did.
fn phase<P: Peer>(
    peer: &P,
    settings: &Settings<'_>,
    step: impl Fn(&mut dyn PeerSession, u64, u64) -> u64 + Sync,
) -> Vec<SliceResult> {
    let each = settings.mix.keys.div_ceil(settings.threads);
    let Settings { slices, turn, .. } = *settings;
    let together = Barrier::new(settings.threads as usize + 1);
    let limit = settings.limit.div_f64(slices as f64);
    let work = |thread: u64| {
        let mut session = peer.session();
        let share = |slice: u64| {
            together.wait();
            let began = Instant::now();
            let mut done = 0;
            for n in each * slice / slices..each * (slice + 1) / slices {
                let more = step(&mut session, thread, n);
                done += more;
                if more == 0 || n % LOOK_EVERY == 0 && began.elapsed() > limit {
                    break;
                }
            }
            let ended = Instant::now();
            session.rest();
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
            .map(|thread| thread.join().expect("a worker thread panicked"))
            .collect()
    });
    (0..slices as usize)
        .map(|slice| {
            let of_slice = || shares.iter().map(|thread| thread[slice]);
            let began = of_slice().map(|s| s.1).min().expect("there are threads");
            let ended = of_slice().map(|s| s.2).max().expect("there are threads");
            SliceResult {
                done: of_slice().map(|s| s.0).sum(),
                took: ended - began,
            }
        })
        .collect()
}
