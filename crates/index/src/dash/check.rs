//! The consistency check of a segment.

use std::collections::BTreeSet;

use farbank_pm::{Medium, Off};

use super::{DashSegments, KeyHashes};
use crate::error::IndexError;

impl<M: Medium> DashSegments<'_, M> {
    /// Checks an accessed segment: every key occurs once, and a search finds it.
    pub(crate) fn check(&self, segment: Off, keys: &KeyHashes<'_>) -> Result<(), IndexError> {
        let mut seen = BTreeSet::new();
        let mut wrong = None;
        self.each(segment, |spot, key, _| {
            if !seen.insert(key) {
                wrong = Some(format!("key {key:#x} is in {segment:?} twice"));
            } else if !keys.own(key) {
                wrong = Some(format!(
                    "key {key:#x} is live in {segment:?}, but belongs to another segment"
                ));
            } else if self.find(segment, keys.place(key), key) != Some(spot) {
                wrong = Some(format!(
                    "key {key:#x} lies at {spot:?}, where it is not looked for"
                ));
            }
        });
        for chained in self.chained(segment) {
            let (owner, word) = (self.owner(chained), self.medium.load(segment));
            if owner != word {
                wrong = Some(format!(
                    "bucket {chained:?}, chained to {segment:?}, has owner {owner:#x}, expected {word:#x}"
                ));
            }
        }
        wrong.map_or(Ok(()), |what| Err(IndexError::damaged(what)))
    }
}
