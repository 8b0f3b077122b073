//! What writers do while a backup of one moment is being read.
//!
//! ```text
//!   sequence numbers of a stripe   ... 41 42 43 │ 44 45 ...        the moment: all stripes are locked at once, and
//!                                               │                  later numbers of every stripe are higher
//!                                            moment
//!
//!   keys in hash order   ┌───────────────┬──────────────────────────────┐
//!                        │ scanned       │ not scanned                  │   a later write that replaces an older
//!                        └───────────────┴──────────────────────────────┘   record hands its offset to the backup
//!                                     position
//! ```
//!
//! The backup contains, for each key, the newest write that was numbered before the moment, if it was not abandoned. A
//! write is numbered under the lock of its stripe, and a group under the locks of all its stripes. So all stripes locked
//! at once separate earlier from later writes.
//!
//! A record never changes in place, so a writer hands over an offset and copies nothing. The segment of a replaced record
//! is not recycled while the backup is pinned (`crate::backup`).
//!
//! # Invariants
//! KV-BACKUP-1  A write numbered before the moment has a number up to [`BackupState::moment`], a later one a higher
//!     number. Members of a group are all before or all after it.
//! KV-BACKUP-2  A key is scanned under its stripe's lock, and is behind the position from then on. The position moves past a
//!     key only under that lock.
//! KV-BACKUP-3  A publication after the moment that removes the newest record before the moment, from the index or from the
//!     list of pending writes, hands over its offset under the same lock, unless the key is behind the position.
//! KV-BACKUP-4  A staged write from before the moment is not superseded within its batch by a later one: the session commits
//!     first. Otherwise the earlier write would never be drained or published, and the backup would lose it.
//! KV-BACKUP-5  Without a backup, a write pays one relaxed load. The flag changes while all stripes are locked.

use farbank_pm::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use farbank_pm::sync::{Mutex, unpoisoned};
use farbank_pm::{Medium, Off};
use farbank_store::{BackupError, Key};

use crate::engine::Engine;
use crate::pending::planned::PlannedRecord;
use crate::pending::stripe::{LockedStripe, PendingWrite};
use crate::segments::records::FoundRecord;

/// Most offsets that wait for the backup, 32 MiB of memory.
const HANDED_MAX: usize = 4 << 20;

const GOING: u8 = 0;
const FLUSHED: u8 = 1;
const OVERRUN: u8 = 2;

/// The state of a backup that writers see.
#[derive(Debug, Default)]
pub(crate) struct BackupState {
    /// Whether a backup exists.
    is_taken: AtomicBool,
    /// Whether writers must hand over what they replace.
    is_active: AtomicBool,
    /// Highest sequence number before the moment.
    moment: AtomicU64,
    /// Bit-reversed hash of the first key that the scan has not passed.
    position: AtomicU64,
    /// Why the backup cannot be completed.
    failure: AtomicU8,
    handed: Mutex<Vec<Off>>,
}

impl BackupState {
    /// Claims the right to make a backup. Returns false if another backup has it.
    pub(crate) fn claim(&self) -> bool {
        !self.is_taken.swap(true, Acquire)
    }

    /// Begins to collect what writers replace. The caller holds the locks of all stripes, and has the claim.
    pub(crate) fn begin(&self, moment: u64) {
        self.moment.store(moment, Relaxed);
        self.position.store(0, Relaxed);
        self.failure.store(GOING, Relaxed);
        unpoisoned(self.handed.lock()).clear();
        self.is_active.store(true, Relaxed);
    }

    /// Ends the backup, complete or not.
    pub(crate) fn end(&self) {
        self.is_active.store(false, Relaxed);
        *unpoisoned(self.handed.lock()) = Vec::new();
        self.is_taken.store(false, Release);
    }

