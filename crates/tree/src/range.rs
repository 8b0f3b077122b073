//! Range queries (Sherman, section 4.4): many leaves at once, and none missed.
//!
//! The leaves that the kept parent names are read together. Each must begin where the one before it ended; where one does not,
//! because it was split, merged or moved, the way goes on over siblings. A range is not atomic: a key that is
//! inserted or removed meanwhile may be in it or not, but every other key in it is.
//!
//! Where versions are too short to tell what is whole after some time (`layout`), a read that took longer is thrown away and made again. Many
//! reads at once over a crowded card all take longer, and reading them all again would crowd it more. So each read has a time
//! of its own, what came in time before the first late one is kept, and a client that was late reads half as many
//! at once from then on, and one more each time that all were in time.

use std::future::Future;
use std::task::Poll;

use farbank_fabric::{Fabric, GAddr, Nanos, Verb};
use farbank_pm::fault;

use crate::TreeError;
use crate::client::{Client, FetchedNode};
use crate::key::Key;
use crate::page::{NodeEntry, NodePage, NodeState};

/// Leaves that are read at once, at most.
pub(crate) const LEAVES_MAX: usize = 32;
/// Parts of a leaf in which that many are counted: it takes so many reads in time to read one more at once.
pub(crate) const AT_ONCE_PARTS: usize = 8;
/// How full leaves are taken to be when it is guessed how many will do, in hundredths.
const FILLED: usize = 70;

impl<F: Fabric> Client<F> {
    /// The first `count` keys from `from` on, and their values, by key.
    pub async fn range(
        &self,
        from: impl Into<Key>,
        count: usize,
    ) -> Result<Vec<(Key, u64)>, TreeError> {
        self.values_are(false)?;
        self.words(&self.fitting(from.into())?, count).await
    }

    /// The first `count` keys from `from` on, and what their entries have.
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
                    // What comes before it was late or torn, or nobody named it.
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

    /// Reads the leaves that a kept parent names from `key` on, as many as `count` keys may need; the first is the
    /// last of the answer.
    async fn read_ahead(&self, key: &Key, count: usize) -> Result<Vec<FetchedNode>, TreeError> {
        let layout = self.home.config.layout;
        let filled = (layout.entries() * FILLED / 100).max(1);
        let at_once = (self.at_once.get() / AT_ONCE_PARTS).max(1);
        let leaves = (count.div_ceil(filled) + 1).min(at_once);
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
        let reads: Vec<_> = std::iter::once(first)
            .chain(rest)
            .take(leaves)
            .map(|at| (at, self.home.fabric.verb(Verb::read(at, layout.node_bytes))))
            .collect();
        let (asked, posted) = (reads.len(), self.home.fabric.now());
        self.note(|op| op.round_trips += 1);
        let mut found = Vec::new();
        let mut in_time = 0;
        for (at, read, answered) in self.each_in_its_time(reads).await {
            let bytes = read?.into_bytes();
            let page = NodePage { layout, bytes };
            if answered - posted > self.home.config.read_ns_max() {
                continue;
            }
            in_time += 1;
            if page.check().is_ok() {
                found.push(FetchedNode { at, page });
            }
        }
        if in_time < asked {
            self.at_once.set(in_time * AT_ONCE_PARTS);
        } else if asked == at_once {
            let more = self.at_once.get() + 1;
            self.at_once.set(more.min(LEAVES_MAX * AT_ONCE_PARTS));
        }
        self.note(|op| op.read_retries += (asked - found.len()) as u32);
        found.reverse();
        Ok(found)
    }

    /// The answers of `reads`, in their order, and when each was there.
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
                    Poll::Ready(done) => *answer = Some((done, self.home.fabric.now())),
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

    /// The entries of a leaf, one of which was being written when it was read.
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

/// Whether this is the leaf in which the keys from `key` on start.
fn is_leaf_for(page: &NodePage, key: &Key) -> bool {
    let head = page.head();
    head.level == 0 && head.state == NodeState::Live && head.covers(key)
}
