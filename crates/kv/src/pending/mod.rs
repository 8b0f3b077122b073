//! The pending writes of all sessions, in stripes, and the publication of groups. `planned`: what publication needs to
//! know about a write.
//!
//! Readers of several keys compare the *group version* before and after: it is odd while a group is being published,
//! and it grows with each publication. A reader whose read overlaps a publication reads again (KV-GROUP-2).

pub(crate) mod planned;
pub(crate) mod stripe;

use crossbeam_utils::CachePadded;
use farbank_pm::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, fence,
};
use farbank_pm::sync::{Mutex, MutexGuard, thread, unpoisoned};

use crate::pending::stripe::{LockedStripe, Stripe};

/// Attempts to lock all stripes without waiting for any.
const LOCK_ATTEMPTS: usize = 100;

/// The pending writes of all sessions.
#[derive(Debug, Default)]
pub(crate) struct PendingWrites {
    stripes: Vec<CachePadded<Stripe>>,
    /// Version counter of group publications. Odd while a group is being published.
    group_version: CachePadded<AtomicU64>,
    group_lock: Mutex<()>,
}

impl PendingWrites {
    /// Creates `stripes` stripes, a power of two. Sequence numbers continue from `seq_max`.
    pub(crate) fn new(stripes: usize, seq_max: u64) -> PendingWrites {
        debug_assert!(stripes.is_power_of_two());
        let pending = PendingWrites {
            stripes: (0..stripes).map(|_| CachePadded::default()).collect(),
            ..PendingWrites::default()
        };
        for stripe in pending.stripes() {
            stripe.lock().raise_seq(seq_max);
        }
        pending
    }

    /// Returns the stripe of the keys with `hash`.
    #[inline]
    pub(crate) fn stripe(&self, hash: u64) -> &Stripe {
        self.numbered(self.number_of(hash))
    }

    /// Returns the number of the stripe of the keys with `hash`.
    #[inline]
    pub(crate) fn number_of(&self, hash: u64) -> usize {
        hash as usize & (self.stripes.len() - 1)
    }

    /// Returns the stripe with this number.
    #[inline]
    pub(crate) fn numbered(&self, number: usize) -> &Stripe {
        &self.stripes[number]
    }

    /// Returns all stripes, in order.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = &Stripe> {
        self.stripes.iter().map(|stripe| &**stripe)
    }

    /// Locks all stripes, in order.
    pub(crate) fn lock_all(&self) -> Vec<LockedStripe<'_>> {
        self.stripes().map(Stripe::lock).collect()
    }

    /// As [`PendingWrites::lock_all`], but waits with few stripes locked. A thread may hold a stripe for a
    /// while, and other writers wait for the stripes that the caller holds already.
    pub(crate) fn lock_all_briefly(&self) -> Vec<LockedStripe<'_>> {
        for _ in 0..LOCK_ATTEMPTS {
            let locked: Option<Vec<_>> = self.stripes().map(Stripe::try_lock).collect();
            match locked {
                Some(locked) => return locked,
                None => thread::yield_now(),
            }
        }
        self.lock_all()
    }

    /// Returns the highest assigned sequence number.
    pub(crate) fn seq_max(&self) -> u64 {
        let last = self.stripes().map(|stripe| stripe.lock().seq());
        last.max().unwrap_or(0)
    }

    /// Returns the lowest reclaim stamp of the pending tombstones.
    pub(crate) fn lowest_reclaim_stamp(&self) -> Option<u64> {
        self.stripes()
            .map(|stripe| stripe.lock().lowest_fence())
            .min()
    }

    /// Returns whether any session has staged writes that are not drained.
    #[cfg(feature = "check")]
    pub(crate) fn is_staged(&self) -> bool {
        let staged = |stripe: &Stripe| stripe.lock().all().any(|p| p.drained.is_none());
        self.stripes().any(staged)
    }

    /// Returns whether no session has pending writes.
    #[cfg(feature = "check")]
    pub(crate) fn is_quiet(&self) -> bool {
        self.stripes().all(Stripe::is_quiet)
    }

    /// Excludes publications of groups while the returned guard exists.
    pub(crate) fn lock_groups(&self) -> MutexGuard<'_, ()> {
        unpoisoned(self.group_lock.lock())
    }

    /// Begins a publication: overlapping readers read again. It ends when the returned scope is dropped.
    pub(crate) fn publish_group(&self) -> (GroupPublication<'_>, MutexGuard<'_, ()>) {
        let groups = self.lock_groups();
        (self.begin_publication(&groups), groups)
    }

    /// As [`PendingWrites::publish_group`], for a caller that has locked the groups and keeps them locked.
    pub(crate) fn begin_publication(&self, _groups: &MutexGuard<'_, ()>) -> GroupPublication<'_> {
        self.group_version.fetch_add(1, AcqRel);
        GroupPublication(&self.group_version)
    }

    /// Waits until no group is being published. Returns the version to pass to [`PendingWrites::is_group_version`].
    #[inline(always)]
    pub(crate) fn group_version(&self) -> u64 {
        loop {
            let now = self.group_version.load(Acquire);
            if now.is_multiple_of(2) {
                return now;
            }
            thread::yield_now();
        }
    }

    /// Returns whether no group was published since `from` was read.
    #[inline(always)]
    pub(crate) fn is_group_version(&self, from: u64) -> bool {
        fence(Acquire);
        self.group_version.load(Relaxed) == from
    }
}

/// Scope in which a group is published. Overlapping readers retry, so they see all of the group or none.
pub(crate) struct GroupPublication<'a>(&'a AtomicU64);

impl Drop for GroupPublication<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, AcqRel);
    }
}
