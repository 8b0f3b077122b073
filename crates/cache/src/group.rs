//! Groups: several keys written together, isolated from other writers but not atomic under a power cut.

use std::collections::{BTreeSet, HashMap};

use farbank_pm::Medium;
use farbank_pm::sync::Arc;
use farbank_store::{
    BeforeValue as Frame, ConflictPolicy, Error, GroupDecision, Key, Ops, ReadView, StoredItem,
    UpdateDecision, Value, ValueMeta,
};

use crate::item::{ChangeDecision, OwnedItem, check_database, name_of};
use crate::key_locks::KeyLocks;
use crate::writer::BatchWriter;

/// The staged writes of a group, whose key locks are held meanwhile.
pub(crate) struct CacheGroup<'a, N: Medium, F: Medium> {
    writer: &'a mut BatchWriter<N, F>,
    /// The keys of the group, and the index of each in `staged` once it is written.
    places: HashMap<(u8, Vec<u8>), Option<usize>>,
    staged: Vec<(u8, Vec<u8>, Option<OwnedItem>)>,
}

/// Stripes whose locks the group holds until it ends, also by a panic of its body.
struct ClaimedStripes<'a> {
    claims: &'a KeyLocks,
    stripes: Vec<u32>,
}

impl Drop for ClaimedStripes<'_> {
    fn drop(&mut self) {
        for &stripe in &self.stripes {
            self.claims.release(stripe);
        }
    }
}

impl<N: Medium, F: Medium> CacheGroup<'_, N, F> {
    /// Runs `body` as [`Session::group`](farbank_store::Session::group) does.
    pub(crate) fn run(
        writer: &mut BatchWriter<N, F>,
        keys: &[Key<'_>],
        body: &mut dyn FnMut(&mut dyn Ops) -> Result<GroupDecision, Error>,
    ) -> Result<GroupDecision, Error> {
        for key in keys {
            check_database(key.db)?;
            writer.check_key(&name_of(*key))?;
        }
        if writer.conflicts() == ConflictPolicy::Refuse && writer.has_staged() {
            return Err(Error::Conflict);
        }
        writer.write_batch()?;
        let engine = Arc::clone(writer.engine());
        let stripe = |key: &Key<'_>| KeyLocks::stripe((engine.hash(&name_of(*key)) >> 32) as u32);
        // Locks are acquired in order, so that two groups never wait for each other.
        let stripes: BTreeSet<u32> = keys.iter().map(stripe).collect();
        let mut claimed = ClaimedStripes {
            claims: engine.key_locks(),
            stripes: Vec::new(),
        };
        for stripe in stripes {
            engine.key_locks().lock(stripe, writer.conflicts())?;
            claimed.stripes.push(stripe);
        }
        let mut group = CacheGroup {
            writer,
            places: keys.iter().map(|key| (owned_name(*key), None)).collect(),
            staged: Vec::new(),
        };
        let verdict = body(&mut group)?;
        if verdict == GroupDecision::Apply {
            group.apply().inspect_err(|_| group.writer.abandon())?;
        }
        Ok(verdict)
    }

    /// Returns the index of `key` in `staged`, if the group has written it.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if the key is not one of the group's.
    fn place(&self, key: Key<'_>) -> Result<Option<usize>, Error> {
        let place = self.places.get(&owned_name(key));
        place.copied().ok_or(Error::NotInGroup)
    }

    fn apply(&mut self) -> Result<(), Error> {
        for (db, key, value) in std::mem::take(&mut self.staged) {
            let name = name_of(Key { db, bytes: &key });
            self.writer
                .stage_of_group(&name, value.as_ref().map(OwnedItem::borrow).as_ref())?;
        }
        // While the group's key locks are held.
        self.writer.write_batch()
    }

    /// Returns the staged write of `key`, if any.
    fn staged(&self, key: Key<'_>) -> Result<Option<Option<&OwnedItem>>, Error> {
        let place = self.place(key)?;
        Ok(place.map(|place| self.staged[place].2.as_ref()))
    }

    fn stage(&mut self, key: Key<'_>, value: Option<OwnedItem>) -> Result<(), Error> {
        let place = self.place(key)?;
        let name = name_of(key);
        let worker = self.writer.worker();
        worker.pin();
        let found = worker.find_live(worker.engine().hash(&name), &name);
        worker.unpin();
        if let Some(found) = found {
            found.check_unlocked()?;
        }
        match place {
            Some(place) => self.staged[place].2 = value,
            None => {
                let place = self.places.get_mut(&owned_name(key));
                *place.ok_or(Error::NotInGroup)? = Some(self.staged.len());
                self.staged.push((key.db, key.bytes.to_vec(), value));
            }
        }
        Ok(())
    }
}

fn owned_name(key: Key<'_>) -> (u8, Vec<u8>) {
    (key.db, key.bytes.to_vec())
}

fn meta_of(owned: &OwnedItem) -> ValueMeta {
    ValueMeta {
        value_bytes: owned.value.len(),
        expires_ms: owned.expires_ms,
        flags: owned.flags,
        kind: owned.kind,
        version: 0,
    }
}

impl<N: Medium, F: Medium> Ops for CacheGroup<'_, N, F> {
    fn get(
        &mut self,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
        head: Frame<'_>,
    ) -> Result<bool, Error> {
        let now_ms = self.writer.engine().now_ms();
        match self.staged(key)? {
            None => {
                self.writer.admit(key.db)?;
                self.writer.get(&name_of(key), view, out, head)
            }
            Some(Some(owned)) if owned.expires_ms == 0 || owned.expires_ms > now_ms => {
                if head(&meta_of(owned), out) {
                    out.extend_from_slice(&owned.value);
                }
                Ok(true)
            }
            Some(_) => Ok(false),
        }
    }

    fn meta(&mut self, key: Key<'_>, _: ReadView) -> Result<Option<ValueMeta>, Error> {
        let now_ms = self.writer.engine().now_ms();
        match self.staged(key)? {
            None => {
                self.writer.admit(key.db)?;
                self.writer.meta(&name_of(key))
            }
            Some(owned) => Ok(owned
                .filter(|owned| owned.expires_ms == 0 || owned.expires_ms > now_ms)
                .map(meta_of)),
        }
    }

    fn put(&mut self, key: Key<'_>, value: Value<'_>) -> Result<u64, Error> {
        self.stage(key, Some(value.into()))?;
        Ok(0)
    }

    fn delete(&mut self, key: Key<'_>) -> Result<bool, Error> {
        let was_there = self.meta(key, ReadView::Pending)?.is_some();
        self.stage(key, None)?;
        Ok(was_there)
    }

    fn update(
        &mut self,
        key: Key<'_>,
        decide: &mut dyn FnMut(Option<StoredItem<'_>>) -> UpdateDecision,
    ) -> Result<u64, Error> {
        let (mut bytes, mut meta) = (Vec::new(), ValueMeta::default());
        let found = self.get(key, ReadView::Pending, &mut bytes, &mut |found, _| {
            meta = *found;
            true
        })?;
        let item = found.then_some(StoredItem {
            bytes: &bytes,
            meta,
        });
        match decide(item).into() {
            ChangeDecision::Keep => return Ok(if found { meta.version } else { 0 }),
            ChangeDecision::Delete => self.stage(key, None)?,
            ChangeDecision::Put(owned) => self.stage(key, Some(owned))?,
        }
        Ok(0)
    }

    fn now_ms(&self) -> u64 {
        self.writer.engine().now_ms()
    }
}
