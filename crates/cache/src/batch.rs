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
//! # Invariants
//! MDB-BATCH-1  The key lock of every entry is held, by the batch or by the group that fills it ([`ClaimHolder`]). So its old
//!     item neither changes nor moves.
//! MDB-BATCH-2  A session never waits for a key lock or for a free slot while its batch holds key locks: it writes the batch
//!     first.
//! MDB-BATCH-3  The slot of an entry has the class that its newest value needs, and belongs to this batch alone.
//!
//! A crash between (a) and (b) leaves for each key the old item, the new one or none, as for a single write. The
//! answers are sent after (b).

use farbank_pm::sync::Arc;
use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, fault, situation};
use farbank_store::{BeforeValue as Frame, ConflictPolicy, Error, ItemKey, UpdateDecision, Value};

use crate::key_locks::KeyLocks;
use crate::layout::{EXPIRES_MAX, ITEM_HEAD_BYTES, ItemHeader, KEY_BYTES_MAX, LOCKED};
use crate::metadata::SlotId;
use crate::slot_cache::lock_cache;
use crate::worker::{CacheWorker, FoundItem, FoundValue};

/// Maximum number of keys in a batch, because other sessions wait for its key locks.
const ENTRIES_MAX: usize = 64;
/// Maximum bytes of keys and values in a batch, except that a single write may have more.
const BYTES_MAX: usize = 256 << 10;

/// A value to store, with its metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NewItem<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) expires_ms: u64,
    pub(crate) flags: u32,
    pub(crate) kind: u8,
    pub(crate) marks: u8,
}

/// Decision of the function passed to [`CacheWorker::change`].
pub(crate) enum ChangeDecision {
    Keep,
    Delete,
    Put(OwnedItem),
}

/// A [`NewItem`] that owns its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnedItem {
    pub(crate) value: Vec<u8>,
    pub(crate) expires_ms: u64,
    pub(crate) flags: u32,
    pub(crate) kind: u8,
    pub(crate) marks: u8,
}

impl From<Value<'_>> for OwnedItem {
    fn from(value: Value<'_>) -> OwnedItem {
        OwnedItem {
            value: value.bytes.to_vec(),
            expires_ms: value.expires_ms,
            flags: value.flags,
            kind: value.kind,
            marks: 0,
        }
    }
}

impl From<UpdateDecision> for ChangeDecision {
    fn from(change: UpdateDecision) -> ChangeDecision {
        match change {
            UpdateDecision::Keep => ChangeDecision::Keep,
            UpdateDecision::Delete => ChangeDecision::Delete,
            UpdateDecision::Put {
                bytes,
                expires_ms,
                flags,
                kind,
            } => ChangeDecision::Put(OwnedItem {
                value: bytes,
                expires_ms,
                flags,
                kind,
                marks: 0,
            }),
        }
    }
}

impl OwnedItem {
    pub(crate) fn borrow(&self) -> NewItem<'_> {
        NewItem {
            value: &self.value,
            expires_ms: self.expires_ms,
            flags: self.flags,
            kind: self.kind,
            marks: self.marks,
        }
    }
}

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

/// The newest value of an entry.
#[derive(Clone, Copy)]
struct NewestItem {
    slot: SlotId,
    class: u8,
    /// Header, without the checksum.
    head: ItemHeader,
    /// Offset of its value in the batch's bytes.
    value_at: usize,
}

/// A staged write of a key.
struct BatchEntry {
    area: u16,
    prefix_bytes: u16,
    key_at: usize,
    key_bytes: usize,
    /// Stripe whose lock the entry holds.
    claim: Option<u32>,
    old: Option<FoundItem>,
    /// New item. `None` means that the key is deleted.
    new: Option<NewestItem>,
}

/// The batch of a session.
#[derive(Default)]
pub(crate) struct SessionBatch {
    /// Hashes of the keys, in the order of the entries.
    hashes: Vec<u64>,
    entries: Vec<BatchEntry>,
    /// Keys and values, concatenated.
    bytes: Vec<u8>,
}

impl SessionBatch {
    /// Returns whether anything is staged.
    pub(crate) fn holds_any(&self) -> bool {
        !self.entries.is_empty()
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES_MAX || self.bytes.len() >= BYTES_MAX
    }

