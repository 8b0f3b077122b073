//! Settings of an engine. None of them is stored in the pool.

use farbank_pm::pool::CopiedPoolPolicy;
use farbank_pm::sync::Arc;
use farbank_store::clock::{ClockFn, STEP_HELD_MS, uptime_ms, wall_clock_ms};

/// Largest size of a read cache in bytes.
pub const READ_CACHE_BYTES_MAX: u64 = 64 << 30;

/// Threads that clean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CleaningMode {
    /// A background thread of the engine. Sessions that find no room wait for it.
    Background,
    /// Only sessions that find no room; no background thread runs.
    Inline,
}

/// Settings of an engine. None of them is stored in the pool.
#[derive(Clone)]
pub struct Config {
    /// The machine's wall clock, in milliseconds since 1970.
    pub clock: ClockFn,
    /// A monotonic clock in milliseconds, from any origin. It measures time while the pool is open.
    pub uptime: ClockFn,
    /// How long, in milliseconds, the wall clock must differ from the store's clock before the store adopts its time.
    pub step_held_ms: u64,
    /// Threads that clean.
    pub cleaning: CleaningMode,
    /// Size in bytes up to which a full pool grows (0: it does not grow).
    pub pool_bytes_max: u64,
    /// Number of keys for which the index is sized when the pool is opened empty or after a scan (0: the index grows
    /// with the keys). Takes about ten bytes of DRAM a key at open.
    pub keys_expected: u64,
    /// Size in bytes of the read cache in DRAM, for copies of small values that are read often (0: no cache; at most
    /// [`READ_CACHE_BYTES_MAX`]). The memory is allocated as values are cached.
    pub read_cache_bytes: u64,
    /// Number of classes of expected lifetime into which records are sorted, at most 4. Each session has an open
    /// segment for each class. 0: 1, 2 or 4, by the number of segments in the pool.
    pub classes: usize,
    /// Largest number of records that the cleaner moves in one slice (0: 1). Writers that clean, or that wait for the
    /// cleaner's lock, wait for at most one slice.
    pub slice_records: u32,
    /// What an open does with a copy of a pool that is in use.
    pub copies: CopiedPoolPolicy,
    /// Least number of bytes that are logged between two checkpoints of the index (0: no checkpoints).
    pub checkpoint_bytes: u64,
    /// Least number of bytes that are logged between two checkpoints for each byte of a checkpoint. So checkpoints add
    /// one byte in `checkpoint_share` to what is written, and an open after a crash reads about that much of the log.
    pub checkpoint_share: u64,
    /// Share of the capacity, in sixteenths, up to which values and two checkpoints may occupy the pool. In a fuller pool,
    /// the next checkpoint takes the segments of the one before it (0: always).
    pub checkpoint_pair_share: u64,
    /// Bytes of a checkpoint that are copied into DRAM before it takes the segments of the one before it.
    pub checkpoint_buffer_bytes: u64,
    /// Threads that scan the pool when it is opened.
    pub open_threads: usize,
    /// How often the cleaner waits for readers to leave retired segments before it gives up and a write may find the
    /// pool full. The first thousand waits only yield the CPU; each later one sleeps for a millisecond.
    pub patience: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            clock: Arc::new(wall_clock_ms),
            uptime: Arc::new(uptime_ms),
            step_held_ms: STEP_HELD_MS,
            cleaning: CleaningMode::Background,
            pool_bytes_max: 0,
            keys_expected: 0,
            read_cache_bytes: 16 << 20,
            classes: 0,
            slice_records: 1_024,
            copies: CopiedPoolPolicy::Refuse,
            checkpoint_bytes: 32 << 20,
            checkpoint_share: 4,
            checkpoint_pair_share: 12,
            checkpoint_buffer_bytes: 256 << 20,
            open_threads: std::thread::available_parallelism().map_or(1, usize::from),
            patience: 2_000,
        }
    }
}
