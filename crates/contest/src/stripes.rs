//! Locks of stripes: a key belongs to the stripe its hash's low bits name.
//!
//! One lock guards a stripe's chains of the index and its slots of the read cache, and is held over far memory:
//! by writers until their write is durable, by readers while they copy.

use farbank_pm::sync::atomic::{AtomicBool, Ordering};
use farbank_pm::sync::{Mutex, MutexGuard, thread};

/// How a stripe is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeLock {
    /// By spinning. Published: without end; here a thread that has looked in vain for a while lets others run,
    /// because there may be more threads than CPUs.
    Spin,
    /// By a mutex.
    Mutex,
}

/// The locks, a power of two of them.
pub(crate) struct LockStripes {
    locks: StripeLocks,
    mask: u64,
}

enum StripeLocks {
    Spin(Box<[AtomicBool]>),
    Mutex(Box<[Mutex<()>]>),
}

/// A locked stripe.
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
                _mutex: Some(locks[stripe].lock().expect("no holder panics")),
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
    fn one_thread_at_a_time_is_in_a_stripe() {
        const TURNS: u64 = 20_000;
        for lock in [StripeLock::Spin, StripeLock::Mutex] {
            let stripes = LockStripes::new(2, lock);
            let count = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..TURNS {
                            let _locked = stripes.lock(7);
                            // A load and a store: what others add in between would be lost.
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
