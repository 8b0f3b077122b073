//! A backup of one moment: reads every key as it was at that moment, while sessions write.
//!
//! ```text
//!   moment ── wait: earlier writes are published ── scan: group by group of the index ──────────▶ over
//!                └──────────── and all the while: read the records that writers hand over ───────┘
//! ```
//!
//! The backup reads a replaced record where it lies. `engine::backup` has what writers do, and KV-BACKUP-1 to 5.
//!
//! # Invariants
//! KV-BACKUP-6  From before the moment to the end, the backup is pinned by one of two slots. It pins one slot, takes the
//!     offsets that were handed over, reads their records, and only then unpins the other. So a record that was handed
//!     over is not recycled before it was read.
//! KV-BACKUP-7  The scan begins when no write from before the moment is pending. So the index, with what is handed over,
//!     holds every write of the backup.
//! KV-BACKUP-8  A step holds a stripe's lock only while it copies the offsets of one group of the index: a few hundred
//!     nanoseconds. The moment itself locks all stripes for some ten microseconds.
//!
//! # Crash argument
//! A backup writes nothing to the pool. The only change is that later sequence numbers are higher, as after FLUSHALL. The
//! file that a caller writes is incomplete until the caller has ended it.

use std::time::{Duration, Instant};

use farbank_pm::epoch::EpochSlot;
use farbank_pm::sync::{Arc, thread};
use farbank_pm::{Medium, Off};
use farbank_store::{Backup, BackupError, DATABASES, DatabaseMap, Error, Key, StoredItem};

use crate::engine::Engine;
use crate::format::record::RecordType;
use crate::segments::records::{FETCHED_VALUE, body_matches};
use crate::session::meta_of;

/// How long earlier writes may stay unpublished before the backup fails.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// How long a step sleeps while earlier writes are not published.
const NAP: Duration = Duration::from_micros(200);
/// Buffers that are longer are freed after use.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

/// Called with each key and value of a backup.
type EachItem<'a> = &'a mut dyn FnMut(Key<'_>, StoredItem<'_>);

/// A backup of an engine.
pub(crate) struct KvBackup<M: Medium> {
    engine: Arc<Engine<M>>,
    /// The slots of KV-BACKUP-6, and which of them is pinned.
    slots: [EpochSlot; 2],
    pinned: usize,
    keys: [u64; DATABASES],
    /// The mapping at the moment.
    map: DatabaseMap,
    /// Stripes that had pending writes at the moment.
    unsettled: Vec<usize>,
    began: Instant,
    /// Where the scan goes on; `None` at the end.
    position: Option<u64>,
    is_over: bool,
    damaged: u64,
    body: Vec<u8>,
    value: Vec<u8>,
}

impl<M: Medium> KvBackup<M> {
    /// Begins a backup of this moment.
    ///
    /// # Errors
    /// [`BackupError::Running`] if there is another one. [`Error::Poisoned`] if the medium has failed.
    pub(crate) fn begin(engine: Arc<Engine<M>>) -> Result<KvBackup<M>, Error> {
        engine.check_poison()?;
        if !engine.backup.claim() {
            return Err(Error::Backup(BackupError::Running));
        }
        let slots = [engine.epochs.slot(), engine.epochs.slot()];
        engine.epochs.pin(&slots[0]);
        let mut unsettled = Vec::new();
        let map = {
            let mut stripes = engine.pending.lock_all_briefly();
            let moment = stripes.iter().map(|stripe| stripe.seq()).max();
            let moment = moment.unwrap_or(0);
            for (number, stripe) in stripes.iter_mut().enumerate() {
                stripe.raise_seq(moment); // KV-BACKUP-1
                if stripe.has_pending_up_to(moment) {
                    unsettled.push(number);
                }
            }
            engine.backup.begin(moment);
            engine.databases.map.view().map
        };
        let keys = std::array::from_fn(|db| engine.keys_under(map, db as u8));
        Ok(KvBackup {
            engine,
            slots,
            pinned: 0,
            keys,
            map,
            unsettled,
            began: Instant::now(),
            position: Some(0),
            is_over: false,
            damaged: 0,
            body: Vec::new(),
            value: Vec::new(),
        })
    }

