//! Emptying a memory server that leaves the tree: its nodes and values move to other servers.
//!
//! ```text
//!   left ──▶ N ──▶ right       N is locked
//!   parent ──▶ N
//!   (a)  a copy N' is written on another server                      N' ──▶ right
//!   (b)  N is marked as freed; its `low` leads to N'         left ──▶ N ──▶ N' ──▶ right      readers of N continue at N'
//!   (c)  the left node is locked, and leads to N'            left ──▶ N' ──▶ right
//!   (d)  the parent is locked, and leads to N'               parent ──▶ N'
//! ```
//!
//! A *pass* visits all nodes: the levels from the leaves to the root, and each level from the greatest key to the least. A
//! node is visited under its lock: its addresses of moved nodes are replaced, its values on the leaving server move, and then the node itself, if
//! it is there. So the right sibling and the children of a node have moved before its visit. The drain ends with a pass that
//! changes nothing.
//!
//! # Invariants
//! TREE-DRAIN-1  A node that has moved is not used again on its old server, so it leads to its copy for as long as the server runs.
//! TREE-DRAIN-2  A client that adds an address of a node, a separator or a root, reads the node under the lock of the place to
//!     which it adds the address. It adds no address of a node that has moved.
//! TREE-DRAIN-3  After a pass that has changed nothing, nothing leads to the server any more.
//!
//! # Argument for TREE-DRAIN-3
//! The pass begins when the server has been leaving for longer than any copy of the list is used. Let an operation place something on the
//! server after that. It took a lock before (TREE-LIST-1), or the locked node is on the server itself. The pass visits the node of this
//! lock after the operation has ended its work there, and finds what it has placed; or it has visited the node before, and then the operation
//! took the lock after the visit, and knows that the server is leaving. A split or a merge that begins after the visit of its nodes copies
//! addresses that the pass has checked. What it moves to the left, over the pass, is visited later; a split moves nodes to the right, with
//! addresses of visited nodes. A separator or a root with the address of a node on the server requires that the node has not moved
//! (TREE-DRAIN-2). So the pass finds the node later, or has found it, and has changed something. The lock of the root's address is taken
//! at the start of the pass: a root that is created after that has children that have not moved, too.
//!
//! # Crash argument
//! A crash after (a) leaks the copy. Every later state is one that readers and writers handle: a freed node leads to its copy, as a merged
//! leaf leads to the leaf with its entries. The next drain continues. A value's block is written before the entry that refers to it, as
//! always (TREE-VALUE-1).

use std::collections::BTreeMap;

use farbank_fabric::{Fabric, GAddr, Nanos, Verb};
use farbank_pm::fault;
use farbank_pm::rng::Rng;

use crate::alloc::NodeOrigin;
use crate::block::BlockRef;
use crate::client::{Client, FetchedNode};
use crate::config::ValueMode;
use crate::error::TreeError;
use crate::key::Key;
use crate::lock::HeldLock;
use crate::locked_node::LockedNode;
use crate::node_allocator::NewNode;
use crate::page::{NodeEntry, NodeHeader, NodePage, NodeState, TornNode};
use crate::phase::Phase;
use crate::superblock::ROOT;

/// Ages of a copy of the list after which no client uses it.
const WAITED_AGES: Nanos = 3;
/// Values that move during one visit, which holds a lock, and the bytes after which it ends.
const VALUES_MAX: usize = 16;
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Children that a visit reads at once.
const CHILDREN: usize = 16;

/// Counts of a drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DrainCounts {
    /// Passes over the tree that have ended.
    pub passes: u64,
    /// Visits of nodes.
    pub visits: u64,
    /// Nodes that were moved.
    pub nodes_moved: u64,
    /// Values that were moved.
    pub values_moved: u64,
    /// Addresses of nodes that were replaced or removed.
    pub addresses_replaced: u64,
}

impl DrainCounts {
    fn changes(&self) -> u64 {
        self.nodes_moved + self.values_moved + self.addresses_replaced
    }
}

