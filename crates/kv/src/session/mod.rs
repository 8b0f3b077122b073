//! A session: one worker's operations and batches. `read` finds values, `publish` makes durable writes visible.
//!
//! ```text
//!   put ── locate ── lock stripe ── number, list ── unlock ── stage          (any number of times)
//!   commit ── copy in ── drain ──▶ ticket
//!   ticket durable ── lock stripe ── unlist, update the index ── unlock      (for each write)
//! ```
//!
//! # Invariants
//! KV-COMMIT-1  A write is published only when its ticket is durable: the index refers to durable records only.
//! KV-COMMIT-2  A session that meets another session's undrained write of its key (KV-PEND-3) waits for it only with nothing staged
//!     itself, and first releases every lock and its pin. So two sessions never wait for each other while either
//!     holds undrained data. See `wait`.
//! KV-COMMIT-3  A publication replaces exactly the entry that was found when the write was staged. If that entry has changed,
//!     the publishing thread locates the key again.
//! KV-COMMIT-4  Dropping a session unlists its staged writes. Only their extents have reached the medium; these are freed.
//!
//! # Crash argument
//! | crash between                 | recovery sees                      | and does                         |
//! |-------------------------------|------------------------------------|----------------------------------|
//! | staged, copied in             | nothing of the batch               | nothing                          |
//! | copied in, drained            | any subset of the batch, torn      | keeps whole records, pads others |
//! | drained, published            | the batch                          | keeps it; it may be acknowledged |

mod group;
mod large;
mod pace;
mod publish;
mod read;
mod room;
mod single_write;
mod wait;

use std::collections::VecDeque;

use farbank_pm::epoch::EpochSlot;
use farbank_pm::fault;
use farbank_pm::process_stamp::this_thread;
use farbank_pm::situation;
use farbank_pm::sync::Arc;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off, PersistCtx, Poisoned, Ticket};

use crate::engine::Engine;
use crate::engine::lookup::EntryLocation;
use crate::format::record::{RawHeader, RecordHeader, RecordType, body_crc};
use crate::pending::stripe::{LockedStripe, PendingWrite};
use crate::session::publish::list_drained;
use crate::session::read::{PrefetchState, PrefetchedValue, ValueSource};
use crate::session::room::RoomRequest;
use crate::session_log::SessionLog;
use crate::sessions::SessionShared;
use farbank_store::{
    BeforeValue, ConflictPolicy, DATABASES, Error, KEY_BYTES_MAX, Key, Ops, ReadView, StoredItem,
    UpdateDecision, VALUE_BYTES_MAX, Value, ValueMeta,
};

/// Number of reads after which the pin is renewed, so that a long batch does not delay reclamation.
const READS_PER_PIN: u32 = 256;

/// A staged write that is not published yet.
#[derive(Debug)]
pub(crate) struct StagedWrite {
    pub hash: u64,
    pub seq: u64,
    pub at: Off,
    pub len: u32,
    pub db: u8,
    pub what: RecordType,
    pub large: bool,
    pub expires_ms: u64,
    /// Index entry that the write replaces, as located when it was staged.
    pub located: EntryLocation,
    /// Whether a later write of the same batch supersedes it. It is then never published.
    pub superseded: bool,
    /// Whether it belongs to a group. Adjacent grouped writes are published together.
    pub grouped: bool,
}

/// State of a key's newest write, as seen by a session.
#[derive(Clone, Debug)]
pub(crate) enum NewestValue {
    /// A write of this session that is still in its buffers.
    Staged(PendingWrite),
    /// A drained write, of any session, that is not published yet.
    Drained(PendingWrite),
    /// The newest write is published, or there is none: the index is up to date.
    Published,
    /// A write that another session has not drained yet.
    OtherSession,
}

impl NewestValue {
    /// Returns the listed write, if this session may read it.
    pub(crate) fn pending(&self) -> Option<&PendingWrite> {
        match self {
            NewestValue::Staged(pending) | NewestValue::Drained(pending) => Some(pending),
            NewestValue::Published | NewestValue::OtherSession => None,
        }
    }
}

