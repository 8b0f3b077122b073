//! The operations that only caches have: areas, slab classes and locks of items.
//!
//! A server reaches them through [`Store::as_cache`](crate::Store::as_cache). [`Error::ItemTooLarge`],
//! [`Error::Locked`] and [`Error::NoArea`] come from caches only.

use std::fmt;

use crate::error::Error;
use crate::session::Session;
use crate::stats::SlabClass;

/// The operations of a cache, besides those of a [`Store`](crate::Store). A cache evicts the least recently used items
/// when it is full.
pub trait CacheStore {
    /// Creates a session for one more worker, with locks of items.
    fn item_session(&self) -> Box<dyn ItemSession>;

    /// Removes all current items of `area`, durably on `Ok`.
    ///
    /// # Errors
    /// [`Error::NoArea`], and the errors of a write.
    fn clear_area(&self, area: u16) -> Result<(), Error>;

    /// Sets the bytes of slots that `area` may use; `None` means no limit. The quota is not stored. Items above it
    /// are evicted as the area is written to.
    ///
    /// # Errors
    /// [`Error::NoArea`].
    fn set_quota(&self, area: u16, quota_bytes: Option<u64>) -> Result<(), Error>;

    /// Returns what `area` uses. An area that does not exist uses nothing.
    fn area_usage(&self, area: u16) -> AreaUsage;

    /// Returns the slab classes that have pages, smallest slots first.
    fn slab_classes(&self) -> Vec<SlabClass>;
}

/// Space that an area uses. Expired items that are not removed yet count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaUsage {
    /// Number of items.
    pub items: u64,
    /// Bytes of their slots.
    pub bytes: u64,
}

/// A session of a cache.
pub trait ItemSession: Session {
    /// Locks the item, which then refuses writes with [`Error::Locked`]. Returns its new version. Durable on `Ok`.
    ///
    /// # Errors
    /// [`ItemError::LockState`] if it is already locked, [`ItemError::Absent`], and the errors of a write.
    fn lock(&mut self, item: &ItemKey<'_>) -> Result<u64, ItemError>;

    /// Unlocks the item. Returns its new version. Durable on `Ok`.
    ///
    /// # Errors
    /// [`ItemError::LockState`] if it is not locked, [`ItemError::Absent`], and the errors of a write.
    fn unlock(&mut self, item: &ItemKey<'_>) -> Result<u64, ItemError>;
}

/// Key of an item: its area, its key bytes, and the length of the prefix that it shares with other keys. The
/// databases of [`Key`](crate::Key) are the first areas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemKey<'a> {
    /// Number of the area.
    pub area: u16,
    /// The key, including its prefix.
    pub key: &'a [u8],
    /// Bytes of the prefix; 0 means none.
    pub prefix_bytes: u16,
}

impl<'a> ItemKey<'a> {
    /// Creates a key without a prefix.
    #[must_use]
    pub fn new(area: u16, key: &'a [u8]) -> ItemKey<'a> {
        ItemKey {
            area,
            key,
            prefix_bytes: 0,
        }
    }
}

/// Reason why an operation on an item of a cache had no effect.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ItemError {
    /// The store returned an error.
    Store(Error),
    /// The item does not exist.
    Absent,
    /// The item does not have the expected version. Holds its version.
    Version(u64),
    /// The item is hidden from ordinary reads.
    Hidden,
    /// The item is not a counter.
    NotACounter,
    /// The result would be out of bounds. Holds the counter's value, which is unchanged.
    OutOfBounds(i64),
    /// The item is already locked, or already unlocked.
    LockState,
}

impl fmt::Display for ItemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ItemError::Store(error) => error.fmt(f),
            ItemError::Absent => f.write_str("the item does not exist"),
            ItemError::Version(found) => write!(
                f,
                "the item has version {found}, not the expected one: read it again"
            ),
            ItemError::Hidden => f.write_str("the item is hidden"),
            ItemError::NotACounter => f.write_str("the item is not a counter"),
            ItemError::OutOfBounds(at) => {
                write!(
                    f,
                    "the result is out of the counter's bounds; the counter stays at {at}"
                )
            }
            ItemError::LockState => f.write_str("the item is already locked, or already unlocked"),
        }
    }
}

impl std::error::Error for ItemError {
    /// Returns the cause of the store's error, whose own text is the text of this error.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ItemError::Store(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Error> for ItemError {
    fn from(error: Error) -> ItemError {
        ItemError::Store(error)
    }
}
