//! Values of any size, out of line: a block, usually on the leaf's server, and a reference (its *name*) in the entry.
//!
//! ```text
//!   leaf    … key │ name …                name   number:12 │ units:12 │ place:32 │ server:8     units of 64 bytes
//!                     │
//!   block   check 4  bytes 4  name 8 │ value                        check: of all that follows
//! ```
//!
//! A block is written before the entry that refers to it, in the same batch where batches are ordered, so a write takes
//! no additional round trip. If the leaf's server is full, the block is on another one and written first. A client that
//! replaces or removes an entry, under the leaf's lock, may reuse its block after the write of the entry has completed. The
//! block keeps its size class and gets the next number.
//!
//! # Invariants
//! TREE-VALUE-1  A name is in at most one entry. Its block is completely written before.
//! TREE-VALUE-2  A block with another number is another block. A reader with an old name finds a wrong check or a wrong name in
//!     the block, and reads the leaf again.
//! TREE-VALUE-3  Numbers repeat after 4,096 uses of a block, and a block rests between its last number and the first. A block that
//!     was read later after its leaf than that time is discarded.
//!
//! # Failures
//! If a client dies before the entry is written, the new block leaks; after that, the old block leaks. Nothing else
//! refers to either. A write that failed may have taken effect, so neither block is reused.

use farbank_fabric::{Fabric, GAddr, Nanos, Verb};

use crate::block::{BlockRef, block, block_read_ns_max, size_of, value_in};
use crate::bulk_load::{FillTarget, beginning, fill_after};
use crate::client::Client;
use crate::config::Config;
use crate::error::TreeError;
use crate::key::Key;
use crate::ops::NewValue;
use crate::range::Direction;

/// Number of entries of a range whose blocks are read at once.
const PIECE: usize = 64;
/// Number of retries after which a block that stays invalid, with the same name in its entry, is reported as damaged.
const TRIES: u32 = 64;

impl<F: Fabric> Client<F> {
    /// Returns the value of `key`, in a tree with values out of line.
    pub async fn get_bytes(&self, key: impl Into<Key>) -> Result<Option<Vec<u8>>, TreeError> {
        self.values_are(true)?;
        let key = self.fitting(key.into())?;
        let (mut last, mut tries) = (None, 0);
        let mut late = 0;
        loop {
            let posted = self.fabric().now();
            let Some(word) = self.word(&key).await? else {
                return Ok(None);
            };
            let name = BlockRef(word);
            let bytes = self.read_block(name).await?;
            let in_time = self.fabric().now() - posted <= block_read_ns_max(self.config());
            let value = value_in(name, &bytes);
            if let Some(value) = value.filter(|_| in_time) {
                return Ok(Some(value));
            }
            if !in_time {
                late += 1;
                if late > TRIES {
                    let ns_max = block_read_ns_max(self.config());
                    return Err(TreeError::Late { ns_max });
                }
            }
            tries = if last == Some(name) { tries + 1 } else { 0 };
            if tries > TRIES && in_time {
                return Err(TreeError::Damaged { at: name.at() });
            }
            last = Some(name);
            self.note(|op| op.read_retries += 1);
        }
    }

    /// Sets the value of `key`. Returns whether it had one. On `Ok`, every later read of any client sees the new value.
    pub async fn insert_bytes(&self, key: impl Into<Key>, value: &[u8]) -> Result<bool, TreeError> {
        self.check_bytes(value)?;
        let key = self.fitting(key.into())?;
        let old = self.put(key, NewValue::Bytes(value)).await?;
        Ok(old.map(|word| self.free_block(BlockRef(word))).is_some())
    }