/// One worker's session.
pub(crate) struct KvSession<M: Medium> {
    pub(crate) engine: Arc<Engine<M>>,
    pub(crate) ctx: PersistCtx,
    pub(crate) log: SessionLog,
    pub(crate) id: u32,
    pub(crate) slot: EpochSlot,
    pinned: bool,
    reads: u32,
    /// Whether extents were written since the last drain.
    pub(crate) undrained_extents: bool,
    pub(crate) writes: Vec<StagedWrite>,
    /// Extent tables of staged writes.
    pub(crate) tables: Vec<Vec<u8>>,
    pub(crate) conflicts: ConflictPolicy,
    pub(crate) unsynced: VecDeque<(Ticket, Vec<StagedWrite>)>,
    /// Newest ticket of a drained write, of any session, on which an operation of this session depended.
    pub(crate) relied_on: Ticket,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) uncounted: LocalCounters,
    /// Bytes appended for which this session has not done its share of cleaning yet, and the bytes of cleaning that
    /// it owes. A negative debt is credit ([`KvSession::clean_for_appends`]).
    pub(crate) unpaid: u64,
    pub(crate) debt: i64,
    /// Writes of new keys since the last write of an existing key.
    pub(crate) consecutive_inserts: u32,
    /// Bytes of staged values that are not published yet.
    pub(crate) unpublished_bytes: i64,
    /// Whether the open segments are in [`SessionShared::parked`].
    pub(crate) parked: bool,
    /// Whether operations fail with [`Error::Full`] where they would otherwise wait for the cleaner.
    pub(crate) fail_when_full: bool,
    /// Whether [`KvSession::prepare`] found room for the next write.
    pub(crate) is_promised_room: bool,
    /// Bytes of values that [`KvSession::prepare`] admitted for the next write.
    pub(crate) admitted: usize,
    /// Pending request to the cleaner for room.
    pub(crate) room_request: Option<RoomRequest>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) hashes: Vec<u64>,
    pub(crate) prefetched: Vec<PrefetchState>,
    pub(crate) gathered: Vec<PrefetchedValue>,
}

/// Counts not yet added to the engine's counters. Those are shared cache lines, so they are updated rarely.
#[derive(Debug, Default)]
pub(crate) struct LocalCounters {
    pub live: i64,
    pub written: u64,
}

/// A record to be written.
#[derive(Clone, Copy)]
pub(crate) struct NewRecord<'a> {
    pub key: Key<'a>,
    /// `None`: a tombstone.
    pub value: Option<Value<'a>>,
}

impl<M: Medium> KvSession<M> {
    pub(crate) fn new(engine: Arc<Engine<M>>) -> KvSession<M> {
        let (id, shared) = engine.register_session();
        KvSession {
            slot: engine.epochs.slot(),
            ctx: PersistCtx::new(id),
            log: SessionLog::default(),
            pinned: false,
            reads: 0,
            undrained_extents: false,
            writes: Vec::new(),
            tables: Vec::new(),
            conflicts: ConflictPolicy::default(),
            unsynced: VecDeque::new(),
            relied_on: Ticket::DURABLE,
            scratch: Vec::new(),
            hashes: Vec::new(),
            prefetched: Vec::new(),
            gathered: Vec::new(),
            uncounted: LocalCounters::default(),
            unpaid: 0,
            debt: 0,
            consecutive_inserts: 0,
            unpublished_bytes: 0,
            parked: true,
            fail_when_full: false,
            is_promised_room: false,
            admitted: 0,
            room_request: None,
            engine,
            id,
            shared,
        }
    }

    #[inline]
    pub(crate) fn pin(&mut self) {
        self.reads += 1;
        let renew = self.reads >= READS_PER_PIN && !self.undrained_extents;
        if !self.pinned || renew {
            self.engine.epochs.pin(&self.slot);
            (self.pinned, self.reads) = (true, 0);
        }
    }

    pub(crate) fn unpin(&mut self) {
        self.drain_extents();
        self.slot.unpin();
        self.pinned = false;
    }

    /// Drains extents that are still being written. Afterwards another session may reuse them (KV-LARGE-5).
    pub(crate) fn drain_extents(&mut self) {
        if std::mem::take(&mut self.undrained_extents) {
            self.engine.medium().drain(&mut self.ctx);
        }
    }

