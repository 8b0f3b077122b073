//! Growth: splits, separators, new roots.
//!
//! ```text
//!   before   parent ──▶ [ a b c d ] ──▶ right
//!   (a)      the upper half is written as a new, unreferenced node              [ c d ] ──▶ right
//!   (b)      the old node is written: fence key, sibling        [ a b ] ──▶ [ c d ] ──▶ right
//!   (c)      the parent gets a separator for the new node
//! ```
//!
//! A crash before (b) leaks the new node. A crash before (c) leaves a node that is reached by its sibling, and the next
//! write that reaches it this way does (c). If both nodes are on one server, (a), (b) and the release are one batch.

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::alloc::NodeOrigin;
use crate::client::Client;
use crate::error::TreeError;
use crate::key::Key;
use crate::lock::HeldLock;
use crate::locked_node::{LockedNode, after_block};
use crate::node_allocator::NewNode;
use crate::page::{NodeEntry, NodeHeader, NodePage, NodeState};
use crate::phase::Phase;
use crate::superblock::ROOT;

impl<F: Fabric> Client<F> {
    /// Splits a locked node without a free slot for `entry`, and adds the entry. `block` writes the block that the
    /// entry refers to.
    pub(crate) async fn split(
        &self,
        locked: LockedNode,
        entry: NodeEntry,
        block: Option<Verb>,
    ) -> Result<(), TreeError> {
        let LockedNode { held, found, .. } = locked;
        let Ok(mut entries) = found.page.sorted() else {
            return Err(self.unlock_after(held, found.damaged()).await);
        };
        let (at, mut left) = (found.at, found.page);
        let new = match self.allocate_right(at.server()).await {
            Ok(node) => node,
            Err(error) => return Err(self.unlock_after(held, error).await),
        };
        let place = entries.partition_point(|other| other.key < entry.key);
        entries.insert(place, entry);
        let upper = entries.split_off(entries.len() / 2);
        let (lowest, low, upper) = match left.head().level {
            0 => (upper[0].key.clone(), GAddr::NULL, &upper[..]),
            // The first child of the upper half needs no key of its own.
            _ => (upper[0].key.clone(), GAddr(upper[0].value), &upper[1..]),
        };
        let old = left.head();
        let (level, new_at) = (old.level, new.at);
        let mut head = NodeHeader {
            low,
            lowest: lowest.clone(),
            ..old.clone()
        };
        let is_reused_leaf = level == 0 && new.was_leaf;
        if is_reused_leaf {
            (head.state, head.low) = (NodeState::Moving, at); // TREE-NODE-6
        }
        let mut right = NodePage::new(self.config().layout, &head, new.version);
        right.refill(upper);
        right.seal();
        left.refill(&entries);
        left.set_head(&NodeHeader {
            sibling: new_at,
            highest: Some(lowest.clone()),
            ..old
        });
        left.seal();
        self.note(|op| {
            op.splits += 1;
            op.reused_leaves += u32::from(is_reused_leaf);
        });
        let mut writes = vec![
            Verb::write(new_at, right.bytes),
            Verb::write(at, left.bytes),
        ];
        if new_at.server() != at.server() {
            // Verbs on two servers have no order, so the new node is complete before the old one leads to it.
            let first = writes.remove(0);
            if let Err(error) = self.round_trip(first).await {
                return Err(self.unlock_after(held, error).await);
            }
        }
        if fault!("tree.old_half_first") && writes.len() == 2 {
            writes.swap(0, 1);
        }
        let _splitting = self.begin(Phase::Splitting);
        self.write_and_unlock(held, after_block(block, writes))
            .await?;
        if is_reused_leaf {
            // Marks it live.
            let locked = self.lock_leaf(&lowest).await?;
            self.unlock(locked.held).await?;
        }
        self.add_separator(level + 1, &lowest, new_at).await
    }

