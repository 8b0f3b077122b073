//! Values of any size, out of line: a block on the leaf's server, and a reference (its *name*) in the entry.
//!
//! ```text
//!   leaf    … key │ name …                name   number:12 │ units:12 │ place:32 │ server:8     units of 64 bytes
//!                     │
//!   block   check 4  bytes 4  name 8 │ value                        check: of all that follows
//! ```
//!
//! A block is written before the entry that refers to it, in the same batch where batches are ordered, so a write takes
//! no additional round trip. A client that replaces or removes an entry, under the leaf's lock, may reuse its block
//! after the write of the entry has completed. The block keeps its size class and gets the next number.
//!
//! # Invariants
//! TREE-VALUE-1  A name is in at most one entry. Its block is completely written before.
//! TREE-VALUE-2  A block with another number is another block. A reader with an old name finds a wrong check or a wrong name in
//!     the block, and reads the leaf again.
//! TREE-VALUE-3  Numbers repeat after 4,096 uses of a block, each of which takes a write of an entry. A block that was read later
//!     after its leaf than that may take is discarded.
//!
//! # Failures
//! If a client dies before the entry is written, the new block leaks; after that, the old block leaks. Nothing else
//! refers to either. A write that failed may have taken effect, so neither block is reused.

use std::collections::HashMap;

use farbank_fabric::{Fabric, GAddr, Nanos, ServiceRequest, ServiceResponse, Verb};
use farbank_pm::fault;

use crate::client::Client;
use crate::config::ValueMode;
use crate::key::Key;
use crate::ops::NewValue;
use crate::{Config, FillTarget, TreeError};

const UNIT: u64 = 64;
/// Bytes of a block's header: check, length, name.
const HEAD: usize = 16;
const NUMBERS: u64 = 1 << 12;
const UNITS_MAX: u64 = (1 << 12) - 1;
const PLACES: u64 = 1 << 32;
/// Maximum bytes of a value.
pub const VALUE_BYTES_MAX: usize = (UNITS_MAX / 2 + 1) as usize * UNIT as usize - HEAD;
/// Number of entries of a range whose blocks are read at once.
const PIECE: usize = 64;
/// Number of retries after which a block that stays invalid, with the same name in its entry, is reported as damaged.
const TRIES: u32 = 64;

/// Reference to a block, stored in an entry in place of its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRef(pub(crate) u64);

impl BlockRef {
    fn new(at: GAddr, bytes: usize, number: u64) -> BlockRef {
        let units = (bytes as u64).div_ceil(UNIT);
        let place = at.at() / UNIT;
        debug_assert!(units <= UNITS_MAX && place < PLACES && at.server() < 256);
        BlockRef(u64::from(at.server()) | place << 8 | units << 40 | (number % NUMBERS) << 52)
    }

    pub(crate) fn at(self) -> GAddr {
        GAddr::host(self.0 as u8 as u16, (self.0 >> 8) % PLACES * UNIT)
    }

    fn units(self) -> u64 {
        (self.0 >> 40) & UNITS_MAX
    }

    fn number(self) -> u64 {
        self.0 >> 52
    }

    /// Returns the size class: the block's units, some of which the value may leave unused.
    fn class(self) -> u64 {
        self.units().next_power_of_two()
    }
}

/// The blocks that a compute server can allocate on one memory server.
#[derive(Default)]
pub(crate) struct ValueBlocks {
    /// Start and end of the unused part of a chunk.
    chunk: Option<(u64, u64)>,
    /// Freed blocks with their last numbers, by size class.
    freed: HashMap<u64, Vec<(GAddr, u64)>>,
}

impl ValueBlocks {
    /// Allocates a block of `class` units. Returns its address and its number, or `None` if there is no space.
    fn take(&mut self, server: u16, class: u64) -> Option<(GAddr, u64)> {
        if let Some((at, number)) = self.freed.get_mut(&class).and_then(Vec::pop) {
            let next = if fault!("tree.block_keeps_number") {
                0
            } else {
                1
            };
            return Some((at, number + next));
        }
        let (at, end) = self.chunk?;
        let next = at + class * UNIT;
        if next > end {
            return None;
        }
        self.chunk = Some((next, end));
        Some((GAddr::host(server, at), 0))
    }
}

