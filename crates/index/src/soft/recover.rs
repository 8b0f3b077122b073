//! Recovery.

use std::collections::BTreeSet;

use farbank_pm::sync::unpoisoned;
use farbank_pm::{Medium, Off, fault, situation};

use super::layout::{AREAS, key_of, value_of};
use super::tagged_ptr::NodeState;
use super::{Soft, SoftConfig};
use crate::error::OpenError;
use crate::pool_heap::{TablePool, TableWorker};

/// Number of nodes linked together, after a prefetch for all of them.
const AT_ONCE: usize = 16;

/// A live node.
struct LiveNode {
    node: u64,
    hash: u64,
    value: u64,
}

impl<M: Medium> Soft<M> {
    /// Makes all areas durable, and builds the list from their live nodes.
    pub(super) fn recover(&self, named: &[Off]) -> Result<(), OpenError> {
        let mut worker = self.table_pool.worker()?;
        let medium = self.table_pool.medium();
        let mut areas = unpoisoned(self.areas.lock());
        for area in named {
            let bytes = self.config.area_bytes() as usize;
            medium.flush(&mut worker.ctx, *area, bytes);
            let nodes = self.add_nodes(&mut areas, *area);
            let mut free = Vec::new();
            let mut found = Vec::with_capacity(AT_ONCE);
            for node in nodes {
                match self.found(node) {
                    Some(live) => found.push(live),
                    None => free.push(node),
                }
                if found.len() == AT_ONCE {
                    situation!("soft.many_in_area");
                    self.link_found(&worker, &mut found)?;
                }
            }
            self.link_found(&worker, &mut found)?;
            self.nodes.put(free.into_iter());
        }
        self.table_pool.recover(&mut worker, |block| {
            Ok(block.class.is_none() && named.contains(&block.at))
        })
    }

    /// Returns the areas that the root leads to, newest first.
    pub(super) fn named_areas(
        ground: &TablePool<M>,
        config: SoftConfig,
    ) -> Result<Vec<Off>, OpenError> {
        let (medium, bytes) = (ground.medium(), config.area_bytes());
        let (mut named, mut seen) = (Vec::new(), BTreeSet::new());
        let mut at = Off(medium.load(ground.root(AREAS)));
        while !at.is_null() {
            let referrer = match named.last() {
                None => format!("the newest area, in the root's word {AREAS},"),
                Some(last) => {
                    format!("the area that the one at {last:?} names as its predecessor,")
                }
            };
            ground.check_run(&referrer, at, bytes)?;
            if !seen.insert(at) {
                let what = format!("{referrer} is {at:?}, which is already one of the later areas");
                return Err(OpenError::Damaged { what });
            }
            named.push(at);
            if fault!("soft.one_area") {
                break;
            }
            at = Off(medium.load(at));
        }
        Ok(named)
    }

    /// Returns the content of node `node`, if it is live.
    fn found(&self, node: u64) -> Option<LiveNode> {
        let (medium, far) = (self.table_pool.medium(), self.list.far(node));
        let flags = self.flags(far);
        situation!("soft.torn", flags.are_torn());
        situation!("soft.live", flags.are_live());
        let torn_is_live = fault!("soft.torn_is_live") && flags.are_torn();
        (flags.are_live() || torn_is_live).then(|| LiveNode {
            node,
            hash: self.table_pool.hash(medium.load(key_of(far))),
            value: medium.load(value_of(far)),
        })
    }

    /// Links live nodes into the list.
    fn link_found(&self, worker: &TableWorker, found: &mut Vec<LiveNode>) -> Result<(), OpenError> {
        self.list.fetch(found.iter().map(|found| found.hash));
        for LiveNode { node, hash, value } in found.drain(..) {
            let position = self.list.find(hash, |_| {});
            if let Some((other, _)) = position.node {
                let (far, other) = (self.list.far(node), self.list.far(other));
                let key = self.table_pool.hasher().key_of(hash);
                return Err(OpenError::Damaged {
                    what: format!("key {key:#x} is in the nodes at {far:?} and at {other:?}"),
                });
            }
            self.list.insert(&position, node, hash, value);
            self.list
                .advance_state(node, NodeState::IntendToInsert, NodeState::Inserted);
            self.split_if_few(worker);
        }
        Ok(())
    }
}
