//! The consistency check of the whole table.

use std::collections::BTreeSet;

use farbank_pm::{Medium, Off};

use super::Clevel;
use super::layout::tag_in;
use crate::error::IndexError;

impl<M: Medium> Clevel<M> {
    pub(super) fn check_all(&self) -> Result<(), IndexError> {
        self.check_levels()?;
        let medium = self.table_pool.medium();
        let (mut keys, mut pairs, mut wrong) = (BTreeSet::new(), Vec::new(), None);
        self.each_taken(|level, slot, word| {
            let pair = self.pair_of(slot, word)?;
            let key = medium.load(pair);
            let hash = self.table_pool.hash(key);
            if tag_in(word) != self.tag_of(hash) || !self.slots_of(level, hash).any(|s| s == slot) {
                wrong = Some(format!(
                    "key {key:#x} lies at {slot:?}, where it is not looked for"
                ));
            } else if !keys.insert(key) {
                wrong = Some(format!("key {key:#x} occurs twice, once at {slot:?}"));
            }
            pairs.push(pair);
            Ok(())
        })?;
        if let Some(wrong) = wrong {
            return Err(IndexError::damaged(wrong));
        }
        let levels: Vec<Off> = self.meta().levels().map(|n| self.level(n).at).collect();
        self.table_pool.check(|reach| {
            levels.into_iter().for_each(&mut *reach);
            pairs.into_iter().for_each(reach);
        })
    }
}
