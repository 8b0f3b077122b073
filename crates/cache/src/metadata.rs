//! The metadata medium: page infos, slab managers, LRU lists, hash buckets and what links items.
//!
//! ```text
//!   0          slab managers     lists            page infos      buckets          links
//!   ┌─────────┬─────────────────┬────────────────┬───────────────┬────────────────┬───────────────────────┐
//!   │ nothing │ 16 words a class│ 2 words a class│ 4 words a page│ 1 word each    │ 4 words a slot, page  │
//!   │         │                 │ and area in use│ or a stride   │                │ by page, as needed    │
//!   └─────────┴─────────────────┴────────────────┴───────────────┴────────────────┴───────────────────────┘
//!
//!   chain word   tag: hash's upper 32 bits | slot + 1              0 ends a chain
//!   link         chain word | LRU prev, next | tag, area, state | expires s, generation of its area
//!   page info    class + 1, list, free | free head, fresh | prev, next | where its links are
//! ```
//!
//! It is rebuilt whenever a cache is opened; nothing here is ever flushed. In production it is DRAM. Given the far
//! medium itself it is Tair MDB before its metadata moved.
//!
//! # Invariants
//! N1  Everything is written under the cache's one lock, but the links of a page that is being made ready, which
//!     nobody sees. Nothing on the data medium is read or written under that lock.
//! N2  Buckets, chain words and pages' classes are read without the lock, under a pin: a slot that could be reached
//!     when the pin was taken keeps its chain word, and its page its class, until the pin is let go.

use farbank_pm::{Medium, Off, PersistCtx};

/// Words of a slab manager.
pub(crate) const MANAGER_WORDS: u64 = 16;
/// Lists of partial pages a class has, by how much of them is free: tenths.
pub(crate) const PARTIALS: u64 = 10;
const LIST_BYTES: u64 = 16;
pub(crate) const PAGE_INFO_BYTES: u64 = 32;
const LINK_BYTES: u64 = 32;

/// A slot's number: its page's, and its place there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SlotId(pub(crate) u32);

/// What a slab manager counts, by word.
#[derive(Clone, Copy)]
pub(crate) enum ClassCounter {
    Pages = 10,
    Items = 11,
    Evicted = 12,
}

/// The room metadata needs on its medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetadataRoom {
    /// Bytes, all of them zeros.
    pub bytes: u64,
    /// From this one on are hash buckets and what links items; before it page infos, slab managers and lists.
    pub items_from: u64,
}

/// Sizes that place everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataShape {
    pub(crate) classes: u64,
    pub(crate) lists_max: u64,
    pub(crate) pages_max: u64,
    pub(crate) page_info_stride: u64,
    pub(crate) bucket_bits: u32,
    /// Bits of a slot's number that say where in its page it is.
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

    /// What the metadata medium must have.
    pub(crate) fn room(&self) -> MetadataRoom {
        MetadataRoom {
            // Twice the links there can be at once: arrays of different lengths cannot always be used again.
            bytes: self.links_at() + 2 * self.pages_max * (LINK_BYTES << self.slot_bits),
            items_from: self.buckets_at(),
        }
    }
}

/// The metadata medium, by field.
pub(crate) struct Metadata<N> {
    medium: N,
    shape: MetadataShape,
    pages_at: u64,
    stride: u64,
    buckets_at: u64,
}

