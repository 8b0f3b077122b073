//! Configuration of a cache, none of which is stored in the pool except the slot sizes.

use farbank_pm::pool::CopiedPoolPolicy;
use farbank_pm::sync::Arc;
use farbank_store::clock::STEP_HELD_MS;
use farbank_store::clock::{ClockFn, uptime_ms, wall_clock_ms};

/// Callback for each acquisition (true) and release (false) of the cache's lock.
pub type LockWatch = Arc<dyn Fn(bool) + Send + Sync>;

/// When the slots of a new page are formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageFormatting {
    /// Each slot when it is first used: a new page costs only the write of its head.
    AtUse,
    /// All slots when the page is taken, outside the lock: Tair MDB after its fix.
    Whole,
    /// All slots when the page is taken, under the lock: Tair MDB before its fix.
    WholeInsideLock,
}

/// Order in which a cache evicts the items of a class and an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum EvictionOrder {
    /// The least recently used item first, as Tair MDB. Reads are collected, and then move their items in a list under the
    /// cache's lock.
    #[default]
    Lru,
    /// S3-FIFO: items that are read again stay. A read increments a count in DRAM, without the lock.
    S3Fifo,
}

impl EvictionOrder {
    /// All orders.
    pub const ALL: [EvictionOrder; 2] = [EvictionOrder::Lru, EvictionOrder::S3Fifo];

    /// Returns the name of the order: `lru` or `s3-fifo`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EvictionOrder::Lru => "lru",
            EvictionOrder::S3Fifo => "s3-fifo",
        }
    }
}

/// Configuration of a cache. Only the slot sizes are stored in the pool.
#[derive(Clone)]
pub struct Config {
    /// The wall clock, in milliseconds since 1970.
    pub clock: ClockFn,
    /// A monotonic clock, in milliseconds since any moment. It measures time while the pool is open.
    pub uptime: ClockFn,
    /// How long the wall clock must differ from the cache's clock before the cache follows it, in milliseconds.
    pub step_held_ms: u64,
    /// Whether a background thread maintains the cache once a second: it removes expired items and merges pages.
    pub background_maintenance: bool,
    /// Boot id of the machine. On a medium that does not survive a reboot, an open discards data of another boot
    /// unless the pool was closed cleanly. `None` if the medium survives a reboot, or in tests.
    pub boot: Option<[u8; 16]>,
    /// Size up to which the pool grows before it evicts, in bytes; 0: it does not grow.
    pub pool_bytes_max: u64,
    /// Policy for opening a copy of a pool that was in use.
    pub copies: CopiedPoolPolicy,
    /// Slots of a class that a session takes at once into its slot cache, so that it does not lock for each one
    /// (Tair's thread-local quota). 1 evicts one item per write, in exact LRU order.
    pub slots_per_refill: usize,
    /// Order in which items are evicted. It may differ from open to open. [`EvictionOrder::S3Fifo`] takes DRAM besides: a byte
    /// for each of the smallest slots that fit in the pool, and half as much as the hash buckets.
    pub eviction: EvictionOrder,
    /// Hash buckets per KiB of the pool's maximum size.
    pub buckets_per_kib: f64,
    /// Smallest slot of a new pool, in bytes. The pool stores it.
    pub slot_bytes_min: u32,
    /// Growth factor from the slot size of one class to the next, for a new pool. The pool stores it.
    pub slot_factor: f64,
    /// When the slots of new pages are formatted.
    pub formatting: PageFormatting,
    /// Distance between the metadata of consecutive pages on the metadata medium, in bytes; 0 packs them. Tair pads
    /// across DIMMs with the interleaving of 4 KiB.
    pub page_info_stride: u64,
    /// Callback for lock acquisitions, for a performance model that cannot observe waits for the lock.
    pub lock_watch: Option<LockWatch>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            clock: Arc::new(wall_clock_ms),
            uptime: Arc::new(uptime_ms),
            step_held_ms: STEP_HELD_MS,
            background_maintenance: true,
            boot: None,
            pool_bytes_max: 0,
            copies: CopiedPoolPolicy::Refuse,
            slots_per_refill: 16,
            eviction: EvictionOrder::Lru,
            buckets_per_kib: 8.0,
            slot_bytes_min: 64,
            slot_factor: 1.1,
            formatting: PageFormatting::AtUse,
            page_info_stride: 0,
            lock_watch: None,
        }
    }
}