/// A node that is being visited.
struct Visit<'a> {
    /// The server that is leaving.
    server: u16,
    locked: LockedNode,
    head: NodeHeader,
    is_changed: bool,
    counts: &'a mut DrainCounts,
}

impl<F: Fabric> Client<F> {
    /// Moves everything from `server`, which the list of servers has as leaving. Calls `progress` after each visit of a node.
    ///
    /// # Errors
    /// The other servers are full, or one does not answer. The drain can be repeated.
    pub(crate) async fn drain(
        &self,
        server: u16,
        progress: &mut dyn FnMut(&DrainCounts),
    ) -> Result<DrainCounts, TreeError> {
        let list_ns_max = self.config().list_ns_max;
        if !fault!("tree.drained_at_once") {
            self.fabric().sleep(WAITED_AGES * list_ns_max).await;
        }
        let mut counts = DrainCounts::default();
        loop {
            let before = counts.changes();
            self.drain_pass(server, &mut counts, progress).await?;
            counts.passes += 1;
            progress(&counts);
            if counts.changes() == before || fault!("tree.drained_in_one_pass") {
                return Ok(counts);
            }
        }
    }

    async fn drain_pass(
        &self,
        server: u16,
        counts: &mut DrainCounts,
        progress: &mut dyn FnMut(&DrainCounts),
    ) -> Result<(), TreeError> {
        let key_bytes = self.config().layout.key_bytes;
        self.replace_root(counts).await?;
        for level in 0..=u8::MAX {
            let mut aim = Key::new(&vec![u8::MAX; key_bytes]);
            loop {
                let Some(locked) = self.lock_node(&aim, level).await? else {
                    return Ok(());
                };
                let lowest = locked.found.page.head().lowest;
                let is_done = self.visit(server, locked, counts).await?;
                counts.visits += 1;
                progress(counts);
                if !is_done {
                    continue;
                }
                if lowest == Key::LEAST {
                    break;
                }
                aim = lowest.previous(key_bytes);
            }
        }
        Ok(())
    }

    /// Replaces the root's address if the root has moved.
    async fn replace_root(&self, counts: &mut DrainCounts) -> Result<(), TreeError> {
        let held = self.lock(ROOT).await?;
        let moved = async {
            let old = self.root().await?;
            let new = self.read_moved(&held, old).await?.at;
            Ok((new != old).then_some(new))
        };
        match moved.await {
            Ok(Some(new)) => {
                counts.addresses_replaced += 1;
                let bytes = new.0.to_le_bytes().to_vec();
                self.write_and_unlock(held, vec![Verb::write(ROOT, bytes)])
                    .await
            }
            Ok(None) => self.unlock(held).await,
            Err(error) => Err(self.unlock_after(held, error).await),
        }
    }

    /// Visits a locked node, and releases the lock. Returns whether all its values have moved.
    async fn visit(
        &self,
        server: u16,
        locked: LockedNode,
        counts: &mut DrainCounts,
    ) -> Result<bool, TreeError> {
        let _moving = self.begin(Phase::Draining);
        let mut visit = Visit {
            server,
            head: locked.found.page.head(),
            locked,
            is_changed: false,
            counts,
        };
        let done = self.change_node(&mut visit).await;
        let Visit {
            locked,
            head,
            is_changed,
            ..
        } = visit;
        let (held, mut found) = (locked.held, locked.found);
        let (is_done, old_blocks) = match done {
            Ok(done) => done,
            Err(error) => return Err(self.unlock_after(held, error).await),
        };
        if is_changed {
            found.page.set_head(&head);
            found.page.seal();
            let write = Verb::write(found.at, found.page.bytes);
            self.write_and_unlock(held, vec![write]).await?;
        } else {
            self.unlock(held).await?;
        }
        for block in old_blocks {
            self.free_block(block);
        }
        Ok(is_done)
    }

    /// Changes the copy of a node, and writes what must be written before the node. Returns whether all its values have moved, and
    /// the blocks that the changed node does not refer to any more.
    async fn change_node(&self, visit: &mut Visit<'_>) -> Result<(bool, Vec<BlockRef>), TreeError> {
        self.replace_sibling(visit).await?;
        if visit.head.level > 0 {
            self.replace_children(visit).await?;
        }
        let old_blocks = self.move_values(visit).await?;
        let is_done = self.values_on(visit)?.is_empty();
        if is_done && visit.locked.found.at.server() == visit.server {
            self.move_node(visit).await?;
        }
        Ok((is_done, old_blocks))
    }

