//! The mapping of the databases' numbers, and the hold on writes while it changes.
//!
//! ```text
//!   hold ── earlier writes of all sessions are published ── word durable ── all stripes locked: swap ── release
//!     └───────────── other sessions stage no write; reads go on ─────────────────────────────────────┘
//! ```
//!
//! Keys in records, in the index, in the lists of pending writes and in groups have *stored* numbers. Sessions translate at
//! their interface, and scans, samples, backups and figures translate back.
//!
//! # Invariants
//! KV-SWAP-1  The mapping changes while all stripes are locked and no write is pending. So each write is published under the
//!     mapping under which it was staged: no reader finds it first in one database and then in another.
//! KV-SWAP-2  A write is numbered, and a group begins, only if under the stripes' locks writes are not held and the mapping is
//!     the one with which its keys were translated. Otherwise the session waits and translates again.
//! KV-SWAP-3  A read uses what it has found only if the mapping is still the one with which it translated its keys.
//! KV-SWAP-4  The superblock has the new mapping, durably, before any session sees it, and all writes from before the swap are
//!     durable before the superblock has it.
//! KV-SWAP-5  A session that waits for the end of a swap has no pending write. So the swap waits for drains, for the writes of
//!     sessions that are about to commit, and for nothing that waits for the swap.
//!
//! # Crash argument
//! | crash between                     | recovery sees         | and shows                                             |
//! |-----------------------------------|-----------------------|-------------------------------------------------------|
//! | hold, word durable                | the old or new word   | all writes from before, under either mapping          |
//! | word durable, swap                | the new word          | the new mapping; no session has seen it, none has written |
//! | swap, reply                       | the new word          | the new mapping, and later writes or not              |
//!
//! An update of the superblock is atomic, and its feature bit changes with the word.

use std::time::Duration;

use farbank_pm::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence};
use farbank_pm::sync::{Condvar, Mutex, MutexGuard, unpoisoned};
use farbank_store::{DatabaseMap, SharedDatabaseMap};

use crate::cleaner::requests::CleanerRequests;

/// The mapping, and the hold.
#[derive(Debug, Default)]
pub(crate) struct Databases {
    pub map: SharedDatabaseMap,
    /// Whether writes are held. It is set without a lock, and each write reads it under its stripe's lock.
    is_held: AtomicBool,
    /// Guards the end of a hold.
    gate: Mutex<()>,
    released: Condvar,
    /// Held by the session that swaps.
    swapping: Mutex<()>,
}

impl Databases {
    pub(crate) fn new(map: DatabaseMap) -> Databases {
        Databases {
            map: SharedDatabaseMap::new(map),
            ..Databases::default()
        }
    }

    /// Waits until no other session swaps databases, and excludes others.
    pub(crate) fn lock_swap(&self) -> MutexGuard<'_, ()> {
        unpoisoned(self.swapping.lock())
    }

    /// Holds writes until the returned guard is dropped. `requests`: wakes the sessions that wait without blocking.
    pub(crate) fn hold<'a>(&'a self, requests: &'a CleanerRequests) -> WriteHold<'a> {
        self.is_held.store(true, Relaxed);
        WriteHold {
            databases: self,
            requests,
        }
    }

    /// Returns whether writes are held.
    #[inline(always)]
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Relaxed)
    }

    /// Returns whether writes are held. If they are, the wakers of `requests` are called at the end of the hold.
    #[inline]
    pub(crate) fn will_release(&self, requests: &CleanerRequests) -> bool {
        if !self.is_held() {
            return false;
        }
        requests.want_wake();
        fence(SeqCst); // Either the end of the hold finds the request, or this finds the end of the hold.
        self.is_held()
    }

    /// Waits until writes are not held, for `most` at most. Returns whether they are not.
    pub(crate) fn wait(&self, most: Duration) -> bool {
        let gate = unpoisoned(self.gate.lock());
        if self.is_held() {
            drop(unpoisoned(self.released.wait_timeout(gate, most)));
        }
        !self.is_held()
    }
}

/// Scope in which writes are held.
pub(crate) struct WriteHold<'a> {
    databases: &'a Databases,
    requests: &'a CleanerRequests,
}

impl Drop for WriteHold<'_> {
    fn drop(&mut self) {
        let gate = unpoisoned(self.databases.gate.lock());
        self.databases.is_held.store(false, Relaxed);
        drop(gate);
        fence(SeqCst);
        self.databases.released.notify_all();
        self.requests.wake_waiters();
    }
}
