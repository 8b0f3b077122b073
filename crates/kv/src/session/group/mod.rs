//! Groups: atomic writes of several keys, isolated from other writers and seen by readers as a whole.
//!
//! ```text
//!   ┌────────────────────────────────────────────────────────────────┐
//!   │ GROUP header │ 8 bytes │ member record │ member record │  ...  │    one body crc over all members
//!   └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A group is one record whose body consists of records, so a crash leaves it whole or torn like any other record.
//! Members have headers of their own; they are looked up, relocated and replaced one by one. A group that is too long
//! for the log is stored in extents, like a large value. When the cleaner relocates its record, the members move to
//! the log.
//!
//! # Invariants
//! KV-GROUP-1  The stripes of all keys are locked, in order, from the body's first read until the last write is listed. So no
//!     other session writes these keys meanwhile.
//! KV-GROUP-2  Members get their ticket, and are published, within
//!     [`PendingWrites::publish_group`](crate::pending::PendingWrites::publish_group); readers that overlap with this
//!     retry. So readers see all members or none, even if the ticket becomes durable early.
//! KV-GROUP-3  A group does not depend on other writes that are not durable: a value that it read and that is not durable
//!     becomes a member, too. Otherwise a crash could keep the group and lose the value on which it was decided.
//! KV-GROUP-4  A write that replaces a member is not visible before the whole group is. So a reader that has seen one key as
//!     it was after the group sees no key as it was before the group.
//! KV-GROUP-5  The body runs before anything is staged. If it panics, the stripes are released before the panic continues. So
//!     nothing of the group remains, and no lock is poisoned.
//! KV-GROUP-6  A write that depends on a member of a group that is not durable forms a group with all keys of that group;
//!     keys that are not written otherwise become members with their current values (KV-GROUP-3). Otherwise a crash could
//!     keep the dependent write and lose the other members. If the group has too many keys, the write instead waits
//!     until the group is durable. So does a group that depends on another one where a drain is a fence: that wait is
//!     short.
//! KV-GROUP-7  Keys that a group has read and does not write are guarded until the group is drained (KV-PEND-6). So a later
//!     write of such a key becomes durable and visible after the group. Otherwise a reader could see that write and not
//!     the group, although the group was decided on the value before it.

mod plan;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use farbank_pm::fault;
use farbank_pm::medium::Drain;
use farbank_pm::process_stamp::this_thread;
use farbank_pm::situation;
use farbank_pm::sync::Arc;
use farbank_pm::sync::atomic::Ordering::Relaxed;
use farbank_pm::{Medium, Off, Poisoned, Ticket};

use self::plan::{FILLER, GroupLayout};
use crate::engine::Engine;
use crate::format::record::{ALIGN, RecordHeader, RecordType, body_crc};
use crate::format::segment::SegmentState;
use crate::pending::stripe::{KeyRef, LockedStripe, PendingWrite};
use crate::segments::records::EntryLocation;
use crate::session::{KvSession, NewRecord, NewestValue, header_of, supersede, version_of};
use farbank_store::{
    BeforeValue, Error, GroupDecision, Key, Ops, ReadView, StoredItem, UpdateDecision, Value,
    ValueMeta,
};

/// Largest number of keys that a group adds because of KV-GROUP-6.
const ADDED_KEYS_MAX: usize = 16;

/// A key of a group.
struct GroupKey {
    hash: u64,
    located: EntryLocation,
    newest: NewestValue,
    /// Whether the group's decision depends on the key's current value.
    is_read: bool,
    /// The body's decision for this key.
    change: UpdateDecision,
}

/// The operations that a group's body may use.
struct GroupOps<'a, M: Medium> {
    worker: &'a mut KvSession<M>,
    slots: Vec<GroupKey>,
    by_key: HashMap<KeyRef, usize>,
}

