//! Tair's own operations: areas, versions, counters with bounds, hidden and locked items, prefixes.
//!
//! An item's version has 64 bits and is never used twice for a key; Tair's has 16 bits and wraps. A counter's value
//! is eight bytes, little-endian. Keys with the same prefix share a chain, so that they can be listed and removed
//! together.

use farbank_pm::Medium;
use farbank_store::{ItemError, ItemKey, ItemSession, ValueMeta};

use super::CacheSession;
use crate::item::{ChangeDecision, FoundItem, FoundValue, NewItem, OwnedItem};
use crate::layout::{COUNTER, HIDDEN, LOCKED};

/// Bounds of a counter, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterBounds {
    /// Smallest value allowed.
    pub low: i64,
    /// Largest value allowed.
    pub high: i64,
}

impl Default for CounterBounds {
    fn default() -> CounterBounds {
        CounterBounds {
            low: i64::MIN,
            high: i64::MAX,
        }
    }
}

/// Decision of an operation, or the reason why it has no effect.
type TairDecision = Result<ChangeDecision, ItemError>;

impl<F: Medium, N: Medium> CacheSession<F, N> {
    /// Appends the value of `name` to `out` and returns its metadata. Returns `Ok(None)` if it is absent.
    ///
    /// # Errors
    /// [`ItemError::Hidden`].
    pub fn get_item(
        &mut self,
        name: &ItemKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<ValueMeta>, ItemError> {
        let from = out.len();
        match self.look(name, out)? {
            Some((_, true)) => {
                out.truncate(from);
                Err(ItemError::Hidden)
            }
            shown => Ok(shown.map(|(meta, _)| meta)),
        }
    }

    /// Reads an item as [`CacheSession::get_item`] does, also a hidden one. Returns its metadata, and whether it is
    /// hidden.
    pub fn get_hidden(
        &mut self,
        name: &ItemKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<(ValueMeta, bool)>, ItemError> {
        self.look(name, out)
    }

    fn look(
        &mut self,
        name: &ItemKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<(ValueMeta, bool)>, ItemError> {
        let hash = self.writer.engine().hash(name);
        self.writer.write_if_staged(hash, name)?;
        let worker = self.writer.worker();
        worker.pin();
        let found = worker.find_live(hash, name);
        let found = found.filter(|found| worker.copy_value(found, name, out));
        worker.unpin();
        let Some(found) = found else { return Ok(None) };
        worker.used(&found, hash);
        Ok(Some((found.meta(), !found.is_shown())))
    }

    /// Stores `value` and returns the new version. With `expected`, the item must have that version.
    ///
    /// # Errors
    /// [`ItemError::Absent`] or [`ItemError::Version`] if the expected version is not found; or the store's errors:
    /// locked, too large, full.
    pub fn put_item(
        &mut self,
        name: &ItemKey<'_>,
        value: &[u8],
        expires_ms: u64,
        expected: Option<u64>,
    ) -> Result<u64, ItemError> {
        let Some(expected) = expected else {
            let draft = NewItem {
                value,
                expires_ms,
                ..NewItem::default()
            };
            return self.put_now(name, &draft);
        };
        self.choose(name, &mut |found| {
            let (found, _) = found.ok_or(ItemError::Absent)?;
            if found.head.version != expected {
                return Err(ItemError::Version(found.head.version));
            }
            unlocked(found)?;
            Ok(ChangeDecision::Put(OwnedItem {
                value: value.to_vec(),
                expires_ms,
                ..OwnedItem::default()
            }))
        })
    }

    /// Stores several items, one after the other. Returns their number. On an error, the items before the failed one
    /// are stored.
    pub fn put_all(
        &mut self,
        items: &[(ItemKey<'_>, &[u8])],
        expires_ms: u64,
    ) -> Result<usize, ItemError> {
        for (name, value) in items {
            self.put_item(name, value, expires_ms, None)?;
        }
        Ok(items.len())
    }

    /// Removes the item, also a hidden one. Returns whether it was present.
    pub fn remove(&mut self, name: &ItemKey<'_>) -> Result<bool, ItemError> {
        let mut was_there = false;
        self.choose(name, &mut |found| {
            was_there = found.is_some();
            found.map_or(Ok(()), |(found, _)| unlocked(found))?;
            Ok(ChangeDecision::Delete)
        })?;
        Ok(was_there)
    }

    /// Hides the item: an ordinary read returns [`ItemError::Hidden`], a write replaces it. Returns its new version.
    pub fn hide(&mut self, name: &ItemKey<'_>) -> Result<u64, ItemError> {
        self.mark(name, &|marks| Ok(marks | HIDDEN))
    }

    fn mark(
        &mut self,
        name: &ItemKey<'_>,
        change: &dyn Fn(u8) -> Result<u8, ItemError>,
    ) -> Result<u64, ItemError> {
        self.choose(name, &mut |found| {
            let (found, value) = found.ok_or(ItemError::Absent)?;
            let marks = change(found.head.marks)?;
            Ok(ChangeDecision::Put(owned(
                found,
                value,
                found.head.expires_ms,
                marks,
            )))
        })
    }

    /// Sets the expiry of the item to `expires_ms`, in milliseconds of Unix time; 0 means never. Returns its new
    /// version.
    pub fn expire(&mut self, name: &ItemKey<'_>, expires_ms: u64) -> Result<u64, ItemError> {
        self.choose(name, &mut |found| {
            let (found, value) = found.ok_or(ItemError::Absent)?;
            unlocked(found)?;
            Ok(ChangeDecision::Put(owned(
                found,
                value,
                expires_ms,
                found.head.marks,
            )))
        })
    }

    /// Sets a counter, replacing any item. Returns its version.
    pub fn set_count(
        &mut self,
        name: &ItemKey<'_>,
        count: i64,
        expires_ms: u64,
    ) -> Result<u64, ItemError> {
        let draft = NewItem {
            value: &count.to_le_bytes(),
            expires_ms,
            marks: COUNTER,
            ..NewItem::default()
        };
        self.put_now(name, &draft)
    }

    /// Adds `by` to a counter, or to `start` if it is absent. Returns the new value.
    ///
    /// # Errors
    /// [`ItemError::OutOfBounds`], [`ItemError::NotACounter`], or the store's errors.
    pub fn add_count(
        &mut self,
        name: &ItemKey<'_>,
        by: i64,
        start: i64,
        bounds: CounterBounds,
        expires_ms: u64,
    ) -> Result<i64, ItemError> {
        let mut count = start;
        self.choose(name, &mut |found| {
            if let Some((found, value)) = found {
                unlocked(found)?;
                let bytes = value
                    .try_into()
                    .ok()
                    .filter(|_| found.head.marks & COUNTER != 0);
                count = i64::from_le_bytes(bytes.ok_or(ItemError::NotACounter)?);
            }
            let sum = count.checked_add(by);
            let within = sum.filter(|sum| (bounds.low..=bounds.high).contains(sum));
            count = within.ok_or(ItemError::OutOfBounds(count))?;
            Ok(ChangeDecision::Put(OwnedItem {
                value: count.to_le_bytes().to_vec(),
                expires_ms,
                marks: COUNTER,
                ..OwnedItem::default()
            }))
        })?;
        Ok(count)
    }

    /// Calls `each` with every key of `prefix` in `area`, except hidden ones.
    pub fn prefix_keys(
        &mut self,
        area: u16,
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), ItemError> {
        let Ok(prefix_bytes) = u16::try_from(prefix.len()) else {
            return Ok(());
        };
        let name = ItemKey {
            area,
            key: prefix,
            prefix_bytes,
        };
        self.writer.write_batch()?;
        let worker = self.writer.worker();
        let engine = worker.engine();
        let (hash, mut key) = (engine.hash(&name), Vec::new());
        worker.pin();
        for (tag, slot) in engine.chain(engine.bucket_of(hash)) {
            if tag == (hash >> 32) as u32
                && let Some(found) = engine.item_in(slot)
                && (found.head.area, found.head.prefix_len) == (area, prefix_bytes)
                && found.is_shown()
                && engine.is_live(&found)
            {
                engine.data().copy_key(found.at, &found.head, &mut key);
                if key.starts_with(prefix) {
                    each(&key);
                }
            }
        }
        worker.unpin();
        Ok(())
    }

    /// Removes every item of `prefix` in `area`, one after the other. Returns their number.
    pub fn clear_prefix(&mut self, area: u16, prefix: &[u8]) -> Result<usize, ItemError> {
        let mut keys = Vec::new();
        self.prefix_keys(area, prefix, &mut |key| keys.push(key.to_vec()))?;
        let mut removed = 0;
        for key in &keys {
            let name = ItemKey {
                area,
                key,
                prefix_bytes: prefix.len() as u16,
            };
            removed += usize::from(self.remove(&name)?);
        }
        Ok(removed)
    }

    fn choose(
        &mut self,
        name: &ItemKey<'_>,
        choice: &mut dyn FnMut(Option<FoundValue<'_>>) -> TairDecision,
    ) -> Result<u64, ItemError> {
        let mut refused = None;
        let version = self.writer.change(name, &mut |found| {
            Ok(choice(found).unwrap_or_else(|refusal| {
                refused = Some(refusal);
                ChangeDecision::Keep
            }))
        })?;
        self.writer.write_batch()?;
        refused.map_or(Ok(version), Err)
    }

    fn put_now(&mut self, name: &ItemKey<'_>, draft: &NewItem<'_>) -> Result<u64, ItemError> {
        let version = self.writer.put(name, draft)?;
        self.writer.write_batch()?;
        Ok(version)
    }
}

impl<F: Medium, N: Medium> ItemSession for CacheSession<F, N> {
    fn lock(&mut self, item: &ItemKey<'_>) -> Result<u64, ItemError> {
        self.mark(item, &|marks| match marks & LOCKED {
            0 => Ok(marks | LOCKED),
            _ => Err(ItemError::LockState),
        })
    }

    fn unlock(&mut self, item: &ItemKey<'_>) -> Result<u64, ItemError> {
        self.mark(item, &|marks| match marks & LOCKED {
            0 => Err(ItemError::LockState),
            _ => Ok(marks & !LOCKED),
        })
    }
}

fn unlocked(found: &FoundItem) -> Result<(), ItemError> {
    Ok(found.check_unlocked()?)
}

fn owned(found: &FoundItem, value: &[u8], expires_ms: u64, marks: u8) -> OwnedItem {
    OwnedItem {
        value: value.to_vec(),
        expires_ms,
        flags: found.head.flags,
        kind: found.head.kind,
        marks,
    }
}
