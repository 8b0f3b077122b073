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
//! KV-COMMIT-5  A batch that could not be drained stays planned. So every later commit of its session fails, too: an operation may
//!     have tried to commit the batch, and its error answers that operation only.
//!
//! # Crash argument
//! | crash between                 | recovery sees                      | and does                         |
//! |-------------------------------|------------------------------------|----------------------------------|
//! | staged, copied in             | nothing of the batch               | nothing                          |
//! | copied in, drained            | any subset of the batch, torn      | keeps whole records, pads others |
//! | drained, published            | the batch                          | keeps it; it may be acknowledged |

mod group;
mod interface;
mod large;
mod pace;
mod publish;
mod read;
mod room;
mod sample;
mod single_write;
mod swap;
mod sweep;
mod wait;

use std::collections::VecDeque;

use farbank_pm::epoch::EpochSlot;
use farbank_pm::fault;
use farbank_pm::process_stamp::this_thread;
use farbank_pm::situation;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::sync::{Arc, unpoisoned};
use farbank_pm::{Medium, Off, PersistCtx, Poisoned, Ticket};

use crate::engine::Engine;
use crate::format::record::{RawHeader, RecordHeader, RecordType, body_crc};
use crate::pending::planned::{PlannedBatch, PlannedRecord, PlannedWrite};
use crate::pending::stripe::{KeyRef, LockedStripe, PendingWrite};
use crate::segments::records::EntryLocation;
use crate::session::publish::list_drained;
use crate::session::read::{PrefetchState, PrefetchedValue};
use crate::session::room::RoomRequest;
use crate::session_log::SessionLog;
use crate::sessions::SessionShared;
use farbank_store::{
    ConflictPolicy, DATABASES, DatabaseView, Error, KEY_BYTES_MAX, Key, StoredItem, UpdateDecision,
    VALUE_BYTES_MAX, Value, ValueMeta,
};

/// Number of reads after which the pin is renewed, so that a long batch does not delay reclamation.
const READS_PER_PIN: u32 = 256;

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

/// The epoch that a session pins while it reads.
struct ReadPin {
    slot: EpochSlot,
    is_pinned: bool,
    /// Reads since the pin was last renewed.
    reads: u32,
}

/// The writes that a session has staged and not drained.
#[derive(Default)]
struct StagedBatch {
    planned: PlannedBatch,
    /// Hashes of the keys that this session guards until the batch is drained (KV-PEND-6).
    guarded: Vec<u64>,
    /// Extent tables of staged writes.
    tables: Vec<Vec<u8>>,
    /// Whether stores to extents may be in flight.
    has_unshown_extents: bool,
    /// Writes of new keys since the last write of an existing key.
    consecutive_inserts: u32,
}

/// The tickets on which a session depends.
struct SessionTickets {
    /// Drained batches that are not published yet.
    unsynced: VecDeque<(Ticket, Arc<PlannedBatch>)>,
    /// Newest ticket of a drained write, of any session, on which an operation of this session depended.
    relied_on: Ticket,
}

/// Counts of a session that are not yet added to the engine's counters. Those are shared cache lines, so they are
/// updated rarely.
#[derive(Debug, Default)]
struct SessionAccounts {
    /// Change of live bytes, and bytes written.
    live: i64,
    written: u64,
    /// Bytes of staged values that are not published yet.
    unpublished: i64,
    /// Bytes appended for which this session has not done its share of cleaning yet, and the bytes of cleaning that
    /// it owes. A negative debt is credit ([`KvSession::clean_for_appends`]).
    unpaid: u64,
    debt: i64,
}

/// How a session gets room for its writes.
struct SessionRoom {
    /// Whether the open segments are in [`SessionShared::parked`].
    is_parked: bool,
    /// Whether operations fail with [`Error::Full`] where they would otherwise wait for the cleaner.
    fail_when_full: bool,
    /// Whether [`KvSession::prepare`] found room for the next write.
    is_promised: bool,
    /// Bytes of values that [`KvSession::prepare`] admitted for the next write.
    admitted: usize,
    /// Pending request to the cleaner for room.
    request: Option<RoomRequest>,
}

