//! Operations on single keys.
//!
//! A write takes the lock of the leaf that the search returned, and reads the leaf. If it is the wrong leaf, the write
//! releases the lock and moves on. It never waits for a second lock.

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::TreeError;
use crate::client::{Client, FetchedNode};
use crate::config::Config;
use crate::key::Key;
use crate::layout::NodeFormat;
use crate::lock::HeldLock;
use crate::lookup::{Lookup, classify};
use crate::page::{NodeEntry, NodePage, NodeState};

/// The new value of a key.
pub(crate) enum NewValue<'a> {
    Word(u64),
    /// Bytes, stored in a block.
    Bytes(&'a [u8]),
}

/// A locked node, read under its lock.
pub(crate) struct LockedNode {
    pub(crate) held: HeldLock,
    pub(crate) found: FetchedNode,
    /// Whether it was reached by a sibling pointer and may have no separator.
    unknown_above: bool,
}

impl<F: Fabric> Client<F> {
    /// Returns the value of `key`.
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<u64>, TreeError> {
        self.values_are(false)?;
        self.word(&self.fitting(key.into())?).await
    }

    /// Returns the word in the entry of `key`: its value, or its block reference.
    pub(crate) async fn word(&self, key: &Key) -> Result<Option<u64>, TreeError> {
        loop {
            let found = self.leaf(key).await?;
            // A torn entry is read again; it does not mean that the key is absent.
            match found.page.find(key) {
                Ok(entry) => return Ok(entry.map(|(_, value)| value)),
                Err(_) if fault!("tree.torn_is_absent") => return Ok(None),
                Err(_) => self.note(|op| op.read_retries += 1),
            }
        }
    }

    /// Sets the value of `key`. Returns the old value. On `Ok`, every later read of any client sees the new value.
    pub async fn insert(&self, key: impl Into<Key>, value: u64) -> Result<Option<u64>, TreeError> {
        self.values_are(false)?;
        if self.home.config.layout.format == NodeFormat::Paper && value == 0 {
            return Err(TreeError::Reserved);
        }
        self.put(self.fitting(key.into())?, NewValue::Word(value))
            .await
    }

    /// Sets the value of `key`. Returns the word that its entry had.
    pub(crate) async fn put(&self, key: Key, new: NewValue<'_>) -> Result<Option<u64>, TreeError> {
        let mut locked = self.lock_leaf(&key).await?;
        let (value, block) = match new {
            NewValue::Word(value) => (value, None),
            NewValue::Bytes(bytes) => match self.new_block(locked.found.at.server(), bytes).await {
                Ok((name, write)) => (name, Some(write)),
                Err(error) => return Err(self.unlock_after(locked.held, error).await),
            },
        };
        let page = &mut locked.found.page;
        let old = page.find(&key).expect("a locked leaf is not torn");
        let slot = old.map(|(slot, _)| slot).or_else(|| page.free_slot());
        let entry = NodeEntry { key, value };
        let Some(slot) = slot else {
            self.split(locked, entry, block).await?;
            return Ok(None);
        };
        page.set_entry(slot, Some(&entry));
        self.write_slot(locked, slot, &entry.key, block).await?;
        Ok(old.map(|(_, value)| value))
    }

    /// Removes `key`. Returns its value.
    pub async fn remove(&self, key: impl Into<Key>) -> Result<Option<u64>, TreeError> {
        self.values_are(false)?;
        self.take_out(&self.fitting(key.into())?).await
    }

    /// Removes `key`. Returns the word that its entry had.
    pub(crate) async fn take_out(&self, key: &Key) -> Result<Option<u64>, TreeError> {
        let mut locked = self.lock_leaf(key).await?;
        let page = &mut locked.found.page;
        let old = page.find(key).expect("a locked leaf is not torn");
        let Some((slot, value)) = old else {
            self.unlock(locked.held).await?;
            return Ok(None);
        };
        page.set_entry(slot, None);
        let few = page.each().count() * 4 < self.home.config.layout.entries();
        let locked = match few {
            true => self.merge(locked).await?,
            false => Some(locked),
        };
        if let Some(locked) = locked {
            self.write_slot(locked, slot, key, None).await?;
        }
        Ok(Some(value))
    }