    /// Returns whether any write of this session is not published yet.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.writes.is_empty() || !self.unsynced.is_empty()
    }

    /// Checks that a write is within the limits of keys and values.
    pub(crate) fn admit(&self, draft: &NewRecord<'_>) -> Result<(), Error> {
        self.engine.check_poison()?;
        check_database(draft.key.db)?;
        let bytes = draft.key.bytes.len();
        if bytes > KEY_BYTES_MAX {
            let bytes_max = KEY_BYTES_MAX;
            return Err(Error::KeyTooLong { bytes, bytes_max });
        }
        situation!("kv.key_is_empty", draft.key.bytes.is_empty());
        let bytes = draft.value.map_or(0, |value| value.bytes.len());
        if bytes > VALUE_BYTES_MAX {
            let bytes_max = VALUE_BYTES_MAX;
            return Err(Error::ValueTooLong { bytes, bytes_max });
        }
        Ok(())
    }

    /// Checks that a read of database `db` is possible.
    #[inline]
    pub(crate) fn admit_read(&self, db: u8) -> Result<(), Error> {
        self.engine.access().check_process()?;
        check_database(db)
    }

    /// Stages `draft` if `still` holds under the stripe's lock. Returns `Ok(None)` if it does not.
    fn write(
        &mut self,
        hash: u64,
        draft: &NewRecord<'_>,
        mut located: EntryLocation,
        still: &mut dyn FnMut(&KvSession<M>, &LockedStripe<'_>, &EntryLocation) -> bool,
    ) -> Result<Option<u64>, Error> {
        let class = self.engine.lifetime(located.found.map(|found| found.at));
        let mut header = header_of(draft);
        let mut large = self.place_large(&mut header, draft)?;
        let pending = loop {
            // While this session waited, the class's segment may have filled up: check the room again.
            let len = self.engine.segments.record_len(&header);
            self.room_for(class, len, draft.value.is_none())?;
            let mut locked = self.engine.stripe(hash).lock();
            if !self.engine.segments.keeps(&large) && !fault!("kv.flush_takes_extents") {
                drop(locked);
                self.free_unwritten_extents(&large);
                large = self.place_large(&mut header, draft)?;
                continue;
            }
            if !still(self, &locked, &located) {
                drop(locked);
                self.free_unwritten_extents(&large);
                return Ok(None);
            }
            match self.newest(&locked, hash, draft.key) {
                NewestValue::OtherSession => {
                    drop(locked);
                    if let Err(error) = self.wait_for_other(hash) {
                        self.free_unwritten_extents(&large);
                        return Err(error);
                    }
                    continue;
                }
                NewestValue::Staged(old) => {
                    supersede(&mut self.writes, &mut locked, &old, &mut located)
                }
                NewestValue::Drained(_) | NewestValue::Published => {}
            }
            if fault!("kv.stripe_released_early") {
                drop(locked);
                locked = self.engine.stripe(hash).lock();
            }
            let pending = PendingWrite {
                hash,
                seq: locked.next_seq(),
                at: self.log.next(class),
                session: self.id,
                thread: this_thread(),
                ticket: None,
                reclaim_stamp: self.engine.reclaim_stamp_of(header.what),
                publish_with: Off::NULL,
                group: None,
                is_published: false,
            };
            locked.list(pending.clone());
            break pending;
        };
        header.seq = pending.seq;
        self.stage(class, &pending, header, draft, &large, located);
        Ok(Some(pending.seq))
    }

    /// Stages the record of a write whose sequence number and offset are known.
    fn stage(
        &mut self,
        class: usize,
        pending: &PendingWrite,
        mut header: RecordHeader,
        draft: &NewRecord<'_>,
        table: &[u8],
        located: EntryLocation,
    ) {
        let fence = pending.reclaim_stamp.to_le_bytes();
        let rest = match &draft.value {
            None => &fence[..],
            Some(_) if header.large => table,
            Some(value) => value.bytes,
        };
        header.body_crc = body_crc(draft.key.bytes, rest);
        if header.large {
            self.tables.push(table.to_vec());
        }
        self.log.stage(
            &self.engine.segments,
            class,
            &header,
            &[draft.key.bytes, rest],
        );
        let len = self.engine.segments.record_len(&header) as u32;
        self.count_staged(header.what, len);
        self.writes.push(StagedWrite {
            hash: pending.hash,
            seq: pending.seq,
            at: pending.at,
            len,
            db: header.db,
            what: header.what,
            large: header.large,
            expires_ms: header.expires_ms,
            located,
            superseded: false,
            grouped: false,
        });
    }

    /// Ends the batch: copies it to the medium and drains it.
    pub(crate) fn commit_batch(&mut self) -> Result<Ticket, Poisoned> {
        self.engine.access().check_process()?;
        let unpublished = self.unsynced.front().map(|(first, _)| *first);
        if self.writes.is_empty() {
            self.log.rotate(&self.engine.segments);
            self.log
                .copy_in(&self.engine.segments, &mut self.ctx, unpublished);
            let ticket = self
                .unsynced
                .back()
                .map_or(Ticket::DURABLE, |(ticket, _)| *ticket);
            self.park();
            self.unpin();
            return Ok(ticket.max(self.relied_on));
        }
        self.engine.check_poison()?;
        self.tables.clear();
        let bytes = self
            .log
            .copy_in(&self.engine.segments, &mut self.ctx, unpublished);
        let ticket = self.engine.medium().drain(&mut self.ctx);
        self.undrained_extents = false;
        self.log.drained(&self.engine.segments, ticket);
        self.log.rotate(&self.engine.segments);
        self.uncounted.written += bytes;
        self.unpaid += bytes;
        let mut writes = std::mem::take(&mut self.writes);
        if self.engine.poll(ticket)? || fault!("kv.published_before_durable") {
            self.publish_all(&mut writes)?;
            self.writes = writes;
            self.park();
        } else {
            situation!("kv.ticket_turns_later");
            list_drained(&self.engine, &writes, ticket);
            self.unsynced.push_back((ticket, writes));
        }
        self.flush_counters();
        self.unpin();
        self.engine.grow_index();
        Ok(ticket)
    }

    /// Adds this session's counts to the engine's counters.
    pub(crate) fn flush_counters(&mut self) {
        let LocalCounters { live, written } = std::mem::take(&mut self.uncounted);
        let engine = &*self.engine;
        if live != 0 {
            engine.space().count_live(live);
            self.show_outstanding();
        }
        if written != 0 {
            engine.segments.count_appended(written);
            engine.counters.user_bytes.fetch_add(written, Relaxed);
        }
        *self.shared.counters.lock().expect("no holder panics") = self.ctx.counters;
    }
}