/// Buffers that a session keeps for its next read.
#[derive(Default)]
struct ReadBuffers {
    scratch: Vec<u8>,
    hashes: Vec<u64>,
    prefetched: Vec<PrefetchState>,
    gathered: Vec<PrefetchedValue>,
}

/// One worker's session.
pub(crate) struct KvSession<M: Medium> {
    engine: Arc<Engine<M>>,
    ctx: PersistCtx,
    shared: Arc<SessionShared>,
    conflicts: ConflictPolicy,
    log: SessionLog,
    pin: ReadPin,
    batch: StagedBatch,
    tickets: SessionTickets,
    accounts: SessionAccounts,
    room: SessionRoom,
    buffers: ReadBuffers,
    /// The mapping with which the current operation has translated its keys.
    view: DatabaseView,
}

/// A write that has its sequence number and its offset, and is listed as pending (KV-PEND-2).
#[derive(Clone, Copy)]
struct NumberedWrite {
    hash: u64,
    seq: u64,
    at: Off,
    reclaim_stamp: u64,
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
            pin: ReadPin {
                slot: engine.epochs.slot(),
                is_pinned: false,
                reads: 0,
            },
            engine,
            ctx: PersistCtx::new(id),
            shared,
            conflicts: ConflictPolicy::default(),
            log: SessionLog::default(),
            batch: StagedBatch::default(),
            tickets: SessionTickets {
                unsynced: VecDeque::new(),
                relied_on: Ticket::DURABLE,
            },
            accounts: SessionAccounts::default(),
            room: SessionRoom {
                is_parked: true,
                fail_when_full: false,
                is_promised: false,
                admitted: 0,
                request: None,
            },
            buffers: ReadBuffers::default(),
            view: DatabaseView::default(),
        }
    }

    /// Returns the session's number, which no other session of the store has.
    #[inline]
    pub(crate) fn id(&self) -> u32 {
        self.ctx.id()
    }

    #[inline]
    pub(crate) fn pin(&mut self) {
        self.pin.reads += 1;
        let renew = self.pin.reads >= READS_PER_PIN && !self.batch.has_unshown_extents;
        if !self.pin.is_pinned || renew {
            self.engine.epochs.pin(&self.pin.slot);
            (self.pin.is_pinned, self.pin.reads) = (true, 0);
        }
    }

    pub(crate) fn unpin(&mut self) {
        self.show_extents();
        self.pin.slot.unpin();
        self.pin.is_pinned = false;
    }

    /// Ends the stores to extents that are still being written. Afterwards another session may reuse them (KV-LARGE-5).
    pub(crate) fn show_extents(&mut self) {
        if std::mem::take(&mut self.batch.has_unshown_extents) {
            self.engine.medium().make_visible(&mut self.ctx);
        }
    }

    /// Returns whether any write of this session is not published yet.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.batch.planned.is_empty() || !self.tickets.unsynced.is_empty()
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

    /// Stages `draft` if `still` holds under the stripe's lock. Returns `Ok(None)` if it does not, or if databases were
    /// swapped since the session has translated the key: the caller then starts again.
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
        let numbered = loop {
            // While this session waited, the class's segment may have filled up: check the room again.
            let len = self.engine.segments.record_len(&header);
            self.room_for(class, len, draft.value.is_none())?;
            let mut locked = self.engine.stripe(hash).lock();
            if self.is_held_back() {
                drop(locked);
                self.free_unwritten_extents(&large);
                self.wait_for_swap()?;
                return Ok(None);
            }
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
            let newest = match locked.is_guarded(hash, self.id()) {
                true => NewestValue::OtherSession,
                false => self.newest(&locked, hash, draft.key),
            };
            match newest {
                NewestValue::OtherSession => {
                    drop(locked);
                    if let Err(error) = self.wait_for_other(hash) {
                        self.free_unwritten_extents(&large);
                        return Err(error);
                    }
                    continue;
                }
                NewestValue::Staged(old) if self.engine.backup.needs(hash, old.seq) => {
                    drop(locked);
                    self.commit_batch()?; // KV-BACKUP-4
                    self.pin();
                    located = self.engine.locate(hash, draft.key);
                    continue;
                }
                NewestValue::Staged(old) => {
                    supersede(&mut self.batch.planned, &mut locked, &old, &mut located)
                }
                NewestValue::Drained(_) | NewestValue::Published => {}
            }
            if fault!("kv.stripe_released_early") {
                drop(locked);
                locked = self.engine.stripe(hash).lock();
            }
            break self.number(&mut locked, hash, self.log.next(class), header.what, None);
        };
        self.stage(class, &numbered, header, draft, &large, located);
        Ok(Some(numbered.seq))
    }

    /// Numbers a write whose record will be at `at`, and lists it as pending. `group`: all keys of its group.
    fn number(
        &self,
        locked: &mut LockedStripe<'_>,
        hash: u64,
        at: Off,
        what: RecordType,
        group: Option<Arc<Vec<KeyRef>>>,
    ) -> NumberedWrite {
        let (seq, reclaim_stamp) = (locked.next_seq(), self.engine.reclaim_stamp_of(what));
        locked.list(PendingWrite {
            hash,
            seq,
            at,
            session: self.id(),
            thread: this_thread(),
            drained: None,
            reclaim_stamp,
            group,
            is_published: false,
        });
        NumberedWrite {
            hash,
            seq,
            at,
            reclaim_stamp,
        }
    }

    /// Stages the record of a numbered write.
    fn stage(
        &mut self,
        class: usize,
        numbered: &NumberedWrite,
        header: RecordHeader,
        draft: &NewRecord<'_>,
        table: &[u8],
        located: EntryLocation,
    ) {
        let fence = numbered.reclaim_stamp.to_le_bytes();
        let rest = match &draft.value {
            None => &fence[..],
            Some(_) if header.large => table,
            Some(value) => value.bytes,
        };
        let header = self.plan(numbered, header, draft.key, rest, located);
        if header.large {
            self.batch.tables.push(table.to_vec());
        }
        self.log.stage(
            &self.engine.segments,
            &mut self.ctx,
            class,
            &header,
            &[draft.key.bytes, rest],
        );
    }

    /// Adds a numbered write to the batch. Returns its header, with sequence number and checksum of the body: `key` and
    /// `rest`.
    fn plan(
        &mut self,
        numbered: &NumberedWrite,
        header: RecordHeader,
        key: Key<'_>,
        rest: &[u8],
        located: EntryLocation,
    ) -> RecordHeader {
        let header = RecordHeader {
            seq: numbered.seq,
            body_crc: body_crc(key.bytes, rest),
            ..header
        };
        let len = self.engine.segments.record_len(&header);
        let record = PlannedRecord::new(numbered.hash, numbered.at, len, &header);
        self.count_staged(record.what, record.len);
        self.batch.planned.add(record, key.bytes, located);
        header
    }

    /// Ends the batch: copies it to the medium and drains it.
    pub(crate) fn commit_batch(&mut self) -> Result<Ticket, Poisoned> {
        self.engine.access().check_process()?;
        let unpublished = self.tickets.unsynced.front().map(|(first, _)| *first);
        if self.batch.planned.is_empty() {
            self.log.rotate(&self.engine.segments);
            self.log
                .copy_in(&self.engine.segments, &mut self.ctx, unpublished);
            let ticket = self
                .tickets
                .unsynced
                .back()
                .map_or(Ticket::DURABLE, |(ticket, _)| *ticket);
            self.park();
            self.unpin();
            return Ok(ticket.max(self.tickets.relied_on));
        }
        self.engine.check_poison()?;
        self.batch.tables.clear();
        let bytes = self
            .log
            .copy_in(&self.engine.segments, &mut self.ctx, unpublished);
        let ticket = self.engine.medium().drain(&mut self.ctx);
        let polled = self.engine.poll(ticket);
        if polled.is_err() && fault!("kv.failed_batch_forgotten") {
            self.batch.planned.clear();
        }
        let is_durable = polled?; // KV-COMMIT-5
        self.batch.has_unshown_extents = false;
        self.log.drained(&self.engine.segments, ticket);
        self.log.rotate(&self.engine.segments);
        self.accounts.written += bytes;
        self.accounts.unpaid += bytes;
        let mut planned = std::mem::take(&mut self.batch.planned);
        if is_durable || fault!("kv.published_before_durable") {
            self.publish_all(&planned);
            planned.clear();
            self.batch.planned = planned;
            self.park();
        } else {
            situation!("kv.ticket_turns_later");
            let planned = Arc::new(planned);
            list_drained(&self.engine, &planned, ticket);
            self.tickets.unsynced.push_back((ticket, planned));
        }
        self.remove_guards();
        self.flush_counters();
        self.unpin();
        self.engine.grow_index();
        Ok(ticket)
    }

    /// Removes this session's guards: its groups are drained, or abandoned.
    fn remove_guards(&mut self) {
        let id = self.id();
        for hash in self.batch.guarded.drain(..) {
            self.engine.stripe(hash).lock().remove_guard(hash, id);
        }
    }

    /// Adds this session's counts to the engine's counters.
    pub(crate) fn flush_counters(&mut self) {
        let live = std::mem::take(&mut self.accounts.live);
        let written = std::mem::take(&mut self.accounts.written);
        let engine = &*self.engine;
        if live != 0 {
            engine.space().count_live(live);
            self.show_outstanding();
        }
        if written != 0 {
            engine.segments.count_appended(written);
            engine.counters.user_bytes.fetch_add(written, Relaxed);
        }
        *unpoisoned(self.shared.counters.lock()) = self.ctx.counters;
    }
}

