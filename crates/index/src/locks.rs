//! Version locks in DRAM: writers exclude each other, and readers detect writers.
//!
//! One word of DRAM guards each granule of far memory, from offset 0. An odd version means locked. A writer releases
//! the lock only after its drain, so a reader that sees an unchanged version has read only durable data.
//!
//! A kill can leave bytes that are visible but not durable, wherever a worker was writing. Finding them all would need
//! a scan of the whole table. Instead, the first thread that accesses a granule after an open validates its structure
//! and makes its bytes durable (the `accept` closures). A granule whose validation fails stays unvalidated, and every
//! later access gets the same error.
//!
//! # Invariants
//! IX-LOCK-1  Far memory guarded by a lock changes only while the lock's version is odd.
//! IX-LOCK-2  A writer releases the lock after its change is durable. After a failed drain of the table the lock stays locked,
//!     and threads that wait for it return the error.
//! IX-LOCK-3  In an opened table, a granule whose version is 0 has not been validated, and no thread uses its content.
//! IX-LOCK-4  Unless early reads are configured, words read between two equal even versions belong to one state, and that
//!     state is durable.

use farbank_pm::fault::NamedFault;
use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::{AtomicU64, Ordering, fence};
use farbank_pm::sync::{Arc, CHECKED, thread};
use farbank_pm::{Off, fault};

use crate::error::IndexError;
use crate::failure::SharedFailure;

/// Version locks for the granules of a range of far memory.
pub(crate) struct LockTable {
    versions: GrowTable<AtomicU64>,
    granule_bits: u32,
    /// Whether the table was opened, not created: version 0 then means not validated (IX-LOCK-3).
    opened: bool,
    /// Whether readers neither wait for writers nor validate: IX-LOCK-4 does not hold.
    early: bool,
    failure: Arc<SharedFailure>,
}

/// Fault: searches as in the published codes, which take no lock that a writer holds until its change is durable.
pub(crate) const EARLY_READS: NamedFault = NamedFault {
    name: "index.early_reads",
    description: "a search returns data that is not durable: it does not wait for writers, and persists nothing after an open",
    source: "the published codes of CCEH, P-CLHT and Clevel",
    shows_in: None,
};

/// A held lock, released on drop (IX-LOCK-2).
pub(crate) struct LockGuard<'a> {
    version: &'a AtomicU64,
    held: u64,
    failure: &'a SharedFailure,
}

/// The result of a lookup, with the words it was read from, so that the caller can check whether it is still current.
#[derive(Clone, Copy)]
pub(crate) struct VersionedRef<W> {
    pub(crate) to: Off,
    pub(crate) source: W,
}

/// An even version. [`VersionSnapshot::unchanged`] compares it with the present version.
#[derive(Clone, Copy)]
pub(crate) struct VersionSnapshot<'a> {
    version: &'a AtomicU64,
    was: u64,
}

impl VersionSnapshot<'_> {
    /// Returns whether no writer has taken the lock since (IX-LOCK-4).
    #[inline]
    pub(crate) fn unchanged(self) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == self.was
    }
}

impl LockTable {
    /// Creates a lock for every `granule_bytes` (rounded down to a power of two) of `far_bytes`. `found` says whether
    /// the table was opened, not created.
    pub(crate) fn new(
        failure: &Arc<SharedFailure>,
        far_bytes: u64,
        granule_bytes: u64,
        found: bool,
    ) -> LockTable {
        let granule_bits = granule_bytes.ilog2();
        let count = (far_bytes >> granule_bits) as usize + 1;
        let versions = GrowTable::new(count);
        versions.reserve(count);
        LockTable {
            versions,
            granule_bits,
            opened: found,
            early: false,
            failure: Arc::clone(failure),
        }
    }

    /// Configures early reads, as some published codes have them: readers do not wait for writers. Such a read may
    /// return data that a crash loses.
    pub(crate) fn read_early(self, early: bool) -> LockTable {
        LockTable { early, ..self }
    }

    #[inline]
    fn reads_early(&self) -> bool {
        self.early || fault!("index.early_reads")
    }

    #[inline]
    fn version(&self, at: Off) -> &AtomicU64 {
        self.versions.get((at.0 >> self.granule_bits) as usize)
    }

    /// Prefetches the lock of `at`.
    pub(crate) fn prefetch(&self, at: Off) {
        farbank_pm::grow_table::prefetch(self.version(at));
    }

    /// Marks the granule of `at` as created since the open and durable.
    pub(crate) fn mark_new(&self, at: Off) {
        let version = self.version(at);
        if version.load(Ordering::Relaxed) == 0 {
            version.store(2, Ordering::Release);
        }
    }

    /// Waits until no writer holds the lock of `at`, and returns the version for a read. Runs `accept` at the first
    /// access after an open.
    #[inline]
    pub(crate) fn begin(
        &self,
        at: Off,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<VersionSnapshot<'_>, IndexError> {
        let seen = self.await_unlocked(at)?;
        if seen.was == 0 && self.opened && !self.reads_early() {
            return self.begin_first(at, accept);
        }
        Ok(seen)
    }

    #[cold]
    fn begin_first(
        &self,
        at: Off,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<VersionSnapshot<'_>, IndexError> {
        drop(self.lock(at, accept)?);
        self.await_unlocked(at)
    }

