//! The use of hash bits, and the configuration words.

use super::DashEhConfig;
use crate::dash::{DashShape, SegmentPlace};
use crate::error::OpenError;
use crate::extendible::DEPTH_MAX;
use crate::pool_heap::{BlockClass, CONFIG_WORDS};

impl DashEhConfig {
    pub(super) fn classes(&self) -> [BlockClass; 1] {
        [BlockClass {
            block_bytes: self.shape.segment_bytes(),
            align: self.shape.bucket_bytes(),
        }]
    }

    pub(super) fn words(&self) -> [u64; 5] {
        let [bucket_bits, stash, slots] = self.shape.words();
        let as_published = u64::from(self.as_published);
        [
            bucket_bits,
            stash,
            slots,
            u64::from(self.depth),
            as_published,
        ]
    }

    pub(super) fn of(words: &[u64; CONFIG_WORDS]) -> Result<DashEhConfig, OpenError> {
        let config = DashEhConfig {
            shape: DashShape::of(words),
            depth: u32::try_from(words[3]).unwrap_or(u32::MAX),
            as_published: words[4] == 1,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let sound = self.shape.is_sound() && (1..=DEPTH_MAX).contains(&self.depth);
        sound.then_some(()).ok_or_else(|| OpenError::Damaged {
            what: format!("{self:?} is no valid configuration of a table"),
        })
    }

    /// Returns the place of a hash: the home bucket from its second byte, the fingerprint from its first.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> SegmentPlace {
        SegmentPlace {
            bucket: hash >> 8 & ((1 << self.shape.bucket_bits) - 1),
            finger: hash as u8,
        }
    }
}
