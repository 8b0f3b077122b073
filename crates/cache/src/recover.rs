//! Creation of a cache, and recovery at its open.
//!
//! An open rebuilds the metadata from the items. It scans every slot of every page, and links the newest whole item
//! of each key in the order of their writes, so that the oldest is evicted first. New versions are greater than all
//! found ones.
//!
//! # Invariants
//! MDB-OPEN-1  Recovery keeps the newest whole item of a key. It makes the other ones durably dead, and also expired and
//!     cleared items. (Two whole items of a key are left only by a write that was not answered, so the older one
//!     would also be legal.)
//! MDB-OPEN-2  All kept items are durable before any is served, because a kill may have left them in CPU caches only. So is
//!     the death of the items found dead.
//! MDB-OPEN-3  A page head or an item that is invalid counts as free space: the cache loses data rather than guess.
//! MDB-OPEN-4  An item is durable before an older one is marked dead for it, so that a second crash leaves one of the two.

use std::sync::OnceLock;
use std::time::Instant;

use farbank_pm::epoch::EpochTable;
use farbank_pm::pool::{Pool, PoolIdentity, PoolLayout};
use farbank_pm::process_stamp::ProcessStamp;
use farbank_pm::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farbank_pm::sync::{Arc, Mutex};
use farbank_pm::{Drain, Kind, LINE, Medium, Off, PersistCtx, Poisoned, fault, situation};
use farbank_store::clock::StoreClock;
use farbank_store::{ItemKey, OpenReport};

use crate::api::{OpenError, PAGES_MIN};
use crate::areas::{AreaTable, all, clock};
use crate::classes::SlotClasses;
use crate::config::Config;
use crate::engine::{Engine, ItemCounters};
use crate::key_locks::KeyLocks;
use crate::layout::{
    AREA_BYTES, EXPIRES_MAX, ITEM_HEAD_BYTES, ItemHeader, PAGE_HEAD_BYTES, page_head, seed,
};
use crate::metadata::{Metadata, MetadataRoom, MetadataShape, SlotId};
use crate::root::CacheRoot;
use crate::slot_cache::SlotCaches;
use crate::state::CacheState;

/// Bits of a version that count writes within one open. The upper bits count the opens, so the versions after a kill
/// are greater than all before.
const VERSIONS_BITS: u32 = 40;
/// Bits of a slot number.
const SLOT_BITS: u32 = 32;

/// Creates an empty cache on all of `far`.
pub(crate) fn create<F: Medium>(
    far: F,
    page_bytes: u64,
    identity: PoolIdentity,
    config: &Config,
) -> Result<Pool<F>, OpenError> {
    let mut ctx = PersistCtx::new(0);
    let layout = PoolLayout {
        segment_bytes: page_bytes,
    };
    layout.check()?;
    let table = Off(layout.first_segment());
    let pages = far.len().saturating_sub(table.0) / page_bytes;
    if pages <= PAGES_MIN {
        return Err(OpenError::Size(format!(
            "the pool has {pages} pages of {page_bytes} bytes, but a cache needs more than {PAGES_MIN}: use a larger \
             pool or smaller pages"
        )));
    }
    let zeros = [0; 4096];
    for at in (0..page_bytes).step_by(zeros.len()) {
        far.copy_in(&mut ctx, table.plus(at), &[&zeros]);
    }
    let ticket = far.drain(&mut ctx);
    far.wait_until_durable(ticket)?;
    let root = CacheRoot {
        slot_bytes_min: u64::from(config.slot_bytes_min),
        slot_factor: config.slot_factor.to_bits(),
        clean: true,
        ..CacheRoot::default()
    };
    // The superblock is written last, together with the mark of a cache: an unfinished pool is not a pool.
    let words = root.to_words();
    Ok(Pool::create_with_root(
        far, &mut ctx, &layout, identity, &words,
    )?)
}

