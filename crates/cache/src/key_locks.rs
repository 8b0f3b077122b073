//! Claims: who is writing a key.
//!
//! A writer claims its key's stripe before it looks the key up and lets it go when the item is published: so a key's
//! writes follow each other, though the cache's lock is not held while they reach far memory. Readers never ask.
//! A claim is short, unless a session has staged a write and does not commit: a writer that waits longer sleeps.

use std::time::{Duration, Instant};

use farbank_kv::store::{CONFLICT_WAIT, ConflictPolicy, Error};
use farbank_pm::process_stamp::this_thread;
use farbank_pm::sync::atomic::{AtomicU32, Ordering};
use farbank_pm::sync::{CHECKED, Condvar, Mutex, thread};

/// Stripes: many times the threads there are.
const STRIPES: usize = if CHECKED { 64 } else { 1 << 14 };
/// How often a writer lets other threads run before it sleeps.
const YIELDS: u32 = if CHECKED { 2 } else { 100 };
/// How long it sleeps at most. A release looks whether a writer sleeps without a fence, and may miss one that has just
/// lain down.
const NAP: Duration = Duration::from_millis(1);

/// All stripes of a cache.
pub(crate) struct KeyLocks {
    /// 0, or one more than the number of the thread that has the stripe.
    holders: Box<[AtomicU32]>,
    /// Writers that sleep.
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

    /// The stripe of the keys whose hash has `tag` for its upper bits.
    #[inline]
    pub(crate) fn stripe(tag: u32) -> u32 {
        tag % STRIPES as u32
    }

    /// Claims `stripe`, or says that somebody has it.
    #[inline]
    pub(crate) fn try_claim(&self, stripe: u32) -> bool {
        self.holders[stripe as usize]
            .compare_exchange(0, this_thread() + 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Claims `stripe`; waits for whoever has it, as `conflicts` says of a session that has nothing staged.
    pub(crate) fn claim(&self, stripe: u32, conflicts: ConflictPolicy) -> Result<(), Error> {
        let mut begun = None;
        for round in 0_u32.. {
            if self.try_claim(stripe) {
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

    /// Whether the calling thread has `stripe`: to wait for it would be to wait for ever.
    fn is_own(&self, stripe: u32) -> bool {
        let own = this_thread();
        own != 0 && self.holders[stripe as usize].load(Ordering::Relaxed) == own + 1
    }

    /// Sleeps until a stripe is released, unless `stripe` is free.
    #[cold]
    fn sleep(&self, stripe: u32) {
        let sleep = self.sleep.lock().expect("no holder panics");
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        if self.holders[stripe as usize].load(Ordering::SeqCst) != 0 {
            let woken = self.released.wait_timeout(sleep, NAP);
            drop(woken.expect("no holder panics"));
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets it go.
    #[inline]
    pub(crate) fn release(&self, stripe: u32) {
        self.holders[stripe as usize].store(0, Ordering::Release);
        if self.sleeping.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Whoever has looked at its stripe already sleeps once this is taken.
        drop(self.sleep.lock().expect("no holder panics"));
        self.released.notify_all();
    }

    /// Claims every stripe, in order; waits for whoever has one.
    ///
    /// # Errors
    /// [`Error::Conflict`], and none is claimed, if the calling thread has one.
    pub(crate) fn claim_all(&self) -> Result<(), Error> {
        for stripe in 0..STRIPES as u32 {
            if let Err(error) = self.claim(stripe, ConflictPolicy::Commit) {
                (0..stripe).for_each(|claimed| self.release(claimed));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Lets all of them go.
    pub(crate) fn release_all(&self) {
        (0..STRIPES as u32).for_each(|stripe| self.release(stripe));
    }

    /// Lets `stripe` go if the caller panics before the answer is dropped by [`Until::passed`].
    pub(crate) fn unless_panic(&self, stripe: Option<u32>) -> ReleaseOnPanic<'_> {
        ReleaseOnPanic {
            claims: self,
            stripe,
        }
    }
}

/// Releases a claim if a caller's function panics while it is held.
pub(crate) struct ReleaseOnPanic<'a> {
    claims: &'a KeyLocks,
    stripe: Option<u32>,
}

impl ReleaseOnPanic<'_> {
    /// The function has returned: the claim is held on.
    pub(crate) fn passed(mut self) {
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
