//! Claims: who is writing a key.
//!
//! A writer claims its key's stripe before it looks the key up and lets it go when the item is published: so a key's
//! writes follow each other, though the cache's lock is not held while they reach far memory. Readers never ask.

use farbank_pm::sync::atomic::{AtomicU32, Ordering};
use farbank_pm::sync::thread;

/// Stripes: many times the threads there are.
const STRIPES: usize = if farbank_pm::sync::CHECKED {
    64
} else {
    1 << 14
};

/// All stripes of a cache.
pub(crate) struct Claims(Box<[AtomicU32]>);

impl Claims {
    pub(crate) fn new() -> Claims {
        Claims((0..STRIPES).map(|_| AtomicU32::new(0)).collect())
    }

    /// The stripe of the keys whose hash has `tag` for its upper bits.
    #[inline]
    pub(crate) fn stripe(tag: u32) -> u32 {
        tag % STRIPES as u32
    }

    /// Claims `stripe`, or says that somebody has it.
    #[inline]
    pub(crate) fn try_claim(&self, stripe: u32) -> bool {
        self.0[stripe as usize]
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Claims `stripe`; waits for whoever has it.
    #[inline]
    pub(crate) fn claim(&self, stripe: u32) {
        while !self.try_claim(stripe) {
            thread::yield_now();
        }
    }

    /// Lets it go.
    #[inline]
    pub(crate) fn release(&self, stripe: u32) {
        self.0[stripe as usize].store(0, Ordering::Release);
    }

    /// Claims every stripe, in order; waits for whoever has one.
    pub(crate) fn claim_all(&self) {
        (0..STRIPES as u32).for_each(|stripe| self.claim(stripe));
    }

    /// Lets all of them go.
    pub(crate) fn release_all(&self) {
        (0..STRIPES as u32).for_each(|stripe| self.release(stripe));
    }
}