/// Opens the cache in `pool`. `near` allocates the metadata medium, which must be zero and have at least the bytes
/// requested.
pub(crate) fn open<N: Medium, F: Medium>(
    near: impl FnOnce(MetadataRoom) -> std::io::Result<N>,
    pool: Pool<F>,
    config: Config,
) -> Result<Arc<Engine<N, F>>, OpenError> {
    let started = Instant::now();
    let mut ctx = PersistCtx::new(0);
    let mut root = CacheRoot::from_words(&pool.root()).ok_or(OpenError::NotACache)?;
    let classes = classes_of(&pool, &root)?;
    let segments_max = pool.segments_within(config.pool_bytes_max);
    let shape = near_shape(&pool, &classes, &config, segments_max)?;
    let near = near(shape.room()).map_err(OpenError::Metadata)?;
    let boot = config.boot.map(words_of);
    // On a medium that does not survive a reboot, writes before the reboot were not ordered, so data of another boot
    // is discarded.
    let caps = pool.medium().caps();
    let cold = (caps.kind == Kind::Dram || caps.drain == Drain::Relaxed)
        && !root.clean
        && boot.is_some_and(|boot| boot != root.boot);
    let was_clean = root.clean;
    root.openings += 1;
    (root.clean, root.boot) = (false, boot.unwrap_or_default());
    pool.set_root(&mut ctx, &root.to_words())?;
    let near = Metadata::new(near, shape);
    let areas = AreaTable::new(areas_of(&pool) as u32);
    let clock = clock_of(&pool, &config, &root);
    let mut engine = Engine {
        state: Mutex::new(CacheState::new(&near, classes.len())),
        metadata: near,
        secret: pool.seed("items"),
        key_hash: pool.key_hash(),
        pool,
        classes,
        areas,
        key_locks: KeyLocks::new(),
        process: ProcessStamp::current(),
        epochs: EpochTable::default(),
        slot_caches: SlotCaches::default(),
        config,
        tally: ItemCounters::default(),
        balance: Mutex::default(),
        counters: Mutex::default(),
        opened: OpenReport::default(),
        version: AtomicU64::new(root.openings << VERSIONS_BITS),
        sessions: AtomicU32::new(1),
        clock,
        root: Mutex::new(root),
        segments_max,
        growing: Mutex::default(),
        maintenance_thread: OnceLock::new(),
        grows_from_ms: AtomicU64::new(0),
        growth_error: Mutex::default(),
        maintenance_lock: Mutex::default(),
        stop: AtomicBool::new(false),
    };
    let mut scan = PoolScan::default();
    restore_areas(&engine);
    scan.pages(&engine, &mut ctx, cold, was_clean)?;
    settle(&engine, &mut ctx)?; // MDB-OPEN-4
    let (keys, records) = (scan.link(&engine, &mut ctx)?, scan.seen);
    settle(&engine, &mut ctx)?; // MDB-OPEN-2
    // All expired items are durably dead by now (MDB-OPEN-2), so the clock may be set back.
    engine.set_clock_back(&mut ctx)?;
    engine.lock().hold_pages(root.pages_held);
    engine.opened = OpenReport {
        clean: was_clean,
        keys,
        records_scanned: records,
        segments_mapped: 0,
        damage: Vec::new(),
        elapsed_ms: started.elapsed().as_secs_f64() * 1000.0,
    };
    Ok(Arc::new(engine))
}

fn words_of(boot: [u8; 16]) -> [u64; 2] {
    let (low, high) = boot.split_at(8);
    [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("eight bytes")))
}

fn classes_of<F: Medium>(pool: &Pool<F>, root: &CacheRoot) -> Result<SlotClasses, OpenError> {
    let factor = f64::from_bits(root.slot_factor);
    let least = u32::try_from(root.slot_bytes_min).unwrap_or(0);
    let sound = (1.01..=4.0).contains(&factor)
        && (ITEM_HEAD_BYTES as u32 + 8..=4096).contains(&least)
        && u64::from(least) * 2 < pool.segment_bytes();
    if !sound {
        return Err(OpenError::Size(format!(
            "the smallest slot is {least} bytes and each class {factor} times the previous one, in pages of {} bytes; the \
             smallest slot must be {} to 4096 bytes and less than half a page, and the factor 1.01 to 4",
            pool.segment_bytes(),
            ITEM_HEAD_BYTES + 8
        )));
    }
    Ok(SlotClasses::new(pool.segment_bytes(), least, factor))
}

fn near_shape<F: Medium>(
    pool: &Pool<F>,
    classes: &SlotClasses,
    config: &Config,
    segments_max: u32,
) -> Result<MetadataShape, OpenError> {
    let pages = u64::from(segments_max);
    let slot_bits = (classes.slots_max() - 1).max(1).ilog2() + 1;
    if pages > 1 << (SLOT_BITS - slot_bits) {
        return Err(OpenError::Size(format!(
            "the pool has or may grow to {pages} pages of up to {} slots, but at most {} are supported: use larger pages",
            classes.slots_max(),
            1_u64 << (SLOT_BITS - slot_bits)
        )));
    }
    let buckets = pages as f64 * pool.segment_bytes() as f64 / 1024.0 * config.buckets_per_kib;
    Ok(MetadataShape {
        classes: classes.len() as u64,
        lists_max: (classes.len() as u64 * areas_of(pool)).min(1 << 20),
        pages_max: pages,
        page_info_stride: config.page_info_stride,
        bucket_bits: (buckets.max(64.0) as u64).ilog2().min(31),
        slot_bits,
    })
}

