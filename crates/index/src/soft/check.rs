//! The consistency check of the whole table: the list in DRAM, and the nodes in far memory.

use std::collections::BTreeMap;

use farbank_pm::sync::unpoisoned;
use farbank_pm::{Medium, Off};

use super::Soft;
use super::layout::{key_of, node_of, value_of};
use super::list::comes_before;
use super::tagged_ptr::{LinkTarget, NodeState};
use crate::error::IndexError;

impl<M: Medium> Soft<M> {
    pub(super) fn check_all(&self) -> Result<(), IndexError> {
        let areas = unpoisoned(self.areas.lock());
        let live = self.live_nodes(&areas);
        let listed = self.check_list(&live)?;
        let (live, free) = (live.len() as u64, self.nodes.count());
        let all = areas.len() as u64 * u64::from(self.config.area_nodes);
        if listed != live || listed + free != all {
            let what = format!(
                "of {all} nodes, {live} are live, {listed} are in the list, and {free} are free"
            );
            return Err(IndexError::damaged(what));
        }
        self.table_pool
            .check(|reach| areas.iter().for_each(|at| reach(*at)))
    }

    /// Checks the list from its beginning to its end. Returns the number of nodes in it.
    fn check_list(&self, live: &BTreeMap<u64, (u64, u64)>) -> Result<u64, IndexError> {
        let (mut listed, mut buckets, mut wrong) = (0, 1, None);
        let (mut bucket, mut last) = (0, None);
        let hasher = self.table_pool.hasher();
        loop {
            let then = self.list.walk(bucket, |node| {
                listed += 1;
                let key = hasher.key_of(node.hash);
                let found = live.get(&node.far.0);
                if found != Some(&(key, node.value)) || node.state != NodeState::Inserted {
                    wrong = Some(format!(
                        "key {key:#x} is in the list with value {:#x} in state {:?}, but the node at {:?} has {found:x?}",
                        node.value, node.state, node.far
                    ));
                } else if last.is_some_and(|last| !comes_before(last, node.hash)) {
                    wrong = Some(format!("key {key:#x} is in the list after a node that it must precede"));
                } else if !self.list.serves(bucket, node.hash) {
                    wrong = Some(format!("key {key:#x} is in the wrong bucket"));
                }
                last = Some(node.hash);
            });
            if let Some(wrong) = wrong {
                return Err(IndexError::damaged(wrong));
            }
            let LinkTarget::Bucket(next) = then else {
                break;
            };
            if !comes_before(bucket, next) {
                let what = format!("bucket {next} is linked after bucket {bucket}");
                return Err(IndexError::damaged(what));
            }
            (bucket, buckets) = (next, buckets + 1);
        }
        let all = self.list.buckets();
        if buckets != all {
            let what = format!("{buckets} of {all} buckets are linked");
            return Err(IndexError::damaged(what));
        }
        Ok(listed)
    }

    /// Returns every live node in far memory: its offset, with its key and value.
    fn live_nodes(&self, areas: &[Off]) -> BTreeMap<u64, (u64, u64)> {
        let medium = self.table_pool.medium();
        let count = u64::from(self.config.area_nodes);
        let nodes = areas
            .iter()
            .flat_map(|at| (0..count).map(|n| node_of(*at, n)));
        nodes
            .filter(|node| self.flags(*node).are_live())
            .map(|node| {
                (
                    node.0,
                    (medium.load(key_of(node)), medium.load(value_of(node))),
                )
            })
            .collect()
    }
}
