//! Statistics of a cache.

use farbank_pm::Medium;
use farbank_store::{CacheStats, PoolStats, SlabClass, Stats, WriteStats};

use super::Engine;
use crate::metadata::Metadata;

impl<N: Medium, F: Medium> Engine<N, F> {
    /// Returns the current statistics.
    pub(crate) fn stats(&self) -> Stats {
        let page_bytes = self.data.page_bytes();
        let locked = self.lock();
        let mut classes = locked.slab_classes();
        let free = locked.free_pages() as u32;
        let used = self.data.pages() - locked.pages_held() as u32;
        drop(locked);
        let sum = |of: fn(&SlabClass) -> u64| classes.iter().map(of).sum::<u64>();
        let (live_bytes, evictions) = (sum(|class| class.item_bytes), sum(|class| class.evicted));
        let links_bytes =
            sum(|class| class.pages * Metadata::<N>::links_bytes(class.slots_per_page as u32));
        // With S3-FIFO: the counts of uses, and ghosts of half the size of the buckets.
        let buckets = self.metadata.metadata().buckets();
        let uses = self.metadata.uses();
        let uses_bytes = uses.map_or(0, |uses| uses.bytes() + 4 * buckets);
        classes.retain(|class| class.pages > 0);
        let counted = self.counters.values();
        Stats {
            keys: std::array::from_fn(|db| self.areas.items(db as u16)),
            expired_keys: counted.reclaimed,
            damaged_records: counted.damaged,
            index_bytes: 8 * self.metadata.metadata().buckets() + links_bytes + uses_bytes,
            pool: PoolStats {
                bytes: self.data.medium().len(),
                segment_bytes: page_bytes,
                segments: used,
                segments_free: free,
                live_bytes,
                capacity_bytes: u64::from(used) * page_bytes,
            },
            writes: WriteStats {
                user_bytes: counted.stored_bytes,
                moved_bytes: counted.moved_bytes,
                segments_cleaned: counted.pages_freed,
            },
            log: None,
            read_cache: None,
            cache: Some(CacheStats {
                evictions,
                reclaimed: counted.reclaimed,
                merged_writes: counted.merged_writes,
                classes,
            }),
            persistence: counted.persistence,
        }
    }
}
