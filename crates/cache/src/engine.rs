//! What the sessions of a cache share.

use std::sync::{OnceLock, PoisonError};
use std::thread::Thread;

use farbank_pm::epoch::EpochTable;
use farbank_pm::key_hash::KeyHash;
use farbank_pm::pool::Pool;
use farbank_pm::process_stamp::ProcessStamp;
use farbank_pm::sync::Mutex;
use farbank_pm::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farbank_pm::{Medium, Off, PersistCounters, PersistCtx, Poisoned};

use farbank_kv::clock::{ClockShift, StoreClock};
use farbank_kv::store::{Error, OpenReport};

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
use crate::worker::ItemKey;

/// What is counted beside the lists.
#[derive(Default)]
pub(crate) struct ItemCounters {
    /// Items whose checksum did not hold.
    pub(crate) damaged: AtomicU64,
    /// Items that had expired, or were cleared, and were removed.
    pub(crate) reclaimed: AtomicU64,
    /// Bytes of items stored.
    pub(crate) stored_bytes: AtomicU64,
    /// Writes that a later one of the same batch took the place of.
    pub(crate) merged_writes: AtomicU64,
    /// Bytes of items moved between pages.
    pub(crate) moved_bytes: AtomicU64,
    /// Pages that went back to the pool.
    pub(crate) pages_freed: AtomicU64,
}

/// Free pages below which a pool that may grow does, before a session needs them.
pub(crate) const PAGES_AHEAD: usize = 8;

