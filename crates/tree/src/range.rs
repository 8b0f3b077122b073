//! Range queries (Sherman, section 4.4): they read many leaves at once and miss none.
//!
//! The leaves below a cached parent are read together. Each must begin where the one before it ended; in a descending
//! range, end where the one before it began. If a leaf was split, merged or moved, the query searches the leaf for its next
//! key. A range is not atomic: a key that is inserted or removed
//! meanwhile may or may not be in the result, but every other key is.
//!
//! A read slower than the version window (`layout`) is discarded and repeated. Many simultaneous reads through a
//! crowded network card are all slower, and repeating them would crowd it more. So each read is timed separately, and
//! those in time are used. After late reads, a client reduces the number of simultaneous reads to the number that were
//! in time. It increases the number slowly while all reads are in time.

use farbank_fabric::{Fabric, GAddr};
use farbank_pm::fault;

use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::key::Key;
use crate::node_read::TornTime;
use crate::page::{NodeEntry, NodeHeader, NodePage, NodeState};

/// Assumed fill of leaves in percent, for the estimate of the number of leaves needed.
const FILLED: usize = 70;

/// Order of the keys of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Ascending.
    Up,
    /// Descending.
    Down,
}

impl Direction {
    /// Returns the key of `bytes` bytes that follows `key`, if there is one.
    pub(crate) fn next(self, key: &Key, bytes: usize) -> Option<Key> {
        match self {
            Direction::Up => key.next(bytes),
            Direction::Down => (!key.is_empty()).then(|| key.previous(bytes)),
        }
    }

    /// Returns the key with which a range continues after the leaf with `head`.
    fn after_leaf(self, head: NodeHeader, bytes: usize) -> Option<Key> {
        match self {
            Direction::Up => head.highest,
            Direction::Down => self.next(&head.lowest, bytes),
        }
    }

    /// Returns whether all keys of a leaf with `head` come after `key`.
    fn is_later(self, head: &NodeHeader, key: &Key) -> bool {
        match self {
            Direction::Up => head.lowest > *key,
            Direction::Down => head.highest.as_ref().is_some_and(|highest| highest <= key),
        }
    }

    /// Adds those of the sorted `entries` of a leaf to `found` that are in a range from `key` on.
    fn take(self, entries: Vec<NodeEntry>, key: &Key, found: &mut Vec<(Key, u64)>) {
        let pair = |entry: NodeEntry| (entry.key, entry.value);
        let entries = entries.into_iter();
        match self {
            Direction::Up => found.extend(entries.filter(|entry| entry.key >= *key).map(pair)),
            Direction::Down => {
                found.extend(entries.rev().filter(|entry| entry.key <= *key).map(pair));
            }
        }
    }
}

impl<F: Fabric> Client<F> {
    /// Returns the first `count` keys from `from` on, with their values, sorted by key.
    pub async fn range(
        &self,
        from: impl Into<Key>,
        count: usize,
    ) -> Result<Vec<(Key, u64)>, TreeError> {
        self.values_are(false)?;
        let from = self.fitting(from.into())?;
        self.words(Direction::Up, &from, count).await
    }

    /// Returns the last `count` keys up to `from`, with their values, the greatest key first.
    pub async fn range_down(
        &self,
        from: impl Into<Key>,
        count: usize,
    ) -> Result<Vec<(Key, u64)>, TreeError> {
        self.values_are(false)?;
        let from = self.fitting(from.into())?;
        self.words(Direction::Down, &from, count).await
    }

    /// Returns the first `count` keys from `from` on in `direction`, with the words in their entries.
    pub(crate) async fn words(
        &self,
        direction: Direction,
        from: &Key,
        count: usize,
    ) -> Result<Vec<(Key, u64)>, TreeError> {
        let mut found = Vec::new();
        let mut ahead: Vec<FetchedNode> = Vec::new();
        let mut next = from.clone();
        while found.len() < count {
            if ahead.is_empty() {
                ahead = self
                    .read_ahead(direction, &next, count - found.len())
                    .await?;
            }
            let leaf = match ahead.pop() {
                Some(leaf) if is_leaf_for(&leaf.page, &next) => leaf,
                Some(leaf) if fault!("tree.range_trusts_parent") => leaf,
                Some(leaf) if direction.is_later(&leaf.page.head(), &next) => {
                    // The leaf before it was late, torn or not in the cached parent.
                    ahead.push(leaf);
                    self.leaf(&next).await?
                }
                _ => {
                    ahead.clear();
                    self.leaf(&next).await?
                }
            };
            let (head, entries) = match leaf.page.sorted() {
                Ok(entries) => (leaf.page.head(), entries),
                Err(_) => self.whole(leaf.at, &next).await?,
            };
            direction.take(entries, &next, &mut found);
            match direction.after_leaf(head, self.config().layout.key_bytes) {
                Some(key) => next = key,
                None => break,
            }
        }
        found.truncate(count);
        Ok(found)
    }

    /// Reads the leaves that a cached parent has from `key` on in `direction`, as many as `count` keys may need. The result
    /// is in reverse order.
    async fn read_ahead(
        &self,
        direction: Direction,
        key: &Key,
        count: usize,
    ) -> Result<Vec<FetchedNode>, TreeError> {
        let layout = self.config().layout;
        let filled = (layout.entries() * FILLED / 100).max(1);
        let at_once = self.leaf_window().leaves();
        let wanted = (count.div_ceil(filled) + 1).min(at_once);
        let kept = self.cache().find(1, key);
        let Some((_, parent)) = kept else {
            return Ok(Vec::new());
        };
        let Ok(entries) = parent.sorted() else {
            return Ok(Vec::new());
        };
        let own = entries.partition_point(|entry| entry.key <= *key);
        let mut leaves = vec![parent.head().low];
        leaves.extend(entries.iter().map(|entry| GAddr(entry.value)));
        match direction {
            Direction::Up => drop(leaves.drain(..own)),
            Direction::Down => {
                leaves.truncate(own + 1);
                leaves.reverse();
            }
        }
        leaves.truncate(wanted);
        let asked = leaves.len();
        let mut found = Vec::new();
        let mut in_time = 0;
        for read in self.read_at_once(&leaves).await {
            let node = FetchedNode {
                at: read.at,
                page: NodePage::from_reads(layout, read.at, vec![read.verb?]),
            };
            if !read.in_time {
                continue;
            }
            in_time += 1;
            if node.page.check().is_ok() {
                found.push(node);
            }
        }
        if in_time < asked {
            self.leaf_window().shrink(in_time);
        } else if asked == at_once {
            self.leaf_window().grow();
        }
        self.note(|op| op.read_retries += (asked - found.len()) as u32);
        found.reverse();
        Ok(found)
    }

    /// Returns the header and the entries of the leaf for `key`, after a first read at `at` found an entry torn. The leaf
    /// may have been split meanwhile.
    async fn whole(&self, at: GAddr, key: &Key) -> Result<(NodeHeader, Vec<NodeEntry>), TreeError> {
        let mut torn = TornTime::default();
        let mut at = at;
        loop {
            self.torn_again(&mut torn, at).await?;
            let found = self.read(at).await?;
            let found = match is_leaf_for(&found.page, key) {
                true => found,
                false => self.leaf(key).await?,
            };
            if let Ok(entries) = found.page.sorted() {
                return Ok((found.page.head(), entries));
            }
            at = found.at;
        }
    }
}

/// Returns whether this is the leaf that covers `key`.
fn is_leaf_for(page: &NodePage, key: &Key) -> bool {
    let head = page.head();
    head.level == 0 && head.state == NodeState::Live && head.covers(key)
}
