//! The metadata medium: page infos, slab managers, LRU lists, hash buckets and the links of items.
//!
//! ```text
//!   0          slab managers     lists            page infos      buckets          links
//!   ┌─────────┬─────────────────┬────────────────┬───────────────┬────────────────┬───────────────────────┐
//!   │ unused  │ 16 words a class│ 2 words a class│ 4 words a page│ 1 word each    │ 4 words a slot, array │
//!   │         │                 │ and area in use│ or a stride   │                │ by page, as needed    │
//!   └─────────┴─────────────────┴────────────────┴───────────────┴────────────────┴───────────────────────┘
//!
//!   chain word   tag: hash's upper 32 bits | slot + 1              0 ends a chain
//!   link         chain word | LRU prev, next | tag, area, state | expires_s, generation of its area
//!   page info    class + 1, list, free | free head, fresh | prev, next | offset of its links
//! ```
//!
//! The metadata is rebuilt when a cache is opened, and never flushed. It is normally in DRAM. On the far medium
//! itself it reproduces Tair MDB before its metadata was moved to DRAM.
//!
//! # Invariants
//! MDB-META-1  All metadata is written under the cache's one lock, except the links of a page that is being formatted, which
//!     no other session can reach. The data medium is neither read nor written under that lock.
//! MDB-META-2  Buckets, chain words and the classes of pages are read without the lock, under a pin. If a slot was reachable
//!     when the pin was taken, its chain word and the class of its page stay unchanged until the unpin.

use farbank_pm::{Medium, Off, PersistCtx};

/// Words per slab manager.
pub(crate) const MANAGER_WORDS: u64 = 16;
/// Lists of partial pages per class, one for each tenth of free slots.
pub(crate) const PARTIALS: u64 = 10;
const LIST_BYTES: u64 = 16;
pub(crate) const PAGE_INFO_BYTES: u64 = 32;
const LINK_BYTES: u64 = 32;

/// Number of a slot: the number of its page, and its index in the page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SlotId(pub(crate) u32);

/// Counters of a slab manager, by word.
#[derive(Clone, Copy)]
pub(crate) enum ClassCounter {
    Pages = 10,
    Items = 11,
    Evicted = 12,
}

/// Size of the metadata medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetadataRoom {
    /// Bytes that it must have, all zero.
    pub bytes: u64,
    /// Offset of the hash buckets and the links of items. Page infos, slab managers and lists are before it.
    pub items_from: u64,
}

/// Sizes that determine the layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataShape {
    pub(crate) classes: u64,
    pub(crate) lists_max: u64,
    pub(crate) pages_max: u64,
    pub(crate) page_info_stride: u64,
    pub(crate) bucket_bits: u32,
    /// Bits of a slot number that are its index in the page.
    pub(crate) slot_bits: u32,
}

impl MetadataShape {
    fn lists_at(&self) -> u64 {
        64 + self.classes * MANAGER_WORDS * 8
    }

    fn pages_at(&self) -> u64 {
        (self.lists_at() + self.lists_max * LIST_BYTES).next_multiple_of(64)
    }

    fn buckets_at(&self) -> u64 {
        (self.pages_at() + self.pages_max * self.stride()).next_multiple_of(64)
    }

    fn stride(&self) -> u64 {
        self.page_info_stride.max(PAGE_INFO_BYTES)
    }

    fn links_at(&self) -> u64 {
        self.buckets_at() + (8 << self.bucket_bits)
    }

    /// Returns the size that the metadata medium must have.
    pub(crate) fn room(&self) -> MetadataRoom {
        MetadataRoom {
            // Twice the links that can exist at once, because freed arrays of different lengths cause fragmentation.
            bytes: self.links_at() + 2 * self.pages_max * (LINK_BYTES << self.slot_bits),
            items_from: self.buckets_at(),
        }
    }
}

/// Access to the metadata medium by field.
pub(crate) struct Metadata<N> {
    medium: N,
    shape: MetadataShape,
    pages_at: u64,
    stride: u64,
    buckets_at: u64,
}

impl<N: Medium> Metadata<N> {
    /// Wraps `medium`, which must be zero.
    pub(crate) fn new(medium: N, shape: MetadataShape) -> Metadata<N> {
        assert!(
            medium.len() >= shape.room().bytes,
            "the metadata medium is too small"
        );
        Metadata {
            pages_at: shape.pages_at(),
            stride: shape.stride(),
            buckets_at: shape.buckets_at(),
            medium,
            shape,
        }
    }

    pub(crate) fn shape(&self) -> &MetadataShape {
        &self.shape
    }

    pub(crate) fn page_of(&self, slot: SlotId) -> u32 {
        slot.0 >> self.shape.slot_bits
    }

    pub(crate) fn index_of(&self, slot: SlotId) -> u32 {
        slot.0 & ((1 << self.shape.slot_bits) - 1)
    }

    pub(crate) fn slot(&self, page: u32, index: u32) -> SlotId {
        SlotId(page << self.shape.slot_bits | index)
    }

