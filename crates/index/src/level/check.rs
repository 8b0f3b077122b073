//! The consistency check of the whole table.

use std::collections::BTreeSet;

use farbank_pm::Medium;

use super::LevelHash;
use crate::error::IndexError;

impl<M: Medium> LevelHash<M> {
    pub(super) fn check_all(&self) -> Result<(), IndexError> {
        self.check_levels()?;
        let (mut keys, mut wrong) = (BTreeSet::new(), None);
        self.each_live(|level, side, spot| {
            let key = self.pair(spot).0;
            let home = self.config.bucket(level, side, self.hashes(key)[side]);
            if home != spot.bucket {
                wrong = Some(format!(
                    "key {key:#x} lies at {spot:?}, where it is not looked for"
                ));
            } else if !keys.insert(key) {
                wrong = Some(format!("key {key:#x} occurs twice, once at {spot:?}"));
            }
        });
        if let Some(wrong) = wrong {
            return Err(IndexError::damaged(wrong));
        }
        self.table_pool.check(|reach| {
            let levels = self.levels().both();
            levels.iter().for_each(|level| reach(level.at));
        })
    }
}