/// What must happen before a group is tried again.
enum GroupRetry {
    /// Another session must drain its write of this hash's key, or its group that has read the key.
    Foreign(u64),
    /// There must be room for this many bytes and this many extents.
    Room(usize, u32),
    /// This ticket must be durable.
    Durable(Ticket),
    /// These keys must become members, or this ticket must be durable (KV-GROUP-6).
    AddKeys(Vec<KeyRef>, Ticket),
    /// The groups that were read must be durable: another session has not drained its write of a key that KV-GROUP-6 added.
    WaitForGroups,
    /// Writes must not be held, and the keys must be translated again (KV-SWAP-2).
    Swap,
}

impl<M: Medium> KvSession<M> {
    pub(crate) fn run_group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        self.engine.check_poison()?;
        for key in keys {
            self.admit(&NewRecord {
                key: *key,
                value: None,
            })?;
        }
        let mut room = None;
        let (mut taken, mut relied): (Vec<KeyRef>, _) = (Vec::new(), Ticket::DURABLE);
        loop {
            let engine = Arc::clone(&self.engine);
            let class = engine.segments.classes() - 1;
            if let Some((bytes, extents)) = room {
                self.room_for_group(class, bytes, extents)?;
            }
            self.pin();
            let taken_keys = taken.iter().map(|(db, bytes)| Key { db: *db, bytes });
            let named = self.stored_keys(keys);
            let all: Vec<Key<'_>> = named.iter().copied().chain(taken_keys).collect();
            match self.try_group(&engine, class, &all, keys.len(), body)? {
                Ok(verdict) => return Ok(verdict),
                Err(GroupRetry::Foreign(hash)) => self.wait_for_other(hash)?,
                Err(GroupRetry::Room(bytes, extents)) => room = Some((bytes, extents)),
                Err(GroupRetry::Durable(theirs)) => self.settle_all(theirs)?,
                Err(GroupRetry::AddKeys(more, theirs)) => {
                    taken.extend(more);
                    relied = relied.max(theirs);
                }
                Err(GroupRetry::WaitForGroups) => {
                    self.settle_all(relied)?;
                    taken.clear();
                }
                Err(GroupRetry::Swap) => self.wait_for_swap()?,
            }
        }
    }

    /// Waits for room for a group's record, or for its table and its extents.
    fn room_for_group(&mut self, class: usize, bytes: usize, extents: u32) -> Result<(), Error> {
        if !self.fits(bytes) {
            self.grow_or_refuse(bytes)?;
        }
        let keep = self.keep_free(false) + extents;
        while self.engine.segments.free_count() <= keep + 1 {
            self.await_free(keep + 1)?;
        }
        self.room_for(class, bytes.min(self.engine.geometry().inline_max()), false)
    }

    /// Tries to write a group. Its body may use the first `named` keys; the others were added by KV-GROUP-6.
    fn try_group(
        &mut self,
        engine: &Arc<Engine<M>>,
        class: usize,
        keys: &[Key<'_>],
        named: usize,
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<Result<GroupDecision, GroupRetry>, Error> {
        let mut locks = lock_all(engine, keys);
        if self.is_held_back() {
            return Ok(Err(GroupRetry::Swap));
        }
        let mut slots: Vec<GroupKey> = Vec::with_capacity(keys.len());
        let mut by_key = HashMap::with_capacity(keys.len());
        for (number, key) in keys.iter().enumerate() {
            if by_key.contains_key(&(key.db, key.bytes.to_vec())) {
                continue;
            }
            let hash = engine.geometry().hash(key.db, key.bytes);
            let newest = self.newest(&locks[lock_of(engine, &locks, hash)].1, hash, *key);
            if matches!(newest, NewestValue::OtherSession) {
                let is_taken = number >= named;
                return Ok(Err(if is_taken {
                    GroupRetry::WaitForGroups
                } else {
                    GroupRetry::Foreign(hash)
                }));
            }
            self.rely_on(&newest);
            by_key.insert((key.db, key.bytes.to_vec()), slots.len());
            let located = engine.locate(hash, *key);
            slots.push(GroupKey {
                hash,
                located,
                newest,
                is_read: number >= named,
                change: UpdateDecision::Keep,
            });
        }
        let mut ops = GroupOps {
            worker: self,
            slots,
            by_key,
        };
        let verdict = catch_unwind(AssertUnwindSafe(|| body(&mut ops))).unwrap_or_else(|panic| {
            locks.clear(); // KV-GROUP-5
            resume_unwind(panic)
        });
        if verdict? == GroupDecision::Abandon {
            return Ok(Ok(GroupDecision::Abandon));
        }
        let (mut slots, by_key) = (ops.slots, ops.by_key);
        if slots.iter().all(|slot| slot.change == UpdateDecision::Keep) {
            if slots
                .iter()
                .any(|slot| matches!(slot.newest, NewestValue::Staged(_)))
            {
                self.guard_keys(engine, &kept_hashes(&slots), &mut locks);
            }
            return Ok(Ok(GroupDecision::Apply));
        }
        if let Some(retry) = self.check_group_dependencies(&slots, &by_key, keys.len() - named)? {
            return Ok(Err(retry));
        }
        if let Some(ticket) = self.add_undurable_reads(&mut slots)? {
            return Ok(Err(GroupRetry::Durable(ticket)));
        }
        let is_guarded = |slot: &GroupKey| {
            let locked = &locks[lock_of(engine, &locks, slot.hash)].1;
            slot.change != UpdateDecision::Keep && locked.is_guarded(slot.hash, self.id())
        };
        if let Some(number) = slots.iter().position(is_guarded) {
            return Ok(Err(GroupRetry::Foreign(slots[number].hash)));
        }
        let is_split = |slot: &GroupKey| match &slot.newest {
            NewestValue::Staged(old) => engine.backup.needs(slot.hash, old.seq),
            _ => false,
        };
        if slots.iter().any(is_split) {
            return Ok(Err(GroupRetry::Durable(Ticket::DURABLE))); // KV-BACKUP-4
        }
        let kept = kept_hashes(&slots);
        let mut members: Vec<(Key<'_>, GroupKey)> = Vec::with_capacity(slots.len());
        let mut names: Vec<(&KeyRef, usize)> = by_key.iter().map(|(k, i)| (k, *i)).collect();
        names.sort_by_key(|(_, index)| *index);
        for ((name, _), slot) in names.into_iter().zip(slots) {
            if slot.change != UpdateDecision::Keep {
                members.push((
                    Key {
                        db: name.0,
                        bytes: &name.1,
                    },
                    slot,
                ));
            }
        }
        let written = self.write_members(engine, class, members, &mut locks)?;
        if written.is_ok() {
            self.guard_keys(engine, &kept, &mut locks);
        }
        Ok(written)
    }

    /// Guards keys until the batch is drained (KV-GROUP-7).
    fn guard_keys(
        &mut self,
        engine: &Engine<M>,
        hashes: &[u64],
        locks: &mut [(usize, LockedStripe<'_>)],
    ) {
        situation!("kv.group_guards", !hashes.is_empty());
        for &hash in hashes {
            let locked = &mut locks[lock_of(engine, locks, hash)].1;
            if locked.add_guard(hash, self.id(), this_thread()) {
                self.batch.guarded.push(hash);
            }
        }
    }

    /// Returns what must happen before the group is written (KV-GROUP-6). `None` if it depends on no member of a group that
    /// is not durable.
    fn check_group_dependencies(
        &self,
        slots: &[GroupKey],
        by_key: &HashMap<KeyRef, usize>,
        taken: usize,
    ) -> Result<Option<GroupRetry>, Error> {
        let (mut more, mut theirs) = (Vec::new(), Ticket::DURABLE);
        for slot in slots.iter().filter(|slot| slot.is_read) {
            let Some((group, ticket)) = self.undurable_group(&slot.newest)? else {
                continue;
            };
            let missing = group.iter().filter(|name| !by_key.contains_key(name));
            for name in missing {
                theirs = theirs.max(ticket);
                if !more.contains(name) {
                    more.push(name.clone());
                }
            }
        }
        situation!("kv.group_takes_along", !more.is_empty());
        let is_quick = self.engine.caps().drain == Drain::Fence;
        Ok(match more.len() {
            0 => None,
            count if is_quick || taken + count > ADDED_KEYS_MAX => {
                Some(GroupRetry::Durable(theirs))
            }
            _ => Some(GroupRetry::AddKeys(more, theirs)),
        })
    }

    /// Commits the batch, and waits until it and the ticket `theirs` are durable.
    pub(crate) fn settle_all(&mut self, theirs: Ticket) -> Result<(), Poisoned> {
        let ours = self.commit_batch()?;
        self.settle(ours.max(theirs))
    }

    /// Returns whether a value of `bytes` bytes may become a member for KV-GROUP-3 or KV-GROUP-6.
    pub(crate) fn can_be_member(&self, bytes: usize) -> bool {
        bytes <= self.engine.geometry().inline_max() / 2
    }

    /// Returns the ticket of a write that is not durable: [`Ticket::DURABLE`] if it has no ticket yet. `None` if it
    /// is durable.
    fn undurable(&self, pending: &PendingWrite) -> Result<Option<Ticket>, Poisoned> {
        match pending.ticket() {
            Some(ticket) if self.engine.poll(ticket)? => Ok(None),
            ticket => Ok(Some(ticket.unwrap_or(Ticket::DURABLE))),
        }
    }

    /// Returns the keys and the ticket of the group to which a write belongs, if that is not durable yet.
    pub(crate) fn undurable_group<'a>(
        &self,
        newest: &'a NewestValue,
    ) -> Result<Option<(&'a [KeyRef], Ticket)>, Poisoned> {
        let pending = newest.pending().filter(|_| !fault!("kv.group_left_behind"));
        let Some((pending, group)) = pending.and_then(|p| Some((p, p.group.as_ref()?))) else {
            return Ok(None);
        };
        let ticket = self.undurable(pending)?;
        Ok(ticket.map(|ticket| (group.as_slice(), ticket)))
    }

    /// Changes a key in a group of its own, with the keys that KV-GROUP-6 adds.
    pub(crate) fn change_in_group(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let mut kept = 0;
        let mut is_put = false;
        self.run_group(&[key], &mut |ops| {
            is_put = false;
            kept = ops.update(key, &mut |item| {
                let change = decide(item);
                is_put = matches!(change, UpdateDecision::Put { .. });
                change
            })?;
            Ok(GroupDecision::Apply)
        })?;
        // While the group is staged, no swap changes the mapping (KV-SWAP-1).
        let key = self.view.map.stored_key(key);
        let hash = self.engine.geometry().hash(key.db, key.bytes);
        let newest = self.newest(&self.engine.stripe(hash).lock(), hash, key);
        Ok(match newest {
            NewestValue::Staged(own) if is_put => version_of(own.seq, key.db),
            _ => kept,
        })
    }

    /// Makes members of values that the group read but does not replace, if they are not durable (KV-GROUP-3). If such a
    /// value is too long to be a member, returns its ticket, to be awaited instead.
    fn add_undurable_reads(&mut self, slots: &mut [GroupKey]) -> Result<Option<Ticket>, Error> {
        if fault!("kv.group_relies_on_pending") {
            return Ok(None);
        }
        for slot in slots
            .iter_mut()
            .filter(|slot| slot.change == UpdateDecision::Keep)
        {
            let Some(pending) = slot.newest.pending() else {
                continue;
            };
            let Some(ticket) = self.undurable(pending)? else {
                continue;
            };
            situation!("kv.group_carries");
            let mut bytes = Vec::new();
            slot.change = match self.load(pending.at, &mut bytes)? {
                None => UpdateDecision::Delete,
                Some(meta) if !self.can_be_member(meta.value_bytes) => {
                    return Ok(Some(ticket));
                }
                Some(ValueMeta {
                    expires_ms,
                    flags,
                    kind,
                    ..
                }) => UpdateDecision::Put {
                    bytes,
                    expires_ms,
                    flags,
                    kind,
                },
            };
        }
        Ok(None)
    }

    /// Lists the members and stages them as one record. The caller holds all locks.
    fn write_members(
        &mut self,
        engine: &Arc<Engine<M>>,
        class: usize,
        members: Vec<(Key<'_>, GroupKey)>,
        locks: &mut [(usize, LockedStripe<'_>)],
    ) -> Result<Result<GroupDecision, GroupRetry>, Error> {
        let headers = members
            .iter()
            .map(|(key, slot)| member_header(*key, &slot.change));
        let plan = GroupLayout::of(engine, headers.collect())?;
        let room = if plan.has_room(self, class) {
            plan.places(self, class)
        } else {
            None
        };
        let Some((places, extents)) = room else {
            return Ok(Err(GroupRetry::Room(plan.bytes, plan.runs.len() as u32)));
        };
        let mut buffers: Vec<Vec<u8>> = vec![Vec::new(); extents.len().max(1)];
        let names = members.iter().map(|(key, _)| (key.db, key.bytes.to_vec()));
        let group = (members.len() > 1).then(|| Arc::new(names.collect()));
        for (((key, slot), &(buffer, at)), header) in
            members.into_iter().zip(&places).zip(&plan.headers)
        {
            let locked = &mut locks[lock_of(engine, locks, slot.hash)].1;
            let mut located = slot.located;
            situation!(
                "kv.group_replaces_staged",
                matches!(slot.newest, NewestValue::Staged(_))
            );
            if let NewestValue::Staged(old) = &slot.newest {
                supersede(&mut self.batch.planned, locked, old, &mut located);
            }
            let numbered = self.number(locked, slot.hash, at, header.what, group.clone());
            situation!(
                "kv.group_deletes",
                matches!(slot.change, UpdateDecision::Delete)
            );
            let rest = match &slot.change {
                UpdateDecision::Put { bytes, .. } => &bytes[..],
                _ => &numbered.reclaim_stamp.to_le_bytes(),
            };
            let header = self.plan(&numbered, *header, key, rest, located);
            let seed = engine.segments.seed_at(at);
            encode_member(&mut buffers[buffer], seed, &header, key, rest);
        }
        self.stage_group(engine, class, &plan, buffers, &extents);
        Ok(Ok(GroupDecision::Apply))
    }

    fn stage_group(
        &mut self,
        engine: &Arc<Engine<M>>,
        class: usize,
        plan: &GroupLayout,
        buffers: Vec<Vec<u8>>,
        extents: &[u32],
    ) {
        let mut header = RecordHeader {
            what: RecordType::Group,
            key_len: FILLER.len(),
            value_len: plan.bytes,
            large: !extents.is_empty(),
            ..RecordHeader::default()
        };
        situation!("kv.group_is_large", header.large);
        situation!("kv.group_in_pieces", extents.len() > 1);
        situation!("kv.group_is_small", !header.large);
        let rest = if header.large {
            header.value_len = extents.len() * engine.geometry().payload();
            let mut table = Vec::new();
            for (segment, bytes) in extents.iter().zip(&buffers) {
                self.fill_member_extent(engine, *segment, bytes, &mut table);
            }
            self.batch.tables.push(table.clone());
            table
        } else {
            buffers.into_iter().next().unwrap_or_default()
        };
        header.body_crc = body_crc(&FILLER, &rest);
        let at = self.log.next(class);
        let body = [&FILLER[..], &rest];
        self.log
            .stage(&engine.segments, &mut self.ctx, class, &header, &body);
        engine
            .info_at(at)
            .large_groups
            .fetch_add(u32::from(header.large), Relaxed);
    }

    /// Writes an extent of a group. It fills the whole payload, so its length need not be stored.
    fn fill_member_extent(
        &mut self,
        engine: &Arc<Engine<M>>,
        segment: u32,
        bytes: &[u8],
        table: &mut Vec<u8>,
    ) {
        let mut whole = bytes.to_vec();
        whole.resize(engine.geometry().payload(), 0);
        self.fill_extent(segment, &whole, SegmentState::Members, table);
    }
}

/// Locks the stripes of `keys`, each once, in order (KV-GROUP-1).
fn lock_all<'a, M: Medium>(
    engine: &'a Engine<M>,
    keys: &[Key<'_>],
) -> Vec<(usize, LockedStripe<'a>)> {
    let mut numbers: Vec<usize> = keys
        .iter()
        .map(|key| {
            engine
                .pending
                .number_of(engine.geometry().hash(key.db, key.bytes))
        })
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
        .into_iter()
        .map(|n| (n, engine.pending.numbered(n).lock()))
        .collect()
}

/// Returns the hashes of the keys that a group keeps as they are.
fn kept_hashes(slots: &[GroupKey]) -> Vec<u64> {
    let kept = slots
        .iter()
        .filter(|slot| slot.change == UpdateDecision::Keep);
    kept.map(|slot| slot.hash).collect()
}

fn lock_of<M: Medium>(engine: &Engine<M>, locks: &[(usize, LockedStripe<'_>)], hash: u64) -> usize {
    let number = engine.pending.number_of(hash);
    locks
        .binary_search_by_key(&number, |(n, _)| *n)
        .expect("every key's stripe is locked")
}

/// Appends a member's record to `buffer`. The checksum of its header starts from `seed`.
fn encode_member(
    buffer: &mut Vec<u8>,
    seed: u32,
    header: &RecordHeader,
    key: Key<'_>,
    rest: &[u8],
) {
    header.encode(seed, buffer);
    buffer.extend_from_slice(key.bytes);
    buffer.extend_from_slice(rest);
    buffer.resize(buffer.len().next_multiple_of(ALIGN), 0);
}

fn member_header(key: Key<'_>, change: &UpdateDecision) -> RecordHeader {
    RecordHeader {
        member: true,
        ..header_of(&draft_of(key, change))
    }
}

fn draft_of<'a>(key: Key<'a>, change: &'a UpdateDecision) -> NewRecord<'a> {
    NewRecord {
        key,
        value: change.value(),
    }
}

impl<M: Medium> GroupOps<'_, M> {
    fn slot(&self, key: Key<'_>) -> Result<usize, Error> {
        let stored = self.worker.view.map.stored(key.db);
        let named = self.by_key.get(&(stored, key.bytes.to_vec()));
        named.copied().ok_or(Error::NotInGroup)
    }

    /// Returns the slot of a key and marks it as read: the group depends on its value.
    fn read_slot(&mut self, key: Key<'_>) -> Result<usize, Error> {
        let slot = self.slot(key)?;
        self.slots[slot].is_read = true;
        Ok(slot)
    }

    /// Returns the value that the group has decided to store for the key in `slot`. `None` if it deletes or keeps the
    /// key.
    fn decided(&self, slot: usize) -> Option<(ValueMeta, &[u8])> {
        let UpdateDecision::Put {
            bytes,
            expires_ms,
            flags,
            kind,
        } = &self.slots[slot].change
        else {
            return None;
        };
        let meta = ValueMeta {
            value_bytes: bytes.len(),
            expires_ms: *expires_ms,
            flags: *flags,
            kind: *kind,
            version: 0,
        };
        // The value has no sequence number yet.
        let is_expired = self.worker.engine.is_expired(*expires_ms, u64::MAX);
        (!is_expired).then_some((meta, bytes.as_slice()))
    }

    /// Returns the offset of the record of the key in `slot`, if the group does not change the key.
    fn kept_at(&self, slot: usize) -> Option<Off> {
        let base = &self.slots[slot];
        match (&base.change, &base.newest) {
            (UpdateDecision::Put { .. } | UpdateDecision::Delete, _) => None,
            (
                UpdateDecision::Keep,
                NewestValue::Staged(pending) | NewestValue::Drained(pending),
            ) => Some(pending.at),
            (UpdateDecision::Keep, _) => base.located.found.map(|found| found.at),
        }
    }

    /// Returns a key's value as the group sees it.
    fn current(&mut self, slot: usize, bytes: &mut Vec<u8>) -> Result<Option<ValueMeta>, Error> {
        bytes.clear();
        if let Some(at) = self.kept_at(slot) {
            return self.worker.load(at, bytes);
        }
        Ok(self.decided(slot).map(|(meta, value)| {
            bytes.extend_from_slice(value);
            meta
        }))
    }

    /// As [`GroupOps::current`], without the value's bytes.
    fn current_meta(&mut self, slot: usize) -> Result<Option<ValueMeta>, Error> {
        match self.kept_at(slot) {
            Some(at) => self.worker.meta_at(at),
            None => Ok(self.decided(slot).map(|(meta, _)| meta)),
        }
    }
}

impl<M: Medium> Ops for GroupOps<'_, M> {
    fn get(
        &mut self,
        key: Key<'_>,
        _view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        let slot = self.read_slot(key)?;
        if let Some(at) = self.kept_at(slot) {
            return self.worker.append_value(at, out, head);
        }
        let Some((meta, value)) = self.decided(slot) else {
            return Ok(false);
        };
        if head(&meta, out) {
            out.extend_from_slice(value);
        }
        Ok(true)
    }

    fn meta(&mut self, key: Key<'_>, _view: ReadView) -> Result<Option<ValueMeta>, Error> {
        let slot = self.read_slot(key)?;
        self.current_meta(slot)
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        let Value {
            bytes,
            expires_ms,
            flags,
            kind,
        } = value;
        self.worker.admit(&NewRecord {
            key,
            value: Some(value),
        })?;
        let slot = self.slot(key)?;
        self.slots[slot].change = UpdateDecision::Put {
            bytes: bytes.to_vec(),
            expires_ms,
            flags,
            kind,
        };
        Ok(0)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let slot = self.slot(key)?;
        let was_there = match self.current_meta(slot) {
            Err(Error::Damaged(_)) => true,
            other => other?.is_some(),
        };
        if was_there {
            let GroupKey {
                newest,
                located,
                change,
                ..
            } = &mut self.slots[slot];
            let is_new = matches!(newest, NewestValue::Published) && located.found.is_none();
            *change = if is_new {
                UpdateDecision::Keep
            } else {
                UpdateDecision::Delete
            };
        }
        Ok(was_there)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let slot = self.read_slot(key)?;
        let mut bytes = Vec::new();
        let meta = self.current(slot, &mut bytes)?;
        match decide(meta.map(|meta| StoredItem {
            bytes: &bytes,
            meta,
        })) {
            UpdateDecision::Keep => Ok(meta.map_or(0, |m| m.version)),
            UpdateDecision::Delete => self.delete(key).map(|_| 0),
            UpdateDecision::Put {
                bytes,
                expires_ms,
                flags,
                kind,
            } => self.put(
                key,
                Value {
                    bytes: &bytes,
                    expires_ms,
                    flags,
                    kind,
                },
            ),
        }
    }

    fn now_ms(&self) -> u64 {
        self.worker.engine.now_ms()
    }
}
