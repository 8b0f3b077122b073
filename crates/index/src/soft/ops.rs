//! Insert, get, update, remove. Searches use only the list.
//!
//! ```text
//!   insert   start, key, value ─▶ linked, IntendToInsert ─▶ end, flush, drain ─▶ Inserted
//!   remove   IntendToDelete ─▶ deleted, flush, drain ─▶ Deleted ─▶ unlinked
//! ```
//!
//! A thread that meets a node in the middle of either operation can complete it, because it repeats the same stores.

use std::ops::Range;

use farbank_pm::model::Category;
use farbank_pm::{Medium, Off, WORD, fault, situation};

use super::Soft;
use super::layout::{NODE_BYTES, end_of, key_of, value_of};
use super::list::ListPosition;
use super::tagged_ptr::NodeState;
use crate::error::IndexError;
use crate::pool_heap::TableWorker;

/// The nodes that an insert has taken.
#[derive(Default)]
struct InsertNodes {
    /// A node whose stores have begun, but which is not linked.
    unused: Option<u64>,
    /// Nodes that other workers must not get yet: that the root names their area is durable after this worker's next
    /// drain (IX-SOFT-5).
    new: Option<Range<u64>>,
}

impl InsertNodes {
    fn take(&mut self) -> Option<u64> {
        self.new.as_mut()?.next()
    }
}

impl<M: Medium> Soft<M> {
    /// Inserts a key with one line and one drain. If no node is free, first creates an area: all its lines, three more,
    /// and two drains.
    pub(super) fn insert_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let mut stock = InsertNodes::default();
        let found = self.insert_of(&mut stock, worker, (hash, key, value));
        self.return_nodes(stock, worker, matches!(found, Ok(Some(_))))?;
        if self.nodes.are_few() {
            self.more_ahead(worker);
        }
        self.split_if_few(worker);
        found
    }

    /// Makes the nodes that an insert has taken and not used available. `has_found`: the insert has found its key, and so
    /// has not drained.
    #[inline]
    fn return_nodes(
        &self,
        stock: InsertNodes,
        worker: &mut TableWorker,
        has_found: bool,
    ) -> Result<(), IndexError> {
        if let Some(new) = stock.new {
            if has_found {
                worker.commit(self.table_pool.medium())?; // IX-SOFT-5
            }
            self.nodes.put(new);
            situation!("soft.more_nodes");
        }
        if let Some(node) = stock.unused {
            self.nodes.give(worker.number(), node);
        }
        Ok(())
    }

    #[inline]
    fn insert_of(
        &self,
        stock: &mut InsertNodes,
        worker: &mut TableWorker,
        (hash, key, value): (u64, u64, u64),
    ) -> Result<Option<u64>, IndexError> {
        let number = worker.number();
        loop {
            let pin = self.nodes.pin(number);
            let position = self.find(worker, hash);
            if let Some((node, link)) = position.node {
                if link.state() == NodeState::IntendToInsert {
                    self.flush_areas_name(worker); // IX-SOFT-5
                    self.finish_insert(worker, node)?;
                }
                return Ok(Some(self.list.value(node)));
            }
            let node = match stock.unused.take() {
                Some(begun) => begun,
                None => {
                    let Some(node) = stock.take().or_else(|| self.nodes.take(number)) else {
                        drop(pin);
                        stock.new = Some(self.more_nodes(worker)?);
                        continue;
                    };
                    self.begin_insert(worker, node, key, value);
                    node
                }
            };
            if self.list.insert(&position, node, hash, value) {
                self.finish_insert(worker, node)?;
                return Ok(None);
            }
            stock.unused = Some(node);
        }
    }

    /// Reads no far memory. Repeats the search if nodes were reused meanwhile.
    pub(super) fn get_hashed(&self, hash: u64) -> Option<u64> {
        loop {
            let round = self.nodes.round();
            let found = self.list.search(hash);
            if self.nodes.is_still(round) {
                return found;
            }
        }
    }

    /// One line, one drain. Waits for an update of the same key.
    pub(super) fn update_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
        value: u64,
    ) -> Result<Option<u64>, IndexError> {
        let _pin = self.nodes.pin(worker.number());
        let Some((node, link)) = self.find(worker, hash).node else {
            return Ok(None);
        };
        if link.state() == NodeState::IntendToInsert {
            return Ok(None);
        }
        self.fetch_far(node);
        let Some(held) = self.list.hold(node) else {
            self.finish_remove(worker, node)?;
            return Ok(None);
        };
        self.replace(worker, value_of(self.list.far(node)), value)?;
        Ok(Some(held.exchange(value))) // IX-SOFT-3
    }

    /// One line, one drain. Waits for an update of the same key.
    pub(super) fn remove_hashed(
        &self,
        worker: &mut TableWorker,
        hash: u64,
    ) -> Result<Option<u64>, IndexError> {
        let _pin = self.nodes.pin(worker.number());
        let position = self.find(worker, hash);
        let Some((node, link)) = position.node else {
            return Ok(None);
        };
        if link.state() == NodeState::IntendToInsert {
            return Ok(None);
        }
        self.fetch_far(node);
        let mine = self
            .list
            .advance_state(node, NodeState::Inserted, NodeState::IntendToDelete);
        self.finish_remove(worker, node)?;
        if !mine {
            return Ok(None);
        }
        let value = self.list.value(node);
        if self.list.unlink(&position, node) {
            self.nodes.unlinked(worker.number(), node);
        } else {
            self.find(worker, hash); // unlinks the node, if no other thread has
        }
        Ok(Some(value))
    }

    /// Finds the position of `hash` in the list. The worker is pinned.
    #[inline]
    fn find(&self, worker: &TableWorker, hash: u64) -> ListPosition<'_> {
        let gone = |node| self.nodes.unlinked(worker.number(), node);
        self.list.find(hash, gone)
    }

    /// Prefetches a node's line in far memory: the compare-and-swap on a link waits for all earlier stores.
    #[inline]
    fn fetch_far(&self, node: u64) {
        let far = self.list.far(node);
        self.table_pool.medium().prefetch(far, NODE_BYTES as usize);
    }

    /// Stores the words of a free node except its `end`.
    fn begin_insert(&self, worker: &mut TableWorker, node: u64, key: u64, value: u64) {
        let _for = Category::KeyValue.scope();
        let (medium, far) = (self.table_pool.medium(), self.list.far(node));
        medium.store(&mut worker.ctx, far, self.flags(far).begun());
        medium.store(&mut worker.ctx, key_of(far), key);
        medium.store(&mut worker.ctx, value_of(far), value);
    }

    /// Makes a begun node durably live, then visible. Called by its inserter or a helper.
    fn finish_insert(&self, worker: &mut TableWorker, node: u64) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let (medium, far) = (self.table_pool.medium(), self.list.far(node));
        let end = self.flags(far).ended();
        medium.store(&mut worker.ctx, end_of(far), end); // IX-SOFT-2
        if !fault!("soft.no_flush") {
            medium.flush(&mut worker.ctx, far, NODE_BYTES as usize);
        }
        worker.commit(medium)?;
        self.list
            .advance_state(node, NodeState::IntendToInsert, NodeState::Inserted); // IX-SOFT-3
        Ok(())
    }

    /// Makes a node that is to be deleted durably free, then invisible. Called by its remover or a helper.
    fn finish_remove(&self, worker: &mut TableWorker, node: u64) -> Result<(), IndexError> {
        if self.list.state(node) != NodeState::IntendToDelete {
            return Ok(());
        }
        let far = self.list.far(node);
        self.replace(worker, far, self.flags(far).unmade())?;
        self.list
            .advance_state(node, NodeState::IntendToDelete, NodeState::Deleted); // IX-SOFT-3
        Ok(())
    }

    /// Replaces one word of a node. Durable on `Ok`.
    fn replace(&self, worker: &mut TableWorker, at: Off, word: u64) -> Result<(), IndexError> {
        let _for = Category::KeyValue.scope();
        let medium = self.table_pool.medium();
        medium.store(&mut worker.ctx, at, word);
        if !fault!("soft.no_flush") {
            medium.flush(&mut worker.ctx, at, WORD);
        }
        worker.commit(medium)
    }
}