#[inline]
pub(crate) fn check_database(db: u8) -> Result<(), Error> {
    match usize::from(db) < DATABASES {
        true => Ok(()),
        false => Err(Error::NoDatabase { db }),
    }
}

/// Marks `old`, one of `writes`, as superseded by a later write of the same batch, before any other session saw it.
pub(crate) fn supersede(
    writes: &mut [StagedWrite],
    locked: &mut LockedStripe<'_>,
    old: &PendingWrite,
    located: &mut EntryLocation,
) {
    situation!("kv.replaced_in_batch");
    locked.unlist(old.seq);
    if let Some(write) = writes
        .iter_mut()
        .rev()
        .find(|w| w.seq == old.seq && w.hash == old.hash)
    {
        write.superseded = true;
        *located = std::mem::take(&mut write.located);
    }
}

impl RawHeader {
    /// Returns the metadata of the record's value.
    #[inline]
    pub(crate) fn meta(&self) -> ValueMeta {
        ValueMeta {
            value_bytes: self.value_len(),
            expires_ms: self.expires_ms(),
            flags: self.flags(),
            kind: self.kind(),
            version: self.seq(),
        }
    }
}

pub(crate) fn meta_of(header: &RecordHeader) -> ValueMeta {
    ValueMeta {
        value_bytes: header.value_len,
        expires_ms: header.expires_ms,
        flags: header.flags,
        kind: header.kind,
        version: header.seq,
    }
}

/// Returns the header of a new record, without sequence number and body checksum.
pub(crate) fn header_of(draft: &NewRecord<'_>) -> RecordHeader {
    let header = RecordHeader {
        db: draft.key.db,
        key_len: draft.key.bytes.len(),
        ..RecordHeader::default()
    };
    match draft.value {
        None => RecordHeader {
            what: RecordType::Tombstone,
            value_len: 8,
            ..header
        },
        Some(value) => RecordHeader {
            what: RecordType::Put,
            value_len: value.bytes.len(),
            expires_ms: value.expires_ms,
            flags: value.flags,
            kind: value.kind,
            ..header
        },
    }
}

