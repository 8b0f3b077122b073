//! Locks in DRAM with versions: writers exclude each other, readers notice them.
//!
//! A word of DRAM stands for each granule of far memory, from offset 0. Odd is locked. A writer lets go only
//! after its drain, so a reader whose version has not changed has read nothing but what is durable.
//!
//! A kill leaves bytes that are visible and not durable, wherever a worker was. To find them all would take a walk
//! through the whole table; so after an open the first who comes to a granule *accepts* it: looks whether it is what the
//! table makes, and makes durable what is there before anybody builds on it. What is not accepted stays so: whoever comes next
//! is told the same.
//!
//! # Invariants
//! L1  What a lock guards is changed in far memory only while its version is odd.
//! L2  It is let go after the change is durable. When a drain of the table has failed, it is not, and who would wait for it is
//!     told.
//! L3  In an opened table, a granule whose version is 0 has not been accepted, and nobody believes what is there.
//! L4  Unless readers are early, words read between two equal, even answers are of one state, and that state is durable.

use farbank_pm::fault::NamedFault;
use farbank_pm::grow_table::GrowTable;
use farbank_pm::sync::atomic::{AtomicU64, Ordering, fence};
use farbank_pm::sync::{Arc, CHECKED, thread};
use farbank_pm::{Off, fault};

use crate::index::IndexError;
use crate::pool_heap::SharedFailure;

/// Versions of every granule of a stretch of far memory.
pub(crate) struct LockTable {
    versions: GrowTable<AtomicU64>,
    granule_bits: u32,
    /// Whether what is there was found and not made: version 0 means not accepted (L3).
    found: bool,
    /// Whether readers wait for no writer and accept nothing: without L4.
    early: bool,
    failure: Arc<SharedFailure>,
}

/// Searches of the published codes that take no lock a writer keeps until its change is durable.
pub(crate) const EARLY_READS: NamedFault = NamedFault {
    name: "index.early_reads",
    what: "a search shows what is not durable yet: it waits for no writer, and accepts nothing after an open",
    source: "the published codes of CCEH, P-CLHT and Clevel",
    shows_in: None,
};

/// A lock that is held; let go when dropped (L2).
pub(crate) struct LockGuard<'a> {
    version: &'a AtomicU64,
    held: u64,
    failure: &'a SharedFailure,
}

/// What a lookup led to, and what it read on the way, so that it can be asked whether it still does.
#[derive(Clone, Copy)]
pub(crate) struct VersionedRef<W> {
    pub(crate) to: Off,
    pub(crate) by: W,
}

/// A version that was even: what to ask [`Seen::unchanged`].
#[derive(Clone, Copy)]
pub(crate) struct VersionSnapshot<'a> {
    version: &'a AtomicU64,
    was: u64,
}

impl VersionSnapshot<'_> {
    /// Whether no writer has been there since (L4).
    #[inline]
    pub(crate) fn unchanged(self) -> bool {
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == self.was
    }
}

impl LockTable {
    /// A lock for every `granule_bytes`, rounded down to a power of two, of `far_bytes`; whether what is there was
    /// `found` by an open.
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
            found,
            early: false,
            failure: Arc::clone(failure),
        }
    }

    /// Has readers wait for no writer, as some published codes do. What they are told then was there while they read, but may
    /// be lost.
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

    /// Has the CPU fetch the lock of `at`.
    pub(crate) fn prefetch(&self, at: Off) {
        farbank_pm::grow_table::prefetch(self.version(at));
    }

    /// Says that what is at `at` was made since the open, and is durable.
    pub(crate) fn is_new(&self, at: Off) {
        let version = self.version(at);
        if version.load(Ordering::Relaxed) == 0 {
            version.store(2, Ordering::Release);
        }
    }

    /// Waits until no writer is at `at`, which is read next. Whoever comes first after an open runs `accept`.
    #[inline]
    pub(crate) fn begin(
        &self,
        at: Off,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<VersionSnapshot<'_>, IndexError> {
        let seen = self.even(at)?;
        if seen.was == 0 && self.found && !self.reads_early() {
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
        self.even(at)
    }

    /// The version of `at`, once no writer is there.
    #[inline]
    pub(crate) fn even(&self, at: Off) -> Result<VersionSnapshot<'_>, IndexError> {
        let version = self.version(at);
        let was = version.load(Ordering::Acquire);
        if was.is_multiple_of(2) || self.reads_early() {
            return Ok(VersionSnapshot { version, was });
        }
        self.even_later(version)
    }

    #[cold]
    fn even_later<'a>(&self, version: &'a AtomicU64) -> Result<VersionSnapshot<'a>, IndexError> {
        let mut tries = 0;
        loop {
            self.failure.refuse()?; // L2
            wait(&mut tries);
            let was = version.load(Ordering::Acquire);
            if was.is_multiple_of(2) {
                return Ok(VersionSnapshot { version, was });
            }
        }
    }

    /// Takes the lock of `at`. Whoever comes first after an open runs `accept`, under it.
    #[inline]
    pub(crate) fn lock(
        &self,
        at: Off,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<LockGuard<'_>, IndexError> {
        self.accepted(self.lock_made(at)?, accept)
    }

    /// Takes the lock of `at`, which there is nothing to accept about.
    #[inline]
    pub(crate) fn lock_made(&self, at: Off) -> Result<LockGuard<'_>, IndexError> {
        let mut tries = 0;
        loop {
            if let Some(guard) = self.take(at) {
                return Ok(guard);
            }
            self.failure.refuse()?; // L2
            wait(&mut tries);
        }
    }

    /// As [`Locks::lock`], but waits for nobody: for a lock out of the order in which others take them.
    #[inline]
    pub(crate) fn try_lock(
        &self,
        at: Off,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<Option<LockGuard<'_>>, IndexError> {
        let taken = self.take(at);
        taken.map(|guard| self.accepted(guard, accept)).transpose()
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
        // What is changed from here on is changed after the version was seen to be odd.
        fence(Ordering::Release);
        Some(LockGuard {
            version,
            held,
            failure: &self.failure,
        })
    }

    #[inline]
    fn accepted<'a>(
        &self,
        mut guard: LockGuard<'a>,
        accept: impl FnOnce() -> Result<(), IndexError>,
    ) -> Result<LockGuard<'a>, IndexError> {
        if guard.held == 0
            && self.found
            && let Err(refused) = accept()
        {
            guard.held = guard.held.wrapping_sub(2); // back to 0 (L3)
            return Err(refused);
        }
        Ok(guard)
    }

    /// Takes the lock of what `lookup` leads to, and `still` does when it is held. What `fetch` asks the CPU for comes
    /// while the lock is waited for.
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

    /// What `read` finds at what `lookup` leads to, and `still` does when it has been read: both of one durable state (L4).
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

    /// Makes locks for the first `count` granules, if there are not as many yet.
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
        if self.failure.is_noted() {
            return; // L2
        }
        let next = self.held.wrapping_add(2);
        self.version.store(next, Ordering::Release);
    }
}

/// Lets others go on: at once under a model checker, after a while otherwise.
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
    fn what_the_first_could_not_accept_nobody_believes() {
        let locks = LockTable::new(&Arc::default(), 128, 64, true);
        let at = Off(64);
        let fails = || Err(IndexError::damaged("it was lost"));
        assert!(locks.lock(at, fails).is_err());
        assert!(locks.begin(at, fails).is_err(), "a reader is told too");
        assert!(locks.begin(at, || Ok(())).is_ok());
        let accepted = || unreachable!("it is accepted once");
        assert!(locks.lock(at, accepted).is_ok());
    }
}
