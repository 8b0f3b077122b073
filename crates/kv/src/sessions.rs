//! The sessions of a pool, and what other threads see of each.

use farbank_pm::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use farbank_pm::sync::{Arc, Mutex, MutexGuard, unpoisoned};
use farbank_pm::{Medium, PersistCounters, PersistCtx};
use farbank_store::DATABASES;

use crate::format::segment::SegmentInfo;
use crate::segments::Segments;
use crate::session_log::{OpenSegment, OpenSegments};

/// State of a session that other threads read.
#[derive(Debug, Default)]
pub(crate) struct SessionShared {
    pub keys: [AtomicI64; DATABASES],
    /// Gets answered by the read cache, and gets that missed it.
    pub cache_hits: AtomicU64,
    pub cache_misses: AtomicU64,
    pub counters: Mutex<PersistCounters>,
    /// Bytes of values that [`SpaceAccounting`](crate::segments::space::SpaceAccounting) does not count yet.
    pub outstanding: AtomicI64,
    /// The session's open segments, while it has nothing unpublished.
    pub parked: Mutex<OpenSegments>,
}

impl SessionShared {
    /// Adds the counts of a session that is being dropped.
    fn inherit(&self, dropped: &SessionShared) {
        for (to, from) in self.keys.iter().zip(&dropped.keys) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
        for (to, from) in [
            (&self.cache_hits, &dropped.cache_hits),
            (&self.cache_misses, &dropped.cache_misses),
        ] {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
        let counters = *unpoisoned(dropped.counters.lock());
        *unpoisoned(self.counters.lock()) += counters;
    }
}

/// All sessions of a pool. The first entry is the engine's own: it holds the counts found at open and those of dropped
/// sessions.
#[derive(Debug)]
pub(crate) struct SessionRegistry {
    entries: Mutex<Vec<Arc<SessionShared>>>,
    next_id: AtomicU32,
}

impl Default for SessionRegistry {
    fn default() -> SessionRegistry {
        SessionRegistry {
            entries: Mutex::new(vec![Arc::default()]),
            next_id: AtomicU32::new(1),
        }
    }
}

impl SessionRegistry {
    /// Locks the list of all entries.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Arc<SessionShared>>> {
        unpoisoned(self.entries.lock())
    }

    /// Returns the number of entries, the engine's own included.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Adds a session: returns its id and its entry.
    pub(crate) fn add(&self) -> (u32, Arc<SessionShared>) {
        let shared = Arc::new(SessionShared::default());
        self.lock().push(Arc::clone(&shared));
        (self.next_id.fetch_add(1, Relaxed), shared)
    }

    /// Removes a session. Its counts move to the engine's own entry.
    pub(crate) fn remove(&self, shared: &Arc<SessionShared>) {
        let mut entries = self.lock();
        if let Some(place) = entries.iter().position(|s| Arc::ptr_eq(s, shared)) {
            entries.swap_remove(place);
            entries[0].inherit(shared);
        }
    }

    /// Returns the number of keys in `db`.
    pub(crate) fn keys(&self, db: usize) -> u64 {
        let sum: i64 = self.lock().iter().map(|s| s.keys[db].load(Relaxed)).sum();
        sum.max(0) as u64
    }

    /// Returns the number of keys in all databases.
    pub(crate) fn keys_of_all(&self) -> u64 {
        (0..DATABASES).map(|db| self.keys(db)).sum()
    }

    /// Returns the bytes of values of all sessions that are staged, unpublished or not yet counted.
    pub(crate) fn outstanding(&self) -> u64 {
        let entries = self.lock();
        let sum: i64 = entries.iter().map(|s| s.outstanding.load(Relaxed)).sum();
        sum.max(0) as u64
    }

    /// Takes a parked segment with room for `len` bytes, preferably one of `class`.
    pub(crate) fn take_parked<M: Medium>(
        &self,
        segments: &Segments<M>,
        class: usize,
        len: usize,
    ) -> Option<Box<OpenSegment>> {
        let entries = self.lock();
        entries.iter().find_map(|shared| {
            let mut parked = unpoisoned(shared.parked.lock());
            parked.take_with_room(segments, class, len)
        })
    }

    /// Seals those parked segments that `is_wanted` selects. Returns the number sealed.
    pub(crate) fn seal_parked<M: Medium>(
        &self,
        segments: &Segments<M>,
        ctx: &mut PersistCtx,
        is_wanted: &dyn Fn(&SegmentInfo) -> bool,
    ) -> usize {
        let mut sealed = 0;
        for shared in self.lock().iter() {
            let mut parked = unpoisoned(shared.parked.lock());
            sealed += parked.seal(segments, ctx, is_wanted);
        }
        sealed
    }

    /// Returns the bytes that cleaning the parked segments would gain.
    pub(crate) fn gain_of_parked<M: Medium>(&self, segments: &Segments<M>) -> u64 {
        let entries = self.lock();
        let parked = entries
            .iter()
            .map(|shared| unpoisoned(shared.parked.lock()));
        parked.map(|parked| parked.gain(segments)).sum()
    }
}
