//! How a cache runs. Nothing of it is stored.

use farbank_kv::clock::STEP_HELD_MS;
use farbank_kv::{ClockFn, uptime_ms, wall_clock_ms};
use farbank_pm::pool::CopiedPoolPolicy;
use farbank_pm::sync::Arc;

/// Told whenever the cache's lock is taken (true) and let go (false).
pub type LockWatch = Arc<dyn Fn(bool) + Send + Sync>;

/// When the slots of a fresh page are made ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageFormatting {
    /// Each when it is first used: a fresh page costs its head.
    AtUse,
    /// All when the page is taken, outside of the lock: Tair MDB as it was mended.
    Whole,
    /// All when the page is taken, under the lock: Tair MDB as it was measured first.
    WholeInsideLock,
}

/// How a cache runs; nothing of it is stored.
#[derive(Clone)]
pub struct Config {
    /// The machine's wall clock, in milliseconds since 1970.
    pub clock: ClockFn,
    /// A clock that is never set, in milliseconds since any moment: it measures time while the pool is open.
    pub uptime: ClockFn,
    /// How long the wall clock must differ from the cache's before the cache follows it, in milliseconds.
    pub step_held_ms: u64,
    /// Whether a thread of the cache's own tends it once a second: expired items go, pages are merged.
    pub tended: bool,
    /// This start of the machine. On a medium that does not outlive it, what another start left is not believed
    /// unless it was closed cleanly. `None` where the medium outlives the machine, or for tests.
    pub boot: Option<[u8; 16]>,
    /// The pool may grow to this many bytes before anything is evicted (0: it does not grow).
    pub pool_bytes_max: u64,
    /// What becomes of a copy of a pool in use when it is opened.
    pub copies: CopiedPoolPolicy,
    /// Slots of a class a session takes at once, and keeps, so that it need not lock for each: the thread-local
    /// quota. 1 evicts one item a write, in exact order.
    pub stash_slots: usize,
    /// Hash buckets a pool has for each 1024 of the bytes it may have.
    pub buckets_per_kib: f64,
    /// Smallest slot, in bytes. Also decides classes: a pool must be opened with what it was made with.
    pub slot_bytes_min: u32,
    /// How much larger each class's slots are than those of the one before.
    pub slot_factor: f64,
    /// When fresh pages are made ready.
    pub formatting: PageFormatting,
    /// Bytes between one page's metadata and the next on the metadata medium; 0 packs them. Tair's padding across
    /// DIMMs is the interleaving's 4 KiB.
    pub page_info_stride: u64,
    /// Who is told of the lock: a model, to which the wait for it would not be seen.
    pub lock_watch: Option<LockWatch>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            clock: Arc::new(wall_clock_ms),
            uptime: Arc::new(uptime_ms),
            step_held_ms: STEP_HELD_MS,
            tended: true,
            boot: None,
            pool_bytes_max: 0,
            copies: CopiedPoolPolicy::Refuse,
            stash_slots: 16,
            buckets_per_kib: 8.0,
            slot_bytes_min: 64,
            slot_factor: 1.1,
            formatting: PageFormatting::AtUse,
            page_info_stride: 0,
            lock_watch: None,
        }
    }
}
