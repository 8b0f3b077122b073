//! A session that records which keys it changes, for client-side caching.
//!
//! While clients track keys, an executor gives its pipelines this session in place of the store's. Every write of every
//! command and protocol passes through it, so no command has to announce its changes itself (SRV-TRACK-2).

use std::sync::Mutex;

use farbank_pm::{Poisoned, Ticket};
use farbank_store::{
    Absence, BeforeValue, BeforeValues, ConflictPolicy, Error, GroupDecision, Key, Ops, ReadView,
    RoomReply, Session, StoredItem, UpdateDecision, Value, ValueMeta,
};

use super::change_log::{ChangeLog, KeyEvent};
use crate::lock::lock;

/// Operations of which changes are recorded.
struct RecordingOps<'a> {
    inner: &'a mut dyn Ops,
    log: &'a Mutex<ChangeLog>,
}

/// A session of which changes are recorded; see the module.
pub(crate) struct RecordingSession<'a> {
    inner: &'a mut dyn Session,
    log: &'a Mutex<ChangeLog>,
}

impl<'a> RecordingSession<'a> {
    pub(crate) fn new(
        inner: &'a mut dyn Session,
        log: &'a Mutex<ChangeLog>,
    ) -> RecordingSession<'a> {
        RecordingSession { inner, log }
    }

    fn ops(&mut self) -> RecordingOps<'_> {
        RecordingOps {
            inner: self.inner,
            log: self.log,
        }
    }
}

impl Ops for RecordingOps<'_> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        self.inner.get(key, view, out, head)
    }

    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.inner.meta(key, view)
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        let version = self.inner.put(key, value)?;
        lock(self.log).note_change(key.bytes);
        Ok(version)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let existed = self.inner.delete(key)?;
        if existed {
            lock(self.log).note_change(key.bytes);
        }
        Ok(existed)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let mut changes = false;
        let version = self.inner.update(key, &mut |item| {
            let existed = item.is_some();
            let decision = decide(item);
            changes = match decision {
                UpdateDecision::Keep => false,
                UpdateDecision::Delete => existed,
                UpdateDecision::Put { .. } => true,
            };
            decision
        })?;
        if changes {
            lock(self.log).note_change(key.bytes);
        }
        Ok(version)
    }

    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }
}

impl Ops for RecordingSession<'_> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        self.inner.get(key, view, out, head)
    }

    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.inner.meta(key, view)
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        self.ops().put(key, value)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        self.ops().delete(key)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        self.ops().update(key, decide)
    }

    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }
}

impl Session for RecordingSession<'_> {
    fn on_conflict(&mut self, conflicts: ConflictPolicy) {
        self.inner.on_conflict(conflicts);
    }

    fn put_durable(&mut self, key: Key<'_>, value: Value<'_>) -> Result<(u64, Ticket), Error> {
        let stored = self.inner.put_durable(key, value)?;
        lock(self.log).note_change(key.bytes);
        Ok(stored)
    }

    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        self.inner.get_many(keys, view, each)
    }

    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error> {
        self.inner.get_many_into(keys, view, out, head)
    }

    /// As [`Session::group`]. The events of the last call of `body` are kept, if the group is applied; those include
    /// the reads that the caller has recorded.
    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        let log = self.log;
        let mark = lock(log).mark();
        let decision = self.inner.group(keys, &mut |inner| {
            lock(log).rewind(mark);
            body(&mut RecordingOps { inner, log })
        });
        if !matches!(decision, Ok(GroupDecision::Apply)) {
            lock(log).rewind(mark);
        }
        decision
    }

    fn prefetch(&mut self, keys: &[Key<'_>], reads: bool) {
        self.inner.prefetch(keys, reads);
    }

    fn absence(&mut self, key: Key<'_>) -> Absence {
        self.inner.absence(key)
    }

    fn scan(
        &mut self,
        db: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &ValueMeta),
    ) -> Result<u64, Error> {
        self.inner.scan(db, cursor, count, each)
    }

    fn len(&mut self, db: u8) -> Result<u64, Error> {
        self.inner.len(db)
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        let flushed = self.inner.flush_all();
        // After an error, it is unknown which keys are removed.
        lock(self.log).push(KeyEvent::Flushed);
        flushed
    }

    fn swap_databases(&mut self, first: u8, second: u8) -> Result<(), Error> {
        self.inner.swap_databases(first, second)
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.inner.commit()
    }

    fn prepare(&mut self, bytes: usize, delete: bool) -> Result<RoomReply, Error> {
        self.inner.prepare(bytes, delete)
    }

    fn used_bytes(&self) -> u64 {
        self.inner.used_bytes()
    }

    fn sample(
        &mut self,
        position: u64,
        visits: usize,
        each: &mut dyn FnMut(Key<'_>, &ValueMeta) -> bool,
    ) -> u64 {
        self.inner.sample(position, visits, each)
    }

    fn rest(&mut self) {
        self.inner.rest();
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.inner.sync()
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.inner.durable(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned> {
        self.inner.wait(ticket)
    }
}
