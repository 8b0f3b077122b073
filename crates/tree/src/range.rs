//! Range queries (Sherman, section 4.4): they read many leaves at once and miss none.
//!
//! The leaves below a cached parent are read together. Each must begin where the one before it ended. If a leaf was
//! split, merged or moved, the query continues by siblings. A range is not atomic: a key that is inserted or removed
//! meanwhile may or may not be in the result, but every other key is.
//!
//! A read slower than the version window (`layout`) is discarded and repeated. Many simultaneous reads through a
//! crowded network card are all slower, and repeating them would crowd it more. So each read is timed separately, and
//! those in time are used. After late reads, a client reduces the number of simultaneous reads to the number that were
//! in time. It increases the number slowly while all reads are in time.

use std::future::Future;
use std::task::Poll;

use farbank_fabric::{Fabric, GAddr, Nanos, Verb};
use farbank_pm::fault;

use crate::client::{Client, FetchedNode};
use crate::error::TreeError;
use crate::key::Key;
use crate::page::{NodeEntry, NodePage, NodeState};

/// Assumed fill of leaves in percent, for the estimate of the number of leaves needed.
const FILLED: usize = 70;

impl<F: Fabric> Client<F> {
    /// Returns the first `count` keys from `from` on, with their values, sorted by key.
    pub async fn range(
        &self,
        from: impl Into<Key>,
        count: usize,
    ) -> Result<Vec<(Key, u64)>, TreeError> {
        self.values_are(false)?;
        self.words(&self.fitting(from.into())?, count).await
    }

    /// Returns the first `count` keys from `from` on, with the words in their entries.
    pub(crate) async fn words(
        &self,
        from: &Key,
        count: usize,
    ) -> Result<Vec<(Key, u64)>, TreeError> {
        let mut found = Vec::new();
        let mut ahead: Vec<FetchedNode> = Vec::new();
        let mut next = from.clone();
        while found.len() < count {
            if ahead.is_empty() {
                ahead = self.read_ahead(&next, count - found.len()).await?;
            }
            let leaf = match ahead.pop() {
                Some(leaf) if is_leaf_for(&leaf.page, &next) => leaf,
                Some(leaf) if fault!("tree.range_trusts_parent") => leaf,
                Some(leaf) if leaf.page.head().lowest > next => {
                    // The leaf before it was late, torn or not in the cached parent.
                    ahead.push(leaf);
                    self.leaf(&next).await?
                }
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

    /// Reads the leaves that a cached parent has from `key` on, as many as `count` keys may need. The result is in
    /// reverse order.
    async fn read_ahead(&self, key: &Key, count: usize) -> Result<Vec<FetchedNode>, TreeError> {
        let layout = self.config().layout;
        let filled = (layout.entries() * FILLED / 100).max(1);
        let at_once = self.leaf_window().leaves();
        let leaves = (count.div_ceil(filled) + 1).min(at_once);
        let kept = self.cache().find(1, key);
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
        let reads: Vec<_> = std::iter::once(first)
            .chain(rest)
            .take(leaves)
            .map(|at| (at, self.fabric().verb(Verb::read(at, layout.node_bytes))))
            .collect();
        let (asked, posted) = (reads.len(), self.fabric().now());
        self.note(|op| op.round_trips += 1);
        let mut found = Vec::new();
        let mut in_time = 0;
        for (at, read, answered) in self.each_in_its_time(reads).await {
            let bytes = read?.into_bytes();
            let page = NodePage { layout, bytes };
            if answered - posted > self.config().read_ns_max() {
                continue;
            }
            in_time += 1;
            if page.check().is_ok() {
                found.push(FetchedNode { at, page });
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

    /// Returns the results of `reads` in their order, each with its time of arrival.
    async fn each_in_its_time<T, R: Future<Output = T>>(
        &self,
        reads: Vec<(GAddr, R)>,
    ) -> Vec<(GAddr, T, Nanos)> {
        let mut reads: Vec<_> = reads
            .into_iter()
            .map(|(at, read)| (at, Box::pin(read), None))
            .collect();
        std::future::poll_fn(|context| {
            let mut all = Poll::Ready(());
            for (_, read, answer) in reads.iter_mut().filter(|(.., answer)| answer.is_none()) {
                match read.as_mut().poll(context) {
                    Poll::Ready(done) => *answer = Some((done, self.fabric().now())),
                    Poll::Pending => all = Poll::Pending,
                }
            }
            all
        })
        .await;
        let answered = |(at, _, answer): (GAddr, _, Option<(T, Nanos)>)| {
            let (answer, when) = answer?;
            Some((at, answer, when))
        };
        reads.into_iter().filter_map(answered).collect()
    }

    /// Returns the entries of a leaf, after a first read found one torn.
    async fn whole(&self, at: GAddr, key: &Key) -> Result<Vec<NodeEntry>, TreeError> {
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

/// Returns whether this is the leaf that covers `key`.
fn is_leaf_for(page: &NodePage, key: &Key) -> bool {
    let head = page.head();
    head.level == 0 && head.state == NodeState::Live && head.covers(key)
}