    /// Step (c), for the node to the left.
    async fn replace_sibling(&self, visit: &mut Visit<'_>) -> Result<(), TreeError> {
        let old = visit.head.sibling;
        if old.is_null() || fault!("tree.moved_sibling_kept") {
            return Ok(());
        }
        let new = self.read_moved(&visit.locked.held, old).await?.at;
        if new != old {
            visit.head.sibling = new;
            visit.replaced();
        }
        Ok(())
    }

    /// Step (d), for a parent. Also removes separators of merged leaves, which a client that died in a merge has left.
    async fn replace_children(&self, visit: &mut Visit<'_>) -> Result<(), TreeError> {
        let level = visit.head.level - 1;
        let node = &visit.locked.found;
        let entries = node.page.each().collect::<Result<Vec<_>, _>>();
        let entries = entries.map_err(|TornNode| node.damaged())?;
        let first = (None, visit.head.lowest.clone(), visit.head.low);
        let others = entries.into_iter();
        let others = others.map(|(slot, entry)| (Some(slot), entry.key, GAddr(entry.value)));
        let children: Vec<_> = std::iter::once(first).chain(others).collect();
        for some in children.chunks(CHILDREN) {
            let addresses: Vec<GAddr> = some.iter().map(|(.., at)| *at).collect();
            let found = self.read_all(&visit.locked.held, &addresses).await?;
            for ((slot, key, at), child) in some.iter().zip(found) {
                let new = match child.page.head().is_child(level, key) {
                    true => Some(*at),
                    false => self.child_for_key(key, level).await?,
                };
                visit.set_child(*slot, key, *at, new);
            }
        }
        Ok(())
    }

    /// Returns the address of the node of `level` whose keys start at `key`, if there is one.
    async fn child_for_key(&self, key: &Key, level: u8) -> Result<Option<GAddr>, TreeError> {
        let found = self.node(key, level).await?.ok_or(TreeError::NoTree)?;
        Ok((found.page.head().lowest == *key).then_some(found.at))
    }

    /// Reads the nodes at `addresses`, all at once, while this client holds `held`.
    async fn read_all(
        &self,
        held: &HeldLock,
        addresses: &[GAddr],
    ) -> Result<Vec<FetchedNode>, TreeError> {
        let layout = self.config().layout;
        for at in addresses {
            self.admit(at.server()).await?;
        }
        let mut found = Vec::with_capacity(addresses.len());
        for read in self.read_at_once(addresses).await {
            let at = read.at;
            let verb = read.verb.map_err(|error| self.noted(error))?;
            let node = FetchedNode {
                at,
                page: NodePage::from_reads(layout, at, vec![verb]),
            };
            found.push(match node.page.check() {
                Ok(()) if read.in_time => node,
                _ => self.read_beside(held, at).await?,
            });
        }
        Ok(found)
    }

    /// Moves some values of a leaf from the leaving server. Returns their old blocks.
    async fn move_values(&self, visit: &mut Visit<'_>) -> Result<Vec<BlockRef>, TreeError> {
        let mut bytes = 0;
        let mut some = self.values_on(visit)?;
        some.truncate(VALUES_MAX);
        some.retain(|(_, entry)| {
            let fits = bytes == 0 || bytes + BlockRef(entry.value).bytes() <= VALUE_BYTES_MAX;
            bytes += BlockRef(entry.value).bytes();
            fits
        });
        let old_blocks: Vec<_> = some
            .iter()
            .map(|(_, entry)| BlockRef(entry.value))
            .collect();
        if old_blocks.is_empty() {
            return Ok(old_blocks);
        }
        let values = self.values_under_lock(visit.server, &old_blocks).await?;
        let at = visit.locked.found.at;
        let targets = self.targets(at, visit.server).await?;
        let mut writes: BTreeMap<u16, Vec<Verb>> = BTreeMap::new();
        let mut new_blocks = Vec::new();
        for ((slot, entry), value) in some.into_iter().zip(values) {
            let (word, write) = match self.new_block_on(&targets, &value).await {
                Ok(allocated) => allocated,
                Err(error) => {
                    new_blocks
                        .into_iter()
                        .for_each(|block| self.free_block(block));
                    return Err(error);
                }
            };
            new_blocks.push(BlockRef(word));
            writes.entry(write.at().server()).or_default().push(write);
            let entry = NodeEntry {
                value: word,
                ..entry
            };
            visit.locked.found.page.set_entry(slot, Some(&entry));
            visit.is_changed = true;
            visit.counts.values_moved += 1;
        }
        for (target, writes) in writes {
            self.round_trip_of(target, writes).await?;
        }
        Ok(old_blocks)
    }