impl<M: Medium> Ops for KvSession<M> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        self.admit_read(key.db)?;
        let hash = self.engine.geometry().hash(key.db, key.bytes);
        if let Some(there) = self.get_cached(hash, key, view, out, head) {
            return Ok(there);
        }
        match self.find(hash, key, view) {
            None => Ok(false),
            Some(ValueSource::Indexed(found)) => {
                let there = self.emit_found(key, found, out, head)?;
                if there {
                    self.offer(hash, key, &found, out);
                }
                Ok(there)
            }
            Some(ValueSource::Listed(at)) => self.append_value(at, out, head),
        }
    }

    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.admit_read(key.db)?;
        let hash = self.engine.geometry().hash(key.db, key.bytes);
        let Some(seen) = self.find(hash, key, view) else {
            return Ok(None);
        };
        self.meta_at(seen.at())
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        let draft = NewRecord {
            key,
            value: Some(value),
        };
        self.admit(&draft)?;
        self.pin();
        let hash = self.engine.geometry().hash(key.db, key.bytes);
        let located = self.engine.locate(hash, key);
        let seq = self.write(hash, &draft, located, &mut |_, _, _| true)?;
        Ok(seq.expect("a blind write has no condition"))
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let mut was_there = false;
        let mut decide = |item: Option<StoredItem<'_>>| {
            was_there = item.is_some();
            UpdateDecision::Delete
        };
        self.change(key, true, &mut decide)?;
        Ok(was_there)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        self.change(key, false, decide)
    }

    fn now_ms(&self) -> u64 {
        self.engine.now_ms()
    }
}

impl<M: Medium> KvSession<M> {
    /// Reads a key, decides and writes it. With `damage_is_content`, a damaged record counts as a value that can be
    /// deleted, not as an error.
    fn change(
        &mut self,
        key: Key<'_>,
        damage_is_content: bool,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        self.admit(&NewRecord { key, value: None })?;
        let hash = self.engine.geometry().hash(key.db, key.bytes);
        let mut bytes = Vec::new();
        loop {
            self.pin();
            // In this order: a write that leaves the list in between is in the index by then.
            let newest = self.newest(&self.engine.stripe(hash).lock(), hash, key);
            let located = self.engine.locate(hash, key);
            self.rely_on(&newest);
            let at = match &newest {
                NewestValue::OtherSession => {
                    self.wait_for_other(hash)?;
                    continue;
                }
                NewestValue::Drained(_) if fault!("kv.update_skips_pending") => {
                    located.found.map(|found| found.at)
                }
                NewestValue::Staged(pending) | NewestValue::Drained(pending) => Some(pending.at),
                NewestValue::Published => located.found.map(|found| found.at),
            };
            let meta = match at.map(|at| self.load(at, &mut bytes)) {
                None => None,
                Some(Ok(meta)) => meta,
                Some(Err(Error::Damaged(_))) if damage_is_content => Some(ValueMeta::default()),
                Some(Err(error)) => return Err(error),
            };
            let change = decide(meta.map(|meta| StoredItem {
                bytes: &bytes,
                meta,
            }));
            situation!("kv.update_keeps", matches!(change, UpdateDecision::Keep));
            situation!(
                "kv.update_deletes",
                matches!(change, UpdateDecision::Delete) && meta.is_some()
            );
            situation!(
                "kv.update_on_staged",
                matches!(newest, NewestValue::Staged(_))
            );
            situation!(
                "kv.update_on_drained",
                matches!(newest, NewestValue::Drained(_))
            );
            let draft = match &change {
                UpdateDecision::Keep => return Ok(meta.map_or(0, |m| m.version)),
                UpdateDecision::Delete if meta.is_none() => return Ok(0),
                UpdateDecision::Delete => NewRecord { key, value: None },
                UpdateDecision::Put {
                    bytes,
                    expires_ms,
                    flags,
                    kind,
                } => {
                    let (expires_ms, flags, kind) = (*expires_ms, *flags, *kind);
                    NewRecord {
                        key,
                        value: Some(Value {
                            bytes,
                            expires_ms,
                            flags,
                            kind,
                        }),
                    }
                }
            };
            self.admit(&draft)?;
            if let Some(value) = &draft.value
                && let Some((_, ticket)) = self.undurable_group(&newest)?
            {
                // KV-GROUP-6
                situation!(
                    "kv.change_joins_group",
                    self.can_be_member(value.bytes.len())
                );
                if self.can_be_member(value.bytes.len()) {
                    return self.change_in_group(key, decide);
                }
                situation!("kv.change_waits_for_group");
                self.settle_all(ticket)?;
                continue;
            }
            let mut still =
                |worker: &KvSession<M>, locked: &LockedStripe<'_>, located: &EntryLocation| {
                    worker.is_still(&newest, locked, hash, key, located)
                };
            if let Some(seq) = self.write(hash, &draft, located, &mut still)? {
                return Ok(if draft.value.is_some() { seq } else { 0 });
            }
        }
    }

    /// Returns whether the newest value is still the one that was read. The caller holds the stripe's lock.
    fn is_still(
        &self,
        read: &NewestValue,
        locked: &LockedStripe<'_>,
        hash: u64,
        key: Key<'_>,
        located: &EntryLocation,
    ) -> bool {
        match (read, self.newest(locked, hash, key)) {
            (
                NewestValue::Staged(a) | NewestValue::Drained(a),
                NewestValue::Staged(b) | NewestValue::Drained(b),
            ) => a.seq == b.seq,
            (NewestValue::Published, NewestValue::Published) => self.engine.confirm(hash, located),
            _ => false,
        }
    }
}

