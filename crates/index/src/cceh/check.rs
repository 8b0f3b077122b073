//! The consistency check of the whole table.

use std::collections::BTreeSet;

use farbank_pm::{LINE, Medium, Off};

use super::Cceh;
use crate::error::IndexError;

impl<M: Medium> Cceh<M> {
    pub(super) fn check_all(&self) -> Result<(), IndexError> {
        self.directory
            .check(&self.table_pool, |segment, _| self.check_segment(segment))
    }

    fn check_segment(&self, segment: Off) -> Result<(), IndexError> {
        let mut keys = BTreeSet::new();
        let mut wrong = None;
        self.each_live(segment, |slot, key, _| {
            if !keys.insert(key) {
                wrong = Some(format!("key {key:#x} is in {segment:?} twice"));
            } else if !self
                .buckets_of(segment, self.table_pool.hash(key))
                .any(|at| (at.0..at.0 + LINE as u64).contains(&slot.0))
            {
                wrong = Some(format!(
                    "key {key:#x} lies at {slot:?}, where it is not looked for"
                ));
            }
        });
        wrong.map_or(Ok(()), |what| Err(IndexError::damaged(what)))
    }
}