    /// Returns `key`, if it is not too long for this tree.
    pub(crate) fn fitting(&self, key: Key) -> Result<Key, TreeError> {
        let most = self.home.config.layout.key_bytes;
        match key.len() <= most {
            true => Ok(key),
            false => Err(TreeError::KeyTooLong {
                bytes: key.len(),
                most,
            }),
        }
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
        let (at, unknown_above) = (locked.found.at, locked.unknown_above);
        let head = locked.found.page.head();
        let verb = written(&self.home.config, at, &mut locked.found.page, slot);
        let writes = after_block(block, vec![verb]);
        self.write_and_unlock(locked.held, writes).await?;
        if unknown_above && head.covers(key) {
            self.note(|op| op.mended += 1);
            self.add_separator(head.level + 1, &head.lowest, at).await?;
        }
        Ok(())
    }

    /// Locks and reads the leaf for `key`.
    async fn lock_leaf(&self, key: &Key) -> Result<LockedNode, TreeError> {
        let locked = self.lock_node(key, 0).await?;
        locked.ok_or(TreeError::NoTree)
    }

    /// Locks and reads the node of `level` for `key`. Returns `None` if the tree has no such level.
    pub(crate) async fn lock_node(
        &self,
        key: &Key,
        level: u8,
    ) -> Result<Option<LockedNode>, TreeError> {
        let mut aim = key.clone();
        loop {
            let Some(way) = self.seek(&aim, level).await? else {
                return Ok(None);
            };
            let mut at = way.at;
            let mut unknown_above = false;
            loop {
                let held = self.lock(at).await?;
                self.note(|op| op.handed_over = held.handed);
                let found = match self.read(at).await {
                    Ok(found) => found,
                    Err(error) => return Err(self.unlock_after(held, error).await),
                };
                match classify(&found.page, key, level) {
                    Lookup::Found if found.page.head().state == NodeState::Moving => {
                        if let Some(next) = self.resolve_moving(held, found, key).await? {
                            at = next;
                        }
                    }
                    Lookup::Found => {
                        let direct = at == way.at;
                        let hit = Self::by_hint(&way) && direct;
                        self.note(|op| op.cache_hit = hit);
                        return Ok(Some(LockedNode {
                            held,
                            found,
                            unknown_above: unknown_above && !Self::by_hint(&way),
                        }));
                    }
                    Lookup::Follow(next) => {
                        unknown_above = found.page.head().sibling == next;
                        self.drop_hint(&way);
                        self.unlock(held).await?;
                        at = next;
                    }
                    Lookup::Restart => {
                        self.unlock(held).await?;
                        break;
                    }
                }
            }
            aim = self.retry_key(&way, aim);
        }
    }

    /// Resolves a locked leaf whose mover died. If its entries have moved, marks it freed; if not, marks it live again.
    /// Returns the leaf at which to continue, if it has moved.
    async fn resolve_moving(
        &self,
        held: HeldLock,
        mut found: FetchedNode,
        key: &Key,
    ) -> Result<Option<GAddr>, TreeError> {
        let mut head = found.page.head();
        let target = match self.find_in_chain(key, head.low, found.at).await {
            Ok(target) => target.map(|target| target.at),
            Err(error) => return Err(self.unlock_after(held, error).await),
        };
        head.state = match target {
            Some(_) => NodeState::Freed,
            None => NodeState::Live,
        };
        head.low = target.unwrap_or(GAddr::NULL);
        self.note(|op| op.mended += 1);
        found.page.set_head(&head);
        found.page.seal();
        let write = Verb::write(found.at, found.page.bytes);
        self.write_and_unlock(held, vec![write]).await?;
        Ok(target)
    }
}

/// Returns `writes`, preceded by the write of the block that they refer to.
pub(crate) fn after_block(block: Option<Verb>, mut writes: Vec<Verb>) -> Vec<Verb> {
    if let Some(block) = block {
        let place = match fault!("tree.entry_before_block") {
            true => writes.len(),
            false => 0,
        };
        writes.insert(place, block);
    }
    writes
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
