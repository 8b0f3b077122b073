//! The data medium of a cache: a pool whose first segment is the area table and whose other segments are pages.
//!
//! This module accesses areas, pages and items by their bytes; [`crate::layout`] has the layout. Which slots have an
//! item is in the metadata.

use farbank_pm::pool::Pool;
use farbank_pm::sync::{Mutex, lock};
use farbank_pm::{LINE, Medium, Off, PersistCtx, Poisoned};

use crate::classes::SlotClasses;
use crate::layout::{AREA_BYTES, ITEM_HEAD_BYTES, ItemHeader, PAGE_HEAD_BYTES, page_head, seed};
use crate::root::CacheRoot;

/// The data medium, by areas, pages and items.
pub(crate) struct DataMedium<F> {
    pool: Pool<F>,
    root: Mutex<CacheRoot>,
    classes: SlotClasses,
    /// Secret that seeds the checksums.
    secret: u64,
}

impl<F: Medium> DataMedium<F> {
    /// Wraps a pool, whose root words are `root` now.
    pub(crate) fn new(pool: Pool<F>, root: CacheRoot, classes: SlotClasses) -> DataMedium<F> {
        DataMedium {
            secret: pool.seed("items"),
            pool,
            root: Mutex::new(root),
            classes,
        }
    }

    pub(crate) fn pool(&self) -> &Pool<F> {
        &self.pool
    }

    #[inline]
    pub(crate) fn medium(&self) -> &F {
        self.pool.medium()
    }

    pub(crate) fn into_medium(self) -> F {
        self.pool.into_medium()
    }

    #[inline]
    pub(crate) fn classes(&self) -> &SlotClasses {
        &self.classes
    }

    /// Changes the root words, durably on `Ok`.
    pub(crate) fn update_root(
        &self,
        ctx: &mut PersistCtx,
        change: impl FnOnce(&mut CacheRoot),
    ) -> Result<(), Poisoned> {
        let mut root = lock(&self.root);
        change(&mut root);
        self.pool.set_root(ctx, &root.to_words())
    }

    // -- places

    /// Returns the number of pages of the pool.
    pub(crate) fn pages(&self) -> u32 {
        self.pool.segments() - 1
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.pool.segment_bytes()
    }

    /// Returns the offset of `page`. The first segment is the area table, not a page.
    fn page_at(&self, page: u32) -> Off {
        self.pool.segment(page + 1)
    }

    /// Returns the offset of slot `index` of `page`, whose class is `class`.
    pub(crate) fn slot_at(&self, page: u32, index: u32, class: u8) -> Off {
        let within = u64::from(index) * u64::from(self.classes.slot_bytes(class));
        self.page_at(page).plus(PAGE_HEAD_BYTES + within)
    }

    fn area_at(&self, area: u32) -> Off {
        self.pool.segment(0).plus(u64::from(area) * AREA_BYTES)
    }

    // -- durability

    /// Drains and waits until the drain is durable as far as an acknowledged write must be.
    pub(crate) fn drain(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        let ticket = self.medium().drain(ctx);
        self.medium().wait(ticket)
    }

    /// Drains and waits until everything is durable, also on a medium with relaxed drains.
    pub(crate) fn settle(&self, ctx: &mut PersistCtx) -> Result<(), Poisoned> {
        let ticket = self.medium().drain(ctx);
        self.medium().wait_until_durable(ticket)
    }

    // -- areas

    /// Returns the two words of the table entry of `area`.
    pub(crate) fn area(&self, area: u32) -> [u64; 2] {
        let at = self.area_at(area);
        [self.medium().load(at), self.medium().load(at.plus(8))]
    }

    /// Stores the version up to which `area` was cleared. Durable after the next drain.
    pub(crate) fn store_cleared(&self, ctx: &mut PersistCtx, area: u32, version: u64) {
        let at = self.area_at(area);
        // MDB-ITEM-4: if a power cut leaves only one of the two words, that word records the clear.
        self.medium().store(ctx, at.plus(8), !version);
        self.medium().store(ctx, at, version);
        self.medium().flush(ctx, at, AREA_BYTES as usize);
    }

    /// Stores the time in the entry of the clock. Durable after the next drain.
    pub(crate) fn store_clock(&self, ctx: &mut PersistCtx, entry: u32, now_ms: u64) {
        let at = self.area_at(entry);
        self.medium().store(ctx, at, now_ms);
        self.medium().store(ctx, at.plus(8), !now_ms);
        self.medium().flush(ctx, at, AREA_BYTES as usize);
    }

    // -- pages

    /// Returns the class of a page, if its head is valid for this pool.
    pub(crate) fn page_class(&self, page: u32) -> Option<u8> {
        let at = self.page_at(page);
        let found = [self.medium().load(at), self.medium().load(at.plus(8))];
        let class = (found[0] as u8).checked_sub(1)?;
        let known = usize::from(class) < self.classes.len();
        (known && self.page_head(page, class) == found).then_some(class)
    }

    fn page_head(&self, page: u32, class: u8) -> [u64; 2] {
        page_head(self.secret, page, class, self.classes.slot_bytes(class))
    }

