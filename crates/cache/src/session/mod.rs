//! A session of a cache: the operations that all stores have.

mod tair_api;

use farbank_pm::media::Mapped;
use farbank_pm::sync::Arc;
use farbank_pm::{Medium, Poisoned, Ticket};
use farbank_store::{
    Absence, BeforeValue as Frame, BeforeValues, ConflictPolicy, Error, GetStep, GroupDecision,
    Key, Ops, ReadView, Session, StoredItem, UpdateDecision, Value, ValueMeta,
};

pub use self::tair_api::CounterBounds;
use crate::engine::Engine;
use crate::group::CacheGroup;
use crate::item::{ChangeDecision, FoundValue, NewItem, name_of};
use crate::metadata::SlotId;
use crate::worker::CacheWorker;
use crate::writer::BatchWriter;

/// A session of a cache: a [`Session`] with Tair's operations (see `tair_api.rs`). A write through [`Session`] is
/// durable and visible once it is committed, and other writers of its keys wait for that. A write through an
/// [`ItemKey`](farbank_store::ItemKey) is durable and visible when the call returns.
pub struct CacheSession<F: Medium, N: Medium = Mapped> {
    writer: BatchWriter<N, F>,
    /// The cache cannot be closed while it has sessions.
    _alive: Arc<()>,
    /// Buffers for prefetching, kept to avoid allocations.
    hashes: Vec<u64>,
    slots: Vec<SlotId>,
}

impl<F: Medium, N: Medium> CacheSession<F, N> {
    /// Creates a session. The cache counts its sessions by the clones of `alive`.
    pub(crate) fn new(engine: Arc<Engine<N, F>>, alive: Arc<()>) -> CacheSession<F, N> {
        CacheSession {
            writer: BatchWriter::new(CacheWorker::new(engine)),
            _alive: alive,
            hashes: Vec::new(),
            slots: Vec::new(),
        }
    }
}

/// Returns an error if the item is locked.
fn writable(found: Option<FoundValue<'_>>) -> Result<(), Error> {
    found.map_or(Ok(()), |(found, _)| found.check_unlocked())
}

impl<F: Medium, N: Medium> Ops for CacheSession<F, N> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: Frame<'_>,
    ) -> Result<bool, Error> {
        self.writer.admit(key.db)?;
        self.writer.get(&name_of(key), view, out, head)
    }

    fn meta(&mut self, key: Key<'_>, _: ReadView) -> Result<Option<ValueMeta>, Error> {
        self.writer.admit(key.db)?;
        self.writer.meta(&name_of(key))
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        self.writer.admit(key.db)?;
        self.writer.put(&name_of(key), &NewItem::from(value))
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        self.writer.admit(key.db)?;
        let mut was_there = false;
        self.writer.change(&name_of(key), &mut |found| {
            was_there = found.is_some_and(|(found, _)| found.is_shown());
            writable(found)?;
            Ok(ChangeDecision::Delete)
        })?;
        Ok(was_there)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        self.writer.admit(key.db)?;
        self.writer.change(&name_of(key), &mut |found| {
            let shown = found.filter(|(found, _)| found.is_shown());
            let change = decide(shown.map(|(found, bytes)| StoredItem {
                bytes,
                meta: found.meta(),
            }));
            if change != UpdateDecision::Keep {
                writable(found)?;
            }
            Ok(change.into())
        })
    }

    fn now_ms(&self) -> u64 {
        self.writer.engine().now_ms()
    }
}

impl<F: Medium, N: Medium> Session for CacheSession<F, N> {
    fn on_conflict(&mut self, conflicts: ConflictPolicy) {
        self.writer.set_conflicts(conflicts);
    }