fn areas_of<F: Medium>(pool: &Pool<F>) -> u64 {
    (pool.segment_bytes() / AREA_BYTES).min(1 << 16)
}

/// Creates the clock, which starts no earlier than the recorded time. If the two words of the record disagree, the
/// earlier one counts.
fn clock_of<F: Medium>(pool: &Pool<F>, config: &Config, root: &CacheRoot) -> StoreClock {
    let entry = u64::from(clock(areas_of(pool) as u32));
    let at = pool.segment(0).plus(entry * AREA_BYTES);
    let mut words = [[0; 8]; 2];
    pool.medium().copy_out(at, words.as_flattened_mut());
    let [clock, inverse] = words.map(u64::from_le_bytes);
    let words = [clock, !inverse];
    // Two zero words mean that the clock was never recorded.
    let known = words[1] != u64::MAX;
    let clock_ms = words.into_iter().min().filter(|_| known).unwrap_or(0);
    let clocks = (config.clock.clone(), config.uptime.clone());
    let clock_ms = clock_ms.min(EXPIRES_MAX);
    StoreClock::new(clocks, config.step_held_ms, clock_ms, &root.setbacks)
}

/// Restores the version up to which each area was cleared (MDB-ITEM-4). A later power cut may lose the words of a clear that
/// a kill interrupted, but recovery has marked all the cleared items dead by then.
fn restore_areas<N: Medium, F: Medium>(engine: &Engine<N, F>) {
    let far = engine.far();
    let entries = engine.areas.entries();
    for area in (0..clock(entries)).chain([all(entries)]) {
        let at = engine.area_at(area);
        let (cleared, other) = (far.load(at), far.load(at.plus(8)));
        situation!(
            "mdb.clear_torn",
            cleared != !other && (cleared, other) != (0, 0)
        );
        let version = match (cleared, other) {
            (0, 0) => continue,
            (cleared, 0) => cleared,
            (cleared, other) => cleared.max(!other),
        };
        // No item has a version of this open yet, so a larger value is damage.
        let version = version.min(engine.version.load(Ordering::Relaxed));
        engine.areas.clear(area, version);
    }
}

fn settle<N: Medium, F: Medium>(
    engine: &Engine<N, F>,
    ctx: &mut PersistCtx,
) -> Result<(), Poisoned> {
    let ticket = engine.far().drain(ctx);
    engine.far().wait_until_durable(ticket)
}

/// A whole item that the scan found.
struct RecoveredItem {
    version: u64,
    slot: SlotId,
    at: Off,
}

/// Result of a scan.
#[derive(Default)]
struct PoolScan {
    kept: Vec<RecoveredItem>,
    seen: u64,
}

impl PoolScan {
    /// Scans every page. Adds free pages to the pool, and whole items to the list.
    fn pages<N: Medium, F: Medium>(
        &mut self,
        engine: &Engine<N, F>,
        ctx: &mut PersistCtx,
        cold: bool,
        was_clean: bool,
    ) -> Result<(), Poisoned> {
        let mut empty = Vec::new();
        for page in (0..engine.pages()).rev() {
            match page_class(engine, page).filter(|_| !cold) {
                Some(class) => self.page(engine, ctx, page, class, was_clean),
                None => {
                    situation!("mdb.page_free_at_open");
                    // Erase the head, so that the next open does not accept the page either if it compares only the
                    // last boot id.
                    engine.far().store(ctx, engine.page_at(page), 0);
                    empty.push(page);
                }
            }
        }
        engine.lock().state.free_pages.extend(empty);
        Ok(())
    }

