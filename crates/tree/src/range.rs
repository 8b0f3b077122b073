//! Range queries (Sherman, section 4.4): many leaves at once, and none missed.
//!
//! The leaves that the kept parent names are read together. Each must begin where the one before it ended; where one does not,
//! because it was split, merged or moved, the way goes on over siblings. A range is not atomic: a key that is
//! inserted or removed meanwhile may be in it or not, but every other key in it is.

use farbank_fabric::{Fabric, GAddr, Verb};
use farbank_pm::fault;

use crate::Error;
use crate::client::{Client, Found};
use crate::key::Key;
use crate::page::{Entry, Page, State};

/// Leaves that are read at once.
const LEAVES: usize = 32;

impl<F: Fabric> Client<F> {
    /// The first `count` keys from `from` on, and their values, by key.
    pub async fn range(
        &self,
        from: impl Into<Key>,
        count: usize,
    ) -> Result<Vec<(Key, u64)>, Error> {
        self.values_are(false)?;
        self.words(&self.fitting(from.into())?, count).await
    }

    /// The first `count` keys from `from` on, and what their entries have.
    pub(crate) async fn words(&self, from: &Key, count: usize) -> Result<Vec<(Key, u64)>, Error> {
        let mut found = Vec::new();
        let mut ahead: Vec<Found> = Vec::new();
        let mut next = from.clone();
        while found.len() < count {
            if ahead.is_empty() {
                ahead = self.read_ahead(&next, count - found.len()).await?;
            }
            let leaf = match ahead.pop() {
                Some(leaf) if is_leaf_for(&leaf.page, &next) => leaf,
                Some(leaf) if fault!("tree.range_trusts_parent") => leaf,
                _ => {
                    ahead.clear();
                    self.leaf(&next).await?
                }
            };
            let entries = match leaf.page.sorted() {
                Ok(entries) => entries,
                Err(_) => self.whole(leaf.at, &next).await?,
            };
            let wanted = entries.into_iter().filter(|entry| entry.key >= next);
            found.extend(wanted.map(|entry| (entry.key, entry.value)));
            match leaf.page.head().highest {
                Some(highest) => next = highest,
                None => break,
            }
        }
        found.truncate(count);
        Ok(found)
    }

    /// Reads the leaves that a kept parent names from `key` on, as many as `count` keys may need; the first is the
    /// last of the answer.
    async fn read_ahead(&self, key: &Key, count: usize) -> Result<Vec<Found>, Error> {
        let layout = self.home.config.layout;
        let leaves = (count.div_ceil(layout.entries() / 2) + 1).min(LEAVES);
        let kept = self.home.cache.borrow_mut().find(1, key);
        let Some((_, parent)) = kept else {
            return Ok(Vec::new());
        };
        let Ok(entries) = parent.sorted() else {
            return Ok(Vec::new());
        };
        let before = entries.partition_point(|entry| entry.key <= *key);
        let first = match before {
            0 => parent.head().low,
            _ => GAddr(entries[before - 1].value),
        };
        let rest = entries[before..].iter().map(|entry| GAddr(entry.value));
        let posted = self.home.fabric.now();
        let reads: Vec<_> = std::iter::once(first)
            .chain(rest)
            .take(leaves)
            .map(|at| (at, self.home.fabric.verb(Verb::read(at, layout.node_bytes))))
            .collect();
        self.note(|op| op.round_trips += 1);
        let mut found = Vec::new();
        for (at, read) in reads {
            let bytes = read.await?.into_bytes();
            found.push(Found {
                at,
                page: Page { layout, bytes },
            });
        }
        let late = self.home.fabric.now() - posted > layout.read_ns_max();
        if late || found.iter().any(|leaf| leaf.page.check().is_err()) {
            self.note(|op| op.read_retries += 1);
            return Ok(Vec::new());
        }
        found.reverse();
        Ok(found)
    }

    /// The entries of a leaf, one of which was being written when it was read.
    async fn whole(&self, at: GAddr, key: &Key) -> Result<Vec<Entry>, Error> {
        loop {
            self.note(|op| op.read_retries += 1);
            let found = self.read(at).await?;
            let found = match is_leaf_for(&found.page, key) {
                true => found,
                false => self.leaf(key).await?,
            };
            if let Ok(entries) = found.page.sorted() {
                return Ok(entries);
            }
        }
    }
}

/// Whether this is the leaf in which the keys from `key` on start.
fn is_leaf_for(page: &Page, key: &Key) -> bool {
    let head = page.head();
    head.level == 0 && head.state == State::Live && head.covers(key)
}
