//! Nodes that are locked and read.
//!
//! A client locks the node that the search returned, and reads the node. If it is the wrong node, the client releases
//! the lock and moves on. It never waits for a second lock.

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::hashed_leaf::node_reads;
use crate::key::Key;
use crate::lock::HeldLock;
use crate::lookup::{Lookup, classify};
use crate::page::{NodePage, NodeState, TornNode};

/// A locked node, read under its lock.
pub(crate) struct LockedNode {
    pub(crate) held: HeldLock,
    pub(crate) found: FetchedNode,
    /// Whether it was reached by a sibling pointer and may have no separator.
    pub(crate) unknown_above: bool,
    /// Whether the copy has only the neighbourhood of the key.
    is_part: bool,
}

impl<F: Fabric> Client<F> {
    /// Locks and reads the leaf for `key`.
    pub(crate) async fn lock_leaf(&self, key: &Key) -> Result<LockedNode, TreeError> {
        let locked = self.lock_node(key, 0).await?;
        locked.ok_or(TreeError::NoTree)
    }

    /// Locks the leaf for `key`, and reads it or only the neighbourhood of `key`.
    pub(crate) async fn lock_leaf_part(&self, key: &Key) -> Result<LockedNode, TreeError> {
        let locked = self.lock_node_or_part(key, 0, self.reads_parts()).await?;
        locked.ok_or(TreeError::NoTree)
    }

    /// Locks and reads the node of `level` for `key`. Returns `None` if the tree has no such level.
    pub(crate) async fn lock_node(
        &self,
        key: &Key,
        level: u8,
    ) -> Result<Option<LockedNode>, TreeError> {
        self.lock_node_or_part(key, level, false).await
    }

    /// Like [`Client::lock_node`]. If `reads_part`, reads only the neighbourhood of `key` if that is enough.
    async fn lock_node_or_part(
        &self,
        key: &Key,
        level: u8,
        reads_part: bool,
    ) -> Result<Option<LockedNode>, TreeError> {
        let mut aim = key.clone();
        loop {
            let Some(way) = self.seek(&aim, level).await? else {
                return Ok(None);
            };
            let mut at = way.at;
            let mut unknown_above = false;
            loop {
                // A missing separator is added with the header of the leaf.
                let part = (reads_part && !unknown_above).then_some(key);
                let (held, found, is_part) = self.lock_and_fetch(at, part).await?;
                self.note(|op| op.handed_over = held.handed);
                if is_part {
                    self.note(|op| op.cache_hit = Self::by_hint(&way) && at == way.at);
                    return Ok(Some(LockedNode {
                        held,
                        found,
                        unknown_above,
                        is_part,
                    }));
                }
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
                            is_part: false,
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

    /// Locks and reads the node at `at`, in one batch if possible. Reads only the neighbourhood of `part` if the node is the leaf
    /// that covers it. Returns whether the copy has only that.
    async fn lock_and_fetch(
        &self,
        at: GAddr,
        part: Option<&Key>,
    ) -> Result<(HeldLock, FetchedNode, bool), TreeError> {
        if self.config().reads_with_lock {
            self.admit(at.server()).await?;
        }
        let layout = self.config().layout;
        let reads = node_reads(&layout, at, part);
        let (held, done) = self.lock_and_read(at, &reads).await?;
        let found = match done {
            Some(reads) => {
                let page = NodePage::from_reads(layout, at, reads);
                Ok(FetchedNode { at, page })
            }
            None => self.read_in_time(at, part).await,
        };
        let found = match (found, part) {
            (Ok(found), Some(key)) if found.page.is_part_for(key) == Ok(true) => {
                return Ok((held, found, true));
            }
            (Ok(_), Some(_)) => self.read_locked(at).await,
            (Ok(found), None) => self.whole_under_lock(found).await,
            (Err(error), _) => Err(error),
        };
        match found {
            Ok(found) => Ok((held, found, false)),
            Err(error) => Err(self.unlock_after(held, error).await),
        }
    }

    /// Completes the copy of a locked leaf of which only a part was read. Releases the lock after an error.
    pub(crate) async fn complete(&self, mut locked: LockedNode) -> Result<LockedNode, TreeError> {
        if locked.is_part {
            match self.read_locked(locked.found.at).await {
                Ok(found) => locked.found = found,
                Err(error) => return Err(self.unlock_after(locked.held, error).await),
            }
            locked.is_part = false;
        }
        Ok(locked)
    }

    /// Returns the locked node, with the slot and the word in its entry of `key`. Releases the lock after an error.
    ///
    /// # Errors
    /// [`TreeError::Damaged`]: an entry is torn, although no other client writes the node.
    pub(crate) async fn find_locked(
        &self,
        locked: LockedNode,
        key: &Key,
    ) -> Result<(LockedNode, Option<(usize, u64)>), TreeError> {
        match locked.found.page.find(key) {
            Ok(entry) => Ok((locked, entry)),
            Err(TornNode) => Err(self.unlock_after(locked.held, locked.found.damaged()).await),
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
        let beside = Some(&held);
        let target = match self.find_in_chain(key, head.low, found.at, beside).await {
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
