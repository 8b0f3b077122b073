//! The operations common to both Dash tables. The tables differ in how a hash selects a segment.

use farbank_pm::model::Category;
use farbank_pm::{Medium, Off};

use super::{DashSegments, InsertOutcome, KeyHashes, SegmentPlace};
use crate::error::IndexError;
use crate::index::SpaceUse;
use crate::locks::{LockGuard, LockTable, VersionedRef};
use crate::pool_heap::{TablePool, TableWorker};
use crate::reserved_key::HashTable;

/// A locked segment that covers the hash it was looked up by.
pub(crate) struct LockedDashSegment<'a> {
    pub(crate) segment: Off,
    pub(crate) hash: u64,
    _guard: LockGuard<'a>,
}

/// A table of Dash segments.
pub(crate) trait DashTable: Send + Sync {
    type Medium: Medium;

    /// The name on the command line.
    const NAME: &'static str;

    fn table_pool(&self) -> &TablePool<Self::Medium>;

    fn dash(&self) -> DashSegments<'_, Self::Medium>;

    fn locks(&self) -> &LockTable;

    /// Returns the home bucket and the fingerprint of a hash.
    fn place(&self, hash: u64) -> SegmentPlace;

    /// The words that a lookup read, kept to check whether it is still current.
    type Way: Copy;

    /// Looks up the segment for a hash. A hash that has moved to another segment never moves back.
    fn lookup(&self, hash: u64) -> VersionedRef<Self::Way>;

    /// Returns whether a lookup's result is still current.
    fn is_current(&self, hash: u64, led: VersionedRef<Self::Way>) -> bool;

    /// Prefetches what [`DashTable::lookup`] reads.
    fn prefetch_lookup(&self, hash: u64);

    /// Checks that the segment for `hash` is one that the table created for it. The caller holds its lock.
    fn validate(&self, segment: Off, hash: u64) -> Result<(), IndexError>;

    /// Returns whether keys with this hash belong to the segment.
    fn owns(&self, segment: Off, hash: u64) -> bool;

    /// Enlarges the table after an insert that found a full segment or chained a stash bucket.
    fn grow(&self, worker: &mut TableWorker, held: LockedDashSegment<'_>)
    -> Result<(), IndexError>;

    /// Calls `each` for every segment, with a hash that leads to it. No thread may change the table meanwhile.
    fn each_segment(
        &self,
        each: &mut dyn FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError>;

    /// Returns the slots of the table and its bytes of far memory. Every segment must have been accessed since the
    /// open.
    fn parts(&self) -> Result<(u64, u64), IndexError>;

    /// Returns the bytes of DRAM.
    fn dram_bytes(&self) -> u64 {
        self.locks().bytes()
    }

    /// Checks the whole table. No thread may change it meanwhile.
    fn check_all(&self) -> Result<(), IndexError>;

    /// Takes the lock of the segment for a hash. `fetch` starts prefetches that overlap the wait for the lock.
    #[inline]
    fn hold(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        place: SegmentPlace,
        fetch: impl Fn(Off),
    ) -> Result<LockedDashSegment<'_>, IndexError> {
        let (segment, guard) = self.locks().hold(
            || self.lookup(hash),
            |led| self.is_current(hash, led),
            fetch,
            |segment| self.persist_on_first_access(worker, segment, hash),
        )?;
        self.dash().lock_far(worker, segment, place);
        Ok(LockedDashSegment {
            segment,
            hash,
            _guard: guard,
        })
    }

    /// Validates the segment for `hash`, makes durable what a killed process left in it, and repairs it.
    #[cold]
    fn persist_on_first_access(
        &self,
        worker: &mut TableWorker,
        segment: Off,
        hash: u64,
    ) -> Result<(), IndexError> {
        self.validate(segment, hash)?;
        self.dash().validate(segment)?;
        let keys = KeyHashes {
            hasher: self.table_pool().hasher(),
            place: &|hash| self.place(hash),
            owned: &|hash| self.owns(segment, hash),
        };
        self.dash().persist_on_first_access(worker, segment, &keys)
    }

    /// Checks a segment, after its repair.
    fn check_segment(&self, segment: Off, hash: u64) -> Result<(), IndexError> {
        let accept =
            || self.persist_on_first_access(&mut self.table_pool().worker()?, segment, hash);
        self.locks().begin(segment, accept)?;
        let keys = KeyHashes {
            hasher: self.table_pool().hasher(),
            place: &|hash| self.place(hash),
            owned: &|hash| self.owns(segment, hash),
        };
        self.dash().check(segment, &keys)
    }
}

impl<T: DashTable> HashTable for T {
    type Medium = T::Medium;

