//! Statistics of a cache.

use std::sync::PoisonError;

use farbank_pm::sync::atomic::Ordering;
use farbank_pm::{Medium, PersistCounters};
use farbank_store::{CacheStats, PoolStats, SlabClass, Stats, WriteStats};

use crate::engine::Engine;
use crate::metadata::ClassCounter;

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Adds a session's counts since its last call to the totals: `now` less `told` of the medium, bytes of items
    /// stored, and merged writes.
    pub(crate) fn add_counters(
        &self,
        now: &PersistCounters,
        told: &PersistCounters,
        stored_bytes: u64,
        merged_writes: u64,
    ) {
        let tally = &self.tally;
        tally
            .stored_bytes
            .fetch_add(stored_bytes, Ordering::Relaxed);
        tally
            .merged_writes
            .fetch_add(merged_writes, Ordering::Relaxed);
        let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        *all += PersistCounters {
            lines: now.lines - told.lines,
            fences: now.fences - told.fences,
            bytes: now.bytes - told.bytes,
            syncs: now.syncs - told.syncs,
        };
    }
}

/// Returns the statistics of a class. Needs the lock.
pub(crate) fn class_of<N: Medium, F: Medium>(engine: &Engine<N, F>, class: u8) -> SlabClass {
    let tally = |what| engine.metadata.tally(class, what);
    let slot_bytes = u64::from(engine.classes.slot_bytes(class));
    let slots_per_page = u64::from(engine.classes.slots(class));
    let (pages, items) = (tally(ClassCounter::Pages), tally(ClassCounter::Items));
    SlabClass {
        id: u32::from(class) + 1,
        slot_bytes,
        slots_per_page,
        pages,
        slots_used: items,
        slots_free: pages * slots_per_page - items,
        items,
        item_bytes: items * slot_bytes,
        evicted: tally(ClassCounter::Evicted),
        ..SlabClass::default()
    }
}

/// Returns the current statistics.
pub(crate) fn stats<N: Medium, F: Medium>(engine: &Engine<N, F>) -> Stats {
    let page_bytes = engine.pool.segment_bytes();
    let locked = engine.lock();
    let (mut live_bytes, mut near_bytes, mut evictions) = (0, 8 * engine.metadata.buckets(), 0);
    let mut classes = Vec::new();
    for class in 0..engine.classes.len() as u8 {
        let own = class_of(engine, class);
        live_bytes += own.item_bytes;
        near_bytes += own.pages * engine.links_bytes(class);
        evictions += own.evicted;
        if own.pages > 0 {
            classes.push(own);
        }
    }
    let free = locked.state.free_pages.len() as u32;
    let used = engine.pages() - locked.pages_held() as u32;
    drop(locked);
    let load = |count: &farbank_pm::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    Stats {
        keys: std::array::from_fn(|db| engine.areas.items(db as u16)),
        expired_keys: load(&engine.tally.reclaimed),
        damaged_records: load(&engine.tally.damaged),
        index_bytes: near_bytes,
        pool: PoolStats {
            bytes: engine.far().len(),
            segment_bytes: page_bytes,
            segments: used,
            segments_free: free,
            live_bytes,
            capacity_bytes: u64::from(used) * page_bytes,
        },
        writes: WriteStats {
            user_bytes: load(&engine.tally.stored_bytes),
            moved_bytes: load(&engine.tally.moved_bytes),
            segments_cleaned: load(&engine.tally.pages_freed),
        },
        log: None,
        read_cache: None,
        cache: Some(CacheStats {
            evictions,
            reclaimed: load(&engine.tally.reclaimed),
            merged_writes: load(&engine.tally.merged_writes),
            classes,
        }),
        persistence: *engine
            .counters
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    }
}
