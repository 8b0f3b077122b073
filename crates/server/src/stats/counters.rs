//! Counters of requests, connections and batches.
//!
//! Each thread counts in a [`CounterTotals`] of its own, without atomics, and publishes it once per loop iteration in
//! its [`ThreadCounters`]. [`ServerCounters`] adds what all threads have published.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::commands::{self, CommandCounters, CommandFigures};
use super::histogram::Durations;
use super::hot_keys::{self, HotKey, HotKeys};
use super::latency::{LatencyHistogram, LatencyTotals};
use crate::lock::lock;

/// The published counters of all threads that execute requests.
pub(crate) struct ServerCounters {
    /// One entry per worker, by its number.
    pub(crate) workers: Vec<ThreadCounters>,
    /// Those of the thread of long requests.
    pub(crate) long: ThreadCounters,
    /// Totals at the last reset.
    at_reset: Mutex<CounterTotals>,
    /// Number of resets so far. Counters of commands of an earlier generation are obsolete (SRV-STATS-2).
    generation: AtomicU64,
    /// Requests in the last second, and their total at its end.
    per_sec: AtomicU64,
    sampled: AtomicU64,
}

impl ServerCounters {
    pub(crate) fn new(workers: usize) -> ServerCounters {
        ServerCounters {
            workers: (0..workers).map(|_| ThreadCounters::default()).collect(),
            long: ThreadCounters::default(),
            at_reset: Mutex::default(),
            generation: AtomicU64::new(0),
            per_sec: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
        }
    }

    fn threads(&self) -> impl Iterator<Item = &ThreadCounters> {
        self.workers.iter().chain([&self.long])
    }

    /// Totals over all threads since the start.
    pub(crate) fn totals(&self) -> CounterTotals {
        let mut sum = CounterTotals::default();
        for thread in self.threads() {
            sum.add(&thread.totals());
        }
        sum
    }

    /// Totals over all threads since the start or the last reset.
    pub(crate) fn since_reset(&self) -> CounterTotals {
        self.totals().since(&lock(&self.at_reset))
    }

    /// Makes [`ServerCounters::since_reset`] count from now on.
    pub(crate) fn reset(&self) {
        *lock(&self.at_reset) = self.totals();
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Updates [`ServerCounters::commands_per_sec`]. One thread calls it once a second, with the milliseconds since the
    /// last call.
    pub(crate) fn sample_rate(&self, elapsed_ms: u64) {
        let total = self.totals().get(Counter::Commands);
        let before = self.sampled.swap(total, Ordering::Relaxed);
        let rate = (total - before) * 1000 / elapsed_ms.max(1);
        self.per_sec.store(rate, Ordering::Relaxed);
    }

    /// Requests a second, in the last full second.
    pub(crate) fn commands_per_sec(&self) -> u64 {
        self.per_sec.load(Ordering::Relaxed)
    }

    /// Number of resets so far.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn commands(&self) -> impl Iterator<Item = &CommandCounters> {
        self.threads().map(|thread| &thread.commands)
    }

    /// Figures of the command with this number since the last reset.
    pub(crate) fn command(&self, number: u16) -> CommandFigures {
        commands::figures(self.commands(), self.generation(), number)
    }

    /// Times of the command with this number since the last reset; `None` if it was not called.
    pub(crate) fn command_times(&self, number: u16) -> Option<Durations> {
        commands::times(self.commands(), self.generation(), number)
    }

    /// Error replies by code since the last reset.
    pub(crate) fn errors(&self) -> BTreeMap<String, u64> {
        commands::errors(self.commands(), self.generation())
    }

    /// How long the requests since the start took.
    pub(crate) fn latency(&self) -> LatencyTotals {
        LatencyTotals::of(self.threads().map(|thread| &thread.latency))
    }

    /// The most requested keys.
    pub(crate) fn hot_keys(&self) -> Vec<HotKey> {
        hot_keys::report(self.threads().map(|thread| &thread.hot))
    }
}