    /// Writes the head of a new page of `class`, durably on `Ok`. With `slots`, also marks its slots dead.
    pub(crate) fn format_page(
        &self,
        ctx: &mut PersistCtx,
        page: u32,
        class: u8,
        slots: bool,
    ) -> Result<(), Poisoned> {
        let bytes = self.page_head(page, class).map(u64::to_le_bytes);
        if slots {
            for index in 0..self.classes.slots(class) {
                self.mark_dead(ctx, self.slot_at(page, index, class));
            }
        }
        self.medium()
            .copy_in(ctx, self.page_at(page), &[&bytes[0], &bytes[1]]);
        self.drain(ctx)
    }

    /// Erases the head of a page, not durably.
    pub(crate) fn erase_page_head(&self, ctx: &mut PersistCtx, page: u32) {
        self.medium().store(ctx, self.page_at(page), 0);
    }

    /// Flushes the head of a page.
    pub(crate) fn flush_page_head(&self, ctx: &mut PersistCtx, page: u32) {
        self.medium().flush(ctx, self.page_at(page), LINE);
    }

    // -- items

    /// Returns the header of the item at `at`, if it fits a slot of `class`. If not, the item is damaged.
    #[inline]
    pub(crate) fn header(&self, at: Off, class: u8) -> Option<ItemHeader> {
        let head = ItemHeader::read(self.medium(), at);
        (head.bytes() <= self.classes.slot_bytes(class) as usize).then_some(head)
    }

    /// Returns the header of the item at `at`, if the item is whole (MDB-ITEM-1). `live` is its live word.
    pub(crate) fn whole_item(&self, at: Off, live: u64, class: u8) -> Option<ItemHeader> {
        if live == 0 {
            return None;
        }
        let head = self.header(at, class)?;
        if head.version != live || head.prefix_len > head.key_len {
            return None;
        }
        let rest = head.bytes() - ITEM_HEAD_BYTES;
        let of_head = head.crc_of_head(seed(self.secret, at));
        self.medium()
            .crc_is(body_of(at), rest, of_head, head.crc)
            .then_some(head)
    }

    /// Returns whether the item at `at` has this key.
    #[inline]
    pub(crate) fn has_key(&self, at: Off, key: &[u8]) -> bool {
        self.medium().matches(body_of(at), key)
    }

    /// Copies the key of the item at `at` to `key`.
    pub(crate) fn copy_key(&self, at: Off, head: &ItemHeader, key: &mut Vec<u8>) {
        key.clear();
        self.medium()
            .append_out(body_of(at), usize::from(head.key_len), key);
    }

    /// Appends the value of the item at `at` to `out`. Returns false, with nothing appended, if its crc is wrong.
    #[inline]
    pub(crate) fn copy_value(
        &self,
        at: Off,
        head: &ItemHeader,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        let from = out.len();
        let value_at = at.plus((ITEM_HEAD_BYTES + key.len()) as u64);
        self.medium()
            .append_out(value_at, head.value_len as usize, out);
        let is_valid = head.crc_of(seed(self.secret, at), key, &out[from..]) == head.crc;
        if !is_valid {
            out.truncate(from);
        }
        is_valid
    }

    /// Writes an item into the slot at `at`. Durable after the next drain.
    pub(crate) fn write_item(
        &self,
        ctx: &mut PersistCtx,
        at: Off,
        head: &ItemHeader,
        key: &[u8],
        value: &[u8],
    ) {
        let crc = head.crc_of(seed(self.secret, at), key, value);
        let bytes = ItemHeader { crc, ..*head }.to_bytes();
        self.medium().copy_in(ctx, at, &[&bytes, key, value]);
    }

    /// Copies an item into the slot at `to`. Durable after the next drain. `body` is a buffer.
    pub(crate) fn copy_item(
        &self,
        ctx: &mut PersistCtx,
        (from, mut head): (Off, ItemHeader),
        to: Off,
        body: &mut Vec<u8>,
    ) {
        body.clear();
        self.medium()
            .append_out(body_of(from), head.bytes() - ITEM_HEAD_BYTES, body);
        // An item with a wrong crc gets a wrong crc in its copy too, so that the damage stays visible.
        let is_valid = head.crc_of(seed(self.secret, from), body, &[]) == head.crc;
        head.crc = head.crc_of(seed(self.secret, to), body, &[]) ^ u32::from(!is_valid);
        self.medium().copy_in(ctx, to, &[&head.to_bytes(), body]);
    }

    /// Marks the item at `at` dead. Durable after the next drain.
    pub(crate) fn mark_dead(&self, ctx: &mut PersistCtx, at: Off) {
        self.medium().store(ctx, at, 0);
        self.medium().flush(ctx, at, 8);
    }
}

/// Returns the offset of the body of the item at `at`: its key and its value.
fn body_of(at: Off) -> Off {
    at.plus(ITEM_HEAD_BYTES as u64)
}

const _: () = assert!(PAGE_HEAD_BYTES as usize == LINE);
