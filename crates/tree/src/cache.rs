//! The index cache of a compute server (Sherman, section 4.2): internal nodes, as hints.
//!
//! Nodes just above the leaves are cached by the keys they cover. When they exceed the limit, the cache draws two at
//! random and evicts the less used one. Higher nodes are few and stay. Cached nodes may be outdated: a client that
//! follows one checks fence keys and level of the next node, and has a wrong node dropped.
//!
//! A node has the size that it has on its memory server, or, with [`crate::Config::compact_cache`], the size of its header and its
//! entries ([`NodePage::packed`]). Then free entries take no room, and the same number of bytes holds more nodes.
//!
//! All threads of the compute server share the cache. Lookups of different threads do not write to the same line of the
//! processor's cache to lock it ([`SharedCache`]). Changes, which follow a read of a node, lock all lookups out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::sync::ShardedLock;

use farbank_fabric::GAddr;
use farbank_pm::rng::Rng;

use crate::config::Config;
use crate::key::Key;
use crate::page::NodePage;

/// The cache of a compute server, for all its threads. No holder of the lock panics.
pub(crate) type SharedCache = ShardedLock<IndexCache>;

pub(crate) struct CachedNode {
    page: Arc<NodePage>,
    at: GAddr,
    highest: Option<Key>,
    /// Number of lookups that have found it. Lookups at the same time may count as one.
    uses: AtomicU64,
    /// Its index in [`IndexCache::order`].
    place: usize,
}

/// The cached nodes of one compute server.
pub(crate) struct IndexCache {
    bytes_max: usize,
    is_compact: bool,
    /// Bytes of the cached nodes of level 1, and of those above.
    leaf_parents_bytes: usize,
    upper_bytes: usize,
    /// Cached nodes by level, then by lowest key. Level 0 is empty.
    levels: Vec<BTreeMap<Key, CachedNode>>,
    /// The lowest keys of the cached nodes of level 1, for random draws.
    order: Vec<Key>,
    rng: Rng,
}

impl IndexCache {
    pub(crate) fn new(config: &Config, seed: u64) -> IndexCache {
        IndexCache {
            bytes_max: config.cache_bytes,
            is_compact: config.compact_cache,
            leaf_parents_bytes: 0,
            upper_bytes: 0,
            levels: Vec::new(),
            order: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    /// Returns the cached node of `level` that covers `key`, and its address.
    pub(crate) fn find(&self, level: u8, key: &Key) -> Option<(GAddr, Arc<NodePage>)> {
        let nodes = self.levels.get(usize::from(level))?;
        let (_, kept) = nodes.range::<Key, _>(..=key).next_back()?;
        if kept.highest.as_ref().is_some_and(|highest| highest <= key) {
            return None;
        }
        let uses = kept.uses.load(Ordering::Relaxed);
        kept.uses.store(uses + 1, Ordering::Relaxed);
        Some((kept.at, Arc::clone(&kept.page)))
    }

    /// Returns the cached node for `key` on the lowest level from `level` up that has one.
    pub(crate) fn lowest(&self, level: u8, key: &Key) -> Option<(GAddr, Arc<NodePage>)> {
        (usize::from(level)..self.levels.len()).find_map(|level| self.find(level as u8, key))
    }

    /// Caches an internal node.
    pub(crate) fn keep(&mut self, at: GAddr, page: &Arc<NodePage>) {
        if self.bytes_max == 0 {
            return;
        }
        let head = page.head();
        let level = usize::from(head.level);
        while self.levels.len() <= level {
            self.levels.push(BTreeMap::new());
        }
        self.drop_node(head.level, &head.lowest);
        let page = match self.is_compact {
            true => Arc::new(page.packed()),
            false => Arc::clone(page),
        };
        let bytes = page.bytes.len();
        if level == 1 {
            self.make_room(bytes);
            self.order.push(head.lowest.clone());
        }
        *self.bytes_of(level) += bytes;
        let kept = CachedNode {
            page,
            at,
            highest: head.highest,
            uses: AtomicU64::new(1),
            place: self.order.len().wrapping_sub(1),
        };
        self.levels[level].insert(head.lowest, kept);
    }

    fn bytes_of(&mut self, level: usize) -> &mut usize {
        match level {
            1 => &mut self.leaf_parents_bytes,
            _ => &mut self.upper_bytes,
        }
    }

    /// Evicts nodes of level 1 until one of `bytes` fits.
    fn make_room(&mut self, bytes: usize) {
        while !self.order.is_empty() && self.leaf_parents_bytes + bytes > self.bytes_max {
            let count = self.order.len() as u64;
            let two = [0; 2].map(|_| self.rng.below(count) as usize);
            let uses = two.map(|place| {
                let node = &self.levels[1][&self.order[place]];
                node.uses.load(Ordering::Relaxed)
            });
            let loser = if uses[0] <= uses[1] { two[0] } else { two[1] };
            let lowest = self.order[loser].clone();
            self.drop_node(1, &lowest);
        }
    }

    /// Drops the node of `level` with this lowest key.
    pub(crate) fn drop_node(&mut self, level: u8, lowest: &Key) {
        let Some(nodes) = self.levels.get_mut(usize::from(level)) else {
            return;
        };
        let Some(kept) = nodes.remove(lowest) else {
            return;
        };
        *self.bytes_of(level.into()) -= kept.page.bytes.len();
        if level == 1 {
            self.order.swap_remove(kept.place);
            if let Some(moved) = self.order.get(kept.place) {
                let node = self.levels[1]
                    .get_mut(moved)
                    .expect("keys in `order` are cached");
                node.place = kept.place;
            }
        }
    }

    /// Returns the bytes of the cached nodes.
    pub(crate) fn bytes(&self) -> usize {
        self.leaf_parents_bytes + self.upper_bytes
    }
}
