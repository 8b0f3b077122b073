//! Keys that expire soon, for the event `expired`.
//!
//! The store finds out that a value has expired when it reads the value, and removes it at some later time. Neither is
//! a moment to publish the event once. So while the event has subscribers, commands and a scan of the store list the
//! keys that expire soon here, and the thread of expiries (`net::expiry_events`) publishes each when its time has come.
//!
//! # Invariants
//! SRV-EXPIRY-1  An entry is claimed once: by that thread, or by the command that replaces the expired value. The claimant
//!     publishes the event. So no event is published twice.
//! SRV-EXPIRY-2  The entries use at most [`ENTRY_BYTES_MAX`] bytes; a key above that gets no event. When it expires, client-side
//!     caches get an invalidation of all keys.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use farbank_pm::sync::ignore_poison;
use farbank_store::{Absence, Key, ReadView, Session};

use crate::lock::lock;

/// How far ahead keys are listed.
pub(crate) const AHEAD_MS: u64 = 60_000;
/// How long a write may take until it is visible.
const COMMIT_MS: u64 = 2000;
/// Least time between two checks of a key whose write is not visible yet. The time doubles.
const AGAIN_MS: u64 = 10;
/// Most bytes that the entries use.
const ENTRY_BYTES_MAX: usize = 64 << 20;
/// Bytes of an entry besides the key, with the allocator's overhead.
const ENTRY_OVERHEAD: usize = 192;

/// Stored database and key. SWAPDB does not change the name of a key here.
type Name = (u8, Arc<[u8]>);

/// When a key expires, and when the thread looks at it.
#[derive(Clone, Copy)]
struct EntryTimes {
    expires_ms: u64,
    check_ms: u64,
    /// When the entry is removed even if the key still holds no expired value.
    end_ms: u64,
}

#[derive(Default)]
struct Entries {
    times: HashMap<Name, EntryTimes>,
    /// The same entries by the time of their check.
    queue: BTreeSet<(u64, Name)>,
    bytes: usize,
    /// Times of the first and the last expiry that could not be listed.
    lost: Option<(u64, u64)>,
}

impl Entries {
    /// Records that an expiry is not listed (SRV-EXPIRY-2).
    fn note_lost(&mut self, expires_ms: u64) {
        let (first, last) = self.lost.unwrap_or((expires_ms, expires_ms));
        self.lost = Some((first.min(expires_ms), last.max(expires_ms)));
    }

    fn remove(&mut self, name: &Name) -> Option<EntryTimes> {
        let times = self.times.remove(name)?;
        self.queue.remove(&(times.check_ms, name.clone()));
        self.bytes -= name.1.len() + ENTRY_OVERHEAD;
        Some(times)
    }

    fn insert(&mut self, name: Name, times: EntryTimes) {
        self.bytes += name.1.len() + ENTRY_OVERHEAD;
        self.times.insert(name.clone(), times);
        self.queue.insert((times.check_ms, name));
    }
}

/// Evicted keys whose events are not published yet.
#[derive(Default)]
struct EvictedKeys {
    names: Vec<Name>,
    bytes: usize,
}

/// Keys that expire soon; see the module. Also keys that the store has evicted.
#[derive(Default)]
pub(crate) struct Expiries {
    entries: Mutex<Entries>,
    arrived: Condvar,
    /// Whether evicted keys are collected.
    collects_evicted: AtomicBool,
    evicted: Mutex<EvictedKeys>,
    /// The thread publishes no expiries (DEBUG SET-ACTIVE-EXPIRE 0).
    is_inactive: AtomicBool,
}

fn name_of(key: Key<'_>) -> Name {
    (key.db, Arc::from(key.bytes))
}

/// Whether `key` holds a value that has expired.
pub(crate) fn holds_expired(session: &mut dyn Session, key: Key<'_>, view: ReadView) -> bool {
    matches!(session.meta(key, view), Ok(None)) && session.absence(key) == Absence::Expired
}

impl Expiries {
    /// Lists a key that expires at `expires_ms`, in place of its earlier time.
    pub(crate) fn note(&self, key: Key<'_>, expires_ms: u64, now_ms: u64) {
        let name = name_of(key);
        let mut entries = lock(&self.entries);
        entries.remove(&name);
        let bytes = name.1.len() + ENTRY_OVERHEAD;
        if expires_ms > now_ms.saturating_add(AHEAD_MS) {
            return;
        }
        if entries.bytes + bytes > ENTRY_BYTES_MAX {
            return entries.note_lost(expires_ms);
        }
        let times = EntryTimes {
            expires_ms,
            check_ms: expires_ms,
            end_ms: expires_ms.max(now_ms).saturating_add(COMMIT_MS),
        };
        let is_next = entries.queue.first().is_none_or(|(at, _)| *at > expires_ms);
        entries.insert(name, times);
        if is_next {
            self.arrived.notify_one();
        }
    }

    /// Removes the entry of a key that has expired by `now_ms`. Returns whether there was one (SRV-EXPIRY-1).
    pub(crate) fn claim(&self, key: Key<'_>, now_ms: u64) -> bool {
        let name = name_of(key);
        let mut entries = lock(&self.entries);
        let times = entries.times.get(&name);
        let is_due = times.is_some_and(|times| times.expires_ms <= now_ms);
        is_due && entries.remove(&name).is_some()
    }

    /// The entry to check next, if its time has come.
    pub(crate) fn first_due(&self, now_ms: u64) -> Option<(u8, Arc<[u8]>)> {
        let entries = lock(&self.entries);
        let (at, name) = entries.queue.first()?;
        (*at <= now_ms).then(|| name.clone())
    }

