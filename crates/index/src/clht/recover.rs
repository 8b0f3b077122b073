//! After a crash; and the whole table looked through.

use std::collections::BTreeSet;

use farbank_pm::{Medium, Off};

use super::Clht;
use super::layout::{ARRAY, Array, BITS_MAX, OLD, YOUNG, next_of};
use crate::ground::{Block, OpenError};
use crate::hash::hash;
use crate::outlier::Outlier;

impl<M: Medium> Clht<M> {
    /// Frees an array that a crash left half built, or half freed, then what is in doubt. Reads a few words a lane; all
    /// of an array only if the crash was in the middle of a resize.
    pub(super) fn recover(&self) -> Result<(), OpenError> {
        let array = self.named(ARRAY)?.ok_or_else(|| OpenError::Damaged {
            what: "the root names no array".into(),
        })?;
        let mut worker = self.ground.worker()?;
        for word in [YOUNG, OLD] {
            match self.named(word)? {
                Some(other) if other != array => self.dismantle(&mut worker, word, other)?,
                _ => {}
            }
        }
        drop(worker);
        self.ground.recover(|block| self.is_live(array, block))
    }

    /// The array word `n` of the root names, if it names one.
    fn named(&self, n: u64) -> Result<Option<Array>, OpenError> {
        let word = self.ground.medium().load(self.ground.root(n));
        if word == 0 {
            return Ok(None);
        }
        let array = Array::of(word);
        let fits = (1..=BITS_MAX).contains(&array.bits)
            && array.at.0.checked_add(array.bytes()) <= Some(self.ground.medium().len());
        let sound = fits && !array.at.is_null();
        sound
            .then_some(Some(array))
            .ok_or_else(|| OpenError::Damaged {
                what: format!("the root names {word:#x} as an array"),
            })
    }

    fn is_live(&self, array: Array, block: Block) -> bool {
        if block.class.is_none() {
            return block.at == array.at;
        }
        let first = Off(self.ground.medium().load(block.at));
        let mut found = false;
        if array.has(first) {
            self.each_bucket(first, |bucket| found |= bucket == block.at);
        }
        found
    }

    pub(super) fn check_all(&self) -> Result<(), String> {
        let array = self.array();
        let mut chained = Vec::new();
        for index in 0..array.buckets() {
            let first = array.bucket(index);
            self.check_chain(array, index)?;
            self.each_bucket(Off(self.ground.medium().load(next_of(first))), |bucket| {
                chained.push(bucket);
            });
        }
        Outlier::of(&self.ground).check()?;
        self.ground.check(|reach| {
            reach(array.at);
            chained.into_iter().for_each(reach);
        })
    }

    fn check_chain(&self, array: Array, index: u64) -> Result<(), String> {
        let first = array.bucket(index);
        let mut wrong = None;
        let mut keys = BTreeSet::new();
        self.each_live(first, |bucket, key, _| {
            if !keys.insert(key) {
                wrong = Some(format!("key {key:#x} is in chain {index} twice"));
            } else if array.index(hash(key)) != index {
                wrong = Some(format!(
                    "key {key:#x} lies in {bucket:?}, where it is not looked for"
                ));
            }
        });
        self.each_bucket(first, |bucket| {
            let home = self.ground.medium().load(bucket);
            if bucket != first && home != first.0 {
                wrong = Some(format!("{bucket:?} of chain {index} says {home:#x}"));
            }
        });
        wrong.map_or(Ok(()), Err)
    }
}
