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

use std::time::Instant;

use farbank_pm::pool::{Pool, PoolIdentity, PoolLayout};
use farbank_pm::{Drain, Kind, Medium, Off, PersistCtx, fault, situation};
use farbank_store::clock::StoreClock;
use farbank_store::{ItemKey, OpenReport};

use crate::areas::clock;
use crate::classes::SlotClasses;
use crate::config::{Config, EvictionOrder};
use crate::data::DataMedium;
use crate::engine::Engine;
use crate::layout::{AREA_BYTES, EXPIRES_MAX, ITEM_HEAD_BYTES, ItemHeader, areas_in};
use crate::metadata::{Metadata, MetadataRoom, MetadataShape, SlotId};
use crate::open_error::{OpenError, PAGES_MIN};
use crate::root::CacheRoot;

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
        return Err(OpenError::TooFewPages { pages, page_bytes });
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
) -> Result<(Engine<N, F>, OpenReport), OpenError> {
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
    let clock = clock_of(&pool, &config, &root);
    let first_version = root.openings << VERSIONS_BITS;
    let data = DataMedium::new(pool, root, classes);
    let near = Metadata::new(near, shape);
    let engine = Engine::new(data, near, (clock, first_version), segments_max, config);
    let mut scan = PoolScan::default();
    engine.restore_cleared();
    scan.pages(&engine, &mut ctx, cold, was_clean);
    engine.data().settle(&mut ctx)?; // MDB-OPEN-4
    let keys = scan.link(&engine, &mut ctx);
    engine.data().settle(&mut ctx)?; // MDB-OPEN-2
    // All expired items are durably dead by now (MDB-OPEN-2), so the clock may be set back.
    engine.set_clock_back(&mut ctx)?;
    engine.lock().hold_pages(root.pages_held);
    let opened = OpenReport {
        clean: was_clean,
        keys,
        records_scanned: scan.kept.len() as u64,
        segments_mapped: 0,
        keys_checkpointed: 0,
        damage: Vec::new(),
        elapsed_ms: started.elapsed().as_secs_f64() * 1000.0,
    };
    Ok((engine, opened))
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
        return Err(OpenError::SlotSizes {
            slot_bytes_min: least,
            slot_factor: factor,
            page_bytes: pool.segment_bytes(),
        });
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
        return Err(OpenError::TooManyPages {
            pages,
            pages_max: 1 << (SLOT_BITS - slot_bits),
            slots: classes.slots_max(),
        });
    }
    let lists_each = match config.eviction {
        EvictionOrder::Lru => 1,
        EvictionOrder::S3Fifo => 2,
    };
    let buckets = pages as f64 * pool.segment_bytes() as f64 / 1024.0 * config.buckets_per_kib;
    Ok(MetadataShape {
        classes: classes.len() as u64,
        lists_max: lists_each
            * (classes.len() as u64 * areas_in(pool.segment_bytes())).min(1 << 20),
        pages_max: pages,
        page_info_stride: config.page_info_stride,
        bucket_bits: (buckets.max(64.0) as u64).ilog2().min(31),
        slot_bits,
    })
}

/// Creates the clock, which starts no earlier than the recorded time. If the two words of the record disagree, the
/// earlier one counts.
fn clock_of<F: Medium>(pool: &Pool<F>, config: &Config, root: &CacheRoot) -> StoreClock {
    let entry = u64::from(clock(areas_in(pool.segment_bytes()) as u32));
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
}

impl PoolScan {
    /// Scans every page. Adds free pages to the pool, and whole items to the list.
    fn pages<N: Medium, F: Medium>(
        &mut self,
        engine: &Engine<N, F>,
        ctx: &mut PersistCtx,
        cold: bool,
        was_clean: bool,
    ) {
        let mut empty = Vec::new();
        for page in (0..engine.data().pages()).rev() {
            match engine.data().page_class(page).filter(|_| !cold) {
                Some(class) => self.page(engine, ctx, page, class, was_clean),
                None => {
                    situation!("mdb.page_free_at_open");
                    // Erase the head, so that the next open does not accept the page either if it compares only the
                    // last boot id.
                    engine.data().erase_page_head(ctx, page);
                    empty.push(page);
                }
            }
        }
        engine.lock().add_free_pages(empty);
    }

    fn page<N: Medium, F: Medium>(
        &mut self,
        engine: &Engine<N, F>,
        ctx: &mut PersistCtx,
        page: u32,
        class: u8,
        was_clean: bool,
    ) {
        let data = engine.data();
        let far = data.medium();
        let durable_again = !was_clean && !fault!("mdb.recovery_volatile");
        if durable_again {
            data.flush_page_head(ctx, page);
        }
        for index in 0..data.classes().slots(class) {
            let at = data.slot_at(page, index, class);
            let life = far.load(at);
            match data.whole_item(at, life, class) {
                Some(head) => {
                    situation!("mdb.item_after_close", was_clean);
                    situation!("mdb.item_after_crash", !was_clean);
                    if durable_again {
                        far.flush(ctx, at, head.bytes());
                    }
                    engine.note_version(head.version);
                    let slot = engine.slot(page, index);
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
    fn link<N: Medium, F: Medium>(&mut self, engine: &Engine<N, F>, ctx: &mut PersistCtx) -> u64 {
        self.kept.sort_unstable_by_key(|kept| kept.version);
        let data = engine.data();
        let mut dead_items = 0;
        let mut key = Vec::new();
        for kept in &self.kept {
            let head = ItemHeader::read(data.medium(), kept.at);
            let is_expired = engine.is_expired(head.expires_ms, head.version);
            let is_cleared = engine.is_cleared(&head);
            situation!("mdb.expired_at_open", is_expired);
            situation!("mdb.cleared_at_open", is_cleared);
            if is_expired || is_cleared {
                data.mark_dead(ctx, kept.at);
                dead_items += 1;
                continue;
            }
            data.copy_key(kept.at, &head, &mut key);
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
                data.mark_dead(ctx, old.at);
                dead_items += 1;
            }
            let mut locked = engine.lock();
            let class = locked.class_of(kept.slot);
            locked.publish_recovered(
                kept.slot,
                class,
                engine.link_of(hash, &head),
                old.map(|old| old.slot),
            );
        }
        let mut locked = engine.lock();
        locked.free_what_is_not_linked(data.pages());
        self.kept.len() as u64 - dead_items
    }
}
