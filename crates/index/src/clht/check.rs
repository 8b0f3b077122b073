//! The consistency check of the whole table.

use std::collections::BTreeSet;

use farbank_pm::Medium;

use super::Clht;
use super::layout::Array;
use crate::error::IndexError;

impl<M: Medium> Clht<M> {
    pub(super) fn check_all(&self) -> Result<(), IndexError> {
        let array = self.array();
        let mut chained = Vec::new();
        for index in 0..array.buckets() {
            chained.extend(self.chain_of(array.bucket(index))?);
            self.check_chain(array, index)?;
        }
        self.table_pool.check(|reach| {
            reach(array.at);
            chained.into_iter().for_each(|block| reach(block.at));
        })
    }

    fn check_chain(&self, array: Array, index: u64) -> Result<(), IndexError> {
        let first = array.bucket(index);
        let mut wrong = None;
        let mut keys = BTreeSet::new();
        self.each_live(first, |bucket, key, _| {
            if !keys.insert(key) {
                wrong = Some(format!("key {key:#x} is in chain {index} twice"));
            } else if array.index(self.table_pool.hash(key)) != index {
                wrong = Some(format!(
                    "key {key:#x} lies in {bucket:?}, where it is not looked for"
                ));
            }
        });
        wrong.map_or(Ok(()), |what| Err(IndexError::damaged(what)))
    }
}