    /// Allocates the right node of a split of a locked node on `server`. Servers that are full or unreachable take no part.
    async fn allocate_right(&self, server: u16) -> Result<NewNode, TreeError> {
        let mut servers = self.servers_from(server).await;
        if self.config().spread_splits {
            servers.rotate_left(1);
        }
        self.allocate_on(&servers, NodeOrigin::Any).await
    }

    /// Adds a separator on `level` for `child`, whose keys start at `key`.
    pub(crate) async fn add_separator(
        &self,
        level: u8,
        key: &Key,
        child: GAddr,
    ) -> Result<(), TreeError> {
        let locked = loop {
            match self.lock_node(key, level).await? {
                Some(locked) => break locked,
                None if self.grow(level, key, child).await? => return Ok(()),
                None => {}
            }
        };
        let (mut locked, known) = self.find_locked(locked, key).await?;
        if known.is_some() || locked.found.page.head().lowest == *key {
            return self.unlock(locked.held).await;
        }
        match self.begins(&locked.held, child, level - 1, key).await {
            Ok(true) => {}
            Ok(false) => return self.unlock(locked.held).await,
            Err(error) => return Err(self.unlock_after(locked.held, error).await),
        }
        let entry = NodeEntry {
            key: key.clone(),
            value: child.0,
        };
        let page = &mut locked.found.page;
        let Some(slot) = page.free_slot(key) else {
            return Box::pin(self.split(locked, entry, None)).await;
        };
        page.set_entry(slot, Some(&entry));
        page.seal();
        let write = Verb::write(locked.found.at, locked.found.page.bytes);
        self.write_and_unlock(locked.held, vec![write]).await
    }

    /// Returns whether the node at `at` is still the node of `level` whose keys start at `key`. No merge can change this
    /// while its parent is locked by `held`. Without this check, a delayed separator could lead to a leaf that has been merged
    /// away and perhaps reused. All searches by that separator would take the detour from the left, for ever. Or it could lead to
    /// a server that the node has left (TREE-DRAIN-2).
    async fn begins(
        &self,
        held: &HeldLock,
        at: GAddr,
        level: u8,
        key: &Key,
    ) -> Result<bool, TreeError> {
        let head = self.read_beside(held, at).await?.page.head();
        Ok(head.is_child(level, key))
    }

    /// Creates a root of `level` above the present one. Returns false if another client has done so meanwhile.
    async fn grow(&self, level: u8, key: &Key, child: GAddr) -> Result<bool, TreeError> {
        let held = self.lock(ROOT).await?;
        let _growing = self.begin(Phase::Growing);
        let grown = self.new_root(&held, level, key, child).await;
        match grown {
            Ok(Some(root)) => {
                let bytes = root.0.to_le_bytes().to_vec();
                self.write_and_unlock(held, vec![Verb::write(ROOT, bytes)])
                    .await?;
                Ok(true)
            }
            Ok(None) => self.unlock(held).await.map(|()| false),
            Err(error) => Err(self.unlock_after(held, error).await),
        }
    }

    async fn new_root(
        &self,
        held: &HeldLock,
        level: u8,
        key: &Key,
        child: GAddr,
    ) -> Result<Option<GAddr>, TreeError> {
        let old = self.root().await?;
        let old = self.read_moved(held, old).await?;
        let grown = old.page.head().level >= level;
        if grown && !fault!("tree.root_grown_twice") {
            return Ok(None);
        }
        let child = self.read_moved(held, child).await?.at;
        let servers = self.servers_from(ROOT.server()).await;
        let node = self.allocate_on(&servers, NodeOrigin::Any).await?;
        let NewNode { at, version, .. } = node;
        let head = NodeHeader {
            low: old.at,
            sibling: GAddr::NULL,
            level,
            state: NodeState::Live,
            lowest: Key::LEAST,
            highest: None,
        };
        let mut page = NodePage::new(self.config().layout, &head, version);
        let entry = NodeEntry {
            key: key.clone(),
            value: child.0,
        };
        page.set_entry(0, Some(&entry));
        page.seal();
        self.round_trip(Verb::write(at, page.bytes)).await?;
        Ok(Some(at))
    }
}