    /// Waits until no writer holds the lock of `at`, and returns the version.
    #[inline]
    pub(crate) fn await_unlocked(&self, at: Off) -> Result<VersionSnapshot<'_>, IndexError> {
        let version = self.version(at);
        let was = version.load(Ordering::Acquire);
        if was.is_multiple_of(2) || self.reads_early() {
            return Ok(VersionSnapshot { version, was });
        }
        self.await_unlocked_slow(version)
    }

    #[cold]
    fn await_unlocked_slow<'a>(
        &self,
        version: &'a AtomicU64,
    ) -> Result<VersionSnapshot<'a>, IndexError> {
        let mut tries = 0;
        loop {
            self.failure.check()?; // IX-LOCK-2
            wait(&mut tries);
            let was = version.load(Ordering::Acquire);
            if was.is_multiple_of(2) {
                return Ok(VersionSnapshot { version, was });
            }
        }
    }

    /// Takes the lock of `at`. Runs `accept` under it at the first access after an open.
    #[inline]
    pub(crate) fn lock(
        &self,
        at: Off,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<LockGuard<'_>, IndexError> {
        self.validate_first_access(self.lock_without_validation(at)?, accept)
    }

    /// Takes the lock of `at`, without validation: the granule needs none.
    #[inline]
    pub(crate) fn lock_without_validation(&self, at: Off) -> Result<LockGuard<'_>, IndexError> {
        let mut tries = 0;
        loop {
            if let Some(guard) = self.take(at) {
                return Ok(guard);
            }
            self.failure.check()?; // IX-LOCK-2
            wait(&mut tries);
        }
    }

    /// Like [`LockTable::lock`], but returns `None` if the lock is taken. For a lock that is taken out of the lock
    /// order.
    #[inline]
    pub(crate) fn try_lock(
        &self,
        at: Off,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<Option<LockGuard<'_>>, IndexError> {
        let taken = self.take(at);
        taken
            .map(|guard| self.validate_first_access(guard, accept))
            .transpose()
    }

    #[inline]
    fn take(&self, at: Off) -> Option<LockGuard<'_>> {
        let version = self.version(at);
        let held = version.load(Ordering::Relaxed);
        if !held.is_multiple_of(2) {
            return None;
        }
        version
            .compare_exchange_weak(held, held + 1, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // Orders the writer's later stores after the store that made the version odd.
        fence(Ordering::Release);
        Some(LockGuard {
            version,
            held,
            failure: &self.failure,
        })
    }

    #[inline]
    fn validate_first_access<'a>(
        &self,
        mut guard: LockGuard<'a>,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<LockGuard<'a>, IndexError> {
        if guard.held == 0
            && self.opened
            && let Err(refused) = accept()
        {
            guard.held = guard.held.wrapping_sub(2); // back to 0 (IX-LOCK-3)
            return Err(refused);
        }
        Ok(guard)
    }

    /// Takes the lock of the granule that `lookup` returns, and retries until `still` confirms the lookup under the
    /// lock. `fetch` starts prefetches that overlap the wait for the lock.
    #[inline]
    pub(crate) fn hold<W: Copy>(
        &self,
        lookup: impl Fn() -> VersionedRef<W>,
        still: impl Fn(VersionedRef<W>) -> bool,
        fetch: impl Fn(Off),
        mut accept: impl FnMut(Off) -> Result<(), IndexError>,
    ) -> Result<(Off, LockGuard<'_>), IndexError> {
        loop {
            let led = lookup();
            fetch(led.to);
            let guard = self.lock(led.to, || accept(led.to))?;
            if still(led) {
                return Ok((led.to, guard));
            }
        }
    }

    /// Returns the result of `read` on the granule that `lookup` returns. Retries until `still` confirms the lookup and
    /// the version is unchanged, so both belong to one durable state (IX-LOCK-4).
    #[inline]
    pub(crate) fn read<W: Copy, T>(
        &self,
        lookup: impl Fn() -> VersionedRef<W>,
        still: impl Fn(VersionedRef<W>) -> bool,
        mut accept: impl FnMut(Off) -> Result<(), IndexError>,
        read: impl Fn(Off) -> T,
    ) -> Result<T, IndexError> {
        loop {
            let led = lookup();
            let seen = self.begin(led.to, || accept(led.to))?;
            let found = read(led.to);
            if still(led) && seen.unchanged() {
                return Ok(found);
            }
        }
    }

    /// Allocates locks for the first `count` granules, if fewer exist.
    pub(crate) fn reserve(&self, count: usize) {
        self.versions.reserve(count);
    }

    /// Bytes of DRAM.
    pub(crate) fn bytes(&self) -> u64 {
        self.versions.bytes() as u64
    }
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.failure.has_failed() {
            return; // IX-LOCK-2
        }
        let next = self.held.wrapping_add(2);
        self.version.store(next, Ordering::Release);
    }
}

/// Waits before a retry: yields at once under a model checker; otherwise spins 64 times, then yields.
#[cold]
pub(crate) fn wait(tries: &mut u32) {
    *tries += 1;
    if CHECKED || *tries > 64 {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granule_that_fails_validation_stays_unvalidated() {
        let locks = LockTable::new(&Arc::default(), 128, 64, true);
        let at = Off(64);
        let fails = || Err(IndexError::damaged("it was lost"));
        assert!(locks.lock(at, fails).is_err());
        assert!(
            locks.begin(at, fails).is_err(),
            "a reader gets the error too"
        );
        assert!(locks.begin(at, || Ok(())).is_ok());
        let accepted = || unreachable!("a granule is validated once");
        assert!(locks.lock(at, accepted).is_ok());
    }
}