    fn name_of(&self, entry: &BatchEntry) -> ItemKey<'_> {
        ItemKey {
            area: entry.area,
            key: &self.bytes[entry.key_at..][..entry.key_bytes],
            prefix_bytes: entry.prefix_bytes,
        }
    }

    fn value_of(&self, new: &NewestItem) -> &[u8] {
        &self.bytes[new.value_at..][..new.head.value_len as usize]
    }

    /// Returns the entry of `name`, if any.
    #[inline]
    pub(crate) fn find(&self, hash: u64, name: &ItemKey<'_>) -> Option<usize> {
        let is_it =
            |at: &usize| self.hashes[*at] == hash && self.name_of(&self.entries[*at]) == *name;
        (0..self.hashes.len()).find(is_it)
    }

    /// Returns whether an entry holds the lock of `stripe`.
    fn claims(&self, stripe: u32) -> bool {
        let claims = |entry: &BatchEntry| entry.claim == Some(stripe);
        self.entries.iter().any(claims)
    }

    fn keep(&mut self, bytes: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn clear(&mut self) {
        self.hashes.clear();
        self.entries.clear();
        self.bytes.clear();
    }
}

fn stripe_of(hash: u64) -> u32 {
    KeyLocks::stripe((hash >> 32) as u32)
}

