//! More nodes: areas. More lists: a split is the lists' own.

use std::ops::Range;

use farbank_pm::model::Category;
use farbank_pm::{LINE, Medium, Off, WORD};

use super::Soft;
use super::layout::{AREAS, node_of};
use crate::ground::Worker;
use crate::index::Refused;

impl<M: Medium> Soft<M> {
    /// A free node; of a new area if no worker has one in reach. Then the others of that area are given, too: for everybody,
    /// once what makes the first one live is durable, as that is drained with what names the area.
    pub(super) fn take(&self, worker: &mut Worker) -> Result<(u64, Range<u64>), Refused> {
        let one = |node| (node, 0..0);
        if let Some(node) = self.free.take(worker.number()) {
            return Ok(one(node));
        }
        let mut areas = self.areas.lock().expect("no holder panics");
        if let Some(node) = self.free.take(worker.number()) {
            return Ok(one(node)); // another has added an area since
        }
        match self.make_area(worker) {
            Ok(area) => {
                let nodes = self.add_nodes(&mut areas, area);
                Ok((nodes.start, nodes.start + 1..nodes.end))
            }
            Err(full @ Refused::Full { .. }) => self.free.take_from_any().map(one).ok_or(full),
            Err(other) => Err(other),
        }
    }

    /// A new area, durable, of free nodes, as the root's newest, on its way to durability. Nothing is changed on an error.
    fn make_area(&self, worker: &mut Worker) -> Result<Off, Refused> {
        let _for = Category::Allocator.spend();
        let (medium, bytes) = (self.ground.medium(), self.config.area_bytes());
        let area = self.ground.allocate_run(worker, bytes)?;
        let before = medium.load(self.ground.root(AREAS)).to_le_bytes();
        medium.copy_in(&mut worker.lane, area, &[&before, &[0; LINE - WORD]]);
        let nodes = area.plus(LINE as u64);
        self.ground
            .clear(&mut worker.lane, nodes, bytes - LINE as u64);
        worker.commit(medium)?; // I5
        let named = self.ground.root(AREAS);
        medium.store(&mut worker.lane, named, area.0);
        medium.flush(&mut worker.lane, named, WORD);
        Ok(area)
    }

    /// Gives the nodes of an area their numbers and list nodes (I6).
    pub(super) fn add_nodes(&self, areas: &mut Vec<Off>, area: Off) -> Range<u64> {
        let count = u64::from(self.config.area_nodes);
        let first = 1 + areas.len() as u64 * count;
        for n in 0..count {
            self.lists.add(first + n, node_of(area, n));
        }
        areas.push(area);
        first..first + count
    }

    /// Splits buckets if there are too few.
    #[inline]
    pub(super) fn split_if_long(&self) {
        let most = u64::from(self.config.list_nodes);
        if most > 0 {
            self.lists.split_if_long(most);
        }
    }
}
