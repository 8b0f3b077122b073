//! Lookup: items by key, and their slots.

use farbank_pm::{Medium, Off};
use farbank_store::ItemKey;

use super::Engine;
use crate::item::FoundItem;
use crate::layout::{ITEM_HEAD_BYTES, ItemHeader};
use crate::metadata::{LruLink, SlotId, follow};

impl<N: Medium, F: Medium> Engine<N, F> {
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

    /// Returns the number of hash buckets.
    pub(crate) fn buckets(&self) -> u64 {
        self.metadata.metadata().buckets()
    }

    /// Returns the bucket of `hash`.
    pub(crate) fn bucket_of(&self, hash: u64) -> u64 {
        self.metadata.metadata().bucket_of(hash)
    }

    /// Returns the tags and slots of the chain of `bucket`. Needs a pin, or exclusive access.
    #[inline]
    pub(crate) fn chain(&self, bucket: u64) -> impl Iterator<Item = (u32, SlotId)> + '_ {
        let metadata = self.metadata.metadata();
        let mut before = None;
        std::iter::from_fn(move || {
            // A chain word is read when it is needed: the chain may change until then.
            let word = match before {
                None => metadata.bucket(bucket),
                Some(slot) => metadata.chain(slot),
            };
            let found = follow(word);
            before = found.map(|(_, slot)| slot);
            found
        })
    }

    /// Returns the item of `name`, expired and cleared ones included, without checking its value. Needs a pin, or
    /// exclusive access.
    #[inline]
    pub(crate) fn find(&self, hash: u64, name: &ItemKey<'_>) -> Option<FoundItem> {
        let tag = (hash >> 32) as u32;
        for (its, slot) in self.chain(self.bucket_of(hash)) {
            if its == tag
                && let Some(found) = self.item_in(slot)
                && found.head.area == name.area
                && usize::from(found.head.key_len) == name.key.len()
                && found.head.prefix_len == name.prefix_bytes
                && self.data.has_key(found.at, name.key)
            {
                return Some(found);
            }
        }
        None
    }

    /// Returns the item in `slot`, which a chain leads to. Returns `None` if its header does not fit its slot, so
    /// that the item is damaged. Needs a pin, or exclusive access.
    #[inline]
    pub(crate) fn item_in(&self, slot: SlotId) -> Option<FoundItem> {
        let metadata = self.metadata.metadata();
        let page = metadata.page_of(slot);
        let class = metadata.class_of(page)?;
        let at = self.data.slot_at(page, metadata.index_of(slot), class);
        let head = self.data.header(at, class)?;
        Some(FoundItem { slot, at, head })
    }

    /// Returns whether `found` is neither expired nor cleared.
    #[inline]
    pub(crate) fn is_live(&self, found: &FoundItem) -> bool {
        !self.is_expired(found.head.expires_ms, found.head.version) && !self.is_cleared(&found.head)
    }

    /// Returns whether the area of an item with this header was cleared after the item was stored.
    #[inline]
    pub(crate) fn is_cleared(&self, head: &ItemHeader) -> bool {
        head.version <= self.areas.cleared(head.area)
    }

    /// Returns the slot at `index` in `page`.
    pub(crate) fn slot(&self, page: u32, index: u32) -> SlotId {
        self.metadata.metadata().slot(page, index)
    }

    /// Returns the class of the page of `slot`, if it has one.
    pub(crate) fn class_of(&self, slot: SlotId) -> Option<u8> {
        let metadata = self.metadata.metadata();
        metadata.class_of(metadata.page_of(slot))
    }

    /// Returns the offset of `slot`, or `None` if its page has no class.
    #[inline]
    pub(crate) fn place_of(&self, slot: SlotId) -> Option<Off> {
        let metadata = self.metadata.metadata();
        let page = metadata.page_of(slot);
        let class = metadata.class_of(page)?;
        Some(self.data.slot_at(page, metadata.index_of(slot), class))
    }

    /// Returns the links of an item with this header.
    pub(crate) fn link_of(&self, hash: u64, head: &ItemHeader) -> LruLink {
        let generation = self.areas.generation(head.area);
        LruLink {
            tag: (hash >> 32) as u32,
            area: head.area,
            expires_s: u32::try_from(head.expires_ms.div_ceil(1000)).unwrap_or(0),
            // An item that was cleared while it was written is not counted.
            generation: generation.wrapping_sub(u32::from(self.is_cleared(head))),
            ..LruLink::default()
        }
    }

    // -- prefetching

    /// Prefetches the bucket of `hash`.
    #[inline]
    pub(crate) fn prefetch_bucket(&self, hash: u64) {
        self.metadata.metadata().prefetch_bucket(hash);
    }

    /// Prefetches the first item of the chain of `hash` and its links, if its tag matches. Returns its slot.
    #[inline]
    pub(crate) fn prefetch_item(&self, hash: u64) -> Option<SlotId> {
        let metadata = self.metadata.metadata();
        let word = metadata.bucket(metadata.bucket_of(hash));
        let (_, slot) = follow(word).filter(|(tag, _)| *tag == (hash >> 32) as u32)?;
        let at = self.place_of(slot)?;
        self.data.medium().prefetch(at, ITEM_HEAD_BYTES + 64);
        metadata.prefetch_link(slot);
        Some(slot)
    }

    /// Prefetches the links that change when the item in `slot` is removed from its LRU list.
    #[inline]
    pub(crate) fn prefetch_neighbours(&self, slot: SlotId) {
        let metadata = self.metadata.metadata();
        let (prev, next) = metadata.neighbours(slot);
        for beside in [prev, next] {
            if let Some(beside) = beside.checked_sub(1) {
                metadata.prefetch_link(SlotId(beside));
            }
        }
    }
}
