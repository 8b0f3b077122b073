//! A link of the list in one word: its target, and the state of the node that owns it.
//!
//! ```text
//!   63                                            4    3     2    1     0
//!   ┌──────────────────────────────────────────────┬────────┬──────┬───────┐
//!   │ number of the node, or of the bucket         │ bucket │ held │ state │
//!   └──────────────────────────────────────────────┴────────┴──────┴───────┘
//!     no node has number 0: the end of the list               of the owner
//! ```
//!
//! Because both are in one word, no node can be linked after a deleted one (IX-SOFT-4). The link of a bucket head is in state
//! 0.

/// The state of a list node. States advance in one direction only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeState {
    /// Linked, but not known to be durable: searches do not return it.
    IntendToInsert = 2,
    /// Durable.
    Inserted = 0,
    /// Its deletion may or may not be durable: searches still return it.
    IntendToDelete = 1,
    /// Its deletion is durable: searches do not return it, and the next thread that meets it unlinks it.
    Deleted = 3,
}

impl NodeState {
    /// Returns whether searches return the node.
    #[inline]
    pub(super) fn is_seen(self) -> bool {
        matches!(self, NodeState::Inserted | NodeState::IntendToDelete)
    }
}

/// The target of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkTarget {
    End,
    Node(u64),
    Bucket(u64),
}

/// A link of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TaggedLink(pub(super) u64);

impl TaggedLink {
    const STATE: u64 = 0b11;
    /// The owner's value is being replaced: no thread may delete the owner.
    pub(super) const HELD: u64 = 0b100;
    const BUCKET: u64 = 0b1000;
    const NUMBER: u32 = 4;

    /// Returns a link to a node.
    pub(super) fn to_node(node: u64) -> TaggedLink {
        TaggedLink(node << TaggedLink::NUMBER)
    }

    /// Returns a link to a bucket's head.
    pub(super) fn to_bucket(bucket: u64) -> TaggedLink {
        TaggedLink(bucket << TaggedLink::NUMBER | TaggedLink::BUCKET)
    }

    /// The end of the list.
    pub(super) const END: TaggedLink = TaggedLink(0);

    #[inline]
    pub(super) fn to(self) -> LinkTarget {
        let number = self.0 >> TaggedLink::NUMBER;
        if self.0 & TaggedLink::BUCKET != 0 {
            LinkTarget::Bucket(number)
        } else if number == 0 {
            LinkTarget::End
        } else {
            LinkTarget::Node(number)
        }
    }

    #[inline]
    pub(super) fn state(self) -> NodeState {
        match self.0 & TaggedLink::STATE {
            0 => NodeState::Inserted,
            1 => NodeState::IntendToDelete,
            2 => NodeState::IntendToInsert,
            _ => NodeState::Deleted,
        }
    }

    pub(super) fn is_held(self) -> bool {
        self.0 & TaggedLink::HELD != 0
    }

    /// Returns the same link for an owner in `state` that is not held.
    pub(super) fn in_state(self, state: NodeState) -> TaggedLink {
        TaggedLink(self.0 & !(TaggedLink::STATE | TaggedLink::HELD) | state as u64)
    }

    /// Returns the link of the same owner with the target of `other`.
    pub(super) fn leading_as(self, other: TaggedLink) -> TaggedLink {
        let owner = TaggedLink::STATE | TaggedLink::HELD;
        TaggedLink(self.0 & owner | other.0 & !owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stores_target_and_owner_state_independently() {
        use NodeState::{Deleted, Inserted, IntendToDelete, IntendToInsert};
        let leads = [
            (TaggedLink::END, LinkTarget::End),
            (TaggedLink::to_node(7), LinkTarget::Node(7)),
            (TaggedLink::to_bucket(0), LinkTarget::Bucket(0)),
            (TaggedLink::to_bucket(1 << 40), LinkTarget::Bucket(1 << 40)),
        ];
        for (link, to) in leads {
            for state in [IntendToInsert, Inserted, IntendToDelete, Deleted] {
                let of_owner = link.in_state(state);
                assert_eq!((of_owner.to(), of_owner.state()), (to, state));
                let held = TaggedLink(of_owner.0 | TaggedLink::HELD);
                for (other, elsewhere) in leads {
                    let moved = held.leading_as(other.in_state(Inserted));
                    assert_eq!((moved.to(), moved.state()), (elsewhere, state));
                    assert!(moved.is_held());
                }
                assert!(!held.in_state(state).is_held());
            }
        }
    }
}
