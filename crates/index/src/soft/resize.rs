//! Growth: new areas for nodes, and splits of buckets.

use std::ops::Range;

use farbank_pm::model::Category;
use farbank_pm::sync::unpoisoned;
use farbank_pm::{LINE, Medium, Off, WORD, situation};

use super::Soft;
use super::layout::{AREAS, node_of};
use crate::error::IndexError;
use crate::pool_heap::TableWorker;

impl<M: Medium> Soft<M> {
    /// Returns at least one node when no free node is cached: a node unlinked just now, or those of a new area. The
    /// caller is not pinned, and makes the nodes available to all workers after its next drain.
    #[cold]
    pub(super) fn more_nodes(&self, worker: &mut TableWorker) -> Result<Range<u64>, IndexError> {
        let one = |node| node..node + 1;
        let mut areas = unpoisoned(self.areas.lock());
        if let Some(node) = self.nodes.take_any(worker.number()) {
            return Ok(one(node)); // unlinked just now, or another worker has added an area
        }
        match self.make_area(worker) {
            Ok(area) => Ok(self.add_nodes(&mut areas, area)),
            Err(full @ IndexError::Full { .. }) => {
                let taken = self.nodes.take_from_all();
                situation!("soft.full", taken.is_none());
                taken.map(one).ok_or(full)
            }
            Err(other) => Err(other),
        }
    }

    /// Creates an area while some nodes are left, so that no insert has to wait for one. Errors are ignored; an insert
    /// that needs an area will report them. The worker is not pinned.
    #[cold]
    pub(super) fn more_ahead(&self, worker: &mut TableWorker) {
        let Ok(mut areas) = self.areas.try_lock() else {
            return;
        };
        if !self.nodes.take_few_flag() {
            return;
        }
        let made = self.make_area(worker);
        if let Ok(area) =
            made.and_then(|area| worker.commit(self.table_pool.medium()).map(|()| area))
        {
            self.nodes.put(self.add_nodes(&mut areas, area)); // IX-SOFT-5
            situation!("soft.area_ahead");
        }
    }

    /// Creates a durable area of free nodes, and flushes the root's word that names it as the newest. Nothing is
    /// changed on an error.
    fn make_area(&self, worker: &mut TableWorker) -> Result<Off, IndexError> {
        let _for = Category::Allocator.scope();
        let (medium, bytes) = (self.table_pool.medium(), self.config.area_bytes());
        let area = self.table_pool.allocate_run(worker, bytes)?;
        let before = medium.load(self.table_pool.root(AREAS)).to_le_bytes();
        medium.copy_in(&mut worker.ctx, area, &[&before, &[0; LINE - WORD]]);
        let nodes = area.plus(LINE as u64);
        self.table_pool
            .clear(&mut worker.ctx, nodes, bytes - LINE as u64);
        worker.commit(medium)?; // IX-SOFT-5
        medium.store(&mut worker.ctx, self.table_pool.root(AREAS), area.0);
        self.flush_areas_name(worker);
        situation!("soft.second_area", before != [0; WORD]);
        Ok(area)
    }

    /// Flushes the root's word for the newest area, for the worker's next drain.
    pub(super) fn flush_areas_name(&self, worker: &mut TableWorker) {
        let named = self.table_pool.root(AREAS);
        self.table_pool.medium().flush(&mut worker.ctx, named, WORD);
    }

    /// Assigns numbers and list nodes to the nodes of an area (IX-SOFT-6).
    pub(super) fn add_nodes(&self, areas: &mut Vec<Off>, area: Off) -> Range<u64> {
        let count = u64::from(self.config.area_nodes);
        let first = 1 + areas.len() as u64 * count;
        for n in 0..count {
            self.list.add(first + n, node_of(area, n));
        }
        areas.push(area);
        first..first + count
    }

    /// Splits some buckets if there are too few. The worker is not pinned.
    #[inline]
    pub(super) fn split_if_few(&self, worker: &TableWorker) {
        let node_buckets = u64::from(self.config.node_buckets);
        if let Some(wanted) = self.list.wants_split(node_buckets) {
            let number = worker.number();
            situation!("soft.bucket_split");
            let _pin = self.nodes.pin(number);
            let gone = |node| self.nodes.unlinked(number, node);
            self.list.split_some(wanted, gone);
        }
    }
}
