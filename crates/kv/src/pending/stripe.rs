//! Stripes: locks over parts of the key space, each with the list of its pending writes.
//!
//! The low bits of a key's hash select its stripe. Under the stripe's lock sequence numbers are assigned, and the index
//! groups of the stripe's keys are changed. The lock is held only while DRAM is accessed.
//!
//! # Invariants
//! KV-PEND-1  Sequence numbers of a stripe only grow, across restarts too: of two records of one key the one
//!     with the higher number is the newer.
//! KV-PEND-2  A write is listed as pending from the moment it has a sequence number until it is published, or superseded by
//!     a newer published write of its key. So the newest value of a key is its newest pending write, or without
//!     one the record that the index points at.
//! KV-PEND-3  A pending write without a ticket may be read only by the session that staged it: its bytes are in
//!     that session's buffer. A pending write with a ticket may be read from the medium by any session.
//! KV-PEND-4  All pending writes of one key that have no ticket belong to one session.
//! KV-PEND-5  A thread that removes a pending write or a read guard, or sets a ticket, wakes the sessions that wait for
//!     that.
//! KV-PEND-6  A session that has staged a group guards each key that the group has read and does not write, until the
//!     group is drained. Meanwhile no other session writes such a key (KV-GROUP-7).

use std::time::{Duration, Instant};

use farbank_pm::sync::atomic::{AtomicU32, Ordering};
use farbank_pm::sync::{Arc, Condvar, Mutex, MutexGuard, unpoisoned};
use farbank_pm::{Off, Ticket};

use crate::pending::planned::DrainedWrite;

/// A key: its database and its bytes.
pub(crate) type KeyRef = (u8, Vec<u8>);

/// A write that is staged or drained and not yet published.
#[derive(Clone, Debug)]
pub(crate) struct PendingWrite {
    pub hash: u64,
    pub seq: u64,
    pub at: Off,
    pub session: u32,
    /// The thread that staged it; 0: not known.
    pub thread: u32,
    /// Its ticket and its batch; `None` until its session has drained it.
    pub drained: Option<DrainedWrite>,
    /// Reclaim stamp of a tombstone, read under the stripe's lock; [`PendingWrite::NO_RECLAIM_STAMP`] for a value.
    pub reclaim_stamp: u64,
    /// All keys of the group that it is a member of; `None`: it is not a member.
    pub group: Option<Arc<Vec<KeyRef>>>,
    /// Whether another session has published it before its own.
    pub is_published: bool,
}

impl PendingWrite {
    /// Reclaim stamp of a write that waits for no segment.
    pub(crate) const NO_RECLAIM_STAMP: u64 = u64::MAX;

    /// Returns the ticket of the drain. `None` until its session has drained it.
    #[inline]
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.drained.as_ref().map(|drained| drained.ticket)
    }
}

/// A key that a staged group has read and does not write (KV-PEND-6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadGuard {
    hash: u64,
    session: u32,
    /// The thread that staged the group.
    thread: u32,
}

/// The state that a stripe's lock guards.
#[derive(Debug, Default)]
pub(crate) struct StripeState {
    pub seq: u64,
    pub pending: Vec<PendingWrite>,
    guards: Vec<ReadGuard>,
    /// Number of sessions that wait for a pending write or a guard.
    waiting: u32,
}

impl StripeState {
    /// Returns the thread of a session other than `session` that has staged and not drained a write of `hash`'s key, or
    /// a group that has read it.
    fn staged_by_other(&self, hash: u64, session: u32) -> Option<u32> {
        let is_foreign =
            |p: &&PendingWrite| p.hash == hash && p.drained.is_none() && p.session != session;
        let write = self.pending.iter().find(is_foreign).map(|p| p.thread);
        write.or_else(|| self.guarded_by_other(hash, session))
    }

    /// Returns the thread of a session other than `session` that guards `hash`'s key.
    fn guarded_by_other(&self, hash: u64, session: u32) -> Option<u32> {
        let is_foreign = |guard: &&ReadGuard| guard.hash == hash && guard.session != session;
        self.guards
            .iter()
            .find(is_foreign)
            .map(|guard| guard.thread)
    }
}

/// A part of the key space with its lock and its pending writes.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    inner: Mutex<StripeState>,
    /// Signalled when a pending write is drained or removed, or a guard is removed, if a session waits for that.
    changed: Condvar,
    /// Number of pending writes, readable without the lock.
    listed: AtomicU32,
}

/// A locked stripe.
pub(crate) struct LockedStripe<'a> {
    guard: MutexGuard<'a, StripeState>,
    stripe: &'a Stripe,
}

impl Stripe {
    pub(crate) fn lock(&self) -> LockedStripe<'_> {
        LockedStripe {
            guard: unpoisoned(self.inner.lock()),
            stripe: self,
        }
    }

    /// Locks the stripe if no other thread holds it.
    pub(crate) fn try_lock(&self) -> Option<LockedStripe<'_>> {
        Some(LockedStripe {
            guard: self.inner.try_lock().ok()?,
            stripe: self,
        })
    }

    /// Waits until no session other than `session` has an undrained write of `hash`'s key, or guards it. Returns false
    /// if that takes longer than `limit`.
    pub(crate) fn wait_for_others(&self, hash: u64, session: u32, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut inner = unpoisoned(self.inner.lock());
        while inner.staged_by_other(hash, session).is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner.waiting += 1;
            let woken = self.changed.wait_timeout(inner, left);
            inner = unpoisoned(woken).0;
            inner.waiting -= 1;
        }
        true
    }

    /// Whether the stripe has no pending writes.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.listed.load(Ordering::Acquire) == 0
    }
}

