//! State that the sessions of a cache share.

use std::sync::{OnceLock, PoisonError};
use std::thread::Thread;

use farbank_pm::epoch::EpochTable;
use farbank_pm::key_hash::KeyHash;
use farbank_pm::pool::Pool;
use farbank_pm::process_stamp::ProcessStamp;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farbank_pm::{Medium, Off, PersistCounters, PersistCtx, Poisoned};

use farbank_store::clock::{ClockShift, StoreClock};
use farbank_store::{Error, ItemKey, OpenReport};

use crate::areas::{AreaTable, all, clock};
use crate::balance::EvictionBalance;
use crate::classes::SlotClasses;
use crate::config::Config;
use crate::key_locks::KeyLocks;
use crate::layout::{AREA_BYTES, ITEM_HEAD_BYTES, PAGE_HEAD_BYTES};
use crate::metadata::{Metadata, SlotId, follow};
use crate::root::CacheRoot;
use crate::slot_cache::SlotCaches;
use crate::state::{CacheState, LockedState};

/// Counters outside the lists.
#[derive(Default)]
pub(crate) struct ItemCounters {
    /// Reads of items with a wrong checksum.
    pub(crate) damaged: AtomicU64,
    /// Expired or cleared items that were removed.
    pub(crate) reclaimed: AtomicU64,
    /// Bytes of items stored.
    pub(crate) stored_bytes: AtomicU64,
    /// Writes that a later write of the same batch replaced.
    pub(crate) merged_writes: AtomicU64,
    /// Bytes of items moved between pages.
    pub(crate) moved_bytes: AtomicU64,
    /// Pages that were returned to the pool.
    pub(crate) pages_freed: AtomicU64,
}

/// Number of free pages below which the background thread grows the pool, before a session needs a page.
pub(crate) const PAGES_AHEAD: usize = 8;

