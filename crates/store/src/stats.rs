//! Figures of a store.

use farbank_pm::PersistCounters;

use crate::value::DATABASES;

/// Figures for INFO and the status page, counted since the pool was opened unless stated otherwise. A section is
/// `None` in a store that has no such part.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Keys in each database now.
    pub keys: [u64; DATABASES],
    /// Expired values that were removed or replaced.
    pub expired_keys: u64,
    /// Records found damaged, at open or later.
    pub damaged_records: u64,
    /// Bytes of DRAM used by the index.
    pub index_bytes: u64,
    /// The pool and its space.
    pub pool: PoolStats,
    /// Bytes written for clients and to make room.
    pub writes: WriteStats,
    /// The log, in a store that has one.
    pub log: Option<LogStats>,
    /// The read cache, in a store that has one.
    pub read_cache: Option<ReadCacheStats>,
    /// Evictions and slab classes, in a store that is a cache.
    pub cache: Option<CacheStats>,
    /// Persistence operations issued to the medium by all sessions.
    pub persistence: PersistCounters,
}

/// Figures of a pool: its size and its space now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Size of the pool in bytes.
    pub bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments in the pool.
    pub segments: u32,
    /// Number of free segments.
    pub segments_free: u32,
    /// Bytes of live records: keys, values of any size, and their headers.
    pub live_bytes: u64,
    /// Live bytes the pool can hold before it refuses writes, or evicts.
    pub capacity_bytes: u64,
}

/// Figures of writes: bytes written for clients and to make room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteStats {
    /// Bytes of records appended by clients' writes.
    pub user_bytes: u64,
    /// Bytes of records that the store moved to empty segments.
    pub moved_bytes: u64,
    /// Segments that the store emptied.
    pub segments_cleaned: u64,
}

/// Figures of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes of live tombstones now.
    pub tombstone_bytes: u64,
    /// Bytes of DRAM for the maps of live records and of tombstones: two bits for each 32 bytes of the pool. They
    /// become resident as the pool is written.
    pub live_map_bytes: u64,
    /// Segment maps written.
    pub segment_maps_written: u64,
    /// Checkpoints of the index written.
    pub checkpoints_written: u64,
    /// Bytes of the pool that checkpoints of the index occupy.
    pub checkpoint_bytes: u64,
}

/// Figures of a read cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCacheStats {
    /// Bytes of DRAM that the read cache uses when it is full. 0 if it is turned off.
    pub bytes: u64,
    /// Single-key gets answered by the read cache.
    pub hits: u64,
    /// Single-key gets that looked into the read cache and missed.
    pub misses: u64,
}

/// Figures of a cache: a store that evicts items when it is full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Live keys evicted to make room.
    pub evictions: u64,
    /// Expired items whose room was reused at once for another item.
    pub reclaimed: u64,
    /// Writes that were replaced by a later write of the same key in the same batch before they reached far memory.
    pub merged_writes: u64,
    /// Slab classes that have pages, smallest slots first.
    pub classes: Vec<SlabClass>,
}

/// Figures of a slab class: slots of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlabClass {
    /// Number of the class, from 1.
    pub id: u32,
    /// Size of a slot in bytes.
    pub slot_bytes: u64,
    /// Slots in a page.
    pub slots_per_page: u64,
    /// Pages of the class now.
    pub pages: u64,
    /// Slots that hold an item now.
    pub slots_used: u64,
    /// Free slots now.
    pub slots_free: u64,
    /// Items in the class now.
    pub items: u64,
    /// Bytes of these items: keys, values and headers.
    pub item_bytes: u64,
    /// Seconds since the last use of the item that would be evicted next.
    pub age_secs: u64,
    /// Live items evicted.
    pub evicted: u64,
    /// Evicted live items that had an expiry.
    pub evicted_nonzero: u64,
    /// Seconds between the last use and the eviction of the item evicted last.
    pub evicted_time: u64,
    /// Writes refused because no item could be evicted.
    pub out_of_memory: u64,
    /// Expired items whose slot was reused for another item.
    pub reclaimed: u64,
}
