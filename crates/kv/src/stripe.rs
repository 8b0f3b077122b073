//! Stripes: who may write which keys, and what is written but not yet published.
//!
//! A key belongs to the stripe its hash's low bits name. The stripe's lock hands out sequence numbers
//! and guards the index's groups of those keys; it is held over DRAM only.
//!
//! # Invariants
//! W1  Sequence numbers of a stripe only grow, across restarts too: of two records of one key the one
//!     with the higher number is the newer.
//! W2  From the moment a write has a number until it is published (or outrun by a newer write of its
//!     key) it is listed here. So the newest value of a key is its newest listed write, else what the
//!     index names.
//! W3  A listed write without a ticket may be read only by the session that owns it: its bytes are in
//!     that session's buffer. With a ticket, anyone may read it from the medium.
//! W4  All listed writes of one key that have no ticket belong to one session.
//! W5  Whoever takes a write off the list, or gives it a ticket, wakes the sessions that wait for that.

use std::time::{Duration, Instant};

use farbank_pm::sync::atomic::{AtomicU32, Ordering};
use farbank_pm::sync::{Arc, Condvar, Mutex, MutexGuard};
use farbank_pm::{Off, Ticket};

/// The name of a key: its database and its bytes.
pub(crate) type KeyRef = (u8, Vec<u8>);

/// A write on its way.
#[derive(Clone, Debug)]
pub(crate) struct PendingWrite {
    pub hash: u64,
    pub seq: u64,
    pub at: Off,
    pub session: u32,
    /// The thread that staged it; 0: not known.
    pub thread: u32,
    /// `None` until its session has drained it.
    pub ticket: Option<Ticket>,
    /// Of a tombstone its fence, read under the stripe's lock; of a value [`Pending::NO_FENCE`].
    pub reclaim_stamp: u64,
    /// The first of the drained writes that it must be seen with; null: it is seen alone.
    pub with: Off,
    /// All keys of the group that it is a member of; `None`: it was written alone.
    pub group: Option<Arc<Vec<KeyRef>>>,
    /// Published by another session, which overtook it; its own has yet to notice.
    pub seen: bool,
}

impl PendingWrite {
    /// The fence of what waits for no segment.
    pub(crate) const NO_FENCE: u64 = u64::MAX;
}

/// What a stripe's lock guards.
#[derive(Debug, Default)]
pub(crate) struct StripeState {
    pub seq: u64,
    pub pending: Vec<PendingWrite>,
    /// Sessions that wait for a write to be drained or abandoned.
    waiting: u32,
}

impl StripeState {
    /// A listed write of `hash`'s key that a session other than `session` has yet to drain.
    fn foreign(&self, hash: u64, session: u32) -> Option<&PendingWrite> {
        let is_foreign =
            |p: &&PendingWrite| p.hash == hash && p.ticket.is_none() && p.session != session;
        self.pending.iter().find(is_foreign)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stripe {
    inner: Mutex<StripeState>,
    /// Rung when a write is drained or leaves the list, if a session waits for that.
    changed: Condvar,
    /// Length of the list, for those who only want to know whether to look.
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
            guard: self.inner.lock().expect("no holder panics"),
            stripe: self,
        }
    }

    /// The stripe locked, if nobody else has it.
    pub(crate) fn try_lock(&self) -> Option<LockedStripe<'_>> {
        Some(LockedStripe {
            guard: self.inner.try_lock().ok()?,
            stripe: self,
        })
    }

    /// Waits, `limit` at most, until no session but `session` has yet to drain a write of `hash`'s key. Returns whether
    /// that is so.
    pub(crate) fn wait_for_others(&self, hash: u64, session: u32, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut inner = self.inner.lock().expect("no holder panics");
        while inner.foreign(hash, session).is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inner.waiting += 1;
            let woken = self.changed.wait_timeout(inner, left);
            inner = woken.expect("no holder panics").0;
            inner.waiting -= 1;
        }
        true
    }

    /// Whether nothing is on its way.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.listed.load(Ordering::Acquire) == 0
    }
}

impl LockedStripe<'_> {
    /// The next sequence number.
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.guard.seq += 1;
        self.guard.seq
    }

    /// The last sequence number.
    pub(crate) fn seq(&self) -> u64 {
        self.guard.seq
    }

    /// Goes on from `seq` at least.
    pub(crate) fn raise_seq(&mut self, seq: u64) {
        self.guard.seq = self.guard.seq.max(seq);
    }

    pub(crate) fn list(&mut self, pending: PendingWrite) {
        self.guard.pending.push(pending);
        self.count();
    }

    /// Tells readers how long the list is.
    fn count(&self) {
        let listed = self.guard.pending.len() as u32;
        self.stripe.listed.store(listed, Ordering::Release);
    }

    /// W5
    fn wake(&self) {
        if self.guard.waiting > 0 {
            self.stripe.changed.notify_all();
        }
    }

    /// A listed write of `hash`'s key that a session other than `session` has yet to drain.
    pub(crate) fn foreign(&self, hash: u64, session: u32) -> Option<&PendingWrite> {
        self.guard.foreign(hash, session)
    }

    /// Notes that the write `seq` has been drained under `ticket`.
    pub(crate) fn drained(&mut self, seq: u64, ticket: Ticket) {
        if let Some(pending) = self.listed(seq) {
            pending.ticket = Some(ticket);
            self.wake();
        }
    }

    /// Takes the write `seq` off the list; false if it was not there any more.
    pub(crate) fn unlist(&mut self, seq: u64) -> bool {
        let Some(found) = self.guard.pending.iter().position(|p| p.seq == seq) else {
            return false;
        };
        self.guard.pending.swap_remove(found);
        self.count();
        self.wake();
        true
    }

    /// The lowest fence of the listed tombstones.
    pub(crate) fn lowest_fence(&self) -> u64 {
        let fences = self.guard.pending.iter().map(|p| p.reclaim_stamp);
        fences.min().unwrap_or(PendingWrite::NO_FENCE)
    }

    /// Forgets every listed write.
    pub(crate) fn unlist_all(&mut self) {
        self.guard.pending.clear();
        self.count();
        self.wake();
    }

    /// The listed writes that may be of `hash`'s key.
    pub(crate) fn of(&self, hash: u64) -> impl Iterator<Item = &PendingWrite> {
        self.guard.pending.iter().filter(move |p| p.hash == hash)
    }

    /// All listed writes.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PendingWrite> {
        self.guard.pending.iter()
    }

    /// What is listed as `seq`, to note what became of it.
    pub(crate) fn listed(&mut self, seq: u64) -> Option<&mut PendingWrite> {
        self.guard.pending.iter_mut().find(|p| p.seq == seq)
    }
}
