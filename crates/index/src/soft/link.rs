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
pub(super) enum State {
    /// Linked, and not known to be durable: nobody sees it.
    IntendToInsert = 2,
    /// Durable.
    Inserted = 0,
    /// Its end may be durable or not: everybody sees it still.
    IntendToDelete = 1,
    /// Its end is durable: nobody sees it, and whoever comes along unlinks it.
    Deleted = 3,
}

impl State {
    /// Whether searches find it.
    #[inline]
    pub(super) fn is_seen(self) -> bool {
        matches!(self, State::Inserted | State::IntendToDelete)
    }
}

/// Where a link leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum To {
    End,
    Node(u64),
    Bucket(u64),
}

/// A link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link(pub(super) u64);

impl Link {
    const STATE: u64 = 0b11;
    /// The owner's value is being replaced: nobody may delete it.
    pub(super) const HELD: u64 = 0b100;
    const BUCKET: u64 = 0b1000;
    const NUMBER: u32 = 4;

    /// A link that leads to a node.
    pub(super) fn to_node(node: u64) -> Link {
        Link(node << Link::NUMBER)
    }

    /// A link that leads to a bucket.
    pub(super) fn to_bucket(bucket: u64) -> Link {
        Link(bucket << Link::NUMBER | Link::BUCKET)
    }

    /// The end of the list.
    pub(super) const END: Link = Link(0);

    #[inline]
    pub(super) fn to(self) -> To {
        let number = self.0 >> Link::NUMBER;
        if self.0 & Link::BUCKET != 0 {
            To::Bucket(number)
        } else if number == 0 {
            To::End
        } else {
            To::Node(number)
        }
    }

    #[inline]
    pub(super) fn state(self) -> State {
        match self.0 & Link::STATE {
            0 => State::Inserted,
            1 => State::IntendToDelete,
            2 => State::IntendToInsert,
            _ => State::Deleted,
        }
    }

    pub(super) fn is_held(self) -> bool {
        self.0 & Link::HELD != 0
    }

    /// The same link of an owner in `state`, which nobody holds.
    pub(super) fn in_state(self, state: State) -> Link {
        Link(self.0 & !(Link::STATE | Link::HELD) | state as u64)
    }

    /// The link of the same owner that leads where `other` does.
    pub(super) fn leading_as(self, other: Link) -> Link {
        let owner = Link::STATE | Link::HELD;
        Link(self.0 & owner | other.0 & !owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_where_it_leads_and_whose_it_is_apart() {
        use State::{Deleted, Inserted, IntendToDelete, IntendToInsert};
        let leads = [
            (Link::END, To::End),
            (Link::to_node(7), To::Node(7)),
            (Link::to_bucket(0), To::Bucket(0)),
            (Link::to_bucket(1 << 40), To::Bucket(1 << 40)),
        ];
        for (link, to) in leads {
            for state in [IntendToInsert, Inserted, IntendToDelete, Deleted] {
                let of_owner = link.in_state(state);
                assert_eq!((of_owner.to(), of_owner.state()), (to, state));
                let held = Link(of_owner.0 | Link::HELD);
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