    fn load(&self, at: u64) -> u64 {
        self.medium.load(Off(at))
    }

    fn store(&self, ctx: &mut PersistCtx, at: u64, word: u64) {
        self.medium.store(ctx, Off(at), word);
    }

    // -- buckets and chains

    /// Returns the bucket of `hash`.
    #[inline]
    pub(crate) fn bucket_of(&self, hash: u64) -> u64 {
        // The upper bits, so that the tag of a chain word determines the bucket.
        hash >> (64 - self.shape.bucket_bits)
    }

    /// Returns the bucket of an item with this tag.
    pub(crate) fn bucket_of_tag(&self, tag: u32) -> u64 {
        self.bucket_of(u64::from(tag) << 32)
    }

    pub(crate) fn buckets(&self) -> u64 {
        1 << self.shape.bucket_bits
    }

    #[inline]
    pub(crate) fn bucket(&self, bucket: u64) -> u64 {
        self.load(self.buckets_at + bucket * 8)
    }

    pub(crate) fn set_bucket(&self, ctx: &mut PersistCtx, bucket: u64, word: u64) {
        self.store(ctx, self.buckets_at + bucket * 8, word);
    }

    pub(crate) fn prefetch_bucket(&self, hash: u64) {
        let at = self.buckets_at + self.bucket_of(hash) * 8;
        self.medium.prefetch(Off(at), 8);
    }

    // -- pages

    fn info_at(&self, page: u32) -> u64 {
        self.pages_at + u64::from(page) * self.stride
    }

    /// Returns the class of the page, if it has one.
    #[inline]
    pub(crate) fn class_of(&self, page: u32) -> Option<u8> {
        (self.load(self.info_at(page)) as u8).checked_sub(1)
    }

    pub(crate) fn info(&self, page: u32) -> PageInfo {
        let at = self.info_at(page);
        let [a, b, c] = [0, 8, 16].map(|field| self.load(at + field));
        PageInfo {
            class: (a as u8).checked_sub(1),
            list: (a >> 8) as u8,
            free: (a >> 32) as u32,
            free_head: b as u32,
            fresh: (b >> 32) as u32,
            prev: c as u32,
            next: (c >> 32) as u32,
        }
    }

    pub(crate) fn set_info(&self, ctx: &mut PersistCtx, page: u32, info: &PageInfo) {
        let at = self.info_at(page);
        let class = info.class.map_or(0, |class| u64::from(class) + 1);
        let words = [
            class | u64::from(info.list) << 8 | u64::from(info.free) << 32,
            u64::from(info.free_head) | u64::from(info.fresh) << 32,
            u64::from(info.prev) | u64::from(info.next) << 32,
        ];
        for (field, word) in words.into_iter().enumerate() {
            let at = at + field as u64 * 8;
            // Skip a word that does not change, because the medium may be far memory.
            if self.load(at) != word {
                self.store(ctx, at, word);
            }
        }
    }

    /// Returns the offset of the links of `page`.
    pub(crate) fn links_of(&self, page: u32) -> u64 {
        self.load(self.info_at(page) + 24)
    }

    pub(crate) fn set_links(&self, ctx: &mut PersistCtx, page: u32, links: u64) {
        self.store(ctx, self.info_at(page) + 24, links);
    }

    /// Returns the start and the end of the space for links.
    pub(crate) fn links_room(&self) -> (u64, u64) {
        (self.shape.links_at(), self.medium.len())
    }

    /// Returns the bytes of the links of `slots` slots.
    pub(crate) const fn links_bytes(slots: u32) -> u64 {
        slots as u64 * LINK_BYTES
    }

    // -- links

    fn link_at(&self, slot: SlotId) -> u64 {
        self.links_of(self.page_of(slot)) + u64::from(self.index_of(slot)) * LINK_BYTES
    }

    #[inline]
    pub(crate) fn prefetch_link(&self, slot: SlotId) {
        self.medium
            .prefetch(Off(self.link_at(slot)), LINK_BYTES as usize);
    }

    /// Returns the chain word of `slot`, which leads to the next item of the chain, or for a free slot to the next
    /// free slot.
    #[inline]
    pub(crate) fn chain(&self, slot: SlotId) -> u64 {
        self.load(self.link_at(slot))
    }

    pub(crate) fn set_chain(&self, ctx: &mut PersistCtx, slot: SlotId, word: u64) {
        self.store(ctx, self.link_at(slot), word);
    }

    pub(crate) fn link(&self, slot: SlotId) -> LruLink {
        let at = self.link_at(slot);
        let [b, c, d] = [8, 16, 24].map(|field| self.load(at + field));
        LruLink {
            prev: b as u32,
            next: (b >> 32) as u32,
            tag: (c >> 32) as u32,
            area: (c >> 8) as u16,
            linked: c & 1 == 1,
            is_small: c & 2 == 2,
            expires_s: d as u32,
            generation: (d >> 32) as u32,
        }
    }