    /// Returns the entries of a leaf whose values are on the leaving server.
    fn values_on(&self, visit: &Visit<'_>) -> Result<Vec<(usize, NodeEntry)>, TreeError> {
        let are_blocks = matches!(self.config().values, ValueMode::Blocks { .. });
        if !are_blocks || visit.head.level > 0 || fault!("tree.moved_values_kept") {
            return Ok(Vec::new());
        }
        let found = &visit.locked.found;
        let is_there = |entry: &NodeEntry| BlockRef(entry.value).at().server() == visit.server;
        let entries = found.page.each().filter(|found| match found {
            Ok((_, entry)) => is_there(entry),
            Err(TornNode) => true,
        });
        let entries = entries.collect::<Result<_, _>>();
        entries.map_err(|TornNode| found.damaged())
    }

    /// Steps (a) and (b), except for the write of the old node.
    async fn move_node(&self, visit: &mut Visit<'_>) -> Result<(), TreeError> {
        let old = &mut visit.locked.found;
        let targets = self.targets(old.at, visit.server).await?;
        let node = self.allocate_on(&targets, NodeOrigin::Unused).await?; // TREE-NODE-6
        let NewNode { at, version, .. } = node;
        old.page.set_head(&visit.head);
        let mut copy = old.page.copy_for(version);
        copy.seal();
        if !fault!("tree.moved_before_copied") {
            self.round_trip(Verb::write(at, copy.bytes)).await?;
        }
        visit.head.state = NodeState::Freed;
        visit.head.low = at;
        visit.is_changed = true;
        visit.counts.nodes_moved += 1;
        Ok(())
    }

    /// Returns the servers that can have what is moved from `server` with the node at `at`, in the order in which they are tried.
    async fn targets(&self, at: GAddr, server: u16) -> Result<Vec<u16>, TreeError> {
        let list = self.server_list().await?;
        // Values move to the server of their leaf. Nodes are distributed.
        let first = match at.server() == server {
            true => Rng::new(at.0).draw() as u16 % list.in_use,
            false => (at.server() + list.in_use - 1) % list.in_use,
        };
        let targets = list.after(first);
        let targets: Vec<u16> = targets.filter(|target| *target != server).collect();
        match targets.is_empty() {
            true => Err(TreeError::Full { server }),
            false => Ok(targets),
        }
    }
}

impl Visit<'_> {
    /// Counts an address that was replaced in the node.
    fn replaced(&mut self) {
        self.is_changed = true;
        self.counts.addresses_replaced += 1;
    }

    /// Sets the child in `slot`, or the first one, from `old` to `new`. `None`: removes the separator `key`.
    fn set_child(&mut self, slot: Option<usize>, key: &Key, old: GAddr, new: Option<GAddr>) {
        if new == Some(old) || fault!("tree.moved_child_kept") {
            return;
        }
        match (slot, new) {
            (Some(slot), new) => {
                let entry = new.map(|at| NodeEntry {
                    key: key.clone(),
                    value: at.0,
                });
                self.locked.found.page.set_entry(slot, entry.as_ref());
            }
            (None, Some(at)) => self.head.low = at,
            // The first child of a parent is permanent (`merge`).
            (None, None) => return,
        }
        self.replaced();
    }
}
