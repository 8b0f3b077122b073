//! After a crash: what was in doubt is asked about; and the count of everything, for checks.

use std::collections::BTreeSet;

use farbank_pm::{LINE, Medium, Off};

use super::heap::{Block, FREED, RUN, Use};
use super::{Ground, OpenError, Worker};
use crate::index::Refused;

impl<M: Medium> Ground<M> {
    /// Frees what a crash left between being handed out and linked, or between unlinked and freed; `is_live`
    /// says whether the table leads to a block. Durable on `Ok`, as is all that `worker` has flushed. Reads a line a lane: the
    /// more keys, no more work.
    pub(crate) fn recover(
        &self,
        worker: &mut Worker,
        mut is_live: impl FnMut(Block) -> Result<bool, Refused>,
    ) -> Result<(), OpenError> {
        let lane = &mut worker.lane;
        for number in 0..self.heap.lanes() {
            for block in self.in_doubt(number)? {
                // Its bit may be as a killed process left it, cleared and not durable.
                self.flush_bit(lane, block);
                if self.is_handed_out(block) && !is_live(block)? {
                    self.clear_on_medium(lane, block);
                    if block.class.is_none() {
                        self.heap.forget_run(block);
                    }
                }
            }
        }
        Ok(worker.commit(self.medium())?)
    }

    /// What lane `number` took or freed last.
    pub(crate) fn in_doubt(&self, number: u32) -> Result<Vec<Block>, OpenError> {
        let word = |n| Off(self.medium().load(self.heap.lane_word(number, n)));
        let mut found = Vec::new();
        for class in 0..RUN {
            let group = word(class);
            if group.is_null() {
                continue;
            }
            let blocks = self.heap.blocks_of(group, class as usize);
            let (first, blocks) = blocks.ok_or_else(|| damaged(number, class, group))?;
            let intent = self.medium().load(group);
            if intent > blocks {
                return Err(damaged(number, class, group));
            }
            if intent > 0 {
                let bytes = self
                    .heap
                    .cut(class as usize)
                    .expect("it has groups")
                    .block_bytes;
                found.push(Block {
                    at: first.plus((intent - 1) * bytes),
                    class: Some(class as usize),
                });
            }
        }
        // A run that was given back meanwhile may be anything by now.
        let runs = self.heap.block_at(word(RUN)).filter(|b| b.class.is_none());
        found.extend(runs);
        found.extend((FREED..FREED + 2).filter_map(|n| self.heap.block_at(word(n))));
        Ok(found)
    }

    /// Whether what is handed out is what `reach` tells of, each once. For checks: reads everything.
    pub(crate) fn check(&self, reach: impl FnOnce(&mut dyn FnMut(Off))) -> Result<(), Refused> {
        let mut reached = BTreeSet::new();
        let mut twice = None;
        reach(&mut |at| {
            if !reached.insert(at.0) {
                twice = Some(at);
            }
        });
        if let Some(at) = twice {
            return Err(Refused::damaged(format!("two places lead to {at:?}")));
        }
        let out = self.handed_out();
        if let Some(at) = out.difference(&reached).next() {
            let what = format!("{:?} is handed out and nothing leads there", Off(*at));
            return Err(Refused::damaged(what));
        }
        match reached.difference(&out).next() {
            Some(at) => Err(Refused::damaged(format!(
                "{:?} is used and not handed out",
                Off(*at)
            ))),
            None => Ok(()),
        }
    }

    fn handed_out(&self) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for chunk in 0..self.pool.segments() {
            match self.heap.use_of(chunk).expect("it is one of the pool's") {
                Use::Run(_) => {
                    let at = self.pool.segment(chunk);
                    if self.is_handed_out(Block { at, class: None }) {
                        found.insert(at.0);
                    }
                }
                Use::Slab(class) => {
                    let cut = self.heap.cut(class).expect("slabs are of a class");
                    for group in 0..cut.groups() {
                        let at = self.pool.segment(chunk).plus(group * LINE as u64);
                        let (first, blocks) =
                            self.heap.blocks_of(at, class).expect("a slab has groups");
                        let taken = (0..blocks).filter(|n| self.is_set(at, *n));
                        found.extend(taken.map(|n| first.plus(n * cut.block_bytes).0));
                    }
                }
                Use::Free | Use::Head | Use::Inside => {}
            }
        }
        found
    }
}

fn damaged(lane: u32, class: u64, group: Off) -> OpenError {
    OpenError::Damaged {
        what: format!(
            "the line of lane {lane} names {group:?} as its group of blocks of class {class}, and there is none, or its intent \
             is no block of it"
        ),
    }
}