    pub(crate) fn set_link(&self, ctx: &mut PersistCtx, slot: SlotId, link: &LruLink) {
        let at = self.link_at(slot);
        let words = [
            u64::from(link.prev) | u64::from(link.next) << 32,
            u64::from(link.tag) << 32
                | u64::from(link.area) << 8
                | u64::from(link.is_small) << 1
                | u64::from(link.linked),
            u64::from(link.expires_s) | u64::from(link.generation) << 32,
        ];
        for (field, word) in words.into_iter().enumerate() {
            self.store(ctx, at + 8 + field as u64 * 8, word);
        }
    }

    /// Returns the neighbours of `slot` in its LRU list, each plus one: the next newer and the next older.
    pub(crate) fn neighbours(&self, slot: SlotId) -> (u32, u32) {
        let word = self.load(self.link_at(slot) + 8);
        (word as u32, (word >> 32) as u32)
    }

    pub(crate) fn set_neighbours(&self, ctx: &mut PersistCtx, slot: SlotId, prev: u32, next: u32) {
        let word = u64::from(prev) | u64::from(next) << 32;
        self.store(ctx, self.link_at(slot) + 8, word);
    }

    // -- lists

    fn list_at(&self, list: u32) -> u64 {
        self.shape.lists_at() + u64::from(list) * LIST_BYTES
    }

    /// Returns an LRU list: its newest and oldest slot, each plus one, and its number of items.
    pub(crate) fn list(&self, list: u32) -> LruList {
        let at = self.list_at(list);
        let ends = self.load(at);
        LruList {
            head: ends as u32,
            tail: (ends >> 32) as u32,
            items: self.load(at + 8) as u32,
        }
    }

    pub(crate) fn set_list(&self, ctx: &mut PersistCtx, number: u32, list: &LruList) {
        let at = self.list_at(number);
        let ends = u64::from(list.head) | u64::from(list.tail) << 32;
        self.store(ctx, at, ends);
        self.store(ctx, at + 8, list.items.into());
    }

    // -- slab managers

    fn manager_at(&self, class: u8, word: u64) -> u64 {
        64 + (u64::from(class) * MANAGER_WORDS + word) * 8
    }

    /// Returns the first page, plus one, of the class's list of partial pages with `tenths` tenths of free slots.
    pub(crate) fn partial(&self, class: u8, tenths: u64) -> u32 {
        self.load(self.manager_at(class, tenths)) as u32
    }

    pub(crate) fn set_partial(&self, ctx: &mut PersistCtx, class: u8, tenths: u64, page: u32) {
        self.store(ctx, self.manager_at(class, tenths), u64::from(page));
    }

    pub(crate) fn tally(&self, class: u8, what: ClassCounter) -> u64 {
        self.load(self.manager_at(class, what as u64))
    }

    pub(crate) fn set_tally(
        &self,
        ctx: &mut PersistCtx,
        class: u8,
        what: ClassCounter,
        value: u64,
    ) {
        self.store(ctx, self.manager_at(class, what as u64), value);
    }
}

/// Allocation state of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageInfo {
    pub(crate) class: Option<u8>,
    /// List that the page is on: its tenths of free slots, [`NO_LIST`] or [`HELD`].
    pub(crate) list: u8,
    /// Number of free slots, including slots never used.
    pub(crate) free: u32,
    /// Index plus one of the first free slot among those that were used before.
    pub(crate) free_head: u32,
    /// Index from which slots were never used.
    pub(crate) fresh: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

/// The page is full, and on no list of partial pages.
pub(crate) const NO_LIST: u8 = u8::MAX;
/// The page is reserved: no session takes a slot of it.
pub(crate) const HELD: u8 = u8::MAX - 1;

/// Links of an item: its neighbours in its LRU list, and its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LruLink {
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) tag: u32,
    pub(crate) area: u16,
    /// Whether the slot has an item that is in its chain.
    pub(crate) linked: bool,
    /// Whether it is on the small queue of S3-FIFO (MDB-S3-1).
    pub(crate) is_small: bool,
    /// Time of expiry in seconds of Unix time, rounded up; 0 means never.
    pub(crate) expires_s: u32,
    /// Generation of its area: lower bits of the number of clears before the item was stored.
    pub(crate) generation: u32,
}

/// Head of an LRU list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LruList {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) items: u32,
}

/// Returns the chain word that leads to `slot`, whose item has the tag `tag`.
#[inline]
pub(crate) fn chain_word(tag: u32, slot: SlotId) -> u64 {
    (u64::from(tag) << 32) | (u64::from(slot.0) + 1)
}

/// Decodes a chain word: the tag of the item it leads to, and its slot. Returns `None` at the end of a chain.
#[inline]
pub(crate) fn follow(word: u64) -> Option<(u32, SlotId)> {
    (word as u32)
        .checked_sub(1)
        .map(|slot| ((word >> 32) as u32, SlotId(slot)))
}