    /// Reads the records that were handed over, and renews the pin (KV-BACKUP-6).
    fn read_handed(&mut self, each: EachItem<'_>) {
        let fresh = 1 - self.pinned;
        self.engine.epochs.pin(&self.slots[fresh]);
        let handed = self.engine.backup.take_handed();
        self.read_records(&handed, each);
        self.slots[self.pinned].unpin();
        self.pinned = fresh;
    }

    /// Passes those of the records at `offsets` that are in the backup to `each`.
    fn read_records(&mut self, offsets: &[Off], each: EachItem<'_>) {
        for at in offsets {
            self.engine.medium().prefetch(*at, FETCHED_VALUE);
        }
        for at in offsets {
            if self.read_record(*at, each).is_none() {
                self.damaged += 1;
            }
        }
    }

    /// Passes the record at `at` to `each` if it is a value of the backup. Returns `None` if it is damaged.
    fn read_record(&mut self, at: Off, each: EachItem<'_>) -> Option<()> {
        let engine = &*self.engine;
        let header = engine.segments.header(at)?;
        if header.what != RecordType::Put
            || header.seq > engine.backup.moment()
            || engine.is_expired(header.expires_ms, header.seq)
        {
            return Some(());
        }
        self.body.clear();
        let from = at.plus(header.len() as u64);
        let len = engine.segments.body_len(&header);
        engine.medium().append_out(from, len, &mut self.body);
        let (key, rest) = self.body.split_at(header.key_len);
        if !body_matches(&header, key, rest) {
            return None;
        }
        let mut bytes = rest;
        if header.large {
            self.value.clear();
            let value = &mut self.value;
            if !engine.segments.read_extents(header.value_len, rest, value) {
                return None;
            }
            bytes = value;
        }
        let key = Key {
            db: self.map.shown(header.db),
            bytes: key,
        };
        let meta = meta_of(&header);
        each(key, StoredItem { bytes, meta });
        for buffer in [&mut self.body, &mut self.value] {
            if buffer.capacity() > BUFFER_BYTES_KEPT {
                *buffer = Vec::new();
            }
        }
        Some(())
    }

    /// Returns whether all writes from before the moment are published (KV-BACKUP-7).
    fn is_settled(&mut self) -> Result<bool, Error> {
        let engine = &*self.engine;
        let moment = engine.backup.moment();
        let is_pending = |number: &usize| {
            let stripe = engine.pending.numbered(*number);
            stripe.lock().has_pending_up_to(moment)
        };
        self.unsettled.retain(is_pending);
        if self.unsettled.is_empty() {
            return Ok(true);
        }
        engine.check_poison()?;
        match self.began.elapsed() > SETTLE_MAX {
            true => Err(Error::Backup(BackupError::Unsettled)),
            false => Ok(false),
        }
    }

    /// Scans about `count` keys.
    fn scan(&mut self, count: usize, each: EachItem<'_>) {
        let mut left = count;
        while left > 0
            && let Some(position) = self.position
        {
            let engine = Arc::clone(&self.engine);
            let offsets = {
                let _locked = engine.stripe(position.reverse_bits()).lock();
                let (offsets, next) = engine.index.entries_at(position);
                engine.backup.set_position(next); // KV-BACKUP-2
                self.position = next;
                offsets
            };
            left = left.saturating_sub(offsets.len().max(1));
            self.read_records(&offsets, each);
        }
    }
}

impl<M: Medium> Backup for KvBackup<M> {
    fn keys(&self) -> [u64; DATABASES] {
        self.keys
    }

    fn damaged(&self) -> u64 {
        self.damaged
    }

    fn step(&mut self, count: usize, each: EachItem<'_>) -> Result<bool, Error> {
        if self.is_over {
            return Ok(false);
        }
        self.engine.access().check_process()?;
        let is_settled = self.is_settled()?;
        if is_settled {
            self.scan(count, each);
        }
        let is_last = self.position.is_none();
        self.read_handed(each);
        // A failure that is noted later concerns only keys that were read already.
        if let Some(failure) = self.engine.backup.failure() {
            return Err(Error::Backup(failure));
        }
        if is_last {
            self.is_over = true;
        } else if !is_settled {
            thread::yield_now(); // For schedulers of tests, in which sleeping takes no time.
            thread::sleep(NAP);
        }
        Ok(!is_last)
    }
}

impl<M: Medium> Drop for KvBackup<M> {
    fn drop(&mut self) {
        self.engine.backup.end();
    }
}