impl<M: Medium> KvSession<M> {
    /// Replaces the expired values in `segment` by tombstones.
    pub(crate) fn sweep_segment(&mut self, segment: u32) -> Result<(), Error> {
        self.pin();
        let engine = Arc::clone(&self.engine);
        let info = engine.info(segment);
        let (mut due, mut next) = (Vec::new(), 0);
        engine.segments.walk(
            segment,
            info.used.load(Relaxed) as usize,
            &mut |at, header| {
                if header.what != RecordType::Put || header.expires_ms == 0 {
                    return;
                }
                if engine.is_expired(header.expires_ms, header.seq) {
                    due.push((at, header.db, engine.segments.key_of(at, header)));
                } else if next == 0 || next > header.expires_ms {
                    next = header.expires_ms;
                }
            },
        );
        let mut due = due.into_iter();
        let reaped =
            due.try_for_each(|(at, db, bytes)| self.delete_expired(at, Key { db, bytes: &bytes }));
        self.commit_batch()?; // Also after an error: staged writes block their keys until drained.
        reaped?;
        info.expires_ms.store(next, Relaxed);
        Ok(())
    }

    /// Deletes `key` if its newest record is still the expired one at `at`.
    fn delete_expired(&mut self, at: Off, key: Key<'_>) -> Result<(), Error> {
        self.pin();
        let hash = self.engine.geometry().hash(key.db, key.bytes);
        let located = self.engine.locate(hash, key);
        if located.found.is_none_or(|found| found.at != at) {
            return Ok(());
        }
        let mut still =
            |worker: &KvSession<M>, locked: &LockedStripe<'_>, located: &EntryLocation| {
                worker.is_still(&NewestValue::Published, locked, hash, key, located)
            };
        let draft = NewRecord { key, value: None };
        if self.write(hash, &draft, located, &mut still)?.is_some() {
            situation!("kv.swept");
            self.engine.counters.expired.fetch_add(1, Relaxed);
        }
        Ok(())
    }
}

impl<M: Medium> KvSession<M> {
    /// Abandons the staged writes (KV-COMMIT-4).
    fn abandon(&mut self) {
        if self.writes.is_empty() {
            return;
        }
        situation!("kv.abandoned");
        for write in std::mem::take(&mut self.writes) {
            if !write.superseded {
                self.engine.stripe(write.hash).lock().unlist(write.seq);
            }
        }
        self.log.discard();
        // The extents need not be durable, and no store to them is in flight: the stripe locks taken since have
        // drained the write-combining buffers (KV-LARGE-5).
        self.undrained_extents = false;
        situation!("kv.extents_abandoned", !self.tables.is_empty());
        for table in std::mem::take(&mut self.tables) {
            self.free_unwritten_extents(&table);
        }
    }

    /// Settles all writes and seals this session's segments. The session stays usable.
    pub(crate) fn close(&mut self) -> Result<(), Poisoned> {
        let ticket = self.commit_batch()?;
        self.settle(ticket)?;
        self.unpark();
        self.log.close(&self.engine.segments, &mut self.ctx);
        Ok(())
    }
}

impl<M: Medium> Drop for KvSession<M> {
    fn drop(&mut self) {
        if !self.engine.access().is_own_process() {
            return; // In a forked child the session belongs to the parent.
        }
        self.abandon();
        // After an error the pool is poisoned, and an earlier operation has reported it.
        self.close().ok();
        self.flush_counters();
        self.unpin();
        self.engine.unregister_session(&self.shared);
    }
}