impl<N: Medium> Metadata<N> {
    /// `medium`, which must be zeros.
    pub(crate) fn new(medium: N, shape: MetadataShape) -> Metadata<N> {
        assert!(medium.len() >= shape.room().bytes, "room for the metadata");
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

    /// The bucket `hash` belongs to.
    #[inline]
    pub(crate) fn bucket_of(&self, hash: u64) -> u64 {
        // Its upper bits, so that a chain word's tag tells the bucket as well.
        hash >> (64 - self.shape.bucket_bits)
    }

    /// The bucket of an item whose tag is known.
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

    /// The page's class, if it has one.
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
            // What is the same is not written: the medium may be far.
            if self.load(at) != word {
                self.store(ctx, at, word);
            }
        }
    }

    /// Where the links of `page` are.
    pub(crate) fn links_of(&self, page: u32) -> u64 {
        self.load(self.info_at(page) + 24)
    }

    pub(crate) fn set_links(&self, ctx: &mut PersistCtx, page: u32, links: u64) {
        self.store(ctx, self.info_at(page) + 24, links);
    }

    /// The first byte of the room for links, and the first behind it.
    pub(crate) fn links_room(&self) -> (u64, u64) {
        (self.shape.links_at(), self.medium.len())
    }

    /// Bytes of the links of `slots` slots.
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

    /// The chain word behind `slot`; of a free slot the next free one.
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
            expires_s: d as u32,
            generation: (d >> 32) as u32,
        }
    }

    pub(crate) fn set_link(&self, ctx: &mut PersistCtx, slot: SlotId, link: &LruLink) {
        let at = self.link_at(slot);
        let words = [
            u64::from(link.prev) | u64::from(link.next) << 32,
            u64::from(link.tag) << 32 | u64::from(link.area) << 8 | u64::from(link.linked),
            u64::from(link.expires_s) | u64::from(link.generation) << 32,
        ];
        for (field, word) in words.into_iter().enumerate() {
            self.store(ctx, at + 8 + field as u64 * 8, word);
        }
    }

    /// The neighbours of `slot` in its LRU list, each plus one: towards the newest, towards the oldest.
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

    /// The newest and the oldest slot of a list, each plus one, and how many it has and has lost to eviction.
    pub(crate) fn list(&self, list: u32) -> LruList {
        let at = self.list_at(list);
        let (ends, counts) = (self.load(at), self.load(at + 8));
        LruList {
            head: ends as u32,
            tail: (ends >> 32) as u32,
            items: counts as u32,
            evicted: (counts >> 32) as u32,
        }
    }

    pub(crate) fn set_list(&self, ctx: &mut PersistCtx, number: u32, list: &LruList) {
        let at = self.list_at(number);
        let ends = u64::from(list.head) | u64::from(list.tail) << 32;
        self.store(ctx, at, ends);
        self.store(
            ctx,
            at + 8,
            u64::from(list.items) | u64::from(list.evicted) << 32,
        );
    }

    // -- slab managers

    fn manager_at(&self, class: u8, word: u64) -> u64 {
        64 + (u64::from(class) * MANAGER_WORDS + word) * 8
    }

    /// The first page, plus one, of a class's partial pages of which about `tenths` are free.
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

/// A page as the slab managers see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageInfo {
    pub(crate) class: Option<u8>,
    /// Which list it is on: the tenths of it that are free, [`NO_LIST`] or [`HELD`].
    pub(crate) list: u8,
    /// Slots that are free, those never used included.
    pub(crate) free: u32,
    /// The first free slot's index plus one, of those that were used.
    pub(crate) free_head: u32,
    /// Slots from this index on were never used.
    pub(crate) fresh: u32,
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

/// On no list of partial pages: it is full.
pub(crate) const NO_LIST: u8 = u8::MAX;
/// Held back: nobody takes a slot of it.
pub(crate) const HELD: u8 = u8::MAX - 1;

/// What links an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LruLink {
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) tag: u32,
    pub(crate) area: u16,
    /// Whether an item is here and in its chain.
    pub(crate) linked: bool,
    /// When it expires, in seconds of Unix time, rounded up; 0 is never.
    pub(crate) expires_s: u32,
    /// The lower bits of how often its area had been cleared.
    pub(crate) generation: u32,
}

/// An LRU list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LruList {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) items: u32,
    pub(crate) evicted: u32,
}

/// The chain word that leads to `slot`, an item whose tag is `tag`.
#[inline]
pub(crate) fn chain_word(tag: u32, slot: SlotId) -> u64 {
    (u64::from(tag) << 32) | (u64::from(slot.0) + 1)
}

/// Where a chain word leads, and the tag of the item there.
#[inline]
pub(crate) fn follow(word: u64) -> Option<(u32, SlotId)> {
    (word as u32)
        .checked_sub(1)
        .map(|slot| ((word >> 32) as u32, SlotId(slot)))
}
