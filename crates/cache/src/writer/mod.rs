//! A session's batch: staged writes that are not answered yet, one per key.
//!
//! A hot key may be written many times in a batch. No client has seen any of these writes before the batch is
//! committed, so only the last one needs far memory: the others are merged in DRAM. The whole batch is written at
//! once, with one drain and one acquisition of the lock, however many keys it has.
//!
//! ```text
//!   put, update, delete ── lock the key ── look it up ─▶ entry: key, newest value, its slot, the old item
//!          │ again, before the commit ──────────────────▶ the same entry, another value
//!   commit ─┴─ write items, mark old ones dead ─ drain ─ lock: publish all ─ release the key locks
//!                                               (a)                       (b)
//! ```
//!
//! `batch` has the staged writes as data. This module locks their keys, writes them and reads them.
//!
//! # Invariants
//! MDB-BATCH-1  The key lock of every entry is held, by the batch or by the group that fills it ([`ClaimHolder`]). So its old
//!     item neither changes nor moves.
//! MDB-BATCH-2  A session never waits for a key lock or for a free slot while its batch holds key locks: it writes the batch
//!     first.
//! MDB-BATCH-3  The slot of an entry has the class that its newest value needs, and belongs to this batch alone.
//! MDB-BATCH-4  After a batch that could not be written, every later commit of its session fails, too: an operation may have tried to
//!     write the batch, and its error answers that operation only.
//!
//! A crash between (a) and (b) leaves for each key the old item, the new one or none, as for a single write. The
//! answers are sent after (b).

mod batch;

use farbank_pm::sync::Arc;
use farbank_pm::{Medium, PersistCounters, fault, situation};
use farbank_store::{BeforeValue as Frame, ConflictPolicy, Error, ItemKey, ReadView, ValueMeta};

use self::batch::{BatchEntry, NewestItem, SessionBatch};
use crate::counters::StoredCounts;
use crate::engine::Engine;
use crate::item::{ChangeDecision, FoundItem, FoundValue, NewItem, check_database};
use crate::key_locks::KeyLocks;
use crate::layout::{EXPIRES_MAX, ITEM_HEAD_BYTES, ItemHeader, KEY_BYTES_MAX};
use crate::metadata::SlotId;
use crate::worker::CacheWorker;

/// Owner of the lock of a key that is being written, which releases it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClaimHolder {
    /// This write. The batch takes the lock over when the write becomes an entry.
    Own,
    /// An entry of the batch, which may have another key in the same stripe.
    Batch,
    /// A group, which holds the lock longer than the batch.
    Group,
}

/// A key that is being written.
struct EntryKey {
    hash: u64,
    hold: ClaimHolder,
    /// Its entry in the batch, if it has one.
    entry: Option<usize>,
    /// Its item, dead or live, if it has no entry.
    old: Option<FoundItem>,
}

fn stripe_of(hash: u64) -> u32 {
    KeyLocks::stripe((hash >> 32) as u32)
}

/// Writer of one session: its worker, and its batch.
pub(crate) struct BatchWriter<N: Medium, F: Medium> {
    worker: CacheWorker<N, F>,
    batch: SessionBatch,
    /// The error with which the writes of an earlier batch were lost (MDB-BATCH-4).
    lost: Option<Error>,
    conflicts: ConflictPolicy,
    /// Items stored that are not yet in the cache's totals.
    stored: StoredCounts,
    /// Operations on the data medium that were already added to the cache's totals.
    counted: PersistCounters,
    /// Buffer for the values of items that are changed.
    scratch: Vec<u8>,
}

