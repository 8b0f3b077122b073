//! Validation of references in the pool before they are followed.
//!
//! ```text
//!   a word of the root ──▶ a run        validated by the open
//!   a word of a table ───▶ a block      validated at the first access to the part that holds it, under its lock
//! ```
//!
//! A block's bit stays set as long as a reference leads to it, so a validated block is not allocated again.

use farbank_pm::{Medium, Off, WORD};

use super::{HeapBlock, TablePool};
use crate::error::IndexError;

impl<M: Medium> TablePool<M> {
    /// Returns whether the `bytes` at `at` lie in the pool and start at a word boundary.
    #[inline]
    pub(crate) fn holds(&self, at: Off, bytes: u64) -> bool {
        let last = self.medium().len().checked_sub(bytes);
        at.0.is_multiple_of(WORD as u64) && last.is_some_and(|last| at.0 <= last)
    }

    /// Returns the block or run that starts at `at`, allocated or not.
    pub(crate) fn block(&self, at: Off) -> Result<HeapBlock, IndexError> {
        let block = self.heap.block_at(at);
        block.ok_or_else(|| {
            IndexError::damaged(format!("cannot free {at:?}: no block or run starts there"))
        })
    }

    /// Checks that a run of at least `bytes` starts at `at`. `referrer` describes the word that refers to it.
    pub(crate) fn check_run(&self, referrer: &str, at: Off, bytes: u64) -> Result<(), IndexError> {
        let found = self.heap.run_bytes(at);
        if found.is_some_and(|found| found >= bytes) {
            return Ok(());
        }
        let found = found.map_or("no run starts".into(), |found| {
            format!("a run of {found} bytes starts")
        });
        Err(IndexError::damaged(format!(
            "{referrer} is {at:?}, expected a run of at least {bytes} bytes, but {found} there"
        )))
    }

    /// Returns whether an allocated block of `class` starts at `at`.
    pub(crate) fn is_block(&self, at: Off, class: usize) -> bool {
        let found = self.heap.block_at(at);
        found.is_some_and(|block| block.class == Some(class) && self.is_handed_out(block))
    }

    /// Returns the chain of blocks of `class` that starts at `first`: `next` returns the successor of each, null at the
    /// end. `referrer` describes the start in errors. A block that `validate` rejects ends the walk with its error.
    pub(crate) fn chain(
        &self,
        referrer: (&str, Off),
        first: Off,
        class: usize,
        next: impl Fn(Off) -> Off,
        validate: impl Fn(HeapBlock) -> Result<(), IndexError>,
    ) -> Result<Vec<HeapBlock>, IndexError> {
        let (mut blocks, mut at, mut passed) = (Vec::new(), first, None);
        let (referrer, whose) = referrer;
        while !at.is_null() {
            if passed == Some(at) {
                return Err(IndexError::damaged(format!(
                    "{referrer} {whose:?} has a cycle through {at:?}"
                )));
            }
            let block = self.heap.block_at(at).filter(|b| b.class == Some(class));
            let Some(block) = block else {
                return Err(IndexError::damaged(format!(
                    "{referrer} {whose:?} leads to {at:?}, expected a block, but none starts there"
                )));
            };
            validate(block)?;
            blocks.push(block);
            // Brent's algorithm: in a cycle, the walk returns to the block that was last when the count was a power of
            // two.
            if blocks.len().is_power_of_two() {
                passed = Some(at);
            }
            at = next(at);
        }
        Ok(blocks)
    }
}