    fn page<N: Medium, F: Medium>(
        &mut self,
        engine: &Engine<N, F>,
        ctx: &mut PersistCtx,
        page: u32,
        class: u8,
        was_clean: bool,
    ) {
        let far = engine.far();
        let durable_again = !was_clean && !fault!("mdb.recovery_volatile");
        if durable_again {
            far.flush(ctx, engine.page_at(page), LINE);
        }
        for index in 0..engine.classes.slots(class) {
            let at = engine.slot_at(page, index, class);
            let life = far.load(at);
            match whole(engine, at, life, class) {
                Some(head) => {
                    self.seen += 1;
                    situation!("mdb.item_after_close", was_clean);
                    situation!("mdb.item_after_crash", !was_clean);
                    if durable_again {
                        far.flush(ctx, at, head.bytes());
                    }
                    engine.version.fetch_max(head.version, Ordering::Relaxed);
                    let slot = engine.metadata.slot(page, index);
                    let version = head.version;
                    self.kept.push(RecoveredItem { version, slot, at });
                }
                None => {
                    situation!("mdb.item_torn", life != 0);
                    if life != 0 {
                        far.store(ctx, at, 0);
                    }
                    if durable_again || life != 0 {
                        far.flush(ctx, at, 8);
                    }
                }
            }
        }
        engine.lock().adopt_page(page, class);
    }

    /// Links the items found, oldest first. Marks an item dead if a newer one of its key replaces it, or if it is
    /// expired or cleared. Returns the number of live items.
    fn link<N: Medium, F: Medium>(
        &mut self,
        engine: &Engine<N, F>,
        ctx: &mut PersistCtx,
    ) -> Result<u64, Poisoned> {
        self.kept.sort_unstable_by_key(|kept| kept.version);
        let mut dead_items = 0;
        let mut key = Vec::new();
        for kept in &self.kept {
            let head = ItemHeader::read(engine.far(), kept.at);
            let is_expired = engine.is_expired(head.expires_ms, head.version);
            let is_cleared = head.version <= engine.areas.cleared(head.area);
            situation!("mdb.expired_at_open", is_expired);
            situation!("mdb.cleared_at_open", is_cleared);
            if is_expired || is_cleared {
                mark_dead(engine, ctx, kept.at);
                dead_items += 1;
                continue;
            }
            key.clear();
            let from = kept.at.plus(ITEM_HEAD_BYTES as u64);
            engine
                .far()
                .append_out(from, usize::from(head.key_len), &mut key);
            let name = ItemKey {
                area: head.area,
                key: &key,
                prefix_bytes: head.prefix_len,
            };
            let hash = engine.hash(&name);
            let old = engine.find(hash, &name);
            if let Some(old) = old {
                situation!("mdb.older_at_open", old.head.version < head.version);
                situation!("mdb.moved_twice_at_open", old.head.version == head.version);
                mark_dead(engine, ctx, old.at);
                dead_items += 1;
            }
            let mut locked = engine.lock();
            let class = locked.class_of(kept.slot);
            locked.publish(
                kept.slot,
                class,
                engine.link_of(hash, &head),
                old.map(|old| old.slot),
            );
        }
        let mut locked = engine.lock();
        locked.free_what_is_not_linked(engine.pages());
        Ok(self.kept.len() as u64 - dead_items)
    }
}

fn mark_dead<N: Medium, F: Medium>(engine: &Engine<N, F>, ctx: &mut PersistCtx, at: Off) {
    engine.far().store(ctx, at, 0);
    engine.far().flush(ctx, at, 8);
}

/// Returns the class of a page, if its head is valid for this pool.
fn page_class<N: Medium, F: Medium>(engine: &Engine<N, F>, page: u32) -> Option<u8> {
    let at = engine.page_at(page);
    let found = [engine.far().load(at), engine.far().load(at.plus(8))];
    let class = (found[0] as u8).checked_sub(1)?;
    let known = usize::from(class) < engine.classes.len();
    let made = known.then(|| {
        let slot_bytes = engine.classes.slot_bytes(class);
        page_head(engine.secret, page, class, slot_bytes)
    });
    (made == Some(found)).then_some(class)
}

/// Returns the header of the item at `at`, if the item is whole (MDB-ITEM-1).
fn whole<N: Medium, F: Medium>(
    engine: &Engine<N, F>,
    at: Off,
    life: u64,
    class: u8,
) -> Option<ItemHeader> {
    if life == 0 {
        return None;
    }
    let head = ItemHeader::read(engine.far(), at);
    let fits = head.bytes() <= engine.classes.slot_bytes(class) as usize
        && head.prefix_len <= head.key_len;
    if head.version != life || !fits {
        return None;
    }
    let from = at.plus(ITEM_HEAD_BYTES as u64);
    let rest = head.bytes() - ITEM_HEAD_BYTES;
    let of_head = head.crc_of_head(seed(engine.secret, at));
    engine
        .far()
        .crc_is(from, rest, of_head, head.crc)
        .then_some(head)
}

const _: () = assert!(PAGE_HEAD_BYTES as usize == LINE);
