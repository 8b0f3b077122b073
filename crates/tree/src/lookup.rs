//! The search for a node, from the index cache or the root, with a check at its end.

use std::sync::Arc;

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::key::Key;
use crate::lock::HeldLock;
use crate::page::{NodeEntry, NodePage, NodeState};
use crate::superblock::ROOT;

/// The address of a node that is probably the wanted one, and the source of the address.
pub(crate) struct Path {
    pub(crate) at: GAddr,
    /// Level and lowest key of the cached node that led there; `None`: a node read just now did.
    hint: Option<(u8, Key)>,
    /// The least key for which the parent leads there.
    least: Key,
}

/// Result of the check of a node.
pub(crate) enum Lookup {
    /// It is the wanted node.
    Found,
    /// The search continues at this node.
    Follow(GAddr),
    /// The address was wrong; the search starts again.
    Restart,
}

/// Returns the child of an internal node for `key`, and the least key for which the node leads to it.
pub(crate) fn child_for(page: &NodePage, key: &Key) -> (GAddr, Key) {
    match page.last_to(key) {
        Some(NodeEntry { key, value }) => (GAddr(value), key),
        None => {
            let head = page.head();
            (head.low, head.lowest)
        }
    }
}

impl<F: Fabric> Client<F> {
    /// Searches the node of `level` for `key`, starting in the cache if possible. Returns `None` if the tree has no
    /// such level.
    pub(crate) async fn seek(&self, key: &Key, level: u8) -> Result<Option<Path>, TreeError> {
        let kept = self.cache().lowest(level + 1, key);
        let mut next = match kept {
            Some((_, page)) => {
                let head = page.head();
                let (at, least) = child_for(&page, key);
                if head.level == level + 1 {
                    let hint = Some((head.level, head.lowest));
                    return Ok(Some(Path { at, hint, least }));
                }
                at
            }
            None => self.root().await?,
        };
        loop {
            let found = self.read(next).await?;
            let head = found.page.head();
            if head.level == level {
                return Ok(Some(Path {
                    at: next,
                    hint: None,
                    least: Key::LEAST,
                }));
            }
            if head.level < level {
                return Ok(None);
            }
            match classify(&found.page, key, head.level) {
                Lookup::Found => {}
                Lookup::Follow(at) => {
                    next = at;
                    continue;
                }
                Lookup::Restart => {
                    // Only a cached node can lead to a wrong node.
                    self.drop_cached_ancestors(level, key);
                    next = self.root().await?;
                    continue;
                }
            }
            let page = Arc::new(found.page);
            self.cache_mut().keep(found.at, &page);
            let (at, least) = child_for(&page, key);
            if head.level == level + 1 {
                return Ok(Some(Path {
                    at,
                    hint: None,
                    least,
                }));
            }
            next = at;
        }
    }

