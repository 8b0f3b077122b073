//! Operations on single keys.
//!
//! A write locks and reads the leaf (`locked_node`), then writes the entry, or splits or merges the leaf.

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::client::Client;
use crate::config::Config;
use crate::error::TreeError;
use crate::key::Key;
use crate::layout::NodeFormat;
use crate::locked_node::{LockedNode, after_block};
use crate::node_read::TornTime;
use crate::page::{NodeEntry, NodePage};

/// The new value of a key.
pub(crate) enum NewValue<'a> {
    Word(u64),
    /// Bytes, stored in a block.
    Bytes(&'a [u8]),
}

impl<F: Fabric> Client<F> {
    /// Returns the value of `key`.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<u64>, TreeError> {
        self.values_are(false)?;
        let key = self.fitting(key.into())?;
        match self.config().shares_keys {
            true => self.shared_word(&key).await,
            false => self.word(&key).await,
        }
    }

    /// Returns the word in the entry of `key`: its value, or its block reference.
    pub(crate) async fn word(&self, key: &Key) -> Result<Option<u64>, TreeError> {
        if self.reads_parts()
            && let Some(found) = self.leaf_part(key).await?
            && let Ok(entry) = found.page.find(key)
        {
            return Ok(entry.map(|(_, value)| value));
        }
        let mut torn = TornTime::default();
        loop {
            let found = self.leaf(key).await?;
            // A torn entry is read again; it does not mean that the key is absent.
            match found.page.find(key) {
                Ok(entry) => return Ok(entry.map(|(_, value)| value)),
                Err(_) if fault!("tree.torn_is_absent") => return Ok(None),
                Err(_) => self.torn_again(&mut torn, found.at).await?,
            }
        }
    }

    /// Sets the value of `key`. Returns the old value. On `Ok`, every later read of any client sees the new value.
    pub async fn insert(&self, key: impl Into<Key>, value: u64) -> Result<Option<u64>, TreeError> {
        self.values_are(false)?;
        self.check_word(value)?;
        let key = self.fitting(key.into())?;
        match self.config().shares_keys {
            true => self.shared_put(key, value).await,
            false => self.put(key, NewValue::Word(value)).await,
        }
    }

    /// Checks that `value` can be in a node.
    pub(crate) fn check_word(&self, value: u64) -> Result<(), TreeError> {
        match self.config().layout.format == NodeFormat::Paper && value == 0 {
            true => Err(TreeError::Reserved),
            false => Ok(()),
        }
    }

    /// Sets the value of `key`. Returns the word that its entry had.
    pub(crate) async fn put(&self, key: Key, new: NewValue<'_>) -> Result<Option<u64>, TreeError> {
        let locked = self.lock_leaf_part(&key).await?;
        self.put_locked(locked, key, new).await
    }

    /// Like [`Client::put`], with the leaf locked. Releases the lock.
    pub(crate) async fn put_locked(
        &self,
        locked: LockedNode,
        key: Key,
        new: NewValue<'_>,
    ) -> Result<Option<u64>, TreeError> {
        let (mut locked, old) = self.find_locked(locked, &key).await?;
        let (value, block) = match new {
            NewValue::Word(value) => (value, None),
            NewValue::Bytes(bytes) => match self.block_for(locked.found.at.server(), bytes).await {
                Ok(block) => block,
                Err(error) => return Err(self.unlock_after(locked.held, error).await),
            },
        };
        let page = &mut locked.found.page;
        let slot = old.map(|(slot, _)| slot).or_else(|| page.free_slot(&key));
        let entry = NodeEntry { key, value };
        let Some(slot) = slot else {
            self.make_slot(locked, entry, block).await?;
            return Ok(None);
        };
        page.set_entry(slot, Some(&entry));
        self.write_slot(locked, slot, &entry.key, block).await?;
        Ok(old.map(|(_, value)| value))
    }

    /// Allocates a block for `value` of a locked leaf on `server`. Returns its name, and the verb that writes it if it is on this server.
    /// A block on another server has been written.
    async fn block_for(&self, server: u16, value: &[u8]) -> Result<(u64, Option<Verb>), TreeError> {
        let full = match self.new_block(server, value).await {
            Ok((name, write)) => return Ok((name, Some(write))),
            Err(full @ TreeError::Full { .. }) => full,
            Err(error) => return Err(error),
        };
        let others = self.servers_from(server).await.split_off(1);
        match self.new_block_on(&others, value).await {
            Ok((name, write)) => {
                self.round_trip(write).await?;
                Ok((name, None))
            }
            Err(_) => Err(full),
        }
    }

    /// Adds `entry` to a locked leaf without a free slot for it: moves other entries of a hashed leaf (TREE-HASH-3), or splits the
    /// leaf. Releases the lock.
    async fn make_slot(
        &self,
        locked: LockedNode,
        entry: NodeEntry,
        block: Option<Verb>,
    ) -> Result<(), TreeError> {
        let mut locked = self.complete(locked).await?;
        let Ok(mut entries) = locked.found.page.sorted() else {
            return Err(self.unlock_after(locked.held, locked.found.damaged()).await);
        };
        entries.push(entry.clone());
        let page = &mut locked.found.page;
        if !page.can_be_placed(&entries) {
            return self.split(locked, entry, block).await;
        }
        page.refill(&entries);
        if !fault!("tree.moved_without_version") {
            page.seal();
        }
        let verb = Verb::write(locked.found.at, page.bytes.clone());
        self.write_locked(locked, verb, &entry.key, block).await
    }

    /// Removes `key`. Returns its value.
    pub async fn remove(&self, key: impl Into<Key>) -> Result<Option<u64>, TreeError> {
        self.values_are(false)?;
        self.take_out(&self.fitting(key.into())?).await
    }

    /// Removes `key`. Returns the word that its entry had.
    pub(crate) async fn take_out(&self, key: &Key) -> Result<Option<u64>, TreeError> {
        let locked = self.lock_leaf(key).await?;
        self.take_out_locked(locked, key).await
    }

    /// Like [`Client::take_out`], with the leaf locked. Releases the lock.
    pub(crate) async fn take_out_locked(
        &self,
        locked: LockedNode,
        key: &Key,
    ) -> Result<Option<u64>, TreeError> {
        let (mut locked, old) = self.find_locked(locked, key).await?;
        let Some((slot, value)) = old else {
            self.unlock(locked.held).await?;
            return Ok(None);
        };
        let page = &mut locked.found.page;
        page.set_entry(slot, None);
        let few = page.each().count() * 4 < self.config().layout.entries();
        let locked = match few {
            true => self.merge(locked).await?,
            false => Some(locked),
        };
        if let Some(locked) = locked {
            self.write_slot(locked, slot, key, None).await?;
        }
        Ok(Some(value))
    }

    /// Writes entry `slot` of a locked node, or the whole node, after the block that the entry refers to. Releases the
    /// lock.
    async fn write_slot(
        &self,
        mut locked: LockedNode,
        slot: usize,
        key: &Key,
        block: Option<Verb>,
    ) -> Result<(), TreeError> {
        let verb = written(self.config(), locked.found.at, &mut locked.found.page, slot);
        self.write_locked(locked, verb, key, block).await
    }

    /// Performs `verb`, which writes `key` to a locked node, after the block that its entry refers to. Releases the lock.
    async fn write_locked(
        &self,
        locked: LockedNode,
        verb: Verb,
        key: &Key,
        block: Option<Verb>,
    ) -> Result<(), TreeError> {
        let (at, unknown_above) = (locked.found.at, locked.unknown_above);
        let head = locked.found.page.head();
        let writes = after_block(block, vec![verb]);
        self.write_and_unlock(locked.held, writes).await?;
        if unknown_above && head.covers(key) {
            self.note(|op| op.mended += 1);
            self.add_separator(head.level + 1, &head.lowest, at).await?;
        }
        Ok(())
    }
}

/// Returns the verb that writes entry `slot` of the node at `at`.
fn written(config: &Config, at: GAddr, page: &mut NodePage, slot: usize) -> Verb {
    if config.entries_alone {
        let range = config.layout.range_of(slot);
        return Verb::write(at.plus(range.start as u64), page.bytes[range].to_vec());
    }
    page.seal();
    Verb::write(at, page.bytes.clone())
}
