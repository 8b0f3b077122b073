//! The session behind the traits [`Ops`] and [`Session`].

use farbank_pm::sync::Arc;
use farbank_pm::{Medium, Poisoned, Ticket};
use farbank_store::{
    Absence, BeforeValue, BeforeValues, ConflictPolicy, Error, GroupDecision, Key, Ops, ReadView,
    RoomReply, Session, StoredItem, UpdateDecision, Value, ValueMeta,
};

use super::read::{EmittedValue, ValueSource};
use super::{KvSession, NewRecord, meta_of, version_of};
use crate::engine::flush::flush_all;
use crate::format::record::RecordType;
use crate::index::WalkStep;

impl<M: Medium> Ops for KvSession<M> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        self.admit_read(key.db)?;
        let start = out.len();
        loop {
            let key = self.stored(key);
            let hash = self.engine.geometry().hash(key.db, key.bytes);
            if let Some(there) = self.get_cached(hash, key, view, out, head) {
                if self.is_same_mapping() {
                    return Ok(there);
                }
                out.truncate(start);
                continue;
            }
            let found = self.find(hash, key, view);
            if !self.is_same_mapping() {
                continue;
            }
            return match found {
                None => Ok(false),
                Some(ValueSource::Indexed(found)) => {
                    let emitted = self.emit_found(key, found, out, head)?;
                    if emitted == EmittedValue::Appended {
                        self.offer(hash, key, &found, out);
                    }
                    Ok(emitted != EmittedValue::Absent)
                }
                Some(ValueSource::Listed(at)) => self.append_value(at, out, head),
            };
        }
    }

    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.admit_read(key.db)?;
        match self.find_named(key, view) {
            None => Ok(None),
            Some(seen) => self.meta_at(seen.at()),
        }
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        self.admit(&NewRecord {
            key,
            value: Some(value),
        })?;
        loop {
            let key = self.stored(key);
            let draft = NewRecord {
                key,
                value: Some(value),
            };
            self.pin();
            let hash = self.engine.geometry().hash(key.db, key.bytes);
            let located = self.engine.locate(hash, key);
            if let Some(seq) = self.write(hash, &draft, located, &mut |_, _, _| true)? {
                return Ok(version_of(seq, key.db));
            }
        }
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

impl<M: Medium> Session for KvSession<M> {
    fn on_conflict(&mut self, conflicts: ConflictPolicy) {
        self.conflicts = conflicts;
    }

    fn put_durable(&mut self, key: Key<'_>, value: Value<'_>) -> Result<(u64, Ticket), Error> {
        self.put_single(key, value)
    }

    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        keys.iter().try_for_each(|key| self.admit_read(key.db))?;
        self.read_together(keys, view, each)
    }

    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error> {
        keys.iter().try_for_each(|key| self.admit_read(key.db))?;
        self.read_together_into(keys, view, out, head)
    }

    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        self.run_group(keys, body)
    }

    fn prefetch(&mut self, keys: &[Key<'_>], reads: bool) {
        let keys = self.stored_keys(keys);
        self.fetch_ahead(&keys, reads);
    }

    fn absence(&mut self, key: Key<'_>) -> Absence {
        let seen = self.find_named(key, ReadView::Pending);
        let mut body = std::mem::take(&mut self.buffers.scratch);
        let header = seen.and_then(|seen| self.read_record(seen.at(), &mut body));
        self.buffers.scratch = body;
        match header {
            Some(header)
                if header.what == RecordType::Put
                    && self.engine.is_expired(header.expires_ms, header.seq) =>
            {
                Absence::Expired
            }
            _ => Absence::Missing,
        }
    }

    fn scan(
        &mut self,
        db: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &ValueMeta),
    ) -> Result<u64, Error> {
        self.admit_read(db)?;
        let ticket = self.commit_batch()?;
        self.settle(ticket)?;
        self.pin();
        let engine = Arc::clone(&self.engine);
        let mut left = count.max(1);
        let mut key = Vec::new();
        let next = loop {
            let view = engine.databases.map.view();
            let stored = view.map.stored(db);
            let mut has_visited = false;
            let next = engine.index.walk(cursor, |offsets| {
                // The walk has found these entries under the mapping with which their keys are compared (KV-SWAP-3).
                if !engine.databases.map.is_current(&view) {
                    return WalkStep::StopBefore;
                }
                has_visited = true;
                for at in offsets {
                    let header = engine.segments.header(*at);
                    let Some(header) = header.filter(|h| h.what == RecordType::Put) else {
                        continue;
                    };
                    left = left.saturating_sub(1);
                    let shown =
                        header.db == stored && !engine.is_expired(header.expires_ms, header.seq);
                    // A damaged key belongs to no client: an open that found the damage indexed it under a hash of
                    // its own.
                    if shown && engine.segments.body_holds(*at, &header) {
                        key.clear();
                        let from = at.plus(header.len() as u64);
                        engine.medium().append_out(from, header.key_len, &mut key);
                        each(&key, &meta_of(&header));
                    }
                }
                match left > 0 {
                    true => WalkStep::Next,
                    false => WalkStep::Stop,
                }
            });
            if has_visited {
                break next;
            }
        };
        self.unpin();
        Ok(next)
    }

    fn len(&mut self, db: u8) -> Result<u64, Error> {
        self.admit_read(db)?;
        let ticket = self.commit_batch()?;
        self.settle(ticket)?;
        let engine = &self.engine;
        Ok(engine.under_one_mapping(|map| engine.keys_under(map, db)))
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        let ticket = self.commit_batch()?;
        self.settle(ticket)?;
        self.unpin();
        flush_all(&self.engine)?;
        Ok(())
    }

    fn swap_databases(&mut self, first: u8, second: u8) -> Result<(), Error> {
        self.swap(first, second)
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        let ticket = self.commit_batch()?;
        self.clean_for_appends();
        Ok(ticket)
    }

    fn prepare(&mut self, bytes: usize, delete: bool) -> Result<RoomReply, Error> {
        KvSession::prepare(self, bytes, delete)
    }

    fn used_bytes(&self) -> u64 {
        KvSession::used_bytes(self)
    }

    fn sample(
        &mut self,
        position: u64,
        visits: usize,
        each: &mut dyn FnMut(Key<'_>, &ValueMeta) -> bool,
    ) -> u64 {
        self.sample_keys(position, visits, each)
    }

    fn rest(&mut self) {
        if !self.has_pending() {
            self.unpin();
        }
    }

    fn sync(&mut self) -> Result<(), Error> {
        let ticket = self.commit()?;
        self.settle(ticket)?;
        self.sync_medium()?;
        Ok(())
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.publish_durable(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned> {
        self.settle(ticket)
    }
}
