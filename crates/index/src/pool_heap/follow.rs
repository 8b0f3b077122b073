//! What a word of the pool leads to, looked at before it is followed.
//!
//! ```text
//!   a word of the root ──▶ a run        the open looks at it
//!   a word of a table ───▶ a block      whoever first comes to the part that holds it does, under its lock
//! ```
//!
//! A block's bit is set as long as something leads to it, so nobody is handed what was looked at.

use farbank_pm::{Medium, Off, WORD};

use super::{HeapBlock, TablePool};
use crate::index::IndexError;

impl<M: Medium> TablePool<M> {
    /// Whether all of `bytes` at `at` are in the pool, and start at a word.
    #[inline]
    pub(crate) fn holds(&self, at: Off, bytes: u64) -> bool {
        let last = self.medium().len().checked_sub(bytes);
        at.0.is_multiple_of(WORD as u64) && last.is_some_and(|last| at.0 <= last)
    }

    /// What starts at `at`, handed out or not.
    pub(crate) fn block(&self, at: Off) -> Result<HeapBlock, IndexError> {
        let block = self.heap.block_at(at);
        block.ok_or_else(|| {
            IndexError::damaged(format!(
                "{at:?} is to be freed, and no block or run starts there"
            ))
        })
    }

    /// Whether `at`, which `who` names, is where a run of at least `bytes` starts.
    pub(crate) fn check_run(&self, who: &str, at: Off, bytes: u64) -> Result<(), IndexError> {
        let found = self.heap.run_bytes(at);
        if found.is_some_and(|found| found >= bytes) {
            return Ok(());
        }
        let found = found.map_or("none starts".into(), |found| format!("{found} bytes are"));
        Err(IndexError::damaged(format!(
            "{who} is {at:?}, which was expected to be a run of {bytes} bytes, and {found} there"
        )))
    }

    /// Whether a block of `class` that is handed out starts at `at`.
    pub(crate) fn is_block(&self, at: Off, class: usize) -> bool {
        let found = self.heap.block_at(at);
        found.is_some_and(|block| block.class == Some(class) && self.is_handed_out(block))
    }

    /// The blocks of `class` that lead to each other from `first`, which `who` names, on: the `next` of each, until that is
    /// null. None is followed that `vouch` refuses.
    pub(crate) fn chain(
        &self,
        who: (&str, Off),
        first: Off,
        class: usize,
        next: impl Fn(Off) -> Off,
        vouch: impl Fn(HeapBlock) -> Result<(), IndexError>,
    ) -> Result<Vec<HeapBlock>, IndexError> {
        let (mut blocks, mut at, mut passed) = (Vec::new(), first, None);
        let (who, whose) = who;
        while !at.is_null() {
            if passed == Some(at) {
                return Err(IndexError::damaged(format!(
                    "{who} {whose:?} leads in a circle that comes back to {at:?}"
                )));
            }
            let block = self.heap.block_at(at).filter(|b| b.class == Some(class));
            let Some(block) = block else {
                return Err(IndexError::damaged(format!(
                    "{who} {whose:?} leads to {at:?}, which was expected to be a block, and is none"
                )));
            };
            vouch(block)?;
            blocks.push(block);
            // A cycle comes back to what was the last one when their number was a power of two.
            if blocks.len().is_power_of_two() {
                passed = Some(at);
            }
            at = next(at);
        }
        Ok(blocks)
    }
}