/// Everything that is shared.
pub(crate) struct Engine<N, F> {
    pub(crate) near: Metadata<N>,
    pub(crate) pool: Pool<F>,
    pub(crate) classes: SlotClasses,
    pub(crate) areas: AreaTable,
    pub(crate) claims: KeyLocks,
    pub(crate) epochs: EpochTable,
    pub(crate) purses: SlotCaches,
    pub(crate) state: Mutex<CacheState>,
    pub(crate) config: Config,
    pub(crate) tally: ItemCounters,
    pub(crate) balance: Mutex<EvictionBalance>,
    /// What sessions asked of the data medium.
    pub(crate) counters: Mutex<PersistCounters>,
    pub(crate) opened: OpenReport,
    /// What seeds checksums on the data medium.
    pub(crate) secret: u64,
    pub(crate) key_hash: KeyHash,
    pub(crate) version: AtomicU64,
    pub(crate) sessions: AtomicU32,
    pub(crate) clock: StoreClock,
    pub(crate) root: Mutex<CacheRoot>,
    /// Segments the pool may grow to.
    pub(crate) segments_max: u32,
    pub(crate) growing: Mutex<()>,
    /// The background thread, which has the pool grow before its pages are used up.
    pub(crate) tender: OnceLock<Thread>,
    /// One round of the background, or a check, which sees no half of one.
    pub(crate) tending: Mutex<()>,
    /// Not before this uptime is growth tried again, once it failed.
    pub(crate) grows_from_ms: AtomicU64,
    /// Why the last growth failed, if none has succeeded since.
    pub(crate) growth_error: Mutex<Option<std::sync::Arc<str>>>,
    pub(crate) stop: AtomicBool,
    /// The one that has the pool open: a forked child uses nothing of this.
    pub(crate) process: ProcessStamp,
}

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Has the background thread make the pool larger, if it may, when so few pages are free.
    pub(crate) fn ask_for_growth(&self, free_pages: usize) {
        if free_pages < PAGES_AHEAD && self.pool.segments() < self.segments_max {
            self.tender.get().inspect(|tender| tender.unpark());
        }
    }

    #[inline]
    pub(crate) fn far(&self) -> &F {
        self.pool.medium()
    }

    /// The lock. What it guards is whole at all times: a panic elsewhere does not spoil it.
    pub(crate) fn lock(&self) -> LockedState<'_, N> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = &self.config.lock_watch {
            watch(true);
        }
        LockedState {
            near: &self.near,
            classes: &self.classes,
            areas: &self.areas,
            watch: self.config.lock_watch.as_ref(),
            state,
        }
    }

    /// The hash of a key: of its prefix alone if it has one, so that all of a prefix share a chain.
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

    /// Whether an item of `version` that expires at `expires_ms` has expired.
    #[inline]
    pub(crate) fn is_expired(&self, expires_ms: u64, version: u64) -> bool {
        self.clock.has_expired(expires_ms, version, || ())
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Where `page` is. The first segment is the table of areas.
    pub(crate) fn page_at(&self, page: u32) -> Off {
        self.pool.segment(page + 1)
    }

    pub(crate) fn slot_at(&self, page: u32, index: u32, class: u8) -> Off {
        let within = u64::from(index) * u64::from(self.classes.slot_bytes(class));
        self.page_at(page).plus(PAGE_HEAD_BYTES + within)
    }

    /// Where `slot` is; `None` if its page has no class.
    #[inline]
    pub(crate) fn place_of(&self, slot: SlotId) -> Option<Off> {
        let page = self.near.page_of(slot);
        let class = self.near.class_of(page)?;
        Some(self.slot_at(page, self.near.index_of(slot), class))
    }

    /// Bytes of metadata a page of `class` has for its slots.
    pub(crate) fn links_bytes(&self, class: u8) -> u64 {
        Metadata::<N>::links_bytes(self.classes.slots(class))
    }

    /// Pages of the pool.
    pub(crate) fn pages(&self) -> u32 {
        self.pool.segments() - 1
    }

    /// Slots of `class` a session takes at once: fewer of large ones.
    pub(crate) fn stash_slots(&self, class: u8) -> usize {
        const STASH_BYTES: usize = 64 << 10;
        let fit = STASH_BYTES / self.classes.slot_bytes(class) as usize;
        self.config.stash_slots.min(fit).max(1)
    }

    /// Where the entry of `area` is.
    pub(crate) fn area_at(&self, area: u32) -> Off {
        self.pool.segment(0).plus(u64::from(area) * AREA_BYTES)
    }

    /// Everything of `area` so far, or of all areas, is dead: durably on `Ok`. Two words are written, whatever the
    /// area holds. Nobody writes anything meanwhile: what was decided on before the clear is published before it.
    pub(crate) fn clear(&self, ctx: &mut PersistCtx, area: Option<u16>) -> Result<(), Error> {
        let area = area.map_or(all(self.areas.entries()), u32::from);
        self.process.check()?;
        self.claims.claim_all()?;
        let version = self.next_version();
        let cleared = self.write_cleared(ctx, area, version);
        if cleared.is_ok() {
            let _locked = self.lock();
            self.areas.clear(area, version);
        }
        self.claims.release_all();
        Ok(cleared?)
    }

    fn write_cleared(&self, ctx: &mut PersistCtx, area: u32, version: u64) -> Result<(), Poisoned> {
        let at = self.area_at(area);
        // L4: whichever of the two a power cut leaves, it says that the clear happened.
        self.far().store(ctx, at.plus(8), !version);
        self.far().store(ctx, at, version);
        self.far().flush(ctx, at, AREA_BYTES as usize);
        if farbank_pm::fault!("mdb.clear_undrained") {
            return Ok(());
        }
        let ticket = self.far().drain(ctx);
        self.far().wait(ticket)
    }

    /// Why the last growth failed, if none has succeeded since.
    pub(crate) fn growth_error(&self) -> Option<std::sync::Arc<str>> {
        let error = self.growth_error.lock();
        error.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note_growth(&self, error: Option<std::sync::Arc<str>>) {
        let last = self.growth_error.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Fetches the item that `hash`'s chain begins with, and what links it, if it may be the one that is meant.
    #[inline]
    pub(crate) fn prefetch_item(&self, hash: u64) -> Option<SlotId> {
        let word = self.near.bucket(self.near.bucket_of(hash));
        let (_, slot) = follow(word).filter(|(tag, _)| *tag == (hash >> 32) as u32)?;
        let at = self.place_of(slot)?;
        self.far().prefetch(at, ITEM_HEAD_BYTES + 64);
        self.near.prefetch_link(slot);
        Some(slot)
    }

    /// Fetches what changes when the item in `slot` leaves its list.
    #[inline]
    pub(crate) fn prefetch_neighbours(&self, slot: SlotId) {
        let (prev, next) = self.near.neighbours(slot);
        for beside in [prev, next] {
            if let Some(beside) = beside.checked_sub(1) {
                self.near.prefetch_link(SlotId(beside));
            }
        }
    }

    /// Writes the clock down, durably, so that what has expired stays so when the machine's clock is set back.
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

    /// Follows the wall clock if it has differed for long enough.
    pub(crate) fn follow_clock(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        match self.clock.shift() {
            None => {}
            Some(ClockShift::Ahead) => self.clock.set_ahead(),
            Some(ClockShift::Behind) => self.set_clock_back(ctx)?,
        }
        Ok(())
    }

    /// Takes the time of a wall clock that is behind, if it is. The setback is durable before the clock that was written
    /// down becomes less.
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
