//! A link of the list, as one word: where it leads, and in which state its owner is.
//!
//! ```text
//!   63                                            4    3     2    1     0
//!   ┌──────────────────────────────────────────────┬────────┬──────┬───────┐
//!   │ number of the node, or of the bucket         │ bucket │ held │ state │
//!   └──────────────────────────────────────────────┴────────┴──────┴───────┘
//!     no node has number 0: the end of the list               of the owner
//! ```
//!
//! As both are in one word, nothing is linked behind a node that has been deleted (I4). The link of a bucket is in
//! state 0.

/// How far its owner, a list node, is on its way. It goes forward only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeState {
    /// Linked, and not known to be durable: nobody sees it.
    IntendToInsert = 2,
    /// Durable.
    Inserted = 0,
    /// Its end may be durable or not: everybody sees it still.
    IntendToDelete = 1,
    /// Its end is durable: nobody sees it, and whoever comes along unlinks it.
    Deleted = 3,
}

impl NodeState {
    /// Whether searches find it.
    #[inline]
    pub(super) fn is_seen(self) -> bool {
        matches!(self, NodeState::Inserted | NodeState::IntendToDelete)
    }
}

/// Where a link leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkTarget {
    End,
    Node(u64),
    Bucket(u64),
}

/// A link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TaggedLink(pub(super) u64);

impl TaggedLink {
    const STATE: u64 = 0b11;
    /// The owner's value is being replaced: nobody may delete it.
    pub(super) const HELD: u64 = 0b100;
    const BUCKET: u64 = 0b1000;
    const NUMBER: u32 = 4;

    /// A link that leads to a node.
    pub(super) fn to_node(node: u64) -> TaggedLink {
        TaggedLink(node << TaggedLink::NUMBER)
    }

    /// A link that leads to a bucket.
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

    /// The same link of an owner in `state`, which nobody holds.
    pub(super) fn in_state(self, state: NodeState) -> TaggedLink {
        TaggedLink(self.0 & !(TaggedLink::STATE | TaggedLink::HELD) | state as u64)
    }

    /// The link of the same owner that leads where `other` does.
    pub(super) fn leading_as(self, other: TaggedLink) -> TaggedLink {
        let owner = TaggedLink::STATE | TaggedLink::HELD;
        TaggedLink(self.0 & owner | other.0 & !owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_where_it_leads_and_whose_it_is_apart() {
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
