//! What a table of such segments does, however a hash leads to one.

use farbank_pm::model::Category;
use farbank_pm::{Medium, Off};

use super::{DashSegments, InsertOutcome, KeyHashes, SegmentPlace};
use crate::index::{Index, IndexError, SpaceUse};
use crate::locks::{LockGuard, LockTable, VersionedRef};
use crate::pool_heap::{TablePool, TableWorker};

/// A segment under its lock, which still serves the hash it was found by.
pub(crate) struct LockedDashSegment<'a> {
    pub(crate) segment: Off,
    pub(crate) hash: u64,
    _guard: LockGuard<'a>,
}

/// A table of segments.
pub(crate) trait DashTable: Send + Sync {
    type Medium: Medium;

    /// Its name on the command line.
    const NAME: &'static str;

    fn ground(&self) -> &TablePool<Self::Medium>;

    fn dash(&self) -> DashSegments<'_, Self::Medium>;

    fn locks(&self) -> &LockTable;

    /// Where a hash sends its key within a segment.
    fn place(&self, hash: u64) -> SegmentPlace;

    /// What says where a hash leads.
    type Way: Copy;

    /// The segment a hash leads to now. Once it leads elsewhere, it never leads back.
    fn lookup(&self, hash: u64) -> VersionedRef<Self::Way>;

    /// Whether a hash that led to a segment does now.
    fn still(&self, hash: u64, led: VersionedRef<Self::Way>) -> bool;

    /// Has the CPU fetch what [`Table::lookup`] reads.
    fn prefetch_lookup(&self, hash: u64);

    /// Whether a segment that `hash` led to is one that the table made, and is where that leads. Its lock is held.
    fn validate(&self, segment: Off, hash: u64) -> Result<(), IndexError>;

    /// Whether keys of a hash are a segment's.
    fn owns(&self, segment: Off, hash: u64) -> bool;

    /// Makes the table larger, after an insert that found no room in a segment, or had to add some to its stash.
    fn grow(&self, worker: &mut TableWorker, held: LockedDashSegment<'_>)
    -> Result<(), IndexError>;

    /// Tells of each segment, and of a hash that leads there. Nobody changes the table meanwhile.
    fn each_segment(
        &self,
        each: &mut dyn FnMut(Off, u64) -> Result<(), IndexError>,
    ) -> Result<(), IndexError>;

    /// Slots, and bytes of far memory, of its parts, all of which have been touched.
    fn parts(&self) -> Result<(u64, u64), IndexError>;

    /// Bytes of DRAM.
    fn dram_bytes(&self) -> u64 {
        self.locks().bytes()
    }

    /// Whether all of it is sound. Nobody changes the table meanwhile.
    fn check_all(&self) -> Result<(), IndexError>;

    /// Takes the lock of the segment a hash leads to. What `fetch` asks the CPU for comes while the lock is waited for.
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
            |led| self.still(hash, led),
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

    /// Makes the segment that `hash` leads to, if it is one, durable as a killed process left it, and mends it.
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
            hasher: self.ground().hasher(),
            place: &|hash| self.place(hash),
            owned: &|hash| self.owns(segment, hash),
        };
        self.dash().persist_on_first_access(worker, segment, &keys)
    }

    /// Looks a segment through, when it is mended.
    fn check_segment(&self, segment: Off, hash: u64) -> Result<(), IndexError> {
        let accept = || self.persist_on_first_access(&mut self.ground().worker()?, segment, hash);
        self.locks().begin(segment, accept)?;
        let keys = KeyHashes {
            hasher: self.ground().hasher(),
            place: &|hash| self.place(hash),
            owned: &|hash| self.owns(segment, hash),
        };
        self.dash().check(segment, &keys)
    }
}

impl<T: DashTable> Index for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn worker(&self) -> Result<TableWorker, IndexError> {
        self.ground().worker()
    }

    /// Two lines, two drains, or one of each where the pair is in the line of its bits; three more of each at most if a pair
    /// must make room. What growing adds is the table's.
    fn insert(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let (hash, dash) = (self.ground().hash(key), self.dash());
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

    fn get(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        let _for = Category::KeyValue.spend();
        let (hash, dash) = (self.ground().hash(key), self.dash());
        let place = self.place(hash);
        self.locks().read(
            || self.lookup(hash),
            |led| self.still(hash, led),
            |segment| self.persist_on_first_access(worker, segment, hash),
            |segment| {
                dash.prefetch(segment, place); // the pair comes with its fingerprint, not after it
                Some(dash.value(dash.find(segment, place, key)?))
            },
        )
    }

    /// One line, one drain.
    fn update(
        &self,
        worker: &mut TableWorker,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let (hash, dash) = (self.ground().hash(key), self.dash());
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
    fn remove(&self, worker: &mut TableWorker, key: u64) -> Result<Option<u64>, IndexError> {
        let (hash, dash) = (self.ground().hash(key), self.dash());
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

    /// What leads to segments first, then locks and bits of both buckets.
    fn fetch(&self, keys: &[u64]) {
        for key in keys {
            self.prefetch_lookup(self.ground().hash(*key));
        }
        for key in keys {
            let hash = self.ground().hash(*key);
            let segment = self.lookup(hash).to;
            self.locks().prefetch(segment);
            self.dash().prefetch(segment, self.place(hash));
        }
    }

    fn each(
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

    fn space(&self, worker: &mut TableWorker) -> Result<SpaceUse, IndexError> {
        let keys = self.len(worker)?;
        let (slots, table_bytes) = self.parts()?;
        Ok(SpaceUse {
            keys,
            slots,
            table_bytes,
            far_bytes: self.ground().far_bytes(),
            dram_bytes: self.dram_bytes(),
        })
    }

    fn check(&self) -> Result<(), IndexError> {
        self.check_all()
    }
}
