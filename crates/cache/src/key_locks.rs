//! Key locks: serialise the writers of a key.
//!
//! A writer acquires the lock of its key's stripe before it looks the key up, and releases it after it has published
//! the item. So writes of a key are serialised, although the cache's lock is not held while they access far memory.
//! Readers take no key lock. A key lock is held briefly, unless a session has staged a write and does not commit. A
//! writer that waits longer sleeps.

use std::time::{Duration, Instant};

use farbank_pm::process_stamp::this_thread;
use farbank_pm::sync::atomic::{AtomicU32, Ordering};
use farbank_pm::sync::{CHECKED, Condvar, Mutex, thread, unpoisoned};
use farbank_store::{CONFLICT_WAIT, ConflictPolicy, Error};

/// Number of stripes, many times the number of threads.
const STRIPES: usize = if CHECKED { 64 } else { 1 << 14 };
/// Number of yields before a waiting writer sleeps.
const YIELDS: u32 = if CHECKED { 2 } else { 100 };
/// Maximum time of one sleep. A release checks for sleeping writers without a fence, and may miss one that has just
/// gone to sleep.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The key locks of a cache.
pub(crate) struct KeyLocks {
    /// For each stripe 0, or the number of the thread that holds its lock plus one.
    holders: Box<[AtomicU32]>,
    /// Number of sleeping writers.
    sleeping: AtomicU32,
    sleep: Mutex<()>,
    released: Condvar,
}

impl KeyLocks {
    pub(crate) fn new() -> KeyLocks {
        KeyLocks {
            holders: (0..STRIPES).map(|_| AtomicU32::new(0)).collect(),
            sleeping: AtomicU32::new(0),
            sleep: Mutex::new(()),
            released: Condvar::new(),
        }
    }

    /// Returns the stripe of the keys whose hash has `tag` as its upper bits.
    #[inline]
    pub(crate) fn stripe(tag: u32) -> u32 {
        tag % STRIPES as u32
    }

    /// Tries to acquire the lock of `stripe`. Returns false if it is held.
    #[inline]
    pub(crate) fn try_lock(&self, stripe: u32) -> bool {
        self.holders[stripe as usize]
            .compare_exchange(0, this_thread() + 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Acquires the lock of `stripe` for a session with nothing staged, waiting for the holder as `conflicts` says.
    pub(crate) fn lock(&self, stripe: u32, conflicts: ConflictPolicy) -> Result<(), Error> {
        let mut begun = None;
        for round in 0_u32.. {
            if self.try_lock(stripe) {
                break;
            }
            if self.is_own(stripe) {
                return Err(Error::Conflict);
            }
            if round < YIELDS {
                thread::yield_now();
                continue;
            }
            let begun = *begun.get_or_insert_with(Instant::now);
            if conflicts == ConflictPolicy::Refuse && begun.elapsed() >= CONFLICT_WAIT {
                return Err(Error::Conflict);
            }
            self.sleep(stripe);
        }
        Ok(())
    }

    /// Returns whether the calling thread holds the lock of `stripe`. Waiting for it would be a deadlock.
    fn is_own(&self, stripe: u32) -> bool {
        let own = this_thread();
        own != 0 && self.holders[stripe as usize].load(Ordering::Relaxed) == own + 1
    }

    /// Sleeps until a lock is released, unless that of `stripe` is free.
    #[cold]
    fn sleep(&self, stripe: u32) {
        let sleep = unpoisoned(self.sleep.lock());
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        if self.holders[stripe as usize].load(Ordering::SeqCst) != 0 {
            let woken = self.released.wait_timeout(sleep, SLEEP_MAX);
            drop(unpoisoned(woken));
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Releases the lock of `stripe`.
    #[inline]
    pub(crate) fn release(&self, stripe: u32) {
        self.holders[stripe as usize].store(0, Ordering::Release);
        if self.sleeping.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Once this lock is acquired, a writer that has checked its stripe is already asleep.
        drop(unpoisoned(self.sleep.lock()));
        self.released.notify_all();
    }

    /// Acquires the locks of all stripes in order, waiting for their holders.
    ///
    /// # Errors
    /// [`Error::Conflict`], with no lock acquired, if the calling thread already holds one.
    pub(crate) fn lock_all(&self) -> Result<(), Error> {
        for stripe in 0..STRIPES as u32 {
            if let Err(error) = self.lock(stripe, ConflictPolicy::Commit) {
                (0..stripe).for_each(|claimed| self.release(claimed));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Releases the locks of all stripes.
    pub(crate) fn release_all(&self) {
        (0..STRIPES as u32).for_each(|stripe| self.release(stripe));
    }

    /// Returns a guard that releases the lock of `stripe` if the caller panics before it calls
    /// [`ReleaseOnPanic::disarm`].
    pub(crate) fn release_on_panic(&self, stripe: Option<u32>) -> ReleaseOnPanic<'_> {
        ReleaseOnPanic {
            claims: self,
            stripe,
        }
    }
}

/// Guard that releases a key lock if the caller's function panics while it is held.
pub(crate) struct ReleaseOnPanic<'a> {
    claims: &'a KeyLocks,
    stripe: Option<u32>,
}

impl ReleaseOnPanic<'_> {
    /// Disarms the guard after the function has returned: the lock stays held.
    pub(crate) fn disarm(mut self) {
        self.stripe = None;
    }
}

impl Drop for ReleaseOnPanic<'_> {
    fn drop(&mut self) {
        if let Some(stripe) = self.stripe {
            self.claims.release(stripe);
        }
    }
}
