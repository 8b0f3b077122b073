//! Striped locks. The low bits of a key's hash select its stripe.
//!
//! One lock guards the stripe's chains of the index and its slots of the read cache. It is held during accesses to far
//! memory: a writer holds it until its write is durable, a reader while it copies the value.

use farbank_pm::sync::atomic::{AtomicBool, Ordering};
use farbank_pm::sync::{Mutex, MutexGuard, thread, unpoisoned};

/// Kind of lock for a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeLock {
    /// A spin lock. The published lock spins without end. Here a thread yields after a number of failed attempts,
    /// because there may be more threads than CPUs.
    Spin,
    /// A mutex.
    Mutex,
}

/// A table of locks. The number of locks is a power of two.
pub(crate) struct LockStripes {
    locks: StripeLocks,
    mask: u64,
}

enum StripeLocks {
    Spin(Box<[AtomicBool]>),
    Mutex(Box<[Mutex<()>]>),
}

/// Guard of a locked stripe.
pub(crate) struct LockedStripe<'a> {
    spin: Option<&'a AtomicBool>,
    _mutex: Option<MutexGuard<'a, ()>>,
}

impl LockStripes {
    pub(crate) fn new(count: u64, lock: StripeLock) -> LockStripes {
        assert!(count.is_power_of_two(), "{count} stripes");
        let locks = match lock {
            StripeLock::Spin => {
                StripeLocks::Spin((0..count).map(|_| AtomicBool::new(false)).collect())
            }
            StripeLock::Mutex => StripeLocks::Mutex((0..count).map(|_| Mutex::new(())).collect()),
        };
        LockStripes {
            locks,
            mask: count - 1,
        }
    }

    #[inline]
    pub(crate) fn lock(&self, hash: u64) -> LockedStripe<'_> {
        let stripe = (hash & self.mask) as usize;
        match &self.locks {
            StripeLocks::Spin(flags) => {
                let flag = &flags[stripe];
                spin(flag);
                LockedStripe {
                    spin: Some(flag),
                    _mutex: None,
                }
            }
            StripeLocks::Mutex(locks) => LockedStripe {
                spin: None,
                _mutex: Some(unpoisoned(locks[stripe].lock())),
            },
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match &self.locks {
            StripeLocks::Spin(flags) => size_of_val(&**flags),
            StripeLocks::Mutex(locks) => size_of_val(&**locks),
        };
        bytes as u64
    }
}

#[inline]
fn spin(flag: &AtomicBool) {
    const PATIENCE: u32 = 200;
    let mut looks = 0;
    while flag.swap(true, Ordering::Acquire) {
        looks += 1;
        if looks % PATIENCE == 0 {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

impl Drop for LockedStripe<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(flag) = self.spin {
            flag.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbank_pm::sync::atomic::AtomicU64;

    #[test]
    fn a_stripe_is_locked_by_one_thread_at_a_time() {
        const TURNS: u64 = 20_000;
        for lock in [StripeLock::Spin, StripeLock::Mutex] {
            let stripes = LockStripes::new(2, lock);
            let count = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..TURNS {
                            let _locked = stripes.lock(7);
                            // Not an atomic addition: without the lock, increments of other threads would be lost here.
                            let seen = count.load(Ordering::Relaxed);
                            count.store(seen + 1, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(count.load(Ordering::Relaxed), 4 * TURNS, "{lock:?}");
        }
    }
}