    const NAME: &'static str = T::NAME;

    const RESERVED_KEY: Option<u64> = None;

    fn table_pool(&self) -> &TablePool<T::Medium> {
        DashTable::table_pool(self)
    }

    /// Costs two lines and two drains, or one of each if the pair shares the line of its bits. A displacement adds up
    /// to three of each. Growth costs extra, depending on the table.
    fn insert_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let (hash, dash) = (self.table_pool().hash(key), self.dash());
        let place = self.place(hash);
        loop {
            let fetch = |segment| dash.prefetch_heads(segment, place);
            let held = self.hold(worker, hash, place, fetch)?;
            if let Some(spot) = dash.find(held.segment, place, key) {
                dash.unlock_far(worker, held.segment, place);
                return Ok(Some(dash.value(spot)));
            }
            match dash.insert(worker, held.segment, place, (key, value))? {
                InsertOutcome::There => {
                    dash.unlock_far(worker, held.segment, place);
                    return Ok(None);
                }
                InsertOutcome::Chained => {
                    self.grow(worker, held)?;
                    return Ok(None);
                }
                InsertOutcome::Full => self.grow(worker, held)?,
            }
        }
    }

    fn get_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        let _for = Category::KeyValue.scope();
        let (hash, dash) = (self.table_pool().hash(key), self.dash());
        let place = self.place(hash);
        self.locks().read(
            || self.lookup(hash),
            |led| self.is_current(hash, led),
            |segment| self.persist_on_first_access(worker, segment, hash),
            |segment| {
                dash.prefetch(segment, place); // pair and fingerprint lines together
                Some(dash.value(dash.find(segment, place, key)?))
            },
        )
    }

    /// One line, one drain.
    fn update_key(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let (hash, dash) = (self.table_pool().hash(key), self.dash());
        let place = self.place(hash);
        let fetch = |segment| dash.prefetch(segment, place);
        let held = self.hold(worker, hash, place, fetch)?;
        let old = match dash.find(held.segment, place, key) {
            Some(spot) => Some(dash.update(worker, spot, value)?),
            None => None,
        };
        dash.unlock_far(worker, held.segment, place);
        Ok(old)
    }

    /// One line, one drain.
    fn remove_key(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        let (hash, dash) = (self.table_pool().hash(key), self.dash());
        let place = self.place(hash);
        let fetch = |segment| dash.prefetch(segment, place);
        let held = self.hold(worker, hash, place, fetch)?;
        let spot = dash.find(held.segment, place, key);
        let old = spot.map(|spot| dash.value(spot));
        if let Some(spot) = spot {
            dash.remove(worker, held.segment, place, spot)?;
        }
        dash.unlock_far(worker, held.segment, place);
        Ok(old)
    }

    /// Prefetches the directory entries first, then locks and home buckets.
    fn fetch_keys(&self, keys: &[u64]) {
        for key in keys {
            self.prefetch_lookup(self.table_pool().hash(*key));
        }
        for key in keys {
            let hash = self.table_pool().hash(*key);
            let segment = self.lookup(hash).to;
            self.locks().prefetch(segment);
            self.dash().prefetch(segment, self.place(hash));
        }
    }

    fn each_pair(
        &self,
        worker: &mut TableWorker,
        each: &mut dyn FnMut(u64, u64),
    ) -> Result<(), IndexError> {
        self.each_segment(&mut |segment, hash| {
            let accept = || self.persist_on_first_access(worker, segment, hash);
            self.locks().begin(segment, accept)?;
            self.dash().each(segment, |_, key, value| each(key, value));
            Ok(())
        })
    }

    fn space_for(&self, keys: u64) -> Result<SpaceUse, IndexError> {
        let (slots, table_bytes) = self.parts()?;
        Ok(SpaceUse {
            keys,
            slots,
            table_bytes,
            far_bytes: self.table_pool().far_bytes(),
            dram_bytes: self.dram_bytes(),
        })
    }

    fn check_table(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
