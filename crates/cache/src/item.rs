//! Items as sessions handle them: found on the data medium, or to be stored.

use farbank_pm::Off;
use farbank_store::{DATABASES, Error, ItemKey, Key, UpdateDecision, Value, ValueMeta};

use crate::layout::{HIDDEN, ItemHeader, LOCKED};
use crate::metadata::SlotId;

/// Returns the item key of a key of the common operations.
pub(crate) fn name_of(key: Key<'_>) -> ItemKey<'_> {
    ItemKey::new(key.db.into(), key.bytes)
}

/// Returns an error if the database `db` does not exist.
pub(crate) fn check_database(db: u8) -> Result<(), Error> {
    match usize::from(db) < DATABASES {
        true => Ok(()),
        false => Err(Error::NoDatabase { db }),
    }
}

/// An item found on the data medium.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundItem {
    pub(crate) slot: SlotId,
    pub(crate) at: Off,
    pub(crate) head: ItemHeader,
}

impl FoundItem {
    /// Returns whether ordinary reads show the item. A hidden item needs
    /// [`CacheSession::get_hidden`](crate::CacheSession).
    pub(crate) fn is_shown(&self) -> bool {
        self.head.marks & HIDDEN == 0
    }

    /// Returns an error if the item is locked.
    pub(crate) fn check_unlocked(&self) -> Result<(), Error> {
        match self.head.marks & LOCKED {
            0 => Ok(()),
            _ => Err(Error::Locked),
        }
    }

    pub(crate) fn meta(&self) -> ValueMeta {
        ValueMeta {
            value_bytes: self.head.value_len as usize,
            expires_ms: self.head.expires_ms,
            flags: self.head.flags,
            kind: self.head.kind,
            version: self.head.version,
        }
    }
}

/// An item and its value.
pub(crate) type FoundValue<'a> = (&'a FoundItem, &'a [u8]);

/// A value to store, with its metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NewItem<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) expires_ms: u64,
    pub(crate) flags: u32,
    pub(crate) kind: u8,
    pub(crate) marks: u8,
}

impl<'a> From<Value<'a>> for NewItem<'a> {
    fn from(value: Value<'a>) -> NewItem<'a> {
        NewItem {
            value: value.bytes,
            expires_ms: value.expires_ms,
            flags: value.flags,
            kind: value.kind,
            marks: 0,
        }
    }
}

/// A [`NewItem`] that owns its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnedItem {
    pub(crate) value: Vec<u8>,
    pub(crate) expires_ms: u64,
    pub(crate) flags: u32,
    pub(crate) kind: u8,
    pub(crate) marks: u8,
}

impl OwnedItem {
    pub(crate) fn borrow(&self) -> NewItem<'_> {
        NewItem {
            value: &self.value,
            expires_ms: self.expires_ms,
            flags: self.flags,
            kind: self.kind,
            marks: self.marks,
        }
    }
}

impl From<Value<'_>> for OwnedItem {
    fn from(value: Value<'_>) -> OwnedItem {
        OwnedItem {
            value: value.bytes.to_vec(),
            expires_ms: value.expires_ms,
            flags: value.flags,
            kind: value.kind,
            marks: 0,
        }
    }
}

/// Decision about a key that was read and may be written.
pub(crate) enum ChangeDecision {
    Keep,
    Delete,
    Put(OwnedItem),
}

impl From<UpdateDecision> for ChangeDecision {
    fn from(change: UpdateDecision) -> ChangeDecision {
        match change {
            UpdateDecision::Keep => ChangeDecision::Keep,
            UpdateDecision::Delete => ChangeDecision::Delete,
            UpdateDecision::Put {
                bytes,
                expires_ms,
                flags,
                kind,
            } => ChangeDecision::Put(OwnedItem {
                value: bytes,
                expires_ms,
                flags,
                kind,
                marks: 0,
            }),
        }
    }
}