/// Counters and hot keys that a thread publishes to other threads. Two threads never share a cache line of them.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct ThreadCounters {
    /// The keys that its connections request most.
    pub(crate) hot: HotKeys,
    /// How long its requests take.
    pub(crate) latency: LatencyHistogram,
    /// Calls and times of each command.
    pub(crate) commands: CommandCounters,
    counts: PublishedCounts,
}

/// The counters that a thread has published.
struct PublishedCounts([AtomicU64; TALLIES]);

impl Default for PublishedCounts {
    fn default() -> PublishedCounts {
        PublishedCounts([const { AtomicU64::new(0) }; TALLIES])
    }
}

impl ThreadCounters {
    /// Publishes the thread's counters.
    pub(crate) fn publish(&self, tally: &CounterTotals) {
        for (figure, value) in self.counts.0.iter().zip(tally.0) {
            figure.store(value, Ordering::Relaxed);
        }
    }

    fn totals(&self) -> CounterTotals {
        let mut tally = CounterTotals::default();
        for (value, figure) in tally.0.iter_mut().zip(&self.counts.0) {
            *value = figure.load(Ordering::Relaxed);
        }
        tally
    }
}

const TALLIES: usize = Counter::FailedLogins as usize + 1;

/// A counter of [`CounterTotals`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    Commands,
    Hits,
    Misses,
    BytesIn,
    BytesOut,
    Reads,
    Writes,
    Errors,
    Batches,
    IdleKicks,
    /// Connections closed because of client-output-buffer-limit.
    OutputLimits,
    /// Connections closed because of maxmemory-clients.
    Evictions,
    /// Keys of the durable store evicted because of maxmemory.
    EvictedKeys,
    /// Requests that the thread of long requests executed.
    Long,
    /// Changes of keys by Redis clients.
    Changes,
    // The counters below are of memcached clients only.
    Sets,
    Stored,
    TooLarge,
    NoMemory,
    CasHits,
    CasMisses,
    CasBad,
    TouchHits,
    TouchMisses,
    DeleteHits,
    DeleteMisses,
    IncrHits,
    IncrMisses,
    DecrHits,
    DecrMisses,
    Metas,
    Flushes,
    /// Misses of items that had expired.
    Expired,
    /// Misses of items that `flush_all` had removed.
    Flushed,
    /// Names and passwords that clients have given.
    Logins,
    /// Those of them that the auth file does not have.
    FailedLogins,
}

/// Counters of one thread, or their sums over all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterTotals([u64; TALLIES]);

impl Default for CounterTotals {
    fn default() -> CounterTotals {
        CounterTotals([0; TALLIES])
    }
}

impl CounterTotals {
    #[inline]
    pub(crate) fn count(&mut self, what: Counter, by: usize) {
        self.0[what as usize] += by as u64;
    }

    pub(crate) fn get(&self, what: Counter) -> u64 {
        self.0[what as usize]
    }

    /// Sets a counter back to an earlier value, because what it has counted had no effect.
    pub(crate) fn restore(&mut self, what: Counter, value: u64) {
        self.0[what as usize] = value;
    }

    /// Changes of keys by all clients.
    pub(crate) fn changes(&self) -> u64 {
        const CHANGES: [Counter; 6] = [
            Counter::Changes,
            Counter::Stored,
            Counter::DeleteHits,
            Counter::IncrHits,
            Counter::DecrHits,
            Counter::TouchHits,
        ];
        CHANGES.iter().map(|&counter| self.get(counter)).sum()
    }

    fn add(&mut self, other: &CounterTotals) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Returns the counts since `earlier`.
    fn since(&self, earlier: &CounterTotals) -> CounterTotals {
        let mut difference = *self;
        for (mine, theirs) in difference.0.iter_mut().zip(earlier.0) {
            *mine = mine.saturating_sub(theirs);
        }
        difference
    }
}
