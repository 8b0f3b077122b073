//! The index cache of a compute server (Sherman, section 4.2): internal nodes, as hints.
//!
//! Nodes just above the leaves are kept by the keys they cover; when they take too much, two are drawn and the one that was
//! used less goes. Nodes further up are few and stay. Whatever is found here may be out of date: who follows
//! it checks fences and level of what he finds, and has a wrong node dropped.

use std::collections::BTreeMap;
use std::rc::Rc;

use farbank_fabric::GAddr;
use farbank_pm::sim::Rng;

use crate::key::Key;
use crate::page::NodePage;

pub(crate) struct CachedNode {
    pub(crate) page: Rc<NodePage>,
    pub(crate) at: GAddr,
    highest: Option<Key>,
    uses: u64,
    /// Its place in [`Cache::order`].
    place: usize,
}

/// The nodes one compute server keeps.
pub(crate) struct IndexCache {
    bytes_max: usize,
    node_bytes: usize,
    /// By level from 1 on, by lowest key.
    levels: Vec<BTreeMap<Key, CachedNode>>,
    /// The lowest keys of the kept nodes of level 1, to draw from.
    order: Vec<Key>,
    rng: Rng,
}

impl IndexCache {
    pub(crate) fn new(bytes_max: usize, node_bytes: usize, seed: u64) -> IndexCache {
        IndexCache {
            bytes_max,
            node_bytes,
            levels: Vec::new(),
            order: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    /// The kept node of `level` that covers `key`, and where it was read.
    pub(crate) fn find(&mut self, level: u8, key: &Key) -> Option<(GAddr, Rc<NodePage>)> {
        let nodes = self.levels.get_mut(usize::from(level))?;
        let (_, kept) = nodes.range_mut::<Key, _>(..=key).next_back()?;
        if kept.highest.as_ref().is_some_and(|highest| highest <= key) {
            return None;
        }
        kept.uses += 1;
        Some((kept.at, Rc::clone(&kept.page)))
    }

    /// The lowest level from `level` up that has a node for `key`.
    pub(crate) fn lowest(&mut self, level: u8, key: &Key) -> Option<(GAddr, Rc<NodePage>)> {
        (usize::from(level)..self.levels.len()).find_map(|level| self.find(level as u8, key))
    }

    /// Keeps an internal node that was read.
    pub(crate) fn keep(&mut self, at: GAddr, page: &Rc<NodePage>) {
        if self.bytes_max == 0 {
            return;
        }
        let head = page.head();
        let level = usize::from(head.level);
        while self.levels.len() <= level {
            self.levels.push(BTreeMap::new());
        }
        self.drop_node(head.level, &head.lowest);
        if level == 1 {
            self.make_room();
            self.order.push(head.lowest.clone());
        }
        let kept = CachedNode {
            page: Rc::clone(page),
            at,
            highest: head.highest,
            uses: 1,
            place: self.order.len().wrapping_sub(1),
        };
        self.levels[level].insert(head.lowest, kept);
    }

    fn make_room(&mut self) {
        while !self.order.is_empty() && (self.order.len() + 1) * self.node_bytes > self.bytes_max {
            let count = self.order.len() as u64;
            let two = [0; 2].map(|_| self.rng.below(count) as usize);
            let uses = two.map(|place| self.levels[1][&self.order[place]].uses);
            let loser = if uses[0] <= uses[1] { two[0] } else { two[1] };
            let lowest = self.order[loser].clone();
            self.drop_node(1, &lowest);
        }
    }

    /// Forgets the node of `level` whose lowest key is `lowest`.
    pub(crate) fn drop_node(&mut self, level: u8, lowest: &Key) {
        let Some(nodes) = self.levels.get_mut(usize::from(level)) else {
            return;
        };
        let Some(kept) = nodes.remove(lowest) else {
            return;
        };
        if level == 1 {
            self.order.swap_remove(kept.place);
            if let Some(moved) = self.order.get(kept.place) {
                let node = self.levels[1]
                    .get_mut(moved)
                    .expect("listed nodes are kept");
                node.place = kept.place;
            }
        }
    }

    /// Bytes of nodes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.levels.iter().map(BTreeMap::len).sum::<usize>() * self.node_bytes
    }
}