/// Shared state of a cache.
pub(crate) struct Engine<N, F> {
    pub(crate) metadata: Metadata<N>,
    pub(crate) pool: Pool<F>,
    pub(crate) classes: SlotClasses,
    pub(crate) areas: AreaTable,
    pub(crate) key_locks: KeyLocks,
    pub(crate) epochs: EpochTable,
    pub(crate) slot_caches: SlotCaches,
    pub(crate) state: Mutex<CacheState>,
    pub(crate) config: Config,
    pub(crate) tally: ItemCounters,
    pub(crate) balance: Mutex<EvictionBalance>,
    /// Operations of all sessions on the data medium.
    pub(crate) counters: Mutex<PersistCounters>,
    pub(crate) opened: OpenReport,
    /// Secret that seeds the checksums on the data medium.
    pub(crate) secret: u64,
    pub(crate) key_hash: KeyHash,
    pub(crate) version: AtomicU64,
    pub(crate) sessions: AtomicU32,
    pub(crate) clock: StoreClock,
    pub(crate) root: Mutex<CacheRoot>,
    /// Maximum number of segments of the pool.
    pub(crate) segments_max: u32,
    pub(crate) growing: Mutex<()>,
    /// Background thread, which grows the pool before its pages are used up.
    pub(crate) maintenance_thread: OnceLock<Thread>,
    /// Lock held during a round of background maintenance, and during a check, which must not see an unfinished
    /// round.
    pub(crate) maintenance_lock: Mutex<()>,
    /// Uptime in milliseconds before which growth is not tried again after a failure.
    pub(crate) grows_from_ms: AtomicU64,
    /// Error of the last growth, if it failed.
    pub(crate) growth_error: Mutex<Option<std::sync::Arc<str>>>,
    pub(crate) stop: AtomicBool,
    /// Process that opened the pool. A forked child must not use this state.
    pub(crate) process: ProcessStamp,
}

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Wakes the background thread to grow the pool, if few pages are free and the pool may grow.
    pub(crate) fn wake_for_growth(&self, free_pages: usize) {
        if free_pages < PAGES_AHEAD && self.pool.segments() < self.segments_max {
            self.maintenance_thread
                .get()
                .inspect(|tender| tender.unpark());
        }
    }

    #[inline]
    pub(crate) fn far(&self) -> &F {
        self.pool.medium()
    }

    /// Acquires the lock. Poisoning is ignored, because the guarded state is consistent at all times.
    pub(crate) fn lock(&self) -> LockedState<'_, N> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = &self.config.lock_watch {
            watch(true);
        }
        LockedState {
            near: &self.metadata,
            classes: &self.classes,
            areas: &self.areas,
            watch: self.config.lock_watch.as_ref(),
            state,
        }
    }

    /// Returns the hash of a key. A key with a prefix is hashed by the prefix alone, so that all keys of a prefix
    /// share a chain.
    #[inline]
    pub(crate) fn hash(&self, name: &ItemKey<'_>) -> u64 {
        let hashed = match usize::from(name.prefix_bytes) {
            0 => name.key,
            prefix => &name.key[..prefix],
        };
        self.key_hash.hash(name.area.into(), hashed)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Returns whether an item of `version` that expires at `expires_ms` has expired.
    #[inline]
    pub(crate) fn is_expired(&self, expires_ms: u64, version: u64) -> bool {
        self.clock.has_expired(expires_ms, version, || ())
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the offset of `page`. The first segment is the area table, not a page.
    pub(crate) fn page_at(&self, page: u32) -> Off {
        self.pool.segment(page + 1)
    }

    pub(crate) fn slot_at(&self, page: u32, index: u32, class: u8) -> Off {
        let within = u64::from(index) * u64::from(self.classes.slot_bytes(class));
        self.page_at(page).plus(PAGE_HEAD_BYTES + within)
    }

    /// Returns the offset of `slot`, or `None` if its page has no class.
    #[inline]
    pub(crate) fn place_of(&self, slot: SlotId) -> Option<Off> {
        let page = self.metadata.page_of(slot);
        let class = self.metadata.class_of(page)?;
        Some(self.slot_at(page, self.metadata.index_of(slot), class))
    }

    /// Returns the bytes of links that a page of `class` needs.
    pub(crate) fn links_bytes(&self, class: u8) -> u64 {
        Metadata::<N>::links_bytes(self.classes.slots(class))
    }

    /// Returns the number of pages of the pool.
    pub(crate) fn pages(&self) -> u32 {
        self.pool.segments() - 1
    }

    /// Returns the number of slots of `class` that a session takes at once. It is smaller for large slots.
    pub(crate) fn stash_slots(&self, class: u8) -> usize {
        const STASH_BYTES: usize = 64 << 10;
        let fit = STASH_BYTES / self.classes.slot_bytes(class) as usize;
        self.config.slots_per_refill.min(fit).max(1)
    }

    /// Returns the offset of the table entry of `area`.
    pub(crate) fn area_at(&self, area: u32) -> Off {
        self.pool.segment(0).plus(u64::from(area) * AREA_BYTES)
    }

    /// Removes all current items of `area`, or of all areas, durably on `Ok`. Writes two words, however many items
    /// there are. Holds all key locks meanwhile, so that every write decided before the clear is published before it.
    pub(crate) fn clear(&self, ctx: &mut PersistCtx, area: Option<u16>) -> Result<(), Error> {
        let area = area.map_or(all(self.areas.entries()), u32::from);
        self.process.check()?;
        self.key_locks.lock_all()?;
        let version = self.next_version();
        let cleared = self.write_cleared(ctx, area, version);
        if cleared.is_ok() {
            let _locked = self.lock();
            self.areas.clear(area, version);
        }
        self.key_locks.release_all();
        Ok(cleared?)
    }

    fn write_cleared(&self, ctx: &mut PersistCtx, area: u32, version: u64) -> Result<(), Poisoned> {
        let at = self.area_at(area);
        // MDB-ITEM-4: if a power cut leaves only one of the two words, that word records the clear.
        self.far().store(ctx, at.plus(8), !version);
        self.far().store(ctx, at, version);
        self.far().flush(ctx, at, AREA_BYTES as usize);
        if farbank_pm::fault!("mdb.clear_undrained") {
            return Ok(());
        }
        let ticket = self.far().drain(ctx);
        self.far().wait(ticket)
    }

    /// Error of the last growth, if it failed.
    pub(crate) fn growth_error(&self) -> Option<std::sync::Arc<str>> {
        let error = self.growth_error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note_growth(&self, error: Option<std::sync::Arc<str>>) {
        let last = self.growth_error.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Prefetches the first item of the chain of `hash` and its links, if its tag matches. Returns its slot.
    #[inline]
    pub(crate) fn prefetch_item(&self, hash: u64) -> Option<SlotId> {
        let word = self.metadata.bucket(self.metadata.bucket_of(hash));
        let (_, slot) = follow(word).filter(|(tag, _)| *tag == (hash >> 32) as u32)?;
        let at = self.place_of(slot)?;
        self.far().prefetch(at, ITEM_HEAD_BYTES + 64);
        self.metadata.prefetch_link(slot);
        Some(slot)
    }

    /// Prefetches the links that change when the item in `slot` is removed from its LRU list.
    #[inline]
    pub(crate) fn prefetch_neighbours(&self, slot: SlotId) {
        let (prev, next) = self.metadata.neighbours(slot);
        for beside in [prev, next] {
            if let Some(beside) = beside.checked_sub(1) {
                self.metadata.prefetch_link(SlotId(beside));
            }
        }
    }

    /// Records the clock durably, so that expired items stay expired if the machine's clock is set back.
    pub(crate) fn keep_time(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        self.clock.act_on_time();
        self.clock.record(|now_ms| self.write_clock(ctx, now_ms))
    }

    fn write_clock(&self, ctx: &mut PersistCtx, now_ms: u64) -> Result<(), Poisoned> {
        let at = self.area_at(clock(self.areas.entries()));
        self.far().store(ctx, at, now_ms);
        self.far().store(ctx, at.plus(8), !now_ms);
        self.far().flush(ctx, at, AREA_BYTES as usize);
        let ticket = self.far().drain(ctx);
        self.far().wait(ticket)
    }

    /// Follows the wall clock if it has differed from the cache's clock for long enough.
    pub(crate) fn follow_clock(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        match self.clock.shift() {
            None => {}
            Some(ClockShift::Ahead) => self.clock.set_ahead(),
            Some(ClockShift::Behind) => self.set_clock_back(ctx)?,
        }
        Ok(())
    }

    /// Sets the clock back to the wall clock, if that is behind. The setback is durable before the recorded clock is
    /// reduced.
    pub(crate) fn set_clock_back(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        let version = self.next_version();
        let done = self.clock.set_back(version, |setbacks, now_ms| {
            let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
            root.setbacks = *setbacks;
            self.pool.set_root(ctx, &root.to_words())?;
            self.write_clock(ctx, now_ms)
        });
        done.map(|_| ())
    }
}