#[inline]
pub(crate) fn check_database(db: u8) -> Result<(), Error> {
    match usize::from(db) < DATABASES {
        true => Ok(()),
        false => Err(Error::NoDatabase { db }),
    }
}

/// Marks `old`, a write of `batch`, as superseded by a later write of the same batch, before any other session saw it.
pub(crate) fn supersede(
    batch: &mut PlannedBatch,
    locked: &mut LockedStripe<'_>,
    old: &PendingWrite,
    located: &mut EntryLocation,
) {
    situation!("kv.replaced_in_batch");
    locked.unlist(old.seq);
    if let Some(replaced) = batch.supersede(old.hash, old.seq) {
        *located = replaced;
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
            version: version_of(self.seq(), self.db()),
        }
    }
}

/// Bits of a version that hold the sequence number.
const VERSION_SEQ_BITS: u32 = 60;

/// Returns the version of a value with this sequence number and stored database. Two stripes may assign the same number, so
/// without the database, SWAPDB could give a key another value with the same version.
#[inline]
pub(crate) fn version_of(seq: u64, stored: u8) -> u64 {
    seq.wrapping_add(u64::from(stored) << VERSION_SEQ_BITS)
}

pub(crate) fn meta_of(header: &RecordHeader) -> ValueMeta {
    ValueMeta {
        value_bytes: header.value_len,
        expires_ms: header.expires_ms,
        flags: header.flags,
        kind: header.kind,
        version: version_of(header.seq, header.db),
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

impl<M: Medium> KvSession<M> {
    /// Reads a key, decides and writes it. With `damage_is_content`, a damaged record counts as a value that can be
    /// deleted, not as an error.
    fn change(
        &mut self,
        named: Key<'_>,
        damage_is_content: bool,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        self.admit(&NewRecord {
            key: named,
            value: None,
        })?;
        let mut bytes = Vec::new();
        loop {
            let key = self.stored(named);
            let hash = self.engine.geometry().hash(key.db, key.bytes);
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
            if !self.is_same_mapping() {
                continue; // KV-SWAP-3
            }
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
                    return self.change_in_group(named, decide);
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
                return Ok(match draft.value {
                    Some(_) => version_of(seq, key.db),
                    None => 0,
                });
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
    /// Abandons the staged writes (KV-COMMIT-4).
    fn abandon(&mut self) {
        if self.batch.planned.is_empty() {
            return;
        }
        situation!("kv.abandoned");
        for PlannedWrite { record, .. } in self.batch.planned.listed() {
            self.engine.stripe(record.hash).lock().unlist(record.seq);
        }
        self.batch.planned.clear();
        self.remove_guards();
        self.log.discard();
        // The extents need not be durable, and no store to them is in flight: the stripe locks taken since have
        // drained the write-combining buffers (KV-LARGE-5).
        self.batch.has_unshown_extents = false;
        situation!("kv.extents_abandoned", !self.batch.tables.is_empty());
        for table in std::mem::take(&mut self.batch.tables) {
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