/// Returns the bytes of the block called `name`.
fn block(name: BlockRef, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    bytes[4..8].copy_from_slice(&(value.len() as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&name.0.to_le_bytes());
    bytes.extend_from_slice(value);
    let check = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Returns the value in the copy of the block called `name`; `None` if it is another block or was being written.
fn value_in(name: BlockRef, bytes: &[u8]) -> Option<Vec<u8>> {
    let word =
        |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("blocks have heads"));
    let end = HEAD.checked_add(word(4) as usize)?;
    let value = bytes.get(HEAD..end)?;
    let whole = word(0) == crc32c::crc32c(&bytes[4..end]) && bytes[8..16] == name.0.to_le_bytes();
    (whole || fault!("tree.block_unchecked")).then(|| value.to_vec())
}

/// Returns the maximum time between the reads of a leaf and of a block (TREE-VALUE-3).
const fn read_ns_max() -> Nanos {
    /// Least time between two uses of a block.
    const WRITE_NS_MIN: Nanos = 500;
    NUMBERS * WRITE_NS_MIN
}

impl<F: Fabric> Client<F> {
    /// Returns the value of `key`, in a tree with values out of line.
    pub async fn get_bytes(&self, key: impl Into<Key>) -> Result<Option<Vec<u8>>, TreeError> {
        self.values_are(true)?;
        let key = self.fitting(key.into())?;
        let (mut last, mut tries) = (None, 0);
        loop {
            let posted = self.home.fabric.now();
            let Some(word) = self.word(&key).await? else {
                return Ok(None);
            };
            let name = BlockRef(word);
            let bytes = self.read_block(name).await?;
            let in_time = self.home.fabric.now() - posted <= read_ns_max();
            if let Some(value) = value_in(name, &bytes).filter(|_| in_time) {
                return Ok(Some(value));
            }
            tries = if last == Some(name) { tries + 1 } else { 0 };
            if tries > TRIES {
                return Err(TreeError::Damaged { at: name.at() });
            }
            last = Some(name);
            self.note(|op| op.read_retries += 1);
        }
    }

    /// Sets the value of `key`. Returns whether it had one. On `Ok`, every later read of any client sees the new value.
    pub async fn insert_bytes(&self, key: impl Into<Key>, value: &[u8]) -> Result<bool, TreeError> {
        let most = self.values_are(true)?;
        let key = self.fitting(key.into())?;
        if value.len() > most {
            let bytes = value.len();
            return Err(TreeError::ValueTooLong { bytes, most });
        }
        let old = self.put(key, NewValue::Bytes(value)).await?;
        Ok(old.map(|word| self.free_block(BlockRef(word))).is_some())
    }

    /// Removes `key`. Returns whether it was present.
    pub async fn remove_bytes(&self, key: impl Into<Key>) -> Result<bool, TreeError> {
        self.values_are(true)?;
        let key = self.fitting(key.into())?;
        let old = self.take_out(&key).await?;
        Ok(old.map(|word| self.free_block(BlockRef(word))).is_some())
    }

    /// Returns the first `count` keys from `from` on, with their values, sorted by key. The result is not atomic: see
    /// [`Client::range`].
    pub async fn range_bytes(
        &self,
        from: impl Into<Key>,
        count: usize,
    ) -> Result<Vec<(Key, Vec<u8>)>, TreeError> {
        self.values_are(true)?;
        let mut next = self.fitting(from.into())?;
        let mut found = Vec::new();
        while found.len() < count {
            let piece = PIECE.min(count - found.len());
            let posted = self.home.fabric.now();
            let words = self.words(&next, piece).await?;
            let last = words.last().map(|(key, _)| key.clone());
            let all = words.len() < piece;
            self.values_of(words, posted, &mut found).await?;
            let after = last.and_then(|key| key.next(self.home.config.layout.key_bytes));
            match after {
                Some(key) if !all => next = key,
                _ => break,
            }
        }
        Ok(found)
    }

    /// Reads the blocks that `words` refer to, all at once. A block that was replaced meanwhile is read again by its
    /// key.
    async fn values_of(
        &self,
        words: Vec<(Key, u64)>,
        posted: Nanos,
        found: &mut Vec<(Key, Vec<u8>)>,
    ) -> Result<(), TreeError> {
        for (_, word) in &words {
            self.admit(BlockRef(*word).at().server()).await?;
        }
        let reads: Vec<_> = words
            .into_iter()
            .map(|(key, word)| {
                let name = BlockRef(word);
                let read = Verb::read(name.at(), name.units() as usize * UNIT as usize);
                (key, name, self.home.fabric.verb(read))
            })
            .collect();
        self.note(|op| op.round_trips += 1);
        for (key, name, read) in reads {
            let bytes = read.await?.into_bytes();
            let in_time = self.home.fabric.now() - posted <= read_ns_max();
            let value = match value_in(name, &bytes).filter(|_| in_time) {
                Some(value) => Some(value),
                None => self.get_bytes(&key).await?,
            };
            found.extend(value.map(|value| (key, value)));
        }
        Ok(())
    }

    async fn read_block(&self, name: BlockRef) -> Result<Vec<u8>, TreeError> {
        self.admit(name.at().server()).await?;
        let read = Verb::read(name.at(), name.units() as usize * UNIT as usize);
        Ok(self.round_trip(read).await?.into_bytes())
    }

    /// Checks that values are `out_of_line`, or words. Returns their maximum bytes.
    pub(crate) fn values_are(&self, out_of_line: bool) -> Result<usize, TreeError> {
        match (self.home.config.values, out_of_line) {
            (ValueMode::Words, false) => Ok(8),
            (ValueMode::Blocks { bytes_max }, true) => Ok(bytes_max.min(VALUE_BYTES_MAX)),
            _ => Err(TreeError::OtherValues),
        }
    }

    /// Allocates a block for `value` on `server`. Returns its name and the verb that writes it.
    pub(crate) async fn new_block(
        &self,
        server: u16,
        value: &[u8],
    ) -> Result<(u64, Verb), TreeError> {
        let bytes = HEAD + value.len();
        let class = (bytes as u64).div_ceil(UNIT).next_power_of_two();
        let mut asked = false;
        let (at, number) = loop {
            if let Some(taken) = self.blocks(server, |blocks| blocks.take(server, class)) {
                break taken;
            }
            match self.call(server, ServiceRequest::Chunk).await? {
                ServiceResponse::Chunk { at, bytes } if !asked => {
                    let rest = (at.next_multiple_of(UNIT), at + bytes);
                    self.blocks(server, |blocks| blocks.chunk = Some(rest));
                    asked = true;
                }
                _ => return Err(TreeError::Full { server }),
            }
        };
        let name = BlockRef::new(at, bytes, number);
        Ok((name.0, Verb::write(at, block(name, value))))
    }

    /// Makes a block available again. No entry refers to it, and no write that refers to it can follow.
    fn free_block(&self, name: BlockRef) {
        self.blocks(name.at().server(), |blocks| {
            let freed = blocks.freed.entry(name.class()).or_default();
            freed.push((name.at(), name.number()));
        });
    }
}

/// Creates a tree like [`crate::fill`], with values out of line.
pub fn fill_bytes<K: Into<Key>>(
    config: &Config,
    servers: u16,
    share: f64,
    entries: impl Iterator<Item = (K, Vec<u8>)>,
    place: &mut dyn FillTarget,
) {
    let mut next = crate::bulk_load::beginning(servers);
    let mut named = Vec::new();
    for (number, (key, value)) in entries.enumerate() {
        let server = (number % usize::from(servers)) as u16;
        let at = GAddr::host(server, next[usize::from(server)]);
        let name = BlockRef::new(at, HEAD + value.len(), 0);
        next[usize::from(server)] += name.class() * UNIT;
        place.put(at, &block(name, &value));
        named.push((key, name.0));
    }
    crate::bulk_load::fill_after(config, next, share, named.into_iter(), place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_encodes_its_block_and_is_never_null() {
        for (server, place, bytes, number) in [
            (0, 0, HEAD, 0),
            (255, (PLACES - 1) * UNIT, HEAD + VALUE_BYTES_MAX, 4095),
            (7, 4096, 65, 1),
        ] {
            let at = GAddr::host(server, place);
            let name = BlockRef::new(at, bytes, number);
            assert_eq!((name.at(), name.number()), (at, number));
            assert_eq!(name.units(), (bytes as u64).div_ceil(UNIT));
            assert_ne!(name.0, 0);
        }
    }

    #[test]
    fn a_block_with_another_name_or_a_changed_byte_is_rejected() {
        let at = GAddr::host(3, 1 << 20);
        let name = BlockRef::new(at, HEAD + 100, 5);
        let mut bytes = block(name, &[7; 100]);
        bytes.resize(name.units() as usize * UNIT as usize, 0xee);
        assert_eq!(value_in(name, &bytes), Some(vec![7; 100]));
        assert_eq!(value_in(BlockRef::new(at, HEAD + 100, 6), &bytes), None);
        for at in 0..HEAD + 100 {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(value_in(name, &other), None, "byte {at}");
        }
    }
}
