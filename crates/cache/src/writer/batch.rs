//! Staged writes: their keys, values and old items, without the locks and slots that they hold.

use farbank_store::ItemKey;

use crate::item::FoundItem;
use crate::layout::ItemHeader;
use crate::metadata::SlotId;

/// Maximum number of keys in a batch, because other sessions wait for its key locks.
const ENTRIES_MAX: usize = 64;
/// Maximum bytes of keys and values in a batch, except that a single write may have more.
const BYTES_MAX: usize = 256 << 10;

/// The newest value of an entry.
#[derive(Clone, Copy)]
pub(super) struct NewestItem {
    pub(super) slot: SlotId,
    pub(super) class: u8,
    /// Header, without the checksum.
    pub(super) head: ItemHeader,
    /// Offset of its value in the batch's bytes.
    pub(super) value_at: usize,
}

/// A staged write of a key.
pub(super) struct BatchEntry {
    pub(super) area: u16,
    pub(super) prefix_bytes: u16,
    pub(super) key_at: usize,
    pub(super) key_bytes: usize,
    /// Stripe whose lock the entry holds.
    pub(super) claim: Option<u32>,
    pub(super) old: Option<FoundItem>,
    /// New item. `None` means that the key is deleted.
    pub(super) new: Option<NewestItem>,
}

/// The batch of a session.
#[derive(Default)]
pub(super) struct SessionBatch {
    /// Hashes of the keys, in the order of the entries.
    hashes: Vec<u64>,
    entries: Vec<BatchEntry>,
    /// Keys and values, concatenated.
    bytes: Vec<u8>,
}

impl SessionBatch {
    /// Returns whether anything is staged.
    pub(super) fn holds_any(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Returns whether the batch must be written before another key is staged.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES_MAX || self.bytes.len() >= BYTES_MAX
    }

    /// Returns the key of an entry.
    pub(super) fn name_of(&self, entry: &BatchEntry) -> ItemKey<'_> {
        ItemKey {
            area: entry.area,
            key: &self.bytes[entry.key_at..][..entry.key_bytes],
            prefix_bytes: entry.prefix_bytes,
        }
    }

    /// Returns the value of an entry's newest write.
    pub(super) fn value_of(&self, new: &NewestItem) -> &[u8] {
        &self.bytes[new.value_at..][..new.head.value_len as usize]
    }

    /// Returns the entry of `name`, if any.
    #[inline]
    pub(super) fn find(&self, hash: u64, name: &ItemKey<'_>) -> Option<usize> {
        let is_it =
            |at: &usize| self.hashes[*at] == hash && self.name_of(&self.entries[*at]) == *name;
        (0..self.hashes.len()).find(is_it)
    }

    /// Returns whether an entry holds the lock of `stripe`.
    pub(super) fn claims(&self, stripe: u32) -> bool {
        let claims = |entry: &BatchEntry| entry.claim == Some(stripe);
        self.entries.iter().any(claims)
    }

    /// Returns the entry at `index`.
    pub(super) fn entry(&self, index: usize) -> &BatchEntry {
        &self.entries[index]
    }

    /// Replaces the newest write of the entry at `index`. Returns the one before.
    pub(super) fn replace(&mut self, index: usize, new: Option<NewestItem>) -> Option<NewestItem> {
        std::mem::replace(&mut self.entries[index].new, new)
    }

    /// Adds an entry for a key with this hash.
    pub(super) fn push(&mut self, hash: u64, entry: BatchEntry) {
        self.hashes.push(hash);
        self.entries.push(entry);
    }

    /// Returns the entries with the hashes of their keys.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, &BatchEntry)> {
        self.hashes.iter().copied().zip(&self.entries)
    }

    /// Copies bytes into the batch. Returns their offset.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    /// Discards the entries, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.hashes.clear();
        self.entries.clear();
        self.bytes.clear();
    }
}
