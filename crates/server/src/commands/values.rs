//! Whole values of strings, for commands that compute with them instead of sending them, and what such a command
//! stores instead.

use std::ops::Range;

use farbank_store::{
    GetStep, Key, Ops, ReadView, StoredItem, UpdateDecision, VALUE_BYTES_MAX, ValueMeta,
};

use super::context::CommandContext;
use super::error::{CommandError, WRONG_TYPE};
use crate::exec_context::StoreAccess;
use crate::settings::size;

/// The kind of a string; no other kind exists.
pub(super) const STRING: u8 = 0;

/// Returns the string that a key holds; `None` if the key is absent.
///
/// # Errors
/// `WRONGTYPE` if the value is no string.
pub(super) fn string_in<'a>(
    item: Option<StoredItem<'a>>,
) -> Result<Option<&'a [u8]>, CommandError> {
    match item {
        Some(item) if item.meta.type_of() != STRING => Err(WRONG_TYPE),
        item => Ok(item.map(|item| item.bytes)),
    }
}

/// Returns the decision to store the string `bytes` instead of `item`. The expiry stays.
pub(super) fn string_instead_of(item: Option<StoredItem<'_>>, bytes: Vec<u8>) -> UpdateDecision {
    let meta = item.map(|item| item.meta).unwrap_or_default();
    UpdateDecision::Put {
        bytes,
        expires_ms: meta.expires_ms,
        flags: meta.flags,
        kind: STRING,
    }
}

/// Returns a copy of `old` with at least `len` bytes; the further ones are zeros.
///
/// The allocator provides the zeros of a long value as pages that it never writes, so they use no memory before a
/// command changes them. This matters for a value that the store then refuses.
pub(super) fn extended(old: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; old.len().max(len)];
    bytes[..old.len()].copy_from_slice(old);
    bytes
}

/// Strings that were read together.
#[derive(Default)]
pub(super) struct StringValues {
    bytes: Vec<u8>,
    /// Where each key's value is in `bytes`; `None` for an absent key.
    ranges: Vec<Option<Range<usize>>>,
}

impl StringValues {
    /// The value of the key at position `at`; `None` if it is absent.
    pub(super) fn get(&self, at: usize) -> Option<&[u8]> {
        let range = self.ranges.get(at)?.clone()?;
        self.bytes.get(range)
    }
}

/// Reads whole strings with single-key operations, within a budget of bytes.
#[derive(Clone)]
pub(super) struct StringReader {
    bytes_left: usize,
}

impl StringReader {
    /// Appends the string at `key` to `out`. `Ok(None)`: the key is absent.
    ///
    /// # Errors
    /// [`CommandError::Long`] if the budget does not suffice, `WRONGTYPE` if the value is no string.
    pub(super) fn append(
        &mut self,
        ops: &mut dyn Ops,
        key: Key<'_>,
        view: ReadView,
        out: &mut Vec<u8>,
    ) -> Result<Option<ValueMeta>, CommandError> {
        let mut found = None;
        let bytes_left = self.bytes_left;
        ops.get(key, view, out, &mut |meta, out| {
            found = Some(*meta);
            let fits = meta.value_bytes <= bytes_left;
            if fits && meta.type_of() == STRING {
                out.reserve(meta.value_bytes);
                return true;
            }
            false
        })?;
        match found {
            Some(meta) if meta.value_bytes > bytes_left => Err(CommandError::Long),
            Some(meta) if meta.type_of() != STRING => Err(WRONG_TYPE),
            Some(meta) => {
                self.bytes_left -= meta.value_bytes;
                Ok(Some(meta))
            }
            None => Ok(None),
        }
    }
}

impl CommandContext<'_> {
    /// A reader for the bytes that the request may still read.
    pub(super) fn string_reader(&self) -> StringReader {
        let bytes_left = match self.executes_long {
            true => usize::MAX,
            false => self.bytes_left().saturating_sub(self.request.hidden_bytes),
        };
        StringReader { bytes_left }
    }

    /// Returns the string at `key`; `None` if it is absent. Counts the look-up.
    pub(super) fn read_string(&mut self, key: Key<'_>) -> Result<Option<Vec<u8>>, CommandError> {
        let (view, mut reader) = (self.view(), self.string_reader());
        let mut bytes = Vec::new();
        let found = reader.append(self.ops(), key, view, &mut bytes)?.is_some();
        self.request.hidden_bytes += bytes.len();
        self.count_lookup(key, found);
        Ok(found.then_some(bytes))
    }

    /// Returns the strings at `keys` as of one moment. Counts the look-ups.
    pub(super) fn read_strings(&mut self, keys: &[Key<'_>]) -> Result<StringValues, CommandError> {
        let (view, mut reader) = (self.view(), self.string_reader());
        let mut values = StringValues::default();
        match &mut self.store {
            group @ (StoreAccess::Group(_) | StoreAccess::Optimistic(_)) => {
                for &key in keys {
                    let from = values.bytes.len();
                    let found = reader.append(group.ops(), key, view, &mut values.bytes)?;
                    values.ranges.push(found.map(|_| from..values.bytes.len()));
                }
            }
            StoreAccess::Session(session) => {
                let (ranges, mut error) = (&mut values.ranges, None);
                session.get_many_into(keys, view, &mut values.bytes, &mut |meta, out| {
                    let Some(meta) = meta else {
                        ranges.push(None);
                        return GetStep::NextKey;
                    };
                    if meta.value_bytes > reader.bytes_left {
                        error = Some(CommandError::Long);
                    } else if meta.type_of() != STRING {
                        error = Some(WRONG_TYPE);
                    }
                    if error.is_some() {
                        return GetStep::Nothing;
                    }
                    reader.bytes_left -= meta.value_bytes;
                    ranges.push(Some(out.len()..out.len() + meta.value_bytes));
                    out.reserve(meta.value_bytes);
                    GetStep::Value
                })?;
                if let Some(error) = error {
                    return Err(error);
                }
            }
        }
        self.request.hidden_bytes += values.bytes.len();
        for (&key, range) in keys.iter().zip(&values.ranges) {
            self.count_lookup(key, range.is_some());
        }
        Ok(values)
    }

    /// Most bytes of a value that a client may store.
    pub(super) fn value_bytes_max(&self) -> usize {
        size(&self.shared.settings.bulk_bytes_max).min(VALUE_BYTES_MAX)
    }
}