#[cfg(test)]
mod tests {
    use farbank_pm::sim::{Persistency, Sim};

    use super::*;
    use crate::pool_heap::PoolPlan;
    use crate::soft::SoftConfig;

    #[test]
    fn a_node_of_a_new_area_survives_if_its_creator_found_its_key() {
        let plan = PoolPlan {
            chunk_bytes: 4 << 10,
            contexts: 2,
            ..PoolPlan::published()
        };
        let sim = Sim::new(256 << 10, Persistency::Adr);
        let table = Soft::create(sim.clone(), &plan, SoftConfig::small()).unwrap();
        let (mut one, mut two) = (
            table.table_pool.worker().unwrap(),
            table.table_pool.worker().unwrap(),
        );
        let hashed = |key: u64| (table.table_pool.hash(key), key, !key);
        let insert = |worker: &mut TableWorker, key| {
            let mut stock = InsertNodes::default();
            let found = table.insert_of(&mut stock, worker, hashed(key));
            assert!(found.unwrap().is_none() && stock.new.is_none());
        };
        // The second worker has one free node. There is no other.
        let (hash, key, value) = hashed(1);
        table.insert_hashed(&mut two, hash, key, value).unwrap();
        while table.nodes.take(one.number()).is_some() {}
        while table.nodes.take(two.number()).is_some() {}
        let last = table.more_nodes(&mut two).unwrap();
        one.commit(&sim).unwrap();
        two.commit(&sim).unwrap();
        table.nodes.give(two.number(), last.start);
        // The first worker creates an area. Meanwhile the second one inserts the same key.
        let mut stock = InsertNodes {
            unused: None,
            new: Some(table.more_nodes(&mut one).unwrap()),
        };
        insert(&mut two, 2);
        let found = table.insert_of(&mut stock, &mut one, hashed(2)).unwrap();
        assert_eq!(found, Some(!2));
        table.return_nodes(stock, &mut one, true).unwrap();
        // The second worker's next node is in the new area.
        insert(&mut two, 3);
        let crash = sim.crash_state();
        for cut in crash.images(64, 1) {
            let sim = Sim::from_image(crash.image(&cut), Persistency::Adr);
            let opened = Soft::open(sim).unwrap();
            for key in 1..=3 {
                let found = opened.get_hashed(opened.table_pool.hash(key));
                assert_eq!(found, Some(!key), "key {key} of image {}", cut.number);
            }
        }
    }
}