    /// Sets the value of `key` if it has none. Returns whether it had none.
    pub async fn insert_bytes_if_absent(
        &self,
        key: impl Into<Key>,
        value: &[u8],
    ) -> Result<bool, TreeError> {
        self.check_bytes(value)?;
        let key = self.fitting(key.into())?;
        let locked = self.lock_leaf(&key).await?;
        let (locked, entry) = self.find_locked(locked, &key).await?;
        if entry.is_some() {
            self.unlock(locked.held).await?;
            return Ok(false);
        }
        self.put_locked(locked, key, NewValue::Bytes(value)).await?;
        Ok(true)
    }

    /// Checks that values are out of line, and that `value` is not too long.
    pub(crate) fn check_bytes(&self, value: &[u8]) -> Result<(), TreeError> {
        let (bytes, most) = (value.len(), self.values_are(true)?);
        match bytes <= most {
            true => Ok(()),
            false => Err(TreeError::ValueTooLong { bytes, most }),
        }
    }

    /// Returns the value in the block `name`, while the leaf that refers to it is locked: nothing replaces it.
    pub(crate) async fn value_under_lock(&self, name: BlockRef) -> Result<Vec<u8>, TreeError> {
        let bytes = self.read_block(name).await?;
        value_in(name, &bytes).ok_or(TreeError::Damaged { at: name.at() })
    }

    /// Like [`Client::value_under_lock`], for blocks that are all on `server`, at once.
    pub(crate) async fn values_under_lock(
        &self,
        server: u16,
        names: &[BlockRef],
    ) -> Result<Vec<Vec<u8>>, TreeError> {
        self.admit(server).await?;
        let reads = names.iter().map(|name| Verb::read(name.at(), name.bytes()));
        let read = self.round_trip_of(server, reads.collect()).await?;
        let values = names.iter().zip(read).map(|(name, read)| {
            let value = value_in(*name, &read.into_bytes());
            value.ok_or(TreeError::Damaged { at: name.at() })
        });
        values.collect()
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
        self.range_bytes_in(Direction::Up, from.into(), count).await
    }

    /// Returns the last `count` keys up to `from`, with their values, the greatest key first. The result is not atomic:
    /// see [`Client::range`].
    pub async fn range_bytes_down(
        &self,
        from: impl Into<Key>,
        count: usize,
    ) -> Result<Vec<(Key, Vec<u8>)>, TreeError> {
        self.range_bytes_in(Direction::Down, from.into(), count)
            .await
    }

    /// Returns the first `count` keys from `from` on in `direction`, with their values.
    pub(crate) async fn range_bytes_in(
        &self,
        direction: Direction,
        from: Key,
        count: usize,
    ) -> Result<Vec<(Key, Vec<u8>)>, TreeError> {
        self.values_are(true)?;
        let mut next = self.fitting(from)?;
        let mut found = Vec::new();
        while found.len() < count {
            let piece = PIECE.min(count - found.len());
            let posted = self.fabric().now();
            let words = self.words(direction, &next, piece).await?;
            let last = words.last().map(|(key, _)| key.clone());
            let all = words.len() < piece;
            self.values_of(words, posted, &mut found).await?;
            let after = last.and_then(|key| direction.next(&key, self.config().layout.key_bytes));
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
                let read = Verb::read(name.at(), name.bytes());
                (key, name, self.fabric().verb(read))
            })
            .collect();
        self.note(|op| op.round_trips += 1);
        for (key, name, read) in reads {
            let bytes = read.await?.into_bytes();
            let in_time = self.fabric().now() - posted <= block_read_ns_max(self.config());
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
        let read = Verb::read(name.at(), name.bytes());
        Ok(self.round_trip(read).await?.into_bytes())
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
    let mut next = beginning(servers);
    let mut named = Vec::new();
    for (number, (key, value)) in entries.enumerate() {
        let server = (number % usize::from(servers)) as u16;
        let at = GAddr::host(server, next[usize::from(server)]);
        let name = BlockRef::new(at, size_of(value.len()).0, 0);
        next[usize::from(server)] += name.class_bytes();
        place.put(at, &block(name, &value));
        named.push((key, name.0));
    }
    fill_after(config, next, share, named.into_iter(), place);
}
