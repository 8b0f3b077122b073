//! Eviction: selects keys of the durable store by the policy and deletes them, until the store is within `maxmemory`.
//!
//! As Redis does, it samples `maxmemory-samples` keys for each key that it evicts, keeps the best candidates of all
//! samples in a pool of [`POOL_LEN`], and evicts the best of the pool. A random policy evicts the first sampled key.
//!
//! ```text
//!   Session::sample ─▶ keys, expiry times ─┐
//!   AccessTable ─▶ idle times, frequencies ─┴─▶ pool of candidates ─ best, still as it was ─▶ delete
//! ```
//!
//! # Invariants
//! SRV-EVICT-1  An evicted key is deleted by an ordinary write of the executor's session, in the batch of the request that
//!     needs the space. So no reply to that request is sent before the delete is durable, and an evicted key does not
//!     return after a crash. Between requests, the deletes are a batch of their own.
//! SRV-EVICT-2  A policy `volatile-*` deletes only a key that still expires when its delete is staged.
//! SRV-EVICT-3  One call takes about [`EvictionTask::time_max`]: the time is checked after each key and each [`VISITS`]
//!     visited keys. A thread spends a small share of its time on calls that find no key: after a long one it searches
//!     again only after a pause of [`PAUSE_FACTOR`] times its length.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use farbank_pm::rng::Rng;
use farbank_store::{Error, Key, ReadView, Session, UpdateDecision, ValueMeta};

use super::access_table::{AccessClock, AccessTable};
use crate::eviction_policy::{EvictionOrder, EvictionPolicy};

/// Most candidates that are kept.
const POOL_LEN: usize = 16;
/// Keys that a sample visits before the time is checked.
const VISITS: usize = 256;
/// Such steps of a sample that are made however long they take: on a busy machine the thread may not run for a while.
const CALLS_MIN: u32 = 4;
/// A search without result that takes less than `time_max / SHORT_PART` is followed by no pause, so that in a small store
/// every key is found.
const SHORT_PART: u32 = 2;
const PAUSE_FACTOR: u32 = 9;

/// Result of an eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EvictionOutcome {
    /// The store is within the limit.
    Within,
    /// The store exceeds the limit. The time was over before enough keys were evicted.
    OutOfTime,
    /// The store exceeds the limit, and no key was found that may be evicted.
    NoCandidate,
}

/// What an eviction works with.
pub(crate) struct EvictionTask<'a> {
    pub(crate) policy: EvictionPolicy,
    /// Bytes of records that the store may use.
    pub(crate) bytes_max: u64,
    /// `maxmemory-samples`.
    pub(crate) samples: usize,
    pub(crate) clock: AccessClock,
    /// The uses of keys, if the policy depends on them.
    pub(crate) table: Option<&'a AccessTable>,
    /// About how long an eviction takes at most.
    pub(crate) time_max: Duration,
    /// Reads the clock that limits the time of an eviction.
    pub(crate) now: &'a dyn Fn() -> Instant,
}

impl EvictionTask<'_> {
    /// How well `key` suits as the next evicted key: the best has the highest score.
    fn score(&self, key: Key<'_>, meta: &ValueMeta) -> u64 {
        let used = || self.table.map(|table| table.of(key, self.clock));
        match self.policy.order {
            Some(EvictionOrder::EarliestExpiry) => u64::MAX - meta.expires_ms,
            Some(EvictionOrder::LeastRecent) => used().map_or(0, |used| used.idle_secs),
            Some(EvictionOrder::LeastFrequent) => {
                used().map_or(0, |used| u64::from(u8::MAX - used.frequency))
            }
            Some(EvictionOrder::Random) | None => 0,
        }
    }

    /// Whether the policy may evict a key with this metadata.
    fn allows(&self, meta: &ValueMeta) -> bool {
        !self.policy.is_volatile || meta.expires_ms != 0
    }
}

/// A key that may be evicted next.
struct Candidate {
    score: u64,
    db: u8,
    bytes: Box<[u8]>,
}

/// Candidates and random numbers of one thread.
pub(crate) struct Evictor {
    /// Sorted by score, the best last.
    pool: Vec<Candidate>,
    /// The policy of the scores.
    policy: EvictionPolicy,
    /// Where the next sample goes on, if the last one has found too few keys. Otherwise it begins at a random position.
    next: Option<u64>,
    /// When the pause after a search without result ends.
    pause_end: Option<Instant>,
    random: Rng,
}

impl Default for Evictor {
    fn default() -> Evictor {
        Evictor {
            pool: Vec::new(),
            policy: EvictionPolicy::numbered(crate::eviction_policy::NOEVICTION),
            next: None,
            pause_end: None,
            random: Rng::new(RandomState::new().hash_one(0)),
        }
    }
}