    fn get_many(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        each: &mut dyn FnMut(usize, Option<StoredItem<'_>>),
    ) -> Result<(), Error> {
        self.prefetch(keys, true);
        let mut bytes = Vec::new();
        for (index, &key) in keys.iter().enumerate() {
            bytes.clear();
            let mut meta = ValueMeta::default();
            let found = self.get(key, view, &mut bytes, &mut |found, _| {
                meta = *found;
                true
            })?;
            each(
                index,
                found.then_some(StoredItem {
                    bytes: &bytes,
                    meta,
                }),
            );
        }
        Ok(())
    }

    fn get_many_into(
        &mut self,
        keys: &[Key<'_>],
        view: ReadView,
        out: &mut Vec<u8>,
        head: BeforeValues<'_>,
    ) -> Result<(), Error> {
        self.prefetch(keys, true);
        let start = out.len();
        for &key in keys {
            let mut wanted = GetStep::Value;
            let mut one = |meta: &ValueMeta, out: &mut Vec<u8>| {
                wanted = head(Some(meta), out);
                wanted == GetStep::Value
            };
            let found = self.get(key, view, out, &mut one);
            if !found.inspect_err(|_| out.truncate(start))? {
                wanted = head(None, out);
            }
            if wanted == GetStep::Nothing {
                break;
            }
        }
        Ok(())
    }

    /// Isolated from other writers of `keys`. Its writes become visible and durable key by key: a power cut may leave
    /// a part of them.
    fn group(
        &mut self,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        CacheGroup::run(&mut self.writer, keys, body)
    }

    fn prefetch(&mut self, keys: &[Key<'_>], _: bool) {
        let worker = self.writer.worker();
        let engine = worker.engine();
        self.hashes.clear();
        let hashes = keys.iter().map(|&key| engine.hash(&name_of(key)));
        self.hashes.extend(hashes);
        for &hash in &self.hashes {
            engine.prefetch_bucket(hash);
        }
        // A read moves its item in its LRU list, as a write does. Slots that are reused meanwhile are prefetched in
        // vain.
        worker.pin();
        self.slots.clear();
        for &hash in &self.hashes {
            self.slots.extend(engine.prefetch_item(hash));
        }
        for &slot in &self.slots {
            engine.prefetch_neighbours(slot);
        }
        worker.unpin();
    }

    fn absence(&mut self, key: Key<'_>) -> Absence {
        let name = name_of(key);
        let hash = self.writer.engine().hash(&name);
        if self.writer.write_if_staged(hash, &name).is_err() {
            return Absence::Missing;
        }
        let worker = self.writer.worker();
        let engine = worker.engine();
        worker.pin();
        let found = engine.find(hash, &name);
        worker.unpin();
        match found.map(|found| found.head) {
            Some(head) if engine.is_cleared(&head) => Absence::Flushed,
            Some(head) if engine.is_expired(head.expires_ms, head.version) => Absence::Expired,
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
        self.writer.admit(db)?;
        self.writer.write_batch()?;
        let worker = self.writer.worker();
        let engine = worker.engine();
        let (mut seen, mut key) = (0, Vec::new());
        let mut bucket = cursor.min(engine.buckets());
        while bucket < engine.buckets() && seen < count.max(1) {
            worker.pin();
            for (_, slot) in engine.chain(bucket) {
                if let Some(found) = engine.item_in(slot)
                    && found.head.area == u16::from(db)
                    && engine.is_live(&found)
                    && found.is_shown()
                {
                    engine.data().copy_key(found.at, &found.head, &mut key);
                    each(&key, &found.meta());
                    seen += 1;
                }
            }
            worker.unpin();
            bucket += 1;
        }
        let is_end = bucket == engine.buckets();
        Ok(if is_end { 0 } else { bucket })
    }

    fn len(&mut self, db: u8) -> Result<u64, Error> {
        self.writer.admit(db)?;
        self.writer.write_batch()?;
        Ok(self.writer.engine().areas().items(db.into()))
    }

    fn flush_all(&mut self) -> Result<(), Error> {
        self.writer.write_batch()?;
        self.writer.worker().clear_all()
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.writer.commit()?;
        Ok(Ticket::DURABLE)
    }

    fn durable(&mut self, ticket: Ticket) -> Result<bool, Poisoned> {
        self.writer.engine().data().medium().poll(ticket)
    }

    fn sync(&mut self) -> Result<(), Error> {
        let ticket = self.commit()?;
        let medium = self.writer.engine().data().medium();
        medium.wait_until_durable(ticket)?;
        Ok(())
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Poisoned> {
        self.writer.engine().data().medium().wait(ticket)
    }
}