impl<N: Medium, F: Medium> CacheWorker<N, F> {
    /// Stages `draft` as the new value of `name`, unless the present item is locked. Returns the version it will
    /// have.
    pub(crate) fn put(&mut self, name: &ItemKey<'_>, draft: &NewItem<'_>) -> Result<u64, Error> {
        let hash = self.engine.hash(name);
        let class = self.class_for(name, draft)?;
        // Take the slot before the key lock, so that no key lock is held while the session waits for a slot.
        let slot = match self.take_slot_without_eviction(class, name.area) {
            Some(slot) => slot,
            None => {
                self.write_batch()?;
                self.take_slot(class, name.area)?
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
                lock_cache(&self.slot_cache).keep(class, &[slot]);
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
        let mut place = self.lock_and_look_up(self.engine.hash(name), name)?;
        let mut value = std::mem::take(&mut self.scratch);
        value.clear();
        let shown = self.copy_current_value(&place, name, &mut value);
        let claim = (place.hold == ClaimHolder::Own).then(|| stripe_of(place.hash));
        let held = self.engine.key_locks.release_on_panic(claim);
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
        let mut place = self.look(self.engine.hash(name), name, ClaimHolder::Group);
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
        match self.batch.entries.is_empty() {
            true => Ok(()),
            false => self.write_batch_keeping_lock(None),
        }
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
        self.engine.process.check()?;
        if self.batch.is_full() {
            self.write_batch()?;
        }
        let engine = Arc::clone(&self.engine);
        let stripe = stripe_of(hash);
        if engine.key_locks.try_lock(stripe) {
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
        engine.key_locks.lock(stripe, self.conflicts)?;
        Ok(self.look(hash, name, ClaimHolder::Own))
    }

    fn look(&mut self, hash: u64, name: &ItemKey<'_>, hold: ClaimHolder) -> EntryKey {
        let entry = match hold {
            ClaimHolder::Own => None,
            ClaimHolder::Batch | ClaimHolder::Group => self.batch.find(hash, name),
        };
        let old = entry.is_none().then(|| {
            self.pin();
            let found = self.engine.find(hash, name);
            self.unpin();
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
            self.engine.key_locks.release(stripe_of(place.hash));
        }
    }

    fn is_locked(&self, place: &EntryKey) -> bool {
        let found = match place.entry {
            Some(at) => self.staged(at).map(|(found, _)| found),
            None => place.old.filter(|found| self.is_live(found)),
        };
        found.is_some_and(|found| found.head.marks & LOCKED != 0)
    }

    /// Returns the item that a read of `place` would find, and appends its value to `value`.
    fn copy_current_value(
        &self,
        place: &EntryKey,
        name: &ItemKey<'_>,
        value: &mut Vec<u8>,
    ) -> Option<FoundItem> {
        let Some(at) = place.entry else {
            let living = place.old.filter(|found| self.is_live(found));
            return living.filter(|found| self.copy_value(found, name, value));
        };
        let (found, staged) = self.staged(at)?;
        value.extend_from_slice(staged);
        Some(found)
    }

    /// Returns the staged item of an entry and its value, if it is not a delete and is live.
    fn staged(&self, entry: usize) -> Option<(FoundItem, &[u8])> {
        let new = self.batch.entries[entry].new.as_ref()?;
        let found = FoundItem {
            slot: new.slot,
            at: self.engine.place_of(new.slot)?,
            head: new.head,
        };
        self.is_live(&found)
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
        let slot = match self.take_slot_without_eviction(class, name.area) {
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
                self.take_slot(class, name.area)?
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
                let before = std::mem::replace(&mut self.batch.entries[at].new, new);
                situation!("mdb.replaced_in_batch", before.is_some() && new.is_some());
                situation!("mdb.deleted_in_batch", before.is_some() && new.is_none());
                self.merged_writes += 1;
                if let Some(before) = before {
                    lock_cache(&self.slot_cache).keep(before.class, &[before.slot]);
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
                self.batch.hashes.push(place.hash);
                self.batch.entries.push(entry);
            }
        }
        version
    }

    /// Returns the header of a new item, without its checksum.
    fn head_of(&self, name: &ItemKey<'_>, draft: &NewItem<'_>) -> ItemHeader {
        let engine = &*self.engine;
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
        self.engine.areas.check(name.area)?;
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
        let classes = &self.engine.classes;
        classes.of(bytes).ok_or(Error::ItemTooLarge {
            bytes,
            bytes_max: classes.largest() as usize,
        })
    }

    // -- writing

    /// Discards the batch. None of its writes becomes visible.
    pub(crate) fn abandon(&mut self) {
        let engine = Arc::clone(&self.engine);
        for entry in &self.batch.entries {
            if let Some(new) = entry.new {
                lock_cache(&self.slot_cache).keep(new.class, &[new.slot]);
            }
            if let Some(stripe) = entry.claim {
                engine.key_locks.release(stripe);
            }
        }
        self.batch.clear();
    }

    /// Writes the batch, and releases all its key locks except that of stripe `kept`.
    #[inline(never)]
    fn write_batch_keeping_lock(&mut self, kept: Option<u32>) -> Result<(), Error> {
        self.engine.process.check()?;
        let batch = std::mem::take(&mut self.batch);
        let written = self.write_items(&batch);
        if written.is_ok() {
            self.publish_all(&batch);
        }
        for entry in &batch.entries {
            match (&written, entry.old, entry.new) {
                (Ok(()), Some(old), _) => {
                    if !self.is_live(&old) {
                        let reclaimed = &self.engine.tally.reclaimed;
                        reclaimed.fetch_add(1, Ordering::Relaxed);
                    }
                    self.retire_slot(old.slot);
                }
                (Err(_), _, Some(new)) => lock_cache(&self.slot_cache).keep(new.class, &[new.slot]),
                _ => {}
            }
            if let Some(stripe) = entry.claim.filter(|&stripe| Some(stripe) != kept) {
                self.engine.key_locks.release(stripe);
            }
        }
        self.batch = batch;
        self.batch.clear();
        self.reclaim_retired_if_many();
        written
    }

    /// Writes the new items and marks the old ones dead. Both are durable on `Ok`.
    fn write_items(&mut self, batch: &SessionBatch) -> Result<(), Error> {
        let mut puts = 0;
        for entry in &batch.entries {
            if let Some(new) = &entry.new {
                let (name, value) = (batch.name_of(entry), batch.value_of(new));
                self.write_item(new, &name, value);
                puts += 1;
            }
            let kept = entry.new.is_some() && fault!("mdb.old_not_marked");
            if let Some(old) = entry.old.filter(|_| !kept) {
                self.mark_dead(old.at);
            }
        }
        let undrained = match puts {
            0 => fault!("mdb.delete_undrained"),
            _ => fault!("mdb.published_undrained"),
        };
        if undrained {
            return Ok(());
        }
        self.drain()
    }

    fn write_item(&mut self, new: &NewestItem, name: &ItemKey<'_>, value: &[u8]) {
        let engine = &*self.engine;
        let at = engine.place_of(new.slot).expect("its page has a class");
        let seed = crate::layout::seed(engine.secret, at);
        let crc = new.head.crc_of(seed, name.key, value);
        let bytes = ItemHeader { crc, ..new.head }.to_bytes();
        engine
            .far()
            .copy_in(&mut self.ctx, at, &[&bytes, name.key, value]);
        self.stored_bytes += new.head.bytes() as u64;
    }

    fn publish_all(&mut self, batch: &SessionBatch) {
        let engine = &*self.engine;
        let mut locked = engine.lock();
        for (&hash, entry) in batch.hashes.iter().zip(&batch.entries) {
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
