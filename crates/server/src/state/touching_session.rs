//! A session that records which keys it uses, for the eviction policies `lru` and `lfu`.
//!
//! While the policy needs them, an executor gives its pipelines this session in place of the store's. Every read and
//! write of every command and protocol passes through it. As in Redis, a look-up of a key's metadata alone (TTL, EXISTS,
//! TYPE) is no use of the key.
//!
//! A delete forgets the uses of its key. An eviction, which is an update, does not: the words of the table are shared, so
//! it would take the uses of another key, and evictions are frequent.

use farbank_pm::rng::Rng;
use farbank_pm::{Poisoned, Ticket};
use farbank_store::{
    Absence, BeforeValue, BeforeValues, ConflictPolicy, Error, GetStep, GroupDecision, Key, Ops,
    ReadView, RoomReply, Session, StoredItem, UpdateDecision, Value, ValueMeta,
};

use super::access_table::{AccessClock, AccessTable};

/// Records uses of keys.
pub(crate) struct UseRecorder<'a> {
    pub(crate) table: &'a AccessTable,
    pub(crate) clock: AccessClock,
    pub(crate) random: Rng,
}

impl UseRecorder<'_> {
    #[inline]
    fn note(&mut self, key: Key<'_>) {
        self.table.note(key, self.clock, &mut self.random);
    }
}

/// Operations of which uses are recorded.
struct TouchingOps<'a, 'b> {
    inner: &'a mut dyn Ops,
    uses: &'a mut UseRecorder<'b>,
}

/// A session of which uses are recorded; see the module.
pub(crate) struct TouchingSession<'a> {
    inner: &'a mut dyn Session,
    uses: UseRecorder<'a>,
}

impl<'a> TouchingSession<'a> {
    pub(crate) fn new(inner: &'a mut dyn Session, uses: UseRecorder<'a>) -> TouchingSession<'a> {
        TouchingSession { inner, uses }
    }

    fn ops(&mut self) -> TouchingOps<'_, 'a> {
        TouchingOps {
            inner: self.inner,
            uses: &mut self.uses,
        }
    }
}

impl Ops for TouchingOps<'_, '_> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        let found = self.inner.get(key, view, out, head)?;
        if found {
            self.uses.note(key);
        }
        Ok(found)
    }

    fn meta(&mut self, key: Key<'_>, view: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.inner.meta(key, view)
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        let version = self.inner.put(key, value)?;
        self.uses.note(key);
        Ok(version)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let existed = self.inner.delete(key)?;
        self.uses.table.forget(key, self.uses.clock);
        Ok(existed)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let mut exists = false;
        let version = self.inner.update(key, &mut |item| {
            let existed = item.is_some();
            let decision = decide(item);
            exists = match decision {
                UpdateDecision::Keep => existed,
                UpdateDecision::Put { .. } => true,
                UpdateDecision::Delete => false,
            };
            decision
        })?;
        if exists {
            self.uses.note(key);
        }
        Ok(version)
    }

    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }
}

impl Ops for TouchingSession<'_> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValue<'_>,
    ) -> Result<bool, Error> {
        self.ops().get(key, view, out, head)
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

impl Session for TouchingSession<'_> {
    fn on_conflict(&mut self, conflicts: ConflictPolicy) {
        self.inner.on_conflict(conflicts);
    }

    fn put_durable(&mut self, key: Key<'_>, value: Value<'_>) -> Result<(u64, Ticket), Error> {
        let stored = self.inner.put_durable(key, value)?;
        self.uses.note(key);
        Ok(stored)
    }

    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        let uses = &mut self.uses;
        self.inner.get_many(keys, view, &mut |at, item| {
            if item.is_some() {
                uses.note(keys[at]);
            }
            each(at, item);
        })
    }

    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error> {
        let (uses, mut at) = (&mut self.uses, 0);
        self.inner.get_many_into(keys, view, out, &mut |meta, out| {
            let step = head(meta, out);
            if meta.is_some() && step == GetStep::Value {
                uses.note(keys[at]);
            }
            at += 1;
            step
        })
    }

    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        let uses = &mut self.uses;
        self.inner
            .group(keys, &mut |inner| body(&mut TouchingOps { inner, uses }))
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
        self.inner.flush_all()
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
