//! After a crash; and the whole table looked through.

use std::collections::{BTreeMap, BTreeSet};

use farbank_pm::{Medium, Off, fault};

use super::Soft;
use super::layout::{AREAS, key_of, node_of, value_of};
use crate::ground::OpenError;
use crate::hash::hash;
use crate::index::Refused;

impl<M: Medium> Soft<M> {
    /// Makes all areas durable as they are, and builds the lists from their live nodes.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        let mut worker = self.ground.worker()?;
        let medium = self.ground.medium();
        let named = self.named_areas()?;
        let mut areas = self.areas.lock().expect("no holder panics");
        for area in &named {
            let bytes = self.config.area_bytes() as usize;
            medium.flush(&mut worker.lane, *area, bytes);
            let nodes = self.add_nodes(&mut areas, *area);
            let mut free = Vec::new();
            for node in nodes {
                if !self.link_found(node)? {
                    free.push(node);
                }
            }
            self.free.put(free.into_iter());
        }
        self.ground.recover(&mut worker, |block| {
            Ok(block.class.is_none() && named.contains(&block.at))
        })
    }

    /// The areas the root leads to, newest first.
    fn named_areas(&self) -> Result<Vec<Off>, OpenError> {
        let (medium, bytes) = (self.ground.medium(), self.config.area_bytes());
        let (mut named, mut seen) = (Vec::new(), BTreeSet::new());
        let mut at = Off(medium.load(self.ground.root(AREAS)));
        while !at.is_null() {
            let who = match named.last() {
                None => format!("the newest area, in the root's word {AREAS},"),
                Some(last) => format!("the area before the one at {last:?}, which names it,"),
            };
            self.ground.check_run(&who, at, bytes)?;
            if !seen.insert(at) {
                let what =
                    format!("{who} is {at:?}, which was expected to be none of those after it");
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

    /// Links a node that was found live; whether it was.
    fn link_found(&self, node: u64) -> Result<bool, OpenError> {
        let (medium, far) = (self.ground.medium(), self.lists.node(node).far);
        let flags = self.flags(far);
        let torn_is_live = fault!("soft.torn_is_live") && flags.are_torn();
        if !flags.are_live() && !torn_is_live {
            return Ok(false);
        }
        let (key, value) = (medium.load(key_of(far)), medium.load(value_of(far)));
        let held = self.lists.hold(hash(key));
        let spot = self.lists.find(&held, key);
        if spot.node != 0 {
            let other = self.lists.node(spot.node).far;
            return Err(OpenError::Damaged {
                what: format!("key {key:#x} is in the nodes at {far:?} and at {other:?}"),
            });
        }
        self.lists.link(&spot, node, key, value);
        drop(held);
        self.split_if_long();
        Ok(true)
    }

    pub(super) fn check_all(&self) -> Result<(), Refused> {
        let areas = self.areas.lock().expect("no holder panics");
        let live = self.live_nodes(&areas);
        let (mut keys, mut linked) = (BTreeSet::new(), 0);
        let mut wrong = None;
        self.lists.each(|bucket, node| {
            linked += 1;
            if live.get(&node.far.0) != Some(&(node.key, node.value)) {
                let found = live.get(&node.far.0);
                wrong = Some(format!(
                    "key {:#x} with {:#x} is listed, and at {:?} is {found:x?}",
                    node.key, node.value, node.far
                ));
            } else if !keys.insert(node.key) {
                wrong = Some(format!("key {:#x} is listed twice", node.key));
            } else if !self.lists.serves(bucket, hash(node.key)) {
                wrong = Some(format!(
                    "key {:#x} is in the list of another bucket",
                    node.key
                ));
            }
        });
        if let Some(wrong) = wrong {
            return Err(Refused::damaged(wrong));
        }
        let (live, free) = (live.len() as u64, self.free.count());
        let all = areas.len() as u64 * u64::from(self.config.area_nodes);
        if linked != live || linked + free != all {
            let what = format!("of {all} nodes {live} are live, {linked} listed, {free} free");
            return Err(Refused::damaged(what));
        }
        self.ground
            .check(|reach| areas.iter().for_each(|at| reach(*at)))
    }

    /// Every live node in far memory: where, its key and value.
    fn live_nodes(&self, areas: &[Off]) -> BTreeMap<u64, (u64, u64)> {
        let medium = self.ground.medium();
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