    /// Reads the root's address.
    pub(crate) async fn root(&self) -> Result<GAddr, TreeError> {
        self.admit(ROOT.server()).await?;
        let word = self.round_trip(Verb::read(ROOT, 8)).await?.into_bytes();
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&word);
        match GAddr(u64::from_le_bytes(bytes)) {
            GAddr::NULL => Err(TreeError::NoTree),
            root => Ok(root),
        }
    }

    /// Handles a path for `aim` that led to a wrong node, and returns the key for the next attempt. A parent read just
    /// now may lead to a freed leaf, whose entries moved to its left sibling. If the client that moved them died, the
    /// separator stays for ever. A search that comes from the left finds the entries.
    pub(crate) fn retry_key(&self, way: &Path, aim: Key) -> Key {
        self.drop_hint(way);
        match way.hint {
            Some(_) => aim,
            None => way.least.previous(self.config().layout.key_bytes),
        }
    }

    /// Drops the cached node that led to `way`, if there is one: it is outdated.
    pub(crate) fn drop_hint(&self, way: &Path) {
        if let Some((level, lowest)) = &way.hint {
            self.cache_mut().drop_node(*level, lowest);
        }
    }

    /// Drops every cached node above `level` on the path to `key`.
    fn drop_cached_ancestors(&self, level: u8, key: &Key) {
        let mut cache = self.cache_mut();
        while let Some((_, page)) = cache.lowest(level + 1, key) {
            let head = page.head();
            cache.drop_node(head.level, &head.lowest);
        }
    }

    /// Returns whether a cached node led to `way`.
    pub(crate) fn by_hint(way: &Path) -> bool {
        way.hint.is_some()
    }

    /// Reads the neighbourhood of `key` in its leaf. Returns `None` if the copy is torn, or the node at the address is not a live
    /// and placed leaf that covers `key`.
    pub(crate) async fn leaf_part(&self, key: &Key) -> Result<Option<FetchedNode>, TreeError> {
        let way = self.seek(key, 0).await?.ok_or(TreeError::NoTree)?;
        let found = self.read_in_time(way.at, Some(key)).await?;
        match found.page.is_part_for(key) {
            Ok(true) => {
                self.note(|op| op.cache_hit = Self::by_hint(&way));
                Ok(Some(found))
            }
            Ok(false) => Ok(None),
            Err(_) => {
                self.note(|op| op.read_retries += 1);
                Ok(None)
            }
        }
    }

    /// Reads the leaf for `key`.
    pub(crate) async fn leaf(&self, key: &Key) -> Result<FetchedNode, TreeError> {
        let leaf = self.node(key, 0).await?;
        leaf.ok_or(TreeError::NoTree)
    }

    /// Reads the node of `level` for `key`. Returns `None` if the tree has no such level.
    pub(crate) async fn node(
        &self,
        key: &Key,
        level: u8,
    ) -> Result<Option<FetchedNode>, TreeError> {
        let mut aim = key.clone();
        loop {
            let Some(way) = self.seek(&aim, level).await? else {
                return Ok(None);
            };
            let mut at = way.at;
            loop {
                let found = self.read(at).await?;
                match classify(&found.page, key, level) {
                    Lookup::Found if found.page.head().state == NodeState::Moving => {
                        return self.moved(found, key).await.map(Some);
                    }
                    Lookup::Found => {
                        let hit = Self::by_hint(&way) && at == way.at;
                        self.note(|op| op.cache_hit = hit);
                        return Ok(Some(found));
                    }
                    Lookup::Follow(next) => {
                        self.drop_hint(&way);
                        at = next;
                    }
                    Lookup::Restart => break,
                }
            }
            aim = self.retry_key(&way, aim);
        }
    }

    /// Resolves a leaf that is moving: if its entries have moved, reads the leaf that has them, otherwise returns the
    /// leaf itself.
    pub(crate) async fn moved(
        &self,
        mut found: FetchedNode,
        key: &Key,
    ) -> Result<FetchedNode, TreeError> {
        loop {
            let (to, from) = (found.page.head().low, found.at);
            match self.find_in_chain(key, to, from, None).await? {
                None => return Ok(found),
                Some(next) if next.page.head().state == NodeState::Moving => found = next,
                Some(next) => return Ok(next),
            }
        }
    }

    /// Reads the node at `at`, or the one to which it has been moved (`drain`). The caller holds the lock `held`.
    pub(crate) async fn read_moved(
        &self,
        held: &HeldLock,
        mut at: GAddr,
    ) -> Result<FetchedNode, TreeError> {
        loop {
            let found = self.read_beside(held, at).await?;
            let head = found.page.head();
            if head.state != NodeState::Freed {
                return Ok(found);
            }
            at = head.low;
        }
    }

    /// Returns the leaf for `key` in the chain of siblings, or `None` if the chain still leads to `moving`. This tells
    /// whether a leaf that is moving to the node at `to` has moved. It works even if that node has been split or merged
    /// since its mover died. `held` is a lock that the caller holds.
    pub(crate) async fn find_in_chain(
        &self,
        key: &Key,
        to: GAddr,
        moving: GAddr,
        held: Option<&HeldLock>,
    ) -> Result<Option<FetchedNode>, TreeError> {
        let (mut at, mut aim) = (to, key.clone());
        loop {
            let found = match held {
                Some(held) => self.read_beside(held, at).await?,
                None => self.read(at).await?,
            };
            at = match classify(&found.page, key, 0) {
                Lookup::Found => return Ok(Some(found)),
                Lookup::Follow(next) if next == moving => return Ok(None),
                Lookup::Follow(next) => next,
                Lookup::Restart => loop {
                    let way = self.seek(&aim, 0).await?.ok_or(TreeError::NoTree)?;
                    aim = self.retry_key(&way, aim);
                    if way.at != moving {
                        break way.at;
                    }
                },
            };
        }
    }
}

/// Checks whether a node is the one of `level` for `key`.
pub(crate) fn classify(page: &NodePage, key: &Key, level: u8) -> Lookup {
    let head = page.head();
    if fault!("tree.fences_unchecked") && head.level == level {
        return Lookup::Found;
    }
    if head.level != level || head.state == NodeState::Nothing || *key < head.lowest {
        return Lookup::Restart;
    }
    match head.state {
        NodeState::Freed => Lookup::Follow(head.low),
        _ if head.covers(key) => Lookup::Found,
        _ if head.sibling.is_null() => Lookup::Restart,
        _ => Lookup::Follow(head.sibling),
    }
}