impl Evictor {
    /// Returns the seed of another generator.
    pub(crate) fn seed(&mut self) -> u64 {
        self.random.draw()
    }

    /// Evicts keys until the store is within the limit, and calls `evicted` with each.
    ///
    /// # Errors
    /// A delete has failed. Keys may have been evicted before.
    pub(crate) fn run(
        &mut self,
        session: &mut dyn Session,
        task: &EvictionTask<'_>,
        evicted: &mut dyn FnMut(Key<'_>),
    ) -> Result<EvictionOutcome, Error> {
        if self.policy != task.policy {
            (self.policy, self.next, self.pause_end) = (task.policy, None, None);
            self.pool.clear();
        }
        let started = (task.now)();
        if self.pause_end.is_some_and(|end| started < end) {
            return Ok(EvictionOutcome::NoCandidate);
        }
        let deadline = started + task.time_max;
        let mut has_committed = false;
        while session.used_bytes() > task.bytes_max {
            self.sample(session, task, deadline);
            let Some(candidate) = self.pool.pop() else {
                if std::mem::replace(&mut has_committed, true) {
                    return Ok(self.give_up(task, started));
                }
                // All keys that may be evicted were written in this batch, and samples leave out such keys.
                session.commit()?;
                continue;
            };
            let key = Key {
                db: candidate.db,
                bytes: &candidate.bytes,
            };
            if evict(session, task, key, candidate.score)? {
                evicted(key);
            }
            if (task.now)() >= deadline {
                return Ok(EvictionOutcome::OutOfTime);
            }
        }
        Ok(EvictionOutcome::Within)
    }

    /// Ends a search that began at `started` and has found no key, and begins a pause if it was long (SRV-EVICT-3).
    fn give_up(&mut self, task: &EvictionTask<'_>, started: Instant) -> EvictionOutcome {
        let now = (task.now)();
        let search = now.duration_since(started);
        self.pause_end = match search >= task.time_max / SHORT_PART {
            true => Some(now + search * PAUSE_FACTOR),
            false => None,
        };
        EvictionOutcome::NoCandidate
    }

    /// Adds the best keys of a sample to the pool. Visits keys until enough are found that the policy may evict, all
    /// keys were visited, or the time is over.
    fn sample(&mut self, session: &mut dyn Session, task: &EvictionTask<'_>, deadline: Instant) {
        let wanted = match task.policy.order {
            Some(EvictionOrder::Random) => 1,
            _ => task.samples,
        };
        let start = self.next.take().unwrap_or_else(|| self.random.draw());
        let (mut position, mut found, mut ends) = (start, 0, 0);
        for calls in 1.. {
            position = session.sample(position, VISITS, &mut |key, meta| {
                if task.allows(meta) {
                    self.offer(task.score(key, meta), key);
                    found += 1;
                }
                found < wanted
            });
            ends += u32::from(position == 0);
            let is_round = ends > 1 || ends == 1 && position >= start;
            if found >= wanted || is_round {
                return;
            }
            if calls >= CALLS_MIN && (task.now)() >= deadline {
                self.next = Some(position);
                return;
            }
        }
    }

    /// Adds a candidate to the pool if it is better than the worst one, or the pool has space.
    fn offer(&mut self, score: u64, key: Key<'_>) {
        let at = self.pool.partition_point(|other| other.score < score);
        let is_full = self.pool.len() >= POOL_LEN;
        if is_full && at == 0 {
            return;
        }
        let (db, bytes) = (key.db, key.bytes.into());
        self.pool.insert(at, Candidate { score, db, bytes });
        if is_full {
            self.pool.remove(0);
        }
    }
}

/// Deletes `key` if it is still a candidate with this score at least. Returns whether it did.
fn evict(
    session: &mut dyn Session,
    task: &EvictionTask<'_>,
    key: Key<'_>,
    score: u64,
) -> Result<bool, Error> {
    let meta = session.meta(key, ReadView::Pending);
    let is_candidate = |meta: ValueMeta| task.allows(&meta) && task.score(key, &meta) >= score;
    if !matches!(meta, Ok(Some(meta)) if is_candidate(meta)) {
        return Ok(false); // It was deleted or used since it was sampled.
    }
    let mut is_deleted = false;
    let updated = session.update(key, &mut |item| {
        is_deleted = item.is_some_and(|item| task.allows(&item.meta)); // SRV-EVICT-2
        match is_deleted {
            true => UpdateDecision::Delete,
            false => UpdateDecision::Keep,
        }
    });
    match updated {
        Ok(_) => Ok(is_deleted),
        Err(Error::Damaged(_) | Error::Conflict) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "evictor_tests.rs"]
mod tests;