impl LockedStripe<'_> {
    /// Assigns the next sequence number.
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.guard.seq += 1;
        self.guard.seq
    }

    /// Returns the last assigned sequence number.
    pub(crate) fn seq(&self) -> u64 {
        self.guard.seq
    }

    /// Returns whether a write with a number up to `seq` is pending and not published.
    pub(crate) fn has_pending_up_to(&self, seq: u64) -> bool {
        let mut pending = self.guard.pending.iter();
        pending.any(|p| p.seq <= seq && !p.is_published)
    }

    /// Returns the pending writes that are not published.
    pub(crate) fn unpublished(&self) -> impl Iterator<Item = &PendingWrite> {
        self.guard.pending.iter().filter(|p| !p.is_published)
    }

    /// Makes later sequence numbers higher than `seq`.
    pub(crate) fn raise_seq(&mut self, seq: u64) {
        self.guard.seq = self.guard.seq.max(seq);
    }

    /// Adds a pending write.
    pub(crate) fn list(&mut self, pending: PendingWrite) {
        self.guard.pending.push(pending);
        self.count();
    }

    /// Publishes the number of pending writes.
    fn count(&self) {
        let listed = self.guard.pending.len() as u32;
        self.stripe.listed.store(listed, Ordering::Release);
    }

    /// Wakes the waiting sessions (KV-PEND-5).
    fn wake(&self) {
        if self.guard.waiting > 0 {
            self.stripe.changed.notify_all();
        }
    }

    /// Returns the thread of a session other than `session` that has staged and not drained a write of `hash`'s key, or
    /// that guards it. The thread is 0 if it is not known.
    pub(crate) fn foreign(&self, hash: u64, session: u32) -> Option<u32> {
        self.guard.staged_by_other(hash, session)
    }

    /// Returns whether a session other than `session` guards `hash`'s key (KV-PEND-6).
    #[inline]
    pub(crate) fn is_guarded(&self, hash: u64, session: u32) -> bool {
        self.guard.guarded_by_other(hash, session).is_some()
    }

    /// Guards `hash`'s key for `session`, which runs in `thread`. Returns false if the session guards it already.
    pub(crate) fn add_guard(&mut self, hash: u64, session: u32, thread: u32) -> bool {
        let added = ReadGuard {
            hash,
            session,
            thread,
        };
        let is_new = !self.guard.guards.contains(&added);
        if is_new {
            self.guard.guards.push(added);
        }
        is_new
    }

    /// Removes the guard of `session` on `hash`'s key.
    pub(crate) fn remove_guard(&mut self, hash: u64, session: u32) {
        let is_own = |guard: &ReadGuard| guard.hash == hash && guard.session == session;
        if let Some(found) = self.guard.guards.iter().position(is_own) {
            self.guard.guards.swap_remove(found);
            self.wake();
        }
    }

    /// Sets the ticket and the batch of the pending write `seq`, which has been drained.
    pub(crate) fn mark_drained(&mut self, seq: u64, drained: DrainedWrite) {
        if let Some(pending) = self.listed(seq) {
            pending.drained = Some(drained);
            self.wake();
        }
    }

    /// Removes the pending write `seq`. Returns false if it was removed before.
    pub(crate) fn unlist(&mut self, seq: u64) -> bool {
        let Some(found) = self.guard.pending.iter().position(|p| p.seq == seq) else {
            return false;
        };
        self.guard.pending.swap_remove(found);
        self.count();
        self.wake();
        true
    }

    /// Returns the lowest reclaim stamp of the pending tombstones.
    pub(crate) fn lowest_fence(&self) -> u64 {
        let fences = self.guard.pending.iter().map(|p| p.reclaim_stamp);
        fences.min().unwrap_or(PendingWrite::NO_RECLAIM_STAMP)
    }

    /// Removes all pending writes.
    pub(crate) fn unlist_all(&mut self) {
        self.guard.pending.clear();
        self.count();
        self.wake();
    }

    /// Returns the pending writes of keys with this hash.
    pub(crate) fn of(&self, hash: u64) -> impl Iterator<Item = &PendingWrite> {
        self.guard.pending.iter().filter(move |p| p.hash == hash)
    }

    /// Returns all pending writes.
    #[cfg(feature = "check")]
    pub(crate) fn all(&self) -> impl Iterator<Item = &PendingWrite> {
        self.guard.pending.iter()
    }

    /// Returns the pending write `seq` for a change.
    pub(crate) fn listed(&mut self, seq: u64) -> Option<&mut PendingWrite> {
        self.guard.pending.iter_mut().find(|p| p.seq == seq)
    }
}