    /// Lets a due entry wait, because the key holds no expired value: the write of the value may not be visible yet.
    /// Removes the entry if it has waited long enough. Returns whether it waits.
    pub(crate) fn postpone(&self, key: Key<'_>, now_ms: u64) -> bool {
        let name = name_of(key);
        let mut entries = lock(&self.entries);
        let is_due = |times: &&EntryTimes| times.expires_ms <= now_ms;
        if entries.times.get(&name).as_ref().is_some_and(is_due)
            && let Some(times) = entries.remove(&name)
            && times.end_ms > now_ms
        {
            let waited_ms = now_ms.saturating_sub(times.end_ms - COMMIT_MS);
            let check_ms = now_ms + AGAIN_MS.max(waited_ms);
            entries.insert(name, EntryTimes { check_ms, ..times });
            return true;
        }
        false
    }

    /// Whether keys that are not listed have expired or were evicted since the last call: client-side caches may have
    /// them. While more of them expire, the answer is yes once a second.
    pub(crate) fn take_lost(&self, now_ms: u64) -> bool {
        const AGAIN_MS: u64 = 1000;
        let mut entries = lock(&self.entries);
        let Some((_, last)) = entries.lost.filter(|(first, _)| *first <= now_ms) else {
            return false;
        };
        entries.lost = (last > now_ms).then_some((now_ms + AGAIN_MS, last.max(now_ms + AGAIN_MS)));
        true
    }

    /// Sets whether the thread publishes expiries. If not, requests that find expired values still do.
    pub(crate) fn set_active(&self, is_active: bool) {
        self.is_inactive.store(!is_active, Ordering::Relaxed);
    }

    /// Whether the thread publishes expiries.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_inactive.load(Ordering::Relaxed)
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        *lock(&self.entries) = Entries::default();
    }

    /// Waits until the first entry is due, an earlier one arrives, or `most` has passed.
    pub(crate) fn wait(&self, now_ms: u64, most: Duration, is_over: impl Fn() -> bool) {
        let entries: MutexGuard<'_, Entries> = lock(&self.entries);
        if is_over() || !lock(&self.evicted).names.is_empty() {
            return;
        }
        let next = entries
            .queue
            .first()
            .map(|(at, _)| at.saturating_sub(now_ms));
        let left = next.map_or(most, |ms| Duration::from_millis(ms).min(most));
        drop(ignore_poison(self.arrived.wait_timeout(entries, left)));
    }

    /// Sets whether evicted keys are collected.
    pub(crate) fn collect_evicted(&self, is_on: bool) {
        self.collects_evicted.store(is_on, Ordering::Relaxed);
    }

    /// Takes the evicted keys.
    pub(crate) fn take_evicted(&self) -> Vec<(u8, Arc<[u8]>)> {
        std::mem::take(&mut *lock(&self.evicted)).names
    }

    /// Whether evicted keys are collected.
    pub(crate) fn collects_evicted(&self) -> bool {
        self.collects_evicted.load(Ordering::Relaxed)
    }

    /// Collects an evicted key, unless the collected keys use [`ENTRY_BYTES_MAX`] bytes.
    pub(crate) fn note_evicted(&self, key: Key<'_>) {
        let mut evicted = lock(&self.evicted);
        let bytes = key.bytes.len() + ENTRY_OVERHEAD;
        if evicted.bytes + bytes > ENTRY_BYTES_MAX {
            drop(evicted);
            return lock(&self.entries).note_lost(0);
        }
        evicted.bytes += bytes;
        evicted.names.push(name_of(key));
        let is_first = evicted.names.len() == 1;
        drop(evicted);
        if is_first {
            self.wake();
        }
    }

    /// Wakes the waiting thread.
    pub(crate) fn wake(&self) {
        // While this holds the lock, the thread either has yet to check whether it must end, or sleeps.
        let _entries = lock(&self.entries);
        self.arrived.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> Key<'_> {
        Key { db: 0, bytes }
    }

    #[test]
    fn an_entry_is_claimed_once_and_not_before_its_time() {
        let expiries = Expiries::default();
        expiries.note(key(b"a"), 100, 0);
        expiries.note(key(b"b"), 50, 0);
        assert_eq!(expiries.first_due(49), None);
        assert_eq!(expiries.first_due(60), Some((0, Arc::from(&b"b"[..]))));
        assert!(!expiries.claim(key(b"a"), 99));
        assert!(expiries.claim(key(b"a"), 100));
        assert!(!expiries.claim(key(b"a"), 100));
        assert!(expiries.postpone(key(b"b"), 60));
        assert_eq!(expiries.first_due(69), None);
        assert_eq!(expiries.first_due(70), Some((0, Arc::from(&b"b"[..]))));
        assert!(!expiries.postpone(key(b"b"), 50 + COMMIT_MS));
        assert_eq!(expiries.first_due(u64::MAX), None);
        expiries.note(key(b"b"), 200, 0);
        assert_eq!(expiries.first_due(199), None);
        expiries.note(key(b"b"), AHEAD_MS + 1, 0);
        assert_eq!(expiries.first_due(u64::MAX), None);
    }

    #[test]
    fn expiries_that_are_not_listed_are_reported_until_the_last_has_passed() {
        let expiries = Expiries::default();
        assert!(!expiries.take_lost(u64::MAX));
        expiries.note(key(&vec![1; ENTRY_BYTES_MAX - ENTRY_OVERHEAD]), 1, 0);
        assert!(!expiries.take_lost(u64::MAX));
        expiries.note(key(b"a"), 5000, 0);
        expiries.note(key(b"b"), 7000, 0);
        assert!(!expiries.take_lost(4999));
        assert!(expiries.take_lost(5000));
        assert!(!expiries.take_lost(5999));
        assert!(expiries.take_lost(6001));
        assert!(expiries.take_lost(7001));
        assert!(!expiries.take_lost(u64::MAX));
    }
}