    /// Returns whether a backup exists.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Relaxed)
    }

    /// Returns whether writers must hand over what they replace.
    #[inline(always)]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    /// Returns the highest sequence number before the moment.
    pub(crate) fn moment(&self) -> u64 {
        self.moment.load(Relaxed)
    }

    /// Moves the position, after the keys before it were scanned. `None`: all were. The caller holds the lock of these
    /// keys' stripe.
    pub(crate) fn set_position(&self, position: Option<u64>) {
        self.position.store(position.unwrap_or(u64::MAX), Relaxed);
    }

    /// Fails the backup, because FLUSHALL removes the keys. The caller holds the locks of all stripes.
    pub(crate) fn note_flush(&self) {
        if self.is_active() {
            self.failure.store(FLUSHED, Relaxed);
            self.is_active.store(false, Relaxed);
        }
    }

    /// Returns why the backup cannot be completed.
    pub(crate) fn failure(&self) -> Option<BackupError> {
        match self.failure.load(Relaxed) {
            FLUSHED => Some(BackupError::Flushed),
            OVERRUN => Some(BackupError::Overrun),
            _ => None,
        }
    }

    /// Takes the offsets that were handed over.
    pub(crate) fn take_handed(&self) -> Vec<Off> {
        std::mem::take(&mut *unpoisoned(self.handed.lock()))
    }

    fn hand_over(&self, at: Off) {
        let mut handed = unpoisoned(self.handed.lock());
        if handed.len() < HANDED_MAX {
            return handed.push(at);
        }
        // Better no backup than writers that wait for it.
        *handed = Vec::new();
        self.failure.store(OVERRUN, Relaxed);
        self.is_active.store(false, Relaxed);
    }

    /// Returns whether a record with this number is in the backup and was not scanned yet. The caller holds the lock of
    /// the key's stripe.
    #[inline]
    pub(crate) fn needs(&self, hash: u64, seq: u64) -> bool {
        self.is_active()
            && seq <= self.moment.load(Relaxed)
            && hash.reverse_bits() >= self.position.load(Relaxed)
    }

    /// Hands over `old`, which a write without pending predecessors has replaced (KV-BACKUP-3). The caller holds the lock
    /// of the key's stripe.
    #[inline(always)]
    pub(crate) fn note_replaced(&self, hash: u64, old: Option<&FoundRecord>) {
        if self.is_active() {
            self.keep_replaced(hash, old);
        }
    }

    #[cold]
    fn keep_replaced(&self, hash: u64, old: Option<&FoundRecord>) {
        if let Some(old) = old
            // The number of a damaged record is not known. The backup counts it as damaged.
            && self.needs(hash, old.header.map_or(0, |header| header.seq()))
        {
            self.hand_over(old.at);
        }
    }
}

impl<M: Medium> Engine<M> {
    /// Hands over what the publication of `record`, a write of `key`, removes (KV-BACKUP-3): the newest pending write from
    /// before the moment, or else the replaced record. The caller holds the stripe's lock.
    #[inline(always)]
    pub(crate) fn keep_for_backup(
        &self,
        locked: &LockedStripe<'_>,
        record: &PlannedRecord,
        key: Key<'_>,
        old: Option<&FoundRecord>,
    ) {
        if self.backup.is_active() && record.seq > self.backup.moment() {
            self.keep_newest_before(locked, record, key, old);
        }
    }

    #[cold]
    fn keep_newest_before(
        &self,
        locked: &LockedStripe<'_>,
        record: &PlannedRecord,
        key: Key<'_>,
        old: Option<&FoundRecord>,
    ) {
        let is_overtaken = |p: &&PendingWrite| {
            p.seq <= self.backup.moment()
                && !p.is_published
                && p.drained.as_ref().is_some_and(|d| d.key() == key)
        };
        let overtaken = locked.of(record.hash).filter(is_overtaken);
        match overtaken.max_by_key(|p| p.seq) {
            Some(pending) if self.backup.needs(record.hash, pending.seq) => {
                self.backup.hand_over(pending.at);
            }
            Some(_) => {}
            None => self.backup.keep_replaced(record.hash, old),
        }
    }
}
