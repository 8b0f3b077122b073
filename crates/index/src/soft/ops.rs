//! Insert, update, remove. A get is the lists' alone.

use farbank_pm::model::Category;
use farbank_pm::{Medium, Off, WORD, fault};

use super::Soft;
use super::layout::{Flags, NODE_BYTES, key_of, value_of};
use crate::ground::Worker;
use crate::index::Refused;

impl<M: Medium> Soft<M> {
    /// One line, one drain. When no node is free, an area first: all its lines, three more, and two drains.
    pub(super) fn insert_hashed(
        &self,
        worker: &mut Worker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Refused> {
        let held = self.lists.hold(hash);
        let spot = self.lists.find(&held, key);
        if spot.node != 0 {
            return Ok(Some(self.lists.node(spot.node).value));
        }
        let (node, others) = self.take(worker)?;
        self.make(worker, self.lists.node(node).far, key, value)?;
        if !others.is_empty() {
            self.free.put(others);
        }
        self.lists.link(&spot, node, key, value); // I3
        drop(held);
        self.split_if_long();
        Ok(None)
    }

    /// One line, one drain.
    pub(super) fn update_hashed(
        &self,
        worker: &mut Worker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Refused> {
        let held = self.lists.hold(hash);
        let spot = self.lists.find(&held, key);
        if spot.node == 0 {
            return Ok(None);
        }
        let node = self.lists.node(spot.node);
        self.replace(worker, value_of(node.far), value)?;
        self.lists.set_value(&spot, value);
        Ok(Some(node.value))
    }

    /// One line, one drain.
    pub(super) fn remove_hashed(
        &self,
        worker: &mut Worker,
        hash: u64,
        key: u64,
    ) -> Result<Option<u64>, Refused> {
        let held = self.lists.hold(hash);
        let spot = self.lists.find(&held, key);
        if spot.node == 0 {
            return Ok(None);
        }
        let node = self.lists.node(spot.node);
        let unmade = self.flags(node.far).unmade();
        self.replace(worker, node.far, unmade.0)?;
        self.lists.unlink(&spot); // I3
        self.free.give(worker.number(), spot.node);
        Ok(Some(node.value))
    }

    /// Makes a free node live, durably.
    fn make(&self, worker: &mut Worker, node: Off, key: u64, value: u64) -> Result<(), Refused> {
        let _for = Category::KeyValue.spend();
        let medium = self.ground.medium();
        let begun: Flags = self.flags(node).begun();
        medium.store(&mut worker.lane, node, begun.0);
        medium.store(&mut worker.lane, key_of(node), key);
        medium.store(&mut worker.lane, value_of(node), value);
        medium.store(&mut worker.lane, node, begun.ended().0); // I2
        if !fault!("soft.no_flush") {
            medium.flush(&mut worker.lane, node, NODE_BYTES as usize);
        }
        worker.commit(medium)
    }

    /// Replaces one word of a node, durably.
    fn replace(&self, worker: &mut Worker, at: Off, word: u64) -> Result<(), Refused> {
        let _for = Category::KeyValue.spend();
        let medium = self.ground.medium();
        medium.store(&mut worker.lane, at, word);
        if !fault!("soft.no_flush") {
            medium.flush(&mut worker.lane, at, WORD);
        }
        worker.commit(medium)
    }
}
