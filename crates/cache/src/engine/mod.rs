//! State that the sessions of a cache share.
//!
//! * `lookup` finds items and prefetches them.
//! * `clearing` removes the items of an area.
//! * `time` has the clock and the versions.
//! * `growth` enlarges the pool.
//! * `figures` makes the statistics.
//! * `session_table` has what each session registers: its epoch slot and its slot cache.

mod clearing;
mod figures;
mod growth;
mod lookup;
mod session_table;
mod time;

use std::sync::{Arc, OnceLock};

use farbank_pm::key_hash::KeyHash;
use farbank_pm::process_stamp::ProcessStamp;
use farbank_pm::sync::atomic::{AtomicBool, Ordering};
use farbank_pm::sync::{Mutex, MutexGuard, lock, unpoisoned};
use farbank_pm::{Medium, Poisoned};
use farbank_store::EvictionListener;
use farbank_store::clock::StoreClock;

use self::growth::PoolGrowth;
use self::session_table::SessionTable;
use self::time::CacheTime;
use crate::areas::AreaTable;
use crate::balance::EvictionBalance;
use crate::config::Config;
use crate::counters::CacheCounters;
use crate::data::DataMedium;
use crate::key_locks::KeyLocks;
use crate::layout::areas_in;
use crate::metadata::{Metadata, SlotId};
use crate::state::{LockedMetadata, LockedState};

/// Shared state of a cache.
pub(crate) struct Engine<N, F> {
    data: DataMedium<F>,
    metadata: LockedMetadata<N>,
    areas: AreaTable,
    key_hash: KeyHash,
    key_locks: KeyLocks,
    time: CacheTime,
    sessions: SessionTable,
    growth: PoolGrowth,
    maintenance: MaintenanceState,
    counters: CacheCounters,
    evictions: OnceLock<Arc<dyn EvictionListener>>,
    /// Process that opened the pool. A forked child must not use this state.
    process: ProcessStamp,
}

/// State of maintenance.
#[derive(Default)]
struct MaintenanceState {
    /// Lock held during a round of background maintenance, and during a check, which must not see an unfinished
    /// round.
    round: Mutex<()>,
    balance: Mutex<EvictionBalance>,
    stop: AtomicBool,
}

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Registers the listener for evicted keys. The first one stays.
    pub(crate) fn set_eviction_listener(&self, listener: Arc<dyn EvictionListener>) {
        // A cache has one server.
        let _ = self.evictions.set(listener);
    }

    /// The listener for evicted keys, if it is on.
    pub(crate) fn eviction_listener(&self) -> Option<&dyn EvictionListener> {
        let listener = self.evictions.get()?;
        listener.is_on().then_some(&**listener)
    }

    /// Creates the state of an empty cache on `data`. Versions start after `version`. The pool may grow to
    /// `segments_max` segments.
    pub(crate) fn new(
        data: DataMedium<F>,
        metadata: Metadata<N>,
        (clock, version): (StoreClock, u64),
        segments_max: u32,
        config: Config,
    ) -> Engine<N, F> {
        let classes = data.classes().len();
        Engine {
            metadata: LockedMetadata::new(metadata, classes, config.eviction, config.lock_watch),
            areas: AreaTable::new(areas_in(data.page_bytes()) as u32),
            key_hash: data.pool().key_hash(),
            key_locks: KeyLocks::new(),
            time: CacheTime::new(clock, version),
            sessions: SessionTable::new(classes, config.slots_per_refill),
            growth: PoolGrowth::new(segments_max, config.formatting),
            maintenance: MaintenanceState::default(),
            counters: CacheCounters::default(),
            evictions: OnceLock::new(),
            process: ProcessStamp::current(),
            data,
        }
    }

    #[inline]
    pub(crate) fn data(&self) -> &DataMedium<F> {
        &self.data
    }

    pub(crate) fn into_medium(self) -> F {
        self.data.into_medium()
    }

    #[inline]
    pub(crate) fn areas(&self) -> &AreaTable {
        &self.areas
    }

    #[inline]
    pub(crate) fn key_locks(&self) -> &KeyLocks {
        &self.key_locks
    }

    #[inline]
    pub(crate) fn sessions(&self) -> &SessionTable {
        &self.sessions
    }

    #[inline]
    pub(crate) fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// Returns the number of slab classes.
    pub(crate) fn class_count(&self) -> u8 {
        self.data.classes().len() as u8
    }

    /// Acquires the lock.
    pub(crate) fn lock(&self) -> LockedState<'_, N> {
        self.metadata.lock(self.data.classes(), &self.areas)
    }

    /// Counts a read of the item in `slot`, if the order of eviction is S3-FIFO. Returns whether it is.
    #[inline]
    pub(crate) fn note_use(&self, slot: SlotId) -> bool {
        let uses = self.metadata.uses();
        if let Some(uses) = uses {
            uses.note(slot);
        }
        uses.is_some()
    }

    // -- processes

    /// Returns an error in a forked child.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Poisoned> {
        self.process.check()
    }

    /// Returns whether the calling process opened the pool.
    pub(crate) fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    // -- maintenance

    /// Acquires the lock of a round of maintenance.
    pub(crate) fn lock_round(&self) -> MutexGuard<'_, ()> {
        unpoisoned(self.maintenance.round.lock())
    }

    pub(crate) fn lock_balance(&self) -> MutexGuard<'_, EvictionBalance> {
        lock(&self.maintenance.balance)
    }

    /// Makes background maintenance stop after what it is doing.
    pub(crate) fn stop_maintenance(&self) {
        self.maintenance.stop.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.maintenance.stop.load(Ordering::Acquire)
    }
}
