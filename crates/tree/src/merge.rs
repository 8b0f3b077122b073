//! Shrinking: a nearly empty leaf merges with its right sibling.
//!
//! ```text
//!   parent ── k ──▶ B        A ──▶ B ──▶ C        A, B and the parent are locked, without waiting
//!   (a)  B is marked as moving to A          readers of B check A first; A leads to B, so they use B
//!   (b)  A gets B's entries, upper fence key and sibling          readers of B find the entries in A
//!   (c)  the parent loses k
//!   (d)  B is freed, and can be reused: nothing leads to it, although clients may still have its address (TREE-NODE-6)
//! ```
//!
//! A crash after (a) leaves B moving. The next writer of B finds that the chain of siblings still leads to B, and marks
//! it live again. After (b) it finds that the chain leads to another leaf, A or a successor of A, and frees B. Because
//! B's parent still has its separator, B is not reused. Only a child with a separator is merged away, so a parent's
//! first child is permanent.

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::lock::HeldLock;
use crate::locked_node::LockedNode;
use crate::page::{NodeHeader, NodeState, TornNode};
use crate::phase::Phase;

/// Returns whether `error` means that another memory server than that of the node at `at` has failed.
fn is_elsewhere(error: TreeError, at: GAddr) -> bool {
    use farbank_fabric::FabricError::{Damaged, Empty, Timeout};
    matches!(
        error,
        TreeError::Fabric(Timeout { server } | Empty { server } | Damaged { server }) if server != at.server()
    )
}

/// Leaf `a`, its right sibling `b`, and their parent.
struct MergePair {
    a: FetchedNode,
    b: FetchedNode,
    parent: FetchedNode,
}

impl<F: Fabric> Client<F> {
    /// Merges the right sibling into the locked leaf, and releases the lock. Returns the leaf, still locked, if a merge
    /// is not possible without waiting.
    pub(crate) async fn merge(&self, locked: LockedNode) -> Result<Option<LockedNode>, TreeError> {
        let mut others = Vec::new();
        let gathered = self.gather(&locked, &mut others).await;
        let merged = match gathered {
            Ok(Some(family)) => self.move_entries(family).await.map(|()| true),
            Ok(None) => Ok(false),
            // The leaf's server is reachable: the removal continues without a merge.
            Err(error) if is_elsewhere(error, locked.found.at) => Ok(false),
            Err(error) => Err(error),
        };
        let mut released = Ok(());
        for held in others {
            let unlocked = self.unlock(held).await;
            // A lock on a failed server needs no release.
            if !unlocked.is_err_and(|error| is_elsewhere(error, locked.found.at)) {
                released = released.and(unlocked);
            }
        }
        if let (Ok(false), Ok(())) = (merged, released) {
            return Ok(Some(locked));
        }
        let unlocked = self.unlock(locked.held).await;
        merged.and(released).and(unlocked)?;
        self.note(|op| op.merges += 1);
        Ok(None)
    }

    /// Locks and reads the sibling and the parent, if both locks are free and a merge is sensible.
    async fn gather(
        &self,
        locked: &LockedNode,
        others: &mut Vec<HeldLock>,
    ) -> Result<Option<MergePair>, TreeError> {
        let head = locked.found.page.head();
        if head.sibling.is_null() {
            return Ok(None);
        }
        let Some(way) = self.seek(&head.lowest, 1).await? else {
            return Ok(None);
        };
        for node in [head.sibling, way.at] {
            let shared = self.shares(node, &locked.held)
                || others.iter().any(|held| self.shares(node, held));
            if !shared {
                match self.try_lock(node).await? {
                    Some(held) => others.push(held),
                    None => return Ok(None),
                }
            }
        }
        let family = MergePair {
            a: locked.found.clone(),
            b: self.read_locked(head.sibling).await?,
            parent: self.read_locked(way.at).await?,
        };
        if family.parent.page.head().state != NodeState::Live {
            // It has moved to another server (`drain`).
            self.drop_hint(&way);
        }
        Ok(Some(family).filter(|family| self.may_merge(family, &head)))
    }

    fn may_merge(&self, family: &MergePair, a: &NodeHeader) -> bool {
        let MergePair { a: left, b, parent } = family;
        let (right, above) = (b.page.head(), parent.page.head());
        let both = left.page.each().count() + b.page.each().count();
        right.level == 0
            && right.state == NodeState::Live
            && a.highest.as_ref() == Some(&right.lowest)
            && both * 4 <= self.config().layout.entries() * 3
            && above.level == 1
            && above.state == NodeState::Live
            && above.covers(&a.lowest)
            && matches!(parent.page.find(&right.lowest), Ok(Some((_, child))) if child == b.at.0)
    }

    /// Performs steps (a) to (d).
    async fn move_entries(&self, family: MergePair) -> Result<(), TreeError> {
        let MergePair {
            mut a,
            mut b,
            mut parent,
        } = family;
        let (left, right) = (a.page.head(), b.page.head());
        let mut entries = a.page.sorted().map_err(|TornNode| a.damaged())?;
        entries.extend(b.page.sorted().map_err(|TornNode| b.damaged())?);
        let Ok(Some((separator, _))) = parent.page.find(&right.lowest) else {
            return Err(parent.damaged());
        };
        let moving = NodeHeader {
            low: a.at,
            state: NodeState::Moving,
            ..right.clone()
        };
        b.page.set_head(&moving);
        let _merging = self.begin(Phase::Merging);
        if !fault!("tree.moved_unannounced") {
            self.write_node(&mut b).await?;
        }
        a.page.refill(&entries);
        a.page.set_head(&NodeHeader {
            highest: right.highest.clone(),
            sibling: right.sibling,
            ..left
        });
        self.write_node(&mut a).await?;
        parent.page.set_entry(separator, None);
        self.write_node(&mut parent).await?;
        b.page.set_head(&NodeHeader {
            state: NodeState::Freed,
            ..moving
        });
        self.write_node(&mut b).await?;
        self.reuse(&b);
        Ok(())
    }

    async fn write_node(&self, found: &mut FetchedNode) -> Result<(), TreeError> {
        found.page.seal();
        self.note(|op| op.bytes_written += found.page.bytes.len() as u32);
        let write = Verb::write(found.at, found.page.bytes.clone());
        self.round_trip(write).await.map(|_| ())
    }
}
