//! How an engine runs: nothing of it is stored.

use farbank_pm::pool::CopiedPoolPolicy;
use farbank_pm::sync::Arc;
use rustix::time::{ClockId, clock_gettime};

use crate::clock::STEP_HELD_MS;

/// Most bytes a read cache takes.
pub const READ_CACHE_BYTES_MAX: u64 = 64 << 30;

/// A source of milliseconds.
pub type ClockFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Who empties segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CleaningMode {
    /// A thread of the engine's own. Sessions that find no room wait for it.
    Background,
    /// Only sessions that find no room: nothing happens behind the caller's back.
    Inline,
}

/// How an engine runs; nothing of it is stored.
#[derive(Clone)]
pub struct Config {
    /// The machine's wall clock, in milliseconds since 1970.
    pub clock: ClockFn,
    /// A clock that is never set, in milliseconds since any moment: it measures time while the pool is open.
    pub uptime: ClockFn,
    /// How long the wall clock must differ from the store's before the store follows it, in milliseconds.
    pub step_held_ms: u64,
    /// Who empties segments.
    pub cleaning: CleaningMode,
    /// The pool may grow to this many bytes when it fills up (0: it does not grow).
    pub pool_bytes_max: u64,
    /// Keys the index has room for without growing, in an empty pool or after a scan (0: it grows as keys
    /// come). Ten bytes of DRAM each, taken when the pool is opened.
    pub keys_expected: u64,
    /// DRAM for copies of small values that are read often, in bytes, taken as they come (0: none are kept; at most
    /// [`READ_CACHE_BYTES_MAX`]).
    pub read_cache_bytes: u64,
    /// How many expected lifetimes records are told apart by, each with an open segment of its own in each session: up to 4
    /// (0: 1, 2 or 4, by how many segments the pool has).
    pub classes: usize,
    /// Records that the cleaner moves in one slice, at most: writers that clean, or wait for its lock, wait for that many (0: 1).
    pub slice_records: u32,
    /// What becomes of a copy of a pool in use when it is opened.
    pub copies: CopiedPoolPolicy,
    /// Threads that scan the pool at open.
    pub open_threads: usize,
    /// How often a session that finds no room lets others run, so that they leave segments that were
    /// emptied, before it takes the pool for full: a thousand times at once, then a millisecond each.
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
            open_threads: std::thread::available_parallelism().map_or(1, usize::from),
            patience: 2_000,
        }
    }
}

/// The machine's clock, as a [`Clock`].
#[must_use]
pub fn wall_clock_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Milliseconds since the machine started, time it was suspended included, as a [`Clock`].
#[must_use]
pub fn uptime_ms() -> u64 {
    let since = clock_gettime(ClockId::Boottime);
    since.tv_sec.cast_unsigned() * 1_000 + since.tv_nsec.cast_unsigned() / 1_000_000
}