impl<N: Medium, F: Medium> BatchWriter<N, F> {
    pub(crate) fn new(worker: CacheWorker<N, F>) -> BatchWriter<N, F> {
        BatchWriter {
            worker,
            batch: SessionBatch::default(),
            lost: None,
            conflicts: ConflictPolicy::default(),
            stored: StoredCounts::default(),
            counted: PersistCounters::default(),
            scratch: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine<N, F>> {
        self.worker.engine()
    }

    #[inline]
    pub(crate) fn worker(&mut self) -> &mut CacheWorker<N, F> {
        &mut self.worker
    }

    pub(crate) fn conflicts(&self) -> ConflictPolicy {
        self.conflicts
    }

    pub(crate) fn set_conflicts(&mut self, conflicts: ConflictPolicy) {
        self.conflicts = conflicts;
    }

    /// Returns whether anything is staged.
    pub(crate) fn has_staged(&self) -> bool {
        self.batch.holds_any()
    }

    /// Returns an error if the database does not exist, or in a forked child.
    #[inline]
    pub(crate) fn admit(&self, db: u8) -> Result<(), Error> {
        self.engine().check_process()?;
        check_database(db)
    }

    // -- reading

    /// Reads `name` as [`Ops::get`](farbank_store::Ops::get) does.
    #[inline]
    pub(crate) fn get(
        &mut self,
        name: &ItemKey<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: Frame<'_>,
    ) -> Result<bool, Error> {
        let hash = self.engine().hash(name);
        if let Some(entry) = self.batch.find(hash, name) {
            if view == ReadView::Pending {
                return Ok(self.copy_staged(entry, out, head));
            }
            self.write_batch()?;
        }
        self.worker.pin();
        let found = self
            .worker
            .find_live(hash, name)
            .filter(FoundItem::is_shown);
        let from = out.len();
        let copied = found.as_ref().is_some_and(|found| {
            !head(&found.meta(), out) || self.worker.copy_value(found, name, out)
        });
        self.worker.unpin();
        match found {
            Some(found) if copied => self.worker.used(&found, hash),
            _ => out.truncate(from),
        }
        Ok(copied)
    }

    /// Returns the metadata of `name`, if ordinary reads show it.
    pub(crate) fn meta(&mut self, name: &ItemKey<'_>) -> Result<Option<ValueMeta>, Error> {
        let hash = self.engine().hash(name);
        self.write_if_staged(hash, name)?;
        self.worker.pin();
        let shown = self
            .worker
            .find_live(hash, name)
            .filter(FoundItem::is_shown);
        let meta = shown.map(|found| found.meta());
        self.worker.unpin();
        Ok(meta)
    }

    // -- changing

    /// Stages `draft` as the new value of `name`, unless the present item is locked. Returns the version it will
    /// have.
    pub(crate) fn put(&mut self, name: &ItemKey<'_>, draft: &NewItem<'_>) -> Result<u64, Error> {
        let hash = self.engine().hash(name);
        let class = self.class_for(name, draft)?;
        // Take the slot before the key lock, so that no key lock is held while the session waits for a slot.
        let slot = match self.worker.take_slot_without_eviction(class, name.area) {
            Some(slot) => slot,
            None => {
                self.write_batch()?;
                self.worker.take_slot(class, name.area)?
            }
        };
        let entered = self.lock_and_look_up(hash, name).and_then(|place| {
            if self.is_locked(&place) {
                self.release_key_lock(&place);
                return Err(Error::Locked);
            }
            Ok(place)
        });
        match entered {
            Ok(place) => Ok(self.stage(&place, name, Some((slot, class, draft)))),
            Err(error) => {
                self.worker.keep_slot(class, slot);
                Err(error)
            }
        }
    }

    /// Reads `name`, calls `decide` once and stages the write it returns. The key lock keeps other writers out
    /// meanwhile. `decide` gets the item with its value, if it is live. Returns the version that the item will have
    /// (0: absent).
    pub(crate) fn change(
        &mut self,
        name: &ItemKey<'_>,
        decide: &mut dyn FnMut(Option<FoundValue<'_>>) -> Result<ChangeDecision, Error>,
    ) -> Result<u64, Error> {
        self.check_key(name)?;
        let mut place = self.lock_and_look_up(self.engine().hash(name), name)?;
        let mut value = std::mem::take(&mut self.scratch);
        value.clear();
        let shown = self.copy_current_value(&place, name, &mut value);
        let claim = (place.hold == ClaimHolder::Own).then(|| stripe_of(place.hash));
        let engine = Arc::clone(self.engine());
        let held = engine.key_locks().release_on_panic(claim);
        let decision = decide(shown.as_ref().map(|found| (found, &value[..])));
        held.disarm();
        self.scratch = value;
        let version = shown.map_or(0, |found| found.head.version);
        let done = match decision {
            Ok(ChangeDecision::Put(draft)) => self.stage_put(&mut place, name, &draft.borrow()),
            Ok(ChangeDecision::Delete) => {
                situation!("mdb.update_deletes", shown.is_some());
                return Ok(self.stage(&place, name, None));
            }
            Ok(ChangeDecision::Keep) => {
                situation!("mdb.update_keeps");
                self.release_key_lock(&place);
                return Ok(version);
            }
            Err(error) => Err(error),
        };
        done.inspect_err(|_| self.release_key_lock(&place))
    }

    /// Stages a write of `name`, whose key lock the caller holds: a value, or `None` for a delete.
    pub(crate) fn stage_of_group(
        &mut self,
        name: &ItemKey<'_>,
        draft: Option<&NewItem<'_>>,
    ) -> Result<(), Error> {
        if self.batch.is_full() {
            self.write_batch()?;
        }
        let mut place = self.look(self.engine().hash(name), name, ClaimHolder::Group);
        match draft {
            Some(draft) => self.stage_put(&mut place, name, draft).map(|_| ()),
            None => {
                self.stage(&place, name, None);
                Ok(())
            }
        }
    }

    /// Writes the batch. On `Ok` all its writes are durable and visible.
    #[inline]
    pub(crate) fn write_batch(&mut self) -> Result<(), Error> {
        match self.batch.holds_any() {
            true => self.write_batch_keeping_lock(None),
            false => Ok(()),
        }
    }

    /// Writes the batch, and adds what the session has counted to the cache's totals.
    pub(crate) fn commit(&mut self) -> Result<(), Error> {
        self.write_batch()?;
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.worker.update_lru_lists();
        let now = self.worker.persist_counters();
        if now != self.counted {
            let stored = std::mem::take(&mut self.stored);
            let counters = self.worker.engine().counters();
            counters.add_session(stored, &now, &self.counted);
            self.counted = now;
        }
        Ok(())
    }

    /// Writes the batch if it has a write of `name`, so that a read of the published items finds it.
    #[inline]
    pub(crate) fn write_if_staged(&mut self, hash: u64, name: &ItemKey<'_>) -> Result<(), Error> {
        match self.batch.find(hash, name) {
            Some(_) => self.write_batch(),
            None => Ok(()),
        }
    }

    /// Appends the staged value of an entry to `out`, after `head`. Returns false if the entry is a delete or its
    /// item is hidden or not live.
    pub(crate) fn copy_staged(&self, entry: usize, out: &mut Vec<u8>, head: Frame<'_>) -> bool {
        let shown = self.staged(entry).filter(|(found, _)| found.is_shown());
        if let Some((found, value)) = &shown
            && head(&found.meta(), out)
        {
            out.extend_from_slice(value);
        }
        shown.is_some()
    }

    // -- key locks

    /// Acquires the key lock of `name` and looks the key up.
    fn lock_and_look_up(&mut self, hash: u64, name: &ItemKey<'_>) -> Result<EntryKey, Error> {
        self.engine().check_process()?;
        if self.batch.is_full() {
            self.write_batch()?;
        }
        let engine = Arc::clone(self.engine());
        let stripe = stripe_of(hash);
        if engine.key_locks().try_lock(stripe) {
            return Ok(self.look(hash, name, ClaimHolder::Own));
        }
        if self.batch.claims(stripe) {
            return Ok(self.look(hash, name, ClaimHolder::Batch));
        }
        if self.batch.holds_any() {
            match self.conflicts {
                ConflictPolicy::Refuse => return Err(Error::Conflict),
                ConflictPolicy::Commit => self.write_batch()?, // MDB-BATCH-2
            }
        }
        engine.key_locks().lock(stripe, self.conflicts)?;
        Ok(self.look(hash, name, ClaimHolder::Own))
    }

    fn look(&mut self, hash: u64, name: &ItemKey<'_>, hold: ClaimHolder) -> EntryKey {
        let entry = match hold {
            ClaimHolder::Own => None,
            ClaimHolder::Batch | ClaimHolder::Group => self.batch.find(hash, name),
        };
        let old = entry.is_none().then(|| {
            self.worker.pin();
            let found = self.engine().find(hash, name);
            self.worker.unpin();
            found
        });
        EntryKey {
            hash,
            hold,
            entry,
            old: old.flatten(),
        }
    }

    /// Releases the key lock of `place`, for which nothing was staged.
    fn release_key_lock(&self, place: &EntryKey) {
        if place.hold == ClaimHolder::Own {
            self.engine().key_locks().release(stripe_of(place.hash));
        }
    }

    fn is_locked(&self, place: &EntryKey) -> bool {
        let found = match place.entry {
            Some(at) => self.staged(at).map(|(found, _)| found),
            None => place.old.filter(|found| self.engine().is_live(found)),
        };
        found.is_some_and(|found| found.check_unlocked().is_err())
    }

    /// Returns the item that a read of `place` would find, and appends its value to `value`.
    fn copy_current_value(
        &self,
        place: &EntryKey,
        name: &ItemKey<'_>,
        value: &mut Vec<u8>,
    ) -> Option<FoundItem> {
        let Some(at) = place.entry else {
            let living = place.old.filter(|found| self.engine().is_live(found));
            return living.filter(|found| self.worker.copy_value(found, name, value));
        };
        let (found, staged) = self.staged(at)?;
        value.extend_from_slice(staged);
        Some(found)
    }

    /// Returns the staged item of an entry and its value, if it is not a delete and is live.
    fn staged(&self, entry: usize) -> Option<(FoundItem, &[u8])> {
        let new = self.batch.entry(entry).new.as_ref()?;
        let found = FoundItem {
            slot: new.slot,
            at: self.engine().place_of(new.slot)?,
            head: new.head,
        };
        self.engine()
            .is_live(&found)
            .then(|| (found, self.batch.value_of(new)))
    }

    // -- staging

    fn stage_put(
        &mut self,
        place: &mut EntryKey,
        name: &ItemKey<'_>,
        draft: &NewItem<'_>,
    ) -> Result<u64, Error> {
        let class = self.class_for(name, draft)?;
        let slot = match self.worker.take_slot_without_eviction(class, name.area) {
            Some(slot) => slot,
            None => {
                situation!("mdb.batch_written_for_room", self.batch.holds_any());
                // MDB-BATCH-2, except for this key's lock: eviction and merging skip a key whose lock is held.
                let stripe = stripe_of(place.hash);
                let written = self.write_batch_keeping_lock(Some(stripe));
                let hold = match place.hold {
                    ClaimHolder::Group => ClaimHolder::Group,
                    ClaimHolder::Own | ClaimHolder::Batch => ClaimHolder::Own,
                };
                *place = self.look(place.hash, name, hold);
                written?;
                self.worker.take_slot(class, name.area)?
            }
        };
        Ok(self.stage(place, name, Some((slot, class, draft))))
    }

    /// Stages the newest write of `name`: a value with its slot, or `None` for a delete. Returns the version it will
    /// have.
    fn stage(
        &mut self,
        place: &EntryKey,
        name: &ItemKey<'_>,
        new: Option<(SlotId, u8, &NewItem<'_>)>,
    ) -> u64 {
        if place.entry.is_none() && place.old.is_none() && new.is_none() {
            self.release_key_lock(place);
            return 0;
        }
        let new = new.map(|(slot, class, draft)| NewestItem {
            slot,
            class,
            head: self.head_of(name, draft),
            value_at: self.batch.keep(draft.value),
        });
        let version = new.map_or(0, |new| new.head.version);
        match place.entry {
            Some(at) => {
                let before = self.batch.replace(at, new);
                situation!("mdb.replaced_in_batch", before.is_some() && new.is_some());
                situation!("mdb.deleted_in_batch", before.is_some() && new.is_none());
                self.stored.merged_writes += 1;
                if let Some(before) = before {
                    self.worker.keep_slot(before.class, before.slot);
                }
            }
            None => {
                let entry = BatchEntry {
                    area: name.area,
                    prefix_bytes: name.prefix_bytes,
                    key_at: self.batch.keep(name.key),
                    key_bytes: name.key.len(),
                    claim: (place.hold == ClaimHolder::Own).then(|| stripe_of(place.hash)),
                    old: place.old,
                    new,
                };
                self.batch.push(place.hash, entry);
            }
        }
        version
    }

    /// Returns the header of a new item, without its checksum.
    fn head_of(&self, name: &ItemKey<'_>, draft: &NewItem<'_>) -> ItemHeader {
        let engine = self.engine();
        ItemHeader {
            area: name.area,
            key_len: name.key.len() as u16,
            version: engine.next_version(),
            expires_ms: draft.expires_ms.min(EXPIRES_MAX),
            kind: draft.kind,
            marks: draft.marks,
            flags: draft.flags,
            value_len: draft.value.len() as u32,
            written_s: (engine.now_ms() / 1000) as u32,
            prefix_len: name.prefix_bytes,
            crc: 0,
        }
    }

    pub(crate) fn check_key(&self, name: &ItemKey<'_>) -> Result<(), Error> {
        self.engine().areas().check(name.area)?;
        match name.key.len() {
            0..=KEY_BYTES_MAX => Ok(()),
            bytes => Err(Error::KeyTooLong {
                bytes,
                bytes_max: KEY_BYTES_MAX,
            }),
        }
    }

    fn class_for(&self, name: &ItemKey<'_>, draft: &NewItem<'_>) -> Result<u8, Error> {
        self.check_key(name)?;
        let bytes = ITEM_HEAD_BYTES + name.key.len() + draft.value.len();
        let classes = self.engine().data().classes();
        classes.of(bytes).ok_or(Error::ItemTooLarge {
            bytes,
            bytes_max: classes.largest() as usize,
        })
    }

    // -- writing

    /// Discards the batch. None of its writes becomes visible.
    pub(crate) fn abandon(&mut self) {
        let engine = Arc::clone(self.engine());
        for (_, entry) in self.batch.entries() {
            if let Some(new) = entry.new {
                self.worker.keep_slot(new.class, new.slot);
            }
            if let Some(stripe) = entry.claim {
                engine.key_locks().release(stripe);
            }
        }
        self.batch.clear();
    }

    /// Writes the batch, and releases all its key locks except that of stripe `kept`.
    #[inline(never)]
    fn write_batch_keeping_lock(&mut self, kept: Option<u32>) -> Result<(), Error> {
        self.engine().check_process()?;
        let batch = std::mem::take(&mut self.batch);
        let written = self.write_items(&batch);
        if written.is_ok() {
            self.publish_all(&batch);
        }
        for (_, entry) in batch.entries() {
            match (&written, entry.old, entry.new) {
                (Ok(()), Some(old), _) => {
                    if !self.engine().is_live(&old) {
                        self.engine().counters().add_reclaimed(1);
                    }
                    self.worker.retire_slot(old.slot);
                }
                (Err(_), _, Some(new)) => self.worker.keep_slot(new.class, new.slot),
                _ => {}
            }
            if let Some(stripe) = entry.claim.filter(|&stripe| Some(stripe) != kept) {
                self.engine().key_locks().release(stripe);
            }
        }
        self.batch = batch;
        self.batch.clear();
        self.worker.reclaim_retired_if_many();
        if let Err(error) = &written {
            self.lost = Some(error.clone());
        }
        written
    }

    /// Writes the new items and marks the old ones dead. Both are durable on `Ok`.
    fn write_items(&mut self, batch: &SessionBatch) -> Result<(), Error> {
        let mut puts = 0;
        for (_, entry) in batch.entries() {
            if let Some(new) = &entry.new {
                let (name, value) = (batch.name_of(entry), batch.value_of(new));
                self.worker.write_item(new.slot, &new.head, name.key, value);
                self.stored.bytes += new.head.bytes() as u64;
                puts += 1;
            }
            let kept = entry.new.is_some() && fault!("mdb.old_not_marked");
            if let Some(old) = entry.old.filter(|_| !kept) {
                self.worker.mark_dead(old.at);
            }
        }
        let undrained = match puts {
            0 => fault!("mdb.delete_undrained"),
            _ => fault!("mdb.published_undrained"),
        };
        if undrained {
            return Ok(());
        }
        self.worker.drain()
    }

    fn publish_all(&mut self, batch: &SessionBatch) {
        let engine = self.engine();
        let mut locked = engine.lock();
        for (hash, entry) in batch.entries() {
            let old = entry.old.map(|old| old.slot);
            match (&entry.new, old) {
                (Some(new), old) => {
                    let link = engine.link_of(hash, &new.head);
                    locked.publish(new.slot, new.class, link, old);
                }
                (None, Some(old)) => locked.unlink(old),
                (None, None) => {}
            }
        }
    }
}

impl<N: Medium, F: Medium> Drop for BatchWriter<N, F> {
    fn drop(&mut self) {
        if !self.engine().is_own_process() {
            return; // A forked child: this state belongs to its parent.
        }
        self.abandon();
    }
}
